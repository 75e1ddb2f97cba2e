/* NCCL's call sequences, replayed against the built library with the sizes NCCL uses. */
#include <criterion/criterion.h>
#include <string.h>

#include "nccl_side.h"
#include "trace.h"

static const size_t reductions[] = {8, 1024, 32768, 65536, 262144, 1 << 20, 4 << 20, 16 << 20};
#define NREDUCTIONS (sizeof reductions / sizeof *reductions)

static void expect_ring(enum proto proto, size_t bytes, int rank, const size_t *sizes, int n)
{
    struct trace t;

    trace_ring(proto, bytes, rank, &t);
    cr_expect_eq(t.n, n, "proto %d, %zu bytes, rank %d: %d messages", proto, bytes, rank, t.n);
    for (int i = 0; i < n && i < t.n; i++)
        cr_expect_eq(t.sizes[i], sizes[i], "proto %d, %zu bytes, rank %d, message %d: %zu", proto,
                     bytes, rank, i, t.sizes[i]);
}

/* The generator against sizes worked out by hand from NCCL's formulas. */
Test(traces, ring_sizes_are_nccls)
{
    expect_ring(SIMPLE, 8, 0, (const size_t[]){0, 0, 8, 0}, 4);
    expect_ring(SIMPLE, 8, 1, (const size_t[]){8, 0, 0, 0}, 4);
    expect_ring(LL, 8, 0, (const size_t[]){0, 16}, 2);
    expect_ring(LL, 8, 1, (const size_t[]){16, 0}, 2);
    expect_ring(LL128, 8, 0, (const size_t[]){0, 2048}, 2);
    expect_ring(SIMPLE, 1024, 1, (const size_t[]){512, 0, 512, 0}, 4);
    expect_ring(LL, 1024, 0, (const size_t[]){1024, 1024}, 2);
    expect_ring(LL128, 32768, 0, (const size_t[]){18432, 18432}, 2);
    expect_ring(SIMPLE, 65536, 0, (const size_t[]){32768, 0, 32768, 0}, 4);
    expect_ring(LL128, 65536, 0, (const size_t[]){36864, 36864}, 2);
    expect_ring(SIMPLE, 262144, 0, (const size_t[]){65536, 65536, 65536, 65536}, 4);
    expect_ring(LL128, 262144, 0, (const size_t[]){141312, 141312}, 2);
    expect_ring(SIMPLE, 1 << 20, 0, (const size_t[]){262144, 262144, 262144, 262144}, 4);
    expect_ring(LL128, 1 << 20, 0, (const size_t[]){561152, 561152}, 2);
    expect_ring(SIMPLE, 4 << 20, 0, (const size_t[]){1048576, 1048576, 1048576, 1048576}, 4);
    expect_ring(LL128, 4 << 20, 0,
                (const size_t[]){614400, 614400, 614400, 614400, 614400, 614400, 395264, 395264},
                8);
}

Test(traces, long_rings_have_nccls_counts)
{
    struct trace t;
    size_t total = 0;

    trace_ring(LL, 16 << 20, 0, &t);
    cr_expect_eq(t.n, 512);
    cr_expect_eq(t.sizes[0], 65536);
    cr_expect_eq(t.sizes[511], 65536);
    trace_ring(SIMPLE, 16 << 20, 1, &t);
    cr_expect_eq(t.n, 16);
    trace_ring(LL128, 16 << 20, 1, &t);
    for (int i = 0; i < t.n; i++)
        total += t.sizes[i];
    cr_expect_eq(t.n, 30);
    cr_expect_eq(total, 17899520);
}

Test(traces, p2p_sizes_are_nccls)
{
    struct trace t, u;

    trace_p2p(8, 0, &t);
    cr_expect(t.n == 1 && t.sizes[0] == 8);
    trace_p2p(0, 0, &t);
    cr_expect(t.n == 1 && t.sizes[0] == 0);
    trace_p2p(100000, 0, &t);
    trace_p2p(100000, 1, &u);
    cr_expect(t.n == 4 && t.sizes[0] == 32768 && t.sizes[3] == 1696 && u.n == 0);
    for (int channel = 0; channel < 2; channel++) {
        trace_p2p(262144, channel, &t);
        cr_expect(t.n == 2 && t.sizes[0] == 65536 && t.sizes[1] == 65536);
        trace_p2p(1 << 20, channel, &t);
        cr_expect(t.n == 4 && t.sizes[0] == 131072 && t.sizes[3] == 131072);
    }
    cr_expect_eq(trace_p2p_recv_max_2_28(8), 4096);
    cr_expect_eq(trace_p2p_recv_max_2_28(100000), 32768);
    cr_expect_eq(trace_p2p_recv_max_2_28(262144), 65536);
}

static void make_op(struct rank *r, int channel, bool sending, enum proto proto,
                    const struct trace *t, struct op *op)
{
    *op = (struct op){
        .sending = sending,
        .ch = &r->channels[channel],
        .proto = proto,
        .sizes = t->sizes,
        .nmsgs = t->n,
        .recv_max = trace_recv_max(proto),
        .depth = trace_depth(proto),
        .stride = trace_stride(proto),
        .tag = sending ? r->rank : 1 - r->rank,
        /* Both ends of a direction must agree; no two operations have the same contents. */
        .seed = r->comm_id * 1000003 + (uint64_t)channel * 977 + (uint64_t)proto * 31 +
                (uint64_t)(sending ? r->rank : 1 - r->rank),
    };
}

/* All-reduces of one protocol over all channels, one after the other, as a stream has them. */
static bool reduce_all(struct rank *r, enum proto proto, size_t max_bytes)
{
    static const int max_channels = MAX_CHANNELS;
    struct op ops[2 * MAX_CHANNELS];
    struct trace mine, theirs;

    for (size_t i = 0; i < NREDUCTIONS && reductions[i] <= max_bytes; i++) {
        trace_ring(proto, reductions[i], r->rank, &mine);
        trace_ring(proto, reductions[i], 1 - r->rank, &theirs);
        for (int c = 0; c < r->nchannels && c < max_channels; c++) {
            make_op(r, c, true, proto, &mine, &ops[2 * c]);
            make_op(r, c, false, proto, &theirs, &ops[2 * c + 1]);
        }
        if (!rank_run(r, ops, 2 * r->nchannels))
            return false;
    }
    return true;
}

struct ring_arg {
    int channels;
    size_t max_bytes;
};

static bool ring_script(struct rank *r)
{
    const struct ring_arg *arg = r->script_arg;

    return rank_init(r) && rank_connect(r, arg->channels) &&
           reduce_all(r, SIMPLE, arg->max_bytes) && reduce_all(r, LL, arg->max_bytes) &&
           reduce_all(r, LL128, arg->max_bytes) && rank_barrier(r) && rank_destroy(r);
}

Test(traces, every_abi_table_moves_bytes, .timeout = 300)
{
    for (int version = 6; version <= 12; version++) {
        struct ring_arg arg = {.channels = 1, .max_bytes = 1 << 20};

        run_in_threads(HOLMES_PLUGIN, version, 1, ring_script, &arg);
    }
}

Test(traces, ring_all_reduce_in_one_process, .timeout = 300)
{
    struct ring_arg arg = {.channels = 2, .max_bytes = 16 << 20};

    run_in_threads(HOLMES_PLUGIN, 11, 1, ring_script, &arg);
}

Test(traces, ring_all_reduce_between_processes, .timeout = 300)
{
    struct ring_arg arg = {.channels = 2, .max_bytes = 16 << 20};

    run_in_processes(HOLMES_PLUGIN, 12, ring_script, &arg, sizeof arg);
}

Test(traces, several_communicators_at_once, .timeout = 300)
{
    struct ring_arg arg = {.channels = 2, .max_bytes = 1 << 20};

    run_in_threads(HOLMES_PLUGIN, 11, 3, ring_script, &arg);
}

/* ---- point to point ---- */

static bool p2p_exchange(struct rank *r, size_t bytes, bool full_chunk)
{
    struct trace t[2];
    struct op ops[4];

    for (int c = 0; c < 2; c++) {
        trace_p2p(bytes, c, &t[c]);
        make_op(r, c, true, SIMPLE, &t[c], &ops[2 * c]);
        make_op(r, c, false, SIMPLE, &t[c], &ops[2 * c + 1]);
        for (int i = 2 * c; i < 2 * c + 2; i++) {
            ops[i].depth = STEPS;
            ops[i].stride = TRACE_P2P_CHUNK;
            ops[i].recv_max = full_chunk ? TRACE_P2P_CHUNK : trace_p2p_recv_max_2_28(bytes);
            ops[i].seed += bytes;
        }
    }
    return rank_run(r, ops, 4);
}

static bool p2p_script(struct rank *r)
{
    static const size_t sizes[] = {0, 8, 4097, 100000, 131072, 131073, 262144, 1 << 20, 5000001};

    r->p2p = true;
    if (!rank_init(r) || !rank_connect(r, 2))
        return false;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!p2p_exchange(r, sizes[i], false) || !p2p_exchange(r, sizes[i], true))
            return false;
    }
    return rank_barrier(r) && rank_destroy(r);
}

Test(traces, p2p_of_2_28_and_2_30_receive_sizes, .timeout = 300)
{
    run_in_threads(HOLMES_PLUGIN, 11, 1, p2p_script, NULL);
    run_in_processes(HOLMES_PLUGIN, 12, p2p_script, NULL, 0);
}

/* ---- abort ---- */

/* Receives that nothing comes for are outstanding, and a send is being tried, when the progress
 * thread leaves; a later communicator of the same process works. */
static bool abort_script(struct rank *r)
{
    static const size_t sizes[8] = {1048576, 1048576, 1048576, 1048576,
                                    1048576, 1048576, 1048576, 1048576};
    struct ring_arg *arg = r->script_arg;
    struct trace t = {.n = 8};
    struct op op;

    memcpy(t.sizes, sizes, sizeof sizes);
    if (!rank_init(r) || !rank_connect(r, arg->channels))
        return false;
    /* Rank 0 receives on channel 0, rank 1 sends on channel 1: neither has a partner. */
    make_op(r, r->rank, r->rank == 1, SIMPLE, &t, &op);
    rank_start(r, &op, 1);
    if (r->rank == 0 && !rank_wait_posted(r, &op, 4))
        return false;
    return rank_barrier(r) && rank_destroy(r);
}

Test(traces, abort_with_requests_outstanding, .timeout = 120)
{
    struct ring_arg arg = {.channels = 2, .max_bytes = 1 << 20};

    run_in_threads(HOLMES_PLUGIN, 11, 1, abort_script, &arg);
    run_in_processes(HOLMES_PLUGIN, 11, abort_script, &arg, sizeof arg);
    run_in_threads(HOLMES_PLUGIN, 11, 1, ring_script, &arg);
}
