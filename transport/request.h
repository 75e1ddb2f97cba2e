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

enum request_kind {
    REQUEST_FREE,
    REQUEST_SEND,
    REQUEST_RECV,
    REQUEST_FLUSH,
    REQUEST_CLOSED, /* a receive that an eager message filled before the sender was told of it */
};

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
            bool eager; /* gone ahead of its clear-to-send */
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
            bool ended;  /* by its first part: no others come */
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

/* Eager sends, by number: [1, free] are done with. Of the others some fill receives whose message
 * numbers are known, the rest wait for the clear-to-sends that tell. */
struct eager_sends {
    uint64_t sent, free;
    unsigned unknown;
    struct {
        int tag;
        uint32_t len;
        uint64_t last; /* message number, of the last part; 0: not known yet */
    } ring[PROTO_EAGERS];
    uint64_t acked_ahead; /* messages the receiver counted beyond those whose numbers are known */
};

struct request_queue {
    struct holmes_pool pool;
    size_t eager_max; /* bytes of a message that may go ahead; 0: none */
    struct holmes_list pushing;
    int outstanding;
    int receives; /* of them */
    uint64_t messages, bytes, retries;
    uint64_t staged;   /* bytes handed to the copy engine */
    uint64_t moved_ns; /* when something last happened */
    uint64_t stall_warned_ns;
    uint64_t next_seq; /* sender: first message of the current group; receiver: next to post */
    union {
        struct {
            uint64_t acked;       /* messages the receiver has, without a gap */
            int group_count;      /* messages of the current group, 0: its slots have not come */
            unsigned group_taken; /* bit by index */
            uint64_t sent;        /* highest message number ever sent */
            struct eager_sends eager;
        } send;
        struct {
            uint64_t completed;     /* messages here, without a gap */
            uint64_t invited;       /* up to here clear-to-sends are written */
            uint64_t acked;         /* of them, told to the peer */
            uint64_t eager_here;    /* eager messages that came */
            uint32_t eager_waiting; /* of them, by slot: those that wait for their receives */
            struct recv_slot slots[PROTO_SLOTS];
        } recv;
    };
};

int request_queue_init(struct holmes_conn *c);
/* Of a connection whose lanes are there: bytes up to which messages may go ahead of clear-to-sends.
 */
size_t request_eager_max(const struct holmes_conn *c);
void request_queue_fini(struct holmes_conn *c);

/* The receiver has this many messages. -EPROTO for more than were sent. */
int request_take_ack(struct holmes_conn *c, uint64_t acked);
/* Whether messages are here that no receive was posted for, and no receive waits for another. */
bool request_eager_is_enough(const struct holmes_conn *c);
/* Takes what the wire reports; 0 or a negative errno on which the connection must fail. */
int request_poll(struct holmes_conn *c);
/* Posts what waits for room: pieces of sends, clear-to-sends, acknowledgements. `hold`: what the
 * peer does not need yet may be held back until a later call. *sent: nothing was, and nothing is
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
