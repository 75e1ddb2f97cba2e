/* Products by the library behind gemm.h, and what it did not do along the way. */
#include "ops.cuh"

#include "gemm.h"

/* x (N, C) += bias (C) */
template <typename T> __global__ void add_bias_kernel(T *x, const T *bias, int N, int C)
{
    for (size_t row = blockIdx.x; row < (size_t)N; row += gridDim.x)
        for (int c = (int)threadIdx.x; c < C; c += (int)blockDim.x)
            x[row * C + c] = from_float<T>(to_float(x[row * C + c]) + to_float(bias[c]));
}

template <typename T> static void add_bias(void *x, const void *bias, int N, int C)
{
    if (bias)
        launch("bias", add_bias_kernel<T>, N < 8192 ? (unsigned)N : 8192, BLOCK, 0, (T *)x,
               (const T *)bias, N, C);
}

template <typename T>
void matmul_forward(void *out, const void *in, const void *weight, const void *bias, int N, int C,
                    int OC)
{
    if (holmes_cuda_gemm_forward(out, NULL, in, weight, bias, N, C, OC, dtype_of<T>()) ==
        HOLMES_GEMM_PLAIN)
        add_bias<T>(out, bias, N, OC);
}

template <typename T>
void matmul_gelu_forward(void *out, void *pre, const void *in, const void *weight, const void *bias,
                         int N, int C, int OC)
{
    const enum holmes_gemm_fused fused =
        holmes_cuda_gemm_forward(out, pre, in, weight, bias, N, C, OC, dtype_of<T>());

    if (fused == HOLMES_GEMM_PLAIN)
        add_bias<T>(pre, bias, N, OC);
    if (fused != HOLMES_GEMM_GELU)
        gelu_forward<T>(out, pre, (size_t)N * OC);
}

template <typename T>
void matmul_backward(void *din, float *dweight, float *dbias, const void *dout, const void *in,
                     const void *weight, int N, int C, int OC)
{
    holmes_cuda_gemm_backward_input(din, dout, weight, N, C, OC, dtype_of<T>());
    holmes_cuda_gemm_backward_weight(dweight, dout, in, N, C, OC, dtype_of<T>());
    if (dbias)
        add_column_sums(dbias, (const T *)dout, N, OC);
}

#define INSTANTIATE(T)                                                                             \
    template void matmul_forward<T>(void *, const void *, const void *, const void *, int, int,    \
                                    int);                                                          \
    template void matmul_gelu_forward<T>(void *, void *, const void *, const void *, const void *, \
                                         int, int, int);                                           \
    template void matmul_backward<T>(void *, float *, float *, const void *, const void *,         \
                                     const void *, int, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
#undef INSTANTIATE
