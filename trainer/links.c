/* Opens, waits on and closes the communicators of one rank. */
#include "links.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#define LINKS_POLL_MS 100 /* how late a rank may notice that the job has ended */

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

/* Stages of a replica open their pairs from the first to the last: stage p's pair with p-1 comes
 * before the one with p+1, on both ends. */
static struct holmes_link *open_pair(struct opener *o, const struct holmes_group *g, int stage)
{
    int replica = o->l->replica;
    int pair[2] = {holmes_group_rank(g, stage, replica), holmes_group_rank(g, stage + 1, replica)};
    char name[32];

    snprintf(name, sizeof name, "pp.%d.%d", replica, stage);
    return open_link(o, name, "pp", pair, 2);
}

static struct holmes_link *open_embed(struct opener *o, const struct holmes_group *g)
{
    int replica = o->l->replica;
    int pair[2] = {holmes_group_rank(g, 0, replica), holmes_group_rank(g, g->stages - 1, replica)};
    char name[32];

    snprintf(name, sizeof name, "embed.%d", replica);
    return open_link(o, name, "embed", pair, 2);
}

int holmes_links_open(struct holmes_links *l, const struct holmes_group *g, int rank, bool tied,
                      holmes_comm_factory factory, void *ctx)
{
    struct opener o = {.l = l, .factory = factory, .ctx = ctx, .rank = rank};
    int *everyone = calloc((size_t)g->world, sizeof *everyone);
    char name[32];

    if (!everyone)
        return -ENOMEM;
    *l = (struct holmes_links){
        .poll = l->poll, .poll_ctx = l->poll_ctx, .timeout_ms = l->timeout_ms};
    for (int r = 0; r < g->world; r++)
        everyone[r] = r;
    holmes_group_place(g, rank, &l->stage, &l->replica);

    l->world = open_link(&o, "world", "world", everyone, g->world);
    snprintf(name, sizeof name, "dp.%d", l->stage);
    l->dp =
        open_link(&o, name, "dp", g->order + (size_t)l->stage * (size_t)g->replicas, g->replicas);
    if (l->stage > 0)
        l->prev = open_pair(&o, g, l->stage - 1);
    if (l->stage < g->stages - 1)
        l->next = open_pair(&o, g, l->stage);
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
    l->world = l->dp = l->prev = l->next = l->embed = NULL;
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
    int rc;

    if (!*op)
        return 0;
    rc = wait_bounded(l, on, *op);
    *op = NULL;
    on->wait_ns += holmes_now_ns() - start;
    if (rc != 0 && !l->failed)
        l->failed = on;
    return rc;
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
