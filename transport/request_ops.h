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

/* request_recv.c */
int request_push_recv(struct holmes_conn *c, struct holmes_request *r); /* as request_push_send */
/* Tells the sender how far we are, where the wire does not deliver. */
int request_push_ack(struct holmes_conn *c);
int request_take_immediate(struct holmes_conn *c, uint32_t imm);

#endif
