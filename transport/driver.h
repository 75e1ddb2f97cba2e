/* What a wire must do: the seam between the message protocol and ibverbs, sockets, libfabric, or a
 * test.
 *
 * A driver is one const table. All functions return 0 or a negative errno, translated from the
 * library's own customs at the call, and none blocks. Objects of a NIC may be used from several
 * threads; one cq and its lanes are used by one thread at a time (the connection's lock).
 *
 * Raising a lane takes both ends, over the handshake socket of the connection:
 *
 *     connecting end                              accepting end
 *     lane_create(role=CONNECT) -> blob   <--->   lane_create(role=ACCEPT) -> blob
 *     lane_connect(peer's blob)                   lane_connect(peer's blob)
 *     lane_poll == 0: up                          lane_poll == 0: up
 *
 * A blob is what the peer must know: QP number and GID for verbs; listening address and a secret to
 * quote over TCP. It came over an authenticated socket but is still foreign bytes.
 */
#ifndef HOLMES_DRIVER_H
#define HOLMES_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nic.h"

#define HOLMES_LANE_BLOB_MAX 96 /* bytes */
#define HOLMES_BUNDLE_MAX    4  /* NICs under one lane */

/* NICs with an RDMA port go to a wire with `rdma`, all others to one without. */

struct wire_nic;
struct wire_cq;
struct wire_lane;

/* Memory that the peer may write into, or that writes may start from. */
struct wire_mr {
    uint64_t key;  /* to be quoted by the peer, together with an address inside */
    uint64_t base; /* what the peer must use as address of the first byte (0 where the wire counts
                      offsets, the virtual address elsewhere) */
    void *desc;    /* local descriptor for the driver's own use */
    void *priv;
};

enum wire_role { WIRE_CONNECT, WIRE_ACCEPT };

enum wire_event_type {
    WIRE_WRITE_DONE, /* a write posted with a context left our hands (this is not delivery, see
                        wire_limits.delivers) */
    WIRE_IMM,        /* a peer's write with immediate data arrived, and all bytes that the same
                        lane carried before it */
    WIRE_ERROR,      /* a write failed (`context`, or NULL when the wire does not say which) */
};

struct wire_event {
    enum wire_event_type type;
    int error;     /* negative errno of WIRE_ERROR */
    uint32_t imm;  /* of WIRE_IMM */
    void *context; /* of WIRE_WRITE_DONE, WIRE_ERROR */
};

#define WIRE_NO_IMM   0u
#define WIRE_WITH_IMM 1u /* deliver `imm` to the peer's cq after the bytes */
#define WIRE_INLINE                                                                                \
    2u /* bytes are copied before post returns; no completion; len <= inline_max;                  \
          `mr` is not used */
#define WIRE_MORE                                                                                  \
    8u /* another post or cq_push of the same thread follows before it waits for anything */
#define WIRE_QUIET 4u /* no WIRE_WRITE_DONE: that of a later write of the same lane covers it */

struct wire_write {
    const void *buf;
    size_t len; /* 0 is allowed with WIRE_WITH_IMM */
    const struct wire_mr *mr;
    uint64_t remote_addr; /* wire_mr.base of the peer + offset */
    uint64_t remote_key;
    uint32_t imm;
    unsigned flags;
    void *context; /* of the WIRE_WRITE_DONE; ignored with WIRE_INLINE and WIRE_QUIET */
};

struct wire_limits {
    size_t max_write;  /* bytes in one write */
    size_t inline_max; /* bytes of a WIRE_INLINE write; at least 64 */
    uint16_t mtu;      /* of the RDMA port, in bytes; 0: unknown */
    bool dmabuf;       /* mr_reg_dmabuf works here */
    bool delivers; /* after WIRE_WRITE_DONE bytes and immediate reach a peer that lives, whatever
                      this end does next, if it lets go of the lane by lane_linger */
};

/* How a lane is to be raised, agreed by both ends before. NULL: the NIC's first GID, no
 * traffic class, all else zero. */
struct wire_lane_params {
    uint8_t gid_index; /* own GID to use; not used on InfiniBand without GRH, nor on tcp */
    uint16_t mtu; /* path MTU in bytes; 0: the port's own, and the smaller of both ends counts */
    bool probe;   /* short timers: an unreachable peer is known after some 100 ms */
    bool flush;   /* lane_flush will be asked for */
    int traffic_class; /* of the communicator; -1: none was given */
    /* Of a lane of a wire that bundles: streams, 0 means one, and NICs of this host beside the
     * lane's own that its streams may use, as far as they lead to the peer. They stay open longer.
     */
    int streams;
    struct wire_nic *mates[HOLMES_BUNDLE_MAX - 1];
    int nmates;
};

struct wire_ops {
    const char *name; /* "tcp", "tcp-libfabric", "verbs": what users see; at most 15 bytes */
    bool rdma;        /* serves the RDMA ports among the NICs; else the rest of them */
    bool bundles;     /* a lane is as many streams as asked for, among which it shares its writes:
                         a connection needs no more than one on each rail */

    /* Opens the library behind the wire, once; later calls return the first result. On failure a
     * sentence goes to `why`. Changes no signal disposition of the process. */
    int (*load)(char *why, size_t why_len);

    /* `listen_port`: 0 or the first port of [listen_port, listen_port_end] that is free is taken
     * for incoming lanes on the NIC's address nic->addrs[0]. -EADDRINUSE when none is. */
    int (*nic_open)(const struct holmes_nic *nic, uint16_t listen_port, uint16_t listen_port_end,
                    struct wire_nic **out);
    void (*nic_close)(struct wire_nic *wn); /* all its lanes, cqs and mrs are closed before */
    void (*nic_limits)(const struct wire_nic *wn, struct wire_limits *out);

    /* Optional: whether lanes may be raised on it now. -EIO: the device is lost; -ENETDOWN: its
     * link is down. Reads a field. */
    int (*nic_status)(const struct wire_nic *wn);

    /* Connection events of all lanes of this NIC: lanes coming up, peers gone. Cheap enough for
     * every poll of a connect, to be rate-limited in the data path. */
    void (*nic_progress)(struct wire_nic *wn);

    /* Host memory, or GPU memory where nic->rdma.cuda. */
    int (*mr_reg)(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out);
    /* Optional: `len` bytes at `offset` of a dma-buf, which the peer and lane_post address by
     * `addr`, their GPU address. -EOPNOTSUPP where kernel or device cannot. The descriptor is not
     * needed afterwards. fd -1 asks whether it can: -EOPNOTSUPP, or anything else. */
    int (*mr_reg_dmabuf)(struct wire_nic *wn, void *addr, size_t len, uint64_t offset, int fd,
                         struct wire_mr *out);
    void (*mr_dereg)(struct wire_nic *wn, struct wire_mr *mr);

    int (*cq_open)(struct wire_nic *wn, struct wire_cq **out);
    void (*cq_close)(struct wire_cq *cq);
    /* Drives all lanes of the cq and returns the number of events stored, at most `max`; negative
     * only when the cq itself is broken. */
    int (*cq_poll)(struct wire_cq *cq, struct wire_event *events, int max);
    /* Optional: sends what was held back: posts with WIRE_MORE, and word of what has arrived, for
     * which a sender may be waiting. False: something is left that the kernel does not take now. */
    bool (*cq_push)(struct wire_cq *cq);
    /* Optional, with cq_push: whether a sender waits for word of what has arrived. */
    bool (*cq_awaited)(const struct wire_cq *cq);

    /* `blob` has HOLMES_LANE_BLOB_MAX bytes. */
    int (*lane_create)(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                       const struct wire_lane_params *params, void *blob, size_t *blob_len,
                       struct wire_lane **out);
    int (*lane_connect)(struct wire_lane *lane, const void *blob, size_t blob_len);
    /* Optional, before lane_connect on the connecting end: the address at which the peer's host
     * proved itself. A blob with an unspecified address means this one: its NIC was opened with an
     * unspecified first address, because the host does not know under which it is reached. */
    void (*lane_via)(struct wire_lane *lane, const struct holmes_addr *peer);
    /* 0 up, -EAGAIN rising, else the lane's first error (sticky: -ECONNRESET when the peer closed
     * it). Reads a field; nic_progress and cq_poll change it. */
    int (*lane_poll)(struct wire_lane *lane);
    /* Of a wire that bundles: streams of a lane whose peer is known. */
    int (*lane_streams)(const struct wire_lane *lane);
    /* -EAGAIN: no room now, nothing was posted. */
    int (*lane_post)(struct wire_lane *lane, const struct wire_write *w);
    /* Optional: makes what arrived in GPU memory at `buf` visible to the GPU, by reading it back
     * through the NIC. Reported as WIRE_WRITE_DONE. The lane was created with `flush`. */
    int (*lane_flush)(struct wire_lane *lane, const void *buf, const struct wire_mr *mr,
                      void *context);
    /* Optional, of a wire whose writes may be said to be done before the peer has them: waits until
     * the peer's kernel has all that was posted, as long as it takes any of it in half a second,
     * for ten seconds at most, and not at all for a peer that is gone; nor for long if another lane
     * just waited in vain. */
    void (*lane_linger)(struct wire_lane *lane);
    /* Optional, of a wire whose lanes lose parts of themselves and go on: false while word of what
     * has arrived may still have to be told again, so that somebody must go on to poll though
     * nothing is asked of the connection. */
    bool (*lane_settled)(struct wire_lane *lane);
    /* Afterwards nothing of this lane lands and none of its contexts is reported any more. NULL is
     * fine. */
    void (*lane_close)(struct wire_lane *lane);
};

/* TCP streams of our own; nothing to load. What drives TCP unless the user says otherwise. */
extern const struct wire_ops holmes_wire_sock;
/* libfabric, provider tcp. */
extern const struct wire_ops holmes_wire_ofi;
/* libibverbs, reliable connections. */
extern const struct wire_ops holmes_wire_verbs;

/* The wires of this build in order of preference, NULL-terminated. Tests put a wrapper in front
 * with holmes_wires_override(NULL restores). */
const struct wire_ops *const *holmes_wires(void);
void holmes_wires_override(const struct wire_ops *const *wires);

#endif
