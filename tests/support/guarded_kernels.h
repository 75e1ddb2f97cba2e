/* A table of the host over memory that only its calls may touch, as is the memory of a GPU: any
 * other access dies by SIGSEGV, and a call that is given memory of the host where the table's is
 * right aborts with the argument's name. The memory belongs to the thread that takes it, and is
 * open while that thread is in a call. */
#ifndef HOLMES_TEST_GUARDED_KERNELS_H
#define HOLMES_TEST_GUARDED_KERNELS_H

#include "kernels.h"

/* Over what `of` computes; the same for the life of the process. */
const struct holmes_kernels *guarded_kernels(const struct holmes_kernels *of);

/* For a communicator that was made for this memory: between the two all of it, of all threads, is
 * open, and no call of the table begins or ends. */
void guarded_open(bool open);

/* Whether p lies in memory of the calling thread's own. */
bool guarded_has(const void *p);

/* Calls made so far, by all threads. */
unsigned long guarded_calls(void);

#endif
