/* The part of the cuda tables that talks to the CUDA runtime: one queue, one workspace, the first
 * error. The tests have another in its place, without a GPU (tests/kernels/cuda_emulation.cc). */
#ifndef HOLMES_CUDA_RUNTIME_H
#define HOLMES_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sums of many rows are made in parts that lie here. Calls are queued in order, so that one
 * workspace is enough for all. */
#define HOLMES_CUDA_WORKSPACE_BYTES ((size_t)8 << 20)

void *holmes_cuda_stream(void);
void *holmes_cuda_workspace(void);

/* Whether a call may be queued: none after an error. Waits when much is queued, so that no call of
 * CUDA's waits for room by itself, which would be without end behind a peer that is dead. */
bool holmes_cuda_may_queue(void);

/* Keeps the first error, a cudaError_t, with what was being done. */
void holmes_cuda_check(const char *what, int error);
/* The same for errors that are none of CUDA's. */
void holmes_cuda_fail(const char *what, const char *why);
const char *holmes_cuda_error(void);

void *holmes_cuda_alloc(size_t bytes);
void holmes_cuda_free(void *p);
void holmes_cuda_zero(void *p, size_t bytes);
void holmes_cuda_copy(void *to, const void *from, size_t bytes);
void holmes_cuda_sync(void);
void holmes_cuda_on_wait(int (*look)(void *ctx), void *ctx);

#ifdef __cplusplus
}
#endif

#endif
