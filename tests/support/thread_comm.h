/* Communicators between threads of one process, with rendezvous semantics: a send is over when its
 * receive has it. For tests that need several ranks but no network, and for breaking one reduction
 * on purpose. */
#ifndef HOLMES_TEST_THREAD_COMM_H
#define HOLMES_TEST_THREAD_COMM_H

#include "comm.h"

struct thread_hub;

struct thread_hub *thread_hub_create(void);
void thread_hub_destroy(struct thread_hub *h); /* after all communicators */

/* The `nth` reduction (from 1) of a communicator of `kind` leaves its last rank out. */
void thread_hub_break(struct thread_hub *h, const char *kind, int nth);

/* Memory that is moved from and to is touched between touch(true) and touch(false) only. */
void thread_hub_touch(struct thread_hub *h, void (*touch)(bool open));

/* A holmes_comm_factory; ctx is the hub. */
int thread_comm_create(void *ctx, const char *name, const char *kind, const int *ranks, int size,
                       int rank, struct holmes_comm **out);

#endif
