/* The host side of a kernel call, and what runtime.c keeps for all of them: the queue, the first
 * error, and a workspace. */
#ifndef HOLMES_CUDA_LAUNCH_CUH
#define HOLMES_CUDA_LAUNCH_CUH

#include "device.cuh"
#include "runtime.h"

/* Queues kernel(args...). A refused launch is the queue's first error, named `what`. */
template <typename... P, typename... A>
static void launch(const char *what, void (*kernel)(P...), dim3 grid, unsigned block,
                   size_t shared_bytes, A... args)
{
#ifdef HOLMES_CUDA_EMULATION
    (void)what;
    emulated_launch(grid, dim3(block), shared_bytes, [=] { kernel(static_cast<P>(args)...); });
#else
    if (!holmes_cuda_may_queue())
        return;
    kernel<<<grid, block, shared_bytes, (cudaStream_t)holmes_cuda_stream()>>>(
        static_cast<P>(args)...);
    holmes_cuda_check(what, (int)cudaGetLastError());
#endif
}

/* More than 48 KB of shared memory has to be asked for, once for each kernel. */
template <typename... P>
static void allow_shared(const char *what, void (*kernel)(P...), size_t shared_bytes)
{
#ifdef HOLMES_CUDA_EMULATION
    (void)what, (void)kernel, (void)shared_bytes;
#else
    if (shared_bytes > 48 << 10)
        holmes_cuda_check(
            what, (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)shared_bytes));
#endif
}

static inline unsigned ceil_div(size_t n, size_t by)
{
    return (unsigned)((n + by - 1) / by);
}

/* Blocks for a loop over n elements that goes on by whole grids: enough to fill any GPU, few enough
 * that each block has work. */
static inline unsigned blocks_for(size_t n)
{
    const size_t most = 2048, blocks = (n + BLOCK - 1) / BLOCK;

    return (unsigned)(blocks < most ? blocks : most);
}

/* Every pointer at a multiple of `bytes`. */
template <typename... P> static inline bool aligned(size_t bytes, const P *...p)
{
    return ((((uintptr_t)p) | ...) % bytes) == 0;
}

#endif
