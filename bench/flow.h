/* Equal messages over one connection of a net plugin, one direction, as NCCL's proxy thread moves
 * them: the caller's thread posts while the window has room and tests the oldest request. Nothing
 * blocks, no other thread takes part.
 */
#ifndef HOLMES_BENCH_FLOW_H
#define HOLMES_BENCH_FLOW_H

#include "net_conn.h"

#define HOLMES_FLOW_WINDOW_MAX 32 /* what NCCL has outstanding at most */

struct holmes_flow {
    struct holmes_conn *conn; /* ready; its direction is the flow's */
    struct holmes_region *region;
    char *base;              /* within the region */
    size_t bytes, stride;    /* of a message; from one to the next, which start anew every window */
    size_t window;           /* 1 to HOLMES_FLOW_WINDOW_MAX */
    uint64_t total, allowed; /* messages in all; that may be posted so far */
    uint64_t posted, done;
    void *requests[HOLMES_FLOW_WINDOW_MAX];
};

/* Posts and tests what can be; *moved becomes true when anything was posted or done. 0, or the
 * plugin's error; -EPROTO also when a message of another length came. */
int holmes_flow_step(struct holmes_flow *f, bool *moved);

static inline bool holmes_flow_finished(const struct holmes_flow *f)
{
    return f->done == f->total;
}

#endif
