/* What libholmes-kernels-cuda.so gives to select.c, which opens it at run time. */
#ifndef HOLMES_CUDA_TABLE_H
#define HOLMES_CUDA_TABLE_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HOLMES_CUDA_LIBRARY "libholmes-kernels-cuda.so"
#define HOLMES_CUDA_OPEN    "holmes_kernels_cuda_open"

/* Takes this machine's GPU number local_rank, counted round, for the process, and gives the table
 * of that name. table_bytes: sizeof(struct holmes_kernels), since program and library may be of
 * different builds. NULL with a sentence in `why` when there is no such table or GPU. */
typedef const struct holmes_kernels *holmes_cuda_open_fn(const char *name, size_t table_bytes,
                                                         int local_rank, char *why, size_t size);

/* The table of that name or NULL; touches no GPU. */
const struct holmes_kernels *holmes_cuda_table(const char *name);

/* delta of attention's backward, (B, H, T): also asked where there is no GPU. */
static inline size_t holmes_cuda_attention_scratch(int B, int T, int C, int H)
{
    (void)C;
    return (size_t)B * (size_t)H * (size_t)T * sizeof(float);
}

#ifdef __cplusplus
}
#endif

#endif
