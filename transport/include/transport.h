/* Connections that move messages between two processes over whatever wire the two NICs share.
 *
 * One struct holmes_transport per process holds the NICs, the shared listener and the drivers. A
 * struct holmes_conn is one direction: messages go from the end that connected to the end that
 * accepted. Matching, sizes and completion follow the contract of NCCL's net plugins.
 *
 * Errors are 0 or a negative errno. -EAGAIN is the only "not yet": nothing was taken, call again.
 * A connection fails once, keeps its first error and returns it ever after; its requests complete
 * with that error. No call blocks. Every call may come from any thread; calls on one connection
 * are serialised by a lock of that connection.
 */
#ifndef HOLMES_TRANSPORT_H
#define HOLMES_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nic.h"

#define HOLMES_HANDLE_SIZE  128 /* bytes: NCCL_NET_HANDLE_MAXSIZE */
#define HOLMES_MAX_REQUESTS 32  /* receive groups outstanding per connection */
#define HOLMES_MAX_GROUP    8   /* buffers in one grouped receive */
#define HOLMES_MAX_LANES    8
#define HOLMES_MAX_RAILS    4 /* ports in one fused NIC */

/* A forked child inherits memory but neither sockets (they are closed there) nor threads, and locks
 * as they were: to close there what the parent opened, and to deregister, does nothing. Other calls
 * are not for the child. */
struct holmes_transport;
struct holmes_listen;
struct holmes_conn;
struct holmes_request;
struct holmes_mr;

/* Opens the wires and one listener on the given NICs (copied). Fails with -EINVAL for a bad
 * HOLMES_* value, -ELIBACC when no wire's library can be opened, -EADDRINUSE when
 * HOLMES_PORT_RANGE is exhausted, each after one log line that says so. Several transports may
 * exist in a process. */
int holmes_transport_create(const struct holmes_nic *nics, int nnics,
                            struct holmes_transport **out);

/* Closes whatever is left open, writes HOLMES_STATS, frees all. NULL is fine. No other call may be
 * running. */
void holmes_transport_destroy(struct holmes_transport *t);

/* Closes listens and half-made connections of `owner` that nobody took: what an aborted
 * communicator leaves behind. Returns the number of listens. */
int holmes_transport_reap(struct holmes_transport *t, const void *owner);

/* Names the owner of what it connects from now on, for counters, and gives it a traffic class (-1:
 * none). Forgotten with holmes_transport_reap. -ENOMEM. */
int holmes_transport_set_owner(struct holmes_transport *t, const void *owner, uint64_t communicator,
                               int traffic_class);

/* Writes a handle that any process may give to holmes_connect, wherever the listener's addresses
 * reach. `handle` has HOLMES_HANDLE_SIZE bytes and no alignment. */
int holmes_listen(struct holmes_transport *t, const void *owner, int nic, void *handle,
                  struct holmes_listen **out);
/* False: nothing was closed. NULL is fine. */
bool holmes_listen_close(struct holmes_listen *l);

/* Polled until it returns 0 (connection in *out) or an error. The state between calls lives in
 * `handle`: call with the same buffer. Errors: -EPROTO a handle or peer that is not ours,
 * -ECONNREFUSED, -ETIMEDOUT after HOLMES_CONNECT_TIMEOUT, or what the wire says. */
int holmes_connect(struct holmes_transport *t, const void *owner, int nic, void *handle,
                   struct holmes_conn **out);

/* Polled likewise. The connection does not depend on the listen object afterwards. Strangers on
 * the listener cost one log line each and never make it fail. */
int holmes_accept(struct holmes_listen *l, struct holmes_conn **out);

/* Cancels what is outstanding, waits for nobody. After it returns nothing lands in any buffer of
 * this connection. False: nothing was closed. NULL is fine. */
bool holmes_conn_close(struct holmes_conn *c);

/* Registers [addr, addr+len) of host memory. The same range registered again gives the same
 * handle; each is given back once. len 0 is -EINVAL. */
int holmes_mr_reg(struct holmes_conn *c, void *addr, size_t len, struct holmes_mr **out);
/* The same for GPU memory by its address, and by a dma-buf (`offset` of `addr` in it; the
 * descriptor is not needed afterwards). Where the connection's wire cannot reach it, messages pass
 * through pinned host memory: a CUDA context must be current at the first such registration, and
 * the buffer is received alone, not in a group. -EOPNOTSUPP where nothing of this works. */
int holmes_mr_reg_cuda(struct holmes_conn *c, void *addr, size_t len, struct holmes_mr **out);
int holmes_mr_reg_dmabuf(struct holmes_conn *c, void *addr, size_t len, uint64_t offset, int fd,
                         struct holmes_mr **out);
/* After it returns nothing lands in the range through this connection: outstanding requests of `c`
 * on it fail the connection with -ECANCELED. NULL is fine. */
int holmes_mr_dereg(struct holmes_conn *c, struct holmes_mr *mr);

/* Starts a send of `len` bytes (0 is a message too; `mr` may then be NULL). -EAGAIN: the peer has
 * no matching receive yet, or all requests are out. -EMSGSIZE: larger than the matching receive;
 * the connection fails on both ends. The buffer belongs to the transport until holmes_test says
 * done, which means that the peer has all of it. */
int holmes_isend(struct holmes_conn *c, const void *buf, size_t len, int tag, struct holmes_mr *mr,
                 struct holmes_request **out);

/* Posts a group of `n` receive buffers, each of at most lens[i] bytes; sends fill the group by tag
 * before the next group is looked at. Arrays are copied. */
int holmes_irecv(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                 const int *tags, struct holmes_mr *const *mrs, struct holmes_request **out);

/* The same for a buffer whose reader polls the flags of NCCL's protocols LL and LL128 in it, rather
 * than wait for holmes_test: no flag appears before the bytes that it vouches for. (In host memory
 * and over RDMA it never does.) */
int holmes_irecv_polled(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                        const int *tags, struct holmes_mr *const *mrs, struct holmes_request **out);

/* Before a receive into GPU memory is used there: makes the received bytes visible to the GPU. *out
 * is NULL where there is nothing to do. -EAGAIN: call again. `lens` are the received sizes. */
int holmes_iflush(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                  struct holmes_mr *const *mrs, struct holmes_request **out);

/* Drives the connection. When *done is set the request is gone; `lens` (NULL is fine) then has the
 * true size of each of its messages: one for a send, n for a receive. On an error the request is
 * gone as well. */
int holmes_test(struct holmes_request *r, bool *done, size_t *lens);

/* What a connection did; a snapshot. */
struct holmes_conn_stats {
    uint64_t id;              /* unique in the process */
    uint64_t communicator;    /* of its owner; 0: none was named */
    bool sending;             /* connected (true) or accepted */
    char local[64], peer[64]; /* "eth0 10.0.0.1" and peer's address */
    char wire[16];            /* "tcp", "tcp-libfabric", "verbs" */
    char reason[128];
    int lanes;
    uint64_t messages, bytes; /* completed payload */
    uint64_t retries;         /* posts that the wire had no room for at first */
    uint64_t staged_bytes;    /* copied between GPU and pinned host memory on their way */
};
void holmes_conn_get_stats(struct holmes_conn *c, struct holmes_conn_stats *out);

/* Makes 2 to HOLMES_MAX_RAILS RDMA ports, or Ethernet NICs (by index) one NIC, described by `nic`
 * and numbered *out behind all others: its connections run over all of them. -EINVAL for other
 * members. */
int holmes_transport_fuse(struct holmes_transport *t, const struct holmes_nic *nic,
                          const int *members, int n, int *out);

/* Kinds of memory that connections on NIC `i` can register; host always. */
#define HOLMES_MEMORY_HOST   1u
#define HOLMES_MEMORY_CUDA   2u
#define HOLMES_MEMORY_DMABUF 4u
unsigned holmes_transport_memory(struct holmes_transport *t, int i);

/* Opens and closes the NIC, before there is a transport: 0, or why it cannot be used. -ELIBACC when
 * the wire that would serve it is not there. */
int holmes_nic_check(const struct holmes_nic *nic);

/* Number of NICs, and NIC `i`; pointers live as long as the transport. */
int holmes_transport_nics(const struct holmes_transport *t);
const struct holmes_nic *holmes_transport_nic(const struct holmes_transport *t, int i);

#endif
