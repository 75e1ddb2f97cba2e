/* The engine of the rings: keeps up to HOLMES_STREAM_WINDOW messages on the wire in each direction,
 * receives posted ahead, in the order and under the conditions that ring.h gives. Requests are
 * tested oldest first, as NCCL does; a plugin has to progress the younger ones by itself. */
#include "net_stream.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "net_progress.h"
#include "sum.h"

enum {
    TX_SLOTS = HOLMES_STREAM_WINDOW,
    /* A received sum keeps its slot until it was sent, one group of chunks later: as many again
     * let the receives run ahead. With fewer than a group the ring would lock up. */
    RX_SLOTS = 2 * HOLMES_RING_GROUP,
    SMALL_SLOT_BYTES = 32 * 1024,
};
_Static_assert(RX_SLOTS == sizeof((struct holmes_stream *)0)->kept, "every rx slot can be kept");

int holmes_stream_create(struct holmes_net_comm *comm, int rank, struct holmes_conn *tx,
                         struct holmes_conn *rx, struct holmes_stream **out)
{
    struct holmes_stream *st = calloc(1, sizeof *st);

    if (!st)
        return -ENOMEM;
    holmes_list_init(&st->in_active);
    holmes_list_init(&st->in_comm);
    holmes_list_init(&st->ops);
    st->comm = comm;
    st->rank = rank;
    st->tx = tx;
    st->rx = rx;
    st->overlap = !tx || !rx;
    st->staged = -1;
    snprintf(st->track, sizeof st->track, "%.24s%s", comm->name,
             !tx   ? " recv"
             : !rx ? " send"
                   : "");
    *out = st;
    return 0;
}

void holmes_stream_destroy(struct holmes_stream *st)
{
    if (!st)
        return;
    free(st->tx_slots.data);
    free(st->rx_slots.data);
    free(st);
}

/* ---- slots ---- */

static int slots_reserve(struct holmes_stream *st, struct holmes_slots *s, unsigned int count,
                         size_t size, bool receives)
{
    int rc = 0;

    if (size <= s->size)
        return 0;
    assert(s->size == 0 || s->free == (1u << count) - 1);
    if (s->tx)
        holmes_conn_forget(st->tx, s->tx);
    if (s->rx)
        holmes_conn_forget(st->rx, s->rx);
    free(s->data);
    *s = (struct holmes_slots){0};
    size = (size + 4095) & ~(size_t)4095;
    s->data = aligned_alloc(4096, count * size);
    if (!s->data)
        return -ENOMEM;
    if (st->tx)
        rc = holmes_conn_register(st->tx, s->data, count * size, &s->tx);
    if (rc == 0 && receives)
        rc = holmes_conn_register(st->rx, s->data, count * size, &s->rx);
    if (rc)
        return rc;
    s->size = size;
    s->free = (1u << count) - 1;
    return 0;
}

static int slots_take(struct holmes_slots *s)
{
    int slot = s->free ? __builtin_ctz(s->free) : -1;

    if (slot >= 0)
        s->free &= ~(1u << slot);
    return slot;
}

static void slots_give(struct holmes_slots *s, int slot)
{
    s->free |= 1u << slot;
}

static char *slots_at(const struct holmes_slots *s, int slot)
{
    return s->data + (size_t)slot * s->size;
}

static size_t at_most(uint64_t n, size_t max)
{
    return n < max ? (size_t)n : max;
}

/* Of what is reserved, only slots that were written are in memory, and the lowest are taken first.
 */
size_t holmes_stream_slot_bytes(const struct holmes_ring_attr *attr)
{
    const size_t page = 4096;
    struct holmes_ring r;
    size_t chunk, sums;

    holmes_ring_init(&r, attr);
    chunk = (r.chunk * attr->elem_bytes + page - 1) & ~(page - 1);
    if (r.block * (size_t)attr->size * attr->elem_bytes <= SMALL_SLOT_BYTES)
        return (at_most(r.nsend, TX_SLOTS) + at_most(r.nrecv, RX_SLOTS)) * chunk;
    sums = r.groups * r.group * (size_t)(attr->size - 1);
    return at_most(sums, RX_SLOTS) * chunk;
}

/* Which slots an operation needs follows from ring.h: sums arrive in slots, and everything that is
 * small passes through them. */
static int op_start(struct holmes_stream *st, struct holmes_op *op)
{
    const struct holmes_ring *r = &op->ring;
    bool sums =
        r->attr.kind == HOLMES_RING_ALL_REDUCE || r->attr.kind == HOLMES_RING_REDUCE_SCATTER;
    size_t large = sums ? r->chunk * r->attr.elem_bytes : 0;
    int rc;

    if (op->started)
        return 0;
    rc = holmes_op_register(op);
    if (rc == 0 && r->nsend && op->small)
        rc = slots_reserve(st, &st->tx_slots, TX_SLOTS, SMALL_SLOT_BYTES, false);
    if (rc == 0 && r->nrecv && (op->small || large))
        rc = slots_reserve(st, &st->rx_slots, RX_SLOTS, op->small ? SMALL_SLOT_BYTES : large, true);
    op->started = rc == 0;
    op->trace_begin = holmes_trace_begin();
    return rc;
}

/* ---- windows ---- */

static struct holmes_msg *window_oldest(struct holmes_window *w)
{
    return w->count ? &w->msg[w->first] : NULL;
}

static void window_push(struct holmes_window *w, struct holmes_msg m)
{
    assert(w->count < HOLMES_STREAM_WINDOW);
    w->msg[(w->first + w->count++) % HOLMES_STREAM_WINDOW] = m;
}

static void window_pop(struct holmes_window *w)
{
    w->first = (w->first + 1) % HOLMES_STREAM_WINDOW;
    w->count--;
}

/* ---- what came in ---- */

/* What this rank sent for it, or received when it only does that. */
static size_t op_bytes(const struct holmes_ring *r)
{
    const struct holmes_ring_attr *a = &r->attr;
    size_t bytes = a->count * a->elem_bytes, others = (size_t)a->size - 1;

    if (a->kind == HOLMES_RING_ALL_REDUCE)
        return 2 * others * bytes / (size_t)a->size;
    if (a->kind == HOLMES_RING_REDUCE_SCATTER || a->kind == HOLMES_RING_ALL_GATHER)
        return others * bytes;
    return bytes;
}

/* Sends to one peer overlap at their ends: there an event begins where the one before it ended. */
static void op_trace(struct holmes_stream *st, const struct holmes_op *op)
{
    uint64_t begin = op->trace_begin > st->traced_until ? op->trace_begin : st->traced_until;

    if (op->trace_begin == 0)
        return;
    st->traced_until = holmes_now_ns();
    holmes_trace_add(begin, st->traced_until, op_bytes(&op->ring), st->track, op->trace_name);
}

static void op_finish_if_over(struct holmes_op *op)
{
    if (op->send_done != op->ring.nsend || op->recv_done != op->ring.nrecv)
        return;
    op_trace(op->stream, op);
    holmes_op_complete(op, 0);
}

static void count_message(struct holmes_conn *c, size_t len)
{
    atomic_fetch_add_explicit(&c->bytes, len, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->messages, 1, memory_order_relaxed);
}

static void copy(char *to, const char *from, size_t len)
{
    if (len && to != from)
        memmove(to, from, len);
}

static void receive_done(struct holmes_stream *st, const struct holmes_msg *m)
{
    struct holmes_op *op = m->op;
    const char *slot = m->slot >= 0 ? slots_at(&st->rx_slots, m->slot) : NULL;
    size_t n = m->len / op->ring.attr.elem_bytes;
    struct holmes_ring_recv r;

    holmes_ring_recv_at(&op->ring, m->index, &r);
    switch (r.sink) {
    case HOLMES_RING_SUM_TO_SLOT:
        holmes_sum(op->dtype, (char *)slot, op->in + r.in_offset, slot, n);
        st->kept[(st->kept_first + st->kept_count++) % RX_SLOTS] = (int8_t)m->slot;
        break;
    case HOLMES_RING_SUM_TO_OUT:
        holmes_sum(op->dtype, op->out + r.out_offset, op->in + r.in_offset, slot, n);
        slots_give(&st->rx_slots, m->slot);
        break;
    case HOLMES_RING_TO_OUT:
        if (m->slot >= 0) {
            copy(op->out + r.out_offset, slot, m->len);
            slots_give(&st->rx_slots, m->slot);
        }
        break;
    }
    op->recv_done++;
}

static int test_receives(struct holmes_stream *st, bool *moved, char *why, size_t why_len)
{
    struct holmes_msg *m;

    while ((m = window_oldest(&st->receiving))) {
        bool done = false;
        size_t len = 0;
        int rc = holmes_plugin_test(st->rx->attr.plugin, m->request, &done, &len);

        if (rc) {
            snprintf(why, why_len, "receiving from rank %d failed", st->rx->attr.peer);
            return rc;
        }
        if (!done)
            return 0;
        *moved = true;
        if (len != m->len) {
            snprintf(why, why_len,
                     "rank %d sent %zu bytes where %zu were expected: it does not make the same "
                     "calls in the same order",
                     st->rx->attr.peer, len, m->len);
            return -EMSGSIZE;
        }
        count_message(st->rx, len);
        receive_done(st, m);
        op_finish_if_over(m->op);
        window_pop(&st->receiving);
    }
    return 0;
}

/* ---- what went out ---- */

static int test_sends(struct holmes_stream *st, bool *moved, char *why, size_t why_len)
{
    struct holmes_msg *m;

    while ((m = window_oldest(&st->sending))) {
        bool done = false;
        size_t len = 0;
        int rc = holmes_plugin_test(st->tx->attr.plugin, m->request, &done, &len);

        if (rc) {
            snprintf(why, why_len, "sending to rank %d failed", st->tx->attr.peer);
            return rc;
        }
        if (!done)
            return 0;
        *moved = true;
        if (m->slot >= TX_SLOTS)
            slots_give(&st->rx_slots, m->slot - TX_SLOTS);
        else if (m->slot >= 0)
            slots_give(&st->tx_slots, m->slot);
        m->op->send_done++;
        op_finish_if_over(m->op);
        window_pop(&st->sending);
    }
    return 0;
}

/* ---- posting ---- */

/* The operation whose message comes next on the connection; NULL: none yet. Operations of a ring
 * follow each other, so that one sees what those before it wrote. */
static struct holmes_op *next_op(struct holmes_stream *st, bool sending)
{
    holmes_list_each(op, tmp, &st->ops, struct holmes_op, node)
    {
        if (sending ? op->send_posted < op->ring.nsend : op->recv_posted < op->ring.nrecv)
            return op;
        if (!st->overlap)
            return NULL;
    }
    return NULL;
}

struct piece {
    char *data;
    void *mr;
    int slot; /* as in holmes_msg; an rx slot is counted from TX_SLOTS on in the sending window */
};

static bool receive_place(struct holmes_stream *st, struct holmes_op *op,
                          const struct holmes_ring_recv *r, struct piece *p, size_t *room)
{
    if (r->sink == HOLMES_RING_TO_OUT && !op->small) {
        *p = (struct piece){op->out + r->out_offset, op->out_rx->mr, -1};
        *room = r->len;
        return true;
    }
    p->slot = slots_take(&st->rx_slots);
    if (p->slot < 0)
        return false;
    p->data = slots_at(&st->rx_slots, p->slot);
    p->mr = st->rx_slots.rx->mr;
    *room = st->rx_slots.size;
    return true;
}

static int post_receives(struct holmes_stream *st, bool *moved, char *why, size_t why_len)
{
    while (st->receiving.count < HOLMES_STREAM_WINDOW) {
        struct holmes_op *op = next_op(st, false);
        struct holmes_ring_recv r;
        struct piece p;
        void *request;
        size_t room;
        int rc = op ? op_start(st, op) : 0;

        if (rc) {
            snprintf(why, why_len, "no memory could be registered for %s", op->name);
            return rc;
        }
        if (!op)
            return 0;
        holmes_ring_recv_at(&op->ring, op->recv_posted, &r);
        if (op->in_place && op->send_done < r.in_place_needs)
            return 0;
        if (!receive_place(st, op, &r, &p, &room))
            return 0;
        rc = holmes_plugin_irecv(st->rx->attr.plugin, st->rx->comm, p.data, room, st->rx->attr.peer,
                                 p.mr, &request);
        if (rc) {
            if (p.slot >= 0)
                slots_give(&st->rx_slots, p.slot);
            snprintf(why, why_len, "receiving from rank %d failed", st->rx->attr.peer);
            return rc == -EAGAIN ? 0 : rc;
        }
        *moved = true;
        window_push(&st->receiving,
                    (struct holmes_msg){op, request, r.len, p.slot, op->recv_posted++});
    }
    return 0;
}

/* Where the bytes of a send lie. A staged copy is kept until the plugin has taken the send. */
static bool send_place(struct holmes_stream *st, struct holmes_op *op,
                       const struct holmes_ring_send *s, struct piece *p)
{
    bool from_in = s->source == HOLMES_RING_FROM_IN;
    const char *from = (from_in ? op->in : op->out) + s->offset;
    int kept;

    if (s->source == HOLMES_RING_FROM_SLOT) {
        kept = st->kept[st->kept_first]; /* NOLINT: a slot, never negative here */
        *p = (struct piece){slots_at(&st->rx_slots, kept), st->rx_slots.tx->mr, TX_SLOTS + kept};
        return true;
    }
    if (!op->small) {
        *p = (struct piece){(char *)from, from_in ? op->in_tx->mr : op->out_tx->mr, -1};
        return true;
    }
    if (st->staged < 0) {
        st->staged = slots_take(&st->tx_slots);
        if (st->staged < 0)
            return false;
        copy(slots_at(&st->tx_slots, st->staged), from, s->len);
    }
    *p = (struct piece){slots_at(&st->tx_slots, st->staged), st->tx_slots.tx->mr, st->staged};
    return true;
}

static void send_posted(struct holmes_stream *st, struct holmes_op *op,
                        const struct holmes_ring_send *s)
{
    if (s->source == HOLMES_RING_FROM_SLOT) {
        st->kept_first = (st->kept_first + 1) % RX_SLOTS;
        st->kept_count--;
    }
    st->staged = -1;
    if (s->own_block)
        copy(op->out + s->out_offset, op->in + s->offset, s->len);
    count_message(st->tx, s->len);
    op->send_posted++;
}

static int post_sends(struct holmes_stream *st, bool *moved, char *why, size_t why_len)
{
    while (st->sending.count < HOLMES_STREAM_WINDOW) {
        struct holmes_op *op = next_op(st, true);
        struct holmes_ring_send s;
        struct piece p;
        void *request;
        int rc = op ? op_start(st, op) : 0;

        if (rc) {
            snprintf(why, why_len, "no memory could be registered for %s", op->name);
            return rc;
        }
        if (!op)
            return 0;
        holmes_ring_send_at(&op->ring, op->send_posted, &s);
        if (op->recv_done < s.needs || !send_place(st, op, &s, &p))
            return 0;
        rc = holmes_plugin_isend(st->tx->attr.plugin, st->tx->comm, p.data, s.len, st->rank, p.mr,
                                 &request);
        if (rc) {
            snprintf(why, why_len, "sending to rank %d failed", st->tx->attr.peer);
            return rc == -EAGAIN ? 0 : rc;
        }
        *moved = true;
        window_push(&st->sending, (struct holmes_msg){op, request, s.len, p.slot, op->send_posted});
        send_posted(st, op, &s);
    }
    return 0;
}

/* ---- the whole ---- */

static int conn_usable(struct holmes_conn *c, char *why, size_t why_len)
{
    int state = c ? atomic_load_explicit(&c->state, memory_order_acquire) : HOLMES_CONN_READY;

    if (state == HOLMES_CONN_READY)
        return 0;
    if (state != HOLMES_CONN_FAILED)
        return -EAGAIN;
    snprintf(why, why_len, "no connection %s rank %d", c->attr.sends ? "to" : "from", c->attr.peer);
    return c->error;
}

int holmes_stream_progress(struct holmes_stream *st, bool *moved, char *why, size_t why_len)
{
    int rc = conn_usable(st->tx, why, why_len);

    if (rc == 0)
        rc = conn_usable(st->rx, why, why_len);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    /* Receives first: they free sends. */
    if (st->rx) {
        rc = test_receives(st, moved, why, why_len);
        if (rc)
            return rc;
    }
    if (st->tx) {
        rc = test_sends(st, moved, why, why_len);
        if (rc == 0)
            rc = post_sends(st, moved, why, why_len);
        if (rc)
            return rc;
    }
    return st->rx ? post_receives(st, moved, why, why_len) : 0;
}

void holmes_stream_describe(const struct holmes_stream *st, char *text, size_t len)
{
    const struct holmes_op *op;
    size_t used;

    snprintf(text, len, "idle");
    if (holmes_list_empty(&st->ops))
        return;
    op = holmes_list_entry(st->ops.next, struct holmes_op, node);
    snprintf(text, len, "%s:", op->name);
    used = strlen(text);
    if (st->rx)
        snprintf(text + used, len - used, " received %llu of %llu messages from rank %d%s%s",
                 (unsigned long long)op->recv_done, (unsigned long long)op->ring.nrecv,
                 st->rx->attr.peer,
                 conn_usable(st->rx, (char[64]){0}, 64) ? " (not connected)" : "",
                 st->tx ? "," : "");
    used = strlen(text);
    if (st->tx)
        snprintf(text + used, len - used, " sent %llu of %llu to rank %d%s",
                 (unsigned long long)op->send_done, (unsigned long long)op->ring.nsend,
                 st->tx->attr.peer,
                 conn_usable(st->tx, (char[64]){0}, 64) ? " (not connected)" : "");
}

void holmes_stream_cancel(struct holmes_stream *st, int rc)
{
    char unused[64];

    if (st->tx && conn_usable(st->tx, unused, sizeof unused) == 0)
        holmes_conn_close(st->tx);
    if (st->rx && conn_usable(st->rx, unused, sizeof unused) == 0)
        holmes_conn_close(st->rx);
    st->sending.count = st->receiving.count = 0;
    holmes_list_each(op, tmp, &st->ops, struct holmes_op, node) holmes_op_complete(op, rc);
}
