/* Shape of the GPT and the size arithmetic that follows from it: pre-norm transformer (Radford et
 * al., "Language Models are Unsupervised Multitask Learners", 2019), learned positions, GELU (tanh
 * form), residual projections scaled at initialisation by 1/sqrt(2*layers). */
#ifndef HOLMES_MODEL_H
#define HOLMES_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct holmes_model {
    int layers;   /* L, transformer blocks */
    int channels; /* C, multiple of heads */
    int heads;
    int seq_len; /* T */
    int vocab;   /* V */
    bool tied;   /* head uses the token embedding */
};

/* 0, or -EINVAL with a sentence that names the value and what is right. */
int holmes_model_check(const struct holmes_model *m, char *why, size_t why_len);
size_t holmes_model_params(const struct holmes_model *m); /* elements, tied weights once */

/* Floating-point operations of forward and backward for one token, as the papers count them: a
 * product of (m, k) and (k, n) is 2mkn, the backward is two of the forward, attention looks at
 * every position, and what recomputation does again does not count (Narayanan et al., arXiv
 * 2104.04473, section 5.1). */
double holmes_model_flops_per_token(const struct holmes_model *m);

#endif
