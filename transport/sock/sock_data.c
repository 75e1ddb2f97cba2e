/* The slots of the data path: everything happens in lane_post, cq_poll and cq_push, on the caller's
 * thread.
 */
#include <errno.h>
#include <stdlib.h>

#include "sock_ops.h"

int holmes_sock_cq_open(struct wire_nic *wn, struct wire_cq **out)
{
    struct wire_cq *cq = calloc(1, sizeof *cq);

    if (!cq)
        return -ENOMEM;
    cq->wn = wn;
    holmes_list_init(&cq->lanes);
    *out = cq;
    return 0;
}

void holmes_sock_cq_close(struct wire_cq *cq)
{
    free(cq);
}

int holmes_sock_cq_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = 0;

    cq->polls++;
    holmes_list_each(lane, tmp, &cq->lanes, struct wire_lane, in_cq)
    {
        sock_lane_lock(lane);
        if (holmes_sock_lane_poll(lane) == 0) {
            holmes_sock_lane_send(lane, true, false);
            holmes_sock_lane_read(lane);
            if (lane->nstreams > 1)
                holmes_sock_lane_watch(lane);
        }
        n += holmes_sock_lane_deliver(lane, events + n, max - n);
        n += holmes_sock_lane_report(lane, events + n, max - n);
        sock_lane_unlock(lane);
    }
    return n;
}

bool holmes_sock_cq_push(struct wire_cq *cq)
{
    bool sent = true;

    holmes_list_each(lane, tmp, &cq->lanes, struct wire_lane, in_cq)
    {
        sock_lane_lock(lane);
        if (holmes_sock_lane_poll(lane) == 0)
            sent = holmes_sock_lane_send(lane, false, true) && sent;
        sock_lane_unlock(lane);
    }
    return sent;
}

bool holmes_sock_cq_awaited(const struct wire_cq *cq)
{
    bool awaited = false;

    holmes_list_each(lane, tmp, &cq->lanes, struct wire_lane, in_cq)
    {
        sock_lane_lock(lane);
        awaited = awaited || lane->in.tell;
        sock_lane_unlock(lane);
    }
    return awaited;
}
