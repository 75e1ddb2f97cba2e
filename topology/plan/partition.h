/* Layers over stages of unequal speed and memory. Pure.
 *
 * The self-adapting partition of arXiv 2312.03549: stage i of speed S_i gets S_i / sum S of the
 * layers; what that leaves over goes where it shortens the slowest stage. Embedding and head count
 * as work of the first and the last stage, and a stage that has no memory for its share gets less.
 *
 * Of all partitions whose slowest stage is the fastest possible, in this order: one that
 * Megatron-LM's --decoder-first/last-pipeline-num-layers can say (the stages between are equal),
 * the most even, the one with the least activations under way (early stages hold more
 * microbatches), the one with fewer layers on the two ends. */
#ifndef HOLMES_PARTITION_H
#define HOLMES_PARTITION_H

struct holmes_partition_stage {
    double layer_s; /* time of one layer; above 0 */
    double extra_s; /* of embedding or head */
    int most;       /* layers that its memory holds */
};

/* 0; -EINVAL: fewer layers than stages (each needs one); -ENOSPC: the stages' memory holds fewer
 * than `layers`; -ENOMEM. */
int holmes_partition(const struct holmes_partition_stage *stages, int n, int layers, int *out);

#endif
