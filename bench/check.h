/* Whether what lies in the output buffers is what it must be: wrong elements. Pure. */
#ifndef HOLMES_BENCH_CHECK_H
#define HOLMES_BENCH_CHECK_H

#include "rank.h"

/* After one operation on inputs of this work's pattern. */
uint64_t holmes_check_collective(const struct holmes_rank_work *w);
/* The first `n` messages from the partner. */
uint64_t holmes_check_messages(const struct holmes_rank_work *w, size_t n);

#endif
