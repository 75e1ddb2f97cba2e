/* Everything that crosses between two Holmes processes: layouts, version, encode and decode. No
 * I/O, no allocation. Decoders take foreign bytes: they check every field and touch nothing
 * outside the given length.
 *
 * Integers are little-endian; both supported machines (x86-64, aarch64) are, and the build asserts
 * it. docs/protocol.md tells the exchange as a story.
 *
 * Version history: 1, the first. 2: the wire is chosen per connection (offer, probe, verdict); keys
 * of further rails and parts of a buffer in the clear-to-send. 3: small messages go ahead of
 * clear-to-sends (eager); connections over tcp spread over NICs.
 */
#ifndef HOLMES_PROTO_H
#define HOLMES_PROTO_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "transport.h"

#define PROTO_VERSION 3

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "wire layouts are little-endian");

/* ---- the handle (travels through NCCL's bootstrap) ---- */

#define PROTO_ADDRS      3
#define PROTO_TOKEN_SIZE 16

struct proto_addr {
    uint16_t family; /* 4, 6, or 0: none */
    uint16_t port;
    uint8_t ip[16]; /* 4 bytes used for family 4 */
};

struct proto_handle {
    /* The first two bytes read as an address family that no system has, so that another plugin
     * that takes them for a sockaddr fails at once. */
    uint8_t magic[8];
    uint16_t version, length;
    uint32_t checksum;                    /* over all but itself and `state` */
    uint8_t token[PROTO_TOKEN_SIZE];      /* the secret that admits a peer to this listen */
    struct proto_addr addrs[PROTO_ADDRS]; /* best first */
    uint32_t reserved0;
    uint64_t fabric; /* identity of the device's fabric; 0: unknown */
    uint64_t reserved1;
    uint8_t state[16]; /* the connecting process's own, zero when sent */
};
_Static_assert(sizeof(struct proto_handle) == HOLMES_HANDLE_SIZE, "the handle is 128 bytes");
_Static_assert(offsetof(struct proto_handle, state) == 112, "state is last");

/* Sets magic, version, length and checksum; the caller filled the rest. */
void proto_handle_seal(struct proto_handle *h);
/* 0, -EPROTO (not ours, damaged) or -EPROTONOSUPPORT (another version); `why` gets a sentence. */
int proto_handle_check(const struct proto_handle *h, char *why, size_t why_len);

void proto_addr_encode(const struct sockaddr *sa, uint16_t port, struct proto_addr *out);
int proto_addr_decode(const struct proto_addr *a, struct holmes_addr *out); /* with port set */

/* ---- frames on the handshake socket ---- */

enum proto_type {
    PROTO_HELLO = 1, /* dialing end: which listen, a nonce */
    PROTO_WELCOME,   /* accepting end: proof that it knows the token, a nonce */
    PROTO_AUTH,      /* dialing end: proof, and its struct proto_offer */
    PROTO_PROBE,     /* accepting end: raise this probe; dialing end: raised */
    PROTO_VERDICT,   /* accepting end: the wire, final for both, and its struct proto_info */
    PROTO_INFO,      /* dialing end: its struct proto_info */
    PROTO_UP,        /* either end: all my lanes are up */
    PROTO_ABORT,     /* either end: the connection failed here, with this errno */
    PROTO_BYE,       /* either end: closed in order */
};

struct proto_frame {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t length; /* of the payload behind it */
};
#define PROTO_FRAME_MAGIC 0x534d4c48u /* "HLMS" */
#define PROTO_PAYLOAD_MAX 2048u

struct proto_hello {
    uint64_t listen_id; /* names the listen without giving its token away */
    uint8_t nonce[16];
};

struct proto_welcome {
    uint8_t nonce[16];
    uint64_t mac;
};

struct proto_lane_blob {
    uint16_t len;
    uint8_t bytes[HOLMES_LANE_BLOB_MAX];
};

/* An RDMA port as its peer needs to know it. Strings are NUL-terminated. */
struct proto_gid {
    uint8_t bytes[16];
    uint8_t index, type; /* enum holmes_gid_type */
    uint8_t reserved[2];
};
struct proto_port {
    char name[HOLMES_RDMA_NAME_MAX]; /* "mlx5_0:1" */
    char fabric[HOLMES_RDMA_NAME_MAX];
    uint64_t guid;
    uint16_t lid, mtu;
    uint8_t link_layer; /* enum holmes_link_layer */
    uint8_t port, ngids;
    uint8_t reserved;
    struct proto_gid gids[HOLMES_GIDS_MAX]; /* best first */
};

enum proto_policy { PROTO_POLICY_AUTO, PROTO_POLICY_VERBS, PROTO_POLICY_TCP };

/* What the dialing end can do. */
struct proto_offer {
    uint64_t mac;
    uint32_t pid;
    uint16_t tcp_lanes;     /* wanted */
    uint8_t qps;            /* queue pairs wanted per port */
    uint8_t policy, nports; /* enum proto_policy; ports of the device that NCCL chose */
    uint8_t tcp_nics;       /* over which tcp would go */
    uint8_t reserved[6];
    char host[64], nic[HOLMES_NIC_NAME_MAX];
    char no_rdma[96]; /* why nports is 0 */
    struct proto_port ports[HOLMES_MAX_RAILS];
};

/* What each end tells the other about the lanes it made. */
struct proto_info {
    uint64_t control_addr, control_keys[HOLMES_MAX_RAILS]; /* where the peer writes control */
    uint32_t control_len;
    uint16_t nlanes;
    uint16_t max_group;
    char nic[HOLMES_NIC_NAME_MAX]; /* that carries the connection here */
    struct proto_lane_blob lanes[HOLMES_MAX_LANES];
};

/* How the two ports of a rail are joined. */
struct proto_rail {
    uint8_t dial_port, accept_port; /* index into the ports of each end */
    uint8_t dial_gid, accept_gid;   /* index in the GID table of each port */
    uint16_t mtu;                   /* bytes; 0: not known, the queue pairs agree */
    uint16_t reserved;
};

/* The accepting end's decision. */
struct proto_verdict {
    char wire[16];
    char reason[128];
    char host[64], nic[HOLMES_NIC_NAME_MAX]; /* accepting end's, as NCCL chose it */
    uint32_t pid;
    uint8_t nrails; /* 1 without rdma */
    uint8_t rdma;   /* the rails count */
    uint8_t reserved[2];
    struct proto_rail rails[HOLMES_MAX_RAILS];
    struct proto_info info;
};

/* One try of a path between two ports: each end writes `len` bytes made from the peer's nonce, then
 * an immediate. */
#define PROTO_PROBE_MAX 8192u /* bytes: two of the largest path MTU */
struct proto_probe {
    struct proto_rail rail;
    uint64_t nonce; /* the sender of this frame wants to be shown it */
    uint64_t addr, key;
    uint32_t len;
    uint32_t round; /* frames of different rounds do not belong together */
    struct proto_lane_blob lane;
};

struct proto_abort {
    int32_t error; /* positive errno */
};

/* Orderly end. The acknowledgement of the last write may die with the lane that carried it. */
struct proto_bye {
    uint64_t completed; /* of a receiver: messages it has, from the first on without a gap */
};

/* Copies a text as it may cross: printable ASCII, with ? for the rest, cut to `cap` with its NUL.
 */
void proto_text(char *out, size_t cap, const char *text);

uint64_t proto_listen_id(const uint8_t token[PROTO_TOKEN_SIZE]);
/* Proof of knowing the token, bound to both nonces and the direction ('S' accepting end, 'C'
 * dialing end). */
uint64_t proto_mac(const uint8_t token[PROTO_TOKEN_SIZE], char side, const uint8_t client_nonce[16],
                   const uint8_t server_nonce[16]);

/* Header check of the frame that must come next: 0, -EPROTO, -EPROTONOSUPPORT. */
int proto_frame_check(const struct proto_frame *f, char *why, size_t why_len);
/* Payload length that a type must have; 0 for a type without payload, -1 for an unknown type. */
int proto_payload_size(uint16_t type);
int proto_offer_check(const struct proto_offer *o, char *why, size_t why_len);
int proto_info_check(const struct proto_info *i, char *why, size_t why_len);
/* Against the offer it answers. */
int proto_verdict_check(const struct proto_verdict *v, const struct proto_offer *offer, char *why,
                        size_t why_len);
int proto_probe_check(const struct proto_probe *p, const struct proto_offer *offer, char *why,
                      size_t why_len);

/* ---- control, written by one-sided writes into the peer's memory ---- */

/* Clear-to-send, written by the receiver into the sender's memory: one per receive buffer. `seq` is
 * the last word, read with acquire: over tcp a slot arrives in parts, in order. */
struct proto_cts {
    uint64_t addr, key; /* of the buffer, as the wire wants them quoted; the key for rail 0 */
    uint64_t size;      /* bytes the buffer takes, from this slot's part on */
    uint64_t acked;     /* messages complete at the receiver, from the first on without a gap */
    uint32_t rail_keys[HOLMES_MAX_RAILS - 1]; /* for the further rails: RDMA keys have 32 bits */
    int32_t tag;
    uint8_t group_index, group_count;
    uint16_t part_lines; /* of a buffer in parts: bytes of each but the last, over 128 */
    uint32_t parts_left; /* slots that follow this one and continue its buffer */
    uint64_t seq;        /* message number, counted from 1 */
};
_Static_assert(sizeof(struct proto_cts) == 64, "one slot is one cache line");

/* Messages complete, written when no clear-to-send is due. `check` guards against a torn read. */
struct proto_ack {
    uint64_t acked;
    uint64_t check; /* ~acked */
};

/* Completion record, written by the sender into the receiver's memory on each lane that carried
 * part of the message, before that lane's immediate, unless the immediate tells the size. */
struct proto_record {
    uint64_t total;      /* true size of the message */
    uint32_t lanes_used; /* lanes that carry part of it: so many immediates come */
    uint32_t reserved;
    uint64_t lane_bytes; /* of it, on this lane */
    uint64_t seq;
};
_Static_assert(sizeof(struct proto_record) == 32, "a record fits an inline write");

#define PROTO_SLOTS                                                                                \
    (HOLMES_MAX_REQUESTS * HOLMES_MAX_GROUP) /* message seq lives in (seq-1) % SLOTS */

/* Memory of a sender: acks and clear-to-sends of its peer. */
struct proto_send_control {
    struct proto_ack ack;
    uint8_t pad[48];
    struct proto_cts cts[PROTO_SLOTS];
};
/* A small message that did not wait for its clear-to-send, written by the sender into the
 * receiver's memory. It fills the receive that a send of this tag would have found: of the first
 * group with a free buffer the first one whose tag fits. The sender draws the same conclusion when
 * the clear-to-sends of that group come, so both count messages alike. */
#define PROTO_EAGER_MAX 2048u /* bytes of such a message */
#define PROTO_EAGERS    16    /* number n lives in (n-1) % EAGERS */
struct proto_eager {
    uint64_t number; /* of the eager messages, from 1 on */
    int32_t tag;
    uint32_t len;
    uint8_t bytes[PROTO_EAGER_MAX];
};
_Static_assert(sizeof(struct proto_eager) == 16 + PROTO_EAGER_MAX, "no padding");

/* Memory of a receiver. */
struct proto_recv_control {
    struct proto_record record[PROTO_SLOTS][HOLMES_MAX_LANES];
    struct proto_eager eager[PROTO_EAGERS];
};

/* ---- the 32-bit immediate ---- */

enum proto_imm_mode {
    PROTO_IMM_SIZED,  /* one write, the size is in the immediate */
    PROTO_IMM_FULL,   /* one write, the size is the receive buffer's */
    PROTO_IMM_RECORD, /* a record tells */
    PROTO_IMM_EAGER,  /* slot and generation count eager messages; the size is in the immediate */
};
#define PROTO_IMM_SIZE_MAX ((1u << 19) - 1)
#define PROTO_GENERATIONS  8u

struct proto_imm {
    enum proto_imm_mode mode;
    unsigned slot, generation;
    uint32_t size;
};

uint32_t proto_imm_encode(const struct proto_imm *i);
int proto_imm_decode(uint32_t wire, struct proto_imm *out); /* -EPROTO: no such eager message */

static inline unsigned proto_slot(uint64_t seq)
{
    return (unsigned)((seq - 1) % PROTO_SLOTS);
}

static inline unsigned proto_generation(uint64_t seq)
{
    return (unsigned)((seq - 1) / PROTO_SLOTS % PROTO_GENERATIONS);
}

#endif
