/* The data path: posts one-sided writes and turns completion entries into wire events. A write asks
 * for a completion only when it is not inline; the immediate travels as remote cq data in the same
 * TCP stream, so it is seen after all bytes posted before it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "ofi.h"

#define POLL_BATCH 16
/* Kept for each connection; what does not fit the provider keeps in a list. */
#define CQ_ENTRIES 128

int holmes_ofi_cq_open(struct wire_nic *wn, struct wire_cq **out)
{
    /* A wait object that nobody waits on: with FI_WAIT_FD the provider needs one descriptor less
     * than with none. */
    struct fi_cq_attr attr = {
        .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD, .size = CQ_ENTRIES};
    struct wire_cq *cq = calloc(1, sizeof *cq);
    int rc;

    if (!cq)
        return -ENOMEM;
    cq->wn = wn;
    rc = holmes_ofi_open_errno(fi_cq_open(wn->domain, &attr, &cq->cq, cq));
    if (rc != 0) {
        free(cq);
        return rc;
    }
    *out = cq;
    return 0;
}

void holmes_ofi_cq_close(struct wire_cq *cq)
{
    int rc;

    if (!cq)
        return;
    rc = holmes_ofi_errno(fi_close(&cq->cq->fid));
    if (rc != 0)
        holmes_warn(NET, "nic %s: a completion queue does not close: %s", cq->wn->nic.name,
                    holmes_strerror(rc));
    while (cq->chunks) {
        struct ofi_op_chunk *next = cq->chunks->next;

        free(cq->chunks);
        cq->chunks = next;
    }
    free(cq);
}

static int ops_grow(struct wire_cq *cq)
{
    struct ofi_op_chunk *chunk = calloc(1, sizeof *chunk);

    if (!chunk)
        return -ENOMEM;
    chunk->next = cq->chunks;
    cq->chunks = chunk;
    for (size_t i = 0; i < sizeof chunk->ops / sizeof *chunk->ops; i++) {
        chunk->ops[i].next = cq->free_ops;
        cq->free_ops = &chunk->ops[i];
    }
    return 0;
}

struct ofi_op *holmes_ofi_op_get(struct wire_lane *lane, void *context, bool silent)
{
    struct wire_cq *cq = lane->cq;
    struct ofi_op *op;

    if (!cq->free_ops && ops_grow(cq) != 0)
        return NULL;
    op = cq->free_ops;
    cq->free_ops = op->next;
    op->lane = lane;
    op->context = context;
    op->silent = silent;
    return op;
}

static void op_put(struct wire_cq *cq, struct ofi_op *op)
{
    op->lane = NULL;
    op->next = cq->free_ops;
    cq->free_ops = op;
}

int holmes_ofi_lane_post(struct wire_lane *lane, const struct wire_write *w)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)w->buf, .iov_len = w->len};
    struct fi_rma_iov rma = {.addr = w->remote_addr, .len = w->len, .key = w->remote_key};
    void *desc = w->mr ? w->mr->desc : NULL;
    struct fi_msg_rma msg = {
        .msg_iov = &iov,
        .desc = &desc,
        .iov_count = w->len > 0,
        .rma_iov = &rma,
        .rma_iov_count = w->len > 0, /* else the key would have to be valid for no byte at all */
        .data = w->imm,
    };
    bool inlined = w->flags & WIRE_INLINE, silent = inlined || w->flags & WIRE_QUIET;
    uint64_t flags = inlined ? FI_INJECT : silent ? 0 : FI_COMPLETION;
    struct ofi_op *op = lane->silent_op;
    ssize_t rc = holmes_ofi_lane_poll(lane);

    if (rc != 0)
        return (int)rc;
    if (w->len > (inlined ? lane->wn->limits.inline_max : lane->wn->limits.max_write) ||
        (w->len == 0 && !(w->flags & WIRE_WITH_IMM)))
        return -EINVAL;
    if (w->flags & WIRE_WITH_IMM)
        flags |= FI_REMOTE_CQ_DATA;
    if (!silent) {
        op = holmes_ofi_op_get(lane, w->context, false);
        if (!op)
            return -ENOMEM;
    }
    msg.context = op;
    rc = fi_writemsg(lane->ep, &msg, flags);
    if (rc != 0) {
        if (!silent)
            op_put(lane->cq, op);
        return holmes_ofi_errno(rc);
    }
    return 0;
}

/* Takes an op back from the provider. Returns its lane, NULL when that is closed. */
static struct wire_lane *op_return(struct wire_cq *cq, struct ofi_op *op)
{
    struct wire_lane *lane = op->lane;

    if (!op->silent)
        op_put(cq, op);
    return lane;
}

/* Returns whether the entry is an event for the caller. */
static bool event_from_entry(struct wire_cq *cq, const struct fi_cq_data_entry *e,
                             struct wire_event *out)
{
    struct ofi_op *op = e->op_context;

    memset(out, 0, sizeof *out);
    if (e->flags & FI_REMOTE_CQ_DATA) {
        out->type = WIRE_IMM;
        out->imm = (uint32_t)e->data;
        return true;
    }
    if (!op)
        return false;
    out->type = WIRE_WRITE_DONE;
    out->context = op->context;
    return op_return(cq, op) != NULL;
}

static bool event_from_error(struct wire_cq *cq, struct wire_event *out)
{
    struct fi_cq_err_entry err = {0};
    struct wire_lane *lane;
    struct ofi_op *op;

    if (fi_cq_readerr(cq->cq, &err, 0) < 0)
        return false;
    memset(out, 0, sizeof *out);
    out->type = WIRE_ERROR;
    out->error = err.err > 0 ? holmes_ofi_errno(-err.err) : -EIO;
    op = err.op_context;
    if (!op)
        return true;
    /* Flushed because the stream ended: say that instead of "cancelled". */
    if (out->error == -ECANCELED)
        out->error = -ECONNRESET;
    out->context = op->context;
    lane = op_return(cq, op);
    if (lane)
        holmes_ofi_lane_fail(lane, out->error);
    return lane != NULL;
}

/* Entries read into `events`; 0 when there are none, negative when the queue is broken. An entry
 * without an event counts in *entries only. */
static int cq_read(struct wire_cq *cq, struct wire_event *events, int max, int *entries)
{
    struct fi_cq_data_entry buf[POLL_BATCH];
    ssize_t got;
    int n = 0;

    got = fi_cq_read(cq->cq, buf, (size_t)(max < POLL_BATCH ? max : POLL_BATCH));
    *entries = got > 0 ? (int)got : got == -FI_EAVAIL;
    if (got == -FI_EAVAIL)
        return event_from_error(cq, events);
    if (got < 0)
        return got == -FI_EAGAIN ? 0 : holmes_ofi_errno(got);
    for (ssize_t i = 0; i < got; i++)
        n += event_from_entry(cq, &buf[i], &events[n]);
    return n;
}

int holmes_ofi_cq_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = 0, entries;

    while (n < max) {
        int got = cq_read(cq, events + n, max - n, &entries);

        if (got < 0)
            return n > 0 ? n : got;
        n += got;
        if (entries < POLL_BATCH)
            break;
    }
    return n;
}

void holmes_ofi_ops_orphan(struct wire_lane *lane)
{
    for (struct ofi_op_chunk *c = lane->cq->chunks; c; c = c->next) {
        for (size_t i = 0; i < sizeof c->ops / sizeof *c->ops; i++) {
            if (c->ops[i].lane == lane)
                c->ops[i].lane = NULL;
        }
    }
}
