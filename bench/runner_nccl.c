/* A side through NCCL itself: its kernels on GPU memory, its proxy threads, its choice of
 * algorithm, over the net plugin of the side. The clock is the host's.
 *
 * Collectives are queued behind each other as nccl-tests does, and the host waits for the oldest of
 * some. Of sendrecv each direction has a communicator and a stream of its own, so that the two are
 * independent; a message that answers another is queued when the host has seen that one come.
 */
#include "runner_nccl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "clock.h"
#include "comm_nccl.h"
#include "log.h"
#include "nccl_api.h"
#include "pattern.h"
#include "rendezvous.h"

enum {
    QUEUED = 8,        /* collectives under way */
    LOOK_EVERY = 1024, /* idle turns between two looks at clock and peers */
    WINDOW_MAX = 32,
};

struct holmes_runner {
    const struct holmes_rank_attr *attr;
    struct holmes_rdv *rdv;
    struct holmes_cuda_driver cuda;
    struct holmes_nccl *nccl;
    struct holmes_comm *comm; /* of all ranks, or of the pair */
    uint64_t in, out, words;  /* memory of the GPU: as long as the rank's buffers; two words */
    unsigned meetings;
};

/* Messages of one direction. */
struct flow {
    bool sends;
    uint64_t base;        /* memory of the GPU */
    size_t bytes, stride; /* of a message; from one to the next, which start anew every window */
    size_t window;
    uint64_t total, allowed; /* messages in all; that may be posted so far */
    uint64_t posted, done;
    struct holmes_op *ops[WINDOW_MAX];
};

void holmes_nccl_environ(const struct holmes_rank_attr *a)
{
    char host[48];

    snprintf(host, sizeof host, "holmes-bench-%d", a->rank);
    unsetenv("NCCL_NET_PLUGIN");
    unsetenv("NCCL_NET");
    if (strcmp(a->plugin, "none") == 0)
        setenv("NCCL_NET_PLUGIN", "none", 1);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_P2P_DISABLE", "1", 0);
    setenv("NCCL_MNNVL_ENABLE", "0", 0);
    setenv("NCCL_SHM_DISABLE", "1", 0);
}

static void *pointer(uint64_t memory)
{
    return (void *)(uintptr_t)memory;
}

static int partner(const struct holmes_runner *r)
{
    return 1 - r->attr->rank % 2; /* in the communicator of the pair */
}

static bool serves(const struct holmes_runner *r)
{
    return r->attr->rank % 2 == 0;
}

/* --- life ------------------------------------------------------------------------------------- */

static void nccl_leave(struct holmes_runner *r)
{
    uint64_t memory[] = {r ? r->in : 0, r ? r->out : 0, r ? r->words : 0};

    if (!r)
        return;
    if (r->comm)
        r->comm->ops->destroy(r->comm);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        if (memory[i])
            r->cuda.mem_free(memory[i]);
    holmes_nccl_close(r->nccl);
    holmes_rdv_leave(r->rdv);
    free(r);
}

static int cuda_explain(const struct holmes_runner *r, const char *what, int rc, char *why,
                        size_t why_len)
{
    const char *name = NULL;

    if (rc == 0)
        return 0;
    r->cuda.error_name(rc, &name);
    snprintf(why, why_len, "%s: %s", what, name ? name : "an error of CUDA");
    return -ENODEV;
}

/* Its context becomes the thread's. Ranks take the GPUs in turn; where there are fewer they share.
 */
static int gpu_take(struct holmes_runner *r, int *gpu, int *ngpus, char *why, size_t why_len)
{
    const struct holmes_cuda_driver *cuda = &r->cuda;
    int device = 0, rc = cuda->init(0);
    void *ctx = NULL;

    *ngpus = 0;
    if (rc == 0)
        rc = cuda->device_count(ngpus);
    if (rc == 0 && *ngpus <= 0) {
        snprintf(why, why_len, "--backend nccl: this machine has no GPU");
        return -ENODEV;
    }
    *gpu = *ngpus ? r->attr->rank % *ngpus : 0;
    if (rc == 0)
        rc = cuda->device(&device, *gpu);
    if (rc == 0)
        rc = cuda->primary_ctx(&ctx, device);
    if (rc == 0)
        rc = cuda->ctx_set(ctx);
    return cuda_explain(r, "--backend nccl: the GPU cannot be used", rc, why, why_len);
}

static int nccl_start(struct holmes_runner *r, char *why, size_t why_len)
{
    const struct holmes_rank_attr *a = r->attr;
    struct holmes_nccl_attr attr = {
        .plugin = strcmp(a->plugin, "none") == 0 ? NULL : a->plugin,
        .nccl = a->nccl,
        .cuda = a->cuda,
        .connect_timeout_s = a->timeout_s,
        .op_timeout_s = a->timeout_s,
    };
    char text[300] = "";
    int rc = holmes_nccl_open(&attr, &r->nccl, text, sizeof text);

    if (rc != 0)
        snprintf(why, why_len, "--backend nccl: %s", *text ? text : holmes_strerror(rc));
    return rc;
}

static int comm_open(struct holmes_runner *r)
{
    const struct holmes_rank_attr *a = r->attr;
    char name[32];

    if (a->collective != HOLMES_SENDRECV)
        return holmes_comm_nccl_create(r->nccl, r->rdv, "bench", "dp", NULL, a->nranks, a->rank,
                                       &r->comm);
    snprintf(name, sizeof name, "bench%d", a->rank / 2);
    return holmes_comm_nccl_create(r->nccl, r->rdv, name, "pp", NULL, 2, a->rank % 2, &r->comm);
}

static int nccl_join(const struct holmes_rank_attr *a, const struct holmes_bench_command *cmd,
                     struct holmes_runner **out, char *about, size_t about_len)
{
    struct holmes_runner *r = calloc(1, sizeof *r);
    char text[300] = "";
    int gpu, ngpus, rc, version;

    if (!r)
        return -ENOMEM;
    *out = r; /* leave takes it in any state */
    r->attr = a;
    rc = holmes_cuda_driver_open(a->cuda ? a->cuda : "libcuda.so.1", &r->cuda, text, sizeof text);
    if (rc != 0) {
        snprintf(about, about_len, "--backend nccl: %s", text);
        return rc;
    }
    rc = gpu_take(r, &gpu, &ngpus, about, about_len);
    if (rc == 0)
        rc = nccl_start(r, about, about_len);
    if (rc != 0)
        return rc;
    rc = holmes_rank_meet(a, cmd, &r->rdv);
    if (rc == 0)
        rc = comm_open(r);
    if (rc != 0) {
        snprintf(about, about_len, "NCCL cannot connect the ranks: %s",
                 rc == -ECONNABORTED && r->rdv ? holmes_rdv_reason(r->rdv) : holmes_strerror(rc));
        return rc;
    }
    version = holmes_nccl_version(r->nccl);
    snprintf(about, about_len, "NCCL %d.%d.%d, %s, %d GPU%s%s", version / 10000,
             version / 100 % 100, version % 100,
             strcmp(a->plugin, "none") == 0 ? "its own network" : a->plugin, ngpus,
             ngpus > 1 ? "s" : "", ngpus < a->nranks ? ", shared by ranks" : "");
    return 0;
}

/* --- memory of the GPU ------------------------------------------------------------------------ */

static int memory_take(struct holmes_runner *r, const struct holmes_rank_work *w, char *why,
                       size_t why_len)
{
    int rc = 0;

    if (!r->words)
        rc = r->cuda.mem_alloc(&r->words, 2 * sizeof(uint64_t));
    if (rc == 0 && !r->in)
        rc = r->cuda.mem_alloc(&r->in, w->in_room);
    if (rc == 0 && !r->out)
        rc = r->cuda.mem_alloc(&r->out, w->out_room);
    return cuda_explain(r, "memory of the GPU", rc, why, why_len);
}

/* What the rank's buffers hold goes to the GPU's. */
static int memory_fill(struct holmes_runner *r, const struct holmes_rank_work *w)
{
    int rc = r->cuda.copy_in(r->in, w->in, w->shape.in_bytes);

    if (rc == 0)
        rc = r->cuda.copy_in(r->out, w->out, w->shape.out_bytes * w->window);
    return rc == 0 ? 0 : -EIO;
}

static int memory_fetch(struct holmes_runner *r, const struct holmes_rank_work *w)
{
    return r->cuda.copy_out(w->out, r->out, w->shape.out_bytes * w->window) == 0 ? 0 : -EIO;
}

/* --- operations ------------------------------------------------------------------------------- */

static int collective_start(struct holmes_runner *r, const struct holmes_rank_work *w,
                            struct holmes_op **op)
{
    const struct holmes_comm_ops *ops = r->comm->ops;
    const void *in = pointer(r->in);
    void *out = pointer(r->out);
    size_t count = w->shape.count;

    switch (r->attr->collective) {
    case HOLMES_ALL_REDUCE:
        return ops->all_reduce(r->comm, in, out, count, r->attr->type, op);
    case HOLMES_ALL_GATHER:
        return ops->all_gather(r->comm, in, out, count, r->attr->type, op);
    default:
        return ops->reduce_scatter(r->comm, in, out, count, r->attr->type, op);
    }
}

static int collectives_run(struct holmes_runner *r, const struct holmes_rank_work *w, uint64_t n)
{
    struct holmes_op *ops[QUEUED];
    uint64_t posted = 0;
    int rc = 0;

    for (uint64_t done = 0; done < n && rc == 0; done++) {
        for (; posted < n && posted - done < QUEUED && rc == 0; posted++)
            rc = collective_start(r, w, &ops[posted % QUEUED]);
        if (rc == 0)
            rc = r->comm->ops->wait(ops[done % QUEUED], -1);
        atomic_fetch_add_explicit(r->attr->beat, 1, memory_order_relaxed);
    }
    return rc; /* handles that are left over end with the communicator */
}

static int flow_step(struct holmes_runner *r, struct flow *f, bool *moved)
{
    const struct holmes_comm_ops *ops = r->comm->ops;
    uint64_t end = f->allowed < f->total ? f->allowed : f->total;
    bool done = false;
    int rc = 0;

    while (f->posted < end && f->posted - f->done < f->window) {
        size_t slot = f->posted % f->window;
        void *at = pointer(f->base + slot * f->stride);

        rc = f->sends ? ops->send(r->comm, at, f->bytes, partner(r), &f->ops[slot])
                      : ops->recv(r->comm, at, f->bytes, partner(r), &f->ops[slot]);
        if (rc != 0)
            return rc;
        f->posted++;
        *moved = true;
    }
    if (f->done == f->posted)
        return 0;
    rc = ops->test(f->ops[f->done % f->window], &done);
    if (!done)
        return rc;
    *moved = true;
    return ops->wait(f->ops[f->done++ % f->window], 0);
}

static int idle_turn(struct holmes_runner *r, uint64_t *turns, uint64_t *deadline)
{
    int rc = 0;

    holmes_rank_idle(r->attr);
    if ((*turns)++ == 0) {
        *deadline = holmes_deadline_ms((uint64_t)r->attr->timeout_s * 1000);
    } else if (*turns % LOOK_EVERY == 0) {
        rc = holmes_rdv_poll(r->rdv);
        if (rc == 0 && holmes_deadline_passed(*deadline))
            rc = -ETIMEDOUT;
    }
    return rc;
}

/* `us`: of messages back and forth, half of each round trip; NULL: not wanted. */
static int flows_run(struct holmes_runner *r, struct flow *tx, struct flow *rx, bool pingpong,
                     float *us)
{
    uint64_t idle = 0, deadline = 0, last = holmes_now_ns(), now;
    int rc = 0;

    while (rc == 0 && !(tx->done == tx->total && rx->done == rx->total)) {
        uint64_t before = rx->done;
        bool moved = false;

        rc = flow_step(r, rx, &moved);
        if (pingpong)
            tx->allowed = rx->done + serves(r);
        if (us && rx->done > before) {
            now = holmes_now_ns();
            us[before] = (float)((double)(now - last) / 2e3);
            last = now;
        }
        if (rc == 0)
            rc = flow_step(r, tx, &moved);
        if (moved) {
            atomic_fetch_add_explicit(r->attr->beat, 1, memory_order_relaxed);
            idle = 0;
        } else if (rc == 0) {
            rc = idle_turn(r, &idle, &deadline);
        }
    }
    return rc;
}

static int words_exchange(struct holmes_runner *r, bool out, bool in)
{
    struct flow tx = {.sends = true, .base = r->words, .bytes = 8, .window = 1, .total = out};
    struct flow rx = {.base = r->words + 8, .bytes = 8, .window = 1, .total = in};

    tx.allowed = rx.allowed = 1;
    return flows_run(r, &tx, &rx, false, NULL);
}

static int messages_run(struct holmes_runner *r, const struct holmes_rank_work *w,
                        enum holmes_bench_measure measure, uint64_t n, float *us)
{
    bool back_and_forth = measure == HOLMES_BENCH_LATENCY;
    bool both = back_and_forth || r->attr->both_ways;
    bool sends = both || serves(r), receives = both || !serves(r);
    size_t bytes = w->shape.size_bytes;
    struct flow tx = {.sends = true, .base = r->in, .bytes = bytes, .total = sends ? n : 0};
    struct flow rx = {.base = r->out, .bytes = bytes, .stride = bytes, .total = receives ? n : 0};
    int rc;

    if (n == 0)
        return 0;
    tx.window = rx.window = w->window;
    tx.allowed = back_and_forth ? 0 : n;
    rx.allowed = n;
    rc = flows_run(r, &tx, &rx, back_and_forth, us);
    if (rc == 0 && !back_and_forth)
        rc = words_exchange(r, receives, sends);
    return rc;
}

static int repeat(struct holmes_runner *r, const struct holmes_rank_work *w,
                  enum holmes_bench_measure measure, uint64_t n, float *us)
{
    return r->attr->collective == HOLMES_SENDRECV ? messages_run(r, w, measure, n, us)
                                                  : collectives_run(r, w, n);
}

/* All ranks are here, and have looked at their communicator. */
static int meet(struct holmes_runner *r)
{
    struct holmes_op *op = NULL;
    char name[32];
    int rc = 0;

    if (r->attr->collective != HOLMES_SENDRECV) {
        rc = r->comm->ops->barrier(r->comm, &op);
        return rc != 0 ? rc : r->comm->ops->wait(op, -1);
    }
    snprintf(name, sizeof name, "run/%u", r->meetings++);
    if (r->attr->nranks > 2)
        rc = holmes_rdv_barrier(r->rdv, name, r->attr->timeout_s * 1000);
    return rc != 0 ? rc : words_exchange(r, true, true);
}

static int nccl_run(struct holmes_runner *r, const struct holmes_rank_work *w,
                    const struct holmes_bench_command *cmd, struct holmes_timing *t, char *why,
                    size_t why_len)
{
    int rc = memory_take(r, w, why, why_len);

    if (rc != 0)
        return rc;
    rc = repeat(r, w, cmd->measure, cmd->warmups, NULL);
    if (rc == 0)
        rc = meet(r);
    holmes_timing_start(t);
    if (rc == 0)
        rc = repeat(r, w, cmd->measure, cmd->iters, t->message_us);
    holmes_timing_stop(t);
    if (rc != 0)
        holmes_rank_explain(w, rc, why, why_len);
    return rc;
}

/* --- verifying -------------------------------------------------------------------------------- */

static int verify_messages(struct holmes_runner *r, const struct holmes_rank_work *w,
                           uint64_t *wrong)
{
    int rc = messages_run(r, w, HOLMES_BENCH_LATENCY, 1, NULL);

    if (rc == 0)
        rc = memory_fetch(r, w);
    if (rc != 0)
        return rc;
    *wrong = holmes_check_messages(w, 1);
    holmes_pattern_poison(w->out, w->shape.out_bytes * w->window);
    rc = memory_fill(r, w);
    if (rc == 0)
        rc = messages_run(r, w, HOLMES_BENCH_BANDWIDTH, w->window, NULL);
    if (rc == 0)
        rc = memory_fetch(r, w);
    if (rc == 0 && (r->attr->both_ways || !serves(r)))
        *wrong += holmes_check_messages(w, w->window);
    return rc;
}

static int verify_collective(struct holmes_runner *r, const struct holmes_rank_work *w,
                             uint64_t *wrong)
{
    int rc = collectives_run(r, w, 1);

    if (rc == 0)
        rc = memory_fetch(r, w);
    if (rc == 0)
        *wrong = holmes_check_collective(w);
    return rc;
}

static int nccl_verify(struct holmes_runner *r, const struct holmes_rank_work *w,
                       const struct holmes_bench_command *cmd, uint64_t *wrong, char *why,
                       size_t why_len)
{
    int rc = memory_take(r, w, why, why_len);

    (void)cmd;
    if (rc != 0)
        return rc;
    rc = memory_fill(r, w);
    if (rc == 0)
        rc = r->attr->collective == HOLMES_SENDRECV ? verify_messages(r, w, wrong)
                                                    : verify_collective(r, w, wrong);
    if (rc != 0)
        holmes_rank_explain(w, rc, why, why_len);
    return rc;
}

const struct holmes_runner_ops holmes_runner_nccl = {
    .join = nccl_join,
    .verify = nccl_verify,
    .run = nccl_run,
    .leave = nccl_leave,
};
