/* Element sums of the collectives. */
#ifndef HOLMES_SUM_H
#define HOLMES_SUM_H

#include "comm.h"

/* dst = a + b, n elements; dst may be a or b. bfloat16: each addition is made in float32 and
 * rounded to nearest, ties to even; a NaN stays a (quiet) NaN. */
void holmes_sum(enum holmes_dtype t, void *dst, const void *a, const void *b, size_t n);

#endif
