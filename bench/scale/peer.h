/* A process at the other ends of the connections under measure. It does what it is told over a
 * socket, one order at a time, and sleeps between. */
#ifndef HOLMES_SCALE_PEER_H
#define HOLMES_SCALE_PEER_H

#include <sys/types.h>

#include "scale.h"
#include "set.h"

enum holmes_scale_order {
    HOLMES_SCALE_LOAD = 1,
    HOLMES_SCALE_MAKE,    /* `n` ends follow as struct holmes_scale_role */
    HOLMES_SCALE_HANDLES, /* handles for the sending ends follow; those of the others come back */
    HOLMES_SCALE_RAISE,
    HOLMES_SCALE_EXCHANGE,
    HOLMES_SCALE_CLOSE,
    HOLMES_SCALE_LOOK, /* at what it holds; every answer says that too */
};

struct holmes_scale_role {
    uint32_t number;
    uint32_t sends;
};

struct holmes_scale_peer {
    pid_t pid;
    int fd;
};

/* Forks. -errno. */
int holmes_scale_peer_start(const struct holmes_scale_options *o, struct holmes_scale_peer *out);
/* Ends the process; a peer that does not go by itself is killed. */
void holmes_scale_peer_stop(struct holmes_scale_peer *p);

/* Orders are given to all peers before the answers are waited for. Answers come in order; `usage`
 * may be NULL. */
int holmes_scale_peer_tell(struct holmes_scale_peer *p, enum holmes_scale_order what, uint32_t n);
int holmes_scale_peer_answer(struct holmes_scale_peer *p, struct holmes_scale_usage *usage,
                             char *why, size_t why_len);

/* All of it or -EPIPE. */
int holmes_scale_write(int fd, const void *buf, size_t len);
int holmes_scale_read(int fd, void *buf, size_t len);

#endif
