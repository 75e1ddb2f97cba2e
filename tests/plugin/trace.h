/* The messages that NCCL sends for a collective, computed as NCCL computes them. */
#ifndef TRACE_H
#define TRACE_H

#include <stddef.h>

#include "nccl_side.h"

#define TRACE_MAX 600

struct trace {
    int n;
    size_t sizes[TRACE_MAX];
};

/* Sends of rank `rank` in a two-rank ring all-reduce of `bytes` bytes of float32 on one channel. */
void trace_ring(enum proto proto, size_t bytes, int rank, struct trace *out);

/* What irecv offers, how many messages are in flight, and the distance of their slots. */
size_t trace_recv_max(enum proto proto);
int trace_depth(enum proto proto);
size_t trace_stride(enum proto proto);

/* Sends on channel `channel` for ncclSend of `bytes` bytes with two channels on two nodes. */
void trace_p2p(size_t bytes, int channel, struct trace *out);
/* Size that NCCL 2.28.9 posts for the k-th of them; 2.30 always posts TRACE_P2P_CHUNK. */
size_t trace_p2p_recv_max_2_28(size_t bytes);
#define TRACE_P2P_CHUNK 131072

#endif
