/* Each bucket of n elements over D replicas is D blocks of floor(n/D), one per rank, reduced in
 * place, and a tail of less than D elements that every rank reduces and updates alike: no copy and
 * no padding. */
#include "dp.h"

#include <errno.h>
#include <stdlib.h>

#define DP_BUCKETS_MAX 3

struct bucket_state {
    struct holmes_bucket range;
    size_t block;             /* elements per rank */
    size_t tail_offset, tail; /* in the flat arrays */
    struct holmes_optimizer *own, *rest;
    struct holmes_op *block_op, *tail_op;
};

struct holmes_dp {
    struct holmes_stage *stage;
    struct holmes_links *links;
    struct bucket_state buckets[DP_BUCKETS_MAX];
    int count;
    struct holmes_op *embed_op;
    double *sum_squares; /* memory of the stage's kernels */
};

static size_t own_offset(const struct holmes_dp *d, const struct bucket_state *b)
{
    return b->range.offset + (size_t)d->links->dp->comm->rank * b->block;
}

static int add_bucket(struct holmes_dp *d, const struct holmes_adamw *hp, size_t offset,
                      size_t count, bool counted)
{
    size_t replicas = (size_t)d->links->dp->comm->size;
    struct bucket_state *b = &d->buckets[d->count];
    int rc = 0;

    if (count == 0)
        return 0;
    d->count++;
    b->range = (struct holmes_bucket){offset, count, counted};
    b->block = count / replicas;
    b->tail = count % replicas;
    b->tail_offset = offset + b->block * replicas;
    if (b->block > 0)
        rc = holmes_optimizer_create(d->stage, hp, own_offset(d, b), b->block, &b->own);
    if (rc == 0 && b->tail > 0)
        rc = holmes_optimizer_create(d->stage, hp, b->tail_offset, b->tail, &b->rest);
    return rc;
}

static int cut(struct holmes_dp *d, const struct holmes_adamw *hp)
{
    const struct holmes_tensor *tied = d->links->embed ? holmes_stage_tied(d->stage) : NULL;
    size_t total = holmes_stage_nparams(d->stage), end;
    int rc;

    if (!tied)
        return add_bucket(d, hp, 0, total, true);
    end = tied->offset + tied->count;
    rc = add_bucket(d, hp, end, total - end, true);
    if (rc == 0)
        rc = add_bucket(d, hp, tied->offset, tied->count, d->links->stage == 0);
    if (rc == 0)
        rc = add_bucket(d, hp, 0, tied->offset, true);
    return rc;
}

int holmes_dp_create(struct holmes_stage *stage, struct holmes_links *links,
                     const struct holmes_adamw *hp, struct holmes_dp **out)
{
    struct holmes_dp *d = calloc(1, sizeof *d);
    int rc;

    if (!d)
        return -ENOMEM;
    d->stage = stage;
    d->links = links;
    d->sum_squares = holmes_stage_kernels(stage)->alloc(sizeof *d->sum_squares);
    rc = d->sum_squares ? cut(d, hp) : -ENOMEM;
    if (rc != 0) {
        holmes_dp_destroy(d);
        return rc;
    }
    *out = d;
    return 0;
}

void holmes_dp_destroy(struct holmes_dp *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->count; i++) {
        holmes_optimizer_destroy(d->buckets[i].own);
        holmes_optimizer_destroy(d->buckets[i].rest);
    }
    holmes_stage_kernels(d->stage)->free(d->sum_squares);
    free(d);
}

int holmes_dp_nbuckets(const struct holmes_dp *d)
{
    return d->count;
}

const struct holmes_bucket *holmes_dp_bucket(const struct holmes_dp *d, int i)
{
    return &d->buckets[i].range;
}

static void own_part(const struct holmes_dp *d, struct holmes_optimizer *o, size_t offset,
                     size_t count, struct holmes_owned *out)
{
    *out = (struct holmes_owned){.offset = offset,
                                 .count = count,
                                 .w = holmes_stage_params(d->stage) + offset,
                                 .m = holmes_optimizer_first_moments(o),
                                 .v = holmes_optimizer_second_moments(o)};
}

/* Walks the blocks of this rank and, for `tails`, what is left over. Returns how many there are;
 * the i-th goes into *out. */
static int walk_parts(const struct holmes_dp *d, bool blocks, bool tails, int i,
                      struct holmes_owned *out)
{
    int n = 0;

    for (int k = 0; k < d->count; k++) {
        const struct bucket_state *b = &d->buckets[k];

        if (blocks && b->own && n++ == i)
            own_part(d, b->own, own_offset(d, b), b->block, out);
        if (tails && b->rest && n++ == i)
            own_part(d, b->rest, b->tail_offset, b->tail, out);
    }
    return n;
}

int holmes_dp_nowned(const struct holmes_dp *d)
{
    return walk_parts(d, true, d->links->dp->comm->rank == 0, -1, NULL);
}

void holmes_dp_owned(const struct holmes_dp *d, int i, struct holmes_owned *out)
{
    walk_parts(d, true, d->links->dp->comm->rank == 0, i, out);
}

int holmes_dp_nshared(const struct holmes_dp *d)
{
    return walk_parts(d, false, true, -1, NULL);
}

void holmes_dp_shared(const struct holmes_dp *d, int i, struct holmes_owned *out)
{
    walk_parts(d, false, true, i, out);
}

static int sum_tied(struct holmes_dp *d)
{
    const struct holmes_tensor *tied = holmes_stage_tied(d->stage);
    struct holmes_link *embed = d->links->embed;
    float *g = holmes_stage_grads(d->stage) + tied->offset;
    int rc =
        embed->comm->ops->all_reduce(embed->comm, g, g, tied->count, HOLMES_FLOAT32, &d->embed_op);

    return rc ? rc : holmes_links_wait(d->links, embed, &d->embed_op);
}

static int start_reduce(struct holmes_dp *d, struct bucket_state *b)
{
    struct holmes_comm *c = d->links->dp->comm;
    float *g = holmes_stage_grads(d->stage);
    int rc = 0;

    if (b->block > 0)
        rc = c->ops->reduce_scatter(c, g + b->range.offset, g + own_offset(d, b), b->block,
                                    HOLMES_FLOAT32, &b->block_op);
    if (rc == 0 && b->tail > 0)
        rc = c->ops->all_reduce(c, g + b->tail_offset, g + b->tail_offset, b->tail, HOLMES_FLOAT32,
                                &b->tail_op);
    return rc;
}

static int wait_bucket(struct holmes_dp *d, struct bucket_state *b)
{
    int rc = holmes_links_wait(d->links, d->links->dp, &b->block_op);

    return rc ? rc : holmes_links_wait(d->links, d->links->dp, &b->tail_op);
}

int holmes_dp_reduce(struct holmes_dp *d, double *sum_squares)
{
    const struct holmes_kernels *k = holmes_stage_kernels(d->stage);
    int rc = d->links->embed ? sum_tied(d) : 0;

    k->zero(d->sum_squares, sizeof *d->sum_squares);
    for (int i = 0; i < d->count && rc == 0; i++)
        rc = start_reduce(d, &d->buckets[i]);
    for (int i = 0; i < d->count && rc == 0; i++) {
        struct bucket_state *b = &d->buckets[i];

        rc = wait_bucket(d, b);
        if (rc != 0 || !b->range.counted)
            continue;
        holmes_stage_sum_squares(d->stage, own_offset(d, b), b->block, d->sum_squares);
        if (d->links->dp->comm->rank == 0)
            holmes_stage_sum_squares(d->stage, b->tail_offset, b->tail, d->sum_squares);
    }
    if (rc == 0)
        k->copy(sum_squares, d->sum_squares, sizeof *sum_squares);
    return rc;
}

static int start_gather(struct holmes_dp *d, struct bucket_state *b)
{
    struct holmes_comm *c = d->links->dp->comm;
    float *w = holmes_stage_params(d->stage);

    if (b->block == 0)
        return 0;
    return c->ops->all_gather(c, w + own_offset(d, b), w + b->range.offset, b->block,
                              HOLMES_FLOAT32, &b->block_op);
}

int holmes_dp_update(struct holmes_dp *d, float lr, float grad_scale, int t)
{
    int rc = 0;

    for (int i = 0; i < d->count && rc == 0; i++) {
        struct bucket_state *b = &d->buckets[i];

        if (b->own)
            holmes_optimizer_step(b->own, lr, grad_scale, t);
        if (b->rest)
            holmes_optimizer_step(b->rest, lr, grad_scale, t);
        rc = start_gather(d, b);
    }
    for (int i = 0; i < d->count && rc == 0; i++)
        rc = wait_bucket(d, &d->buckets[i]);
    return rc;
}
