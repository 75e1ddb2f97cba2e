/* The library that stands in for NCCL and the CUDA driver, as tests steer it. A process has one,
 * whose ranks are threads: what a thread creates is its GPU. */
#ifndef HOLMES_TEST_FAKE_NCCL_H
#define HOLMES_TEST_FAKE_NCCL_H

#include <stdbool.h>
#include <stddef.h>

#define FAKE_GPU_ARGS     160
#define FAKE_NCCL_INVALID 4 /* ncclInvalidArgument */

/* What runs as soon as its stream lets it; the other waits until the host asks for an event that
 * cannot come without it. */
enum fake_gpu_order {
    FAKE_GPU_OPERATIONS_LATE, /* finds kernels that do not wait for an operation */
    FAKE_GPU_KERNELS_LATE,    /* finds operations that do not wait for kernels */
};
void fake_gpu_order(enum fake_gpu_order order);

/* Waits that streams forget from now on: the kernels' for operations, the operations' for kernels.
 */
#define FAKE_GPU_NO_FOLLOW 1u
#define FAKE_GPU_NO_ORDER  2u
void fake_gpu_break(unsigned what);

/* While it is held, the calling thread's GPU runs nothing. */
void fake_gpu_hold(bool held);

/* A stream for kernels. */
void *fake_gpu_queue(void);
void fake_gpu_queue_end(void *stream);
/* Queues run(a copy of args), at most FAKE_GPU_ARGS bytes. */
void fake_gpu_launch(void *stream, void (*run)(void *args), const void *args, size_t bytes);
/* Runs what can run; true when nothing is left in the stream. */
bool fake_gpu_done(void *stream);

void *fake_gpu_alloc(size_t bytes);
void fake_gpu_free(void *p); /* waits for the streams of the calling thread */
bool fake_gpu_owns(const void *p);

/* What the process has now. */
struct fake_gpu_use {
    int streams, events, blocks; /* blocks of memory */
    int entries;                 /* of streams, still to run */
};
struct fake_gpu_use fake_gpu_use(void);

#endif
