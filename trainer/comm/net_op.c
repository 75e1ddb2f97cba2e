/* Life of an operation outside the progress thread. Completion is announced through one condition
 * of the process, since an operation may be freed the moment it is done and so owns none itself. */
#include <errno.h>
#include <stdlib.h>

#include "clock.h"
#include "net_stream.h"

enum { SMALL_BYTES = 32 * 1024 }; /* copying costs less than handling registrations */

static pthread_mutex_t done_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done_cond;
static pthread_once_t done_once = PTHREAD_ONCE_INIT;

static void done_init(void)
{
    pthread_condattr_t mono;

    pthread_condattr_init(&mono);
    pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
    pthread_cond_init(&done_cond, &mono);
    pthread_condattr_destroy(&mono);
}

static size_t in_bytes(const struct holmes_ring_attr *a)
{
    bool blocks = a->kind == HOLMES_RING_REDUCE_SCATTER;

    return a->count * a->elem_bytes * (blocks ? (size_t)a->size : 1);
}

static size_t out_bytes(const struct holmes_ring_attr *a)
{
    bool blocks = a->kind == HOLMES_RING_ALL_GATHER;

    return a->count * a->elem_bytes * (blocks ? (size_t)a->size : 1);
}

static bool conn_ready(const struct holmes_conn *c)
{
    return !c || atomic_load_explicit(&c->state, memory_order_acquire) == HOLMES_CONN_READY;
}

/* Which buffer is used in which direction follows from the algorithms of ring.h. */
int holmes_op_register(struct holmes_op *op)
{
    const struct holmes_ring_attr *a = &op->ring.attr;
    struct holmes_stream *st = op->stream;
    bool out_sent = a->kind == HOLMES_RING_ALL_REDUCE || a->kind == HOLMES_RING_ALL_GATHER ||
                    a->kind == HOLMES_RING_BROADCAST;
    bool out_received = out_sent || a->kind == HOLMES_RING_RECV;
    int rc = 0;

    if (op->small || op->in_tx || op->out_tx || op->out_rx)
        return 0;
    /* `out` first: of a gather in place it contains `in`, which then needs none of its own. */
    if (op->ring.nsend && out_sent)
        rc = holmes_conn_register(st->tx, op->out, out_bytes(a), &op->out_tx);
    if (rc == 0 && op->ring.nsend && op->in)
        rc = holmes_conn_register(st->tx, op->in, in_bytes(a), &op->in_tx);
    if (rc == 0 && op->ring.nrecv && out_received)
        rc = holmes_conn_register(st->rx, op->out, out_bytes(a), &op->out_rx);
    return rc;
}

static void op_release(struct holmes_op *op)
{
    struct holmes_stream *st = op->stream;

    if (op->in_tx)
        holmes_conn_release(st->tx, op->in_tx);
    if (op->out_tx)
        holmes_conn_release(st->tx, op->out_tx);
    if (op->out_rx)
        holmes_conn_release(st->rx, op->out_rx);
    op->in_tx = op->out_tx = op->out_rx = NULL;
}

static bool overlaps(const char *a, size_t a_len, const char *b, size_t b_len)
{
    return a && b && a < b + b_len && b < a + a_len;
}

int holmes_op_create(struct holmes_stream *st, const struct holmes_ring_attr *attr,
                     const char *name, enum holmes_dtype t, const void *in, void *out,
                     struct holmes_op **op)
{
    struct holmes_op *o = calloc(1, sizeof *o);
    size_t larger = in_bytes(attr) > out_bytes(attr) ? in_bytes(attr) : out_bytes(attr);
    int rc;

    if (!o)
        return -ENOMEM;
    pthread_once(&done_once, done_init);
    holmes_list_init(&o->node);
    o->stream = st;
    o->name = name;
    holmes_trace_take_name(o->trace_name, name);
    o->dtype = t;
    o->in = in;
    o->out = out;
    holmes_ring_init(&o->ring, attr);
    o->small = larger <= SMALL_BYTES;
    o->in_place = overlaps(o->in, in_bytes(attr), o->out, out_bytes(attr));
    if (conn_ready(st->tx) && conn_ready(st->rx)) {
        rc = holmes_op_register(o);
        if (rc) {
            op_release(o);
            free(o);
            return rc;
        }
    }
    *op = o;
    return 0;
}

void holmes_op_complete(struct holmes_op *op, int rc)
{
    op_release(op);
    holmes_list_remove(&op->node);
    op->rc = rc;
    pthread_mutex_lock(&done_lock);
    atomic_store_explicit(&op->done, true, memory_order_release);
    pthread_mutex_unlock(&done_lock);
    /* Not under the lock, which the woken thread wants at once. `op` may be gone already. */
    pthread_cond_broadcast(&done_cond);
}

bool holmes_op_done(const struct holmes_op *op)
{
    return atomic_load_explicit(&op->done, memory_order_acquire);
}

bool holmes_op_wait(struct holmes_op *op, int timeout_ms)
{
    uint64_t until = holmes_deadline_ms(timeout_ms < 0 ? 0 : (uint64_t)timeout_ms);
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    int rc = 0;

    pthread_mutex_lock(&done_lock);
    while (!holmes_op_done(op) && rc == 0) {
        if (timeout_ms < 0)
            pthread_cond_wait(&done_cond, &done_lock);
        else
            rc = pthread_cond_timedwait(&done_cond, &done_lock, &ts);
    }
    pthread_mutex_unlock(&done_lock);
    return holmes_op_done(op);
}

void holmes_op_destroy(struct holmes_op *op)
{
    op_release(op);
    free(op);
}
