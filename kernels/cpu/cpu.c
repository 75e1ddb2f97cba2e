/* The cpu table and its threads. OpenMP has all threads where it is built in, and OpenBLAS runs on
 * the caller's; without OpenMP the products at least use OpenBLAS's own. */
#include "cpu.h"

#include "../backends.h"

#include <cblas.h>
#include <stdlib.h>

/* A parallel region costs a few microseconds: as much as some ten thousand elements. */
#define WORK_PER_THREAD_MIN 16384

static int cpu_threads = 1;

void holmes_kernels_cpu_set_threads(int threads)
{
    cpu_threads = threads;
#ifdef _OPENMP
    omp_set_dynamic(0); /* OMP_DYNAMIC would cut the loops by the load of the machine */
    openblas_set_num_threads(1);
#else
    openblas_set_num_threads(threads);
#endif
}

int holmes_cpu_threads_for(size_t work)
{
    const size_t worth = work / WORK_PER_THREAD_MIN;

    if (worth < 2)
        return 1;
    return worth < (size_t)cpu_threads ? (int)worth : cpu_threads;
}

const struct holmes_kernels holmes_kernels_cpu = {
    .name = "cpu",
    .dtype = HOLMES_FLOAT32,
    .alloc = holmes_host_alloc,
    .free = free,
    .zero = holmes_host_zero,
    .copy = holmes_host_copy,
    .sync = holmes_host_sync,
    .on_wait = holmes_host_on_wait,
    .stream = holmes_host_stream,
    .error = holmes_host_error,
    .embedding_forward = holmes_cpu_embedding_forward,
    .embedding_backward = holmes_cpu_embedding_backward,
    .layernorm_forward = holmes_cpu_layernorm_forward,
    .layernorm_backward = holmes_cpu_layernorm_backward,
    .matmul_forward = holmes_cpu_matmul_forward,
    .matmul_gelu_forward = holmes_cpu_matmul_gelu_forward,
    .matmul_backward = holmes_cpu_matmul_backward,
    .attention_forward = holmes_cpu_attention_forward,
    .attention_scratch = holmes_cpu_attention_scratch,
    .attention_backward = holmes_cpu_attention_backward,
    .gelu_forward = holmes_cpu_gelu_forward,
    .gelu_backward = holmes_cpu_gelu_backward,
    .residual_forward = holmes_cpu_residual_forward,
    .xent_stats = holmes_cpu_xent_stats,
    .xent_combine = holmes_cpu_xent_combine,
    .xent_backward = holmes_cpu_xent_backward,
    .adamw = holmes_cpu_adamw,
    .convert = holmes_host_convert,
    .sum_squares = holmes_cpu_sum_squares,
};
