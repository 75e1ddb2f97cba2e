/* `ref` as a GPU has it: calls are queued on a stream of the library that stands in for NCCL and
 * the CUDA driver (fake_nccl.h), one of each thread, and memory is that library's. */
#ifndef HOLMES_TEST_QUEUED_KERNELS_H
#define HOLMES_TEST_QUEUED_KERNELS_H

#include "kernels.h"

const struct holmes_kernels *queued_kernels(void);
/* The calling thread uses it no more. */
void queued_leave(void);

/* From here on, until the host waits first, the calling thread's GPU does nothing at all. */
void queued_watch(void);
/* The host waits, other than in a call of the table. */
void queued_host_waits(void);
struct queued_watched {
    int before, after; /* calls of layers before the first wait of the host, and after it */
    int waits;
};
struct queued_watched queued_watch_end(void);

#endif
