/* Moves messages over raised lanes. Where the wire delivers, a send is done when its writes are,
 * else when the receiver's count says so; a receive is done when all its bytes are known to be here
 * and, where the wire does not deliver, the peer was told.
 *
 *     receiver                                   sender
 *     irecv: clear-to-send into slot   ------>   isend finds the slot, matches the tag
 *                                      <------   data (one or more writes)
 *                                      <------   [record], last write carries the immediate
 *     count of complete messages       ------>   test says done
 *
 * A buffer in GPU memory that the wire cannot reach is received in parts, each a message of its own
 * into pinned memory, and sent in pieces from pinned memory (stage.h).
 */
#include "request_ops.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "context.h"

#define POLL_EVENTS 16

int request_queue_init(struct holmes_conn *c)
{
    struct request_queue *q = &c->q;
    /* Each receive may have a flush behind it. */
    size_t count = c->sending ? PROTO_SLOTS : 2 * HOLMES_MAX_REQUESTS;

    memset(q, 0, sizeof *q);
    holmes_list_init(&q->pushing);
    q->next_seq = 1;
    return holmes_pool_init(&q->pool, count, sizeof(struct holmes_request));
}

void request_queue_fini(struct holmes_conn *c)
{
    holmes_pool_fini(&c->q.pool);
}

struct holmes_request *request_get(struct holmes_conn *c, enum request_kind kind)
{
    struct holmes_request *r = holmes_pool_get(&c->q.pool);

    if (!r)
        return NULL;
    memset(r, 0, sizeof *r);
    r->conn = c;
    r->kind = kind;
    r->started_ns = c->now_ns;
    holmes_list_init(&r->link);
    c->q.receives += kind == REQUEST_RECV;
    if (c->q.outstanding++ == 0)
        c->q.moved_ns = r->started_ns;
    return r;
}

static void request_put(struct holmes_request *r)
{
    holmes_list_remove(&r->link);
    r->kind = REQUEST_FREE;
    holmes_pool_put(&r->conn->q.pool, r);
}

void request_release(struct holmes_request *r)
{
    struct request_queue *q = &r->conn->q;

    q->receives -= r->kind == REQUEST_RECV;
    q->outstanding--;
    if (r->kind == REQUEST_RECV && !holmes_list_empty(&r->link) && r->conn->error == 0) {
        r->kind = REQUEST_CLOSED;
        for (int i = 0; i < r->n; i++)
            r->msg[i].mr = NULL; /* its user may deregister it */
        return;
    }
    request_put(r);
}
bool request_is_done(const struct holmes_request *r)
{
    const struct request_queue *q = &r->conn->q;
    bool delivers = r->conn->limits.delivers;

    if (r->kind == REQUEST_FLUSH)
        return r->send.writes == 0;
    if (r->kind == REQUEST_SEND && r->send.eager)
        return true;
    if (r->kind == REQUEST_RECV)
        return (delivers ? q->recv.completed : q->recv.acked) >= r->last && r->recv.copying == 0;
    /* With an error the lanes are closed: nothing of them is reported any more. */
    if (r->send.writes > 0 && r->conn->error == 0)
        return false;
    if (q->send.acked >= r->last)
        return true;
    return delivers && r->send.writes == 0 && request_send_is_posted(r);
}

static const struct holmes_request *nth_request(const struct holmes_conn *c, size_t i)
{
    return (const struct holmes_request *)((const char *)c->q.pool.objects + i * c->q.pool.size);
}

bool request_uses(const struct holmes_conn *c, const struct holmes_mr *mr)
{
    for (size_t i = 0; i < c->q.pool.count; i++) {
        const struct holmes_request *r = nth_request(c, i);

        for (int m = 0; r->kind != REQUEST_FREE && m < r->n; m++) {
            if (r->msg[m].mr == mr)
                return true;
        }
    }
    return false;
}

bool request_describe_oldest(const struct holmes_conn *c, uint64_t now_ns, char *buf, size_t len)
{
    static const char *const kinds[] = {
        [REQUEST_SEND] = "send", [REQUEST_RECV] = "receive", [REQUEST_FLUSH] = "flush"};
    const struct holmes_request *oldest = NULL;
    size_t bytes = 0;

    for (size_t i = 0; i < c->q.pool.count; i++) {
        const struct holmes_request *r = nth_request(c, i);

        if (r->kind == REQUEST_FREE || r->kind == REQUEST_CLOSED)
            continue;
        for (int m = 0; m < r->n; m++)
            bytes += r->msg[m].posted;
        if (!oldest || r->seq < oldest->seq)
            oldest = r;
    }
    if (!oldest)
        return false;
    snprintf(buf, len, "%s %llu is %.1f s old; %d requests with %zu bytes outstanding",
             kinds[oldest->kind], (unsigned long long)oldest->seq,
             (double)(now_ns - oldest->started_ns) * 1e-9, c->q.outstanding, bytes);
    return true;
}
int request_flush(struct holmes_conn *c, const void *buf, struct holmes_mr *mr,
                  struct holmes_request **out)
{
    struct holmes_request *r = request_get(c, REQUEST_FLUSH);
    int rc = 0;

    if (!r)
        return -EAGAIN;
    r->seq = c->q.next_seq;
    r->n = 1;
    r->msg[0].mr = mr;
    for (int i = 0; rc == 0 && i < c->nrails; i++) {
        rc = c->ops->lane_flush(c->lanes[i], buf, &mr->wire[c->rails[i].member], r);
        r->send.writes += rc == 0;
    }
    /* A flush that is half under way stays the provider's until it reports: -EIO closes the lanes
     * at once. */
    if (rc != 0 && r->send.writes > 0)
        rc = -EIO;
    if (rc != 0) {
        request_release(r);
        return rc;
    }
    *out = r;
    return 0;
}
static void write_done(struct holmes_conn *c, void *context)
{
    struct holmes_request *r = context;

    if (stage_owns(c->stage, context)) {
        struct stage_chunk *chunk = context;

        r = chunk->owner;
        stage_give(c->stage, chunk);
    }
    r->send.writes--;
}

static int take_event(struct holmes_conn *c, const struct wire_event *e)
{
    switch (e->type) {
    case WIRE_IMM:
        return request_take_immediate(c, e->imm);
    case WIRE_WRITE_DONE:
        if (e->context)
            write_done(c, e->context);
        return 0;
    case WIRE_ERROR:
        return e->error ? e->error : -EIO;
    }
    return -EIO;
}

static int rail_poll(struct holmes_conn *c, const struct conn_rail *rail)
{
    struct wire_event events[POLL_EVENTS];
    int n, rc = 0;

    do {
        n = c->ops->cq_poll(rail->cq, events, POLL_EVENTS);
        if (n < 0)
            return n;
        for (int i = 0; i < n && rc == 0; i++)
            rc = take_event(c, &events[i]);
        if (n > 0)
            c->q.moved_ns = holmes_now_ns();
    } while (rc == 0 && n == POLL_EVENTS);
    return rc;
}

int request_poll(struct holmes_conn *c)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < c->nrails; i++)
        rc = rail_poll(c, &c->rails[i]);
    if (rc == 0 && c->stage)
        rc = stage_poll(c->stage);
    if (rc == 0 && c->sending)
        rc = request_read_acks(c);
    return rc;
}

static int push_requests(struct holmes_conn *c)
{
    int rc = 0;

    holmes_list_each(r, tmp, &c->q.pushing, struct holmes_request, link)
    {
        rc = r->kind == REQUEST_SEND ? request_push_send(c, r) : request_push_recv(c, r);
        if (rc == 0 && r->kind == REQUEST_CLOSED)
            request_put(r);
        else if (rc == 0)
            holmes_list_remove(&r->link);
        else if (rc != -EINPROGRESS || r->kind != REQUEST_SEND)
            break; /* receives keep their order: the first must get its pinned memory */
    }
    if (rc == -EINPROGRESS)
        rc = 0;
    return rc == 0 && !c->sending ? request_push_ack(c) : rc;
}

static bool is_awaited(const struct holmes_conn *c)
{
    bool awaited = false;

    for (int i = 0; i < c->nrails && c->ops->cq_awaited; i++)
        awaited = awaited || c->ops->cq_awaited(c->rails[i].cq);
    return awaited;
}

#define HELD_MAX  8    /* clear-to-sends that may wait for company */
#define ANSWER_NS 5000 /* whoever has just received is likely to answer, elsewhere: first that */
#define SMALL_NS  50000

/* How long after the last event the clear-to-sends that wait may do so. They do not while the
 * sender has no other left, unless all that can come goes ahead of them: then they only tell it how
 * many of its messages were taken. */
static uint64_t patience_ns(const struct holmes_conn *c)
{
    bool needed = false;
    int n = 0;

    holmes_list_each(r, tmp, &c->q.pushing, struct holmes_request, link)
    {
        needed = needed || !request_needs_no_slot(r);
        n++;
    }
    if (n >= HELD_MAX || (needed && c->q.recv.invited <= c->q.recv.completed))
        return 0;
    return needed ? ANSWER_NS : SMALL_NS;
}

/* Of a receiver: whether what it has to tell waits, and somebody will see to it. */
static bool held_back(struct holmes_conn *c)
{
    return c->now_ns < c->q.moved_ns + patience_ns(c) && held_add(&c->t->held, c);
}

int request_push(struct holmes_conn *c, bool hold, bool *sent)
{
    int rc;

    *sent = false;
    rc = c->sending ? 0 : request_eager_match(c);
    if (rc != 0)
        return rc;
    if (hold && !c->sending && c->limits.delivers && c->ops->cq_push && !is_awaited(c)) {
        *sent = holmes_list_empty(&c->q.pushing);
        if (*sent || held_back(c))
            return 0;
    }
    rc = push_requests(c);
    *sent = rc == 0;
    for (int i = 0; i < c->nrails && c->ops->cq_push && c->error == 0; i++)
        *sent = c->ops->cq_push(c->rails[i].cq) && *sent;
    c->q.retries += rc == -EAGAIN;
    return rc == -EAGAIN ? 0 : rc;
}
