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
