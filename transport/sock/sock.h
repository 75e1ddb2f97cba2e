/* Private to the wire of plain sockets: a lane is a bundle of non-blocking TCP streams of our own,
 * driven by the thread that polls its cq. No library, no thread.
 *
 * Writes are numbered as they are posted. A stream that has room takes the next piece of the oldest
 * write that has bytes left (sock_share.c decides whether it should); the receiving end counts the
 * bytes of each write and reports writes in order. What it has is told in every head it sends.
 *
 * wire_nic.lock covers the lists of lanes and strangers and the rise of streams; a lane that is up
 * belongs to the thread of its cq, and only wire_lane.status crosses threads, unless it is
 * `shared`: then wire_lane.lock covers all of it but what a stream's driver is in the kernel with.
 * Registrations have a lock of their own, which is held for reading while the kernel copies into
 * one, so that nothing lands once it is gone; it is taken before a lane's.
 */
#ifndef HOLMES_SOCK_H
#define HOLMES_SOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../driver.h"
#include "../include/transport.h"
#include "../tcp_peer.h"
#include "list.h"

/* ---- what crosses the network ------------------------------------------------------------- */

/* Of the blob and of the request with which a stream begins (tcp_peer.h). */
#define SOCK_MAGIC 0x48534f4bu /* "HSOK" */

/* The accepting end's answer to a request that quotes a waiting lane's secret: SOCK_MAGIC, big
 * endian, and TCP_PEER_VERSION, three zeros. Any other stream is closed. */
#define SOCK_ANSWER_LEN 8

/* In front of each piece of a write. Little-endian, 40 bytes. */
struct sock_head {
    uint64_t key;
    uint64_t offset;    /* of the piece, in the registration */
    uint32_t len;       /* bytes that follow */
    uint32_t write_len; /* of the whole write; the same in all its pieces, as are imm and flags */
    uint32_t seq;       /* number of the write, from 1 on, modulo 2^32 */
    uint32_t imm;
    uint32_t landed; /* the writer of this head has the peer's writes up to this one */
    uint8_t flags;   /* SOCK_HAS_IMM ... */
    uint8_t lost;    /* bit i: the writer of this head lost stream i, and reads no more of it */
    uint8_t zero[2];
};
#define SOCK_HAS_IMM  1u /* the immediate is told once all writes up to this one are here */
#define SOCK_TELL     2u /* the peer waits for `landed` to reach this write */
#define SOCK_ONLY_ACK 4u /* no write: nothing but `landed` and `lost` counts, all else is zero */
#define SOCK_AGAIN    8u /* a lost stream had this piece: it may be here already */
_Static_assert(sizeof(struct sock_head) == 40, "no padding");

#define SOCK_MAX_WRITE ((size_t)1 << 30)

/* 0 or -EPROTO: unknown flags, lengths beyond SOCK_MAX_WRITE or each other, nothing in it at all, a
 * piece sent again though no stream is lost. */
int holmes_sock_head_check(const struct sock_head *h);

/* ---- objects ------------------------------------------------------------------------------ */

#define SOCK_STREAMS_MAX   HOLMES_MAX_LANES
#define SOCK_INLINE_MAX    2112 /* bytes: a small message with its head */
#define SOCK_WRITES_MAX    1024 /* posted to a lane and not known to have landed; a power of 2 */
#define SOCK_BATCH         16   /* pieces in one system call */
#define SOCK_READ_AHEAD    4096
#define SOCK_SHORT         (256u * 1024) /* bytes of a write that is worth calls for a few us */
#define SOCK_PART_MIN      (32u * 1024)  /* bytes of a piece on average, at least */
#define SOCK_STRANGERS_MAX 64            /* beside those that are awaited */
#define SOCK_MATES_MAX     16

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

/* A lane that waits for streams on the socket of a NIC. */
struct sock_gate {
    struct holmes_list node; /* wire_nic.gates */
    struct wire_nic *wn;
    struct wire_lane *lane;
};

struct wire_nic {
    struct holmes_nic nic;
    int listen_fd;
    struct holmes_addr listen;
    atomic_bool route_warned;
    atomic_uint_fast64_t link_looked_ns; /* when link_down was found out */
    atomic_bool link_down;
    atomic_uint_fast64_t lingered_ns; /* when a lane last waited for its peer in vain; 0: never */

    pthread_mutex_t lock;
    struct holmes_list gates;   /* sock_gate.node, of lanes that are up no longer than a look */
    struct holmes_list dialing; /* wire_lane.node, of lanes whose streams dial */
    /* NICs that lanes of this one use too, and how many lanes do. */
    struct wire_nic *mates[SOCK_MATES_MAX];
    int mate_lanes[SOCK_MATES_MAX];
    int nmates;
    struct sock_stranger *strangers; /* in order of arrival */
    int nstrangers, strangers_cap;
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

/* A write that was posted, until the peer has it. */
struct sock_write {
    struct sock_head head; /* but for offset and len, which each piece has its own */
    uint64_t offset;
    const uint8_t *body; /* its user's, or a copy */
    uint64_t copy_end;   /* of a copy: place behind it, counted from the first ever; else 0 */
    bool report;
    void *context;
};

/* Bytes of inline writes, from posting until the peer has them; each lies in one piece. */
#define SOCK_COPIES (32u * 1024) /* a power of 2 */
struct sock_copies {
    uint8_t *bytes; /* from the first inline write on */
    uint64_t first, end;
};

/* Pieces that were dealt: `len` bytes at `offset` of write `seq`. A ring that grows. */
struct sock_dealt {
    uint32_t seq, offset, len;
};
struct sock_dealt_ring {
    struct sock_dealt *at;
    uint32_t size; /* 0 or a power of 2 */
    uint32_t first, end;
};

/* Sending half of a lane. Numbers of writes: [1, landed] the peer is known to have, (landed, dealt]
 * are with the streams, (dealt, posted] wait; of write dealt + 1 the first `dealt_len` bytes are
 * dealt. Of the only stream of a lane the kernel has [1, sent]: over that nothing is ever sent
 * again, so that a write is done when the kernel has it. */
struct sock_sender {
    struct sock_write *ring; /* grows from nothing to SOCK_WRITES_MAX */
    uint32_t size;           /* of it, a power of 2 */
    struct sock_copies copies;
    uint32_t reported, landed, sent, dealt, posted;
    size_t dealt_len;
    uint64_t waiting;             /* bytes not dealt, or to be dealt again */
    uint64_t posted_ns;           /* when something was last, to a few milliseconds */
    struct sock_dealt_ring again; /* pieces of lost streams, dealt before anything new */
};

/* What the peer's writes have brought. */
struct sock_arrival {
    bool begun;
    uint8_t flags;
    uint32_t write_len, imm;
    uint32_t announced; /* bytes of it, by the heads of its pieces */
    uint32_t left;      /* bytes to come */
    uint64_t *parts;    /* of a write in several pieces: their offsets, as announced */
    uint32_t nparts, parts_cap;
};
struct sock_receiver {
    struct sock_arrival *ring; /* grows from nothing to SOCK_WRITES_MAX */
    uint32_t size;             /* of it, a power of 2 */
    uint32_t landed;           /* all writes up to it are here, and were reported */
    uint32_t told;             /* `landed` as the peer knows it */
    uint64_t untold_bytes;     /* of the writes since: the peer may still keep copies of them */
    bool tell;                 /* it waits for more */
};

/* A piece that a stream sends. */
struct sock_piece {
    struct sock_head head;
    const uint8_t *body;
};

enum sock_rise { SOCK_WAITING, SOCK_DIALING, SOCK_ASKING, SOCK_LISTENING, SOCK_RISEN };

/* How fast a stream is, from what its peer's kernel acknowledges while there is something to send.
 */
struct sock_speed {
    uint64_t looked_ns, acked; /* at the kernel, and what its peer's had */
    uint64_t queued;           /* bytes given to the kernel and not acknowledged */
    double rate;               /* bytes per second; 0: not known */
    double rtt;                /* seconds until bytes are acknowledged, smoothed */
    /* Since the rate was last reckoned: the time with something queued, and what was acknowledged
     * in it. `idled`: some of that time, how much is not known, there was nothing. */
    uint64_t busy_ns, busy_bytes, used_ns;
    bool idled;
};

struct sock_stream {
    struct wire_lane *lane;
    int fd;              /* -1: none yet */
    struct wire_nic *wn; /* whose address it leaves by, or came in by */
    struct holmes_addr peer;
    _Atomic(enum sock_rise) rise;
    uint8_t shake[TCP_REQUEST_LEN]; /* request to be sent, answer as it comes */
    size_t shaken;

    /* Pieces [first, end) are in hand, of the first the kernel has `done` bytes with its head. */
    struct sock_piece hand[SOCK_BATCH];
    unsigned first, end;
    size_t done;
    bool full; /* the kernel takes no more now */
    struct sock_speed speed;
    struct sock_dealt_ring dealt; /* with several streams: what it was dealt and may be lost */

    uint8_t ahead[sizeof(struct sock_head)]; /* the part of a head that has been read */
    size_t nahead;
    struct sock_head head; /* of the piece that is arriving */
    uint32_t left;         /* of its bytes; 0: none is arriving */
    bool again;            /* they are here already: nobody keeps them */
    unsigned idle;         /* reads in a row that brought nothing */
    bool busy;             /* its driver is in the kernel with it and holds no lane lock */
    bool reset;            /* the kernel has told us, once, that it takes no more of ours */
    bool ended;            /* the peer says nothing more */
    int lost; /* why it neither carries nor brings anything any more, its fd still open; else 0 */
};

struct wire_lane {
    struct wire_nic *wn;
    struct wire_cq *cq;
    enum wire_role role;
    struct wire_nic *wns[HOLMES_BUNDLE_MAX]; /* its own, then its mates */
    int nwns;
    struct sock_gate gates[HOLMES_BUNDLE_MAX]; /* accepting: on each of them */
    struct holmes_list node, in_cq;
    struct holmes_addr via; /* connecting: see wire_ops.lane_via; family 0 until told */
    uint64_t secret;      /* accepting: ours, connecting: the peer's; stream i quotes secret + i */
    int nstreams, nended; /* ended and not lost */
    atomic_int nrisen;
    uint64_t ended_ns;  /* when the first stream ended */
    uint8_t lost, said; /* bit i: stream i is, and the user was told */
    bool tell_lost;     /* no head has said so yet */
    uint64_t next_watch_ns;
    atomic_int status; /* -EAGAIN rising, 0 up, else the first error */
    bool shared; /* several threads drive its streams; set before the second one does. None does yet
                  */
    pthread_mutex_t lock;
    struct sock_sender out;
    struct sock_receiver in;
    struct sock_stream streams[SOCK_STREAMS_MAX]; /* nstreams of them */
};

/* The lock of a lane whose streams several threads drive; the others need none. All functions of
 * sock_send.c, sock_recv.c and sock_share.c want it held unless they say otherwise. */
static inline void sock_lane_lock(struct wire_lane *lane)
{
    if (lane->shared)
        pthread_mutex_lock(&lane->lock);
}

static inline void sock_lane_unlock(struct wire_lane *lane)
{
    if (lane->shared)
        pthread_mutex_unlock(&lane->lock);
}

/* Around the copies of bulk, which others need not wait for: nobody else touches the stream's hand
 * and what arrives on it meanwhile. Who is between them waits for no lock that a thread may hold
 * which waits until the stream is not busy (holmes_sock_stream_lost). */
static inline void sock_stream_enter_kernel(struct sock_stream *s)
{
    s->busy = true;
    sock_lane_unlock(s->lane);
}

static inline void sock_stream_leave_kernel(struct sock_stream *s)
{
    sock_lane_lock(s->lane);
    s->busy = false;
}

/* Leaves -EAGAIN or 0 for an error once; later errors are dropped. */
void holmes_sock_lane_fail(struct wire_lane *lane, int error);

/* sock_blob.c: what the ends of a lane tell each other: a struct tcp_blob, and of an accepting one
 * the addresses of its further NICs behind it, 20 bytes each: family 1 (4 or 6), zero 1, port 2,
 * address 16. Decoding checks every byte: 0 or -EPROTO. */
struct sock_peer {
    enum wire_role role;
    int streams, naddrs;
    struct holmes_addr addrs[HOLMES_BUNDLE_MAX];
    uint64_t secret;
};
size_t holmes_sock_blob_encode(const struct sock_peer *p, uint8_t out[HOLMES_LANE_BLOB_MAX]);
int holmes_sock_blob_decode(const void *bytes, size_t len, struct sock_peer *out);

/* sock_pair.c: from which NIC to which of the peer's addresses a lane's streams go. Every NIC that
 * has a way of its own, to its own subnet if it can; every address of the peer that can be reached.
 */
#define SOCK_PAIRS_MAX (2 * HOLMES_BUNDLE_MAX)
struct sock_pair {
    struct wire_nic *wn;
    struct holmes_addr from, to;
};
/* The number of pairs; -EAFNOSUPPORT: nothing leads to the peer. */
int holmes_sock_pairs(struct wire_nic *const *wns, int nwns, const struct sock_peer *peer,
                      struct sock_pair out[SOCK_PAIRS_MAX]);

/* sock_rise.c; the lock of the lane's own NIC is held. */
int holmes_sock_stream_dial(struct sock_stream *s, const struct sock_pair *way);
void holmes_sock_strangers_close(struct wire_nic *wn);

/* sock_send.c: gives the kernel what it takes of what was posted, and of acknowledgements. `retry`:
 * also to streams that were full. `tell`: word of what has arrived too, though it goes alone. True:
 * the kernel has all of it. */
bool holmes_sock_lane_send(struct wire_lane *lane, bool retry, bool tell);
/* What has become of the lane's writes; the number of events. */
int holmes_sock_lane_report(struct wire_lane *lane, struct wire_event *events, int max);
/* The peer has our writes up to `landed`. False: it cannot. */
bool holmes_sock_lane_landed(struct wire_lane *lane, uint32_t landed);

/* sock_lost.c: the stream is gone, and the lane with it unless others are left, over which what it
 * had goes again. Waits, with the lane unlocked, until its driver is not in the kernel with it. */
void holmes_sock_stream_lost(struct sock_stream *s, int error);
/* The peer says in a head that came by `s` which streams it lost. False: no more comes by `s`. */
bool holmes_sock_peer_lost(struct sock_stream *s, uint8_t lost);
/* Before a stream of several is dealt a piece. False: no memory. */
bool holmes_sock_dealt_note(struct sock_stream *s, const struct sock_dealt *piece);
/* The oldest piece to be sent again, NULL: none. Those that the peer has after all are dropped. */
const struct sock_dealt *holmes_sock_again_next(struct sock_sender *o);
/* Now and then, with several streams: those of a NIC whose link is down, and those whose peer has
 * stopped to acknowledge while others go on, are lost. */
void holmes_sock_lane_watch(struct wire_lane *lane);
static inline bool sock_stream_lives(const struct sock_stream *s)
{
    return s->lost == 0 && !s->ended;
}

/* sock_recv.c: reads what has come on the streams that are worth a look in this poll. */
void holmes_sock_lane_read(struct wire_lane *lane);
/* All that has come on the stream. */
void holmes_sock_stream_drain(struct sock_stream *s);
void holmes_sock_receiver_fini(struct sock_receiver *in);
/* What a lost stream has brought of the piece that was arriving does not count. */
void holmes_sock_arrival_drop(struct sock_stream *s);
/* Immediates of the writes that are here, in order; the number of events. */
int holmes_sock_lane_deliver(struct wire_lane *lane, struct wire_event *events, int max);

/* sock_share.c: bytes of the next write that the stream should take, at most `left`; 0: none now.
 */
size_t holmes_sock_share(struct wire_lane *lane, struct sock_stream *s, size_t left);
/* The stream was handed `len` bytes. */
void holmes_sock_share_note(struct sock_stream *s, size_t len);
/* What a look at the kernel found: bytes acknowledged so far, and bytes queued. Pure. */
void holmes_sock_speed_look(struct sock_speed *v, uint64_t now, uint64_t acked, uint64_t queued);

/* sock_mr.c: where `len` bytes at `offset` of a registration are, NULL when they are in none.
 * mrs_lock held for reading until nothing is written there any more. */
uint8_t *holmes_sock_mr_find(struct wire_nic *wn, uint64_t key, uint64_t offset, uint64_t len);

#endif
