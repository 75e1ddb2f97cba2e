#include "fault_driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "list.h"

/* The tags of driver.h are this file's own structs here; the wrapped wire's objects are kept as
 * pointers to their incomplete type under another name. */
struct fault_event {
    struct holmes_list node;
    struct wire_event event;
    int due_poll;
};

struct wire_cq {
    void *under;
    struct holmes_list withheld; /* fault_event */
    int polls;
};

struct fault_op {
    struct holmes_list node; /* in its lane's ops */
    struct wire_lane *lane;
    void *context;
};

struct wire_lane {
    void *under; /* NULL once dropped */
    struct wire_cq *cq;
    struct holmes_list ops; /* writes with a context that are not reported yet */
};

static const struct wire_ops *under;
static struct fault_plan *plan;

static int fault_load(char *why, size_t why_len)
{
    if (plan->load_error == 0)
        return under->load(why, why_len);
    snprintf(why, why_len, "the fault driver refuses to load: %s", strerror(-plan->load_error));
    return plan->load_error;
}

static int fault_nic_open(const struct holmes_nic *nic, uint16_t port, uint16_t port_end,
                          struct wire_nic **out)
{
    if (plan->nic_open_error != 0)
        return plan->nic_open_error;
    return under->nic_open(nic, port, port_end, out);
}

static int fault_mr_reg(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out)
{
    if (plan->mr_reg_error != 0)
        return plan->mr_reg_error;
    plan->mr_regs++;
    return under->mr_reg(wn, addr, len, out);
}

static void fault_nic_close(struct wire_nic *wn)
{
    under->nic_close(wn);
}

static void fault_nic_limits(const struct wire_nic *wn, struct wire_limits *out)
{
    under->nic_limits(wn, out);
}

static int fault_nic_status(const struct wire_nic *wn)
{
    return under->nic_status ? under->nic_status(wn) : 0;
}

static void fault_nic_progress(struct wire_nic *wn)
{
    under->nic_progress(wn);
}

static void fault_mr_dereg(struct wire_nic *wn, struct wire_mr *mr)
{
    under->mr_dereg(wn, mr);
}

static int fault_cq_open(struct wire_nic *wn, struct wire_cq **out)
{
    struct wire_cq *cq, *inner;
    int rc = plan->cq_open_error;

    if (rc == 0)
        rc = under->cq_open(wn, &inner);
    if (rc != 0)
        return rc;
    cq = calloc(1, sizeof *cq);
    if (!cq) {
        under->cq_close(inner);
        return -ENOMEM;
    }
    cq->under = inner;
    holmes_list_init(&cq->withheld);
    *out = cq;
    return 0;
}

static void fault_cq_close(struct wire_cq *cq)
{
    if (!cq)
        return;
    holmes_list_each(e, tmp, &cq->withheld, struct fault_event, node)
    {
        holmes_list_remove(&e->node);
        free(e);
    }
    under->cq_close(cq->under);
    free(cq);
}

static struct fault_op *op_make(struct wire_lane *lane, void *context)
{
    struct fault_op *op = malloc(sizeof *op);

    if (!op)
        return NULL;
    op->lane = lane;
    op->context = context;
    holmes_list_append(&lane->ops, &op->node);
    return op;
}

static void op_free(struct fault_op *op)
{
    holmes_list_remove(&op->node);
    free(op);
}

/* `event.context` is a fault_op, or NULL. */
static void cq_withhold(struct wire_cq *cq, const struct wire_event *event)
{
    struct fault_event *e = malloc(sizeof *e);

    if (!e)
        abort(); /* a test must not lose an event unawares */
    e->event = *event;
    e->due_poll = cq->polls + plan->delay_polls;
    holmes_list_append(&cq->withheld, &e->node);
}

static void withheld_release(struct fault_event *e, struct wire_event *out)
{
    struct fault_op *op = e->event.context;

    *out = e->event;
    if (op) {
        out->context = op->context;
        op_free(op);
    }
    holmes_list_remove(&e->node);
    free(e);
}

static int fault_cq_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    struct wire_event got[16];
    int taken = under->cq_poll(cq->under, got, 16), n = 0;

    plan->polls++;
    if (taken < 0)
        return taken;
    for (int i = 0; i < taken; i++)
        cq_withhold(cq, &got[i]);
    holmes_list_each(e, tmp, &cq->withheld, struct fault_event, node)
    {
        if (n == max || e->due_poll > cq->polls)
            break; /* order is kept */
        withheld_release(e, &events[n++]);
    }
    cq->polls++;
    return n;
}

static bool fault_cq_push(struct wire_cq *cq)
{
    return under->cq_push ? under->cq_push(cq->under) : true;
}

static bool fault_cq_awaited(const struct wire_cq *cq)
{
    return under->cq_awaited && under->cq_awaited(cq->under);
}

static int fault_lane_streams(const struct wire_lane *lane)
{
    return lane->under ? under->lane_streams(lane->under) : 0;
}

static int fault_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                             const struct wire_lane_params *params, void *blob, size_t *blob_len,
                             struct wire_lane **out)
{
    struct wire_lane *lane = calloc(1, sizeof *lane), *inner;
    int rc;

    if (!lane)
        return -ENOMEM;
    rc = under->lane_create(wn, cq->under, role, params, blob, blob_len, &inner);
    if (rc != 0) {
        free(lane);
        return rc;
    }
    lane->under = inner;
    lane->cq = cq;
    holmes_list_init(&lane->ops);
    *out = lane;
    return 0;
}

static int fault_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len)
{
    return lane->under ? under->lane_connect(lane->under, blob, blob_len) : -ECONNRESET;
}

static void fault_lane_via(struct wire_lane *lane, const struct holmes_addr *peer)
{
    if (lane->under && under->lane_via)
        under->lane_via(lane->under, peer);
}

static int fault_lane_poll(struct wire_lane *lane)
{
    return lane->under ? under->lane_poll(lane->under) : -ECONNRESET;
}

static bool is_withheld(const struct wire_lane *lane, const struct fault_op *op)
{
    holmes_list_each(e, tmp, &lane->cq->withheld, struct fault_event, node)
    {
        if (e->event.context == op)
            return true;
    }
    return false;
}

void fault_driver_drop(struct wire_lane *lane)
{
    if (!lane->under)
        return;
    under->lane_close(lane->under);
    lane->under = NULL;
    plan->dropped_lanes++;
    holmes_list_each(op, tmp, &lane->ops, struct fault_op, node)
    {
        if (!is_withheld(lane, op))
            cq_withhold(lane->cq, &(struct wire_event){
                                      .type = WIRE_ERROR, .error = -ECONNRESET, .context = op});
    }
}

/* Counts down; true when it reaches zero now. */
static bool cue(int *counter)
{
    return *counter > 0 && --*counter == 0;
}

static void count_post(const struct wire_write *w)
{
    const char *end = (const char *)w->buf + w->len;

    plan->posts++;
    if (w->flags & WIRE_INLINE) {
        plan->inlines++;
        plan->inlined += w->len;
    } else if (w->len > 0) {
        plan->referenced += w->len;
        if (!plan->first || w->buf < plan->first)
            plan->first = w->buf;
        if (end > (const char *)plan->end)
            plan->end = end;
    }
}

static int fault_lane_post(struct wire_lane *lane, const struct wire_write *w)
{
    struct wire_write inner = *w;
    struct fault_op *op = NULL;
    int rc;

    if (!lane->under)
        return -ECONNRESET;
    if (plan->eagain_posts > 0) {
        plan->eagain_posts--;
        return -EAGAIN;
    }
    if (cue(&plan->fail_post))
        return plan->fail_post_error;
    if (!(w->flags & (WIRE_INLINE | WIRE_QUIET))) {
        op = op_make(lane, w->context);
        if (!op)
            return -ENOMEM;
        inner.context = op;
    }
    rc = under->lane_post(lane->under, &inner);
    if (rc != 0) {
        if (op)
            op_free(op);
        return rc;
    }
    count_post(w);
    if (cue(&plan->drop_lane_post))
        fault_driver_drop(lane);
    return 0;
}

static int fault_lane_flush(struct wire_lane *lane, const void *buf, const struct wire_mr *mr,
                            void *context)
{
    struct fault_op *op;
    int rc;

    if (!lane->under)
        return -ECONNRESET;
    if (!under->lane_flush)
        return -EOPNOTSUPP;
    op = op_make(lane, context);
    if (!op)
        return -ENOMEM;
    rc = under->lane_flush(lane->under, buf, mr, op);
    if (rc != 0)
        op_free(op);
    return rc;
}

static int fault_mr_reg_dmabuf(struct wire_nic *wn, void *addr, size_t len, uint64_t offset, int fd,
                               struct wire_mr *out)
{
    if (plan->mr_reg_error != 0)
        return plan->mr_reg_error;
    plan->mr_regs++;
    return under->mr_reg_dmabuf ? under->mr_reg_dmabuf(wn, addr, len, offset, fd, out)
                                : -EOPNOTSUPP;
}

static bool fault_lane_settled(struct wire_lane *lane)
{
    return lane->under && under->lane_settled ? under->lane_settled(lane->under) : true;
}

static void fault_lane_linger(struct wire_lane *lane)
{
    if (lane->under && under->lane_linger)
        under->lane_linger(lane->under);
}

static void fault_lane_close(struct wire_lane *lane)
{
    if (!lane)
        return;
    if (lane->under)
        under->lane_close(lane->under);
    holmes_list_each(e, etmp, &lane->cq->withheld, struct fault_event, node)
    {
        struct fault_op *op = e->event.context;

        if (op && op->lane == lane) {
            holmes_list_remove(&e->node);
            free(e);
        }
    }
    holmes_list_each(op, tmp, &lane->ops, struct fault_op, node)
    {
        op_free(op);
    }
    free(lane);
}

static struct wire_ops fault_ops = {
    .load = fault_load,
    .nic_open = fault_nic_open,
    .nic_close = fault_nic_close,
    .nic_limits = fault_nic_limits,
    .nic_status = fault_nic_status,
    .nic_progress = fault_nic_progress,
    .mr_reg = fault_mr_reg,
    .mr_reg_dmabuf = fault_mr_reg_dmabuf,
    .mr_dereg = fault_mr_dereg,
    .cq_open = fault_cq_open,
    .cq_close = fault_cq_close,
    .cq_poll = fault_cq_poll,
    .cq_push = fault_cq_push,
    .cq_awaited = fault_cq_awaited,
    .lane_streams = fault_lane_streams,
    .lane_create = fault_lane_create,
    .lane_connect = fault_lane_connect,
    .lane_via = fault_lane_via,
    .lane_poll = fault_lane_poll,
    .lane_post = fault_lane_post,
    .lane_flush = fault_lane_flush,
    .lane_linger = fault_lane_linger,
    .lane_settled = fault_lane_settled,
    .lane_close = fault_lane_close,
};

const struct wire_ops *fault_driver(const struct wire_ops *wrapped, struct fault_plan *p)
{
    under = wrapped;
    plan = p;
    /* Faults come on cue: nothing is posted by another thread than the test's. */
    setenv("HOLMES_HOLD_US", "0", 1);
    fault_ops.name = wrapped->name; /* the protocol logs and compares it */
    fault_ops.rdma = wrapped->rdma;
    fault_ops.bundles = wrapped->bundles;
    return &fault_ops;
}
