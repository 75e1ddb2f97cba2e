/* The setup thread: brings connections up while communicators work, as NCCL's service thread does.
 * It sleeps while there is none to bring up. */
#ifndef HOLMES_NET_SETUP_H
#define HOLMES_NET_SETUP_H

#include "net_conn.h"

struct holmes_setup;

/* `ready` is called on the thread after a connection became ready or failed. */
int holmes_setup_start(void (*ready)(void *arg), void *arg, struct holmes_setup **out);
void holmes_setup_stop(struct holmes_setup *s); /* after all connections left it; NULL is fine */

/* The connection is the thread's until it is ready, failed, or removed. */
void holmes_setup_add(struct holmes_setup *s, struct holmes_conn *c);
/* Waits for the step under way; harmless when the thread no longer has it. */
void holmes_setup_remove(struct holmes_setup *s, struct holmes_conn *c);
/* Waits until the connection is ready or has failed, which its deadline bounds: 0 or the error. */
int holmes_setup_wait(struct holmes_setup *s, struct holmes_conn *c);

#endif
