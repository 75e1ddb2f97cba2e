/* What the two forms of the reference share: the streams, and which bytes go over them.
 *
 *     collectives:  rank r --streams--> rank r+1, all ranks at once; 2(n-1) or n-1 blocks each
 *     sendrecv:     rank 2k <--streams--> rank 2k+1
 */
#ifndef HOLMES_BENCH_REFERENCE_H
#define HOLMES_BENCH_REFERENCE_H

#include "rank.h"

struct holmes_runner {
    const struct holmes_rank_attr *attr;
    /* to the next rank, from the one before */
    int out_fd[HOLMES_BENCH_STREAMS_MAX], in_fd[HOLMES_BENCH_STREAMS_MAX];
};

/* One run. */
struct holmes_reference_run {
    struct holmes_runner *r;
    const struct holmes_rank_work *w;
    enum holmes_bench_measure measure;
    size_t streams, threads, iters; /* threads 0: blocking, one for each end of each stream */
};

/* Each meets the other ranks, then times the run. 0 or a negative errno. */
int holmes_reference_block(const struct holmes_reference_run *run, struct holmes_timing *t);
int holmes_reference_poll(const struct holmes_reference_run *run, struct holmes_timing *t);

/* Blocks that each rank passes on in one operation. */
size_t holmes_reference_steps(const struct holmes_rank_attr *a);
/* Blocks that fit a socket's buffer: each step's send waits for the receive of the step before, as
 * the data of a ring depend on each other. Larger ones go as fast as the streams take them. */
bool holmes_reference_chained(const struct holmes_reference_run *run);
/* A piece of a buffer that holds `blocks` of them (whole elements): of block `step` the part that
 * stream `s` of `n` carries (holmes_link_part). Returns its offset. */
size_t holmes_reference_share(const struct holmes_rank_work *w, size_t bytes, size_t blocks,
                              size_t step, size_t s, size_t n, size_t *len);

/* Whole buffers, blocking; -ETIMEDOUT when not a byte moves within the timeout. */
int holmes_reference_send(int fd, const void *buf, size_t len);
int holmes_reference_recv(int fd, void *buf, size_t len);
/* All ranks of the ring (or both of the pair) are here: a byte goes round it. */
int holmes_reference_meet(struct holmes_runner *r);

static inline void holmes_reference_beat(const struct holmes_reference_run *run)
{
    atomic_fetch_add_explicit(run->r->attr->beat, 1, memory_order_relaxed);
}

#endif
