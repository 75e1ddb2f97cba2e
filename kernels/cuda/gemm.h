/* Products of matrices, the one thing that the cuda tables leave to a library. Row major; sums are
 * made in float32 whatever the type; the same call gives the same bits. gemm.c has them from
 * cuBLAS, the tests from three plain loops. */
#ifndef HOLMES_CUDA_GEMM_H
#define HOLMES_CUDA_GEMM_H

#include "dtype.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Once, before any product. -1 with a sentence in `why` when there is no such library. */
int holmes_cuda_gemm_open(void *stream, char *why, size_t size);

/* What happened to a product besides itself. */
enum holmes_gemm_fused {
    HOLMES_GEMM_PLAIN, /* nothing: the caller adds the bias and applies the rest */
    HOLMES_GEMM_BIAS,  /* the bias is added */
    HOLMES_GEMM_GELU,  /* the bias is added, pre written, and out is gelu(pre) */
};

/* out = in weight' (+ bias; see the result). out (N, OC); in (N, C); weight (OC, C); bias (OC) or
 * NULL. With `pre` (N, OC), unless the result is GELU, the product is in pre and out is not
 * written. */
enum holmes_gemm_fused holmes_cuda_gemm_forward(void *out, void *pre, const void *in,
                                                const void *weight, const void *bias, int N, int C,
                                                int OC, enum holmes_dtype type);
/* din = dout weight. din (N, C); dout (N, OC) */
void holmes_cuda_gemm_backward_input(void *din, const void *dout, const void *weight, int N, int C,
                                     int OC, enum holmes_dtype type);
/* dweight += dout' in, in float32. dweight (OC, C) */
void holmes_cuda_gemm_backward_weight(float *dweight, const void *dout, const void *in, int N,
                                      int C, int OC, enum holmes_dtype type);

#ifdef __cplusplus
}
#endif

#endif
