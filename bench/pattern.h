/* Contents of the buffers, and what must be found in them afterwards.
 *
 * Every value depends on rank, index and salt, so that a block in the wrong place, a stale buffer
 * or a missing addend is seen; values are small whole numbers, so that sums over 64 ranks are exact
 * in either type and equality is the test.
 */
#ifndef HOLMES_BENCH_PATTERN_H
#define HOLMES_BENCH_PATTERN_H

#include <stddef.h>
#include <stdint.h>

#include "comm.h"

/* `count` elements of rank `rank` from index `first` on. */
void holmes_pattern_fill(void *buf, size_t first, size_t count, enum holmes_dtype t, int rank,
                         uint32_t salt);
/* Elements that differ from what `rank` filled. */
uint64_t holmes_pattern_check(const void *buf, size_t first, size_t count, enum holmes_dtype t,
                              int rank, uint32_t salt);
/* Elements that differ from the sum of what the ranks 0 to nranks-1 filled. */
uint64_t holmes_pattern_check_sum(const void *buf, size_t first, size_t count, enum holmes_dtype t,
                                  int nranks, uint32_t salt);
/* Fills with a value that no check takes. */
void holmes_pattern_poison(void *buf, size_t bytes);

#endif
