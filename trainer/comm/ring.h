/* Ring algorithms as data: which bytes a rank sends and receives as its i-th message, and what has
 * to have happened before. Pure arithmetic; net_stream.c executes it.
 *
 * A block is cut into chunks, `group` chunks form a group, and messages are ordered (group, step,
 * chunk): while the chunks of one step are on the wire, those received before them are summed. A
 * send depends on the receive `group` messages earlier, except in the first step of a group.
 */
#ifndef HOLMES_RING_H
#define HOLMES_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum holmes_ring_kind {
    HOLMES_RING_ALL_REDUCE,     /* count: elements of the whole array */
    HOLMES_RING_REDUCE_SCATTER, /* count: elements of a block; in has size blocks, out one */
    HOLMES_RING_ALL_GATHER,     /* count: elements of a block; in has one, out size blocks */
    HOLMES_RING_BROADCAST,      /* count: elements of the message; out only, on the root too */
    HOLMES_RING_BARRIER,        /* count 0: an all-gather of nothing */
    HOLMES_RING_SEND,           /* count: elements, from in */
    HOLMES_RING_RECV,           /* count: elements, to out */
};

#define HOLMES_RING_GROUP 8 /* most chunks in a group */

struct holmes_ring_attr {
    enum holmes_ring_kind kind;
    int rank, size, root;
    size_t count, elem_bytes;
    size_t chunk_min, chunk_max; /* bytes; the same on all ranks */
};

struct holmes_ring {
    struct holmes_ring_attr attr;
    size_t block, chunk; /* elements; the last of either may be shorter or empty */
    uint64_t steps, group, groups;
    uint64_t nsend, nrecv; /* messages of this rank */
};

enum holmes_ring_source {
    HOLMES_RING_FROM_IN,
    HOLMES_RING_FROM_OUT,
    HOLMES_RING_FROM_SLOT, /* the oldest sum kept by HOLMES_RING_SUM_TO_SLOT */
};
enum holmes_ring_sink {
    HOLMES_RING_SUM_TO_SLOT, /* in + received, kept for a later send */
    HOLMES_RING_SUM_TO_OUT,  /* out = in + received */
    HOLMES_RING_TO_OUT,
};

/* Offsets and lengths are bytes. */
struct holmes_ring_send {
    enum holmes_ring_source source;
    size_t offset, len;
    uint64_t needs; /* receives that must be processed before */
    bool own_block; /* all-gather: also belongs into this rank's block of out, at out_offset */
    size_t out_offset;
};
struct holmes_ring_recv {
    enum holmes_ring_sink sink;
    size_t in_offset, out_offset, len;
    uint64_t in_place_needs; /* in == out: sends that must be over before out is written */
};

/* With count 0 only barrier, send and recv have messages. */
void holmes_ring_init(struct holmes_ring *r, const struct holmes_ring_attr *attr);
void holmes_ring_send_at(const struct holmes_ring *r, uint64_t i, struct holmes_ring_send *out);
void holmes_ring_recv_at(const struct holmes_ring *r, uint64_t i, struct holmes_ring_recv *out);

#endif
