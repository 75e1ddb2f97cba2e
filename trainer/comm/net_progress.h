/* The progress thread: the one thread of a process that makes isend, irecv and test calls, for all
 * communicators of a net, as NCCL's proxy does. Operations reach it through a queue.
 *
 * While there is work and nothing moves it spins for at most 50 microseconds, then waits 20 to 200
 * microseconds at a time; without work it sleeps. New work wakes it.
 */
#ifndef HOLMES_NET_PROGRESS_H
#define HOLMES_NET_PROGRESS_H

#include "net_stream.h"

struct holmes_progress;

/* What the thread has to know of a communicator. */
struct holmes_net_comm {
    struct holmes_comm base;
    char name[64];
    struct holmes_rdv *rdv; /* watched: an aborted job ends the communicator at once */
    atomic_int error;       /* sticky; written by the progress thread */
    struct holmes_list in_requests;
    int cancel;    /* under the thread's lock: errno to end with, 0: none */
    bool answered; /* the request was carried out */
};

int holmes_progress_start(struct holmes_progress **out);
void holmes_progress_stop(struct holmes_progress *p); /* after its communicators; NULL is fine */
void holmes_progress_wake(struct holmes_progress *p);
double holmes_progress_cpu_seconds(const struct holmes_progress *p);

/* Hands an operation over. A communicator that has failed completes it with its error. */
void holmes_progress_submit(struct holmes_progress *p, struct holmes_op *op);
/* Fails the communicator with rc and returns when none of its operations is outstanding any more.
 * -ECANCELED is the orderly end and is not logged when nothing was outstanding. */
void holmes_progress_cancel(struct holmes_progress *p, struct holmes_net_comm *c, int rc);

#endif
