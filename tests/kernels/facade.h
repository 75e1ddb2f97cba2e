/* A table that takes host memory and float32, as `ref` does, and has another one do the work: each
 * call brings its arrays into that one's memory and type, and back. So the same tests check tables
 * whose memory or numbers are other than the host's. */
#ifndef HOLMES_TESTS_FACADE_H
#define HOLMES_TESTS_FACADE_H

#include "kernels.h"

/* One at a time. `shift`: arrays start that many elements beyond the alignment of the table's own
 * memory, as those of a model may. A call that the table reports an error for fails the test. */
const struct holmes_kernels *facade_of(const struct holmes_kernels *device, size_t shift);

/* To the nearest number that the table computes with. */
void facade_round(const struct holmes_kernels *device, float *x, size_t n);

#endif
