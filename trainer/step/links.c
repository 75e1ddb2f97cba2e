/* Opens, waits on and closes the communicators of one rank. */
#include "links.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "trace.h"

#define LINKS_TRACED_NS 20000 /* shorter waits are no use to see */
#define LINKS_POLL_MS   100   /* how late a rank may notice that the job has ended */

static void link_close(struct holmes_link *k)
{
    if (k->comm)
        k->comm->ops->destroy(k->comm);
    free(k->ranks);
    free(k->eval_sent);
    free(k->eval_received);
    memset(k, 0, sizeof *k);
}

static int link_alloc(struct holmes_link *k, const int *ranks, int size)
{
    k->ranks = calloc((size_t)size, sizeof *k->ranks);
    k->eval_sent = calloc((size_t)size, sizeof *k->eval_sent);
    k->eval_received = calloc((size_t)size, sizeof *k->eval_received);
    if (!k->ranks || !k->eval_sent || !k->eval_received)
        return -ENOMEM;
    memcpy(k->ranks, ranks, (size_t)size * sizeof *ranks);
    return 0;
}

struct opener {
    struct holmes_links *l;
    holmes_comm_factory factory;
    void *ctx;
    int rank, rc;
};

static struct holmes_link *open_link(struct opener *o, const char *name, const char *kind,
                                     const int *ranks, int size)
{
    struct holmes_link *k = &o->l->all[o->l->count];
    int me = 0;

    if (o->rc != 0)
        return NULL;
    while (me < size - 1 && ranks[me] != o->rank)
        me++;
    snprintf(k->name, sizeof k->name, "%s", name);
    o->rc = link_alloc(k, ranks, size);
    if (o->rc == 0)
        o->rc = size == 1 ? holmes_comm_loopback_create(kind, &k->comm)
                          : o->factory(o->ctx, name, kind, ranks, size, me, &k->comm);
    if (o->rc != 0) {
        link_close(k);
        return NULL;
    }
    o->l->count++;
    return k;
}

/* "dp.0", and "dp.0.1" where stages are split over tensor ranks. */
static void name_link(char name[32], const struct holmes_group *g, const char *what, int tensor)
{
    if (g->tensors > 1)
        snprintf(name, 32, "%.20s.%d", what, tensor);
    else
        snprintf(name, 32, "%s", what);
}

static struct holmes_link *open_dp(struct opener *o, const struct holmes_group *g)
{
    const struct holmes_links *l = o->l;
    int *ranks = calloc((size_t)g->replicas, sizeof *ranks);
    struct holmes_link *link = NULL;
    char what[20], name[32];

    if (!ranks && o->rc == 0)
        o->rc = -ENOMEM;
    for (int d = 0; ranks && d < g->replicas; d++)
        ranks[d] = holmes_group_rank(g, l->stage, d, l->tensor);
    snprintf(what, sizeof what, "dp.%d", l->stage);
    name_link(name, g, what, l->tensor);
    if (ranks)
        link = open_link(o, name, "dp", ranks, g->replicas);
    free(ranks);
    return link;
}

static struct holmes_link *open_tp(struct opener *o, const struct holmes_group *g)
{
    const struct holmes_links *l = o->l;
    size_t first = (size_t)(l->stage * g->replicas + l->replica) * (size_t)g->tensors;
    char name[32];

    snprintf(name, sizeof name, "tp.%d.%d", l->stage, l->replica);
    return open_link(o, name, "tp", g->order + first, g->tensors);
}

/* Between two stages of this rank's replica and tensor index. */
static struct holmes_link *open_pair(struct opener *o, const struct holmes_group *g,
                                     const char *kind, const char *what, int from, int to)
{
    const struct holmes_links *l = o->l;
    int pair[2] = {holmes_group_rank(g, from, l->replica, l->tensor),
                   holmes_group_rank(g, to, l->replica, l->tensor)};
    char name[32];

    name_link(name, g, what, l->tensor);
    return open_link(o, name, kind, pair, 2);
}

static struct holmes_link *open_pp(struct opener *o, const struct holmes_group *g, int stage)
{
    char what[20];

    snprintf(what, sizeof what, "pp.%d.%d", o->l->replica, stage);
    return open_pair(o, g, "pp", what, stage, (stage + 1) % g->stages);
}

static struct holmes_link *open_embed(struct opener *o, const struct holmes_group *g)
{
    char what[20];

    snprintf(what, sizeof what, "embed.%d", o->l->replica);
    return open_pair(o, g, "embed", what, 0, g->stages - 1);
}

int holmes_links_open(struct holmes_links *l, const struct holmes_group *g, int rank, bool tied,
                      holmes_comm_factory factory, void *ctx)
{
    struct opener o = {.l = l, .factory = factory, .ctx = ctx, .rank = rank};
    struct holmes_place place = holmes_group_place(g, rank);
    int *everyone = calloc((size_t)g->world, sizeof *everyone);

    if (!everyone)
        return -ENOMEM;
    *l = (struct holmes_links){.stage = place.stage,
                               .replica = place.replica,
                               .tensor = place.tensor,
                               .poll = l->poll,
                               .poll_ctx = l->poll_ctx,
                               .timeout_ms = l->timeout_ms};
    for (int r = 0; r < g->world; r++)
        everyone[r] = r;

    l->world = open_link(&o, "world", "world", everyone, g->world);
    l->dp = open_dp(&o, g);
    if (g->tensors > 1)
        l->tp = open_tp(&o, g);
    /* Stages of a replica open their pairs from the first to the last: stage p's pair with p-1
     * comes before the one with p+1, on both ends; the pair that closes the ring comes last. */
    if (l->stage > 0)
        l->prev = open_pp(&o, g, l->stage - 1);
    if (l->stage < g->stages - 1)
        l->next = open_pp(&o, g, l->stage);
    if (g->chunks > 1 && l->stage == 0)
        l->prev = open_pp(&o, g, g->stages - 1);
    if (g->chunks > 1 && l->stage == g->stages - 1)
        l->next = open_pp(&o, g, g->stages - 1);
    if (tied && g->stages > 1 && (l->stage == 0 || l->stage == g->stages - 1))
        l->embed = open_embed(&o, g);
    free(everyone);
    if (o.rc != 0)
        holmes_links_close(l);
    return o.rc;
}

void holmes_links_close(struct holmes_links *l)
{
    while (l->count > 0)
        link_close(&l->all[--l->count]);
    for (; l->nfollowed > 0; l->nfollowed--) { /* over now that its communicator is gone */
        struct holmes_followed *f = &l->followed[l->oldest];

        f->ops->wait(f->op, 0);
        l->oldest = (l->oldest + 1) % HOLMES_LINKS_FOLLOWED;
    }
    l->world = l->dp = l->tp = l->prev = l->next = l->embed = NULL;
}

static int wait_bounded(struct holmes_links *l, struct holmes_link *on, struct holmes_op *op)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)l->timeout_ms);

    for (;;) {
        int rc = on->comm->ops->wait(op, LINKS_POLL_MS);

        if (rc != -ETIMEDOUT)
            return rc;
        if (l->poll && l->poll(l->poll_ctx) != 0)
            return -ECONNABORTED;
        if (holmes_deadline_passed(deadline))
            return -ETIMEDOUT;
    }
}

int holmes_links_wait(struct holmes_links *l, struct holmes_link *on, struct holmes_op **op)
{
    uint64_t start = holmes_now_ns();
    char name[HOLMES_TRACE_NAME];
    int rc;

    if (!*op)
        return 0;
    rc = wait_bounded(l, on, *op);
    *op = NULL;
    if (holmes_now_ns() - start > LINKS_TRACED_NS) {
        snprintf(name, sizeof name, "wait %.24s", on->name);
        holmes_trace_add(start, holmes_now_ns(), 0, "waiting", name);
    }
    on->wait_ns += holmes_now_ns() - start;
    if (rc != 0 && !l->failed)
        l->failed = on;
    return rc;
}

/* ---- operations that the kernels follow ---- */

static void follow_failed(struct holmes_links *l, const struct holmes_link *on, int rc)
{
    l->follow_error = rc;
    if (!l->failed)
        l->failed = on;
}

static void oldest_over(struct holmes_links *l, int rc)
{
    struct holmes_link *on = l->followed[l->oldest].on;

    on->wait_ns += on->comm->stall_ns;
    on->comm->stall_ns = 0;
    l->oldest = (l->oldest + 1) % HOLMES_LINKS_FOLLOWED;
    l->nfollowed--;
    l->stalled_until = 0;
    if (rc != 0)
        follow_failed(l, on, rc);
}

/* The time of the oldest runs while the kernels' queue stands still for it: before, the queue has
 * work of its own, however long. */
static void oldest_not_over(struct holmes_links *l, bool stalls)
{
    const struct holmes_link *on = l->followed[l->oldest].on;

    if (l->poll && l->poll(l->poll_ctx) != 0)
        follow_failed(l, on, -ECONNABORTED);
    else if (!stalls)
        l->stalled_until = 0;
    else if (l->stalled_until == 0)
        l->stalled_until = holmes_deadline_ms((uint64_t)l->timeout_ms);
    else if (holmes_deadline_passed(l->stalled_until))
        follow_failed(l, on, -ETIMEDOUT);
}

/* True when it was over within wait_ms. */
static bool oldest_wait(struct holmes_links *l, int wait_ms)
{
    const struct holmes_followed *f = &l->followed[l->oldest];
    const int rc = f->ops->wait(f->op, wait_ms);
    const bool over = rc != -ETIMEDOUT && rc != -EBUSY;

    if (over)
        oldest_over(l, rc);
    else
        oldest_not_over(l, rc == -ETIMEDOUT);
    return over;
}

int holmes_links_follow(struct holmes_links *l, struct holmes_link *on, struct holmes_op **op)
{
    const struct holmes_comm_ops *ops = on->comm->ops;

    while (*op && ops->follow && l->nfollowed == HOLMES_LINKS_FOLLOWED && l->follow_error == 0)
        oldest_wait(l, LINKS_POLL_MS);
    if (l->follow_error != 0 || !*op)
        return l->follow_error;
    if (!ops->follow || ops->follow(*op) != 0)
        return holmes_links_wait(l, on, op);
    l->followed[(l->oldest + l->nfollowed++) % HOLMES_LINKS_FOLLOWED] =
        (struct holmes_followed){.on = on, .ops = ops, .op = *op};
    *op = NULL;
    return 0;
}

int holmes_links_drain(struct holmes_links *l)
{
    while (l->nfollowed > 0 && l->follow_error == 0)
        oldest_wait(l, LINKS_POLL_MS);
    return l->follow_error;
}

int holmes_links_look(void *links)
{
    struct holmes_links *l = links;

    while (l->nfollowed > 0 && l->follow_error == 0 && oldest_wait(l, 0))
        continue;
    return l->follow_error;
}

/* Neighbours in the pipeline have connections of their own for each direction. */
static int greet_neighbour(struct holmes_links *l, struct holmes_link *k)
{
    struct holmes_comm *c = k->comm;
    struct holmes_op *out = NULL, *in = NULL;
    static char word[2];
    int rc = c->ops->send(c, &word[0], 1, 1 - c->rank, &out);

    if (rc == 0)
        rc = c->ops->recv(c, &word[1], 1, 1 - c->rank, &in);
    if (rc == 0)
        rc = holmes_links_wait(l, k, &out);
    if (rc == 0)
        rc = holmes_links_wait(l, k, &in);
    return rc;
}

static int greet_group(struct holmes_links *l, struct holmes_link *k)
{
    struct holmes_op *op = NULL;
    int rc = k->comm->ops->barrier(k->comm, &op);

    return rc ? rc : holmes_links_wait(l, k, &op);
}

/* In the order of opening, in which no two ranks can wait for each other. */
int holmes_links_greet(struct holmes_links *l)
{
    int rc = 0;

    holmes_links_eval_begin(l); /* no bytes of training, nor time */
    for (int i = 0; i < l->count && rc == 0; i++) {
        struct holmes_link *k = &l->all[i];

        rc = k == l->prev || k == l->next ? greet_neighbour(l, k) : greet_group(l, k);
        k->wait_ns = 0;
    }
    holmes_links_eval_end(l);
    return rc;
}

int holmes_links_mute(struct holmes_links *l)
{
    for (int i = 0; i < l->count; i++) {
        struct holmes_link *k = &l->all[i];
        struct holmes_comm *nothing = NULL;

        if (holmes_comm_nothing_create(k->comm, &nothing) != 0) {
            holmes_links_unmute(l);
            return -ENOMEM;
        }
        k->muted = k->comm;
        k->comm = nothing;
    }
    return 0;
}

void holmes_links_unmute(struct holmes_links *l)
{
    for (int i = 0; i < l->count; i++) {
        struct holmes_link *k = &l->all[i];

        if (!k->muted)
            continue;
        k->comm->ops->destroy(k->comm);
        k->comm = k->muted;
        k->muted = NULL;
    }
}

/* Both ends of an evaluation add to the same counters: begin subtracts, end adds. */
static void count_eval(struct holmes_links *l, bool begin)
{
    for (int i = 0; i < l->count; i++) {
        struct holmes_link *k = &l->all[i];

        for (int peer = 0; peer < k->comm->size; peer++) {
            struct holmes_comm_traffic t;

            k->comm->ops->traffic(k->comm, peer, &t);
            k->eval_sent[peer] += begin ? -t.bytes_sent : t.bytes_sent;
            k->eval_received[peer] += begin ? -t.bytes_received : t.bytes_received;
        }
    }
}

void holmes_links_eval_begin(struct holmes_links *l)
{
    count_eval(l, true);
}

void holmes_links_eval_end(struct holmes_links *l)
{
    count_eval(l, false);
}
