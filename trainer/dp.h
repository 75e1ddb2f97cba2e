/* The gradients and weights of one stage across its replicas: reduce-scatter, a shard of AdamW per
 * rank, all-gather. Works on buckets, ranges of the stage's flat arrays, each reduced on its own.
 */
#ifndef HOLMES_DP_H
#define HOLMES_DP_H

#include "links.h"
#include "optimizer.h"
#include "stage.h"

struct holmes_bucket {
    size_t offset, count; /* elements of the flat arrays */
    bool counted;         /* its gradients are part of the global norm: tied weights once */
};

struct holmes_dp;

/* Cuts the stage's arrays into buckets, last layers first, as backward finishes them. A tied
 * embedding is one bucket by itself on both stages that hold it: its sums are then made in the
 * same order on both, and the copies stay equal bit for bit. */
int holmes_dp_create(struct holmes_stage *stage, struct holmes_links *links,
                     const struct holmes_adamw *hp, struct holmes_dp **out);
void holmes_dp_destroy(struct holmes_dp *d); /* NULL is fine */

int holmes_dp_nbuckets(const struct holmes_dp *d);
const struct holmes_bucket *holmes_dp_bucket(const struct holmes_dp *d, int i);

/* A range of the stage's flat arrays whose optimizer state this rank holds: master weights and
 * moments, count floats each, that may be read and written between two steps. Whoever changes
 * weights changes them on every replica: they are gathered only after an update. */
struct holmes_owned {
    size_t offset, count;
    float *w, *m, *v;
};

/* The ranges of this rank. Over all replicas each element of the arrays is in exactly one: the
 * elements left over when a bucket is divided, which every replica updates, count as replica 0's.
 */
int holmes_dp_nowned(const struct holmes_dp *d);
void holmes_dp_owned(const struct holmes_dp *d, int i, struct holmes_owned *out);
/* The left-over ranges, the same on every replica: each holds their state, replica 0 tells it and
 * all are given it when it is restored. */
int holmes_dp_nshared(const struct holmes_dp *d);
void holmes_dp_shared(const struct holmes_dp *d, int i, struct holmes_owned *out);

/* Sums the gradients over replicas, tied ones over both stages first. *sum_squares: of what this
 * rank owns, so that the sum over all ranks of the job is the square of the global norm. */
int holmes_dp_reduce(struct holmes_dp *d, double *sum_squares);

/* AdamW on this rank's part, gradients multiplied by grad_scale; then everyone has all weights.
 * Step `t` counts from 1. */
int holmes_dp_update(struct holmes_dp *d, float lr, float grad_scale, int t);

#endif
