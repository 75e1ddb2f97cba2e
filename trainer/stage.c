/* Forward and backward of the layers one rank holds. All memory is laid out once: parameters and
 * gradients as two flat arrays in the order of the forward pass, the activations that backward
 * needs once per slot, and the scratch that slots share. */
#include "stage.h"

#include "log.h"
#include "random.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define INIT_STD 0.02

struct norm {
    size_t weight, bias; /* offsets in the flat arrays; (C), (C) */
};

struct linear {
    size_t weight, bias; /* (out, in), (out) */
    int in, out;
};

struct block {
    struct norm ln_1, ln_2;
    struct linear qkv, attn_proj, fc, mlp_proj;
};

/* What a norm leaves for its backward. */
struct norm_acts {
    float *out, *mean, *rstd; /* (B, T, C), (B, T), (B, T) */
};

struct block_acts {
    float *in; /* (B, T, C): the residual stream before the block */
    struct norm_acts ln_1;
    float *qkv;       /* (B, T, 3C) */
    float *lse;       /* (B, H, T): of attention */
    float *attention; /* (B, T, C), before its projection */
    float *mid;       /* (B, T, C): the residual stream after attention */
    struct norm_acts ln_2;
    float *fc, *gelu; /* (B, T, 4C) */
};

struct slot {
    bool filled;               /* by a forward whose backward is to come */
    int32_t *tokens, *targets; /* (B, T) */
    struct block_acts *blocks;
    float *final; /* (B, T, C): the residual stream before ln_f */
    struct norm_acts ln_f;
    float *logits; /* (B, T, V), then their gradient */
    float *lse;    /* (B, T): of the logits */
};

struct stage_tensor {
    struct holmes_tensor t;
    double mean, std; /* at initialisation */
};

struct holmes_stage {
    struct holmes_stage_attr attr;
    const struct holmes_kernels *k;
    int rows; /* B * T */
    int nblocks;

    struct stage_tensor *tensors;
    int ntensors;
    size_t nparams;
    float *params, *grads;
    int tied; /* index of wte in `tensors` when tied, else -1 */

    size_t wte, wpe, head; /* offsets */
    struct norm ln_f;
    struct block *blocks;

    struct slot *slots;
    struct block_acts *slot_blocks; /* (slots, nblocks) */
    void *arena;                    /* everything below and in the slots */
    float *branch;                  /* (B, T, C): what a branch adds to the residual stream */
    float *dstream; /* (B, T, C): gradient of the stream where the caller has none */
    float *dbranch; /* (B, T, C) */
    float *dwide;   /* (B, T, 4C): of fc and gelu; of qkv */
    void *attention_scratch;
    float *stats; /* (3, B, T): of the logits */
    double *loss;
};

/* Tensors */

static size_t add_tensor(struct holmes_stage *s, const char *name, size_t count, bool decay,
                         double mean, double std)
{
    struct stage_tensor *st = &s->tensors[s->ntensors++];

    snprintf(st->t.name, sizeof st->t.name, "%s", name);
    st->t.offset = s->nparams;
    st->t.count = count;
    st->t.decay = decay;
    st->mean = mean;
    st->std = std;
    s->nparams += count;
    return st->t.offset;
}

static struct norm add_norm(struct holmes_stage *s, const char *prefix)
{
    const size_t C = (size_t)s->attr.model.channels;
    char name[64];
    struct norm n;

    snprintf(name, sizeof name, "%s.weight", prefix);
    n.weight = add_tensor(s, name, C, false, 1, 0);
    snprintf(name, sizeof name, "%s.bias", prefix);
    n.bias = add_tensor(s, name, C, false, 0, 0);
    return n;
}

static struct linear add_linear(struct holmes_stage *s, const char *prefix, int in, int out,
                                double std)
{
    struct linear l = {.in = in, .out = out};
    char name[64];

    snprintf(name, sizeof name, "%s.weight", prefix);
    l.weight = add_tensor(s, name, (size_t)in * (size_t)out, true, 0, std);
    snprintf(name, sizeof name, "%s.bias", prefix);
    l.bias = add_tensor(s, name, (size_t)out, false, 0, 0);
    return l;
}

static struct block add_block(struct holmes_stage *s, int layer)
{
    const int C = s->attr.model.channels;
    const double residual_std = INIT_STD / sqrt(2.0 * s->attr.model.layers);
    struct block b;
    char prefix[48];

    snprintf(prefix, sizeof prefix, "h.%d.ln_1", layer);
    b.ln_1 = add_norm(s, prefix);
    snprintf(prefix, sizeof prefix, "h.%d.attn.qkv", layer);
    b.qkv = add_linear(s, prefix, C, 3 * C, INIT_STD);
    snprintf(prefix, sizeof prefix, "h.%d.attn.proj", layer);
    b.attn_proj = add_linear(s, prefix, C, C, residual_std);
    snprintf(prefix, sizeof prefix, "h.%d.ln_2", layer);
    b.ln_2 = add_norm(s, prefix);
    snprintf(prefix, sizeof prefix, "h.%d.mlp.fc", layer);
    b.fc = add_linear(s, prefix, C, 4 * C, INIT_STD);
    snprintf(prefix, sizeof prefix, "h.%d.mlp.proj", layer);
    b.mlp_proj = add_linear(s, prefix, 4 * C, C, residual_std);
    return b;
}

static void add_tensors(struct holmes_stage *s)
{
    const struct holmes_stage_attr *a = &s->attr;
    const size_t C = (size_t)a->model.channels, V = (size_t)a->model.vocab;

    s->tied = -1;
    if (a->is_first) {
        s->tied = a->model.tied ? s->ntensors : -1;
        s->wte = add_tensor(s, "wte.weight", V * C, true, 0, INIT_STD);
        s->wpe = add_tensor(s, "wpe.weight", (size_t)a->model.seq_len * C, true, 0, INIT_STD);
    }
    for (int i = 0; i < s->nblocks; i++)
        s->blocks[i] = add_block(s, a->first_layer + i);
    if (!a->is_last)
        return;
    s->ln_f = add_norm(s, "ln_f");
    if (!a->model.tied) {
        s->head = add_tensor(s, "lm_head.weight", V * C, true, 0, INIT_STD);
    } else if (a->is_first) {
        s->head = s->wte;
    } else {
        s->tied = s->ntensors;
        s->head = add_tensor(s, "wte.weight", V * C, true, 0, INIT_STD);
    }
}

/* Memory */

/* Laid out twice: without a base to learn the size, then for good. */
struct arena {
    char *base;
    size_t used;
    bool overflow;
};

static void *carve(struct arena *a, size_t rows, size_t width)
{
    const size_t align = 64;
    size_t count, bytes;
    char *p = a->base ? a->base + a->used : NULL;

    if (__builtin_mul_overflow(rows, width, &count) ||
        __builtin_mul_overflow(count, sizeof(float), &bytes) ||
        __builtin_add_overflow(bytes, align - 1, &bytes) ||
        __builtin_add_overflow(a->used, bytes / align * align, &a->used))
        a->overflow = true;
    return p;
}

static struct norm_acts carve_norm(struct arena *a, size_t rows, size_t C)
{
    return (struct norm_acts){
        .out = carve(a, rows, C), .mean = carve(a, rows, 1), .rstd = carve(a, rows, 1)};
}

static void carve_block(const struct holmes_stage *s, struct arena *a, struct block_acts *b)
{
    const struct holmes_model *m = &s->attr.model;
    const size_t N = (size_t)s->rows, C = (size_t)m->channels;

    b->in = carve(a, N, C);
    b->ln_1 = carve_norm(a, N, C);
    b->qkv = carve(a, N, 3 * C);
    b->lse = carve(a, N, (size_t)m->heads);
    b->attention = carve(a, N, C);
    b->mid = carve(a, N, C);
    b->ln_2 = carve_norm(a, N, C);
    b->fc = carve(a, N, 4 * C);
    b->gelu = carve(a, N, 4 * C);
}

static void carve_slot(const struct holmes_stage *s, struct arena *a, struct slot *slot)
{
    const struct holmes_model *m = &s->attr.model;
    const size_t N = (size_t)s->rows, C = (size_t)m->channels;

    if (s->attr.is_first)
        slot->tokens = carve(a, N, 1);
    for (int i = 0; i < s->nblocks; i++)
        carve_block(s, a, &slot->blocks[i]);
    if (!s->attr.is_last)
        return;
    slot->targets = carve(a, N, 1);
    slot->final = carve(a, N, C);
    slot->ln_f = carve_norm(a, N, C);
    slot->logits = carve(a, N, (size_t)m->vocab);
    slot->lse = carve(a, N, 1);
}

static void carve_all(struct holmes_stage *s, struct arena *a)
{
    const struct holmes_model *m = &s->attr.model;
    const size_t N = (size_t)s->rows, C = (size_t)m->channels;
    const size_t attention_scratch =
        s->k->attention_scratch(s->attr.batch, m->seq_len, m->channels, m->heads);

    for (int i = 0; i < s->attr.slots; i++)
        carve_slot(s, a, &s->slots[i]);
    if (s->attr.is_first)
        s->dstream = carve(a, N, C);
    if (s->nblocks > 0) {
        s->branch = carve(a, N, C);
        s->dwide = carve(a, N, 4 * C);
        s->attention_scratch = carve(a, 1, (attention_scratch + sizeof(float) - 1) / sizeof(float));
    }
    s->dbranch = carve(a, N, C);
    if (s->attr.is_last) {
        s->stats = carve(a, 3, N);
        s->loss = carve(a, 1, sizeof(double) / sizeof(float));
    }
}

static int alloc_arena(struct holmes_stage *s)
{
    struct arena measure = {0};

    carve_all(s, &measure);
    if (measure.overflow)
        return -ENOMEM;
    s->arena = s->k->alloc(measure.used);
    if (!s->arena)
        return -ENOMEM;
    carve_all(s, &(struct arena){.base = s->arena});
    return 0;
}

static int alloc_params(struct holmes_stage *s)
{
    size_t bytes;

    if (__builtin_mul_overflow(s->nparams, sizeof(float), &bytes))
        return -ENOMEM;
    s->params = s->k->alloc(bytes);
    s->grads = s->k->alloc(bytes);
    return s->params && s->grads ? 0 : -ENOMEM;
}

static int alloc_tables(struct holmes_stage *s)
{
    const size_t blocks = (size_t)s->nblocks, slots = (size_t)s->attr.slots;

    /* 12 tensors a block; wte, wpe, ln_f and head */
    s->tensors = calloc(12 * blocks + 5, sizeof *s->tensors);
    s->blocks = calloc(blocks + 1, sizeof *s->blocks);
    s->slots = calloc(slots, sizeof *s->slots);
    s->slot_blocks = calloc(slots * blocks + 1, sizeof *s->slot_blocks);
    if (!s->tensors || !s->blocks || !s->slots || !s->slot_blocks)
        return -ENOMEM;
    for (size_t i = 0; i < slots; i++)
        s->slots[i].blocks = s->slot_blocks + i * blocks;
    return 0;
}

/* Life */

static int check_attr(const struct holmes_stage_attr *a)
{
    char why[160] = "";

    if (holmes_model_check(&a->model, why, sizeof why) != 0)
        ;
    else if (a->first_layer < 0 || a->first_layer > a->last_layer ||
             a->last_layer > a->model.layers)
        snprintf(why, sizeof why, "layers [%d, %d) are no range of the model's %d", a->first_layer,
                 a->last_layer, a->model.layers);
    else if (a->is_first && a->first_layer != 0)
        snprintf(why, sizeof why, "the first stage starts at layer %d instead of 0",
                 a->first_layer);
    else if (a->is_last && a->last_layer != a->model.layers)
        snprintf(why, sizeof why, "the last stage ends at layer %d instead of %d", a->last_layer,
                 a->model.layers);
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

int holmes_stage_create(const struct holmes_stage_attr *attr, struct holmes_stage **out)
{
    struct holmes_stage *s;
    int rc = check_attr(attr);

    if (rc != 0)
        return rc;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->attr = *attr;
    s->k = attr->kernels;
    s->rows = attr->batch * attr->model.seq_len;
    s->nblocks = attr->last_layer - attr->first_layer;

    rc = alloc_tables(s);
    if (rc != 0)
        goto fail;
    add_tensors(s);
    rc = alloc_params(s);
    if (rc != 0)
        goto fail;
    rc = alloc_arena(s);
    if (rc != 0)
        goto fail;
    *out = s;
    return 0;

fail:
    holmes_warn(TRAIN, "stage: no memory for %zu parameters and %d microbatches of %d tokens",
                s->nparams, attr->slots, s->rows);
    holmes_stage_destroy(s);
    return rc;
}

void holmes_stage_destroy(struct holmes_stage *s)
{
    if (!s)
        return;
    s->k->free(s->arena);
    s->k->free(s->grads);
    s->k->free(s->params);
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

    for (size_t first = 0; first < st->t.count; first += chunk_count) {
        const size_t left = st->t.count - first;
        const size_t n = left < chunk_count ? left : chunk_count;

        for (size_t i = 0; i < n; i++) {
            const double z = st->std > 0 ? holmes_random_normal(key, first + i) : 0;

            chunk[i] = (float)(st->mean + st->std * z);
        }
        s->k->copy(s->params + st->t.offset + first, chunk, n * sizeof chunk[0]);
    }
}

void holmes_stage_init_params(struct holmes_stage *s, uint64_t seed)
{
    for (int i = 0; i < s->ntensors; i++)
        init_tensor(s, &s->tensors[i], seed);
}

const struct holmes_kernels *holmes_stage_kernels(const struct holmes_stage *s)
{
    return s->k;
}

size_t holmes_stage_nparams(const struct holmes_stage *s)
{
    return s->nparams;
}

float *holmes_stage_params(struct holmes_stage *s)
{
    return s->params;
}

float *holmes_stage_grads(struct holmes_stage *s)
{
    return s->grads;
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

/* Forward */

static void norm_forward(struct holmes_stage *s, const struct norm *n, struct norm_acts *acts,
                         const float *in)
{
    s->k->layernorm_forward(acts->out, acts->mean, acts->rstd, in, s->params + n->weight,
                            s->params + n->bias, s->rows, s->attr.model.channels);
}

static void linear_forward(struct holmes_stage *s, const struct linear *l, float *out,
                           const float *in)
{
    s->k->matmul_forward(out, in, s->params + l->weight, s->params + l->bias, s->rows, l->in,
                         l->out);
}

/* out = stream + the projection of what a branch computed */
static void branch_forward(struct holmes_stage *s, const struct linear *l, float *out,
                           const float *stream, const float *in)
{
    s->k->matmul_forward(s->branch, in, s->params + l->weight, NULL, s->rows, l->in, l->out);
    s->k->residual_forward(out, stream, s->branch, s->params + l->bias, s->rows, l->out);
}

/* x += attention(ln_1(x)); x += mlp(ln_2(x)). out (B, T, C) */
static void block_forward(struct holmes_stage *s, const struct block *b, struct block_acts *a,
                          float *out)
{
    const struct holmes_model *m = &s->attr.model;

    norm_forward(s, &b->ln_1, &a->ln_1, a->in);
    linear_forward(s, &b->qkv, a->qkv, a->ln_1.out);
    s->k->attention_forward(a->attention, a->lse, a->qkv, s->attr.batch, m->seq_len, m->channels,
                            m->heads);
    branch_forward(s, &b->attn_proj, a->mid, a->in, a->attention);

    norm_forward(s, &b->ln_2, &a->ln_2, a->mid);
    s->k->matmul_gelu_forward(a->gelu, a->fc, a->ln_2.out, s->params + b->fc.weight,
                              s->params + b->fc.bias, s->rows, b->fc.in, b->fc.out);
    branch_forward(s, &b->mlp_proj, out, a->mid, a->gelu);
}

/* Mean loss of the microbatch. */
static double head_forward(struct holmes_stage *s, struct slot *slot)
{
    const struct holmes_model *m = &s->attr.model;

    norm_forward(s, &s->ln_f, &slot->ln_f, slot->final);
    double loss;

    s->k->matmul_forward(slot->logits, slot->ln_f.out, s->params + s->head, NULL, s->rows,
                         m->channels, m->vocab);
    s->k->xent_stats(s->stats, slot->logits, slot->targets, s->rows, m->vocab, 0);
    s->k->zero(s->loss, sizeof *s->loss);
    s->k->xent_combine(s->loss, slot->lse, s->stats, 1, s->rows);
    s->k->copy(&loss, s->loss, sizeof loss);
    return loss / s->rows;
}

/* The residual stream before block i, or after the last one. */
static float *stream_at(struct holmes_stage *s, struct slot *slot, int i, float *out)
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
                         const int32_t *targets, const float *in, const float *out,
                         const double *loss)
{
    const int V = s->attr.model.vocab;

    if (slot < 0 || slot >= s->attr.slots)
        return -EINVAL;
    if (s->attr.is_first ? !tokens || !tokens_fit(tokens, s->rows, V) : !in)
        return -EINVAL;
    if (s->attr.is_last ? !loss || !targets || !tokens_fit(targets, s->rows, V) : !out)
        return -EINVAL;
    return 0;
}

int holmes_stage_forward(struct holmes_stage *s, int slot_index, const int32_t *tokens,
                         const int32_t *targets, const float *in, float *out, double *loss)
{
    const struct holmes_model *m = &s->attr.model;
    const size_t token_bytes = (size_t)s->rows * sizeof(int32_t);
    int rc = check_forward(s, slot_index, tokens, targets, in, out, loss);

    if (rc != 0)
        return rc;

    struct slot *slot = &s->slots[slot_index];
    float *stream = stream_at(s, slot, 0, out);

    if (s->attr.is_first) {
        s->k->copy(slot->tokens, tokens, token_bytes);
        s->k->embedding_forward(stream, slot->tokens, s->params + s->wte, s->params + s->wpe,
                                s->attr.batch, m->seq_len, m->channels, 0, m->vocab);
    } else {
        s->k->copy(stream, in, (size_t)s->rows * (size_t)m->channels * sizeof(float));
    }
    for (int i = 0; i < s->nblocks; i++)
        block_forward(s, &s->blocks[i], &slot->blocks[i], stream_at(s, slot, i + 1, out));
    if (s->attr.is_last) {
        s->k->copy(slot->targets, targets, token_bytes);
        *loss = head_forward(s, slot);
    }
    slot->filled = true;
    return 0;
}

/* Backward */

static void norm_backward(struct holmes_stage *s, const struct norm *n,
                          const struct norm_acts *acts, float *din, const float *dout,
                          const float *in)
{
    s->k->layernorm_backward(din, s->grads + n->weight, s->grads + n->bias, dout, in, acts->mean,
                             acts->rstd, s->params + n->weight, s->rows, s->attr.model.channels);
}

static void linear_backward(struct holmes_stage *s, const struct linear *l, float *din,
                            const float *dout, const float *in)
{
    s->k->matmul_backward(din, s->grads + l->weight, s->grads + l->bias, dout, in,
                          s->params + l->weight, s->rows, l->in, l->out);
}

/* dstream (B, T, C): the gradient after the block becomes the one before it. The residual's own
 * part stays where it is; each branch adds to it through its norm. */
static void block_backward(struct holmes_stage *s, const struct block *b, struct block_acts *a,
                           float *dstream)
{
    const struct holmes_model *m = &s->attr.model;
    const size_t wide = (size_t)s->rows * 4 * (size_t)m->channels;

    linear_backward(s, &b->mlp_proj, s->dwide, dstream, a->gelu);
    s->k->gelu_backward(s->dwide, s->dwide, a->fc, wide);
    linear_backward(s, &b->fc, s->dbranch, s->dwide, a->ln_2.out);
    norm_backward(s, &b->ln_2, &a->ln_2, dstream, s->dbranch, a->mid);

    linear_backward(s, &b->attn_proj, s->dbranch, dstream, a->attention);
    s->k->attention_backward(s->dwide, s->attention_scratch, s->dbranch, a->attention, a->lse,
                             a->qkv, s->attr.batch, m->seq_len, m->channels, m->heads);
    linear_backward(s, &b->qkv, s->dbranch, s->dwide, a->ln_1.out);
    norm_backward(s, &b->ln_1, &a->ln_1, dstream, s->dbranch, a->in);
}

static void head_backward(struct holmes_stage *s, struct slot *slot, float *dstream,
                          float loss_scale)
{
    const struct holmes_model *m = &s->attr.model;

    s->k->xent_backward(slot->logits, slot->logits, slot->lse, slot->targets,
                        loss_scale / (float)s->rows, s->rows, m->vocab, 0);
    s->k->matmul_backward(s->dbranch, s->grads + s->head, NULL, slot->logits, slot->ln_f.out,
                          s->params + s->head, s->rows, m->channels, m->vocab);
    s->k->zero(dstream, (size_t)s->rows * (size_t)m->channels * sizeof(float));
    norm_backward(s, &s->ln_f, &slot->ln_f, dstream, s->dbranch, slot->final);
}

int holmes_stage_backward(struct holmes_stage *s, int slot_index, const float *dout, float *din,
                          float loss_scale)
{
    const struct holmes_model *m = &s->attr.model;
    float *dstream = s->attr.is_first ? s->dstream : din;

    if (slot_index < 0 || slot_index >= s->attr.slots || !s->slots[slot_index].filled || !dstream ||
        (!s->attr.is_last && !dout))
        return -EINVAL;

    struct slot *slot = &s->slots[slot_index];

    if (s->attr.is_last)
        head_backward(s, slot, dstream, loss_scale);
    else if (dstream != dout)
        s->k->copy(dstream, dout, (size_t)s->rows * (size_t)m->channels * sizeof(float));
    for (int i = s->nblocks - 1; i >= 0; i--)
        block_backward(s, &s->blocks[i], &slot->blocks[i], dstream);
    if (s->attr.is_first)
        s->k->embedding_backward(s->grads + s->wte, s->grads + s->wpe, dstream, slot->tokens,
                                 s->attr.batch, m->seq_len, m->channels, 0, m->vocab);
    slot->filled = false;
    return 0;
}
