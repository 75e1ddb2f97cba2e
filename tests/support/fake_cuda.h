/* A CUDA driver for tests of staging: "GPU" memory that the processor cannot touch, and copies that
 * a thread makes later, after random delays and in no order within a copy. Misuse (memory of the
 * wrong kind, memory freed under a copy, no context, allocation where none is allowed) prints a
 * line and aborts. Thread safe; one per process.
 */
#ifndef HOLMES_FAKE_CUDA_H
#define HOLMES_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Puts the stand-in in force, with a context current on the calling thread. A copy begins up to
 * `max_delay_us` after the one before it. */
void fake_cuda_start(unsigned seed, unsigned max_delay_us);
/* Ends it; aborts when pinned memory, streams, events or copies are left. */
void fake_cuda_stop(void);
/* Ends it and frees what a test left on purpose. */
void fake_cuda_discard(void);

/* Device memory, and the same bytes as the test may read and write them. */
void *fake_cuda_malloc(size_t len);
void fake_cuda_free(void *device);
void *fake_cuda_bytes(void *device);

/* The context of the calling thread. */
void fake_cuda_set_context(bool current);
/* From now on nothing may be allocated or freed: the data path. */
void fake_cuda_forbid_allocation(bool forbid);

/* Copies wait until released, all of them or `n`. */
void fake_cuda_hold(void);
void fake_cuda_release(unsigned n);
void fake_cuda_release_all(void);
/* The nth copy from now, and its event, report an error. 0: none does. */
void fake_cuda_fail_copy(unsigned n);

struct fake_cuda_counts {
    unsigned issued, ended; /* copies */
    size_t pinned;          /* bytes */
    int streams, events;
};
struct fake_cuda_counts fake_cuda_counts(void);

/* What happened, in order. Tests add the wire's side. */
enum fake_cuda_step { COPY_ISSUED, COPY_ENDED, WIRE_ARRIVED, WIRE_POSTED };
struct fake_cuda_trace {
    enum fake_cuda_step step;
    unsigned n; /* which copy, from 0; or the test's own number */
};
void fake_cuda_note(enum fake_cuda_step step, unsigned n);
/* The steps so far, at most `max`; returns their number. */
size_t fake_cuda_trace(struct fake_cuda_trace *out, size_t max);

#endif
