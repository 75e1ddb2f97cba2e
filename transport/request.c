/* Moves messages over raised lanes. A send is done when the receiver's count says so, never when a
 * write left our hands; a receive is done when all its bytes are known to be here and the peer was
 * told.
 *
 *     receiver                                   sender
 *     irecv: clear-to-send into slot   ------>   isend finds the slot, matches the tag
 *                                      <------   data (one or more writes)
 *                                      <------   [record], last write carries the immediate
 *     count of complete messages       ------>   test says done
 */
#include "request.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "conn.h"
#include "log.h"

/* A lane gets at least this much of a message: below, the second lane's immediate and record cost
 * more than the copy saves. */
#define MIN_LANE_BYTES (64u * 1024)
#define POLL_EVENTS    16

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

static struct holmes_request *request_get(struct holmes_conn *c, enum request_kind kind)
{
    struct holmes_request *r = holmes_pool_get(&c->q.pool);

    if (!r)
        return NULL;
    memset(r, 0, sizeof *r);
    r->conn = c;
    r->kind = kind;
    r->started_ns = holmes_now_ns();
    holmes_list_init(&r->link);
    c->q.receives += kind == REQUEST_RECV;
    if (c->q.outstanding++ == 0)
        c->q.moved_ns = r->started_ns;
    return r;
}

void request_release(struct holmes_request *r)
{
    struct request_queue *q = &r->conn->q;

    holmes_list_remove(&r->link);
    q->receives -= r->kind == REQUEST_RECV;
    r->kind = REQUEST_FREE;
    q->outstanding--;
    holmes_pool_put(&q->pool, r);
}

bool request_is_done(const struct holmes_request *r)
{
    const struct request_queue *q = &r->conn->q;
    bool delivers = r->conn->limits.delivers;
    uint64_t last = r->seq + (uint64_t)r->n - 1;

    if (r->kind == REQUEST_FLUSH)
        return r->send.writes == 0;
    if (r->kind == REQUEST_RECV)
        return (delivers ? q->recv.completed : q->recv.acked) >= last;
    /* With an error the lanes are closed: nothing of them is reported any more. */
    if (r->send.writes > 0 && r->conn->error == 0)
        return false;
    if (q->send.acked >= last)
        return true;
    return delivers && r->send.writes == 0 && r->send.part == r->send.nparts;
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

        if (r->kind == REQUEST_FREE)
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

/* ---- sending ---- */

static size_t max_piece(const struct holmes_conn *c)
{
    size_t max = c->limits.max_write;

    return max >= LANE_ALIGN ? max / LANE_ALIGN * LANE_ALIGN : max;
}

/* Remembers how far the receiver is. A count that runs ahead of what was sent is an attack or a
 * bug on the other side. */
int request_take_ack(struct holmes_conn *c, uint64_t acked)
{
    if (acked <= c->q.send.acked)
        return 0;
    if (acked > c->q.send.sent) {
        holmes_warn(NET, "conn %llu: peer acknowledges message %llu of %llu sent",
                    (unsigned long long)c->id, (unsigned long long)acked,
                    (unsigned long long)c->q.send.sent);
        return -EPROTO;
    }
    c->q.send.acked = acked;
    c->q.moved_ns = holmes_now_ns();
    return 0;
}

static int read_acks(struct holmes_conn *c)
{
    const struct proto_ack *ack = &c->send_control->ack;
    uint64_t check = __atomic_load_n(&ack->check, __ATOMIC_ACQUIRE);
    uint64_t acked = __atomic_load_n(&ack->acked, __ATOMIC_ACQUIRE);

    return check == ~acked ? request_take_ack(c, acked)
                           : 0; /* else: half of it is here, or none yet */
}

/* The slot of message `seq`, if it has come whole. */
static bool read_slot(const struct holmes_conn *c, uint64_t seq, struct proto_cts *out)
{
    const struct proto_cts *slot = &c->send_control->cts[proto_slot(seq)];

    if (__atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE) != seq)
        return false;
    *out = *slot;
    return true;
}

/* Finds the first free buffer of the current group whose tag fits. */
static int match(struct holmes_conn *c, int tag, uint64_t *seq, struct proto_cts *slot)
{
    struct request_queue *q = &c->q;
    int count = q->send.group_count > 0 ? q->send.group_count : 1;

    for (int i = 0; i < count; i++) {
        if (!read_slot(c, q->next_seq + (uint64_t)i, slot))
            return -EAGAIN;
        if (slot->group_index != i || slot->group_count < 1 ||
            slot->group_count > HOLMES_MAX_GROUP ||
            (q->send.group_count > 0 && slot->group_count != q->send.group_count)) {
            holmes_warn(NET, "conn %llu: peer posted buffer %u of %u where %d of %d must come",
                        (unsigned long long)c->id, slot->group_index, slot->group_count, i,
                        q->send.group_count);
            return -EPROTO;
        }
        count = q->send.group_count = slot->group_count;
        if (!(q->send.group_taken >> i & 1) && slot->tag == tag) {
            *seq = q->next_seq + (uint64_t)i;
            return request_take_ack(c, slot->acked);
        }
    }
    return -EAGAIN;
}

static void take_slot(struct request_queue *q, uint64_t seq)
{
    q->send.group_taken |= 1u << (seq - q->next_seq);
    if (seq > q->send.sent)
        q->send.sent = seq;
    if (q->send.group_taken == (1u << q->send.group_count) - 1) {
        q->next_seq += (uint64_t)q->send.group_count;
        q->send.group_count = 0;
        q->send.group_taken = 0;
    }
}

static void plan_send(struct holmes_conn *c, struct holmes_request *r, const struct proto_cts *slot)
{
    size_t len = r->msg[0].len;
    /* A message on all lanes turns them round, so that short ones do not all go by the first. */
    uint64_t turn = c->width < c->nlanes ? (uint64_t)c->width : 1;
    int first = (int)(r->seq * turn % (uint64_t)c->nlanes);

    r->send.remote_addr = slot->addr;
    r->send.remote_keys[0] = slot->key;
    for (int i = 1; i < HOLMES_MAX_RAILS; i++)
        r->send.remote_keys[i] = slot->rail_keys[i - 1];
    r->send.nparts = lane_split(len, c->width, 0, MIN_LANE_BYTES, r->send.parts);
    for (int i = 0; i < r->send.nparts; i++)
        r->send.parts[i].lane = (first + i) % c->nlanes;
    if (r->send.nparts > 1 || len > max_piece(c))
        r->send.mode = PROTO_IMM_RECORD;
    else if (len == slot->size)
        r->send.mode = PROTO_IMM_FULL;
    else
        r->send.mode = len <= PROTO_IMM_SIZE_MAX ? PROTO_IMM_SIZED : PROTO_IMM_RECORD;
}

static int post_record(struct holmes_conn *c, struct holmes_request *r, const struct lane_part *p)
{
    struct proto_record record = {.total = r->msg[0].len,
                                  .lanes_used = (uint32_t)r->send.nparts,
                                  .lane_bytes = p->len,
                                  .seq = r->seq};
    size_t offset =
        ((size_t)proto_slot(r->seq) * HOLMES_MAX_LANES + (size_t)p->lane) * sizeof record;
    struct wire_write w = {.buf = &record,
                           .len = sizeof record,
                           .remote_addr = c->peer.control_addr + offset,
                           .remote_key = c->peer.control_keys[p->lane % c->nrails],
                           .flags = WIRE_INLINE};

    return c->ops->lane_post(c->lanes[p->lane], &w);
}

/* Posts one write of the current part; the last of a part carries the immediate. */
static int post_piece(struct holmes_conn *c, struct holmes_request *r)
{
    const struct lane_part *p = &r->send.parts[r->send.part];
    size_t left = p->len - r->send.part_done, max = max_piece(c);
    size_t len = left < max ? left : max, offset = p->offset + r->send.part_done;
    bool last = len == left;
    int rail = p->lane % c->nrails;
    struct proto_imm imm = {
        .mode = r->send.mode, .slot = proto_slot(r->seq), .generation = proto_generation(r->seq)};
    struct wire_write w = {.buf = (const char *)r->msg[0].buf + offset,
                           .len = len,
                           .mr = r->msg[0].mr ? &r->msg[0].mr->wire[c->rails[rail].member] : NULL,
                           .remote_addr = r->send.remote_addr + offset,
                           .remote_key = r->send.remote_keys[rail],
                           .flags = last ? WIRE_WITH_IMM : WIRE_QUIET,
                           .context = r};
    int rc = 0;

    if (last && r->send.mode == PROTO_IMM_RECORD && !r->send.record_posted)
        rc = post_record(c, r, p);
    if (rc != 0)
        return rc;
    r->send.record_posted = last;
    if (r->send.mode == PROTO_IMM_SIZED)
        imm.size = (uint32_t)r->msg[0].len;
    w.imm = proto_imm_encode(&imm);
    rc = c->ops->lane_post(c->lanes[p->lane], &w);
    if (rc != 0)
        return rc;
    r->send.writes += last;
    r->send.part_done += len;
    if (last) {
        r->send.part++;
        r->send.part_done = 0;
        r->send.record_posted = false;
    }
    return 0;
}

static int push_send(struct holmes_conn *c, struct holmes_request *r)
{
    int rc = 0;

    while (rc == 0 && r->send.part < r->send.nparts)
        rc = post_piece(c, r);
    return rc;
}

int request_send(struct holmes_conn *c, const void *buf, size_t len, int tag, struct holmes_mr *mr,
                 struct holmes_request **out)
{
    struct holmes_request *r;
    struct proto_cts slot;
    uint64_t seq;
    int rc = match(c, tag, &seq, &slot);

    if (rc != 0)
        return rc;
    if (len > slot.size) {
        holmes_warn(NET,
                    "conn %llu: a send of %zu bytes (tag %d) meets a receive of %llu bytes: the "
                    "counts of the two ranks differ",
                    (unsigned long long)c->id, len, tag, (unsigned long long)slot.size);
        return -EMSGSIZE;
    }
    r = request_get(c, REQUEST_SEND);
    if (!r)
        return -EAGAIN;
    r->seq = seq;
    r->n = 1;
    r->msg[0] =
        (struct request_message){.buf = buf, .mr = mr, .posted = len, .len = len, .tag = tag};
    take_slot(&c->q, seq);
    plan_send(c, r, &slot);
    holmes_list_append(&c->q.pushing, &r->link);
    *out = r;
    return 0;
}

/* ---- receiving ---- */

static int post_slot(struct holmes_conn *c, struct holmes_request *r)
{
    struct request_queue *q = &c->q;
    int i = r->recv.slots_posted;
    const struct request_message *m = &r->msg[i];
    struct proto_cts slot = {.addr = m->mr ? mr_remote_addr(m->mr, c->rails[0].member, m->buf) : 0,
                             .key = m->mr ? m->mr->wire[c->rails[0].member].key : 0,
                             .size = m->posted,
                             .tag = m->tag,
                             .group_index = (uint8_t)i,
                             .group_count = (uint8_t)r->n,
                             .acked = q->recv.completed,
                             .seq = r->seq + (uint64_t)i};
    struct wire_write w = {.buf = &slot,
                           .len = sizeof slot,
                           .remote_addr = c->peer.control_addr +
                                          offsetof(struct proto_send_control, cts) +
                                          proto_slot(slot.seq) * sizeof slot,
                           .remote_key = c->peer.control_keys[0],
                           .flags = WIRE_INLINE};
    int rc;

    for (int rail = 1; m->mr && rail < c->nrails; rail++)
        slot.rail_keys[rail - 1] = (uint32_t)m->mr->wire[c->rails[rail].member].key;
    rc = c->ops->lane_post(c->lanes[0], &w);
    if (rc != 0)
        return rc;
    r->recv.slots_posted++;
    return 0;
}

static int push_recv(struct holmes_conn *c, struct holmes_request *r)
{
    int rc = 0;

    while (rc == 0 && r->recv.slots_posted < r->n)
        rc = post_slot(c, r);
    return rc;
}

/* Tells the sender how far we are. The clear-to-sends carry the count too, but one that nobody
 * looks for yet must not hold up the completion of an earlier send. */
static int push_ack(struct holmes_conn *c)
{
    struct request_queue *q = &c->q;
    struct proto_ack ack = {.acked = q->recv.completed, .check = ~q->recv.completed};
    struct wire_write w = {.buf = &ack,
                           .len = sizeof ack,
                           .remote_addr =
                               c->peer.control_addr + offsetof(struct proto_send_control, ack),
                           .remote_key = c->peer.control_keys[0],
                           .flags = WIRE_INLINE};
    int rc;

    if (q->recv.completed == q->recv.acked || c->limits.delivers)
        return 0;
    rc = c->ops->lane_post(c->lanes[0], &w);
    if (rc == 0)
        q->recv.acked = ack.acked;
    return rc;
}

int request_recv(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                 const int *tags, struct holmes_mr *const *mrs, struct holmes_request **out)
{
    struct request_queue *q = &c->q;
    struct holmes_request *r;

    if (q->receives == HOLMES_MAX_REQUESTS)
        return -EAGAIN;
    for (int i = 0; i < n; i++) {
        if (q->recv.slots[proto_slot(q->next_seq + (uint64_t)i)].request)
            return -EAGAIN;
    }
    r = request_get(c, REQUEST_RECV);
    if (!r)
        return -EAGAIN;
    r->seq = q->next_seq;
    r->n = n;
    for (int i = 0; i < n; i++) {
        uint64_t seq = q->next_seq++;

        r->msg[i] = (struct request_message){
            .buf = bufs[i], .mr = mrs[i], .posted = lens[i], .tag = tags[i]};
        q->recv.slots[proto_slot(seq)] = (struct recv_slot){.request = r, .index = i, .seq = seq};
    }
    holmes_list_append(&q->pushing, &r->link);
    *out = r;
    return 0;
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

/* Advances the count over messages that are done, and frees their slots. */
static void advance_completed(struct request_queue *q)
{
    for (;;) {
        struct recv_slot *s = &q->recv.slots[proto_slot(q->recv.completed + 1)];

        if (!s->request || !s->done)
            return;
        q->messages++;
        q->bytes += s->request->msg[s->index].len;
        s->request = NULL;
        q->recv.completed++;
    }
}

static int message_done(struct holmes_conn *c, struct recv_slot *s, size_t len)
{
    struct request_message *m = &s->request->msg[s->index];

    if (len > m->posted)
        return -EPROTO;
    m->len = len;
    s->done = true;
    advance_completed(&c->q);
    return 0;
}

/* All immediates of a message must be here before its records are believed: an immediate says that
 * its lane's bytes and record landed. */
static int take_record(struct holmes_conn *c, struct recv_slot *s)
{
    const struct proto_record *records = c->recv_control->record[proto_slot(s->seq)];
    uint64_t total = 0, sum = 0;
    uint32_t used = 0;

    s->immediates++;
    for (int l = 0; l < c->nlanes; l++) {
        if (__atomic_load_n(&records[l].seq, __ATOMIC_ACQUIRE) != s->seq)
            continue;
        total = records[l].total;
        used = records[l].lanes_used;
        sum += records[l].lane_bytes;
    }
    if (used < 1 || used > (uint32_t)c->nlanes || s->immediates > used)
        return -EPROTO;
    if (s->immediates < used)
        return 0;
    return sum == total ? message_done(c, s, total) : -EPROTO;
}

static int take_immediate(struct holmes_conn *c, uint32_t wire)
{
    struct proto_imm imm;
    struct recv_slot *s;
    int rc = c->sending ? -EPROTO : proto_imm_decode(wire, &imm);

    if (rc == 0) {
        s = &c->q.recv.slots[imm.slot];
        if (!s->request || s->done || imm.generation != proto_generation(s->seq))
            rc = -EPROTO;
        else if (imm.mode == PROTO_IMM_RECORD)
            rc = take_record(c, s);
        else
            rc = message_done(
                c, s, imm.mode == PROTO_IMM_FULL ? s->request->msg[s->index].posted : imm.size);
    }
    if (rc != 0)
        holmes_warn(NET, "conn %llu: peer sent an immediate that fits no receive (%08x)",
                    (unsigned long long)c->id, wire);
    return rc;
}

/* ---- both ---- */

static int take_event(struct holmes_conn *c, const struct wire_event *e)
{
    struct holmes_request *r = e->context;

    switch (e->type) {
    case WIRE_IMM:
        return take_immediate(c, e->imm);
    case WIRE_WRITE_DONE:
        if (r)
            r->send.writes--;
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
    if (rc == 0 && c->sending)
        rc = read_acks(c);
    return rc;
}

int request_push(struct holmes_conn *c)
{
    int rc = 0;

    holmes_list_each(r, tmp, &c->q.pushing, struct holmes_request, link)
    {
        rc = r->kind == REQUEST_SEND ? push_send(c, r) : push_recv(c, r);
        if (rc != 0)
            break;
        holmes_list_remove(&r->link);
    }
    if (rc == 0 && !c->sending)
        rc = push_ack(c);
    c->q.retries += rc == -EAGAIN;
    return rc == -EAGAIN ? 0 : rc;
}
