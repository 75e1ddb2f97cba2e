/* AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) over a range of a
 * flat parameter array, so that each data rank can own a part. */
#ifndef HOLMES_OPTIMIZER_H
#define HOLMES_OPTIMIZER_H

#include "stage.h"

struct holmes_adamw {
    float beta1, beta2, eps, weight_decay;
};

struct holmes_optimizer;

/* For elements [first, first+count) of the stage's arrays; holds m and v for these only. The
 * stage must outlive the optimizer. -EINVAL for a range or a constant that is out of bounds. */
int holmes_optimizer_create(struct holmes_stage *s, const struct holmes_adamw *hp, size_t first,
                            size_t count, struct holmes_optimizer **out);
/* Step `t` counts from 1. Gradients are multiplied by grad_scale first (clipping, averaging). */
void holmes_optimizer_step(struct holmes_optimizer *o, float lr, float grad_scale, int t);
/* First and second moments of its elements, in their order; written by steps, and by whoever
 * restores a checkpoint between two of them. */
float *holmes_optimizer_first_moments(struct holmes_optimizer *o);
float *holmes_optimizer_second_moments(struct holmes_optimizer *o);
void holmes_optimizer_destroy(struct holmes_optimizer *o);

#endif
