/* comm_nccl over the real NCCL, whose ranks here are processes that pass for nodes of their own, so
 * that the net plugin is all that NCCL has between them. Every element is checked. check.sh runs
 * it; it needs a GPU (one is enough) or what passes for one:
 *   TEST_NCCL, TEST_CUDA   libraries in place of libnccl.so.2 and libcuda.so.1
 *   TEST_NET_PLUGIN        the plugin
 * What else the environment says to NCCL holds. */
#include "comm_nccl.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "../trainer/ranks.h"
#include "clock.h"
#include "nccl_api.h"
#include "self.h"

#define LIMIT_S  120 /* of a test; waits have longer, so that a wait that is not ended fails it */
#define WAITS_S  300
#define NUMBERS  ((size_t)100003)
#define MESSAGES 3
#define CHAIN    20

static struct holmes_cuda_driver cuda;
static struct holmes_nccl *nccl;
static bool gpu; /* where buffers are */

/* As kernels do that queue their calls. */
static void *make_stream(void)
{
    void *ctx, *stream;
    int device;

    EXPECT(cuda.init(0) == 0 && cuda.device(&device, 0) == 0 &&
           cuda.primary_ctx(&ctx, device) == 0 && cuda.ctx_set(ctx) == 0);
    EXPECT(cuda.stream_create(&stream, HOLMES_CUDA_STREAM_NONBLOCK) == 0);
    return stream;
}

static void open_nccl(const struct rank *me)
{
    struct holmes_nccl_attr attr = {.plugin = holmes_test_plugin(),
                                    .nccl = getenv("TEST_NCCL"),
                                    .cuda = getenv("TEST_CUDA"),
                                    .connect_timeout_s = 60,
                                    .op_timeout_s = WAITS_S};
    char node[16], why[500] = "";

    snprintf(node, sizeof node, "node%d", me->rank);
    setenv("NCCL_HOSTID", node, 1);
    EXPECT(holmes_cuda_driver_open(attr.cuda ? attr.cuda : "libcuda.so.1", &cuda, why,
                                   sizeof why) == 0,
           "%s", why);
    attr.stream = make_stream();
    EXPECT(holmes_nccl_open(&attr, &nccl, why, sizeof why) == 0, "%s", why);
}

static struct holmes_comm *open_comm(const struct rank *me, const char *name, const char *kind,
                                     int size, int rank)
{
    struct holmes_comm *c;
    const int rc = holmes_comm_nccl_create(nccl, me->rdv, name, kind, NULL, size, rank, &c);

    EXPECT(rc == 0, "rank %d: communicator %s: %d", me->rank, name, rc);
    return c;
}

/* ---- buffers ---- */

static void *take(size_t bytes)
{
    uint64_t p = 0;

    if (!gpu)
        return malloc(bytes);
    EXPECT(cuda.mem_alloc(&p, bytes) == 0);
    return (void *)(uintptr_t)p;
}

static void give(void *p)
{
    if (gpu)
        cuda.mem_free((uint64_t)(uintptr_t)p);
    else
        free(p);
}

static void put(void *to, const void *from, size_t bytes)
{
    if (gpu)
        EXPECT(cuda.copy_in((uint64_t)(uintptr_t)to, from, bytes) == 0);
    else
        memcpy(to, from, bytes);
}

static void get(void *to, const void *from, size_t bytes)
{
    if (gpu)
        EXPECT(cuda.copy_out(to, (uint64_t)(uintptr_t)from, bytes) == 0);
    else
        memcpy(to, from, bytes);
}

/* Whole and small, so that their sums have no rounding in bfloat16 either. */
static float value(int rank, size_t i)
{
    return (float)((i * 7 + i / 13 + (size_t)rank * 5) % 31);
}

static void fill(void *at, int rank, size_t n, enum holmes_dtype t)
{
    const size_t width = holmes_dtype_size(t);
    char *host = malloc(n * width);

    for (size_t i = 0; i < n; i++) {
        const float f = value(rank, i);
        uint32_t bits;

        memcpy(&bits, &f, sizeof bits);
        bits >>= 8 * (sizeof bits - width); /* bfloat16 is float32's upper half */
        memcpy(host + i * width, &bits, width);
    }
    put(at, host, n * width);
    free(host);
}

struct result {
    const char *what;
    int ranks, rank, root;
    size_t count;
};
typedef float want_fn(const struct result *r, size_t i);

static float sum_at(const struct result *r, size_t i)
{
    float sum = 0;

    for (int rank = 0; rank < r->ranks; rank++)
        sum += value(rank, i);
    return sum;
}

static float my_part_of_sum(const struct result *r, size_t i)
{
    return sum_at(r, (size_t)r->rank * r->count + i);
}

static float gathered(const struct result *r, size_t i)
{
    return value((int)(i / r->count), i % r->count);
}

static float the_roots(const struct result *r, size_t i)
{
    return value(r->root, i);
}

static void expect(const void *at, size_t n, enum holmes_dtype t, const struct result *r,
                   want_fn *want)
{
    const size_t width = holmes_dtype_size(t);
    char *host = malloc(n * width);

    get(host, at, n * width);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        float f;

        memcpy(&bits, host + i * width, width);
        bits <<= 8 * (sizeof bits - width);
        memcpy(&f, &bits, sizeof f);
        EXPECT(f == want(r, i), "rank %d of %d: %s of %zu %s in memory of the %s: [%zu] is %g",
               r->rank, r->ranks, r->what, r->count, width == 2 ? "bfloat16" : "float32",
               gpu ? "GPU" : "host", i, (double)f);
    }
    free(host);
}

/* ---- every operation ---- */

static void all_reduce(struct holmes_comm *c, size_t n, enum holmes_dtype t, char *in, char *out)
{
    const struct result r = {"all-reduce", c->size, c->rank, 0, n};
    struct holmes_op *op;

    fill(in, c->rank, n, t);
    EXPECT(c->ops->all_reduce(c, in, out, n, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    expect(out, n, t, &r, sum_at);
    EXPECT(c->ops->all_reduce(c, in, in, n, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    expect(in, n, t, &r, sum_at);
}

static void reduce_scatter(struct holmes_comm *c, size_t n, enum holmes_dtype t, char *in,
                           char *out)
{
    const struct result r = {"reduce-scatter", c->size, c->rank, 0, n};
    char *part = in + (size_t)c->rank * n * holmes_dtype_size(t);
    struct holmes_op *op;

    fill(in, c->rank, n * (size_t)c->size, t);
    EXPECT(c->ops->reduce_scatter(c, in, out, n, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    expect(out, n, t, &r, my_part_of_sum);
    EXPECT(c->ops->reduce_scatter(c, in, part, n, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    expect(part, n, t, &r, my_part_of_sum);
}

static void all_gather(struct holmes_comm *c, size_t n, enum holmes_dtype t, char *in, char *out)
{
    const struct result r = {"all-gather", c->size, c->rank, 0, n};
    char *part = out + (size_t)c->rank * n * holmes_dtype_size(t);
    struct holmes_op *op;

    fill(in, c->rank, n, t);
    EXPECT(c->ops->all_gather(c, in, out, n, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    expect(out, n * (size_t)c->size, t, &r, gathered);
    fill(out, -6, n * (size_t)c->size, t); /* no rank's */
    fill(part, c->rank, n, t);
    EXPECT(c->ops->all_gather(c, part, out, n, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    expect(out, n * (size_t)c->size, t, &r, gathered);
}

static void broadcast(struct holmes_comm *c, size_t n, enum holmes_dtype t, char *in)
{
    for (int root = 0; root < c->size; root++) {
        const struct result r = {"broadcast", c->size, c->rank, root, n};
        struct holmes_op *op;

        fill(in, c->rank, n, t);
        EXPECT(c->ops->broadcast(c, in, n, t, root, &op) == 0);
        holmes_test_wait(c, op, 0);
        expect(in, n, t, &r, the_roots);
    }
}

/* To every other rank, from every other rank; both ends in the same order. */
static void messages(struct holmes_comm *c, size_t n, enum holmes_dtype t, char *in, char *out)
{
    const size_t bytes = n * holmes_dtype_size(t);

    fill(in, c->rank, n, t);
    for (int a = 0; a < c->size; a++) {
        for (int b = 0; b < c->size; b++) {
            const struct result r = {"message", c->size, c->rank, a, n};
            struct holmes_op *op;

            if (a == b || (c->rank != a && c->rank != b))
                continue;
            EXPECT((c->rank == a ? c->ops->send(c, in, bytes, b, &op)
                                 : c->ops->recv(c, out, bytes, a, &op)) == 0);
            holmes_test_wait(c, op, 0);
            if (c->rank == b)
                expect(out, n, t, &r, the_roots);
        }
    }
}

static void every_operation(struct rank *me)
{
    static const size_t counts[] = {1, 3, 17, 1000, 4097, NUMBERS};
    struct holmes_comm *c;
    struct holmes_op *op;

    open_nccl(me);
    c = open_comm(me, "all", "world", me->size, me->rank);
    for (int where = 0; where < 2; where++) {
        char *in, *out;

        gpu = where == 0;
        in = take(NUMBERS * (size_t)me->size * sizeof(float));
        out = take(NUMBERS * (size_t)me->size * sizeof(float));
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            for (enum holmes_dtype t = HOLMES_FLOAT32; t <= HOLMES_BFLOAT16; t++) {
                all_reduce(c, counts[i], t, in, out);
                reduce_scatter(c, counts[i], t, in, out);
                all_gather(c, counts[i], t, in, out);
                broadcast(c, counts[i], t, in);
                messages(c, counts[i], t, in, out);
                EXPECT(c->ops->barrier(c, &op) == 0);
                holmes_test_wait(c, op, 0);
            }
        }
        give(in);
        give(out);
    }
    c->ops->destroy(c);
    holmes_nccl_close(nccl);
}

Test(comm_nccl_real, every_operation_of_two_ranks_gives_what_it_should)
{
    cr_expect(holmes_test_ranks_run(&(struct ranks){.size = 2, .body = every_operation}, LIMIT_S));
}

Test(comm_nccl_real, every_operation_of_four_ranks_gives_what_it_should)
{
    cr_expect(holmes_test_ranks_run(&(struct ranks){.size = 4, .body = every_operation}, LIMIT_S));
}

/* ---- the messages of a pipeline ---- */

/* As 1F1B has them: all receives are posted before the message that their senders wait for. */
static void stage(struct holmes_comm *prev, struct holmes_comm *next, size_t bytes)
{
    struct holmes_op *input[MESSAGES], *grad[MESSAGES], *output[MESSAGES], *dinput[MESSAGES];
    char *memory[4], *host = malloc(bytes);

    for (int i = 0; i < 4; i++)
        memory[i] = take(bytes * MESSAGES);
    for (int m = 0; m < MESSAGES; m++) {
        if (next)
            EXPECT(next->ops->recv(next, memory[0] + m * bytes, bytes, 1, &grad[m]) == 0);
        if (prev)
            EXPECT(prev->ops->recv(prev, memory[1] + m * bytes, bytes, 0, &input[m]) == 0);
    }
    for (int m = 0; m < MESSAGES; m++) {
        memset(host, 10 + m, bytes);
        if (prev) {
            holmes_test_wait(prev, input[m], 0);
            get(host, memory[1] + m * bytes, bytes);
            EXPECT(host[0] == 10 + m && host[bytes - 1] == 10 + m, "%d", host[0]);
        }
        put(memory[2] + m * bytes, host, bytes);
        if (next)
            EXPECT(next->ops->send(next, memory[2] + m * bytes, bytes, 1, &output[m]) == 0);
    }
    for (int m = 0; m < MESSAGES; m++) {
        memset(host, 20 + m, bytes);
        if (next) {
            holmes_test_wait(next, grad[m], 0);
            get(host, memory[0] + m * bytes, bytes);
            EXPECT(host[0] == 20 + m && host[bytes - 1] == 20 + m, "%d", host[0]);
        }
        put(memory[3] + m * bytes, host, bytes);
        if (prev)
            EXPECT(prev->ops->send(prev, memory[3] + m * bytes, bytes, 0, &dinput[m]) == 0);
    }
    for (int m = 0; m < MESSAGES; m++) {
        if (next)
            holmes_test_wait(next, output[m], 0);
        if (prev)
            holmes_test_wait(prev, dinput[m], 0);
    }
    for (int i = 0; i < 4; i++)
        give(memory[i]);
    free(host);
}

static void pipeline(struct rank *me)
{
    static const size_t sizes[] = {1, 4099, 65536, 1000003};
    struct holmes_comm *prev = NULL, *next = NULL;
    char name[16];

    open_nccl(me);
    snprintf(name, sizeof name, "pp.%d", me->rank - 1);
    if (me->rank > 0)
        prev = open_comm(me, name, "pp", 2, 1);
    snprintf(name, sizeof name, "pp.%d", me->rank);
    if (me->rank < me->size - 1)
        next = open_comm(me, name, "pp", 2, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        gpu = true;
        stage(prev, next, sizes[i]);
        gpu = false;
        stage(prev, next, sizes[i]);
    }
    if (prev)
        prev->ops->destroy(prev);
    if (next)
        next->ops->destroy(next);
    holmes_nccl_close(nccl);
}

Test(comm_nccl_real, receives_posted_ahead_do_not_hold_up_a_pipeline)
{
    cr_expect(holmes_test_ranks_run(&(struct ranks){.size = 3, .body = pipeline}, LIMIT_S));
}

/* ---- the order of streams ---- */

/* In place, each the sum of the one before, and of two communicators in turn: only the stream that
 * follows keeps them apart. */
static void chain(struct rank *me)
{
    struct holmes_comm *c[2];
    struct holmes_op *ops[CHAIN];
    float *host = malloc(NUMBERS * sizeof *host), *x;

    open_nccl(me);
    c[0] = open_comm(me, "one", "dp", me->size, me->rank);
    c[1] = open_comm(me, "other", "world", me->size, me->rank);
    gpu = true;
    x = take(NUMBERS * sizeof *x);
    for (size_t i = 0; i < NUMBERS; i++)
        host[i] = (float)(i % 7 + 1);
    put(x, host, NUMBERS * sizeof *x);
    for (int i = 0; i < CHAIN; i++) {
        struct holmes_comm *on = c[i % 2];

        EXPECT(on->ops->all_reduce(on, x, x, NUMBERS, HOLMES_FLOAT32, &ops[i]) == 0);
        EXPECT(on->ops->follow(ops[i]) == 0);
    }
    for (int i = 0; i < CHAIN; i++) {
        int rc;

        do
            rc = c[i % 2]->ops->wait(ops[i], 1000);
        while (rc == -ETIMEDOUT || rc == -EBUSY);
        EXPECT(rc == 0, "operation %d: %d", i, rc);
    }
    get(host, x, NUMBERS * sizeof *x);
    for (size_t i = 0; i < NUMBERS; i++) {
        const float want = (float)(i % 7 + 1) * powf((float)me->size, CHAIN);

        EXPECT(host[i] == want, "[%zu] is %g, not %g", i, (double)host[i], (double)want);
    }
    give(x);
    free(host);
    for (int i = 0; i < 2; i++)
        c[i]->ops->destroy(c[i]);
    holmes_nccl_close(nccl);
}

Test(comm_nccl_real, operations_that_the_stream_follows_come_one_after_another)
{
    cr_expect(holmes_test_ranks_run(&(struct ranks){.size = 2, .body = chain}, LIMIT_S));
}

/* ---- ends ---- */

static void one_dies(struct rank *me)
{
    const size_t n = 4 * NUMBERS;
    struct holmes_comm *c;
    struct holmes_op *op;
    void *x;
    int rc;

    open_nccl(me);
    c = open_comm(me, "all", "dp", me->size, me->rank);
    gpu = true;
    x = take(n * sizeof(float));
    for (int i = 0; i < 3; i++) {
        EXPECT(c->ops->all_reduce(c, x, x, n, HOLMES_FLOAT32, &op) == 0);
        holmes_test_wait(c, op, 0);
    }
    if (me->rank == me->size - 1)
        kill(getpid(), SIGKILL);
    rc = c->ops->all_reduce(c, x, x, n, HOLMES_FLOAT32, &op);
    if (rc == 0)
        rc = c->ops->wait(op, -1);
    EXPECT(rc == -ECONNABORTED || rc == -ECONNRESET || rc == -EIO, "%d", rc);
    EXPECT(c->ops->barrier(c, &op) == rc, "the first error stays");
    give(x);
    c->ops->destroy(c);
    holmes_nccl_close(nccl);
}

Test(comm_nccl_real, a_killed_rank_is_an_error_of_the_others)
{
    cr_expect(holmes_test_ranks_run(
        &(struct ranks){.size = 3, .body = one_dies, .dies = {[2] = true}}, LIMIT_S));
}

static void nobody_joins(struct rank *me)
{
    const struct holmes_comm_ops *ops;
    struct holmes_comm *c;
    struct holmes_op *op;
    float *x;

    open_nccl(me);
    c = open_comm(me, "all", "dp", me->size, me->rank);
    ops = c->ops;
    gpu = true;
    x = take(NUMBERS * sizeof *x);
    if (me->rank == 0) {
        EXPECT(ops->all_reduce(c, x, x, NUMBERS, HOLMES_FLOAT32, &op) == 0);
        EXPECT(ops->wait(op, 200) == -ETIMEDOUT);
        ops->destroy(c);
        EXPECT(ops->wait(op, -1) == -ECANCELED);
    }
    EXPECT(holmes_rdv_barrier(me->rdv, "destroyed", 60000) == 0);
    if (me->rank != 0)
        ops->destroy(c);
    give(x);
    holmes_nccl_close(nccl);
}

Test(comm_nccl_real, destroying_a_communicator_ends_what_nobody_joins)
{
    cr_expect(holmes_test_ranks_run(&(struct ranks){.size = 2, .body = nobody_joins}, LIMIT_S));
}

static void many(struct rank *me)
{
    uint64_t deadline;
    int files = 0, threads = 0;

    open_nccl(me);
    for (int i = 0; i < 12; i++) {
        struct holmes_comm *dp, *pp;
        struct holmes_op *op, *send, *recv;
        char in = 1, out = (char)i, name[16];

        gpu = false;
        snprintf(name, sizeof name, "dp.%d", i);
        dp = open_comm(me, name, "dp", 2, me->rank);
        snprintf(name, sizeof name, "pp.%d", i);
        pp = open_comm(me, name, "pp", 2, me->rank);
        EXPECT(dp->ops->barrier(dp, &op) == 0);
        holmes_test_wait(dp, op, 0);
        EXPECT(pp->ops->recv(pp, &in, 1, 1 - me->rank, &recv) == 0);
        EXPECT(pp->ops->send(pp, &out, 1, 1 - me->rank, &send) == 0);
        holmes_test_wait(pp, recv, 0);
        holmes_test_wait(pp, send, 0);
        EXPECT(in == i);
        dp->ops->destroy(dp);
        pp->ops->destroy(pp);
        if (i == 3) { /* what is made once has been made */
            files = holmes_self_fds();
            threads = holmes_self_threads();
        }
    }
    deadline = holmes_deadline_ms(10000);
    while (holmes_self_fds() > files || holmes_self_threads() > threads) {
        EXPECT(!holmes_deadline_passed(deadline), "%d files and %d threads, there were %d and %d",
               holmes_self_fds(), holmes_self_threads(), files, threads);
        usleep(1000);
    }
    holmes_nccl_close(nccl);
}

Test(comm_nccl_real, communicators_take_their_files_and_threads_with_them)
{
    cr_expect(holmes_test_ranks_run(&(struct ranks){.size = 2, .body = many}, LIMIT_S));
}
