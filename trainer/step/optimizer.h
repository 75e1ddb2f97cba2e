/* AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) over a range of a
 * flat parameter array, so that each data rank can own a part.
 *
 * Steps change float32 master weights. Where the kernels compute in float32 these are the stage's
 * weights themselves; otherwise the optimizer holds those of its range, and a step also writes the
 * stage's weights there, rounded. Then they are zero until they are set: weights that are set with
 * holmes_stage_set_weights are told to holmes_optimizer_set_masters too. */
#ifndef HOLMES_OPTIMIZER_H
#define HOLMES_OPTIMIZER_H

#include "stage.h"

struct holmes_adamw {
    float beta1, beta2, eps, weight_decay;
};

struct holmes_optimizer;

/* For elements [first, first+count) of the stage's arrays; holds masters, m and v for these only.
 * The stage must outlive the optimizer. -EINVAL for a range or a constant that is out of bounds. */
int holmes_optimizer_create(struct holmes_stage *s, const struct holmes_adamw *hp, size_t first,
                            size_t count, struct holmes_optimizer **out);
/* Step `t` counts from 1. Gradients are multiplied by grad_scale first (clipping, averaging). */
void holmes_optimizer_step(struct holmes_optimizer *o, float lr, float grad_scale, int t);
/* Weights [offset, offset + count) of the stage were set to `values`, host memory: the masters in
 * its range become these. */
void holmes_optimizer_set_masters(struct holmes_optimizer *o, size_t offset, size_t count,
                                  const float *values);
/* Masters, first and second moments of its elements, in their order; written by steps, and by
 * whoever restores a state between two of them. */
float *holmes_optimizer_masters(struct holmes_optimizer *o);
float *holmes_optimizer_first_moments(struct holmes_optimizer *o);
float *holmes_optimizer_second_moments(struct holmes_optimizer *o);
void holmes_optimizer_destroy(struct holmes_optimizer *o);

#endif
