/* The gradients and weights of one stage across its replicas: reduce-scatter, a shard of AdamW per
 * rank, all-gather. Works on buckets, ranges of the stage's flat arrays, each reduced on its own.
 *
 * With `overlap` a bucket is reduced as soon as the last backward of a step has added to it, while
 * backward goes on below it; its new weights are gathered while the next forward runs, which waits
 * for a bucket when it comes to read it. Without, everything starts and is waited for at the end of
 * the step. The operations and their order are the same, and so are the results, bit for bit.
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

struct holmes_dp_attr {
    struct holmes_stage *stage; /* outlives the dp, which takes its hooks */
    struct holmes_links *links;
    struct holmes_adamw hp;
    size_t bucket_bytes; /* of gradients, about; 0: a sixteenth of the stage, 1 to 64 MiB */
    bool overlap;
    int number; /* of its first bucket in traces: chunks of one rank count on */
};

/* Cuts the stage's arrays into buckets, last layers first, as backward finishes them. Made before
 * the stage's weights are set, whose masters it takes from there. A tied embedding is one bucket by
 * itself on both stages that hold it: its sums are then made in the same order on both, and the
 * copies stay equal bit for bit. */
int holmes_dp_create(const struct holmes_dp_attr *attr, struct holmes_dp **out);
/* Settled before, or its operations still own memory. NULL is fine. */
void holmes_dp_destroy(struct holmes_dp *d);

/* Bytes that buckets of a stage aim at; `asked` 0: chosen. Some are up to twice as large. */
size_t holmes_dp_bucket_bytes(size_t nparams, size_t asked);

int holmes_dp_nbuckets(const struct holmes_dp *d);
const struct holmes_bucket *holmes_dp_bucket(const struct holmes_dp *d, int i);

/* A range of the stage's flat arrays whose optimizer state this rank holds: master weights and
 * moments, count floats each, that may be read and written between two steps, settled. With kernels
 * of float32 w is the stage's weights; with others it is the only place where the masters are, and
 * who writes it writes the stage's weights too: holmes_stage_set_weights does both. Whoever changes
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

/* Between steps, on all ranks alike. */
void holmes_dp_set_overlap(struct holmes_dp *d, bool overlap);

/* The stage's next backward is the last of this step: what it is done with may be reduced. */
void holmes_dp_last_backward(struct holmes_dp *d);

/* After it: starts what has not been started; what kernels queue after this comes after all of it.
 * With tied weights their gradients are summed over both stages first. */
int holmes_dp_reduce(struct holmes_dp *d);
/* Waits for that. *sum_squares: of what this rank owns, so that the sum over all ranks of the job
 * is the square of the global norm. */
int holmes_dp_take_squares(struct holmes_dp *d, double *sum_squares);

/* AdamW on this rank's part, gradients multiplied by grad_scale; starts to tell the others. Without
 * overlap everyone has all weights when it returns. Step `t` counts from 1. */
int holmes_dp_update(struct holmes_dp *d, float lr, float grad_scale, int t);

/* Everyone has all weights. Before they are read other than by forward, and before the end. */
int holmes_dp_settle(struct holmes_dp *d);

#endif
