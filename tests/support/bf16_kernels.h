/* The table `ref` with activations and computing weights in bfloat16, as the table cuda-bf16 has
 * them: every call widens its `void *` arrays, has `ref` compute, and rounds what it wrote. Slow,
 * and usable from several threads at once, each with its own arrays. */
#ifndef HOLMES_TEST_BF16_KERNELS_H
#define HOLMES_TEST_BF16_KERNELS_H

#include "kernels.h"

const struct holmes_kernels *bf16_kernels(void);

/* To the nearest bfloat16, ties to even; a NaN stays one. */
uint16_t bf16_round(float x);

#endif
