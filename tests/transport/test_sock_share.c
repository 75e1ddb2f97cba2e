/* Which stream of a lane takes the next piece. Speeds are set by hand: the streams have no socket
 * that the kernel could be asked about. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "transport/sock/sock.h"

#define MIB (1u << 20)

static struct wire_lane *lane_of(int n, double rate, size_t waiting)
{
    struct wire_lane *lane = calloc(1, sizeof *lane);

    cr_assert(lane);
    lane->nstreams = n;
    lane->out.waiting = waiting;
    for (int i = 0; i < n; i++) {
        lane->streams[i].lane = lane;
        lane->streams[i].fd = -1;
        lane->streams[i].speed.rate = rate;
    }
    return lane;
}

static size_t share(struct wire_lane *lane, int i, size_t left)
{
    return holmes_sock_share(lane, &lane->streams[i], left);
}

Test(sock_share, only_stream_takes_all)
{
    struct wire_lane *lane = lane_of(1, 0, 64 * MIB);

    cr_assert_eq(share(lane, 0, 64 * MIB), 64 * MIB);
    free(lane);
}

Test(sock_share, pieces_follow_speed_and_size)
{
    struct wire_lane *lane = lane_of(4, 250e6, 64 * MIB);
    size_t piece = share(lane, 0, 64 * MIB);

    cr_assert(piece > 240000 && piece <= 250000, "a millisecond's worth: %zu", piece);
    cr_assert_eq(piece % 128, 0u);
    lane->out.waiting = MIB / 2;
    cr_assert_eq(share(lane, 0, MIB / 2), MIB / 8, "each its part");
    lane->out.waiting = 1000;
    cr_assert_eq(share(lane, 0, 1000), 1000u, "a small one is not cut");
    lane->out.waiting = 80000;
    cr_assert_eq(share(lane, 0, 80000), 80000u, "no crumbs are left");
    free(lane);
}

Test(sock_share, stream_with_a_queue_leaves_it_to_the_idle_ones)
{
    struct wire_lane *lane = lane_of(4, 125e6, MIB);

    lane->streams[0].speed.queued = 4 * MIB;
    cr_assert_eq(share(lane, 0, MIB), 0u);
    cr_assert_gt(share(lane, 1, MIB), 0u);
    free(lane);
}

Test(sock_share, slow_stream_is_used_only_where_nobody_waits_for_it)
{
    struct wire_lane *lane = lane_of(4, 125e6, MIB);

    lane->streams[2].speed.rate = 12.5e6;
    cr_assert_eq(share(lane, 2, MIB), 0u, "a message that the others have sooner");
    lane->out.waiting = 64 * MIB;
    cr_assert_gt(share(lane, 2, 64 * MIB), 0u, "it is there long before the others are through");
    lane->streams[2].speed.rtt = 1;
    cr_assert_eq(share(lane, 2, 64 * MIB), 0u, "its acknowledgements take a second");
    free(lane);
}

Test(sock_share, unknown_stream_gets_its_chance)
{
    struct wire_lane *lane = lane_of(3, 125e6, MIB);

    lane->streams[1].speed.rate = 0;
    cr_assert_gt(share(lane, 1, MIB), 0u);
    free(lane);
}

/* Looks every 100 us, as pieces that other streams take bring them, at a stream of `rate` bytes per
 * second that is given 64 KiB every `every_us`. Acknowledged as a super-packet is, all at once. */
static void use(struct sock_speed *v, double rate, unsigned every_us, unsigned for_us)
{
    uint64_t now = v->looked_ns > 0 ? v->looked_ns : 1000000000, acked = v->acked, due = 0;

    for (unsigned t = 0; t < for_us; t += 100, now += 100000) {
        uint64_t queued = due > now ? 65536 : 0;

        if (due > 0 && queued == 0) {
            acked += 65536;
            due = 0;
        }
        holmes_sock_speed_look(v, now, acked, queued);
        if (t % every_us == 0 && due == 0) {
            v->queued += 65536;
            due = now + (uint64_t)(65536e9 / rate);
        }
    }
}

static bool is_about(double rate, double right)
{
    return rate > 0.8 * right && rate < 1.2 * right;
}

Test(sock_speed, what_is_used_little_is_no_slower_for_it)
{
    struct sock_speed v = {.rate = 0};

    use(&v, 12.5e6, 50000, 900000); /* 5.2 ms of 50 */
    cr_assert(is_about(v.rate, 12.5e6), "%.1f MB/s", v.rate / 1e6);
    v.rate = 2e6; /* once it was */
    use(&v, 12.5e6, 20000, 300000);
    cr_assert(is_about(v.rate, 12.5e6), "%.1f MB/s", v.rate / 1e6);
}

Test(sock_speed, follows_a_stream_that_slows_down)
{
    struct sock_speed v = {.rate = 0};

    use(&v, 125e6, 700, 100000);
    cr_assert(is_about(v.rate, 125e6), "%.1f MB/s", v.rate / 1e6);
    use(&v, 12.5e6, 700, 100000);
    cr_assert(is_about(v.rate, 12.5e6), "%.1f MB/s", v.rate / 1e6);
}

Test(sock_speed, what_idled_out_of_sight_counts_upwards_only)
{
    struct sock_speed v = {.rate = 50e6, .looked_ns = 1000000000, .used_ns = 1000000000};

    v.queued = 65536;
    holmes_sock_speed_look(&v, 1020000000, 65536, 0);
    cr_assert_eq(v.rate, 50e6, "3.3 MB/s over a time that was mostly idle");
    v.queued = 65536 * 100;
    holmes_sock_speed_look(&v, 1040000000, 65536 * 101, 0);
    cr_assert_gt(v.rate, 100e6);
}

Test(sock_speed, is_forgotten_when_not_used_for_a_second)
{
    struct sock_speed v = {.rate = 0};

    use(&v, 125e6, 700, 100000);
    holmes_sock_speed_look(&v, v.looked_ns + 990000000, v.acked, 0);
    cr_assert_gt(v.rate, 0);
    holmes_sock_speed_look(&v, v.looked_ns + 1100000000, v.acked, 0);
    cr_assert_eq(v.rate, 0);
}

/* Whatever the speeds: somebody takes it, so nothing waits for ever. */
Test(sock_share, one_stream_always_takes_the_next_piece)
{
    srand(1);
    for (int round = 0; round < 20000; round++) {
        struct wire_lane *lane = lane_of(2 + rand() % 7, 0, 0);
        size_t left = 1 + (size_t)rand() % (8 * MIB), taken = 0;

        lane->out.waiting = left + (size_t)rand() % (8 * MIB);
        for (int i = 0; i < lane->nstreams; i++) {
            lane->streams[i].speed.rate = rand() % 3 ? (double)(1 + rand() % 1000000) * 1e4 : 0;
            lane->streams[i].speed.queued = rand() % 2 ? (uint64_t)rand() % (16 * MIB) : 0;
            lane->streams[i].speed.rtt = (double)(rand() % 30000) * 1e-6;
        }
        for (int i = 0; i < lane->nstreams; i++) {
            size_t piece = share(lane, i, left);

            cr_assert_leq(piece, left);
            taken += piece;
        }
        cr_assert_gt(taken, 0u, "round %d: nobody", round);
        free(lane);
    }
}
