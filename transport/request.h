/* The message protocol of a raised connection: posted, matched, in flight, done. docs/protocol.md
 * draws the exchange. All functions are called with the connection's lock held. */
#ifndef HOLMES_REQUEST_H
#define HOLMES_REQUEST_H

#include "lane.h"
#include "list.h"
#include "mr.h"
#include "pool.h"
#include "proto.h"
#include "stage.h"

enum request_kind { REQUEST_FREE, REQUEST_SEND, REQUEST_RECV, REQUEST_FLUSH };

struct request_message {
    const void *buf;
    struct holmes_mr *mr;
    size_t posted; /* bytes offered: what the send has, or the receive takes */
    size_t len;    /* true size; set when a receive is done */
    int tag;
};

/* The clear-to-send that a send is filling: the receive buffer, or one part of it. */
struct send_slot {
    uint64_t seq;
    uint64_t remote_addr, remote_keys[HOLMES_MAX_RAILS];
    uint64_t room;  /* bytes from here to the end of the buffer */
    uint64_t size;  /* of them, in this part */
    uint32_t left;  /* parts behind it */
    size_t at, len; /* of the message, what goes here */
};

struct holmes_request {
    struct holmes_conn *conn;
    struct holmes_list link; /* request_queue.pushing while pieces or slots wait to be posted */
    enum request_kind kind;
    uint64_t seq, last; /* its message numbers: one for each buffer, or part of a buffer */
    uint64_t started_ns;
    int n;
    struct request_message msg[HOLMES_MAX_GROUP];
    union {
        struct {
            struct send_slot slot;
            size_t stride; /* bytes of each part of the receive buffer but the last */
            enum proto_imm_mode mode;
            struct lane_part parts[HOLMES_MAX_LANES]; /* of the slot; staged: only how much */
            int nparts, part;                         /* part: the one being posted */
            size_t part_done;                         /* bytes of it posted */
            bool record_posted;
            int writes; /* with a context, or reads of a flush: posted, not yet reported */

            /* From GPU memory: the message goes piece by piece through pinned memory. */
            bool staged;
            size_t copied;                     /* bytes of the message handed to the copy engine */
            struct stage_chunk *first, **tail; /* pieces copied or being copied, in order */
            size_t npieces, piece;             /* of the slot; piece: the next to be posted */
        } send;
        struct {
            size_t slots_posted; /* clear-to-sends written */
            size_t stride;       /* staged: bytes of a part; else 0 */
            enum stage_layout layout;
            int copying; /* parts on their way to the GPU */
        } recv;
    };
};

/* A receive slot: the message `seq` that the peer may be sending. */
struct recv_slot {
    struct holmes_request *request; /* NULL: free */
    size_t index;                   /* in the group, or of the part */
    uint64_t seq;
    size_t size, len;          /* bytes it takes; bytes that came */
    struct stage_chunk *chunk; /* where it lands, when not in the buffer itself */
    unsigned immediates;
    bool done;
};

struct request_queue {
    struct holmes_pool pool;
    struct holmes_list pushing;
    int outstanding;
    int receives; /* of them */
    uint64_t messages, bytes, retries;
    uint64_t staged;   /* bytes handed to the copy engine */
    uint64_t moved_ns; /* when something last happened */
    uint64_t stall_warned_ns;
    bool quiet;        /* the last poll brought nothing */
    uint64_t next_seq; /* sender: first message of the current group; receiver: next to post */
    union {
        struct {
            uint64_t acked;       /* messages the receiver has, without a gap */
            int group_count;      /* messages of the current group, 0: its slots have not come */
            unsigned group_taken; /* bit by index */
            uint64_t sent;        /* highest message number ever sent */
        } send;
        struct {
            uint64_t completed; /* messages here, without a gap */
            uint64_t acked;     /* of them, told to the peer */
            struct recv_slot slots[PROTO_SLOTS];
        } recv;
    };
};

int request_queue_init(struct holmes_conn *c);
void request_queue_fini(struct holmes_conn *c);

/* The receiver has this many messages. -EPROTO for more than were sent. */
int request_take_ack(struct holmes_conn *c, uint64_t acked);
/* Takes what the wire reports; 0 or a negative errno on which the connection must fail. */
int request_poll(struct holmes_conn *c);
/* Posts what waits for room: pieces of sends, clear-to-sends, acknowledgements. `hold`: what a peer
 * does not need at once may be held back until a later call. *sent: nothing was, and nothing is
 * left that the wire did not take. */
int request_push(struct holmes_conn *c, bool hold, bool *sent);

int request_send(struct holmes_conn *c, const void *buf, size_t len, int tag, struct holmes_mr *mr,
                 struct holmes_request **out);
/* `polled`: the reader looks for flags in the bytes. */
int request_recv(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                 const int *tags, struct holmes_mr *const *mrs, bool polled,
                 struct holmes_request **out);
/* Makes what arrived in `mr` at `buf` visible to the GPU, whatever rail brought it. */
int request_flush(struct holmes_conn *c, const void *buf, struct holmes_mr *mr,
                  struct holmes_request **out);
bool request_is_done(const struct holmes_request *r);
void request_release(struct holmes_request *r);
/* Whether an outstanding request uses the registration. */
bool request_uses(const struct holmes_conn *c, const struct holmes_mr *mr);
/* "send 17 to ..., 1048576 bytes" of the oldest outstanding request; false when there is none. */
bool request_describe_oldest(const struct holmes_conn *c, uint64_t now_ns, char *buf, size_t len);

#endif
