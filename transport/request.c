/* Moves messages over raised lanes. A send is done when the receiver's count says so, never when a
 * write left our hands; a receive is done when all its bytes are known to be here and the peer was
 * told.
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

static bool slot_is_posted(const struct holmes_request *r)
{
    return r->send.npieces > 0 ? r->send.piece == r->send.npieces : r->send.part == r->send.nparts;
}

static bool send_is_posted(const struct holmes_request *r)
{
    return slot_is_posted(r) && r->send.slot.left == 0;
}

bool request_is_done(const struct holmes_request *r)
{
    const struct request_queue *q = &r->conn->q;
    bool delivers = r->conn->limits.delivers;

    if (r->kind == REQUEST_FLUSH)
        return r->send.writes == 0;
    if (r->kind == REQUEST_RECV)
        return (delivers ? q->recv.completed : q->recv.acked) >= r->last && r->recv.copying == 0;
    /* With an error the lanes are closed: nothing of them is reported any more. */
    if (r->send.writes > 0 && r->conn->error == 0)
        return false;
    if (q->send.acked >= r->last)
        return true;
    return delivers && r->send.writes == 0 && send_is_posted(r);
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

static uint64_t part_size(const struct proto_cts *slot)
{
    return slot->parts_left > 0 ? (uint64_t)slot->part_lines * LANE_ALIGN : slot->size;
}

/* Parts are of one size, all but the last, and none is empty. */
static int check_first_part(const struct holmes_conn *c, const struct proto_cts *slot)
{
    uint64_t size = part_size(slot), before_last = size * slot->parts_left;

    if (slot->parts_left == 0)
        return 0;
    if (slot->group_count == 1 && slot->size > before_last && slot->size - before_last <= size)
        return 0;
    holmes_warn(NET, "conn %llu: peer posted a buffer of %llu bytes in %llu parts of %llu",
                (unsigned long long)c->id, (unsigned long long)slot->size, slot->parts_left + 1ull,
                (unsigned long long)size);
    return -EPROTO;
}

static int check_next_part(const struct holmes_conn *c, const struct proto_cts *slot,
                           const struct send_slot *before)
{
    if (slot->group_count == 1 && slot->group_index == 0 && slot->parts_left == before->left - 1 &&
        slot->size == before->room - before->size &&
        (slot->parts_left == 0 || part_size(slot) == before->size))
        return 0;
    holmes_warn(NET,
                "conn %llu: peer posted a part (%llu bytes left, %u parts) that continues none",
                (unsigned long long)c->id, (unsigned long long)slot->size, slot->parts_left);
    return -EPROTO;
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
            int rc = check_first_part(c, slot);

            *seq = q->next_seq + (uint64_t)i;
            return rc != 0 ? rc : request_take_ack(c, slot->acked);
        }
    }
    return -EAGAIN;
}

static void take_slot(struct request_queue *q, const struct proto_cts *slot)
{
    q->send.group_taken |= 1u << (slot->seq - q->next_seq);
    if (q->send.group_taken == (1u << q->send.group_count) - 1) {
        q->next_seq += (uint64_t)q->send.group_count + slot->parts_left;
        q->send.group_count = 0;
        q->send.group_taken = 0;
    }
}

static const struct wire_mr *wire_mr(const struct holmes_conn *c, const struct holmes_mr *mr,
                                     int lane)
{
    return mr && !mr->staged ? &mr->wire[c->rails[lane % c->nrails].member] : NULL;
}

/* Of the piece of a staged message that begins at `at`: it ends with the slice, the part of the
 * receive buffer, or the message. */
static size_t piece_len(const struct holmes_conn *c, const struct holmes_request *r, size_t at)
{
    size_t len = stage_slice(c->stage), left = r->msg[0].len - at;
    size_t in_part = r->send.stride - at % r->send.stride, max = max_piece(c);

    if (len > max)
        len = max;
    if (len > in_part)
        len = in_part;
    return len < left ? len : left;
}

/* The pieces of the slot go round the lanes, so that the first to be copied keep all lanes busy. */
static int deal_pieces(const struct holmes_conn *c, struct holmes_request *r)
{
    const struct send_slot *slot = &r->send.slot;
    size_t len, n = 0;
    int nparts;

    for (size_t at = 0; at < slot->len; at += len) {
        struct lane_part *p = &r->send.parts[n % (size_t)c->width];

        len = piece_len(c, r, slot->at + at);
        p->len = len + (n < (size_t)c->width ? 0 : p->len);
        n++;
    }
    r->send.npieces = n;
    nparts = n < (size_t)c->width ? (int)n : c->width;
    return nparts;
}

static void plan_slot(struct holmes_conn *c, struct holmes_request *r)
{
    const struct send_slot *slot = &r->send.slot;
    /* A message on all lanes turns them round, so that short ones do not all go by the first. */
    uint64_t turn = c->width < c->nlanes ? (uint64_t)c->width : 1;
    int first = (int)(slot->seq * turn % (uint64_t)c->nlanes);

    r->send.part = 0;
    r->send.piece = r->send.npieces = 0;
    if (r->send.staged && slot->len > 0)
        r->send.nparts = deal_pieces(c, r);
    else
        r->send.nparts = lane_split(slot->len, c->width, 0, MIN_LANE_BYTES, r->send.parts);
    for (int i = 0; i < r->send.nparts; i++)
        r->send.parts[i].lane = (first + i) % c->nlanes;
    if (r->send.nparts > 1 || r->send.npieces > 1 || slot->len > max_piece(c))
        r->send.mode = PROTO_IMM_RECORD;
    else if (slot->len == slot->size)
        r->send.mode = PROTO_IMM_FULL;
    else
        r->send.mode = slot->len <= PROTO_IMM_SIZE_MAX ? PROTO_IMM_SIZED : PROTO_IMM_RECORD;
}

static void enter_slot(struct holmes_conn *c, struct holmes_request *r, const struct proto_cts *cts,
                       size_t at)
{
    struct send_slot *slot = &r->send.slot;
    size_t left = r->msg[0].len - at;

    *slot = (struct send_slot){.seq = cts->seq,
                               .remote_addr = cts->addr,
                               .remote_keys[0] = cts->key,
                               .room = cts->size,
                               .size = part_size(cts),
                               .left = cts->parts_left,
                               .at = at};
    for (int i = 1; i < HOLMES_MAX_RAILS; i++)
        slot->remote_keys[i] = cts->rail_keys[i - 1];
    slot->len = left < slot->size ? left : (size_t)slot->size;
    if (slot->seq > c->q.send.sent)
        c->q.send.sent = slot->seq;
    plan_slot(c, r);
}

/* -EINPROGRESS: the receiver has not posted the next part yet. */
static int next_slot(struct holmes_conn *c, struct holmes_request *r)
{
    struct proto_cts cts;
    int rc;

    if (!read_slot(c, r->send.slot.seq + 1, &cts))
        return -EINPROGRESS;
    rc = check_next_part(c, &cts, &r->send.slot);
    if (rc == 0)
        rc = request_take_ack(c, cts.acked);
    if (rc == 0)
        enter_slot(c, r, &cts, r->send.slot.at + r->send.slot.len);
    return rc;
}

static int post_record(struct holmes_conn *c, struct holmes_request *r, const struct lane_part *p)
{
    const struct send_slot *slot = &r->send.slot;
    struct proto_record record = {.total = slot->len,
                                  .lanes_used = (uint32_t)r->send.nparts,
                                  .lane_bytes = p->len,
                                  .seq = slot->seq};
    size_t offset =
        ((size_t)proto_slot(slot->seq) * HOLMES_MAX_LANES + (size_t)p->lane) * sizeof record;
    struct wire_write w = {.buf = &record,
                           .len = sizeof record,
                           .remote_addr = c->peer.control_addr + offset,
                           .remote_key = c->peer.control_keys[p->lane % c->nrails],
                           .flags = WIRE_INLINE | WIRE_MORE};

    return c->ops->lane_post(c->lanes[p->lane], &w);
}

/* Posts one write of a part, to `at` in the slot; the last of a part carries the immediate. */
static int post_write(struct holmes_conn *c, struct holmes_request *r, const struct lane_part *p,
                      size_t at, bool last, struct wire_write *w)
{
    const struct send_slot *slot = &r->send.slot;
    struct proto_imm imm = {.mode = r->send.mode,
                            .slot = proto_slot(slot->seq),
                            .generation = proto_generation(slot->seq)};
    int rc = 0;

    if (last && r->send.mode == PROTO_IMM_RECORD && !r->send.record_posted)
        rc = post_record(c, r, p);
    if (rc != 0)
        return rc;
    r->send.record_posted = last;
    if (r->send.mode == PROTO_IMM_SIZED)
        imm.size = (uint32_t)slot->len;
    w->imm = proto_imm_encode(&imm);
    w->remote_addr = slot->remote_addr + at;
    w->remote_key = slot->remote_keys[p->lane % c->nrails];
    w->flags |= last ? WIRE_WITH_IMM : 0;
    rc = c->ops->lane_post(c->lanes[p->lane], w);
    if (rc != 0)
        return rc;
    r->send.writes += !(w->flags & WIRE_QUIET);
    r->send.record_posted = false;
    return 0;
}

/* Straight from the caller's buffer. */
static int post_piece(struct holmes_conn *c, struct holmes_request *r)
{
    const struct lane_part *p = &r->send.parts[r->send.part];
    const struct request_message *m = &r->msg[0];
    size_t left = p->len - r->send.part_done, max = max_piece(c);
    size_t len = left < max ? left : max, at = p->offset + r->send.part_done;
    bool last = len == left;
    struct wire_write w = {.buf = (const char *)m->buf + r->send.slot.at + at,
                           .len = len,
                           .mr = wire_mr(c, m->mr, p->lane),
                           .flags = last ? 0 : WIRE_QUIET,
                           .context = r};
    int rc = post_write(c, r, p, at, last, &w);

    if (rc != 0)
        return rc;
    r->send.part_done += len;
    if (last) {
        r->send.part++;
        r->send.part_done = 0;
    }
    return 0;
}

/* The next piece out of pinned memory; -EINPROGRESS while it is not there. */
static int post_staged(struct holmes_conn *c, struct holmes_request *r)
{
    struct stage_chunk *chunk = r->send.first;
    size_t nparts = (size_t)r->send.nparts, i = r->send.piece;
    const struct lane_part *p = &r->send.parts[i % nparts];
    struct wire_write w;
    int rc;

    if (!chunk || chunk->state != STAGE_READY)
        return -EINPROGRESS;
    w = (struct wire_write){.buf = chunk->buf,
                            .len = chunk->len,
                            .mr = wire_mr(c, stage_mr(c->stage), p->lane),
                            .context = chunk};
    rc = post_write(c, r, p, r->send.part_done, i + nparts >= r->send.npieces, &w);
    if (rc != 0)
        return rc;
    chunk->state = STAGE_TAKEN;
    r->send.first = chunk->next;
    if (!r->send.first)
        r->send.tail = &r->send.first;
    r->send.piece++;
    r->send.part_done = slot_is_posted(r) ? 0 : r->send.part_done + chunk->len;
    return 0;
}

/* Keeps the copy engine busy as far as pinned memory goes. */
static int copy_ahead(struct holmes_conn *c, struct holmes_request *r)
{
    const struct request_message *m = &r->msg[0];
    int rc = 0;

    while (rc == 0 && r->send.staged && r->send.copied < m->len) {
        size_t len = piece_len(c, r, r->send.copied);
        struct stage_chunk *chunk = stage_take(c->stage, len);

        if (!chunk)
            return 0;
        rc = stage_copy_out(c->stage, chunk, (const char *)m->buf + r->send.copied);
        chunk->owner = r;
        *r->send.tail = chunk;
        r->send.tail = &chunk->next;
        r->send.copied += len;
        c->q.staged += len;
    }
    return rc;
}

/* -EINPROGRESS: something other than room on the wire is waited for. */
static int push_send(struct holmes_conn *c, struct holmes_request *r)
{
    int rc = copy_ahead(c, r);

    while (rc == 0 && !send_is_posted(r)) {
        if (slot_is_posted(r))
            rc = next_slot(c, r);
        else
            rc = r->send.npieces > 0 ? post_staged(c, r) : post_piece(c, r);
    }
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
    r->last = seq + slot.parts_left;
    r->n = 1;
    r->msg[0] =
        (struct request_message){.buf = buf, .mr = mr, .posted = len, .len = len, .tag = tag};
    r->send.stride = slot.parts_left > 0 ? part_size(&slot) : SIZE_MAX;
    r->send.staged = len > 0 && mr->staged;
    r->send.tail = &r->send.first;
    take_slot(&c->q, &slot);
    enter_slot(c, r, &slot, 0);
    holmes_list_append(&c->q.pushing, &r->link);
    *out = r;
    return 0;
}

/* ---- receiving ---- */

/* Takes the receive slot of buffer or part `i`, and pinned memory for it; again after a write that
 * found no room. -EINPROGRESS: earlier messages must end first. */
static int claim_slot(struct holmes_conn *c, struct holmes_request *r, size_t i)
{
    struct request_queue *q = &c->q;
    struct recv_slot *s = &q->recv.slots[proto_slot(r->seq + i)];
    struct recv_slot claim = {.request = r, .index = i, .seq = r->seq + i};

    if (s->request == r && s->seq == claim.seq)
        return 0;
    if (claim.seq > q->recv.completed + PROTO_SLOTS)
        return -EINPROGRESS;
    if (r->recv.stride > 0) {
        size_t left = r->msg[0].posted - i * r->recv.stride;

        claim.size = left < r->recv.stride ? left : r->recv.stride;
        claim.chunk = stage_take(c->stage, claim.size);
        if (!claim.chunk)
            return -EINPROGRESS;
    } else {
        claim.size = r->msg[i].posted;
    }
    *s = claim;
    return 0;
}

static struct proto_cts clear_to_send(const struct holmes_conn *c, const struct holmes_request *r,
                                      size_t i)
{
    const struct recv_slot *s = &c->q.recv.slots[proto_slot(r->seq + i)];
    const struct request_message *m = &r->msg[s->chunk ? 0 : i];
    const struct holmes_mr *mr = s->chunk ? stage_mr(c->stage) : m->mr;
    struct proto_cts cts = {.size = s->size,
                            .tag = m->tag,
                            .group_count = (uint8_t)r->n,
                            .acked = c->q.recv.completed,
                            .seq = s->seq};

    if (s->chunk) {
        cts.size = m->posted - i * r->recv.stride;
        cts.part_lines = (uint16_t)(r->recv.stride / LANE_ALIGN);
        cts.parts_left = (uint32_t)(r->last - s->seq);
    } else {
        cts.group_index = (uint8_t)i;
    }
    if (mr && !mr->staged) { /* an empty buffer may have none */
        cts.addr = mr_remote_addr(mr, c->rails[0].member, s->chunk ? s->chunk->buf : m->buf);
        cts.key = mr->wire[c->rails[0].member].key;
        for (int rail = 1; rail < c->nrails; rail++)
            cts.rail_keys[rail - 1] = (uint32_t)mr->wire[c->rails[rail].member].key;
    }
    return cts;
}

static int post_slot(struct holmes_conn *c, struct holmes_request *r)
{
    size_t i = r->recv.slots_posted;
    struct proto_cts cts;
    struct wire_write w = {.buf = &cts,
                           .len = sizeof cts,
                           .remote_key = c->peer.control_keys[0],
                           .flags = WIRE_INLINE};
    int rc = claim_slot(c, r, i);

    if (rc != 0)
        return rc;
    cts = clear_to_send(c, r, i);
    w.remote_addr = c->peer.control_addr + offsetof(struct proto_send_control, cts) +
                    proto_slot(cts.seq) * sizeof cts;
    rc = c->ops->lane_post(c->lanes[0], &w);
    if (rc == 0)
        r->recv.slots_posted++;
    return rc;
}

static int push_recv(struct holmes_conn *c, struct holmes_request *r)
{
    int rc = 0;

    while (rc == 0 && r->recv.slots_posted <= r->last - r->seq)
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

/* A buffer that the wire cannot reach comes in parts of a slice. */
static void plan_parts(struct holmes_conn *c, struct holmes_request *r, bool polled)
{
    const struct request_message *m = &r->msg[0];

    if (m->posted == 0 || !m->mr || !m->mr->staged)
        return;
    r->recv.stride = stage_slice(c->stage);
    r->recv.layout = m->mr->layout == STAGE_PLAIN && polled ? STAGE_FLAGS : m->mr->layout;
    r->last = r->seq + (m->posted - 1) / r->recv.stride;
}

static int refuse_staged_group(const struct holmes_conn *c, int n, struct holmes_mr *const *mrs)
{
    for (int i = 0; n > 1 && i < n; i++) {
        if (mrs[i] && mrs[i]->staged) {
            holmes_warn(NET,
                        "conn %llu: buffer %d of a group of %d is GPU memory, which over %s is "
                        "received alone",
                        (unsigned long long)c->id, i, n, c->ops->name);
            return -EINVAL;
        }
    }
    return 0;
}

int request_recv(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                 const int *tags, struct holmes_mr *const *mrs, bool polled,
                 struct holmes_request **out)
{
    struct request_queue *q = &c->q;
    struct holmes_request *r;
    int rc = refuse_staged_group(c, n, mrs);

    if (rc != 0)
        return rc;
    r = q->receives < HOLMES_MAX_REQUESTS ? request_get(c, REQUEST_RECV) : NULL;
    if (!r)
        return -EAGAIN;
    r->seq = q->next_seq;
    r->last = r->seq + (uint64_t)n - 1;
    r->n = n;
    for (int i = 0; i < n; i++)
        r->msg[i] = (struct request_message){
            .buf = bufs[i], .mr = mrs[i], .posted = lens[i], .tag = tags[i]};
    plan_parts(c, r, polled);
    q->next_seq = r->last + 1;
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

/* Starts the copy of a part to the GPU. The message may end before its buffer: then only empty
 * parts follow. */
static int part_arrived(struct holmes_conn *c, const struct recv_slot *s)
{
    struct holmes_request *r = s->request;
    struct request_message *m = &r->msg[0];
    size_t at = s->index * r->recv.stride;

    if (s->len == 0) {
        stage_give(c->stage, s->chunk);
        return 0;
    }
    if (m->len != at) {
        holmes_warn(NET, "conn %llu: peer left a hole of %zu bytes in a message",
                    (unsigned long long)c->id, at - m->len);
        return -EPROTO;
    }
    m->len += s->len;
    c->q.staged += s->len;
    r->recv.copying++;
    return stage_copy_in(c->stage, s->chunk, (char *)(uintptr_t)m->buf + at, s->len, r->recv.layout,
                         &r->recv.copying);
}

/* Advances the count over messages that are done, and frees their slots. */
static int advance_completed(struct holmes_conn *c)
{
    struct request_queue *q = &c->q;

    for (;;) {
        struct recv_slot *s = &q->recv.slots[proto_slot(q->recv.completed + 1)];
        int rc = 0;

        if (!s->request || !s->done)
            return 0;
        if (s->chunk)
            rc = part_arrived(c, s);
        else
            s->request->msg[s->index].len = s->len;
        if (rc != 0)
            return rc;
        q->messages += !s->chunk || s->seq == s->request->last;
        q->bytes += s->len;
        s->request = NULL;
        q->recv.completed++;
    }
}

static int message_done(struct holmes_conn *c, struct recv_slot *s, size_t len)
{
    if (len > s->size)
        return -EPROTO;
    s->len = len;
    s->done = true;
    return advance_completed(c);
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
            rc = message_done(c, s, imm.mode == PROTO_IMM_FULL ? s->size : imm.size);
    }
    if (rc != 0)
        holmes_warn(NET, "conn %llu: peer sent an immediate that fits no receive (%08x)",
                    (unsigned long long)c->id, wire);
    return rc;
}

/* ---- both ---- */

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
        return take_immediate(c, e->imm);
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
        rc = read_acks(c);
    return rc;
}

int request_push(struct holmes_conn *c)
{
    int rc = 0;

    holmes_list_each(r, tmp, &c->q.pushing, struct holmes_request, link)
    {
        rc = r->kind == REQUEST_SEND ? push_send(c, r) : push_recv(c, r);
        if (rc == 0)
            holmes_list_remove(&r->link);
        else if (rc != -EINPROGRESS || r->kind == REQUEST_RECV)
            break; /* receives keep their order: the first must get its pinned memory */
    }
    if (rc == -EINPROGRESS)
        rc = 0;
    if (rc == 0 && !c->sending)
        rc = push_ack(c);
    for (int i = 0; i < c->nrails && c->ops->cq_push && c->error == 0; i++)
        c->ops->cq_push(c->rails[i].cq);
    c->q.retries += rc == -EAGAIN;
    return rc == -EAGAIN ? 0 : rc;
}
