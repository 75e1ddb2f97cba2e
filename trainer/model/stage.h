/* One pipeline stage: the layers [first_layer, last_layer) of the model, with the embedding when it
 * is the first stage and the final norm, head and loss when it is the last; of all this, one tensor
 * rank's part. Knows nothing of links or networks. Not thread safe.
 *
 * Weights and gradients of a stage are two flat arrays of the same layout, so that data parallel
 * ranks reduce and gather plain ranges; they lie in the order of the forward pass. Gradients are
 * float32, weights of the kernels' dtype, as activations are. Where that is float32 the weights are
 * their own masters; otherwise whoever updates a range of them keeps its masters (optimizer.h).
 */
#ifndef HOLMES_STAGE_H
#define HOLMES_STAGE_H

#include "kernels.h"
#include "model.h"

struct holmes_stage;

/* The tensor group that shares a stage (Shoeybi et al., "Megatron-LM", 2019): attention by heads,
 * the MLP by its inner columns, embedding and head by rows of the vocabulary; norms, positions and
 * the biases of projections are on every rank. Both calls are collective over the group, on memory
 * of the kernels' alloc, and return 0 or a negative errno. */
struct holmes_stage_group {
    int rank, size;
    int (*all_reduce)(void *ctx, void *buf, size_t count, enum holmes_dtype t); /* in place */
    /* out (size, count), in is out + rank * count; float32 */
    int (*all_gather)(void *ctx, const float *in, float *out, size_t count);
    void *ctx;
};

struct holmes_stage_attr {
    struct holmes_model model;
    int first_layer, last_layer; /* may be equal: a stage of embedding or head alone */
    bool is_first, is_last;      /* embedding; head and loss */
    int batch;                   /* B: sequences in a microbatch */
    int slots;      /* microbatches in flight: activations kept between forward and backward */
    bool recompute; /* of a block's activations keep its input alone, and run its forward again in
                       backward: less memory for a third more arithmetic, the same bits */
    const struct holmes_stage_group *group; /* copied; NULL: nobody shares the stage */
    const struct holmes_kernels *kernels;
};

/* -EINVAL for attributes that contradict each other (logged), -ENOMEM. All memory of the stage is
 * taken here. */
int holmes_stage_create(const struct holmes_stage_attr *attr, struct holmes_stage **out);
void holmes_stage_destroy(struct holmes_stage *s);

/* Sets every parameter, by holmes_stage_set_weights, from (seed, name and layer of the tensor,
 * index in the whole of it) alone: the same values whatever the split. */
void holmes_stage_init_params(struct holmes_stage *s, uint64_t seed);
/* Sets weights [offset, offset + count) of the flat array to `values`, host memory, rounded to the
 * kernels' dtype, and tells the hook, so that their masters follow. Gradients of that range are
 * undefined afterwards. */
void holmes_stage_set_weights(struct holmes_stage *s, size_t offset, size_t count,
                              const float *values);

const struct holmes_kernels *holmes_stage_kernels(const struct holmes_stage *s);

size_t holmes_stage_nparams(const struct holmes_stage *s);
void *holmes_stage_weights(struct holmes_stage *s); /* what layers compute with */
float *holmes_stage_grads(struct holmes_stage *s); /* accumulated by backward; zero them yourself */

/* Bytes taken at creation. */
struct holmes_stage_memory {
    size_t parameters, gradients;
    size_t activations; /* those kept in slots, and the scratch of forward and backward */
};
struct holmes_stage_memory holmes_stage_memory(const struct holmes_stage *s);
/* What a stage of these attributes would take, and how many parameters it would have; takes none of
 * it. The group's calls may be NULL. -EINVAL as above, -ENOMEM when no machine could hold it. */
int holmes_stage_measure(const struct holmes_stage_attr *attr, struct holmes_stage_memory *out,
                         size_t *nparams);

/* Which part of a tensor a rank holds: of every `stacks`th of its rows (q, k and v of a qkv matrix
 * are three stacks) the same `rows`, and of these the same `cols`. */
struct holmes_cut {
    size_t stacks;
    size_t first_row, rows; /* within a stack */
    size_t first_col, cols;
};

/* A tensor of the flat arrays. */
struct holmes_tensor {
    char name[64];        /* "h.3.attn.qkv.weight": GPT-2's names, global layer index */
    size_t offset, count; /* in the flat arrays: this rank's part */
    int dims;             /* 2: a matrix (rows, cols). 1: a vector of `rows`, and cols is 1 */
    size_t rows, cols;    /* of the whole tensor */
    struct holmes_cut split;
    bool shared; /* every rank of the tensor group has the whole tensor, equal bit for bit; false:
                    each has its own part. Without a tensor group all tensors are shared. */
    bool decay;  /* weight decay applies (matrices yes; biases, norms no) */
};
int holmes_stage_ntensors(const struct holmes_stage *s);
const struct holmes_tensor *holmes_stage_tensor(const struct holmes_stage *s, int i);
/* The token embedding used by first stage and head when tied: same name "wte.weight" on both, with
 * is_first != is_last each holds a copy whose gradients must be summed. NULL when this stage has
 * none. */
const struct holmes_tensor *holmes_stage_tied(const struct holmes_stage *s);

/* Where element `local`, below t->count, of this rank's part lies in the whole tensor (row major):
 * *whole. Returns how many elements from there on are neighbours in both. */
size_t holmes_tensor_run(const struct holmes_tensor *t, size_t local, size_t *whole);

/* *sum += the squares of the gradients in [offset, offset + count) that this rank answers for, so
 * that the sum over a tensor group counts every tensor once. *sum is memory of the kernels. */
void holmes_stage_sum_squares(struct holmes_stage *s, size_t offset, size_t count, double *sum);

/* Each may be NULL. The first two are called by forward and backward with ranges of the flat
 * arrays: the embedding, each block, the end (ln_f and head); a negative errno ends the pass and is
 * returned by it. */
struct holmes_stage_hooks {
    /* Forward is about to read these weights; in ascending order, none twice in a pass. */
    int (*need)(void *ctx, size_t offset, size_t count);
    /* This backward adds no more to these gradients; in descending order. An embedding that the
     * head of the same stage also uses is done with the embedding, last. */
    int (*done)(void *ctx, size_t offset, size_t count);
    /* These weights were set to `values`, host memory, before rounding. */
    void (*set)(void *ctx, size_t offset, size_t count, const float *values);
    void *ctx;
};
void holmes_stage_set_hooks(struct holmes_stage *s, const struct holmes_stage_hooks *h); /* copied;
                                                                                NULL: none */

/* Both return 0 or -EINVAL: a slot out of range, a token outside [0, V), backward of a slot that no
 * forward has filled since its last backward; or what a hook or the tensor group returned.
 * Activations are arrays of the kernels' dtype in memory of the kernels.
 *
 * forward of one microbatch in `slot`; the arguments are not read after it returns. tokens,
 * targets: (B, T) int32 in [0, V), host memory, needed by the first and the last stage. in:
 * (B, T, C) from the previous stage, NULL on the first. out: (B, T, C), NULL on the last, which
 * adds up the mean loss (nats per token) instead. */
int holmes_stage_forward(struct holmes_stage *s, int slot, const int32_t *tokens,
                         const int32_t *targets, const void *in, void *out);
/* backward of the microbatch in `slot`: dout (B, T, C) from the next stage, NULL on the last, which
 * starts from loss_scale * d(mean loss). din (B, T, C), NULL on the first. Adds to the gradients.
 */
int holmes_stage_backward(struct holmes_stage *s, int slot, const void *dout, void *din,
                          float loss_scale);

/* *sum: the mean losses of all forwards since the last take, added up; 0 on all but the last stage.
 * Waits for the kernels. Every rank of a tensor group has the same. */
void holmes_stage_take_loss(struct holmes_stage *s, double *sum);

#endif
