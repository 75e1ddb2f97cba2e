/* Life of a lane: one reliable-connection queue pair.
 *
 *     connecting end                                accepting end
 *     create, INIT, receives posted                 create, INIT, receives posted
 *     ------------- blob: address, queue pair, first packet number -------->
 *     <------------ blob -----------------------------------------------------
 *     RTR, RTS: up                                  RTR, RTS: up
 *
 * Nothing crosses the fabric until the first write. Where the kernel cannot resolve the peer's
 * address at once, raising is tried again from nic_progress.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "clock.h"
#include "log.h"
#include "verbs.h"

#define MIN_RNR_TIMER 12 /* 0.64 ms */
#define RNR_RETRY     7  /* for ever */
#define PROBE_TIMEOUT 13 /* 34 ms, times the retries */
#define PROBE_RETRIES 6

int holmes_verbs_lane_fail(struct wire_lane *lane, int error)
{
    int now = atomic_load(&lane->status);

    while (now == 0 || now == -EAGAIN) {
        if (atomic_compare_exchange_weak(&lane->status, &now, error))
            return error;
    }
    return now;
}

/* ---- queue pairs ---- */

static int qp_modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    int rc;

    errno = 0;
    rc = holmes_verbs.modify_qp(qp, attr, mask);
    if (rc == 0)
        return 0;
    return rc > 0 ? -rc : holmes_verbs_errno(EIO);
}

void holmes_verbs_qp_end(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    qp_modify(qp, &attr, IBV_QP_STATE);
}

static unsigned depth(const struct wire_nic *wn, unsigned want)
{
    return wn->max_qp_wr > 0 && (unsigned)wn->max_qp_wr < want ? (unsigned)wn->max_qp_wr : want;
}

static int qp_create(struct wire_nic *wn, struct wire_cq *cq, unsigned receives,
                     struct ibv_qp **out)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq->cq,
        .recv_cq = cq->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = depth(wn, VERBS_SQ_DEPTH),
                .max_recv_wr = depth(wn, receives),
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = VERBS_INLINE_MAX},
    };
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .pkey_index = (uint16_t)wn->opts.pkey_index,
                               .port_num = wn->nic.rdma.port,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                                  IBV_ACCESS_REMOTE_READ};
    struct ibv_qp *qp;
    int rc;

    errno = 0;
    qp = holmes_verbs.create_qp(wn->pd, &init);
    if (!qp) {
        rc = holmes_verbs_open_errno(EIO);
        holmes_warn(NET, "nic %s: cannot create a queue pair: %s", wn->nic.name,
                    holmes_strerror(rc));
        return rc;
    }
    rc = qp_modify(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (rc != 0) {
        holmes_warn(NET, "nic %s: a queue pair does not take port %u with NCCL_IB_PKEY=%d: %s",
                    wn->nic.name, wn->nic.rdma.port, wn->opts.pkey_index, holmes_strerror(rc));
        holmes_verbs.destroy_qp(qp);
        return rc;
    }
    *out = qp;
    return 0;
}

static void qp_destroy(const struct wire_nic *wn, struct ibv_qp *qp)
{
    int rc = qp ? holmes_verbs.destroy_qp(qp) : 0;

    if (rc != 0)
        holmes_warn(NET, "nic %s: a queue pair does not close: %s", wn->nic.name,
                    holmes_strerror(rc > 0 ? -rc : holmes_verbs_errno(EIO)));
}

/* From INIT to ready. */
static int qp_raise(const struct wire_lane *lane, struct ibv_qp *qp, const struct verbs_end *own,
                    const struct verbs_end *peer)
{
    const struct verbs_options *o = &lane->wn->opts;
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                              .dest_qp_num = peer->qpn,
                              .rq_psn = peer->psn,
                              .max_dest_rd_atomic = 1,
                              .min_rnr_timer = MIN_RNR_TIMER};
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)(lane->probe ? PROBE_TIMEOUT : o->timeout),
        .retry_cnt = (uint8_t)(lane->probe ? PROBE_RETRIES : o->retry_cnt),
        .rnr_retry = RNR_RETRY,
        .sq_psn = own->psn,
        .max_rd_atomic = 1,
    };
    int rc = holmes_verbs_path(own, peer, lane->wn->nic.rdma.port, lane->gid_index, lane->sl,
                               lane->tc, &rtr);

    if (rc == 0)
        rc = qp_modify(qp, &rtr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (rc == 0)
        rc = qp_modify(qp, &rts,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    return rc;
}

/* ---- making a lane ---- */

static int random_psn(uint32_t *out)
{
    if (getrandom(out, sizeof *out, 0) != sizeof *out)
        return -EIO;
    *out &= 0xffffff;
    return 0;
}

/* Where this end is reached: what its port says now. */
static int lane_locate(struct wire_lane *lane, unsigned mtu_bytes)
{
    struct wire_nic *wn = lane->wn;
    struct verbs_end *own = &lane->own;
    struct ibv_port_attr port;
    int rc = holmes_verbs_query_port(wn->ctx, wn->nic.rdma.port, &port);
    uint8_t mtu = holmes_verbs_mtu(mtu_bytes);

    if (rc != 0)
        return rc;
    own->link_layer = port.link_layer;
    own->needs_grh = port.flags & IBV_QPF_GRH_REQUIRED;
    own->lid = port.link_layer == IBV_LINK_LAYER_INFINIBAND ? port.lid : 0;
    own->mtu = (uint8_t)port.active_mtu;
    if (mtu != 0 && mtu < own->mtu)
        own->mtu = mtu;
    errno = 0;
    if (holmes_verbs.query_gid(wn->ctx, wn->nic.rdma.port, lane->gid_index, &own->gid) != 0 ||
        holmes_verbs_gid_is_zero(&own->gid)) {
        rc = holmes_verbs_errno(EADDRNOTAVAIL);
        holmes_warn(NET, "nic %s: no GID at index %u: %s", wn->nic.name, lane->gid_index,
                    holmes_strerror(rc));
        return rc;
    }
    return random_psn(&own->psn);
}

static int flush_mr_make(struct wire_nic *wn)
{
    int rc = 0;

    pthread_mutex_lock(&wn->lock);
    if (!wn->flush_mr.priv)
        rc = holmes_verbs_mr_reg(wn, wn->flush_bytes, sizeof wn->flush_bytes, &wn->flush_mr);
    pthread_mutex_unlock(&wn->lock);
    return rc;
}

/* A queue pair connected to itself, to read back what arrived. */
static int flush_make(struct wire_lane *lane)
{
    struct verbs_end self = lane->own;
    int rc = flush_mr_make(lane->wn);

    if (rc == 0)
        rc = qp_create(lane->wn, lane->cq, 1, &lane->flush_qp);
    if (rc != 0)
        return rc;
    self.qpn = lane->flush_qp->qp_num;
    rc = qp_raise(lane, lane->flush_qp, &self, &self);
    if (rc != 0)
        holmes_warn(NET, "nic %s: the queue pair that flushes GPU memory does not rise: %s",
                    lane->wn->nic.name, holmes_strerror(rc));
    return rc;
}

static struct wire_lane *lane_alloc(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                                    const struct wire_lane_params *params)
{
    struct wire_lane *lane = calloc(1, sizeof *lane);
    int class = params ? params->traffic_class : -1;

    if (!lane)
        return NULL;
    lane->wn = wn;
    lane->cq = cq;
    lane->own.role = role;
    lane->gid_index = params                   ? params->gid_index
                      : wn->nic.rdma.ngids > 0 ? wn->nic.rdma.gids[0].index
                                               : 0;
    lane->probe = params && params->probe;
    lane->sq_depth = depth(wn, VERBS_SQ_DEPTH);
    lane->sl = holmes_verbs_sl(&wn->opts, class);
    lane->tc = holmes_verbs_tc(&wn->opts, role, class);
    atomic_init(&lane->status, -EAGAIN);
    holmes_list_init(&lane->node);
    return lane;
}

static int lane_open(struct wire_lane *lane, const struct wire_lane_params *params)
{
    struct wire_nic *wn = lane->wn;
    int rc = lane_locate(lane, params ? params->mtu : 0);

    if (rc == 0)
        rc = holmes_verbs_cq_add(lane->cq, lane);
    if (rc == 0)
        rc = qp_create(wn, lane->cq, VERBS_RQ_DEPTH, &lane->qp);
    if (rc != 0)
        return rc;
    lane->own.qpn = lane->qp->qp_num;
    lane->adaptive = wn->opts.adaptive_routing < 0
                         ? lane->own.link_layer == IBV_LINK_LAYER_INFINIBAND
                         : wn->opts.adaptive_routing > 0;
    rc = holmes_verbs_lane_receives(lane, depth(wn, VERBS_RQ_DEPTH));
    if (rc == 0 && params && params->flush)
        rc = flush_make(lane);
    return rc;
}

int holmes_verbs_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                             const struct wire_lane_params *params, void *blob, size_t *blob_len,
                             struct wire_lane **out)
{
    struct wire_lane *lane;
    int rc = atomic_load(&wn->fatal);

    if (rc != 0)
        return rc;
    lane = lane_alloc(wn, cq, role, params);
    if (!lane)
        return -ENOMEM;
    rc = lane_open(lane, params);
    if (rc != 0) {
        holmes_verbs_lane_close(lane);
        return rc;
    }
    pthread_mutex_lock(&wn->lock);
    holmes_list_append(&wn->lanes, &lane->node);
    pthread_mutex_unlock(&wn->lock);
    *blob_len = holmes_verbs_blob_encode(&lane->own, blob);
    *out = lane;
    return 0;
}

/* ---- raising it ---- */

static bool may_retry(const struct wire_lane *lane, int error)
{
    const struct verbs_options *o = &lane->wn->opts;

    return !lane->probe && lane->retries < o->retry_max && (o->retry_all || error == -ETIMEDOUT);
}

static void lane_say_failed(const struct wire_lane *lane, int error)
{
    char peer[VERBS_END_TEXT];

    holmes_warn(NET, "nic %s qp 0x%x: no way to %s: %s", lane->wn->nic.name, lane->own.qpn,
                holmes_verbs_end_text(&lane->peer, peer), holmes_strerror(error));
}

/* One try. wn->lock is held, but not while the kernel resolves the peer's address. */
static int lane_raise(struct wire_lane *lane)
{
    struct wire_nic *wn = lane->wn;
    int rising = -EAGAIN, rc;

    if (lane->retry_at_ns != 0) {
        lane->retry_at_ns = 0;
        atomic_fetch_sub(&wn->nretrying, 1);
    }
    lane->raising = true;
    pthread_mutex_unlock(&wn->lock);
    rc = qp_raise(lane, lane->qp, &lane->own, &lane->peer);
    pthread_mutex_lock(&wn->lock);
    lane->raising = false;
    pthread_cond_broadcast(&wn->raised);
    if (rc == 0) {
        atomic_compare_exchange_strong(&lane->status, &rising, 0);
        return 0;
    }
    if (may_retry(lane, rc)) {
        lane->retries++;
        lane->retry_at_ns = holmes_deadline_ms((uint64_t)wn->opts.retry_sleep_ms);
        atomic_fetch_add(&wn->nretrying, 1);
        return 0;
    }
    lane_say_failed(lane, rc);
    return holmes_verbs_lane_fail(lane, rc);
}

int holmes_verbs_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len)
{
    struct verbs_end peer;
    int rc = holmes_verbs_blob_decode(blob, blob_len, &peer);

    if (rc == 0 && (peer.role == lane->own.role || peer.link_layer != lane->own.link_layer))
        rc = -EPROTO;
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&lane->wn->lock);
    if (lane->peer.qpn != 0) {
        rc = -EISCONN;
    } else {
        lane->peer = peer;
        rc = lane_raise(lane);
    }
    pthread_mutex_unlock(&lane->wn->lock);
    return rc;
}

void holmes_verbs_nic_progress(struct wire_nic *wn)
{
    uint64_t now;

    if (atomic_load_explicit(&wn->nretrying, memory_order_relaxed) == 0 ||
        pthread_mutex_trylock(&wn->lock) != 0)
        return;
    now = holmes_now_ns();
    holmes_list_each(lane, tmp, &wn->lanes, struct wire_lane, node)
    {
        if (lane->retry_at_ns != 0 && now >= lane->retry_at_ns) {
            lane_raise(lane);
            break; /* others may have closed their lanes meanwhile */
        }
    }
    pthread_mutex_unlock(&wn->lock);
}

int holmes_verbs_lane_poll(struct wire_lane *lane)
{
    return atomic_load_explicit(&lane->status, memory_order_acquire);
}

void holmes_verbs_lane_close(struct wire_lane *lane)
{
    struct wire_nic *wn;

    if (!lane)
        return;
    wn = lane->wn;
    pthread_mutex_lock(&wn->lock);
    while (lane->raising) /* by another thread's nic_progress; the kernel takes a second at most */
        pthread_cond_wait(&wn->raised, &wn->lock);
    holmes_list_remove(&lane->node);
    if (lane->retry_at_ns != 0)
        atomic_fetch_sub(&wn->nretrying, 1);
    pthread_mutex_unlock(&wn->lock);
    /* Without the lock: destroying waits until the watcher has acknowledged the queue pair's
     * events, and the watcher takes the lock to find its lane. */
    qp_destroy(wn, lane->qp);
    qp_destroy(wn, lane->flush_qp);
    holmes_verbs_cq_remove(lane->cq, lane);
    free(lane);
}
