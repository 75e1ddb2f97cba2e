/* What connections hold back so that it goes out in company, clear-to-sends and counts, and what
 * the kernel would not take. The thread that polls a connection sends it when it finds nothing
 * better to do; should that thread turn to other things, a thread of the transport's own does it a
 * moment later. That one sleeps while nothing is held, and ends with the last connection.
 */
#ifndef HOLMES_HELD_H
#define HOLMES_HELD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "list.h"

struct holmes_conn;

struct held {
    pthread_mutex_t lock; /* may be taken under a connection's lock; guards what follows */
    uint64_t wait_ns;     /* how long something may be held, at least; 0: nothing is */
    pthread_cond_t wake, settled, gone;
    struct holmes_list conns;     /* holmes_conn.held_link, until the next tick */
    struct holmes_list due;       /* likewise, of those whose turn it is in this one */
    struct holmes_conn *settling; /* by the thread, which holds its lock and not this one */
    pthread_t thread;
    bool running, asleep, stop, ended;
};

void held_init(struct held *h, uint64_t wait_ns);
/* No connection is left. */
void held_fini(struct held *h);

/* The connection has something to send; its lock is held. False: it must send it now. */
bool held_add(struct held *h, struct holmes_conn *c);
/* Afterwards the thread does not know the connection. Its lock is not held: the thread may be at
 * it. */
void held_remove(struct held *h, struct holmes_conn *c);
/* No connection is left, or so it seemed a moment ago: the thread ends unless something is held.
 * No lock of the transport's or of a connection is held. */
void held_rest(struct held *h);

#endif
