/* The communicators of one rank, opened through a factory so that tests can put their own in, and
 * the two ways to come after their operations: the kernels' queue follows them, or the host waits.
 * Both end: in time, and as soon as the job does. */
#ifndef HOLMES_LINKS_H
#define HOLMES_LINKS_H

#include "comm.h"
#include "group.h"

/* Opens one communicator of `size` world ranks, this process being ranks[rank]. Collective. */
typedef int (*holmes_comm_factory)(void *ctx, const char *name, const char *kind, const int *ranks,
                                   int size, int rank, struct holmes_comm **out);

#define HOLMES_LINKS_MAX 6

struct holmes_link {
    char name[32]; /* "dp.0" */
    struct holmes_comm *comm;
    struct holmes_comm *muted; /* the real one while `comm` moves nothing, else NULL */
    int *ranks;                /* [comm->size] world ranks */
    /* Time that training stood still for it: the host where it waited, the kernels' queue where
     * that followed. */
    uint64_t wait_ns;
    uint64_t *eval_sent; /* [comm->size] bytes of evaluations, which no training step explains */
    uint64_t *eval_received;
};

#define HOLMES_LINKS_FOLLOWED 256

/* An operation that the kernels' queue comes after and the host has not waited for. */
struct holmes_followed {
    struct holmes_link *on;
    const struct holmes_comm_ops *ops;
    struct holmes_op *op;
};

struct holmes_links {
    int stage, replica, tensor;
    /* NULL where there is nobody: no tensor group, no previous stage, no next one, no tied copy
     * elsewhere. With several chunks the stages form a ring: the one before the first is the last.
     * All but `world` and `tp` are between ranks of the same tensor index. */
    struct holmes_link *world, *dp, *tp, *prev, *next, *embed;
    struct holmes_link all[HOLMES_LINKS_MAX];
    int count;
    int (*poll)(void *ctx); /* 0 while the job is well; may be NULL */
    void *poll_ctx;
    int timeout_ms;                   /* bounds each wait */
    const struct holmes_link *failed; /* where the first wait that failed was; NULL: none did */

    struct holmes_followed followed[HOLMES_LINKS_FOLLOWED]; /* a ring */
    int oldest, nfollowed;
    uint64_t stalled_until; /* when the oldest must be over, since the queue stands still for it; 0:
                               it does not yet */
    int follow_error;       /* the first of a followed operation; sticky */
};

/* poll, poll_ctx and timeout_ms are the caller's to set before. Opens what `rank` needs in an order
 * that is the same on all ranks. Groups of one are loopback. `tied`: the last stage holds a copy of
 * the first one's embedding. On failure everything opened is closed again. */
int holmes_links_open(struct holmes_links *l, const struct holmes_group *g, int rank, bool tied,
                      holmes_comm_factory factory, void *ctx);
void holmes_links_close(struct holmes_links *l);

/* Waits for `*op` and sets it to NULL; NULL is done already. -ECONNABORTED when the job has ended,
 * -ETIMEDOUT after timeout_ms; the operation then still holds its buffers. */
int holmes_links_wait(struct holmes_links *l, struct holmes_link *on, struct holmes_op **op);

/* What the kernels queue after this comes after `*op`, which becomes NULL: the links wait for it
 * some time. The host waits only where the communicator cannot order queues, and for the oldest of
 * HOLMES_LINKS_FOLLOWED, so that it does not run ahead without bound. Errors as above; those of an
 * operation that was followed come with a later call of these. */
int holmes_links_follow(struct holmes_links *l, struct holmes_link *on, struct holmes_op **op);
/* Waits for what was followed and is not over: before the host waits for the kernels, whose queue
 * might stand still for a peer that is dead. */
int holmes_links_drain(struct holmes_links *l);
/* The same without waiting, for holmes_kernels.on_wait: nonzero when there is an error. */
int holmes_links_look(void *links);

/* A first message on every link: all are connected, and libraries have what they take at their
 * first message. Host memory. Collective. */
int holmes_links_greet(struct holmes_links *l);

/* Between the two nothing is moved: every operation on every link is over at once and leaves its
 * buffers as they were. With nothing under way. -ENOMEM: nothing is muted. */
int holmes_links_mute(struct holmes_links *l);
void holmes_links_unmute(struct holmes_links *l); /* does nothing when none is muted */

/* Counts what was sent between the two calls as evaluation. */
void holmes_links_eval_begin(struct holmes_links *l);
void holmes_links_eval_end(struct holmes_links *l);

#endif
