/* Private to the wire `sockets`: a lane is one non-blocking TCP stream of our own, driven by the
 * thread that polls its cq. No library, no thread.
 *
 * wire_nic.lock covers the lists of lanes and strangers and the rise of lanes; a lane that is up
 * belongs to the thread of its cq, and only wire_lane.status crosses threads. Registrations have a
 * lock of their own, which is held for reading while the kernel copies into one, so that nothing
 * lands once it is gone.
 */
#ifndef HOLMES_SOCK_H
#define HOLMES_SOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../driver.h"
#include "../tcp_peer.h"
#include "list.h"

/* ---- what crosses the network ------------------------------------------------------------- */

/* Of the blob and of the request with which a stream begins (tcp_peer.h). */
#define SOCK_MAGIC 0x48534f4bu /* "HSOK" */

/* The accepting end's answer to a request that quotes a waiting lane's secret: SOCK_MAGIC, big
 * endian, and TCP_PEER_VERSION, three zeros. Any other stream is closed. */
#define SOCK_ANSWER_LEN 8

/* In front of the bytes of each write. Little-endian, 32 bytes. */
struct sock_head {
    uint64_t key;
    uint64_t offset; /* of the registration */
    uint64_t len;    /* bytes that follow */
    uint32_t imm;
    uint8_t flags; /* SOCK_HAS_IMM */
    uint8_t zero[3];
};
#define SOCK_HAS_IMM 1u
_Static_assert(sizeof(struct sock_head) == 32, "no padding");

#define SOCK_MAX_WRITE ((size_t)1 << 30)

/* 0 or -EPROTO: unknown flags, a length beyond SOCK_MAX_WRITE, nothing in it at all. */
int holmes_sock_head_check(const struct sock_head *h);

/* ---- objects ------------------------------------------------------------------------------ */

#define SOCK_INLINE_MAX    128 /* bytes */
#define SOCK_WRITES_MAX    128 /* posted to a lane and not reported */
#define SOCK_READ_AHEAD    4096
#define SOCK_STRANGERS_MAX 64

struct sock_mr {
    uint64_t key; /* its index is in the low bits; 0: free */
    uint8_t *base;
    size_t len;
};

/* Accepted, its request not yet here. */
struct sock_stranger {
    int fd;
    uint64_t since_ns;
    uint8_t request[TCP_REQUEST_LEN];
    size_t len;
};

struct wire_nic {
    struct holmes_nic nic;
    int listen_fd;
    struct holmes_addr listen;

    pthread_mutex_t lock;
    struct holmes_list lanes;                               /* wire_lane.node */
    struct sock_stranger strangers[SOCK_STRANGERS_MAX + 1]; /* in order of arrival */
    int nstrangers;
    int rising;  /* lanes that dial */
    int waiting; /* lanes whose secret nobody has quoted */
    uint64_t next_accept_ns;

    pthread_rwlock_t mrs_lock;
    struct sock_mr *mrs;
    uint32_t nmrs;
};

struct wire_cq {
    struct wire_nic *wn;
    struct holmes_list lanes; /* wire_lane.in_cq */
    unsigned polls;
};

struct sock_write {
    uint8_t head[sizeof(struct sock_head) + SOCK_INLINE_MAX]; /* with the bytes of an inline one */
    uint32_t head_len;
    bool report;
    const uint8_t *body;
    size_t body_len;
    void *context;
};

/* Writes [reported, sent) are the kernel's, [sent, posted) ours; counts, modulo the ring. */
struct sock_sender {
    struct sock_write ring[SOCK_WRITES_MAX];
    unsigned reported, sent, posted;
    size_t done; /* bytes of write `sent` that the kernel has */
};

struct sock_receiver {
    uint8_t ahead[SOCK_READ_AHEAD]; /* [first, end) was read and not looked at */
    size_t first, end;
    struct sock_head head; /* of the write that is arriving */
    uint64_t left;         /* of its bytes */
    bool arriving;
    unsigned idle; /* reads in a row that brought nothing */
};

enum sock_rise { SOCK_WAITING, SOCK_DIALING, SOCK_ASKING, SOCK_LISTENING, SOCK_RISEN };

struct wire_lane {
    struct wire_nic *wn;
    struct wire_cq *cq;
    enum wire_role role;
    struct holmes_list node, in_cq;
    struct holmes_addr via; /* connecting: see wire_ops.lane_via; family 0 until told */
    uint64_t secret;        /* accepting: ours, 0 once quoted; connecting: the peer's */
    enum sock_rise rise;
    uint8_t shake[TCP_REQUEST_LEN]; /* request to be sent, answer as it comes */
    size_t shaken;
    int fd;            /* -1: none yet */
    atomic_int status; /* -EAGAIN rising, 0 up, else the first error */
    struct sock_sender out;
    struct sock_receiver in;
};

/* Leaves -EAGAIN or 0 for an error once; later errors are dropped. */
void holmes_sock_lane_fail(struct wire_lane *lane, int error);

/* sock_rise.c; wn->lock held. */
int holmes_sock_lane_dial(struct wire_lane *lane, const struct holmes_addr *source,
                          const struct holmes_addr *to);
void holmes_sock_strangers_close(struct wire_nic *wn);

/* sock_mr.c: where `len` bytes at `offset` of a registration are, NULL when they are in none.
 * mrs_lock held for reading until nothing is written there any more. */
uint8_t *holmes_sock_mr_find(struct wire_nic *wn, uint64_t key, uint64_t offset, uint64_t len);

#endif
