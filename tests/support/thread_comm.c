/* One lock for the whole hub: what these tests move is small. A condition for each group, so that
 * only those wake up whom it concerns. */
#include "thread_comm.h"

#include "sum.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GROUPS_MAX 64
#define RANKS_MAX  16

enum what { SEND, RECV, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BARRIER };

struct group;

struct holmes_op {
    struct group *g;
    enum what what;
    int rank, peer;
    uint64_t round; /* of a collective */
    const void *in;
    void *out;
    size_t bytes;           /* of a block, or of the message */
    enum holmes_dtype type; /* of what is summed */
    bool done;
    struct holmes_op *next;
};

struct round {
    uint64_t number;
    int arrived, left;
    struct holmes_op *ops[RANKS_MAX];
};

struct group {
    struct thread_hub *hub;
    char name[32], kind[16];
    int size, open;
    struct holmes_op *sends[RANKS_MAX][RANKS_MAX], *recvs[RANKS_MAX][RANKS_MAX]; /* [from][to] */
    struct round rounds[64];
    int reductions;
    pthread_cond_t changed;
};

struct thread_hub {
    pthread_mutex_t lock;
    struct group groups[GROUPS_MAX];
    int ngroups;
    char break_kind[16];
    int break_nth;
    void (*touch)(bool open);
};

struct thread_comm {
    struct holmes_comm comm;
    struct group *g;
    uint64_t round;
    struct holmes_comm_traffic traffic[RANKS_MAX];
};

struct thread_hub *thread_hub_create(void)
{
    struct thread_hub *h = calloc(1, sizeof *h);

    if (h)
        pthread_mutex_init(&h->lock, NULL);
    return h;
}

void thread_hub_destroy(struct thread_hub *h)
{
    for (int i = 0; i < h->ngroups; i++)
        pthread_cond_destroy(&h->groups[i].changed);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void thread_hub_break(struct thread_hub *h, const char *kind, int nth)
{
    snprintf(h->break_kind, sizeof h->break_kind, "%s", kind);
    h->break_nth = nth;
}

void thread_hub_touch(struct thread_hub *h, void (*touch)(bool open))
{
    h->touch = touch;
}

static void touch(struct thread_hub *h, bool open)
{
    if (h->touch)
        h->touch(open);
}

static struct holmes_op *new_op(struct thread_comm *c, enum what what, const void *in, void *out,
                                size_t bytes, int peer)
{
    struct holmes_op *op = calloc(1, sizeof *op);

    *op = (struct holmes_op){.g = c->g,
                             .what = what,
                             .rank = c->comm.rank,
                             .peer = peer,
                             .in = in,
                             .out = out,
                             .bytes = bytes};
    return op;
}

static void append(struct holmes_op **list, struct holmes_op *op)
{
    while (*list)
        list = &(*list)->next;
    *list = op;
}

static int match(struct thread_comm *c, struct holmes_op *op, int from, int to)
{
    struct group *g = c->g;
    struct holmes_op **s = &g->sends[from][to], **r = &g->recvs[from][to];
    int rc = 0;

    pthread_mutex_lock(&g->hub->lock);
    append(op->what == SEND ? s : r, op);
    touch(g->hub, true);
    while (*s && *r && rc == 0) {
        if ((*s)->bytes != (*r)->bytes)
            rc = -EMSGSIZE;
        else
            memcpy((*r)->out, (*s)->in, (*s)->bytes);
        (*s)->done = (*r)->done = true;
        *s = (*s)->next;
        *r = (*r)->next;
    }
    touch(g->hub, false);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->hub->lock);
    return rc;
}

static int comm_send(struct holmes_comm *comm, const void *buf, size_t bytes, int peer,
                     struct holmes_op **op)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    *op = new_op(c, SEND, buf, NULL, bytes, peer);
    c->traffic[peer].bytes_sent += bytes;
    return match(c, *op, comm->rank, peer);
}

static int comm_recv(struct holmes_comm *comm, void *buf, size_t bytes, int peer,
                     struct holmes_op **op)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    *op = new_op(c, RECV, NULL, buf, bytes, peer);
    c->traffic[peer].bytes_received += bytes;
    return match(c, *op, peer, comm->rank);
}

/* All inputs are here. Sums go through a buffer of their own: outputs may be inputs. */
static void reduce(struct group *g, struct round *r, size_t bytes)
{
    const enum holmes_dtype type = r->ops[0]->type;
    char *sum = calloc(bytes ? bytes : 1, 1);
    int ranks = g->size;

    if (strcmp(g->kind, g->hub->break_kind) == 0 && ++g->reductions == g->hub->break_nth)
        ranks--;
    for (int i = 0; i < ranks; i++)
        holmes_sum(type, sum, sum, r->ops[i]->in, bytes / holmes_dtype_size(type));
    for (int i = 0; i < g->size; i++) {
        struct holmes_op *op = r->ops[i];
        size_t from = op->what == REDUCE_SCATTER ? (size_t)i * op->bytes : 0;

        memcpy(op->out, sum + from, op->bytes);
    }
    free(sum);
}

static void gather(struct group *g, struct round *r, size_t bytes)
{
    char *all = malloc(bytes * (size_t)g->size + 1);

    for (int i = 0; i < g->size; i++)
        memcpy(all + (size_t)i * bytes, r->ops[i]->in, bytes);
    for (int i = 0; i < g->size; i++)
        memcpy(r->ops[i]->out, all, bytes * (size_t)g->size);
    free(all);
}

static void complete(struct group *g, struct round *r)
{
    struct holmes_op *first = r->ops[0];

    switch (first->what) {
    case ALL_REDUCE:
        reduce(g, r, first->bytes);
        break;
    case REDUCE_SCATTER:
        reduce(g, r, first->bytes * (size_t)g->size);
        break;
    case ALL_GATHER:
        gather(g, r, first->bytes);
        break;
    case BROADCAST:
        for (int i = 0; i < g->size; i++)
            if (i != first->peer)
                memcpy(r->ops[i]->out, r->ops[first->peer]->out, first->bytes);
        break;
    default:
        break;
    }
    for (int i = 0; i < g->size; i++)
        r->ops[i]->done = true;
}

static int arrive(struct thread_comm *c, struct holmes_op *op)
{
    struct group *g = c->g;
    struct round *r = &g->rounds[c->round++ % 64];

    pthread_mutex_lock(&g->hub->lock);
    r->ops[op->rank] = op;
    if (++r->arrived == g->size) {
        touch(g->hub, true);
        complete(g, r);
        touch(g->hub, false);
        memset(r, 0, sizeof *r);
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->hub->lock);
    return 0;
}

static int comm_all_reduce(struct holmes_comm *comm, const void *in, void *out, size_t count,
                           enum holmes_dtype t, struct holmes_op **op)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    *op = new_op(c, ALL_REDUCE, in, out, count * holmes_dtype_size(t), 0);
    (*op)->type = t;
    return arrive(c, *op);
}

static int comm_reduce_scatter(struct holmes_comm *comm, const void *in, void *out, size_t count,
                               enum holmes_dtype t, struct holmes_op **op)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    *op = new_op(c, REDUCE_SCATTER, in, out, count * holmes_dtype_size(t), 0);
    (*op)->type = t;
    return arrive(c, *op);
}

static int comm_all_gather(struct holmes_comm *comm, const void *in, void *out, size_t count,
                           enum holmes_dtype t, struct holmes_op **op)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    *op = new_op(c, ALL_GATHER, in, out, count * holmes_dtype_size(t), 0);
    return arrive(c, *op);
}

static int comm_broadcast(struct holmes_comm *comm, void *buf, size_t count, enum holmes_dtype t,
                          int root, struct holmes_op **op)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    *op = new_op(c, BROADCAST, buf, buf, count * holmes_dtype_size(t), root);
    return arrive(c, *op);
}

static int comm_barrier(struct holmes_comm *comm, struct holmes_op **op)
{
    struct thread_comm *c = (struct thread_comm *)comm;

    *op = new_op(c, BARRIER, NULL, NULL, 0, 0);
    return arrive(c, *op);
}

static int comm_test(struct holmes_op *op, bool *done)
{
    pthread_mutex_lock(&op->g->hub->lock);
    *done = op->done;
    pthread_mutex_unlock(&op->g->hub->lock);
    return 0;
}

static int comm_wait(struct holmes_op *op, int timeout_ms)
{
    struct thread_hub *h = op->g->hub;
    struct timespec until;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms < 0 ? 60 : timeout_ms / 1000;
    until.tv_nsec += timeout_ms < 0 ? 0 : timeout_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&h->lock);
    while (!op->done && rc == 0)
        rc = pthread_cond_timedwait(&op->g->changed, &h->lock, &until);
    rc = op->done ? 0 : -ETIMEDOUT;
    pthread_mutex_unlock(&h->lock);
    if (rc == 0)
        free(op);
    return rc;
}

static void comm_traffic(struct holmes_comm *comm, int peer, struct holmes_comm_traffic *out)
{
    *out = ((struct thread_comm *)comm)->traffic[peer];
}

static void comm_destroy(struct holmes_comm *comm)
{
    free(comm);
}

static const struct holmes_comm_ops thread_ops = {
    .name = "thread",
    .all_reduce = comm_all_reduce,
    .reduce_scatter = comm_reduce_scatter,
    .all_gather = comm_all_gather,
    .broadcast = comm_broadcast,
    .send = comm_send,
    .recv = comm_recv,
    .barrier = comm_barrier,
    .test = comm_test,
    .wait = comm_wait,
    .traffic = comm_traffic,
    .destroy = comm_destroy,
};

static void group_init(struct group *g, struct thread_hub *h, const char *name, const char *kind,
                       int size)
{
    pthread_condattr_t attr;

    g->hub = h;
    g->size = size;
    snprintf(g->name, sizeof g->name, "%s", name);
    snprintf(g->kind, sizeof g->kind, "%s", kind);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &attr);
    pthread_condattr_destroy(&attr);
}

int thread_comm_create(void *ctx, const char *name, const char *kind, const int *ranks, int size,
                       int rank, struct holmes_comm **out)
{
    struct thread_hub *h = ctx;
    struct thread_comm *c = calloc(1, sizeof *c);
    struct group *g = NULL;

    (void)ranks;
    if (!c || size > RANKS_MAX)
        return -ENOMEM;
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < h->ngroups && !g; i++)
        if (strcmp(h->groups[i].name, name) == 0)
            g = &h->groups[i];
    if (!g) {
        g = &h->groups[h->ngroups++];
        group_init(g, h, name, kind, size);
    }
    pthread_mutex_unlock(&h->lock);
    c->g = g;
    c->comm.ops = &thread_ops;
    c->comm.rank = rank;
    c->comm.size = size;
    snprintf(c->comm.kind, sizeof c->comm.kind, "%s", kind);
    *out = &c->comm;
    return 0;
}
