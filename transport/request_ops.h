/* Between the files of the message protocol (request.h). The connection's lock is held. */
#ifndef HOLMES_REQUEST_OPS_H
#define HOLMES_REQUEST_OPS_H

#include "conn.h"

/* request.c: counted and empty; NULL: none is free. */
struct holmes_request *request_get(struct holmes_conn *c, enum request_kind kind);

/* request_send.c */
bool request_send_is_posted(const struct holmes_request *r);
/* The receiver's count, where the wire does not deliver. */
int request_read_acks(struct holmes_conn *c);
/* Posts what it can. -EAGAIN: no room on the wire; -EINPROGRESS: something else is waited for. */
int request_push_send(struct holmes_conn *c, struct holmes_request *r);

/* Finds the first free buffer of the current group whose tag fits. -EAGAIN: there is none yet. */
int request_match(struct holmes_conn *c, int tag, uint64_t *seq, struct proto_cts *slot);
void request_take_slot(struct request_queue *q, const struct proto_cts *slot);
/* Whether the clear-to-sends of the next message have begun to come. */
bool request_group_is_here(const struct holmes_conn *c);

/* request_recv.c */
int request_push_recv(struct holmes_conn *c, struct holmes_request *r); /* as request_push_send */
/* Tells the sender how far we are, where the wire does not deliver. */
int request_push_ack(struct holmes_conn *c);
int request_take_immediate(struct holmes_conn *c, uint32_t imm);
/* Whether all that may fill the receive goes ahead of its clear-to-send. */
bool request_needs_no_slot(const struct holmes_request *r);
/* The receive slot of buffer or part `i`, claimed. -EINPROGRESS: earlier messages must end first.
 */
int request_claim_slot(struct holmes_conn *c, struct holmes_request *r, size_t i,
                       struct recv_slot **out);
/* The message of the slot has `len` bytes and is here. */
int request_message_done(struct holmes_conn *c, struct recv_slot *s, size_t len);

/* request_eager.c. Sender: a message of its own that waits for nothing. -EAGAIN: it must wait. */
int request_eager_send(struct holmes_conn *c, const void *buf, size_t len, int tag,
                       struct holmes_mr *mr, struct holmes_request **out);
/* Gives eager sends the numbers of their messages as far as clear-to-sends have come, so that later
 * sends of their tags come after them. */
int request_eager_number(struct holmes_conn *c);
/* Receiver: an immediate of an eager message. */
int request_eager_arrived(struct holmes_conn *c, const struct proto_imm *imm);
/* Eager messages that are here fill receives that are posted. */
int request_eager_match(struct holmes_conn *c);

#endif
