/* What the files of a stage share: stage_layout.c decides where everything lies, stage_block.c and
 * stage_ends.c compute, stage.c puts them together. */
#ifndef HOLMES_STAGE_PRIV_H
#define HOLMES_STAGE_PRIV_H

#include "stage.h"

struct range {
    size_t offset, count; /* in the flat arrays */
};

struct norm {
    size_t weight, bias; /* offsets in the flat arrays; (C), (C) */
};

/* This rank's part of a linear layer. */
struct linear {
    size_t weight, bias; /* (out, in), (out) */
    int in, out;
};

struct block {
    struct range range;
    struct norm ln_1, ln_2;
    struct linear qkv, attn_proj, fc, mlp_proj;
};

/* Activations. Those of the stream are the same on every tensor rank, the others its own part: c
 * channels are C over the ranks of the group, h heads H over them, v rows of the vocabulary. */

/* What a norm leaves for its backward. */
struct norm_acts {
    void *out;          /* (B, T, C) */
    float *mean, *rstd; /* (B, T) */
};

struct block_acts {
    void *in; /* (B, T, C): the residual stream before the block */
    struct norm_acts ln_1;
    void *qkv;       /* (B, T, 3c) */
    float *lse;      /* (B, h, T): of attention */
    void *attention; /* (B, T, c), before its projection */
    void *mid;       /* (B, T, C): the residual stream after attention */
    struct norm_acts ln_2;
    void *fc, *gelu; /* (B, T, 4c) */
};

struct slot {
    bool filled;               /* by a forward whose backward is to come */
    int32_t *tokens, *targets; /* (B, T) */
    struct block_acts *blocks; /* with recompute, all but `in` is the stage's `again` */
    void *final;               /* (B, T, C): the residual stream before ln_f */
    struct norm_acts ln_f;
    void *logits; /* (B, T, v), then their gradient */
    float *lse;   /* (B, T): of the logits */
};

struct stage_tensor {
    struct holmes_tensor t;
    double mean, std; /* at initialisation */
};

struct holmes_stage {
    struct holmes_stage_attr attr;
    struct holmes_stage_group group; /* rank 0 of 1 where there is none */
    struct holmes_stage_hooks hooks;
    const struct holmes_kernels *k;
    size_t real; /* bytes of an activation or computing weight */
    int rows;    /* B * T */
    int nblocks;
    int width, heads;       /* c, h: of attention on this rank */
    int first_token, vocab; /* of the vocabulary on this rank: first row, v */

    struct stage_tensor *tensors;
    int ntensors;
    size_t nparams;
    void *weights;
    float *grads;
    int tied; /* index of wte in `tensors` when tied, else -1 */

    size_t wte, wpe, head; /* offsets */
    struct range embedding, end;
    struct norm ln_f;
    struct block *blocks;

    struct slot *slots;
    struct block_acts *slot_blocks; /* (slots, nblocks) */
    void *arena;                    /* everything below and in the slots */
    size_t arena_bytes;
    struct block_acts again;       /* with recompute: the activations of one block */
    const struct block_acts *held; /* whose activations those are */
    void *branch;                  /* (B, T, C): what a branch adds to the residual stream */
    void *dstream;                 /* (B, T, C): gradient of the stream where the caller has none */
    void *dbranch;                 /* (B, T, C) */
    void *dwide;                   /* (B, T, 4c): of fc and gelu; of qkv */
    void *attention_scratch;
    float *stats; /* (group size, 3, B, T): of the logits */
    double *loss; /* sum over rows since it was taken */
};

/* stage_layout.c: fills tensors and offsets, and says how large the arena is; then takes memory. 0
 * or -ENOMEM. */
int stage_layout(struct holmes_stage *s);
int stage_take_memory(struct holmes_stage *s);

/* The weights at an offset, to compute with. */
static inline const void *stage_weights(const struct holmes_stage *s, size_t offset)
{
    return (const char *)s->weights + offset * s->real;
}

/* stage_block.c */
void stage_norm_forward(struct holmes_stage *s, const struct norm *n, struct norm_acts *acts,
                        const void *in);
/* Adds to din. */
void stage_norm_backward(struct holmes_stage *s, const struct norm *n, const struct norm_acts *acts,
                         void *din, const void *dout, const void *in);
/* Sums an array of (B, T, C) over the tensor group. */
int stage_sum_partial(struct holmes_stage *s, void *stream);
/* out (B, T, C) */
int stage_block_forward(struct holmes_stage *s, const struct block *b, struct block_acts *a,
                        void *out);
/* dstream (B, T, C): the gradient after the block becomes the one before it. */
int stage_block_backward(struct holmes_stage *s, const struct block *b, struct block_acts *a,
                         void *dstream);

/* stage_ends.c. The tokens and targets are in the slot. */
int stage_embedding_forward(struct holmes_stage *s, struct slot *slot, void *stream);
void stage_embedding_backward(struct holmes_stage *s, struct slot *slot, const void *dstream);
int stage_head_forward(struct holmes_stage *s, struct slot *slot);
/* dstream is written. */
int stage_head_backward(struct holmes_stage *s, struct slot *slot, void *dstream, float loss_scale);

#endif
