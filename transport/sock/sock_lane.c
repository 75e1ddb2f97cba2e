/* Life of a lane, but for its rise (sock_rise.c) and its data (sock_data.c). */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "../oob.h"
#include "log.h"
#include "sock_ops.h"

void holmes_sock_lane_fail(struct wire_lane *lane, int error)
{
    if (tcp_status_fail(&lane->status, error))
        holmes_trace(NET, "nic %s: a lane ends: %s", lane->wn->nic.name, holmes_strerror(error));
}

int holmes_sock_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                            const struct wire_lane_params *params, void *blob, size_t *blob_len,
                            struct wire_lane **out)
{
    struct tcp_blob b = {.role = role, .addr = wn->listen};
    struct wire_lane *lane = calloc(1, sizeof *lane);
    int rc = lane ? 0 : -ENOMEM;

    (void)params;
    if (rc == 0 && role == WIRE_ACCEPT)
        rc = tcp_secret_make(&lane->secret);
    if (rc != 0) {
        free(lane);
        return rc;
    }
    lane->wn = wn;
    lane->cq = cq;
    lane->role = role;
    lane->fd = -1;
    atomic_init(&lane->status, -EAGAIN);
    b.secret = lane->secret;
    *blob_len = tcp_blob_encode(SOCK_MAGIC, &b, blob);
    holmes_list_append(&cq->lanes, &lane->in_cq);
    pthread_mutex_lock(&wn->lock);
    holmes_list_append(&wn->lanes, &lane->node);
    wn->waiting += role == WIRE_ACCEPT;
    pthread_mutex_unlock(&wn->lock);
    *out = lane;
    return 0;
}

void holmes_sock_lane_via(struct wire_lane *lane, const struct holmes_addr *peer)
{
    lane->via = *peer;
}

int holmes_sock_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len)
{
    const struct holmes_addr *source;
    struct tcp_blob peer;
    int rc = tcp_blob_decode(SOCK_MAGIC, blob, blob_len, &peer);

    if (rc == 0 && peer.role == lane->role)
        rc = -EPROTO;
    if (rc != 0 || lane->role == WIRE_ACCEPT)
        return rc;
    tcp_take_via(&lane->via, &peer.addr);
    source = tcp_source_for(&lane->wn->nic, &peer.addr);
    if (!source)
        return -EAFNOSUPPORT;
    pthread_mutex_lock(&lane->wn->lock);
    lane->secret = peer.secret;
    rc = lane->fd >= 0 ? -EISCONN : holmes_sock_lane_dial(lane, source, &peer.addr);
    pthread_mutex_unlock(&lane->wn->lock);
    return rc;
}

int holmes_sock_lane_poll(struct wire_lane *lane)
{
    return atomic_load_explicit(&lane->status, memory_order_acquire);
}

void holmes_sock_lane_close(struct wire_lane *lane)
{
    struct wire_nic *wn;

    if (!lane)
        return;
    wn = lane->wn;
    holmes_list_remove(&lane->in_cq);
    pthread_mutex_lock(&wn->lock);
    holmes_list_remove(&lane->node);
    wn->waiting -= lane->role == WIRE_ACCEPT && lane->secret != 0;
    wn->rising -= lane->rise != SOCK_WAITING && lane->rise != SOCK_RISEN;
    pthread_mutex_unlock(&wn->lock);
    if (lane->fd >= 0) {
        oob_fork_guard_remove(lane->fd);
        close(lane->fd);
    }
    free(lane);
}
