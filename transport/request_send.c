/* The sending half of the message protocol: finds the receive that a send fills, cuts the message,
 * and posts its writes.
 */
#include <errno.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "request_ops.h"

/* A lane gets at least this much of a message: below, the second lane's immediate and record cost
 * more than the copy saves. */
#define MIN_LANE_BYTES (64u * 1024)

static bool slot_is_posted(const struct holmes_request *r)
{
    return r->send.npieces > 0 ? r->send.piece == r->send.npieces : r->send.part == r->send.nparts;
}

bool request_send_is_posted(const struct holmes_request *r)
{
    return slot_is_posted(r) && r->send.slot.left == 0;
}
static size_t max_piece(const struct holmes_conn *c)
{
    size_t max = c->limits.max_write;

    return max >= LANE_ALIGN ? max / LANE_ALIGN * LANE_ALIGN : max;
}

/* Remembers how far the receiver is. A count that runs ahead of what was sent is an attack or a
 * bug on the other side. */
int request_take_ack(struct holmes_conn *c, uint64_t acked)
{
    struct eager_sends *eager = &c->q.send.eager;

    if (acked > c->q.send.sent && eager->unknown > 0) {
        if (acked > eager->acked_ahead)
            eager->acked_ahead = acked;
        acked = c->q.send.sent;
    }
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

int request_read_acks(struct holmes_conn *c)
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

int request_match(struct holmes_conn *c, int tag, uint64_t *seq, struct proto_cts *slot)
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
            return rc;
        }
    }
    return -EAGAIN;
}

void request_take_slot(struct request_queue *q, const struct proto_cts *slot)
{
    q->send.group_taken |= 1u << (slot->seq - q->next_seq);
    if (q->send.group_taken == (1u << q->send.group_count) - 1) {
        q->next_seq += (uint64_t)q->send.group_count + slot->parts_left;
        q->send.group_count = 0;
        q->send.group_taken = 0;
    }
}

bool request_group_is_here(const struct holmes_conn *c)
{
    struct proto_cts slot;

    return c->q.send.group_count > 0 || read_slot(c, c->q.next_seq, &slot);
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
    r->send.writes += !(w->flags & (WIRE_QUIET | WIRE_INLINE));
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
    int rc;

    if (c->q.eager_max > 0 && len <= c->q.eager_max && r->send.mode != PROTO_IMM_RECORD)
        w.flags = WIRE_INLINE; /* the buffer is free at once */
    rc = post_write(c, r, p, at, last, &w);
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
int request_push_send(struct holmes_conn *c, struct holmes_request *r)
{
    int rc = copy_ahead(c, r);

    while (rc == 0 && !request_send_is_posted(r)) {
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
    int rc = request_eager_number(c);

    if (rc == 0)
        rc = request_match(c, tag, &seq, &slot);
    if (rc == -EAGAIN)
        return request_eager_send(c, buf, len, tag, mr, out);
    if (rc == 0)
        rc = request_take_ack(c, slot.acked);
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
    request_take_slot(&c->q, &slot);
    enter_slot(c, r, &slot, 0);
    holmes_list_append(&c->q.pushing, &r->link);
    *out = r;
    return 0;
}
