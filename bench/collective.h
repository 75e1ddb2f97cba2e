/* What each benchmark moves: element counts, buffers, and the factor between the bandwidth that a
 * caller sees and the one that the wire carries. Pure.
 *
 * "Size" is nccl-tests' own: the bytes of the largest buffer of a rank. all_reduce and sendrecv use
 * it whole; all_gather's output and reduce_scatter's input have a block of it for each rank.
 */
#ifndef HOLMES_BENCH_COLLECTIVE_H
#define HOLMES_BENCH_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm.h"

enum holmes_collective {
    HOLMES_ALL_REDUCE,
    HOLMES_ALL_GATHER,
    HOLMES_REDUCE_SCATTER,
    HOLMES_SENDRECV,
    HOLMES_COLLECTIVE_COUNT,
};

/* "all_reduce"; -EINVAL for a name that is none. */
const char *holmes_collective_name(enum holmes_collective c);
int holmes_collective_parse(const char *name, enum holmes_collective *out);

/* Bytes over each link, as a multiple of the size, at best: 2(n-1)/n, (n-1)/n or 1. */
double holmes_collective_factor(enum holmes_collective c, int nranks);

struct holmes_shape {
    uint64_t size_bytes; /* what was asked, cut to whole elements (and blocks) */
    size_t count;        /* elements, as nccl-tests' column: of a block where there are any */
    size_t in_bytes, out_bytes;   /* buffers of a rank */
    size_t in_blocks, out_blocks; /* pieces of them that a ring moves at a time: 1 or nranks */
};

/* False when not even one element (for each rank, where blocks are meant) fits the size. */
bool holmes_shape_of(enum holmes_collective c, uint64_t size_bytes, int nranks,
                     enum holmes_dtype type, struct holmes_shape *out);

/* sendrecv: messages under way at a time for this size, up to `window`: fewer of the large ones, so
 * that receive buffers stay within 64 MiB, but two at least. */
size_t holmes_window_of(uint64_t size_bytes, size_t window);
/* The most that those messages take together, for any size up to `max_bytes`. */
uint64_t holmes_window_bytes_max(uint64_t max_bytes, size_t window);

#endif
