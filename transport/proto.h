/* Everything that crosses between two Holmes processes: layouts, version, encode and decode. No
 * I/O, no allocation. Decoders take foreign bytes: they check every field and touch nothing
 * outside the given length.
 *
 * Integers are little-endian; both supported machines (x86-64, aarch64) are, and the build asserts
 * it. docs/protocol.md tells the exchange as a story.
 *
 * Version history: 1, the first.
 */
#ifndef HOLMES_PROTO_H
#define HOLMES_PROTO_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "transport.h"

#define PROTO_VERSION 1

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
    PROTO_AUTH,      /* dialing end: proof, and its struct proto_info */
    PROTO_INFO,      /* accepting end: its struct proto_info; its lane count and wire are final */
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

/* What each end tells the other. */
struct proto_info {
    uint64_t mac;                       /* of PROTO_AUTH; 0 in PROTO_INFO */
    uint64_t control_addr, control_key; /* where the peer writes control, see below */
    uint32_t control_len;
    uint16_t nlanes;
    uint16_t max_group;
    uint32_t pid;
    char host[64], nic[64], wire[16]; /* NUL-terminated */
    struct proto_lane_blob lanes[HOLMES_MAX_LANES];
};

struct proto_abort {
    int32_t error; /* positive errno */
};

uint64_t proto_listen_id(const uint8_t token[PROTO_TOKEN_SIZE]);
/* Proof of knowing the token, bound to both nonces and the direction ('S' accepting end, 'C'
 * dialing end). */
uint64_t proto_mac(const uint8_t token[PROTO_TOKEN_SIZE], char side, const uint8_t client_nonce[16],
                   const uint8_t server_nonce[16]);

/* Header check of the frame that must come next: 0, -EPROTO, -EPROTONOSUPPORT. */
int proto_frame_check(const struct proto_frame *f, char *why, size_t why_len);
/* Payload length that a type must have; 0 for a type without payload, -1 for an unknown type. */
int proto_payload_size(uint16_t type);
int proto_info_check(const struct proto_info *i, char *why, size_t why_len);

/* ---- control, written by one-sided writes into the peer's memory ---- */

/* Clear-to-send, written by the receiver into the sender's memory: one per receive buffer. `seq` is
 * the last word, read with acquire: over tcp a slot arrives in parts, in order. */
struct proto_cts {
    uint64_t addr, key; /* of the buffer, as the wire wants them quoted */
    uint64_t size;      /* bytes the buffer takes */
    int32_t tag;
    uint16_t group_index, group_count;
    uint64_t acked; /* messages complete at the receiver, from the first on without a gap */
    uint64_t reserved[2];
    uint64_t seq; /* message number, counted from 1 */
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
/* Memory of a receiver. */
struct proto_recv_control {
    struct proto_record record[PROTO_SLOTS][HOLMES_MAX_LANES];
};

/* ---- the 32-bit immediate ---- */

enum proto_imm_mode {
    PROTO_IMM_SIZED,  /* one write, the size is in the immediate */
    PROTO_IMM_FULL,   /* one write, the size is the receive buffer's */
    PROTO_IMM_RECORD, /* a record tells */
};
#define PROTO_IMM_SIZE_MAX ((1u << 19) - 1)
#define PROTO_GENERATIONS  8u

struct proto_imm {
    enum proto_imm_mode mode;
    unsigned slot, generation;
    uint32_t size;
};

uint32_t proto_imm_encode(const struct proto_imm *i);
int proto_imm_decode(uint32_t wire, struct proto_imm *out); /* -EPROTO for an unknown mode */

static inline unsigned proto_slot(uint64_t seq)
{
    return (unsigned)((seq - 1) % PROTO_SLOTS);
}

static inline unsigned proto_generation(uint64_t seq)
{
    return (unsigned)((seq - 1) / PROTO_SLOTS % PROTO_GENERATIONS);
}

#endif
