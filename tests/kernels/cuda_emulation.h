/* CUDA's language for device code as host C++, so that the sources in kernels/cuda run, and are
 * checked, without a GPU: a block's threads are fibers (ucontext) that run one at a time and change
 * at barriers and at exchanges within a warp. Blocks run one after another.
 *
 * What this finds: wrong indices (with the address sanitizer, in shared memory too), wrong masks,
 * missing barriers (results must not depend on the order in which threads and blocks run, which
 * emulated_order changes), dynamic shared memory that is read before it is written (it starts as
 * NaN),
 * barriers that not all threads reach (it stops the program). What it cannot find: that a GPU's
 * compiler or hardware does something else. */
#ifndef HOLMES_TESTS_CUDA_EMULATION_H
#define HOLMES_TESTS_CUDA_EMULATION_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__ static /* one block runs at a time */
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;

    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

extern dim3 gridDim, blockDim, blockIdx, threadIdx;

void emulated_launch(dim3 grid, dim3 block, size_t shared_bytes,
                     const std::function<void(void)> &kernel);
unsigned char *emulated_shared(void); /* dynamic shared memory of the block */

void __syncthreads(void);
void __syncwarp(void);
unsigned __ballot_sync(unsigned lanes, int predicate);

/* Every lane gives `bytes` (at most 64) and gets those of all lanes, (32, bytes). */
void emulated_exchange(void *all, const void *mine, size_t bytes);

template <typename F> static inline F __shfl_xor_sync(unsigned lanes, F x, int mask)
{
    F all[32];

    (void)lanes;
    emulated_exchange(all, &x, sizeof x);
    return all[(threadIdx.x % 32) ^ (unsigned)mask];
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    const uint32_t bits = (uint32_t)x.bits << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest, ties to even. */
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (__nv_bfloat16){0x7fff};
    bits += 0x7fff + (bits >> 16 & 1);
    return (__nv_bfloat16){(uint16_t)(bits >> 16)};
}

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, by the layouts of the PTX manual. */
void emulated_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]);

#endif
