/* Lanes of the sockets wire beyond what every wire's do: how long their end takes, and what they
 * leave with a NIC. */
#include <criterion/criterion.h>
#include <errno.h>

#include "clock.h"
#include "transport/sock/sock_ops.h"
#include "wire_pair.h"

#define LINGER_MS 500 /* that a lane waits for its peer to have everything */

static const struct wire_ops *const wire = &holmes_wire_sock;

/* ---- lingering ---- */

#define LANES 8

struct lanes {
    struct wire_end from, to;
    struct wire_mr mr;
};

static void lanes_open(struct lanes *l, uint8_t *bytes, size_t len)
{
    struct holmes_nic nic = test_loopback_nic("127.0.0.1");

    end_open(&l->from, wire, &nic);
    end_open(&l->to, wire, &nic);
    cr_assert_eq(wire->mr_reg(l->from.wn, bytes, len, &l->mr), 0);
}

static void lanes_close(struct lanes *l)
{
    wire->mr_dereg(l->from.wn, &l->mr);
    end_close(&l->from);
    end_close(&l->to);
}

/* Their receiving ends are never read, as those of a stopped process. */
static void lanes_raise(struct lanes *l, struct wire_lane *from[LANES], struct wire_lane *to[LANES])
{
    for (int i = 0; i < LANES; i++) {
        struct half a = half_make(&l->from, WIRE_CONNECT), b = half_make(&l->to, WIRE_ACCEPT);

        from[i] = a.lane;
        to[i] = b.lane;
        cr_assert_eq(wire->lane_connect(a.lane, b.blob, b.len), 0);
        cr_assert_eq(wire->lane_connect(b.lane, a.blob, a.len), 0);
        cr_assert_eq(lane_wait(&l->from, &l->to, a.lane, PAIR_TIMEOUT_MS), 0);
    }
}

/* More than kernels buffer, and a copy at the end. */
static void fill(struct lanes *l, struct wire_lane *lane, uint8_t *bytes, size_t len)
{
    struct wire_write w = {.buf = bytes, .len = len, .mr = &l->mr, .remote_key = 1};

    for (int i = 0; i < 8; i++)
        cr_assert_eq(wire->lane_post(lane, &w), 0);
    w = (struct wire_write){.buf = bytes, .len = 8, .remote_key = 1, .flags = WIRE_INLINE};
    cr_assert_eq(wire->lane_post(lane, &w), 0);
}

static uint64_t linger_ms(struct wire_lane *lane)
{
    uint64_t start = holmes_now_ns();

    wire->lane_linger(lane);
    return (holmes_now_ns() - start) / 1000000;
}

Test(sock_lane, many_that_end_together_wait_no_longer_than_one)
{
    static uint8_t bytes[1 << 20];
    struct wire_lane *from[LANES], *to[LANES];
    uint64_t took = 0, start;
    struct lanes l;

    lanes_open(&l, bytes, sizeof bytes);
    lanes_raise(&l, from, to);
    for (int i = 0; i < LANES; i++)
        fill(&l, from[i], bytes, sizeof bytes);
    cr_expect_geq(linger_ms(from[0]), LINGER_MS, "a peer that may be slow is given its time");
    for (int i = 1; i < LANES - 1; i++)
        took += linger_ms(from[i]);
    cr_expect_lt(took, (LANES - 2) * LINGER_MS / 2, "each waited: %d ms in all", (int)took);
    /* A copy that was made just now may be on its way to a living peer. */
    start = holmes_now_ns();
    fill(&l, from[LANES - 1], bytes, 8);
    wire->lane_linger(from[LANES - 1]);
    cr_expect_geq(holmes_now_ns() - start, (LINGER_MS - 20) * 1000000ull); /* a coarse clock */
    for (int i = 0; i < LANES; i++) {
        wire->lane_close(from[i]);
        wire->lane_close(to[i]);
    }
    lanes_close(&l);
}

/* ---- mates ---- */

/* A lane of `wn` that uses `mate` too. */
static int lane_over(struct wire_nic *wn, struct wire_nic *mate, struct wire_cq *cq,
                     struct wire_lane **out)
{
    struct wire_lane_params params = {
        .traffic_class = -1, .streams = 2, .nmates = 1, .mates = {mate}};
    uint8_t blob[HOLMES_LANE_BLOB_MAX];
    size_t len;

    return wire->lane_create(wn, cq, WIRE_ACCEPT, &params, blob, &len, out);
}

Test(sock_lane, mates_are_forgotten_with_their_last_lane)
{
    struct holmes_nic nic = test_loopback_nic("127.0.0.1");
    struct wire_end e;

    end_open(&e, wire, &nic);
    for (int i = 0; i < SOCK_MATES_MAX + 4; i++) {
        struct wire_lane *first, *second;
        struct wire_nic *mate;

        cr_assert_eq(wire->nic_open(&nic, 0, 0, &mate), 0);
        cr_assert_eq(lane_over(e.wn, mate, e.cq, &first), 0, "mate %d", i);
        cr_assert_eq(lane_over(e.wn, mate, e.cq, &second), 0);
        wire->lane_close(first);
        cr_expect_eq(e.wn->nmates, 1, "another lane uses it");
        wire->lane_close(second);
        cr_expect_eq(e.wn->nmates, 0);
        wire->nic_close(mate);
        wire->nic_progress(e.wn); /* looks at none that is gone */
    }
    end_close(&e);
}

Test(sock_lane, more_mates_than_a_nic_can_have_are_refused_and_leave_nothing)
{
    struct holmes_nic nic = test_loopback_nic("127.0.0.1");
    struct wire_nic *mates[SOCK_MATES_MAX + 1];
    struct wire_lane *lanes[SOCK_MATES_MAX + 1];
    struct wire_end e;

    end_open(&e, wire, &nic);
    for (int i = 0; i <= SOCK_MATES_MAX; i++) {
        cr_assert_eq(wire->nic_open(&nic, 0, 0, &mates[i]), 0);
        cr_assert_eq(lane_over(e.wn, mates[i], e.cq, &lanes[i]), i < SOCK_MATES_MAX ? 0 : -ENOSPC);
    }
    for (int i = 0; i < SOCK_MATES_MAX; i++)
        wire->lane_close(lanes[i]);
    cr_expect_eq(e.wn->nmates, 0);
    for (int i = 0; i <= SOCK_MATES_MAX; i++)
        wire->nic_close(mates[i]);
    end_close(&e);
}
