/* Each bucket of n elements over D replicas is D blocks of floor(n/D), one per rank, reduced in
 * place, and a tail of less than D elements that every rank reduces and updates alike: no copy and
 * no padding. Buckets are cut where the tail is empty, but for the last one and a tied embedding.
 */
#include "dp.h"

#include <errno.h>
#include <stdlib.h>

#include "trace.h"

#define BUCKETS_AIM ((size_t)16)
#define BUCKET_MIN  ((size_t)1 << 20) /* bytes, when it is chosen here */
#define BUCKET_MAX  ((size_t)64 << 20)

struct bucket_state {
    struct holmes_bucket range;
    size_t block;             /* elements per rank */
    size_t tail_offset, tail; /* in the flat arrays */
    struct holmes_optimizer *own, *rest;
    struct holmes_op *block_op, *tail_op;
    size_t missing; /* elements that backward is not done with */
    bool gathering; /* its new weights are on their way */
};

struct holmes_dp {
    struct holmes_dp_attr attr;
    struct bucket_state *buckets; /* in the order in which they are reduced */
    int count, room;
    int tied;     /* index of the tied embedding's bucket, the last, or -1 */
    bool armed;   /* the backward that runs is the last of the step */
    int started;  /* buckets whose reduction is under way or over */
    int settling; /* buckets that are being gathered */
    struct holmes_op *embed_op;
    bool embed_started;
    double *sum_squares; /* memory of the stage's kernels */
};

static struct holmes_comm *comm_of(const struct holmes_dp *d)
{
    return d->attr.links->dp->comm;
}

static size_t own_offset(const struct holmes_dp *d, const struct bucket_state *b)
{
    return b->range.offset + (size_t)comm_of(d)->rank * b->block;
}

/* ---- cutting ---- */

static int add_bucket(struct holmes_dp *d, size_t offset, size_t count, bool counted)
{
    size_t replicas = (size_t)comm_of(d)->size;
    struct bucket_state *b;
    int rc = 0;

    if (count == 0)
        return 0;
    if (d->count == d->room) {
        int room = d->room ? 2 * d->room : 16;

        b = realloc(d->buckets, (size_t)room * sizeof *b);
        if (!b)
            return -ENOMEM;
        d->buckets = b;
        d->room = room;
    }
    b = &d->buckets[d->count++];
    *b = (struct bucket_state){.range = {offset, count, counted},
                               .block = count / replicas,
                               .tail = count % replicas,
                               .tail_offset = offset + count / replicas * replicas};
    if (b->block > 0)
        rc = holmes_optimizer_create(d->attr.stage, &d->attr.hp, own_offset(d, b), b->block,
                                     &b->own);
    if (rc == 0 && b->tail > 0)
        rc = holmes_optimizer_create(d->attr.stage, &d->attr.hp, b->tail_offset, b->tail, &b->rest);
    return rc;
}

size_t holmes_dp_bucket_bytes(size_t nparams, size_t asked)
{
    size_t bytes = nparams * sizeof(float) / BUCKETS_AIM;

    if (asked > 0)
        return asked;
    return bytes < BUCKET_MIN ? BUCKET_MIN : bytes > BUCKET_MAX ? BUCKET_MAX : bytes;
}

static size_t bucket_elements(const struct holmes_dp *d)
{
    size_t nparams = holmes_stage_nparams(d->attr.stage);
    size_t bytes = holmes_dp_bucket_bytes(nparams, d->attr.bucket_bytes);

    return bytes / sizeof(float) > 0 ? bytes / sizeof(float) : 1;
}

/* Cuts [from, to) from its end, at the first tensor below which a bucket has its size; a few
 * elements of that tensor are left to the next bucket so that the replicas' blocks are equal. A
 * tensor of several sizes is cut inside too: all of it is ready at once, but what is first summed
 * can first be updated and gathered. */
static int cut_range(struct holmes_dp *d, size_t from, size_t to)
{
    const size_t aim = bucket_elements(d), replicas = (size_t)comm_of(d)->size;
    int rc = 0;

    for (int i = holmes_stage_ntensors(d->attr.stage) - 1; i >= 0 && rc == 0; i--) {
        size_t start = holmes_stage_tensor(d->attr.stage, i)->offset;

        if (start < from)
            start = from;
        while (rc == 0 && start < to && to - start >= (start > from ? aim : 2 * aim)) {
            size_t count = to - start < 2 * aim ? to - start : aim;

            count -= count % replicas;
            if (count == 0)
                break;
            rc = add_bucket(d, to - count, count, true);
            to -= count;
        }
    }
    return rc ? rc : add_bucket(d, from, to - from, true);
}

static int cut(struct holmes_dp *d)
{
    const struct holmes_links *l = d->attr.links;
    const struct holmes_tensor *tied = l->embed ? holmes_stage_tied(d->attr.stage) : NULL;
    size_t total = holmes_stage_nparams(d->attr.stage);
    int rc;

    d->tied = -1;
    if (!tied)
        return cut_range(d, 0, total);
    rc = cut_range(d, tied->offset + tied->count, total);
    if (rc == 0)
        rc = cut_range(d, 0, tied->offset);
    d->tied = d->count;
    return rc ? rc : add_bucket(d, tied->offset, tied->count, l->stage == 0);
}

/* ---- reducing ---- */

static int start_reduce(struct holmes_dp *d, struct bucket_state *b)
{
    struct holmes_comm *c = comm_of(d);
    float *g = holmes_stage_grads(d->attr.stage);
    int number = d->attr.number + (int)(b - d->buckets), rc = 0;

    if (b->block > 0) {
        holmes_trace_name_next("reduce-scatter %d", number);
        rc = c->ops->reduce_scatter(c, g + b->range.offset, g + own_offset(d, b), b->block,
                                    HOLMES_FLOAT32, &b->block_op);
    }
    if (rc == 0 && b->tail > 0) {
        holmes_trace_name_next("reduce-scatter %d tail", number);
        rc = c->ops->all_reduce(c, g + b->tail_offset, g + b->tail_offset, b->tail, HOLMES_FLOAT32,
                                &b->tail_op);
    }
    return rc;
}

/* What is queued after this comes after the bucket's operations. */
static int follow_bucket(struct holmes_dp *d, struct bucket_state *b)
{
    struct holmes_links *l = d->attr.links;
    int rc = holmes_links_follow(l, l->dp, &b->block_op);

    return rc ? rc : holmes_links_follow(l, l->dp, &b->tail_op);
}

static int start_tied(struct holmes_dp *d)
{
    const struct bucket_state *b = &d->buckets[d->tied];
    struct holmes_comm *c = d->attr.links->embed->comm;
    float *g = holmes_stage_grads(d->attr.stage) + b->range.offset;

    d->embed_started = true;
    holmes_trace_name_next("tied");
    return c->ops->all_reduce(c, g, g, b->range.count, HOLMES_FLOAT32, &d->embed_op);
}

/* Starts what is ready. All replicas have to start their operations in one order, so that a bucket
 * waits for those before it; the tied one, which waits for another stage, comes last. */
static int start_ready(struct holmes_dp *d)
{
    int own = d->tied >= 0 ? d->tied : d->count, rc = 0;

    while (rc == 0 && d->started < own && d->buckets[d->started].missing == 0)
        rc = start_reduce(d, &d->buckets[d->started++]);
    if (rc == 0 && d->tied >= 0 && !d->embed_started && d->buckets[d->tied].missing == 0)
        rc = start_tied(d);
    return rc;
}

static size_t common(size_t a, size_t a_count, size_t b, size_t b_count)
{
    size_t from = a > b ? a : b, to = a + a_count < b + b_count ? a + a_count : b + b_count;

    return from < to ? to - from : 0;
}

/* The stage's hook: backward adds no more to these gradients. */
static int gradients_done(void *ctx, size_t offset, size_t count)
{
    struct holmes_dp *d = ctx;

    if (!d->armed)
        return 0;
    for (int i = d->started; i < d->count; i++) {
        struct bucket_state *b = &d->buckets[i];
        size_t n = common(offset, count, b->range.offset, b->range.count);

        if (n > b->missing)
            return -EINVAL;
        b->missing -= n;
    }
    return start_ready(d);
}

void holmes_dp_last_backward(struct holmes_dp *d)
{
    d->armed = d->attr.overlap;
}

static void add_squares(const struct holmes_dp *d, const struct bucket_state *b)
{
    struct holmes_stage *s = d->attr.stage;
    uint64_t begin = holmes_trace_begin();

    if (!b->range.counted)
        return;
    holmes_stage_sum_squares(s, own_offset(d, b), b->block, d->sum_squares);
    if (comm_of(d)->rank == 0)
        holmes_stage_sum_squares(s, b->tail_offset, b->tail, d->sum_squares);
    holmes_trace_end(begin, "compute", "norm %d", d->attr.number + (int)(b - d->buckets));
}

/* All of it, whatever the hook has seen: a stage with nothing to do calls none. */
static int start_rest(struct holmes_dp *d)
{
    struct holmes_links *l = d->attr.links;
    int rc;

    d->armed = false;
    for (int i = d->started; i < d->count; i++)
        d->buckets[i].missing = 0;
    rc = start_ready(d);
    if (rc == 0 && d->tied >= 0)
        rc = holmes_links_follow(l, l->embed, &d->embed_op);
    if (rc == 0 && d->tied >= 0)
        rc = start_reduce(d, &d->buckets[d->started++]);
    return rc;
}

int holmes_dp_reduce(struct holmes_dp *d)
{
    const struct holmes_kernels *k = holmes_stage_kernels(d->attr.stage);
    int rc = start_rest(d);

    k->zero(d->sum_squares, sizeof *d->sum_squares);
    for (int i = 0; i < d->count && rc == 0; i++) {
        struct bucket_state *b = &d->buckets[i];

        rc = follow_bucket(d, b);
        if (rc == 0)
            add_squares(d, b);
        b->missing = b->range.count; /* for the next step */
    }
    d->started = 0;
    d->embed_started = false;
    return rc;
}

int holmes_dp_take_squares(struct holmes_dp *d, double *sum_squares)
{
    const struct holmes_kernels *k = holmes_stage_kernels(d->attr.stage);
    int rc = holmes_links_drain(d->attr.links);

    if (rc == 0)
        k->copy(sum_squares, d->sum_squares, sizeof *sum_squares);
    return rc;
}

/* ---- updating ---- */

static int start_gather(struct holmes_dp *d, struct bucket_state *b)
{
    const struct holmes_kernels *k = holmes_stage_kernels(d->attr.stage);
    const size_t real = holmes_dtype_size(k->dtype);
    struct holmes_comm *c = comm_of(d);
    char *w = holmes_stage_weights(d->attr.stage);

    if (b->block == 0)
        return 0;
    b->gathering = true;
    d->settling++;
    holmes_trace_name_next("all-gather %d", d->attr.number + (int)(b - d->buckets));
    return c->ops->all_gather(c, w + own_offset(d, b) * real, w + b->range.offset * real, b->block,
                              k->dtype, &b->block_op);
}

static int follow_gather(struct holmes_dp *d, struct bucket_state *b)
{
    if (!b->gathering)
        return 0;
    b->gathering = false;
    d->settling--;
    return follow_bucket(d, b);
}

static int update_bucket(struct holmes_dp *d, struct bucket_state *b, float lr, float grad_scale,
                         int t)
{
    uint64_t begin = holmes_trace_begin();

    if (b->own)
        holmes_optimizer_step(b->own, lr, grad_scale, t);
    if (b->rest)
        holmes_optimizer_step(b->rest, lr, grad_scale, t);
    holmes_trace_end(begin, "compute", "adamw %d", d->attr.number + (int)(b - d->buckets));
    return start_gather(d, b);
}

/* In the order in which the next forward reads them: from the first layer on. */
int holmes_dp_update(struct holmes_dp *d, float lr, float grad_scale, int t)
{
    bool tied_first = d->tied >= 0 && d->attr.links->stage == 0;
    int rc = 0;

    if (tied_first)
        rc = update_bucket(d, &d->buckets[d->tied], lr, grad_scale, t);
    for (int i = d->count - 1; i >= 0 && rc == 0; i--)
        if (i != d->tied)
            rc = update_bucket(d, &d->buckets[i], lr, grad_scale, t);
    if (rc == 0 && d->tied >= 0 && !tied_first)
        rc = update_bucket(d, &d->buckets[d->tied], lr, grad_scale, t);
    return rc || d->attr.overlap ? rc : holmes_dp_settle(d);
}

/* The stage's hook: forward is about to read these weights. */
static int weights_needed(void *ctx, size_t offset, size_t count)
{
    struct holmes_dp *d = ctx;
    int rc = 0;

    for (int i = d->count - 1; i >= 0 && rc == 0 && d->settling > 0; i--) {
        struct bucket_state *b = &d->buckets[i];

        if (common(offset, count, b->range.offset, b->range.count) > 0)
            rc = follow_gather(d, b);
    }
    return rc;
}

int holmes_dp_settle(struct holmes_dp *d)
{
    int rc = weights_needed(d, 0, holmes_stage_nparams(d->attr.stage));

    return rc ? rc : holmes_links_drain(d->attr.links);
}

/* The stage's hook: weights were set, and masters of this rank's part have to follow. */
static void weights_set(void *ctx, size_t offset, size_t count, const float *values)
{
    const struct holmes_dp *d = ctx;

    for (int i = 0; i < d->count; i++) {
        if (d->buckets[i].own)
            holmes_optimizer_set_masters(d->buckets[i].own, offset, count, values);
        if (d->buckets[i].rest)
            holmes_optimizer_set_masters(d->buckets[i].rest, offset, count, values);
    }
}

/* ---- life ---- */

int holmes_dp_create(const struct holmes_dp_attr *attr, struct holmes_dp **out)
{
    struct holmes_stage_hooks hooks = {
        .need = weights_needed, .done = gradients_done, .set = weights_set};
    struct holmes_dp *d = calloc(1, sizeof *d);
    int rc;

    if (!d)
        return -ENOMEM;
    d->attr = *attr;
    d->sum_squares = holmes_stage_kernels(attr->stage)->alloc(sizeof *d->sum_squares);
    rc = d->sum_squares ? cut(d) : -ENOMEM;
    if (rc != 0) {
        holmes_dp_destroy(d);
        return rc;
    }
    for (int i = 0; i < d->count; i++)
        d->buckets[i].missing = d->buckets[i].range.count;
    hooks.ctx = d;
    holmes_stage_set_hooks(attr->stage, &hooks);
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
    holmes_stage_kernels(d->attr.stage)->free(d->sum_squares);
    free(d->buckets);
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

void holmes_dp_set_overlap(struct holmes_dp *d, bool overlap)
{
    d->attr.overlap = overlap;
}

/* ---- who owns what ---- */

static void own_part(struct holmes_optimizer *o, size_t offset, size_t count,
                     struct holmes_owned *out)
{
    *out = (struct holmes_owned){.offset = offset,
                                 .count = count,
                                 .w = holmes_optimizer_masters(o),
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
            own_part(b->own, own_offset(d, b), b->block, out);
        if (tails && b->rest && n++ == i)
            own_part(b->rest, b->tail_offset, b->tail, out);
    }
    return n;
}

int holmes_dp_nowned(const struct holmes_dp *d)
{
    return walk_parts(d, true, comm_of(d)->rank == 0, -1, NULL);
}

void holmes_dp_owned(const struct holmes_dp *d, int i, struct holmes_owned *out)
{
    walk_parts(d, true, comm_of(d)->rank == 0, i, out);
}

int holmes_dp_nshared(const struct holmes_dp *d)
{
    return walk_parts(d, false, true, -1, NULL);
}

void holmes_dp_shared(const struct holmes_dp *d, int i, struct holmes_owned *out)
{
    walk_parts(d, false, true, i, out);
}
