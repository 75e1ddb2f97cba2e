/* What a rank's process needs before NCCL is loaded. */
#ifndef HOLMES_BENCH_RUNNER_NCCL_H
#define HOLMES_BENCH_RUNNER_NCCL_H

#include "rank.h"

/* Sets the environment of this process: NCCL takes its network from the side's plugin and no other,
 * and uses it between all ranks, though they share a host. What a side's own settings say goes
 * before; they are applied after this. */
void holmes_nccl_environ(const struct holmes_rank_attr *a);

#endif
