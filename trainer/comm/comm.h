/* Collective operations of one communicator, asynchronous with a handle.
 *
 * A communicator is a group of ranks. Backends fill struct holmes_comm_ops: `net` (rings over any
 * NCCL net plugin, on host memory), `nccl` (on memory of a GPU), `loopback` (a group of one). Calls
 * on one communicator come from one thread at a time and must be issued in the same order on all of
 * its ranks (send/recv pairs: in the same order on both ends of the pair).
 *
 * An operation starts after everything that was queued before the call on the kernels' stream that
 * its communicator has been given. Communicators without `follow` have none: kernels that queue
 * their calls cannot be used with them.
 *
 * Errors are 0 or a negative errno; the first error of a communicator is sticky, is logged once
 * where it arose, and every outstanding handle completes with it.
 */
#ifndef HOLMES_COMM_H
#define HOLMES_COMM_H

#include "dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct holmes_comm;
struct holmes_op; /* one operation under way */

struct holmes_comm_traffic {
    uint64_t bytes_sent, bytes_received;       /* payload handed to the network */
    uint64_t messages_sent, messages_received; /* network messages */
};

struct holmes_comm_ops {
    const char *name;
    /* Each starts an operation and returns 0 with a handle in *op, which holmes_comm_wait frees.
     * Buffers belong to the communicator until then. counts are elements. Sums are made in float32
     * for both types; the result is the same on every rank, bit for bit. */
    int (*all_reduce)(struct holmes_comm *c, const void *in, void *out, size_t count,
                      enum holmes_dtype t, struct holmes_op **op); /* in == out allowed */
    /* in: size*count elements; out: this rank's block of count (may be in + rank*count). */
    int (*reduce_scatter)(struct holmes_comm *c, const void *in, void *out, size_t count,
                          enum holmes_dtype t, struct holmes_op **op);
    /* in: count elements (may be out + rank*count); out: size*count. */
    int (*all_gather)(struct holmes_comm *c, const void *in, void *out, size_t count,
                      enum holmes_dtype t, struct holmes_op **op);
    int (*broadcast)(struct holmes_comm *c, void *buf, size_t count, enum holmes_dtype t, int root,
                     struct holmes_op **op);
    int (*send)(struct holmes_comm *c, const void *buf, size_t bytes, int peer,
                struct holmes_op **op);
    /* The peer must send exactly `bytes`. */
    int (*recv)(struct holmes_comm *c, void *buf, size_t bytes, int peer, struct holmes_op **op);
    int (*barrier)(struct holmes_comm *c, struct holmes_op **op);

    /* What is queued on the kernels' stream from now on comes after the operation; the host does
     * not wait. The handle still has to be waited for, with a timeout. An error: the host has to
     * wait before it queues what needs the operation, and the wait tells why: -ENOTSUP when the
     * operation ends in host memory. NULL where kernels' calls are done when they return. */
    int (*follow)(struct holmes_op *op);

    int (*test)(struct holmes_op *op, bool *done); /* does not free */
    /* Frees, but for -ETIMEDOUT: not done within timeout_ms; and -EBUSY: the same, but the stream
     * has not come yet to where it follows the operation, which thus keeps nobody waiting. With
     * timeout_ms < 0 it always frees: when the communicator's own deadline passes, that is the
     * communicator's error, -ETIME. */
    int (*wait)(struct holmes_op *op, int timeout_ms);
    /* Traffic with rank `peer` of this communicator so far. */
    void (*traffic)(struct holmes_comm *c, int peer, struct holmes_comm_traffic *out);
    /* Completes what is outstanding with -ECANCELED; those handles still have to be waited for. */
    void (*destroy)(struct holmes_comm *c);
};

struct holmes_comm {
    const struct holmes_comm_ops *ops;
    int rank, size;
    char kind[16];     /* "dp", "pp", "tp", "embed", "world": what its bytes are counted as */
    uint64_t stall_ns; /* that the stream stood still for followed operations which are over */
};

/* A group of one: copies. */
int holmes_comm_loopback_create(const char *kind, struct holmes_comm **out);

/* In place of another one: the same place in the same group, but nothing is moved, and every
 * operation is over at once. */
int holmes_comm_nothing_create(const struct holmes_comm *like, struct holmes_comm **out);

#endif
