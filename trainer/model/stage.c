/* A stage as a whole: what it is made of, and its forward and backward from the embedding or the
 * previous stage to the loss or the next. */
#include "stage_priv.h"
#include "trace.h"

#include "log.h"
#include "random.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Life */

static int check_layers(const struct holmes_stage_attr *a, char *why, size_t why_len)
{
    if (a->first_layer < 0 || a->first_layer > a->last_layer || a->last_layer > a->model.layers)
        return snprintf(why, why_len, "layers [%d, %d) are no range of the model's %d",
                        a->first_layer, a->last_layer, a->model.layers);
    if (a->is_first && a->first_layer != 0)
        return snprintf(why, why_len, "the first stage starts at layer %d instead of 0",
                        a->first_layer);
    if (a->is_last && a->last_layer != a->model.layers)
        return snprintf(why, why_len, "the last stage ends at layer %d instead of %d",
                        a->last_layer, a->model.layers);
    if (a->first_layer == a->last_layer && !a->is_first && !a->is_last)
        return snprintf(why, why_len, "a stage between others has no layers");
    return 0;
}

static int check_group(const struct holmes_stage_attr *a, char *why, size_t why_len)
{
    const struct holmes_stage_group *g = a->group;

    if (!g)
        return 0;
    if (g->size < 1 || g->rank < 0 || g->rank >= g->size)
        return snprintf(why, why_len, "rank %d is none of a tensor group of %d", g->rank, g->size);
    if (a->model.heads % g->size != 0)
        return snprintf(why, why_len, "%d heads cannot be shared by a tensor group of %d",
                        a->model.heads, g->size);
    if (a->model.vocab < g->size)
        return snprintf(why, why_len, "a vocabulary of %d cannot be shared by a tensor group of %d",
                        a->model.vocab, g->size);
    return 0;
}

static int check_attr(const struct holmes_stage_attr *a)
{
    char why[160] = "";

    if (holmes_model_check(&a->model, why, sizeof why) != 0 ||
        check_layers(a, why, sizeof why) != 0 || check_group(a, why, sizeof why) != 0)
        ;
    else if (a->batch < 1 || a->batch > INT_MAX / a->model.seq_len)
        snprintf(why, sizeof why, "batch is %d; it must be between 1 and %d", a->batch,
                 INT_MAX / a->model.seq_len);
    else if (a->slots < 1 || a->slots > 1 << 20)
        snprintf(why, sizeof why, "slots is %d; it must be between 1 and %d", a->slots, 1 << 20);
    if (!why[0])
        return 0;
    holmes_warn(TRAIN, "stage: %s", why);
    return -EINVAL;
}

/* Laid out, without memory for any of it. */
static int stage_plan(const struct holmes_stage_attr *attr, struct holmes_stage **out)
{
    struct holmes_stage *s;
    int rc = check_attr(attr);

    if (rc != 0)
        return rc;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->attr = *attr;
    s->attr.group = NULL;
    s->group = attr->group ? *attr->group : (struct holmes_stage_group){.size = 1};
    s->k = attr->kernels;
    s->real = holmes_dtype_size(s->k->dtype);
    s->rows = attr->batch * attr->model.seq_len;
    s->nblocks = attr->last_layer - attr->first_layer;
    rc = stage_layout(s);
    if (rc != 0)
        holmes_stage_destroy(s);
    else
        *out = s;
    return rc;
}

int holmes_stage_create(const struct holmes_stage_attr *attr, struct holmes_stage **out)
{
    struct holmes_stage *s = NULL;
    int rc = stage_plan(attr, &s);

    if (rc == 0)
        rc = stage_take_memory(s);
    if (rc == -ENOMEM)
        holmes_warn(TRAIN, "stage: no memory for %zu parameters and %d microbatches of %d tokens",
                    s ? s->nparams : 0, attr->slots, attr->batch * attr->model.seq_len);
    if (rc != 0)
        holmes_stage_destroy(s);
    else
        *out = s;
    return rc;
}

int holmes_stage_measure(const struct holmes_stage_attr *attr, struct holmes_stage_memory *out,
                         size_t *nparams)
{
    struct holmes_stage *s;
    int rc = stage_plan(attr, &s);

    if (rc != 0)
        return rc;
    *out = holmes_stage_memory(s);
    *nparams = s->nparams;
    holmes_stage_destroy(s);
    return 0;
}

void holmes_stage_destroy(struct holmes_stage *s)
{
    if (!s)
        return;
    s->k->free(s->arena);
    s->k->free(s->grads);
    s->k->free(s->weights);
    free(s->slot_blocks);
    free(s->slots);
    free(s->blocks);
    free(s->tensors);
    free(s);
}

static void init_tensor(struct holmes_stage *s, const struct stage_tensor *st, uint64_t seed)
{
    const uint64_t key = holmes_random_key(seed, st->t.name, strlen(st->t.name));
    float chunk[1024];
    const size_t chunk_count = sizeof chunk / sizeof chunk[0];

    for (size_t first = 0; first < st->t.count;) {
        size_t whole, run = holmes_tensor_run(&st->t, first, &whole);
        const size_t n = run < chunk_count ? run : chunk_count;

        for (size_t i = 0; i < n; i++) {
            const double z = st->std > 0 ? holmes_random_normal(key, whole + i) : 0;

            chunk[i] = (float)(st->mean + st->std * z);
        }
        holmes_stage_set_weights(s, st->t.offset + first, n, chunk);
        first += n;
    }
}

void holmes_stage_init_params(struct holmes_stage *s, uint64_t seed)
{
    for (int i = 0; i < s->ntensors; i++)
        init_tensor(s, &s->tensors[i], seed);
}

/* The table rounds, so that the results are those of its adamw, and wants memory of its own for it:
 * the gradients are at hand. */
void holmes_stage_set_weights(struct holmes_stage *s, size_t offset, size_t count,
                              const float *values)
{
    char *weights = (char *)s->weights + offset * s->real;

    if (s->k->dtype == HOLMES_FLOAT32) {
        s->k->copy(weights, values, count * sizeof *values);
    } else {
        s->k->copy(s->grads + offset, values, count * sizeof *values);
        s->k->convert(weights, s->grads + offset, count);
    }
    if (s->hooks.set)
        s->hooks.set(s->hooks.ctx, offset, count, values);
}

/* What it is made of */

const struct holmes_kernels *holmes_stage_kernels(const struct holmes_stage *s)
{
    return s->k;
}

size_t holmes_stage_nparams(const struct holmes_stage *s)
{
    return s->nparams;
}

void *holmes_stage_weights(struct holmes_stage *s)
{
    return s->weights;
}

float *holmes_stage_grads(struct holmes_stage *s)
{
    return s->grads;
}

struct holmes_stage_memory holmes_stage_memory(const struct holmes_stage *s)
{
    return (struct holmes_stage_memory){.parameters = s->nparams * s->real,
                                        .gradients = s->nparams * sizeof(float),
                                        .activations = s->arena_bytes};
}

int holmes_stage_ntensors(const struct holmes_stage *s)
{
    return s->ntensors;
}

const struct holmes_tensor *holmes_stage_tensor(const struct holmes_stage *s, int i)
{
    return &s->tensors[i].t;
}

const struct holmes_tensor *holmes_stage_tied(const struct holmes_stage *s)
{
    return s->tied < 0 ? NULL : &s->tensors[s->tied].t;
}

void holmes_stage_sum_squares(struct holmes_stage *s, size_t offset, size_t count, double *sum)
{
    const size_t end = offset + count;

    /* One call for neighbours that count, as far as they go. */
    for (int i = 0; i < s->ntensors && offset < end;) {
        const struct holmes_tensor *t = &s->tensors[i].t;
        const bool counts = s->group.rank == 0 || !t->shared;
        size_t stop;

        do
            stop = s->tensors[i].t.offset + s->tensors[i].t.count;
        while (++i < s->ntensors && (s->group.rank == 0 || !s->tensors[i].t.shared) == counts);
        if (stop <= offset)
            continue;
        stop = stop < end ? stop : end;
        if (counts)
            s->k->sum_squares(sum, s->grads + offset, stop - offset);
        offset = stop;
    }
}

void holmes_stage_set_hooks(struct holmes_stage *s, const struct holmes_stage_hooks *h)
{
    s->hooks = h ? *h : (struct holmes_stage_hooks){0};
}

/* Forward */

static int need(struct holmes_stage *s, const struct range *r)
{
    return s->hooks.need ? s->hooks.need(s->hooks.ctx, r->offset, r->count) : 0;
}

/* The residual stream before block i, or after the last one. */
static void *stream_at(struct holmes_stage *s, struct slot *slot, int i, void *out)
{
    if (i < s->nblocks)
        return slot->blocks[i].in;
    return s->attr.is_last ? slot->final : out;
}

static bool tokens_fit(const int32_t *tokens, int n, int vocab)
{
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return false;
    return true;
}

static int check_forward(const struct holmes_stage *s, int slot, const int32_t *tokens,
                         const int32_t *targets, const void *in, const void *out)
{
    const int V = s->attr.model.vocab;

    if (slot < 0 || slot >= s->attr.slots)
        return -EINVAL;
    if (s->attr.is_first ? !tokens || !tokens_fit(tokens, s->rows, V) : !in)
        return -EINVAL;
    if (s->attr.is_last ? !targets || !tokens_fit(targets, s->rows, V) : !out)
        return -EINVAL;
    return 0;
}

static size_t stream_bytes(const struct holmes_stage *s)
{
    return (size_t)s->rows * (size_t)s->attr.model.channels * s->real;
}

static int start_forward(struct holmes_stage *s, struct slot *slot, const int32_t *tokens,
                         const void *in, void *stream)
{
    uint64_t begin;
    int rc;

    if (!s->attr.is_first) {
        s->k->copy(stream, in, stream_bytes(s));
        return 0;
    }
    rc = need(s, &s->embedding);
    if (rc != 0)
        return rc;
    begin = holmes_trace_begin();
    s->k->copy(slot->tokens, tokens, (size_t)s->rows * sizeof *tokens);
    rc = stage_embedding_forward(s, slot, stream);
    holmes_trace_end(begin, "compute", "embedding");
    return rc;
}

static int end_forward(struct holmes_stage *s, struct slot *slot, const int32_t *targets)
{
    int rc = need(s, &s->end);
    uint64_t begin = holmes_trace_begin();

    if (rc != 0)
        return rc;
    s->k->copy(slot->targets, targets, (size_t)s->rows * sizeof *targets);
    rc = stage_head_forward(s, slot);
    holmes_trace_end(begin, "compute", "head");
    return rc;
}

int holmes_stage_forward(struct holmes_stage *s, int slot_index, const int32_t *tokens,
                         const int32_t *targets, const void *in, void *out)
{
    int rc = check_forward(s, slot_index, tokens, targets, in, out);

    if (rc != 0)
        return rc;

    struct slot *slot = &s->slots[slot_index];

    slot->filled = false;
    rc = start_forward(s, slot, tokens, in, stream_at(s, slot, 0, out));
    for (int i = 0; i < s->nblocks && rc == 0; i++) {
        uint64_t begin;

        rc = need(s, &s->blocks[i].range);
        begin = holmes_trace_begin();
        if (rc == 0)
            rc = stage_block_forward(s, &s->blocks[i], &slot->blocks[i],
                                     stream_at(s, slot, i + 1, out));
        holmes_trace_end(begin, "compute", "layer %d", s->attr.first_layer + i);
    }
    if (rc == 0 && s->attr.is_last)
        rc = end_forward(s, slot, targets);
    slot->filled = rc == 0;
    return rc;
}

void holmes_stage_take_loss(struct holmes_stage *s, double *sum)
{
    double rows = 0;

    if (s->attr.is_last) {
        s->k->copy(&rows, s->loss, sizeof rows);
        s->k->zero(s->loss, sizeof *s->loss);
    }
    *sum = rows / s->rows;
}

/* Backward */

static int done(struct holmes_stage *s, const struct range *r)
{
    return s->hooks.done ? s->hooks.done(s->hooks.ctx, r->offset, r->count) : 0;
}

static int start_backward(struct holmes_stage *s, struct slot *slot, const void *dout,
                          void *dstream, float loss_scale)
{
    uint64_t begin = holmes_trace_begin();
    int rc;

    if (s->attr.is_last) {
        rc = stage_head_backward(s, slot, dstream, loss_scale);
        holmes_trace_end(begin, "compute", "head");
        return rc ? rc : done(s, &s->end);
    }
    if (dstream != dout)
        s->k->copy(dstream, dout, stream_bytes(s));
    return 0;
}

int holmes_stage_backward(struct holmes_stage *s, int slot_index, const void *dout, void *din,
                          float loss_scale)
{
    void *dstream = s->attr.is_first ? s->dstream : din;
    int rc;

    if (slot_index < 0 || slot_index >= s->attr.slots || !s->slots[slot_index].filled || !dstream ||
        (!s->attr.is_last && !dout))
        return -EINVAL;

    struct slot *slot = &s->slots[slot_index];

    slot->filled = false;
    rc = start_backward(s, slot, dout, dstream, loss_scale);
    for (int i = s->nblocks - 1; i >= 0 && rc == 0; i--) {
        uint64_t begin = holmes_trace_begin();

        rc = stage_block_backward(s, &s->blocks[i], &slot->blocks[i], dstream);
        holmes_trace_end(begin, "compute", "layer %d", s->attr.first_layer + i);
        if (rc == 0)
            rc = done(s, &s->blocks[i].range);
    }
    if (rc == 0 && s->attr.is_first) {
        uint64_t begin = holmes_trace_begin();

        stage_embedding_backward(s, slot, dstream);
        holmes_trace_end(begin, "compute", "embedding");
        rc = done(s, &s->embedding);
    }
    return rc;
}
