/* Stands in for libnccl.so.2 and libcuda.so.1: ranks are threads of one process, the GPU's memory
 * is the host's. Streams keep what was queued in order: kernels, records of events, waits for them,
 * and operations, which move their bytes when they are the first of their stream on every rank that
 * takes part. So an order of operations that would hang on GPUs hangs here. Nothing runs by itself:
 * what may run is run by the next call into this file, in the order that is worst for who forgot a
 * wait (fake_gpu_order).
 *
 * Communicators do not block: they are set up in the background, and so are connections at the
 * first call that needs them, until whose end another call is an error. A rank that aborts a
 * communicator is a remote error to the others. */
#include "fake_nccl.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_api.h"

#define RANKS_MAX 8
#define EXPORT    __attribute__((visibility("default")))

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV, KERNEL, RECORD, WAIT };

/* Of one thread, for what it creates. */
struct owner {
    bool held;
};

struct event {
    unsigned recorded, reached;
    int users;   /* the handle, and entries of streams */
    uint64_t ns; /* when it was reached last */
};

struct group {
    struct holmes_nccl_id id;
    int size, joined;
    bool aborted;
    unsigned come[RANKS_MAX][RANKS_MAX]; /* ends that have called for a message [from][to], */
    unsigned come_together;              /* ranks for a collective */
    struct group *next;
};

struct comm {
    struct group *group;
    int rank;
    unsigned sequence; /* of collectives */
    int from, to;      /* of the last message called for */
    bool lazy;         /* collectives connect when they are first called for */
};

struct entry {
    enum kind kind;
    struct entry *next;
    /* an operation's */
    struct comm *comm;
    unsigned sequence; /* of the collective */
    const void *in;
    void *out;
    size_t count;
    int type, peer; /* or root */
    /* a record's or a wait's */
    struct event *event;
    unsigned mark;
    /* a kernel's */
    void (*run)(void *args);
    _Alignas(max_align_t) char args[FAKE_GPU_ARGS];
};

struct stream {
    struct entry *first, **end;
    const struct owner *owner;
    bool kernels; /* the table's */
    struct stream *next;
};

struct memory {
    char *base;
    size_t bytes;
    struct memory *next;
};

static struct {
    pthread_mutex_t lock;
    struct group *groups;
    struct stream *streams;
    struct memory *memory;
    int events, entries;
    unsigned ids;
    enum fake_gpu_order order;
    unsigned broken;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct owner mine;

static size_t size_of(int type)
{
    return type == HOLMES_NCCL_FLOAT32 ? 4 : type == HOLMES_NCCL_BFLOAT16 ? 2 : 1;
}

static float number(const void *x, size_t i, int type)
{
    uint32_t bits;
    float f;

    if (type == HOLMES_NCCL_FLOAT32)
        return ((const float *)x)[i];
    bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void set_number(void *x, size_t i, float f, int type)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if (type == HOLMES_NCCL_FLOAT32)
        ((float *)x)[i] = f;
    else
        ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
}

/* ---- streams ---- */

static void event_leave(struct event *e)
{
    if (--e->users == 0) {
        fake.events--;
        free(e);
    }
}

static void append(struct stream *s, struct entry e)
{
    struct entry *made = malloc(sizeof *made);

    if (!made)
        abort();
    *made = e;
    made->next = NULL;
    *s->end = made;
    s->end = &made->next;
    fake.entries++;
}

static void drop_at(struct stream *s, struct entry **at)
{
    struct entry *e = *at;

    *at = e->next;
    if (s->end == &e->next)
        s->end = at;
    if (e->event)
        event_leave(e->event);
    fake.entries--;
    free(e);
}

static void drop_first(struct stream *s)
{
    drop_at(s, &s->first);
}

/* What may run as far as its stream is concerned; NULL: nothing. */
static struct entry *ready(const struct stream *s)
{
    return s->owner->held ? NULL : s->first;
}

/* ---- operations ---- */

static void sum(const struct entry *const *all, int n, float *sums, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sums[i] = 0;
        for (int r = 0; r < n; r++)
            sums[i] += number(all[r]->in, i, all[r]->type);
    }
}

/* all[rank]. Inputs are read before any output is written: they may be the same. */
static void move(const struct entry *const *all, int n)
{
    const struct entry *p = all[0];
    const size_t bytes = p->count * size_of(p->type);
    const size_t whole = p->kind == REDUCE_SCATTER ? p->count * (size_t)n : p->count;
    unsigned char *bytes_of_all = malloc(bytes * (size_t)n + 1);
    float *sums = malloc((whole + 1) * sizeof *sums);

    if (!bytes_of_all || !sums)
        abort();
    if (p->kind == ALL_REDUCE || p->kind == REDUCE_SCATTER)
        sum(all, n, sums, whole);
    for (int r = 0; r < n && p->kind == ALL_GATHER; r++)
        memcpy(bytes_of_all + bytes * (size_t)r, all[r]->in, bytes);
    for (int r = 0; r < n; r++) {
        if (p->kind == ALL_GATHER)
            memcpy(all[r]->out, bytes_of_all, bytes * (size_t)n);
        else if (p->kind == BROADCAST)
            memmove(all[r]->out, all[p->peer]->in, bytes);
        else
            for (size_t i = 0; i < p->count; i++)
                set_number(all[r]->out, i,
                           sums[i + (p->kind == REDUCE_SCATTER ? p->count * (size_t)r : 0)],
                           p->type);
    }
    free(bytes_of_all);
    free(sums);
}

static bool try_collective(const struct entry *p)
{
    const struct entry *all[RANKS_MAX] = {0};
    const struct group *g = p->comm->group;
    const unsigned sequence = p->sequence;
    struct stream *of[RANKS_MAX];
    int found = 0;

    for (struct stream *s = fake.streams; s; s = s->next) {
        const struct entry *q = ready(s);

        if (!q || q->kind >= SEND || q->comm->group != g || q->sequence != sequence)
            continue;
        if (q->kind != p->kind || q->count != p->count || q->type != p->type)
            abort(); /* ranks that differ would hang, or worse */
        all[q->comm->rank] = q;
        of[found++] = s;
    }
    if (found < g->size)
        return false;
    move(all, g->size);
    while (found > 0)
        drop_first(of[--found]);
    return true;
}

/* The first send of a pair meets the first receive: both are first in their streams. */
static bool try_send(struct stream *from, const struct entry *p)
{
    for (struct stream *s = fake.streams; s; s = s->next) {
        const struct entry *q = ready(s);

        if (!q || q->kind != RECV || q->comm->group != p->comm->group || q->peer != p->comm->rank ||
            q->comm->rank != p->peer)
            continue;
        if (q->count != p->count)
            abort();
        memcpy(q->out, p->in, p->count);
        drop_first(s);
        drop_first(from);
        return true;
    }
    return false;
}

/* ---- the order in which things run ---- */

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool run_event(struct stream *s, const struct entry *e)
{
    if (e->kind == WAIT && e->event->reached < e->mark)
        return false;
    if (e->kind == RECORD && e->event->reached < e->mark) { /* with waits left out, out of order */
        e->event->reached = e->mark;
        e->event->ns = now_ns();
    }
    drop_first(s);
    return true;
}

static bool run_kernel(struct stream *s, struct entry *e)
{
    e->run(e->args);
    drop_first(s);
    return true;
}

static bool try_first(struct stream *s, bool kernels, bool operations)
{
    struct entry *e = ready(s);

    if (!e)
        return false;
    if (e->kind == KERNEL)
        return kernels && run_kernel(s, e);
    if (e->kind > KERNEL)
        return run_event(s, e);
    if (!operations || e->comm->group->aborted)
        return false;
    return e->kind == SEND ? try_send(s, e) : e->kind < SEND && try_collective(e);
}

/* One thing of any stream. */
static bool run_one(bool kernels, bool operations)
{
    for (struct stream *s = fake.streams; s; s = s->next)
        if (try_first(s, kernels, operations))
            return true;
    return false;
}

/* All that runs before anybody asks for it. */
static void run_eager(void)
{
    const bool kernels = fake.order == FAKE_GPU_OPERATIONS_LATE;

    while (run_one(kernels, !kernels))
        continue;
}

/* What is late, one by one, when nothing else can run. */
static void run_until(const struct event *e)
{
    for (;;) {
        run_eager();
        if (e->reached >= e->recorded || !run_one(true, true))
            return;
    }
}

/* The first call for messages between two ranks goes on until the other end has called too. */
static void note_call(const struct entry *p)
{
    const bool sends = p->kind == SEND;
    struct comm *c = p->comm;

    if (p->kind < SEND) {
        c->group->come_together |= 1u << c->rank;
        return;
    }
    c->from = sends ? c->rank : p->peer;
    c->to = sends ? p->peer : c->rank;
    c->group->come[c->from][c->to] |= sends ? 1 : 2;
}

static bool is_connecting(const struct comm *c)
{
    const struct group *g = c->group;

    if (c->lazy && g->come_together >> c->rank & 1 && g->come_together != (1u << g->size) - 1)
        return true;
    return c->from != c->to && g->come[c->from][c->to] != 3;
}

static int post(struct stream *s, struct entry e)
{
    int rc = HOLMES_NCCL_IN_PROGRESS; /* as a call may that does not block */

    pthread_mutex_lock(&fake.lock);
    if (is_connecting(e.comm)) {
        rc = FAKE_NCCL_INVALID;
    } else {
        if (e.kind < SEND)
            e.sequence = e.comm->sequence++;
        note_call(&e);
        append(s, e);
        run_eager();
    }
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

/* ---- NCCL ---- */

EXPORT int ncclGetVersion(int *version)
{
    *version = 22809;
    return HOLMES_NCCL_SUCCESS;
}

EXPORT const char *ncclGetErrorString(int result)
{
    return result == HOLMES_NCCL_REMOTE_ERROR ? "remote process exited or there was a network error"
                                              : "fake error";
}

EXPORT int ncclGetUniqueId(struct holmes_nccl_id *id)
{
    pthread_mutex_lock(&fake.lock);
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "%u", ++fake.ids);
    pthread_mutex_unlock(&fake.lock);
    return HOLMES_NCCL_SUCCESS;
}

static struct group *group_of(const struct holmes_nccl_id *id, int size)
{
    struct group *g;

    for (g = fake.groups; g; g = g->next)
        if (memcmp(&g->id, id, sizeof *id) == 0)
            return g;
    g = calloc(1, sizeof *g);
    if (!g)
        abort();
    g->id = *id;
    g->size = size;
    g->next = fake.groups;
    fake.groups = g;
    return g;
}

EXPORT int ncclCommInitRankConfig(void **out, int size, struct holmes_nccl_id id, int rank,
                                  struct holmes_nccl_config *config)
{
    const char *eager = getenv("NCCL_RUNTIME_CONNECT");
    struct comm *c = calloc(1, sizeof *c);

    if (!c || config->magic != 0xcafebeef || config->blocking != 0 || size > RANKS_MAX)
        abort();
    pthread_mutex_lock(&fake.lock);
    c->group = group_of(&id, size);
    c->group->joined++;
    c->rank = rank;
    c->lazy = !eager || strcmp(eager, "0") != 0;
    pthread_mutex_unlock(&fake.lock);
    *out = c;
    return HOLMES_NCCL_IN_PROGRESS;
}

EXPORT int ncclCommGetAsyncError(void *comm, int *result)
{
    const struct comm *c = comm;

    pthread_mutex_lock(&fake.lock);
    *result = c->group->aborted                                       ? HOLMES_NCCL_REMOTE_ERROR
              : c->group->joined < c->group->size || is_connecting(c) ? HOLMES_NCCL_IN_PROGRESS
                                                                      : HOLMES_NCCL_SUCCESS;
    pthread_mutex_unlock(&fake.lock);
    return HOLMES_NCCL_SUCCESS;
}

EXPORT int ncclCommFinalize(void *comm)
{
    (void)comm;
    return HOLMES_NCCL_IN_PROGRESS;
}

EXPORT int ncclCommDestroy(void *comm)
{
    free(comm); /* groups stay, as ids do */
    return HOLMES_NCCL_SUCCESS;
}

EXPORT int ncclCommAbort(void *comm)
{
    struct comm *c = comm;

    pthread_mutex_lock(&fake.lock);
    c->group->aborted = true;
    for (struct stream *s = fake.streams; s; s = s->next)
        for (struct entry **at = &s->first; *at;)
            if ((*at)->comm == c)
                drop_at(s, at);
            else
                at = &(*at)->next;
    pthread_mutex_unlock(&fake.lock);
    free(c);
    return HOLMES_NCCL_SUCCESS;
}

EXPORT int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *comm,
                         void *stream)
{
    (void)op;
    return post(
        stream,
        (struct entry){
            .kind = ALL_REDUCE, .comm = comm, .in = in, .out = out, .count = count, .type = type});
}

EXPORT int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, void *comm,
                             void *stream)
{
    (void)op;
    return post(stream, (struct entry){.kind = REDUCE_SCATTER,
                                       .comm = comm,
                                       .in = in,
                                       .out = out,
                                       .count = count,
                                       .type = type});
}

EXPORT int ncclAllGather(const void *in, void *out, size_t count, int type, void *comm,
                         void *stream)
{
    return post(
        stream,
        (struct entry){
            .kind = ALL_GATHER, .comm = comm, .in = in, .out = out, .count = count, .type = type});
}

EXPORT int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *comm,
                         void *stream)
{
    return post(stream, (struct entry){.kind = BROADCAST,
                                       .comm = comm,
                                       .in = in,
                                       .out = out,
                                       .count = count,
                                       .type = type,
                                       .peer = root});
}

EXPORT int ncclSend(const void *buf, size_t count, int type, int peer, void *comm, void *stream)
{
    return post(
        stream,
        (struct entry){
            .kind = SEND, .comm = comm, .in = buf, .count = count, .type = type, .peer = peer});
}

EXPORT int ncclRecv(void *buf, size_t count, int type, int peer, void *comm, void *stream)
{
    return post(
        stream,
        (struct entry){
            .kind = RECV, .comm = comm, .out = buf, .count = count, .type = type, .peer = peer});
}

/* ---- the CUDA driver ---- */

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

EXPORT int cuCtxGetCurrent(void **ctx)
{
    *ctx = &fake;
    return 0;
}

EXPORT int cuCtxSetCurrent(void *ctx)
{
    (void)ctx;
    return 0;
}

EXPORT int cuDeviceGetCount(int *n)
{
    *n = RANKS_MAX;
    return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **ctx, int device)
{
    (void)device;
    *ctx = &fake;
    return 0;
}

EXPORT int cuStreamCreate(void **stream, unsigned flags)
{
    struct stream *s = calloc(1, sizeof *s);

    (void)flags;
    if (!s)
        return 2;
    s->end = &s->first;
    s->owner = &mine;
    pthread_mutex_lock(&fake.lock);
    s->next = fake.streams;
    fake.streams = s;
    pthread_mutex_unlock(&fake.lock);
    *stream = s;
    return 0;
}

/* What is in it comes to its end. */
EXPORT int cuStreamDestroy_v2(void *stream)
{
    struct stream *s = stream, **at = &fake.streams;

    pthread_mutex_lock(&fake.lock);
    while (s->first)
        if (s->first->kind != RECORD || !run_event(s, s->first))
            drop_first(s);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&fake.lock);
    free(s);
    return 0;
}

static void queue_event(struct stream *s, enum kind kind, struct event *e)
{
    e->users++;
    append(s, (struct entry){.kind = kind, .event = e, .mark = e->recorded});
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    struct stream *s = stream;
    struct event *e = event;

    (void)flags;
    pthread_mutex_lock(&fake.lock);
    if (s && !(fake.broken & (s->kernels ? FAKE_GPU_NO_FOLLOW : FAKE_GPU_NO_ORDER))) {
        queue_event(s, WAIT, e);
        run_eager();
    }
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

EXPORT int cuEventCreate(void **event, unsigned flags)
{
    struct event *e = calloc(1, sizeof *e);

    (void)flags;
    if (!e)
        return 2;
    e->users = 1;
    pthread_mutex_lock(&fake.lock);
    fake.events++;
    pthread_mutex_unlock(&fake.lock);
    *event = e;
    return 0;
}

/* Without a stream nothing is before it. */
EXPORT int cuEventRecord(void *event, void *stream)
{
    struct event *e = event;

    pthread_mutex_lock(&fake.lock);
    e->recorded++;
    if (stream) {
        queue_event(stream, RECORD, e);
        run_eager();
    } else {
        e->reached = e->recorded;
        e->ns = now_ns();
    }
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

EXPORT int cuEventQuery(void *event)
{
    const struct event *e = event;
    bool done;

    pthread_mutex_lock(&fake.lock);
    run_until(e);
    done = e->reached >= e->recorded;
    pthread_mutex_unlock(&fake.lock);
    return done ? 0 : HOLMES_CUDA_NOT_READY;
}

EXPORT int cuEventElapsedTime(float *ms, void *from, void *to)
{
    const struct event *a = from, *b = to;
    bool done;

    pthread_mutex_lock(&fake.lock);
    done = a->reached >= a->recorded && b->reached >= b->recorded;
    *ms = (float)((double)b->ns - (double)a->ns) / 1e6f;
    pthread_mutex_unlock(&fake.lock);
    return done ? 0 : HOLMES_CUDA_NOT_READY;
}

EXPORT int cuEventDestroy_v2(void *event)
{
    pthread_mutex_lock(&fake.lock);
    event_leave(event);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static struct memory **memory_of(uint64_t p)
{
    struct memory **at = &fake.memory;

    while (*at && (p < (uint64_t)(uintptr_t)(*at)->base ||
                   p >= (uint64_t)(uintptr_t)(*at)->base + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

EXPORT int cuPointerGetAttribute(void *value, int attribute, uint64_t p)
{
    bool ours;

    if (attribute != HOLMES_CUDA_POINTER_TYPE)
        abort();
    pthread_mutex_lock(&fake.lock);
    ours = *memory_of(p) != NULL;
    pthread_mutex_unlock(&fake.lock);
    *(unsigned *)value = HOLMES_CUDA_MEMORY_DEVICE;
    return ours ? 0 : 1;
}

EXPORT int cuMemAlloc_v2(uint64_t *p, size_t bytes)
{
    struct memory *m = calloc(1, sizeof *m);

    if (!m || posix_memalign((void **)&m->base, 64, bytes + 1) != 0)
        abort();
    m->bytes = bytes > 0 ? bytes : 1;
    pthread_mutex_lock(&fake.lock);
    m->next = fake.memory;
    fake.memory = m;
    pthread_mutex_unlock(&fake.lock);
    *p = (uint64_t)(uintptr_t)m->base;
    return 0;
}

static bool is_idle(void)
{
    bool idle = true;

    for (const struct stream *s = fake.streams; s; s = s->next)
        idle = idle && (s->owner != &mine || !s->first);
    return idle;
}

/* As CUDA's it waits for all that the GPU has to do. */
EXPORT int cuMemFree_v2(uint64_t p)
{
    struct memory **at, *m;

    pthread_mutex_lock(&fake.lock);
    while (!is_idle()) {
        if (run_one(true, true))
            continue;
        pthread_mutex_unlock(&fake.lock);
        sched_yield();
        pthread_mutex_lock(&fake.lock);
    }
    at = memory_of(p);
    m = *at;
    if (!m || p != (uint64_t)(uintptr_t)m->base)
        abort();
    *at = m->next;
    pthread_mutex_unlock(&fake.lock);
    free(m->base);
    free(m);
    return 0;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

EXPORT int cuGetErrorName(int result, const char **name)
{
    *name = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

/* ---- what tests ask for ---- */

EXPORT void fake_gpu_order(enum fake_gpu_order order)
{
    fake.order = order;
}

EXPORT void fake_gpu_break(unsigned what)
{
    fake.broken = what;
}

EXPORT void fake_gpu_hold(bool held)
{
    pthread_mutex_lock(&fake.lock);
    mine.held = held;
    if (!held)
        run_eager();
    pthread_mutex_unlock(&fake.lock);
}

EXPORT void *fake_gpu_queue(void)
{
    void *stream;

    if (cuStreamCreate(&stream, 0) != 0)
        abort();
    ((struct stream *)stream)->kernels = true;
    return stream;
}

EXPORT void fake_gpu_launch(void *stream, void (*run)(void *args), const void *args, size_t bytes)
{
    struct entry e = {.kind = KERNEL, .run = run};

    if (bytes > sizeof e.args)
        abort();
    memcpy(e.args, args, bytes);
    pthread_mutex_lock(&fake.lock);
    append(stream, e);
    run_eager();
    pthread_mutex_unlock(&fake.lock);
}

EXPORT void fake_gpu_queue_end(void *stream)
{
    cuStreamDestroy_v2(stream);
}

EXPORT bool fake_gpu_done(void *stream)
{
    const struct stream *s = stream;
    bool done;

    pthread_mutex_lock(&fake.lock);
    while (s->first && run_one(true, true))
        continue;
    done = !s->first;
    pthread_mutex_unlock(&fake.lock);
    return done;
}

EXPORT void *fake_gpu_alloc(size_t bytes)
{
    uint64_t p;

    cuMemAlloc_v2(&p, bytes);
    return memset((void *)(uintptr_t)p, 0, bytes);
}

EXPORT void fake_gpu_free(void *p)
{
    if (p)
        cuMemFree_v2((uint64_t)(uintptr_t)p);
}

EXPORT bool fake_gpu_owns(const void *p)
{
    bool owns;

    pthread_mutex_lock(&fake.lock);
    owns = *memory_of((uint64_t)(uintptr_t)p) != NULL;
    pthread_mutex_unlock(&fake.lock);
    return owns;
}

EXPORT struct fake_gpu_use fake_gpu_use(void)
{
    struct fake_gpu_use use = {0};

    pthread_mutex_lock(&fake.lock);
    use.events = fake.events;
    use.entries = fake.entries;
    for (const struct stream *s = fake.streams; s; s = s->next)
        use.streams++;
    for (const struct memory *m = fake.memory; m; m = m->next)
        use.blocks++;
    pthread_mutex_unlock(&fake.lock);
    return use;
}
