/* Messages of many sizes in both directions at once, several under way: what comes is what was
 * sent, whole and in order, whatever the network between the ends does. Guests have it lose,
 * double, reorder and delay packets (tests/soft-roce); elsewhere it is the loopback as it is. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "link.h"

#define MESSAGES  110
#define DEPTH     8
#define BIG       ((size_t)1 << 20)
#define STRIDE    (BIG + 64)
#define UNTOUCHED 0xee

/* One direction: message i lies in slot i modulo DEPTH at both ends. */
struct flow {
    struct holmes_conn *send, *recv;
    unsigned seed; /* of its first message */
    uint8_t *from, *to;
    struct holmes_mr *from_mr, *to_mr;
    struct holmes_request *sends[DEPTH], *recvs[DEPTH];
    int posted, received, filled, sent, confirmed;
};

static size_t size_of(int message)
{
    static const size_t sizes[] = {0, 1, 8, 100, 2048, 2049, 4096, 65536, 70000, 262145, BIG};

    return sizes[(size_t)message % (sizeof sizes / sizeof *sizes)];
}

static size_t slot(int message)
{
    return (size_t)message % DEPTH;
}

static void flow_open(struct flow *f, const struct link *l, unsigned seed)
{
    *f = (struct flow){.send = l->send, .recv = l->recv, .seed = seed};
    f->from = malloc(DEPTH * STRIDE);
    f->to = malloc(DEPTH * STRIDE);
    cr_assert(f->from && f->to);
    cr_assert_eq(holmes_mr_reg(f->send, f->from, DEPTH * STRIDE, &f->from_mr), 0);
    cr_assert_eq(holmes_mr_reg(f->recv, f->to, DEPTH * STRIDE, &f->to_mr), 0);
}

static void flow_close(struct flow *f)
{
    holmes_mr_dereg(f->send, f->from_mr);
    holmes_mr_dereg(f->recv, f->to_mr);
    free(f->from);
    free(f->to);
}

static bool flow_over(const struct flow *f)
{
    return f->received == MESSAGES && f->confirmed == MESSAGES;
}

static void post_recv(struct flow *f)
{
    void *at = f->to + slot(f->posted) * STRIDE;
    size_t room = size_of(f->posted);
    int tag = 7, rc;

    if (f->posted == MESSAGES || f->posted - f->received == DEPTH)
        return;
    ((uint8_t *)at)[room] = UNTOUCHED;
    rc = holmes_irecv(f->recv, 1, &at, &room, &tag, &f->to_mr, &f->recvs[slot(f->posted)]);
    cr_assert(rc == 0 || rc == -EAGAIN, "irecv: %s", strerror(-rc));
    f->posted += rc == 0;
}

static void post_send(struct flow *f)
{
    uint8_t *at = f->from + slot(f->sent) * STRIDE;
    size_t len = size_of(f->sent);
    int rc;

    if (f->sent == MESSAGES || f->sent - f->confirmed == DEPTH)
        return;
    if (f->filled == f->sent)
        link_fill(at, len, f->seed + (unsigned)f->filled++);
    rc = holmes_isend(f->send, at, len, 7, f->from_mr, &f->sends[slot(f->sent)]);
    cr_assert(rc == 0 || rc == -EAGAIN, "isend: %s", strerror(-rc));
    f->sent += rc == 0;
}

static void test_recv(struct flow *f)
{
    const uint8_t *at = f->to + slot(f->received) * STRIDE;
    size_t len = 0, right = size_of(f->received);
    bool done = false;
    int rc;

    if (f->received == f->posted)
        return;
    rc = holmes_test(f->recvs[slot(f->received)], &done, &len);
    cr_assert_eq(rc, 0, "receive %d: %s", f->received, strerror(-rc));
    if (!done)
        return;
    cr_assert_eq(len, right, "message %d", f->received);
    cr_assert(link_check(at, len, f->seed + (unsigned)f->received), "message %d of %zu bytes",
              f->received, len);
    cr_assert_eq(at[len], UNTOUCHED, "written behind message %d of %zu bytes", f->received, len);
    f->received++;
}

static void test_send(struct flow *f)
{
    bool done = false;
    int rc;

    if (f->confirmed == f->sent)
        return;
    rc = holmes_test(f->sends[slot(f->confirmed)], &done, NULL);
    cr_assert_eq(rc, 0, "send %d: %s", f->confirmed, strerror(-rc));
    f->confirmed += done;
}

/* Whether anything came or was confirmed. */
static bool flow_step(struct flow *f)
{
    int before = f->received + f->confirmed;

    post_recv(f);
    post_send(f);
    test_recv(f);
    test_send(f);
    return f->received + f->confirmed != before;
}

static void both_ways(const char *lanes)
{
    struct link there, back = {0};
    struct flow flows[2];
    uint64_t deadline = holmes_deadline_ms((uint64_t)LINK_TIMEOUT_MS);

    setenv("HOLMES_LANES", lanes, 1);
    link_open(&there);
    back.a = there.b;
    back.b = there.a;
    link_connect(&back);
    flow_open(&flows[0], &there, 1);
    flow_open(&flows[1], &back, 1000);
    while (!flow_over(&flows[0]) || !flow_over(&flows[1])) {
        bool moved = flow_step(&flows[0]);

        if (flow_step(&flows[1]) || moved)
            deadline = holmes_deadline_ms((uint64_t)LINK_TIMEOUT_MS);
        cr_assert(!holmes_deadline_passed(deadline), "received %d and %d, confirmed %d and %d",
                  flows[0].received, flows[1].received, flows[0].confirmed, flows[1].confirmed);
    }
    for (int i = 0; i < 2; i++)
        flow_close(&flows[i]);
    holmes_conn_close(back.send);
    holmes_conn_close(back.recv);
    link_close(&there);
}

Test(traffic, arrives_whole_and_in_order_over_one_lane, .timeout = 600)
{
    both_ways("1");
}

Test(traffic, arrives_whole_and_in_order_over_four_lanes, .timeout = 600)
{
    both_ways("4");
}
