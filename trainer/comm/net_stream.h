/* Operations and the streams that carry them out. A stream is an ordered queue of operations over
 * at most one connection in each direction: the ring of a communicator, or the sends to one peer,
 * or the receives from one. Streams are independent of each other, so that a communicator can send
 * and receive at once, whatever the order in which its peers do.
 *
 * Memory: messages of large operations leave from and arrive in the caller's buffers, registered on
 * the connection (net_conn.h); what has to be summed first arrives in slots of the stream. Small
 * operations are copied through slots both ways.
 *
 * All functions but create, destroy and holmes_op_wait/_test run on the progress thread.
 */
#ifndef HOLMES_NET_STREAM_H
#define HOLMES_NET_STREAM_H

#include "comm.h"
#include "net_conn.h"
#include "ring.h"
#include "trace.h"

#define HOLMES_STREAM_WINDOW 8 /* most requests outstanding per direction */

struct holmes_net_comm;
struct holmes_stream;

struct holmes_op {
    struct holmes_list node;
    struct holmes_stream *stream;
    struct holmes_ring ring;
    const char *name; /* "all_reduce" */
    char trace_name[HOLMES_TRACE_NAME];
    uint64_t trace_begin; /* when its first message could go; 0: not traced */
    enum holmes_dtype dtype;
    const char *in;
    char *out;
    bool small;    /* copied through slots */
    bool in_place; /* in and out overlap */
    bool started;
    struct holmes_region *in_tx, *out_tx, *out_rx;
    uint64_t send_posted, send_done, recv_posted, recv_done;
    int rc;
    atomic_bool done;
};

/* Prepares an operation for `st`; registers its buffers when the connections are up already. */
int holmes_op_create(struct holmes_stream *st, const struct holmes_ring_attr *attr,
                     const char *name, enum holmes_dtype t, const void *in, void *out,
                     struct holmes_op **op);
/* Registers what holmes_op_create could not yet; on failure the rest is released with the op. */
int holmes_op_register(struct holmes_op *op);
/* Releases its memory and wakes who waits. The operation may be gone when this returns. */
void holmes_op_complete(struct holmes_op *op, int rc);
bool holmes_op_done(const struct holmes_op *op);
/* False when it is not done in time; timeout_ms < 0 waits without end. */
bool holmes_op_wait(struct holmes_op *op, int timeout_ms);
void holmes_op_destroy(struct holmes_op *op); /* done, or never submitted */

/* Fixed-size pieces of registered memory; a set bit of `free` is a free slot. */
struct holmes_slots {
    char *data;
    size_t size;
    uint32_t free;
    struct holmes_region *tx, *rx;
};

struct holmes_msg {
    struct holmes_op *op;
    void *request;
    size_t len;
    int slot; /* -1: the caller's memory */
    uint64_t index;
};

struct holmes_window {
    struct holmes_msg msg[HOLMES_STREAM_WINDOW];
    unsigned int first, count;
};

struct holmes_stream {
    struct holmes_list in_active; /* the progress thread's list of streams with work */
    struct holmes_list in_comm;
    struct holmes_net_comm *comm;
    struct holmes_conn *tx, *rx; /* either may be NULL; not owned */
    bool overlap;                /* messages of the next operation may follow at once */
    int rank;
    struct holmes_list ops;
    struct holmes_window sending, receiving;
    struct holmes_slots tx_slots, rx_slots;
    int8_t kept[16]; /* rx slots with sums that wait to be sent, oldest first */
    unsigned int kept_first, kept_count;
    char track[HOLMES_TRACE_NAME];
    uint64_t traced_until; /* its events follow each other */
    int staged; /* tx slot filled for a send that the plugin did not take yet; -1: none */
};

int holmes_stream_create(struct holmes_net_comm *comm, int rank, struct holmes_conn *tx,
                         struct holmes_conn *rx, struct holmes_stream **out);
/* After its connections are closed. NULL is fine. */
void holmes_stream_destroy(struct holmes_stream *st);

/* Bytes that a stream takes for slots once it carried such an operation. Pure. */
size_t holmes_stream_slot_bytes(const struct holmes_ring_attr *attr);

/* Moves what can be moved. An error is final: `why` says what failed with which rank. */
int holmes_stream_progress(struct holmes_stream *st, bool *moved, char *why, size_t why_len);
/* "all_reduce: received 3 of 12 messages from rank 1, sent 4 of 12 to rank 0" of the oldest
 * operation. */
void holmes_stream_describe(const struct holmes_stream *st, char *text, size_t len);
/* Closes its ready connections, so that nothing is written to user memory any more, and completes
 * every operation with rc. */
void holmes_stream_cancel(struct holmes_stream *st, int rc);

#endif
