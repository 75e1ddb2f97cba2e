/* The handshake socket: framed, non-blocking, with partial reads and writes. It stays open for the
 * life of a connection, because its end of file is the sign of the peer's death and its keepalive
 * the only thing that notices a cut link on an idle connection.
 *
 * Not thread safe: the owner (a dialer, the listener, a connection) locks. In forked children every
 * such socket is closed, so that a child cannot keep a dead parent's connections alive.
 */
#ifndef HOLMES_OOB_H
#define HOLMES_OOB_H

#include "proto.h"

struct oob {
    int fd; /* -1: closed */
    /* incoming frame */
    struct proto_frame in_frame;
    uint8_t in_payload[PROTO_PAYLOAD_MAX];
    size_t in_done; /* of frame and payload together */
    /* outgoing bytes not yet taken by the kernel */
    uint8_t out[2 * (sizeof(struct proto_frame) + PROTO_PAYLOAD_MAX)];
    size_t out_len, out_done;
};

/* Takes over a connected or connecting socket (closed by oob_close). Sets no-delay, keepalive and
 * the peer time-out. */
void oob_init(struct oob *o, int fd);
/* Of a TCP socket: no-delay, and an error when the peer's kernel is silent for HOLMES_PEER_TIMEOUT,
 * whether something is in flight or not. */
void oob_peer_timeout(int fd);
void oob_close(struct oob *o);
/* The socket changes hands: `from` is closed without closing it. */
void oob_move(struct oob *to, struct oob *from);

/* Starts to dial from `source` (NULL: any; its port is ignored). 0 or a negative errno;
 * oob_dial_poll then says 0 (connected), -EAGAIN or an error. */
int oob_dial(struct oob *o, const struct holmes_addr *source, const struct holmes_addr *peer);
int oob_dial_poll(struct oob *o);

/* Queues a frame and sends what the kernel takes. -ENOBUFS when the peer reads nothing. */
int oob_send(struct oob *o, enum proto_type type, const void *payload);
/* 0 all sent, -EAGAIN, or an error. */
int oob_flush(struct oob *o);
/* 0: a whole valid frame lies in in_frame/in_payload until the next call. -EAGAIN: not yet.
 * -ECONNRESET: end of file or reset; -ETIMEDOUT: the peer's kernel is silent; -EPROTO and
 * -EPROTONOSUPPORT with a sentence in `why`. */
int oob_recv(struct oob *o, char *why, size_t why_len);

/* "10.0.0.1:4242" of a socket address, in `buf` of `len` >= 64 bytes; returns buf. */
const char *oob_addr_text(const struct sockaddr *sa, char *buf, size_t len);
/* Addresses of the two ends; family 0 when the socket has none any more. */
void oob_local_addr(const struct oob *o, struct holmes_addr *out);
void oob_peer_addr(const struct oob *o, struct holmes_addr *out);

/* For other long-lived sockets of the transport (the listener): closed in forked children too. */
void oob_fork_guard_add(int fd);
void oob_fork_guard_remove(int fd);

#endif
