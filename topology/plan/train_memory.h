/* What a rank of holmes-train on CPUs takes: another layout than Megatron-LM's, fp32 throughout,
 * activations kept as they are computed. Pure. docs/memory.md has the formula; tests/trainer holds
 * it to what the trainer itself would allocate. */
#ifndef HOLMES_TRAIN_MEMORY_H
#define HOLMES_TRAIN_MEMORY_H

#include "cost.h"

/* Bytes of one rank of `stage` with so many layers, without what a process takes that trains
 * nothing. */
double holmes_train_memory(const struct holmes_cost_job *job, int stage, int layers);

#endif
