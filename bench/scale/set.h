/* The connections of one rank, raised, used and closed together over a net plugin, called as NCCL
 * calls it: one thread polls all of them. Nothing here is thread safe; ranks that are threads have
 * a set each.
 *
 * A function that fails returns a negative errno and leaves one sentence in `why` of the set.
 */
#ifndef HOLMES_SCALE_SET_H
#define HOLMES_SCALE_SET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net_plugin.h"

#define HOLMES_SCALE_MESSAGE 4096 /* bytes of the message that each connection carries */

struct holmes_scale_end {
    bool sends;
    uint32_t number; /* equal on both ends of a connection: says what its message holds */
    /* Of a receiving end: filled by listen, for the peer. Of a sending one: the peer's. */
    char handle[HOLMES_PLUGIN_HANDLE_BYTES];
    void *listen, *comm, *mr, *request;
    uint8_t *buf;
    bool moved;      /* its message */
    int64_t took_ns; /* from the set's first call to raised */
};

struct holmes_scale_set {
    struct holmes_plugin *plugin;
    void *ctx;
    int n;
    struct holmes_scale_end *ends;
    uint8_t *memory; /* HOLMES_SCALE_MESSAGE for each end, touched */
    /* How long to sleep after a look at all ends that advanced none; 0: sched_yield, as NCCL's
     * threads do. */
    int64_t pause_ns;
    int64_t timeout_ns;      /* of each of the calls below */
    const atomic_bool *stop; /* ends every call with -ECANCELED; NULL: never */
    int bad;                 /* of exchange: -EBADMSG once a message was wrong */
    char why[256];
};

/* -ENOMEM. Ends are the caller's to describe (`sends`, `number`). */
int holmes_scale_set_create(struct holmes_plugin *plugin, void *ctx, int n,
                            struct holmes_scale_set *out);
/* Closes what is open. */
void holmes_scale_set_destroy(struct holmes_scale_set *s);

/* One listen for each receiving end. */
int holmes_scale_set_listen(struct holmes_scale_set *s);
/* connect and accept on all, in turns, until all are up; then registers a buffer with each and
 * closes the listens. */
int holmes_scale_set_raise(struct holmes_scale_set *s);
/* A receive on each receiving end; sending ones get their message. */
int holmes_scale_set_post(struct holmes_scale_set *s);
/* Looks at each receive that was posted, again and again for that long. *looks: calls of test. No
 * message may be there yet. */
int holmes_scale_set_poll(struct holmes_scale_set *s, int64_t for_ns, uint64_t *looks);
/* Sends one message over each sending end and waits for those of the receiving ones (posted
 * before); -EBADMSG when one holds other bytes than it must, which ends no other's way. */
int holmes_scale_set_exchange(struct holmes_scale_set *s);
/* Gives back registrations and closes all connections. */
void holmes_scale_set_close(struct holmes_scale_set *s);

#endif
