/* A side through NCCL, over the library that stands in for NCCL and the CUDA driver, whose ranks
 * are threads of one process (tests/support/fake_nccl.h): what is moved, what is counted, what is
 * left behind. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "pattern.h"
#include "rendezvous.h"
#include "runner_nccl.h"
#include "tests/support/fake_nccl.h"

#define SECRET    "of the test of runner_nccl"
#define RANKS     4
#define SIZE      4096
#define WINDOW    3
#define ITERS     20
#define TIMEOUT_S 60

struct member {
    struct holmes_rank_attr attr;
    struct holmes_bench_command join;
    pthread_t thread;
    uint32_t salt;
    atomic_uint_fast64_t beats;
    float us[ITERS];
    int rc; /* the first that is not 0 */
    uint64_t wrong, cpu_ns, ns;
    char about[400], why[400];
};

static void buffers_make(struct member *m, struct holmes_rank_work *w)
{
    const struct holmes_rank_attr *a = &m->attr;

    *w = (struct holmes_rank_work){.attr = a, .salt = m->salt};
    cr_assert(holmes_shape_of(a->collective, SIZE, a->nranks, a->type, &w->shape));
    w->window = a->collective == HOLMES_SENDRECV ? WINDOW : 1;
    w->in_room = w->shape.in_bytes;
    w->out_room = w->shape.out_bytes * w->window;
    w->in = malloc(w->in_room);
    w->out = malloc(w->out_room);
    cr_assert(w->in && w->out);
    holmes_pattern_fill(w->in, 0, w->shape.in_bytes / holmes_dtype_size(a->type), a->type, a->rank,
                        w->salt);
    holmes_pattern_poison(w->out, w->out_room);
}

static int measure(struct member *m, struct holmes_runner *r, const struct holmes_rank_work *w,
                   enum holmes_bench_measure what)
{
    struct holmes_bench_command cmd = {
        .verb = HOLMES_BENCH_RUN, .measure = what, .warmups = 2, .iters = ITERS};
    bool records = what == HOLMES_BENCH_LATENCY && m->attr.rank % 2 == 0;
    struct holmes_timing t = {.message_us = records ? m->us : NULL};
    int rc = holmes_runner_nccl.run(r, w, &cmd, &t, m->why, sizeof m->why);

    m->ns = t.ns;
    m->cpu_ns = t.cpu_ns;
    return rc;
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    bool messages = m->attr.collective == HOLMES_SENDRECV;
    struct holmes_runner *r = NULL;
    struct holmes_rank_work w;

    buffers_make(m, &w);
    m->rc = holmes_runner_nccl.join(&m->attr, &m->join, &r, m->about, sizeof m->about);
    if (m->rc == 0)
        m->rc = holmes_runner_nccl.verify(r, &w, &m->join, &m->wrong, m->why, sizeof m->why);
    if (m->rc == 0)
        m->rc = measure(m, r, &w, messages ? HOLMES_BENCH_LATENCY : HOLMES_BENCH_TIME);
    if (m->rc == 0 && messages)
        m->rc = measure(m, r, &w, HOLMES_BENCH_BANDWIDTH);
    holmes_runner_nccl.leave(r);
    free(w.in);
    free(w.out);
    return NULL;
}

static struct holmes_rank_attr attr_of(enum holmes_collective c, int nranks)
{
    return (struct holmes_rank_attr){.collective = c,
                                     .nranks = nranks,
                                     .max_bytes = SIZE,
                                     .max_iters = ITERS,
                                     .window = WINDOW,
                                     .timeout_s = TIMEOUT_S,
                                     .plugin = "none",
                                     .through_nccl = true,
                                     .nccl = getenv("TEST_FAKE_NCCL"),
                                     .cuda = getenv("TEST_FAKE_NCCL")};
}

/* All ranks from their birth to their end; `odd_salt` is what the last rank fills with. */
static void job_run(struct member *members, const struct holmes_rank_attr *attr, uint32_t odd_salt)
{
    struct holmes_rdv_server *server;
    int n = attr->nranks;

    cr_assert_eq(holmes_rdv_serve("127.0.0.1", 0, SECRET, n, &server), 0);
    for (int i = 0; i < n; i++) {
        struct member *m = &members[i];

        *m = (struct member){.attr = *attr, .salt = i == n - 1 ? odd_salt : 1};
        m->attr.rank = i;
        m->attr.beat = &m->beats;
        m->join.port = holmes_rdv_port(server);
        memcpy(m->join.secret, SECRET, sizeof SECRET);
        cr_assert_eq(pthread_create(&m->thread, NULL, member_main, m), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(members[i].thread, NULL);
    holmes_rdv_stop(server);
}

static void expect_nothing_left(void)
{
    struct fake_gpu_use use = fake_gpu_use();

    cr_expect(use.streams == 0 && use.events == 0 && use.blocks == 0 && use.entries == 0,
              "%d streams, %d events, %d blocks of memory, %d entries are left", use.streams,
              use.events, use.blocks, use.entries);
}

/* Before a rank is a thread: the variables of a process are not to change under it. */
static void environment_set(void)
{
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    setenv("NCCL_NET_PLUGIN_REF_COUNT", "1", 1);
}

TestSuite(nccl, .init = environment_set, .timeout = 120);

static struct member members[RANKS];

static void expect_right(const struct holmes_rank_attr *attr)
{
    job_run(members, attr, 1);
    for (int i = 0; i < attr->nranks; i++) {
        const struct member *m = &members[i];

        cr_assert_eq(m->rc, 0, "rank %d: %s%s", i, m->about, m->why);
        cr_expect_eq(m->wrong, 0, "%s, rank %d of %d: %ju wrong elements",
                     holmes_collective_name(attr->collective), i, attr->nranks,
                     (uintmax_t)m->wrong);
        cr_expect(m->ns > 0 && m->cpu_ns > 0);
        cr_expect_geq(atomic_load(&m->beats), ITERS);
        cr_expect(strstr(m->about, "NCCL 2.28.9, its own network, 8 GPUs"), "%s", m->about);
    }
    expect_nothing_left();
}

Test(nccl, collectives_are_right_and_leave_nothing)
{
    for (int c = 0; c < HOLMES_SENDRECV; c++)
        for (int n = 2; n <= 3; n++)
            for (int type = 0; type < 2; type++) {
                struct holmes_rank_attr attr = attr_of((enum holmes_collective)c, n);

                attr.type = type ? HOLMES_BFLOAT16 : HOLMES_FLOAT32;
                expect_right(&attr);
            }
}

Test(nccl, messages_of_all_pairs_are_right_one_way_and_both)
{
    for (int n = 2; n <= RANKS; n += 2)
        for (int both = 0; both < 2; both++) {
            struct holmes_rank_attr attr = attr_of(HOLMES_SENDRECV, n);

            attr.both_ways = both;
            expect_right(&attr);
            for (int i = 0; i < ITERS; i++)
                cr_expect_gt(members[0].us[i], 0, "message %d has no time", i);
        }
}

/* The control of the two above: a rank that fills with something else is seen by who hears it. */
Test(nccl, wrong_elements_are_counted)
{
    struct holmes_rank_attr attr = attr_of(HOLMES_ALL_REDUCE, 3);

    job_run(members, &attr, 2);
    for (int i = 0; i < 3; i++)
        cr_expect_gt(members[i].wrong, SIZE / 4 / 2, "rank %d", i);
    attr = attr_of(HOLMES_SENDRECV, 2);
    job_run(members, &attr, 2);
    cr_expect_gt(members[0].wrong, SIZE / 4 / 2);
    cr_expect_gt(members[1].wrong, SIZE / 4 / 2);
}

Test(nccl, a_missing_library_is_named)
{
    struct holmes_rank_attr attr = attr_of(HOLMES_ALL_REDUCE, 2);
    struct holmes_bench_command join = {.verb = HOLMES_BENCH_JOIN};
    struct holmes_runner *r = NULL;
    char about[400] = "";

    attr.nccl = "/nonexistent/libnccl.so";
    cr_assert_eq(holmes_runner_nccl.join(&attr, &join, &r, about, sizeof about), -ELIBACC);
    cr_expect(strstr(about, "--backend nccl: NCCL is not here"), "%s", about);
    cr_expect(strstr(about, "/nonexistent/libnccl.so"), "%s", about);
    holmes_runner_nccl.leave(r);
    attr.cuda = "/nonexistent/libcuda.so";
    cr_assert_eq(holmes_runner_nccl.join(&attr, &join, &r, about, sizeof about), -ELIBACC);
    cr_expect(strstr(about, "the CUDA driver is not here"), "%s", about);
    holmes_runner_nccl.leave(r);
    expect_nothing_left();
}

Test(nccl, a_process_has_the_network_of_its_side_alone)
{
    struct holmes_rank_attr attr = {.rank = 3, .plugin = "/x/libnccl-net-y.so"};

    setenv("NCCL_NET", "Elsewhere", 1);
    setenv("NCCL_NET_PLUGIN", "elsewhere", 1);
    setenv("NCCL_SHM_DISABLE", "0", 1);
    unsetenv("NCCL_P2P_DISABLE");
    holmes_nccl_environ(&attr);
    cr_expect_null(getenv("NCCL_NET"));
    cr_expect_null(getenv("NCCL_NET_PLUGIN"), "opening NCCL sets it");
    cr_expect_str_eq(getenv("NCCL_HOSTID"), "holmes-bench-3");
    cr_expect_str_eq(getenv("NCCL_P2P_DISABLE"), "1");
    cr_expect_str_eq(getenv("NCCL_SHM_DISABLE"), "0", "who sets it means it");
    attr.plugin = "none";
    holmes_nccl_environ(&attr);
    cr_expect_str_eq(getenv("NCCL_NET_PLUGIN"), "none");
}
