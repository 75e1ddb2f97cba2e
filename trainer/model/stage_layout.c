/* Where everything of a stage lies: weights and gradients as flat arrays in the order of the
 * forward pass, of each tensor this rank's part; the activations that backward needs once per slot,
 * and the scratch that slots share, in one arena. */
#include "stage_priv.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define INIT_STD 0.02

/* Tensors */

enum cut_by { WHOLE, BY_ROWS, BY_COLS };

/* A tensor to be, before this rank's part of it is cut out. */
struct spec {
    const char *layer, *kind; /* "h.3.ln_1", "weight" */
    int dims;
    size_t rows, cols;
    enum cut_by cut;
    size_t stacks; /* cut alike; 0 counts as 1 */
    double mean, std;
};

/* Rank `rank` of `size` has [*first, *first + *count) of n: evenly where that can be. */
static void part_of(size_t n, int rank, int size, size_t *first, size_t *count)
{
    const size_t from = n * (size_t)rank / (size_t)size;

    *first = from;
    *count = n * ((size_t)rank + 1) / (size_t)size - from;
}

static size_t add_tensor(struct holmes_stage *s, const struct spec *spec)
{
    struct stage_tensor *st = &s->tensors[s->ntensors++];
    struct holmes_tensor *t = &st->t;
    struct holmes_cut *c = &t->split;
    const int rank = s->group.rank, size = s->group.size;

    snprintf(t->name, sizeof t->name, "%s.%s", spec->layer, spec->kind);
    t->dims = spec->dims;
    t->rows = spec->rows;
    t->cols = spec->cols;
    t->shared = spec->cut == WHOLE || size == 1;
    t->decay = spec->dims == 2;
    c->stacks = spec->stacks ? spec->stacks : 1;
    c->rows = t->rows / c->stacks;
    c->cols = t->cols;
    if (spec->cut == BY_ROWS)
        part_of(c->rows, rank, size, &c->first_row, &c->rows);
    if (spec->cut == BY_COLS)
        part_of(c->cols, rank, size, &c->first_col, &c->cols);
    t->offset = s->nparams;
    t->count = c->stacks * c->rows * c->cols;
    st->mean = spec->mean;
    st->std = spec->std;
    s->nparams += t->count;
    return t->offset;
}

static struct norm add_norm(struct holmes_stage *s, const char *layer)
{
    struct spec spec = {.layer = layer,
                        .kind = "weight",
                        .dims = 1,
                        .rows = (size_t)s->attr.model.channels,
                        .cols = 1,
                        .mean = 1};
    struct norm n = {.weight = add_tensor(s, &spec)};

    spec.kind = "bias";
    spec.mean = 0;
    n.bias = add_tensor(s, &spec);
    return n;
}

/* A matrix (out, in) and a bias (out), this one whole where the columns are cut: it belongs to the
 * sum over the ranks. */
static struct linear add_linear(struct holmes_stage *s, const char *layer, int in, int out,
                                enum cut_by cut, size_t stacks, double std)
{
    const int size = s->group.size;
    struct linear l = {.in = cut == BY_COLS ? in / size : in,
                       .out = cut == BY_ROWS ? out / size : out};
    struct spec spec = {.layer = layer,
                        .kind = "weight",
                        .dims = 2,
                        .rows = (size_t)out,
                        .cols = (size_t)in,
                        .cut = cut,
                        .stacks = stacks,
                        .std = std};

    l.weight = add_tensor(s, &spec);
    spec.kind = "bias";
    spec.dims = 1;
    spec.cols = 1;
    spec.std = 0;
    if (cut == BY_COLS)
        spec.cut = WHOLE;
    l.bias = add_tensor(s, &spec);
    return l;
}

static struct block add_block(struct holmes_stage *s, int layer)
{
    const int C = s->attr.model.channels;
    const double residual_std = INIT_STD / sqrt(2.0 * s->attr.model.layers);
    struct block b = {.range.offset = s->nparams};
    char name[48];

    snprintf(name, sizeof name, "h.%d.ln_1", layer);
    b.ln_1 = add_norm(s, name);
    snprintf(name, sizeof name, "h.%d.attn.qkv", layer);
    b.qkv = add_linear(s, name, C, 3 * C, BY_ROWS, 3, INIT_STD);
    snprintf(name, sizeof name, "h.%d.attn.proj", layer);
    b.attn_proj = add_linear(s, name, C, C, BY_COLS, 1, residual_std);
    snprintf(name, sizeof name, "h.%d.ln_2", layer);
    b.ln_2 = add_norm(s, name);
    snprintf(name, sizeof name, "h.%d.mlp.fc", layer);
    b.fc = add_linear(s, name, C, 4 * C, BY_ROWS, 1, INIT_STD);
    snprintf(name, sizeof name, "h.%d.mlp.proj", layer);
    b.mlp_proj = add_linear(s, name, 4 * C, C, BY_COLS, 1, residual_std);
    b.range.count = s->nparams - b.range.offset;
    return b;
}

/* (V, C) of token embedding or head, cut by rows. */
static size_t add_vocabulary(struct holmes_stage *s, const char *layer)
{
    const struct holmes_model *m = &s->attr.model;
    const struct spec spec = {.layer = layer,
                              .kind = "weight",
                              .dims = 2,
                              .rows = (size_t)m->vocab,
                              .cols = (size_t)m->channels,
                              .cut = BY_ROWS,
                              .std = INIT_STD};

    return add_tensor(s, &spec);
}

static void add_embedding(struct holmes_stage *s)
{
    const struct holmes_model *m = &s->attr.model;
    const struct spec positions = {.layer = "wpe",
                                   .kind = "weight",
                                   .dims = 2,
                                   .rows = (size_t)m->seq_len,
                                   .cols = (size_t)m->channels,
                                   .std = INIT_STD};

    s->tied = m->tied ? s->ntensors : -1;
    s->wte = add_vocabulary(s, "wte");
    s->wpe = add_tensor(s, &positions);
    s->embedding = (struct range){0, s->nparams};
}

static void add_end(struct holmes_stage *s)
{
    const struct holmes_model *m = &s->attr.model;

    s->end.offset = s->nparams;
    s->ln_f = add_norm(s, "ln_f");
    if (!m->tied) {
        s->head = add_vocabulary(s, "lm_head");
    } else if (s->attr.is_first) {
        s->head = s->wte;
    } else {
        s->tied = s->ntensors;
        s->head = add_vocabulary(s, "wte");
    }
    s->end.count = s->nparams - s->end.offset;
}

static void add_tensors(struct holmes_stage *s)
{
    s->tied = -1;
    if (s->attr.is_first)
        add_embedding(s);
    for (int i = 0; i < s->nblocks; i++)
        s->blocks[i] = add_block(s, s->attr.first_layer + i);
    if (s->attr.is_last)
        add_end(s);
}

size_t holmes_tensor_run(const struct holmes_tensor *t, size_t local, size_t *whole)
{
    const struct holmes_cut *c = &t->split;
    const size_t stack_rows = t->rows / c->stacks, stack = c->rows * c->cols;
    const size_t within = local % stack, col = within % c->cols;
    const size_t row = local / stack * stack_rows + c->first_row + within / c->cols;

    *whole = row * t->cols + c->first_col + col;
    if (c->cols < t->cols)
        return c->cols - col;
    return c->rows < stack_rows ? stack - within : t->count - local;
}

/* Memory */

/* Laid out twice: without a base to learn the size, then for good. */
struct arena {
    char *base;
    size_t used;
    bool overflow;
};

static void *carve(struct arena *a, size_t rows, size_t width, size_t size)
{
    const size_t align = 64;
    size_t count, bytes;
    char *p = a->base ? a->base + a->used : NULL;

    if (__builtin_mul_overflow(rows, width, &count) ||
        __builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, align - 1, &bytes) ||
        __builtin_add_overflow(a->used, bytes / align * align, &a->used))
        a->overflow = true;
    return p;
}

/* (B, T, width) of activations. */
static void *carve_acts(const struct holmes_stage *s, struct arena *a, int width)
{
    return carve(a, (size_t)s->rows, (size_t)width, s->real);
}

/* (B, T, width) of statistics. */
static float *carve_floats(const struct holmes_stage *s, struct arena *a, int width)
{
    return carve(a, (size_t)s->rows, (size_t)width, sizeof(float));
}

static struct norm_acts carve_norm(const struct holmes_stage *s, struct arena *a)
{
    return (struct norm_acts){.out = carve_acts(s, a, s->attr.model.channels),
                              .mean = carve_floats(s, a, 1),
                              .rstd = carve_floats(s, a, 1)};
}

/* All but `in`. */
static struct block_acts carve_block(const struct holmes_stage *s, struct arena *a)
{
    const int C = s->attr.model.channels;
    struct block_acts b = {.ln_1 = carve_norm(s, a)};

    b.qkv = carve_acts(s, a, 3 * s->width);
    b.lse = carve_floats(s, a, s->heads);
    b.attention = carve_acts(s, a, s->width);
    b.mid = carve_acts(s, a, C);
    b.ln_2 = carve_norm(s, a);
    b.fc = carve_acts(s, a, 4 * s->width);
    b.gelu = carve_acts(s, a, 4 * s->width);
    return b;
}

static void carve_slot(const struct holmes_stage *s, struct arena *a, struct slot *slot)
{
    const int C = s->attr.model.channels;

    if (s->attr.is_first)
        slot->tokens = carve(a, (size_t)s->rows, 1, sizeof(int32_t));
    for (int i = 0; i < s->nblocks; i++) {
        slot->blocks[i] = s->attr.recompute ? s->again : carve_block(s, a);
        slot->blocks[i].in = carve_acts(s, a, C);
    }
    if (!s->attr.is_last)
        return;
    slot->targets = carve(a, (size_t)s->rows, 1, sizeof(int32_t));
    slot->final = carve_acts(s, a, C);
    slot->ln_f = carve_norm(s, a);
    slot->logits = carve_acts(s, a, s->vocab);
    slot->lse = carve_floats(s, a, 1);
}

static void carve_all(struct holmes_stage *s, struct arena *a)
{
    const struct holmes_model *m = &s->attr.model;

    if (s->attr.recompute && s->nblocks > 0)
        s->again = carve_block(s, a);
    for (int i = 0; i < s->attr.slots; i++)
        carve_slot(s, a, &s->slots[i]);
    if (s->attr.is_first)
        s->dstream = carve_acts(s, a, m->channels);
    if (s->nblocks > 0) {
        s->branch = carve_acts(s, a, m->channels);
        s->dwide = carve_acts(s, a, 4 * s->width);
        s->attention_scratch =
            carve(a, 1, s->k->attention_scratch(s->attr.batch, m->seq_len, s->width, s->heads), 1);
    }
    if (s->nblocks > 0 || s->attr.is_last)
        s->dbranch = carve_acts(s, a, m->channels);
    if (s->attr.is_last) {
        s->stats = carve_floats(s, a, 3 * s->group.size);
        s->loss = carve(a, 1, 1, sizeof *s->loss);
    }
}

static int measure_arena(struct holmes_stage *s)
{
    struct arena measure = {0};

    carve_all(s, &measure);
    s->arena_bytes = measure.used;
    return measure.overflow ? -ENOMEM : 0;
}

static int alloc_arena(struct holmes_stage *s)
{
    s->arena = s->k->alloc(s->arena_bytes ? s->arena_bytes : 1);
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
    s->weights = s->k->alloc(s->nparams * s->real);
    s->grads = s->k->alloc(bytes);
    return s->weights && s->grads ? 0 : -ENOMEM;
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

int stage_layout(struct holmes_stage *s)
{
    const struct holmes_model *m = &s->attr.model;
    size_t first, count;
    int rc;

    part_of((size_t)m->vocab, s->group.rank, s->group.size, &first, &count);
    s->first_token = (int)first;
    s->vocab = (int)count;
    s->width = m->channels / s->group.size;
    s->heads = m->heads / s->group.size;
    rc = alloc_tables(s);
    if (rc != 0)
        return rc;
    add_tensors(s);
    return measure_arena(s);
}

int stage_take_memory(struct holmes_stage *s)
{
    int rc = alloc_params(s);

    return rc ? rc : alloc_arena(s);
}
