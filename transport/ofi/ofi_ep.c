/* Life of a lane: one endpoint, raised by a connect request that quotes the accepting lane's
 * secret, closed so that nothing of it is reported afterwards.
 *
 *     connecting end                                   accepting end
 *                                                      secret made with the lane
 *     <------------------ blob: address, secret ------------------------------
 *     endpoint, fi_connect -- request: secret ------>  FI_CONNREQ: endpoint, fi_accept
 *     FI_CONNECTED <------------ response -----------  FI_CONNECTED
 *
 * The secret exists no earlier than the lane, so a request can never come too early: it is answered
 * as soon as it is read, whether or not this end has seen the other's blob.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "ofi.h"

void holmes_ofi_lane_fail(struct wire_lane *lane, int error)
{
    if (tcp_status_fail(&lane->status, error))
        holmes_trace(NET, "nic %s: a lane ends: %s", lane->wn->nic.name, holmes_strerror(error));
}

int holmes_ofi_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                           const struct wire_lane_params *params, void *blob, size_t *blob_len,
                           struct wire_lane **out)
{
    struct tcp_blob b = {.role = role, .addr = wn->listen};
    struct wire_lane *lane = calloc(1, sizeof *lane);
    int rc = 0;

    (void)params;
    if (!lane)
        return -ENOMEM;
    lane->wn = wn;
    lane->cq = cq;
    lane->role = role;
    atomic_init(&lane->status, -EAGAIN);
    if (role == WIRE_ACCEPT)
        rc = tcp_secret_make(&lane->secret);
    if (rc == 0) {
        lane->silent_op = holmes_ofi_op_get(lane, NULL, true);
        rc = lane->silent_op ? 0 : -ENOMEM;
    }
    if (rc != 0) {
        free(lane);
        return rc;
    }
    b.secret = lane->secret;
    *blob_len = tcp_blob_encode(OFI_MAGIC, &b, blob);
    pthread_mutex_lock(&wn->lock);
    holmes_list_append(&wn->lanes, &lane->node);
    pthread_mutex_unlock(&wn->lock);
    *out = lane;
    return 0;
}

/* Selective completion: only writes posted with FI_COMPLETION come back through the cq. */
static int endpoint_make(struct wire_lane *lane, struct fi_info *info, struct fid_ep **out)
{
    struct wire_nic *wn = lane->wn;
    struct fid_ep *ep;
    int rc;

    rc = holmes_ofi_open_errno(fi_endpoint(wn->domain, info, &ep, lane));
    if (rc != 0)
        return rc;
    rc = holmes_ofi_errno(fi_ep_bind(ep, &wn->eq->fid, 0));
    if (rc == 0)
        rc = holmes_ofi_errno(
            fi_ep_bind(ep, &lane->cq->cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
    if (rc == 0)
        rc = holmes_ofi_errno(fi_enable(ep));
    if (rc != 0) {
        fi_close(&ep->fid);
        return rc;
    }
    *out = ep;
    return 0;
}

int holmes_ofi_lane_answer(struct wire_lane *lane, struct fi_info *req)
{
    struct fid_ep *ep;
    int rc;

    if (req->dest_addrlen <= sizeof lane->peer)
        memcpy(&lane->peer, req->dest_addr, req->dest_addrlen);
    rc = endpoint_make(lane, req, &ep);
    if (rc != 0)
        return rc;
    rc = holmes_ofi_errno(fi_accept(ep, NULL, 0));
    if (rc != 0) {
        fi_close(&ep->fid);
        return rc;
    }
    lane->ep = ep;
    holmes_ofi.freeinfo(req);
    return 0;
}

static int info_from(struct wire_nic *wn, const struct holmes_addr *src, struct fi_info **out)
{
    struct fi_info *info;

    if (src->sa.sa_family != wn->nic.addrs[0].sa.sa_family)
        return holmes_ofi_query(src, out);
    info = holmes_ofi.dupinfo(wn->info);
    if (!info)
        return -ENOMEM;
    memcpy(info->src_addr, src, info->src_addrlen);
    *out = info;
    return 0;
}

void holmes_ofi_lane_via(struct wire_lane *lane, const struct holmes_addr *peer)
{
    lane->via = *peer;
}

static int lane_dial(struct wire_lane *lane, struct tcp_blob *peer)
{
    const struct holmes_addr *src;
    uint8_t request[TCP_REQUEST_LEN];
    struct fi_info *info;
    struct fid_ep *ep;
    int rc;

    tcp_take_via(&lane->via, &peer->addr);
    src = tcp_source_for(&lane->wn->nic, &peer->addr);
    if (!src)
        return -EAFNOSUPPORT;
    rc = info_from(lane->wn, src, &info);
    if (rc != 0)
        return rc;
    rc = endpoint_make(lane, info, &ep);
    holmes_ofi.freeinfo(info);
    if (rc != 0)
        return rc;
    tcp_request_encode(OFI_MAGIC, peer->secret, request);
    rc = holmes_ofi_errno(fi_connect(ep, &peer->addr, request, sizeof request));
    if (rc != 0) {
        fi_close(&ep->fid);
        return rc;
    }
    lane->ep = ep;
    return 0;
}

int holmes_ofi_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len)
{
    struct tcp_blob peer;
    int rc;

    rc = tcp_blob_decode(OFI_MAGIC, blob, blob_len, &peer);
    if (rc == 0 && (peer.role == lane->role || peer.streams != 0))
        rc = -EPROTO;
    if (rc != 0)
        return rc;
    if (lane->role == WIRE_ACCEPT)
        return 0;

    pthread_mutex_lock(&lane->wn->lock);
    rc = lane->ep ? -EISCONN : lane_dial(lane, &peer);
    pthread_mutex_unlock(&lane->wn->lock);
    return rc;
}

int holmes_ofi_lane_poll(struct wire_lane *lane)
{
    return atomic_load_explicit(&lane->status, memory_order_acquire);
}

void holmes_ofi_lane_close(struct wire_lane *lane)
{
    struct wire_nic *wn;

    if (!lane)
        return;
    wn = lane->wn;
    pthread_mutex_lock(&wn->lock);
    holmes_list_remove(&lane->node);
    if (lane->ep) {
        int rc = holmes_ofi_errno(fi_close(&lane->ep->fid));

        if (rc != 0)
            holmes_warn(NET, "nic %s: an endpoint does not close: %s", wn->nic.name,
                        holmes_strerror(rc));
    }
    pthread_mutex_unlock(&wn->lock);
    holmes_ofi_ops_orphan(lane);
    free(lane);
}
