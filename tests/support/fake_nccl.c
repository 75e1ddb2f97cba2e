/* Stands in for libnccl.so.2 and libcuda.so.1: ranks are threads of one process, the GPU's memory
 * is the host's, and streams keep what was queued in order: an operation moves its bytes when it is
 * the first of its stream on every rank that takes part. So an order of operations that would hang
 * on GPUs hangs here. Communicators are set up in the background, as with blocking = 0, and so are
 * connections at the first call that needs them; a rank that aborts a communicator is a remote
 * error to the others. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_api.h"

#define RANKS_MAX   8
#define PENDING_MAX 256
#define EXPORT      __attribute__((visibility("default")))

enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV };

struct stream {
    unsigned posted, completed;
};

struct event {
    struct stream *stream;
    unsigned mark;
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

struct pending {
    enum kind kind;
    struct comm *comm;
    struct stream *stream;
    unsigned place, sequence; /* in the stream; of the collective */
    const void *in;
    void *out;
    size_t count;
    int type, peer; /* or root */
};

static struct {
    pthread_mutex_t lock;
    struct group *groups;
    struct pending pending[PENDING_MAX];
    int count;
    uint64_t memory[PENDING_MAX]; /* allocated */
    unsigned ids;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

static bool first_in_stream(const struct pending *p)
{
    return p->stream->completed == p->place;
}

static void drop(int i)
{
    fake.pending[i].stream->completed++;
    fake.pending[i] = fake.pending[--fake.count];
}

static void sum(const struct pending *const *all, int n, float *sums, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sums[i] = 0;
        for (int r = 0; r < n; r++)
            sums[i] += number(all[r]->in, i, all[r]->type);
    }
}

/* all[rank]. Inputs are read before any output is written: they may be the same. */
static void move(const struct pending *const *all, int n)
{
    const struct pending *p = all[0];
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

static bool try_collective(int i)
{
    const struct pending *p = &fake.pending[i], *all[RANKS_MAX] = {0};
    const unsigned sequence = p->sequence;
    const struct group *g = p->comm->group;
    int found = 0;

    for (int j = 0; j < fake.count; j++) {
        const struct pending *q = &fake.pending[j];

        if (q->kind < SEND && q->comm->group == g && q->sequence == sequence &&
            first_in_stream(q)) {
            if (q->kind != p->kind || q->count != p->count || q->type != p->type)
                abort(); /* ranks that differ would hang, or worse */
            all[q->comm->rank] = q;
            found++;
        }
    }
    if (found < g->size)
        return false;
    move(all, g->size);
    for (int j = fake.count - 1; j >= 0; j--)
        if (fake.pending[j].kind < SEND && fake.pending[j].comm->group == g &&
            fake.pending[j].sequence == sequence)
            drop(j);
    return true;
}

/* The first send of a pair meets the first receive: both are first in their streams. */
static bool try_send(int i)
{
    const struct pending *p = &fake.pending[i];

    for (int j = 0; j < fake.count; j++) {
        const struct pending *q = &fake.pending[j];

        if (q->kind != RECV || q->comm->group != p->comm->group || q->peer != p->comm->rank ||
            q->comm->rank != p->peer || !first_in_stream(q))
            continue;
        if (q->count != p->count)
            abort();
        memcpy(q->out, p->in, p->count);
        drop(i > j ? i : j);
        drop(i > j ? j : i);
        return true;
    }
    return false;
}

static bool try_one(int i)
{
    const struct pending *p = &fake.pending[i];

    if (!first_in_stream(p) || p->kind == RECV)
        return false;
    if (p->comm->group->aborted)
        return false;
    return p->kind == SEND ? try_send(i) : try_collective(i);
}

static int post(struct pending p)
{
    if (fake.count == PENDING_MAX)
        abort();
    p.place = p.stream->posted++;
    if (p.kind < SEND)
        p.sequence = p.comm->sequence++;
    fake.pending[fake.count++] = p;
    for (int i = 0; i < fake.count; i++)
        if (try_one(i))
            i = -1; /* what was behind it may go now */
    return HOLMES_NCCL_SUCCESS;
}

/* The first call for messages between two ranks goes on until the other end has called too. */
static void note_call(const struct pending *p)
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

static bool connecting(const struct comm *c)
{
    const struct group *g = c->group;

    if (c->lazy && g->come_together >> c->rank & 1 && g->come_together != (1u << g->size) - 1)
        return true;
    return c->from != c->to && g->come[c->from][c->to] != 3;
}

static int post_locked(struct pending p)
{
    pthread_mutex_lock(&fake.lock);
    note_call(&p);
    post(p);
    pthread_mutex_unlock(&fake.lock);
    return HOLMES_NCCL_IN_PROGRESS; /* as a call may that does not block */
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
    *result = c->group->aborted                                    ? HOLMES_NCCL_REMOTE_ERROR
              : c->group->joined < c->group->size || connecting(c) ? HOLMES_NCCL_IN_PROGRESS
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
    for (int i = fake.count - 1; i >= 0; i--)
        if (fake.pending[i].comm == c)
            drop(i);
    pthread_mutex_unlock(&fake.lock);
    free(c);
    return HOLMES_NCCL_SUCCESS;
}

EXPORT int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *comm,
                         void *stream)
{
    (void)op;
    return post_locked((struct pending){.kind = ALL_REDUCE,
                                        .comm = comm,
                                        .stream = stream,
                                        .in = in,
                                        .out = out,
                                        .count = count,
                                        .type = type});
}

EXPORT int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, void *comm,
                             void *stream)
{
    (void)op;
    return post_locked((struct pending){.kind = REDUCE_SCATTER,
                                        .comm = comm,
                                        .stream = stream,
                                        .in = in,
                                        .out = out,
                                        .count = count,
                                        .type = type});
}

EXPORT int ncclAllGather(const void *in, void *out, size_t count, int type, void *comm,
                         void *stream)
{
    return post_locked((struct pending){.kind = ALL_GATHER,
                                        .comm = comm,
                                        .stream = stream,
                                        .in = in,
                                        .out = out,
                                        .count = count,
                                        .type = type});
}

EXPORT int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *comm,
                         void *stream)
{
    return post_locked((struct pending){.kind = BROADCAST,
                                        .comm = comm,
                                        .stream = stream,
                                        .in = in,
                                        .out = out,
                                        .count = count,
                                        .type = type,
                                        .peer = root});
}

EXPORT int ncclSend(const void *buf, size_t count, int type, int peer, void *comm, void *stream)
{
    return post_locked((struct pending){.kind = SEND,
                                        .comm = comm,
                                        .stream = stream,
                                        .in = buf,
                                        .count = count,
                                        .type = type,
                                        .peer = peer});
}

EXPORT int ncclRecv(void *buf, size_t count, int type, int peer, void *comm, void *stream)
{
    return post_locked((struct pending){.kind = RECV,
                                        .comm = comm,
                                        .stream = stream,
                                        .out = buf,
                                        .count = count,
                                        .type = type,
                                        .peer = peer});
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
    (void)flags;
    *stream = calloc(1, sizeof(struct stream));
    return *stream ? 0 : 2;
}

EXPORT int cuStreamDestroy_v2(void *stream)
{
    free(stream);
    return 0;
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags; /* the table's stream is always idle here */
    return 0;
}

EXPORT int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(struct event));
    return *event ? 0 : 2;
}

EXPORT int cuEventRecord(void *event, void *stream)
{
    struct event *e = event;

    pthread_mutex_lock(&fake.lock);
    e->stream = stream;
    e->mark = e->stream ? e->stream->posted : 0;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

EXPORT int cuEventQuery(void *event)
{
    const struct event *e = event;
    bool done;

    pthread_mutex_lock(&fake.lock);
    done = !e->stream || e->stream->completed >= e->mark;
    pthread_mutex_unlock(&fake.lock);
    return done ? 0 : HOLMES_CUDA_NOT_READY;
}

EXPORT int cuEventDestroy_v2(void *event)
{
    free(event);
    return 0;
}

EXPORT int cuPointerGetAttribute(void *value, int attribute, uint64_t p)
{
    int rc = 1;

    if (attribute != HOLMES_CUDA_POINTER_TYPE)
        abort();
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < PENDING_MAX; i++)
        if (fake.memory[i] != 0 && fake.memory[i] == p)
            rc = 0;
    pthread_mutex_unlock(&fake.lock);
    *(unsigned *)value = HOLMES_CUDA_MEMORY_DEVICE;
    return rc;
}

EXPORT int cuMemAlloc_v2(uint64_t *p, size_t bytes)
{
    int i = 0;

    *p = (uint64_t)(uintptr_t)malloc(bytes);
    pthread_mutex_lock(&fake.lock);
    while (fake.memory[i] != 0)
        i++;
    fake.memory[i] = *p;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

EXPORT int cuMemFree_v2(uint64_t p)
{
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < PENDING_MAX; i++)
        if (fake.memory[i] == p)
            fake.memory[i] = 0;
    pthread_mutex_unlock(&fake.lock);
    free((void *)(uintptr_t)p);
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
