/* What every kernel here uses: both types of activations read as float, sums over a warp or a
 * block whose order depends on nothing but the block's size, and one product on tensor cores.
 *
 * With HOLMES_CUDA_EMULATION the same sources are host C++: the tests run them without a GPU. */
#ifndef HOLMES_CUDA_DEVICE_CUH
#define HOLMES_CUDA_DEVICE_CUH

#ifdef HOLMES_CUDA_EMULATION
#include "cuda_emulation.h"
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#endif

#include <stddef.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

#define WARP        32
#define WHOLE       0xffffffffu /* every lane of a warp */
#define BLOCK       256         /* threads of a block, where a kernel has no reason of its own */
#define BLOCK_WARPS (BLOCK / WARP)

__device__ inline float to_float(float x)
{
    return x;
}

__device__ inline float to_float(bf16 x)
{
    return __bfloat162float(x);
}

template <typename T> __device__ inline T from_float(float x);

template <> __device__ inline float from_float<float>(float x)
{
    return x;
}

template <> __device__ inline bf16 from_float<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* V numbers that are loaded and stored at once. */
template <typename T, int V> struct alignas(sizeof(T) * V) pack {
    T x[V];
};

template <int V, typename T> __device__ inline void load(float *to, const T *from)
{
    const pack<T, V> p = *(const pack<T, V> *)from;

#pragma unroll
    for (int i = 0; i < V; i++)
        to[i] = to_float(p.x[i]);
}

template <int V, typename T> __device__ inline void store(T *to, const float *from)
{
    pack<T, V> p;

#pragma unroll
    for (int i = 0; i < V; i++)
        p.x[i] = from_float<T>(from[i]);
    *(pack<T, V> *)to = p;
}

/* Sums over the lanes, the same in all of them. */
template <typename F> __device__ inline F warp_sum(F x)
{
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(WHOLE, x, lanes);
    return x;
}

__device__ inline float warp_max(float x)
{
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(WHOLE, x, lanes));
    return x;
}

/* Sum over a block of BLOCK threads, the same in all of them. May be called again at once. */
template <typename F> __device__ inline F block_sum(F x)
{
    __shared__ F warps[BLOCK_WARPS];
    const int lane = (int)threadIdx.x % WARP;

    x = warp_sum(x);
    if (lane == 0)
        warps[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_sum(lane < BLOCK_WARPS ? warps[lane] : F(0));
    __syncthreads(); /* nobody writes the next sum's parts before all have read these */
    return x;
}

__device__ inline float block_max(float x)
{
    __shared__ float warps[BLOCK_WARPS];
    const int lane = (int)threadIdx.x % WARP;

    x = warp_max(x);
    if (lane == 0)
        warps[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_max(warps[lane % BLOCK_WARPS]);
    __syncthreads();
    return x;
}

/* c (16, 8) += a (16, 16) b (16, 8), one warp together. Which numbers a lane holds is in the PTX
 * manual, "Matrix Fragments for mma.m16n8k16": with g = lane / 4 and t = lane % 4
 *   a[0..3]: rows g, g+8, g, g+8; columns 2t, 2t, 2t+8, 2t+8 and the next one
 *   b[0..1]: rows 2t, 2t+8 and the next one; column g
 *   c[0..3]: rows g, g, g+8, g+8; columns 2t, 2t+1, 2t, 2t+1 */
__device__ inline void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef HOLMES_CUDA_EMULATION
    emulated_mma_bf16(c, a, b);
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#endif
