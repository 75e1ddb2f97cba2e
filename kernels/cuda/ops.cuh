/* The calls of kernels.h, for T = float and T = bf16: each file here has some of them. */
#ifndef HOLMES_CUDA_OPS_CUH
#define HOLMES_CUDA_OPS_CUH

#include "launch.cuh"

#include "kernels.h"

template <typename T> constexpr enum holmes_dtype dtype_of(void)
{
    return sizeof(T) == sizeof(float) ? HOLMES_FLOAT32 : HOLMES_BFLOAT16;
}

template <typename T>
void embedding_forward(void *out, const int32_t *tokens, const void *wte, const void *wpe, int B,
                       int T_, int C, int first, int V);
template <typename T>
void embedding_backward(float *dwte, float *dwpe, const void *dout, const int32_t *tokens, int B,
                        int T_, int C, int first, int V);
template <typename T>
void layernorm_forward(void *out, float *mean, float *rstd, const void *in, const void *weight,
                       const void *bias, int N, int C);
template <typename T>
void layernorm_backward(void *din, float *dweight, float *dbias, const void *dout, const void *in,
                        const float *mean, const float *rstd, const void *weight, int N, int C);
template <typename T>
void matmul_forward(void *out, const void *in, const void *weight, const void *bias, int N, int C,
                    int OC);
template <typename T>
void matmul_gelu_forward(void *out, void *pre, const void *in, const void *weight, const void *bias,
                         int N, int C, int OC);
template <typename T>
void matmul_backward(void *din, float *dweight, float *dbias, const void *dout, const void *in,
                     const void *weight, int N, int C, int OC);
template <typename T>
void attention_forward(void *out, float *lse, const void *qkv, int B, int T_, int C, int H);
size_t attention_scratch(int B, int T, int C, int H);
template <typename T>
void attention_backward(void *dqkv, void *scratch, const void *dout, const void *out,
                        const float *lse, const void *qkv, int B, int T_, int C, int H);
template <typename T> void gelu_forward(void *out, const void *in, size_t n);
template <typename T> void gelu_backward(void *din, const void *dout, const void *in, size_t n);
template <typename T>
void residual_forward(void *out, const void *a, const void *b, const void *bias, int N, int C);
template <typename T>
void xent_stats(float *stats, const void *logits, const int32_t *targets, int N, int V, int first);
void xent_combine(double *loss, float *lse, const float *stats, int parts, int N);
template <typename T>
void xent_backward(void *dlogits, const void *logits, const float *lse, const int32_t *targets,
                   float scale, int N, int V, int first);
template <typename T>
void adamw(float *w, void *real, float *m, float *v, const float *g, size_t n,
           const struct holmes_adamw_step *step);
template <typename T> void convert(void *real, const float *w, size_t n);
void sum_squares(double *sum, const float *x, size_t n);

/* Within the folder: sums over rows. Blocks of (COLUMN_TILE columns, COLUMN_LANES rows at once)
 * leave nparts sums of `rows` rows each in the workspace, which has room for `sums` arrays of
 * (nparts, C); add_parts adds one of them to out (C). */
#define COLUMN_TILE  32
#define COLUMN_LANES (BLOCK / COLUMN_TILE)

struct column_split {
    int rows, nparts;
};

struct column_split split_rows(int N, int C, int sums);
void add_parts(float *out, const float *parts, int nparts, int C);
/* out (C) += the sum of the rows of x (N, C) */
template <typename T> void add_column_sums(float *out, const T *x, int N, int C);

#endif
