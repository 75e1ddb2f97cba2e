/* One pipeline stage: the layers [first_layer, last_layer) of the model, with the embedding when it
 * is the first stage and the final norm, head and loss when it is the last. Knows nothing of ranks
 * or networks. Not thread safe.
 *
 * Parameters and gradients of a stage are two flat float32 arrays of the same layout, so that data
 * parallel ranks reduce and gather plain ranges.
 */
#ifndef HOLMES_STAGE_H
#define HOLMES_STAGE_H

#include "kernels.h"
#include "model.h"

struct holmes_stage;

struct holmes_stage_attr {
    struct holmes_model model;
    int first_layer, last_layer;
    bool is_first, is_last; /* embedding; head and loss */
    int batch;              /* B: sequences in a microbatch */
    int slots;              /* microbatches in flight: activations kept between forward and
                               backward */
    const struct holmes_kernels *kernels;
};

/* -EINVAL for attributes that contradict each other (logged), -ENOMEM. All memory of the stage is
 * taken here. */
int holmes_stage_create(const struct holmes_stage_attr *attr, struct holmes_stage **out);
void holmes_stage_destroy(struct holmes_stage *s);

/* Initialises every parameter from (seed, name and layer of the tensor, index in it) alone: the
 * same values whatever the split. */
void holmes_stage_init_params(struct holmes_stage *s, uint64_t seed);

const struct holmes_kernels *holmes_stage_kernels(const struct holmes_stage *s);

size_t holmes_stage_nparams(const struct holmes_stage *s);
float *holmes_stage_params(struct holmes_stage *s);
float *holmes_stage_grads(struct holmes_stage *s); /* accumulated by backward; zero them yourself */

/* A tensor of the flat arrays. `decay`: weight decay applies (matrices yes; biases, norms no). */
struct holmes_tensor {
    char name[64]; /* "h.3.attn.qkv.weight": GPT-2's names, global layer index */
    size_t offset, count;
    bool decay;
};
int holmes_stage_ntensors(const struct holmes_stage *s);
const struct holmes_tensor *holmes_stage_tensor(const struct holmes_stage *s, int i);
/* The token embedding used by first stage and head when tied: same name "wte.weight" on both, with
 * is_first != is_last each holds a copy whose gradients must be summed. NULL when this stage has
 * none. */
const struct holmes_tensor *holmes_stage_tied(const struct holmes_stage *s);

/* Both return 0 or -EINVAL: a slot out of range, a token outside [0, V), backward of a slot that no
 * forward has filled since its last backward.
 *
 * forward of one microbatch in `slot`; the arguments are not read after it returns. tokens,
 * targets: (B, T) int32 in [0, V), needed by the first and the last stage. in: (B, T, C) from the
 * previous stage, NULL on the first. out: (B, T, C), NULL on the last, which stores the mean loss
 * (nats per token) instead. */
int holmes_stage_forward(struct holmes_stage *s, int slot, const int32_t *tokens,
                         const int32_t *targets, const float *in, float *out, double *loss);
/* backward of the microbatch in `slot`: dout (B, T, C) from the next stage, NULL on the last, which
 * starts from loss_scale * d(mean loss). din (B, T, C), NULL on the first. Adds to the gradients.
 */
int holmes_stage_backward(struct holmes_stage *s, int slot, const float *dout, float *din,
                          float loss_scale);

#endif
