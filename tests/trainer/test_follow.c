/* The trainer on kernels that are queued, over comm_nccl, where the library that stands in for NCCL
 * and the CUDA driver runs what is queued in the order that is worst for who forgot a wait: the
 * host queues a whole step without waiting, results are those of calls that are done when they
 * return, bit for bit, and an operation that the queue follows ends in time when it fails. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../support/test_folder.h"
#include "ckpt_job.h"
#include "comm_nccl.h"
#include "support/fake_nccl.h"
#include "support/queued_kernels.h"

#define SECRET "secret of the queue's test"

static char dir[TEST_FOLDER_MAX], text[128];

static void set_up(void)
{
    test_folder_make(dir, "follow");
    snprintf(text, sizeof text, "%s/text", dir);
    ckpt_job_text(text);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(follow, .init = set_up, .fini = tear_down, .timeout = 300);

/* ---- ranks with a GPU each ---- */

static struct holmes_rdv_server *server;

struct gpu {
    struct holmes_rdv *rdv;
    struct holmes_nccl *nccl;
};

static void *gpu_enter(int rank, int world)
{
    const struct holmes_nccl_attr attr = {.nccl = getenv("TEST_FAKE_NCCL"),
                                          .cuda = getenv("TEST_FAKE_NCCL"),
                                          .stream = queued_kernels()->stream(),
                                          .connect_timeout_s = 60,
                                          .op_timeout_s = 60};
    struct gpu *g = calloc(1, sizeof *g);
    char why[400] = "";

    cr_assert_not_null(g);
    cr_assert_eq(holmes_nccl_open(&attr, &g->nccl, why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_rdv_connect("127.0.0.1", holmes_rdv_port(server), SECRET, rank, world,
                                    30000, &g->rdv),
                 0);
    return g;
}

static void gpu_leave(void *ctx)
{
    struct gpu *g = ctx;

    holmes_nccl_close(g->nccl);
    holmes_rdv_leave(g->rdv);
    queued_leave();
    free(g);
}

/* Waits of the host are seen. */
static const struct holmes_comm_ops *real;

static int seen_wait(struct holmes_op *op, int timeout_ms)
{
    if (timeout_ms != 0)
        queued_host_waits();
    return real->wait(op, timeout_ms);
}

static int gpu_comm(void *ctx, const char *name, const char *kind, const int *ranks, int size,
                    int rank, struct holmes_comm **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct holmes_comm_ops seen;
    struct gpu *g = ctx;
    int rc = holmes_comm_nccl_create(g->nccl, g->rdv, name, kind, ranks, size, rank, out);

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&lock);
    if (!real) {
        real = (*out)->ops;
        seen = *real;
        seen.wait = seen_wait;
    }
    pthread_mutex_unlock(&lock);
    (*out)->ops = &seen;
    return 0;
}

static void expect_nothing_left(void)
{
    const struct fake_gpu_use use = fake_gpu_use();

    cr_expect_eq(use.streams, 0, "%d streams", use.streams);
    cr_expect_eq(use.events, 0, "%d events", use.events);
    cr_expect_eq(use.blocks, 0, "%d blocks of memory", use.blocks);
    cr_expect_eq(use.entries, 0, "%d entries", use.entries);
}

/* ---- training ---- */

static struct ckpt_job job_of(struct ckpt_split split, bool tied)
{
    return (struct ckpt_job){
        .split = split, .tied = tied, .text = text, .first = 1, .last = 3, .evaluate = true};
}

static void run_on_gpus(struct ckpt_job *job)
{
    job->kernels = queued_kernels();
    job->factory = gpu_comm;
    job->enter = gpu_enter;
    job->leave = gpu_leave;
    cr_assert_eq(holmes_rdv_serve("127.0.0.1", 0, SECRET, ckpt_job_world(job), &server), 0);
    ckpt_job_run(job);
    holmes_rdv_stop(server);
}

static void expect_success(const struct ckpt_job *job)
{
    for (int r = 0; r < ckpt_job_world(job); r++)
        cr_assert_eq(job->rc[r], 0, "rank %d: %d %s", r, job->rc[r], job->why[r]);
}

static bool same(const struct ckpt_job *a, const struct ckpt_job *b)
{
    bool same = a->held_out == b->held_out;

    for (int step = a->first; step <= a->last; step++)
        same = same && a->steps[step].loss == b->steps[step].loss &&
               a->steps[step].grad_norm == b->steps[step].grad_norm;
    return same;
}

/* With all that is late in either way. */
static void compare(struct ckpt_split split, bool tied)
{
    static const enum fake_gpu_order orders[] = {FAKE_GPU_OPERATIONS_LATE, FAKE_GPU_KERNELS_LATE};
    struct ckpt_job ref = job_of(split, tied), gpus;
    char at_ref[130], at_gpus[130];

    ref.save_at = 3;
    gpus = ref;
    ref.save = strcat(strcpy(at_ref, dir), "/ref");
    ckpt_job_ok(&ref);
    cr_expect_gt(ref.steps[1].grad_norm, 1, "clipping has something to do");
    strcat(at_ref, "/step-00000003");
    for (int i = 0; i < 2; i++) {
        gpus.save = strcat(strcpy(at_gpus, dir), i == 0 ? "/early" : "/late");
        fake_gpu_order(orders[i]);
        run_on_gpus(&gpus);
        expect_success(&gpus);
        cr_expect(same(&ref, &gpus), "order %d", i);
        strcat(at_gpus, "/step-00000003");
        ckpt_job_same_state(at_ref, at_gpus);
        expect_nothing_left();
    }
}

Test(follow, one_rank)
{
    compare((struct ckpt_split){1, 1, 1, 1}, true);
}

Test(follow, stages)
{
    compare((struct ckpt_split){2, 1, 1, 1}, true);
}

Test(follow, stages_of_two_chunks)
{
    compare((struct ckpt_split){2, 1, 1, 2, .recompute = true}, false);
}

Test(follow, replicas)
{
    compare((struct ckpt_split){1, 2, 1, 1}, false);
}

Test(follow, replicas_whose_blocks_leave_a_tail)
{
    compare((struct ckpt_split){1, 3, 1, 1, .no_overlap = true}, true);
}

Test(follow, tensor_ranks)
{
    compare((struct ckpt_split){1, 1, 2, 1}, true);
}

Test(follow, all_together)
{
    compare((struct ckpt_split){2, 2, 2, 1}, true);
}

/* ---- the host does not wait ---- */

#define WATCHED 2

static struct queued_watched seen[CKPT_JOB_RANKS];

static void before_step(int rank, int step)
{
    (void)rank;
    if (step == WATCHED)
        queued_watch();
}

static void after_step(int rank, int step)
{
    if (step == WATCHED)
        seen[rank] = queued_watch_end();
}

/* While the GPUs stand still the host queues all layers of a step, its communication and its norm.
 */
static void run_ahead(struct ckpt_split split, bool tied)
{
    struct ckpt_job job = job_of(split, tied), ref = job;

    ckpt_job_ok(&ref);
    job.before_step = before_step;
    job.after_step = after_step;
    run_on_gpus(&job);
    expect_success(&job);
    cr_expect(same(&ref, &job));
    for (int r = 0; r < ckpt_job_world(&job); r++) {
        cr_expect_gt(seen[r].waits, 0, "a step ends with a wait");
        cr_expect_gt(seen[r].before, 6 * 2 * 10, "%d calls", seen[r].before);
        cr_expect_eq(seen[r].after, 0, "rank %d: %d calls after a wait, %d before", r,
                     seen[r].after, seen[r].before);
    }
    expect_nothing_left();
}

Test(follow, the_host_of_one_rank_queues_a_whole_step)
{
    run_ahead((struct ckpt_split){1, 1, 1, 1}, true);
}

Test(follow, hosts_of_stages_queue_a_whole_step)
{
    run_ahead((struct ckpt_split){2, 1, 1, 2}, false);
}

Test(follow, hosts_of_replicas_queue_a_whole_step)
{
    run_ahead((struct ckpt_split){1, 2, 1, 1}, false);
}

Test(follow, hosts_without_overlap_queue_a_whole_step)
{
    run_ahead((struct ckpt_split){1, 2, 1, 1, .no_overlap = true}, false);
}

Test(follow, hosts_of_tensor_ranks_queue_a_whole_step)
{
    run_ahead((struct ckpt_split){1, 1, 2, 1}, false);
}

Test(follow, hosts_of_all_together_queue_a_whole_step)
{
    run_ahead((struct ckpt_split){2, 2, 2, 1}, true);
}

/* ---- what these tests are worth ---- */

static bool still_same(struct ckpt_split split, enum fake_gpu_order order, unsigned broken)
{
    struct ckpt_job ref = job_of(split, false), gpus = ref;

    ckpt_job_ok(&ref);
    fake_gpu_order(order);
    fake_gpu_break(broken);
    run_on_gpus(&gpus);
    return gpus.rc[0] == 0 && same(&ref, &gpus);
}

Test(follow, kernels_that_do_not_wait_for_operations_are_noticed)
{
    cr_expect_not(
        still_same((struct ckpt_split){2, 1, 1, 1}, FAKE_GPU_OPERATIONS_LATE, FAKE_GPU_NO_FOLLOW));
    cr_expect_not(
        still_same((struct ckpt_split){1, 2, 1, 1}, FAKE_GPU_OPERATIONS_LATE, FAKE_GPU_NO_FOLLOW));
    cr_expect_not(
        still_same((struct ckpt_split){1, 1, 2, 1}, FAKE_GPU_OPERATIONS_LATE, FAKE_GPU_NO_FOLLOW));
}

Test(follow, operations_that_do_not_wait_for_kernels_are_noticed)
{
    cr_expect_not(
        still_same((struct ckpt_split){2, 1, 1, 1}, FAKE_GPU_KERNELS_LATE, FAKE_GPU_NO_ORDER));
    cr_expect_not(
        still_same((struct ckpt_split){1, 2, 1, 1}, FAKE_GPU_KERNELS_LATE, FAKE_GPU_NO_ORDER));
    cr_expect_not(
        still_same((struct ckpt_split){1, 1, 2, 1}, FAKE_GPU_KERNELS_LATE, FAKE_GPU_NO_ORDER));
}

/* Communicators that know of no queue. */
Test(follow, kernels_that_queue_are_refused_where_nobody_orders_them)
{
    struct ckpt_job job = job_of((struct ckpt_split){1, 2, 1, 1}, false);

    job.kernels = queued_kernels();
    ckpt_job_run(&job);
    cr_expect_eq(job.rc[0], -EINVAL, "%d", job.rc[0]);
    queued_leave();
}

/* ---- operations that fail while they are followed ---- */

#define COUNT 8

struct pair {
    int rank;
    struct gpu *gpu;
    struct holmes_links links;
    struct holmes_link *link;
    float *x; /* (COUNT), of the GPU: the rank's number plus one */
    int polls;
    void (*body)(struct pair *p);
};

static void *pair_main(void *arg)
{
    struct pair *p = arg;
    const struct holmes_kernels *k = queued_kernels();
    float values[COUNT];

    p->gpu = gpu_enter(p->rank, 2);
    p->link = &p->links.all[0];
    p->links.count = 1;
    cr_assert_eq(gpu_comm(p->gpu, "it", "dp", NULL, 2, p->rank, &p->link->comm), 0);
    p->x = k->alloc(sizeof values);
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)p->rank + 1;
    k->copy(p->x, values, sizeof values);
    k->on_wait(holmes_links_look, &p->links);
    p->body(p);
    k->on_wait(NULL, NULL);
    holmes_links_close(&p->links);
    k->free(p->x);
    gpu_leave(p->gpu);
    return NULL;
}

static void run_pair(void (*first)(struct pair *p), void (*second)(struct pair *p), int timeout_ms)
{
    struct pair pair[2] = {{.rank = 0, .body = first}, {.rank = 1, .body = second}};
    pthread_t ids[2];

    cr_assert_eq(holmes_rdv_serve("127.0.0.1", 0, SECRET, 2, &server), 0);
    for (int i = 0; i < 2; i++) {
        pair[i].links.timeout_ms = timeout_ms;
        cr_assert_eq(pthread_create(&ids[i], NULL, pair_main, &pair[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(ids[i], NULL);
    holmes_rdv_stop(server);
    expect_nothing_left();
}

static struct holmes_op *start(struct pair *p, void *x)
{
    struct holmes_comm *c = p->link->comm;
    struct holmes_op *op = NULL;

    cr_assert_eq(c->ops->all_reduce(c, x, x, COUNT, HOLMES_FLOAT32, &op), 0);
    return op;
}

static void follow(struct pair *p)
{
    struct holmes_op *op = start(p, p->x);

    cr_assert_eq(holmes_links_follow(&p->links, p->link, &op), 0);
    cr_expect_null(op);
}

/* The connection that NCCL makes in the first operation. */
static void connect_pair(struct pair *p)
{
    struct holmes_op *op = start(p, p->x);

    cr_assert_eq(holmes_links_wait(&p->links, p->link, &op), 0);
}

static void tell(struct pair *p, const char *what)
{
    cr_assert_eq(holmes_rdv_put(p->gpu->rdv, what, "", 1), 0);
}

static void hear(struct pair *p, const char *what)
{
    size_t len;
    char told;

    cr_assert_eq(holmes_rdv_get(p->gpu->rdv, what, &told, 1, &len, 60000), 0);
}

/* With a message under way, so that the communicator does not end in good order. */
static void dies_when_told(struct pair *p)
{
    struct holmes_comm *c = p->link->comm;
    struct holmes_op *op;

    connect_pair(p);
    hear(p, "followed");
    cr_assert_eq(c->ops->send(c, p->x, sizeof *p->x, 0, &op), 0);
    c->ops->destroy(c);
    p->links.count = 0;
    cr_expect_eq(real->wait(op, 0), -ECANCELED);
}

static void peer_dies_before_the_drain(struct pair *p)
{
    struct holmes_op *op;

    connect_pair(p);
    follow(p);
    tell(p, "followed");
    cr_expect_eq(holmes_links_drain(&p->links), -ECONNRESET);
    cr_expect_eq(p->links.failed, p->link);
    cr_expect(fake_gpu_done(queued_kernels()->stream()), "the queue stands still no more");
    op = NULL;
    cr_expect_eq(holmes_links_follow(&p->links, p->link, &op), -ECONNRESET, "the error stays");
}

Test(follow, a_peer_that_dies_ends_an_operation_that_is_followed)
{
    fake_gpu_order(FAKE_GPU_OPERATIONS_LATE);
    run_pair(peer_dies_before_the_drain, dies_when_told, 60000);
}

static void peer_dies_while_the_host_waits(struct pair *p)
{
    const struct holmes_kernels *k = queued_kernels();
    float values[COUNT];

    connect_pair(p);
    follow(p);
    tell(p, "followed");
    k->copy(values, p->x, sizeof values);
    cr_expect_eq(holmes_links_drain(&p->links), -ECONNRESET);
}

Test(follow, a_peer_that_dies_ends_the_hosts_wait_for_its_own_kernels)
{
    run_pair(peer_dies_while_the_host_waits, dies_when_told, 60000);
}

static void does_not_come(struct pair *p)
{
    connect_pair(p);
    hear(p, "timed out");
}

static void gives_up(struct pair *p)
{
    connect_pair(p);
    follow(p);
    cr_expect_eq(holmes_links_drain(&p->links), -ETIMEDOUT);
    tell(p, "timed out");
}

Test(follow, an_operation_that_is_followed_ends_in_time)
{
    run_pair(gives_up, does_not_come, 150);
}

static int job_ends(void *ctx)
{
    return ++*(int *)ctx == 2;
}

static void job_is_over(struct pair *p)
{
    connect_pair(p);
    follow(p);
    p->links.poll = job_ends;
    p->links.poll_ctx = &p->polls;
    cr_expect_eq(holmes_links_drain(&p->links), -ECONNABORTED);
    tell(p, "timed out");
}

Test(follow, the_end_of_the_job_ends_an_operation_that_is_followed)
{
    run_pair(job_is_over, does_not_come, 60000);
}

/* The GPU has other work at first, for longer than an operation may take. */
static int works_on(void *ctx)
{
    if (++*(int *)ctx == 3)
        fake_gpu_hold(false);
    return 0;
}

static void is_busy(struct pair *p)
{
    float values[COUNT];

    connect_pair(p);
    p->links.timeout_ms = 1;
    p->links.poll = works_on;
    p->links.poll_ctx = &p->polls;
    fake_gpu_hold(true);
    follow(p);
    cr_expect_eq(holmes_links_drain(&p->links), 0);
    cr_expect_eq(p->polls, 3);
    queued_kernels()->copy(values, p->x, sizeof values);
    cr_expect_eq(values[COUNT - 1], 6);
}

static void takes_part(struct pair *p)
{
    connect_pair(p);
    connect_pair(p);
}

Test(follow, the_time_of_an_operation_begins_when_the_queue_stands_still_for_it)
{
    run_pair(is_busy, takes_part, 60000);
}

static int tells_later(void *ctx)
{
    struct pair *p = ctx;

    if (++p->polls == 2)
        tell(p, "go");
    return 0;
}

static void waits_for_a_late_peer(struct pair *p)
{
    connect_pair(p);
    cr_expect_eq(p->link->wait_ns / 100000000, 0);
    p->links.poll = tells_later;
    p->links.poll_ctx = p;
    follow(p);
    cr_expect_eq(holmes_links_drain(&p->links), 0);
    cr_expect_geq(p->link->wait_ns, 90000000, "%llu ns", (unsigned long long)p->link->wait_ns);
}

static void is_late(struct pair *p)
{
    connect_pair(p);
    hear(p, "go");
    connect_pair(p);
}

Test(follow, the_time_that_the_queue_stood_still_is_counted)
{
    run_pair(waits_for_a_late_peer, is_late, 60000);
}

/* It comes through memory of the GPU, which only the host empties. */
static void sums_on_the_host(struct pair *p)
{
    float values[COUNT] = {(float)p->rank};
    struct holmes_op *op = start(p, values);

    cr_assert_eq(holmes_links_follow(&p->links, p->link, &op), 0);
    cr_expect_eq(p->links.nfollowed, 0);
    cr_expect_eq(values[0], 1);
}

Test(follow, an_operation_on_host_memory_is_waited_for)
{
    run_pair(sums_on_the_host, sums_on_the_host, 60000);
}

/* Operations are over long before anybody asks, and their handles with them. */
static void many(struct pair *p)
{
    int events = 0;

    for (int i = 0; i < 3 * HOLMES_LINKS_FOLLOWED; i++) {
        follow(p);
        if (i == 2 * HOLMES_LINKS_FOLLOWED)
            events = fake_gpu_use().events;
    }
    cr_expect_leq(p->links.nfollowed, HOLMES_LINKS_FOLLOWED);
    cr_expect_leq(fake_gpu_use().events, events + 3 * HOLMES_LINKS_FOLLOWED, "events come again");
    cr_expect_eq(holmes_links_drain(&p->links), 0);
}

Test(follow, handles_and_events_do_not_grow)
{
    run_pair(many, many, 60000);
}
