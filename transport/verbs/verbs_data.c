/* The data path: posts work requests and turns completions into wire events.
 *
 * Only writes that the caller wants reported ask for a completion, and every so manieth of the
 * others, so that the send queue cannot fill up unseen. A completion says that all requests posted
 * before it on its queue are done too. A work request id is
 *
 *     generation of the lane in its cq 24 | place in cq->lanes 8 | kind 2 | slot in the ring 30
 *
 * so that what a closed lane left behind is told from what a live one did, whatever queue pair
 * numbers the device gives out again.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "verbs.h"

#define POLL_BATCH 16
#define SLOT_MASK  (VERBS_SQ_DEPTH - 1)

#define IDLE_POLLS       64   /* between looks at the clock */
#define SLOW_NS_PER_BYTE 4000 /* 250 kB/s: soft RoCE where packets get lost */

enum wr_kind { WR_WRITE, WR_RECEIVE, WR_FLUSH };

static uint64_t wr_id(const struct wire_lane *lane, enum wr_kind kind, uint32_t position)
{
    return (uint64_t)lane->id << 32 | (uint64_t)kind << 30 | (position & SLOT_MASK);
}

static enum wr_kind wr_id_kind(uint64_t id)
{
    return (enum wr_kind)(id >> 30 & 3);
}

/* NULL when that lane is closed. */
static struct wire_lane *wr_id_lane(const struct wire_cq *cq, uint64_t id)
{
    uint32_t lane_id = (uint32_t)(id >> 32);
    struct wire_lane *lane = cq->lanes[lane_id & (VERBS_CQ_LANES - 1)];

    return lane && lane->id == lane_id ? lane : NULL;
}

/* ---- the completion queue ---- */

int holmes_verbs_cq_open(struct wire_nic *wn, struct wire_cq **out)
{
    struct wire_cq *cq = calloc(1, sizeof *cq);
    int rc;

    if (!cq)
        return -ENOMEM;
    cq->wn = wn;
    errno = 0;
    cq->cq = holmes_verbs.create_cq(wn->ctx, VERBS_LANE_CQES, cq, NULL, 0);
    if (!cq->cq) {
        rc = holmes_verbs_open_errno(ENOMEM);
        holmes_warn(NET, "nic %s: cannot create a completion queue of %u entries: %s", wn->nic.name,
                    VERBS_LANE_CQES, holmes_strerror(rc));
        free(cq);
        return rc;
    }
    *out = cq;
    return 0;
}

void holmes_verbs_cq_close(struct wire_cq *cq)
{
    int rc;

    if (!cq)
        return;
    rc = holmes_verbs.destroy_cq(cq->cq);
    if (rc != 0)
        holmes_warn(NET, "nic %s: a completion queue does not close: %s", cq->wn->nic.name,
                    holmes_strerror(rc > 0 ? -rc : holmes_verbs_errno(EIO)));
    free(cq->saved);
    free(cq);
}

/* Room for the completions of all its lanes. */
static int cq_fit(struct wire_cq *cq, unsigned nlanes)
{
    int need = (int)(nlanes * VERBS_LANE_CQES), rc;

    if (need > cq->wn->max_cqe)
        need = cq->wn->max_cqe;
    if (cq->cq->cqe >= need)
        return 0;
    errno = 0;
    rc = holmes_verbs.resize_cq(cq->cq, need);
    if (rc == 0)
        return 0;
    rc = rc > 0 ? -rc : holmes_verbs_errno(EOPNOTSUPP);
    holmes_warn(NET,
                "nic %s: its completion queues do not grow (%s): one queue pair per connection is "
                "what it can do (NCCL_IB_QPS_PER_CONNECTION=1)",
                cq->wn->nic.name, holmes_strerror(rc));
    return rc;
}

int holmes_verbs_cq_add(struct wire_cq *cq, struct wire_lane *lane)
{
    unsigned place = 0;
    int rc;

    while (place < VERBS_CQ_LANES && cq->lanes[place])
        place++;
    if (place == VERBS_CQ_LANES)
        return -ENOSPC;
    rc = cq_fit(cq, cq->nlanes + 1);
    if (rc != 0)
        return rc;
    lane->id = cq->generation++ << 8 | place;
    cq->lanes[place] = lane;
    cq->nlanes++;
    return 0;
}

static bool saved_append(struct wire_cq *cq, const struct ibv_wc *wc)
{
    if (cq->nsaved == cq->saved_cap) {
        size_t cap = cq->saved_cap + 2 * POLL_BATCH;
        struct ibv_wc *saved = realloc(cq->saved, cap * sizeof *saved);

        if (!saved)
            return false;
        cq->saved = saved;
        cq->saved_cap = cap;
    }
    cq->saved[cq->nsaved++] = *wc;
    return true;
}

/* Empties the queue, so that what a closed lane left there cannot crowd out those that stay. */
void holmes_verbs_cq_remove(struct wire_cq *cq, struct wire_lane *lane)
{
    unsigned place = lane->id & (VERBS_CQ_LANES - 1);
    struct ibv_wc wc;

    if (cq->lanes[place] != lane)
        return;
    cq->lanes[place] = NULL;
    cq->nlanes--;
    while (ibv_poll_cq(cq->cq, 1, &wc) > 0) {
        struct wire_lane *other = wr_id_lane(cq, wc.wr_id);

        if (other && !saved_append(cq, &wc)) {
            holmes_verbs_lane_fail(other, -ENOMEM);
            return;
        }
    }
}

/* ---- receives ---- */

int holmes_verbs_lane_receives(struct wire_lane *lane, unsigned count)
{
    struct ibv_recv_wr wrs[VERBS_RQ_BATCH], *bad;

    while (count > 0) {
        unsigned n = count < VERBS_RQ_BATCH ? count : VERBS_RQ_BATCH;
        int rc;

        for (unsigned i = 0; i < n; i++)
            wrs[i] = (struct ibv_recv_wr){.wr_id = wr_id(lane, WR_RECEIVE, 0),
                                          .next = i + 1 < n ? &wrs[i + 1] : NULL};
        rc = ibv_post_recv(lane->qp, wrs, &bad);
        if (rc != 0)
            return rc > 0 ? -rc : holmes_verbs_errno(EIO);
        count -= n;
    }
    return 0;
}

/* An immediate used one up. */
static void receive_taken(struct wire_lane *lane)
{
    int rc;

    if (++lane->rq_taken < VERBS_RQ_BATCH)
        return;
    rc = holmes_verbs_lane_receives(lane, lane->rq_taken);
    lane->rq_taken = 0;
    if (rc != 0)
        holmes_verbs_lane_fail(lane, rc);
}

/* ---- posting ---- */

static unsigned ring_used(const struct verbs_ring *r)
{
    return r->head - r->tail;
}

/* Enters a request that is about to be posted. Returns whether it must ask for a completion. Where
 * lanes are timed one request at least does among those that are out. */
static bool ring_push(struct wire_lane *lane, struct verbs_ring *r, void *context, size_t len,
                      bool report)
{
    bool timed = lane->wn->endless && r->nsignalled == 0;
    bool signalled = report || ++r->unsignalled == VERBS_SIGNAL || timed;

    r->slots[r->head++ & SLOT_MASK] = (struct verbs_slot){
        .context = context, .len = (uint32_t)len, .report = report, .signalled = signalled};
    if (timed)
        lane->moved_ns = holmes_now_ns();
    if (signalled) {
        r->nsignalled++;
        r->unsignalled = 0;
    }
    return signalled;
}

static void ring_take_back(struct verbs_ring *r, uint32_t head)
{
    while (r->head != head)
        r->nsignalled -= r->slots[--r->head & SLOT_MASK].signalled;
}

/* All requests up to the one in `slot` are done; that one is returned. */
static struct verbs_slot ring_pop(struct verbs_ring *r, uint32_t slot)
{
    struct verbs_slot s = {0};

    while (ring_used(r) > 0) {
        uint32_t at = r->tail++ & SLOT_MASK;

        r->nsignalled -= r->slots[at].signalled;
        if (at == slot)
            return r->slots[at];
    }
    return s;
}

static int post_check(const struct wire_lane *lane, const struct wire_write *w)
{
    size_t max = w->flags & WIRE_INLINE ? VERBS_INLINE_MAX : lane->wn->limits.max_write;

    if (w->len > max || (w->len == 0 && !(w->flags & WIRE_WITH_IMM)))
        return -EINVAL;
    if (w->len > 0 && !(w->flags & WIRE_INLINE) && !w->mr)
        return -EINVAL;
    return 0;
}

static struct ibv_send_wr write_wr(const struct wire_write *w, struct ibv_sge *sge)
{
    bool inlined = w->flags & WIRE_INLINE;
    const struct ibv_mr *mr = w->mr && !inlined ? w->mr->desc : NULL;
    struct ibv_send_wr wr = {
        .opcode = w->flags & WIRE_WITH_IMM ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
        .send_flags = inlined && w->len > 0 ? IBV_SEND_INLINE : 0,
        .imm_data = htonl(w->imm),
        .wr.rdma = {.remote_addr = w->remote_addr, .rkey = (uint32_t)w->remote_key},
    };

    *sge = (struct ibv_sge){
        .addr = (uintptr_t)w->buf, .length = (uint32_t)w->len, .lkey = mr ? mr->lkey : 0};
    if (w->len > 0) {
        wr.sg_list = sge;
        wr.num_sge = 1;
    }
    return wr;
}

/* With adaptive routing packets overtake each other, and one without an immediate may: the
 * immediate then follows in a request of its own. */
static bool split_off_imm(const struct wire_lane *lane, const struct wire_write *w)
{
    return lane->adaptive && w->flags & WIRE_WITH_IMM && w->len > lane->wn->opts.ar_threshold;
}

static int post_failed(struct wire_lane *lane, struct ibv_send_wr *first,
                       const struct ibv_send_wr *bad, uint32_t head, int rc)
{
    rc = rc > 0 ? -rc : holmes_verbs_errno(EIO);
    if (bad == first)
        ring_take_back(&lane->sq, head); /* nothing was posted */
    else
        rc = holmes_verbs_lane_fail(lane, rc);
    return rc == -EAGAIN ? -EIO : rc;
}

int holmes_verbs_lane_post(struct wire_lane *lane, const struct wire_write *w)
{
    bool report = !(w->flags & (WIRE_INLINE | WIRE_QUIET)), split;
    uint32_t head = lane->sq.head;
    struct ibv_send_wr wrs[2], *last = wrs, *bad = wrs;
    struct ibv_sge sge;
    int rc = holmes_verbs_lane_poll(lane);

    if (rc == 0)
        rc = post_check(lane, w);
    if (rc != 0)
        return rc;
    split = split_off_imm(lane, w);
    if (ring_used(&lane->sq) + 1 + split > lane->sq_depth)
        return -EAGAIN;
    wrs[0] = write_wr(w, &sge);
    if (split) {
        wrs[1] =
            (struct ibv_send_wr){.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = wrs[0].imm_data};
        wrs[0].opcode = IBV_WR_RDMA_WRITE;
        wrs[0].wr_id = wr_id(lane, WR_WRITE, lane->sq.head);
        wrs[0].next = last = &wrs[1];
        if (ring_push(lane, &lane->sq, NULL, w->len, false))
            wrs[0].send_flags |= IBV_SEND_SIGNALED;
    }
    last->wr_id = wr_id(lane, WR_WRITE, lane->sq.head);
    if (ring_push(lane, &lane->sq, w->context, split ? 0 : w->len, report))
        last->send_flags |= IBV_SEND_SIGNALED;
    rc = ibv_post_send(lane->qp, wrs, &bad);
    return rc == 0 ? 0 : post_failed(lane, wrs, bad, head, rc);
}

int holmes_verbs_lane_flush(struct wire_lane *lane, const void *buf, const struct wire_mr *mr,
                            void *context)
{
    const struct ibv_mr *to = lane->wn->flush_mr.desc;
    struct verbs_ring *r = &lane->flush;
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .num_sge = 1,
                             .wr.rdma = {.remote_addr = (uintptr_t)buf, .rkey = (uint32_t)mr->key}};
    struct ibv_send_wr *bad;
    struct ibv_sge sge;
    int rc = holmes_verbs_lane_poll(lane);

    if (rc != 0)
        return rc;
    if (!lane->flush_qp)
        return -EOPNOTSUPP;
    if (ring_used(r) >= lane->sq_depth)
        return -EAGAIN;
    sge = (struct ibv_sge){.addr = (uintptr_t)to->addr, .length = 1, .lkey = to->lkey};
    wr.sg_list = &sge;
    wr.wr_id = wr_id(lane, WR_FLUSH, r->head);
    rc = ibv_post_send(lane->flush_qp, &wr, &bad);
    if (rc != 0)
        return rc > 0 ? -rc : holmes_verbs_errno(EIO);
    ring_push(lane, r, context, 1, true);
    return 0;
}

/* ---- polling ---- */

/* The first bad completion ends the lane and is told; those of the requests behind it say nothing
 * new. Returns the lane's error. */
static int lane_end(struct wire_lane *lane, const struct ibv_wc *wc, int error, bool *first)
{
    char peer[VERBS_END_TEXT];

    *first = holmes_verbs_lane_poll(lane) == 0;
    error = holmes_verbs_lane_fail(lane, error);
    if (*first)
        holmes_warn(NET, "nic %s qp 0x%x: %s (vendor error 0x%x); its peer is %s",
                    lane->wn->nic.name, lane->own.qpn, holmes_verbs.wc_status_str(wc->status),
                    wc->vendor_err, holmes_verbs_end_text(&lane->peer, peer));
    return error;
}

static bool link_is_lost(struct wire_nic *wn)
{
    struct ibv_port_attr port;

    return atomic_load(&wn->link_lost) || /* the event may be on its way */
           (holmes_verbs_query_port(wn->ctx, wn->nic.rdma.port, &port) == 0 &&
            port.state != IBV_PORT_ACTIVE);
}

/* Software devices that cannot send for lack of a link blame the queue pair. */
static int request_error(const struct wire_lane *lane, const struct ibv_wc *wc)
{
    if (wc->status == IBV_WC_LOC_QP_OP_ERR && link_is_lost(lane->wn))
        return -EHOSTUNREACH;
    return holmes_verbs_status_errno(wc->status);
}

static bool event_from_receive(struct wire_lane *lane, const struct ibv_wc *wc,
                               struct wire_event *out)
{
    int error = holmes_verbs_status_errno(wc->status);
    bool first;

    if (error != 0) {
        /* Here it is the peer whose write was refused. */
        lane_end(lane, wc, error == -ECONNABORTED ? -ECONNRESET : error, &first);
        return false;
    }
    *out = (struct wire_event){.type = WIRE_IMM, .imm = ntohl(wc->imm_data)};
    receive_taken(lane);
    return true;
}

static bool event_from_request(struct wire_lane *lane, struct verbs_ring *r,
                               const struct ibv_wc *wc, struct wire_event *out)
{
    struct verbs_slot slot = ring_pop(r, (uint32_t)(wc->wr_id & SLOT_MASK));
    int error = request_error(lane, wc);
    bool first;

    if (lane->wn->endless)
        lane->moved_ns = holmes_now_ns();
    if (error == 0) {
        *out = (struct wire_event){.type = WIRE_WRITE_DONE, .context = slot.context};
        return slot.report;
    }
    error = lane_end(lane, wc, error, &first);
    *out = (struct wire_event){
        .type = WIRE_ERROR, .error = error, .context = slot.report ? slot.context : NULL};
    return slot.report || first;
}

/* Returns whether the completion is an event for the caller. */
static bool event_from(struct wire_cq *cq, const struct ibv_wc *wc, struct wire_event *out)
{
    struct wire_lane *lane = wr_id_lane(cq, wc->wr_id);

    if (!lane)
        return false;
    switch (wr_id_kind(wc->wr_id)) {
    case WR_RECEIVE:
        return event_from_receive(lane, wc, out);
    case WR_WRITE:
        return event_from_request(lane, &lane->sq, wc, out);
    case WR_FLUSH:
        return event_from_request(lane, &lane->flush, wc, out);
    }
    return false;
}

static int saved_take(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = 0;

    while (n < max && cq->saved_at < cq->nsaved)
        n += event_from(cq, &cq->saved[cq->saved_at++], &events[n]);
    if (cq->saved_at == cq->nsaved)
        cq->saved_at = cq->nsaved = 0;
    return n;
}

/* Until the next completion of the lane's writes: the retries that were asked for, and the time
 * that the bytes before it take on a slow network. */
static uint64_t patience_ns(const struct wire_lane *lane)
{
    const struct verbs_options *o = &lane->wn->opts;
    uint64_t ns = (4096ull << o->timeout) * (uint64_t)(o->retry_cnt + 1);

    for (uint32_t i = lane->sq.tail; i != lane->sq.head; i++) {
        ns += (uint64_t)lane->sq.slots[i & SLOT_MASK].len * SLOW_NS_PER_BYTE;
        if (lane->sq.slots[i & SLOT_MASK].signalled)
            break;
    }
    return ns;
}

/* For a device that sends again for ever: a dead peer must be known some time. A time-out of 0 asks
 * for that, too. */
static void cq_time_out(struct wire_cq *cq)
{
    uint64_t now = holmes_now_ns();
    char peer[VERBS_END_TEXT];

    for (unsigned i = 0; i < VERBS_CQ_LANES; i++) {
        struct wire_lane *lane = cq->lanes[i];

        if (!lane || lane->probe || lane->sq.nsignalled == 0 || lane->wn->opts.timeout == 0 ||
            holmes_verbs_lane_poll(lane) != 0 || now - lane->moved_ns < patience_ns(lane))
            continue;
        holmes_warn(NET, "nic %s qp 0x%x: no answer for %.1f s; its peer is %s", cq->wn->nic.name,
                    lane->own.qpn, (double)(now - lane->moved_ns) * 1e-9,
                    holmes_verbs_end_text(&lane->peer, peer));
        holmes_verbs_lane_fail(lane, -ECONNRESET);
        holmes_verbs_qp_end(lane->qp);
    }
}

int holmes_verbs_cq_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = cq->nsaved > 0 ? saved_take(cq, events, max) : 0, got = POLL_BATCH, want;

    while (n < max) {
        struct ibv_wc wcs[POLL_BATCH];

        want = max - n < POLL_BATCH ? max - n : POLL_BATCH;
        got = ibv_poll_cq(cq->cq, want, wcs);
        if (got < 0)
            return n > 0 ? n : -EIO;
        for (int i = 0; i < got; i++)
            n += event_from(cq, &wcs[i], &events[n]);
        if (got < want)
            break;
    }
    if (n == 0 && cq->wn->endless && ++cq->idle_polls % IDLE_POLLS == 0)
        cq_time_out(cq);
    return n;
}
