/* The receiving half of the message protocol: tells the peer of receives, counts what arrives, and
 * tells how far it is.
 */
#include <errno.h>

#include "log.h"
#include "request_ops.h"

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

int request_claim_slot(struct holmes_conn *c, struct holmes_request *r, size_t i,
                       struct recv_slot **out)
{
    *out = &c->q.recv.slots[proto_slot(r->seq + i)];
    return claim_slot(c, r, i);
}

/* An eager message was there first. */
static bool is_filled(const struct holmes_conn *c, const struct holmes_request *r, size_t i)
{
    const struct recv_slot *s = &c->q.recv.slots[proto_slot(r->seq + i)];

    return r->seq + i <= c->q.recv.completed || (s->request == r && s->done);
}

/* Of a buffer that is filled already: no address. The sender wants to know its number only. */
static struct proto_cts clear_to_send(const struct holmes_conn *c, const struct holmes_request *r,
                                      size_t i)
{
    const struct recv_slot *s = &c->q.recv.slots[proto_slot(r->seq + i)];
    const struct request_message *m = &r->msg[r->recv.stride > 0 ? 0 : i];
    const struct holmes_mr *mr = r->recv.stride > 0 ? stage_mr(c->stage) : m->mr;
    struct proto_cts cts = {.size = m->posted - i * r->recv.stride,
                            .tag = m->tag,
                            .group_count = (uint8_t)r->n,
                            .acked = c->q.recv.completed,
                            .seq = r->seq + i};

    if (r->recv.stride > 0) {
        cts.part_lines = (uint16_t)(r->recv.stride / LANE_ALIGN);
        cts.parts_left = (uint32_t)(r->last - cts.seq);
    } else {
        cts.group_index = (uint8_t)i;
    }
    if (mr && !mr->staged && !is_filled(c, r, i)) { /* an empty buffer may have none */
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
                           .flags = WIRE_INLINE | WIRE_MORE};
    int rc = is_filled(c, r, i) ? 0 : claim_slot(c, r, i);

    if (rc != 0)
        return rc;
    cts = clear_to_send(c, r, i);
    w.remote_addr = c->peer.control_addr + offsetof(struct proto_send_control, cts) +
                    proto_slot(cts.seq) * sizeof cts;
    rc = c->ops->lane_post(c->lanes[0], &w);
    if (rc != 0)
        return rc;
    r->recv.slots_posted++;
    c->q.recv.invited = cts.seq;
    return 0;
}

int request_push_recv(struct holmes_conn *c, struct holmes_request *r)
{
    int rc = 0;

    while (rc == 0 && r->recv.slots_posted <= (r->recv.ended ? 0 : r->last - r->seq))
        rc = post_slot(c, r);
    return rc;
}

bool request_needs_no_slot(const struct holmes_request *r)
{
    size_t eager_max = r->conn->q.eager_max;
    bool small = eager_max > 0;

    for (int i = 0; i < r->n; i++)
        small = small && r->msg[i].posted <= eager_max;
    return small;
}

/* Tells the sender how far we are. The clear-to-sends carry the count too, but one that nobody
 * looks for yet must not hold up the completion of an earlier send. */
int request_push_ack(struct holmes_conn *c)
{
    struct request_queue *q = &c->q;
    struct proto_ack ack = {.acked = q->recv.completed, .check = ~q->recv.completed};
    struct wire_write w = {.buf = &ack,
                           .len = sizeof ack,
                           .remote_addr =
                               c->peer.control_addr + offsetof(struct proto_send_control, ack),
                           .remote_key = c->peer.control_keys[0],
                           .flags = WIRE_INLINE | WIRE_MORE};
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

/* The message ended with its first part. */
static void skip_parts(struct holmes_conn *c, const struct holmes_request *r)
{
    for (uint64_t seq = r->seq + 1; seq <= r->last; seq++) {
        struct recv_slot *s = &c->q.recv.slots[proto_slot(seq)];

        if (s->request != r || s->seq != seq)
            break; /* not claimed, nor is any behind it */
        stage_give(c->stage, s->chunk);
        s->request = NULL;
    }
    c->q.recv.completed = r->last;
}

/* Advances the count over messages that are done, and frees their slots. */
static int advance_completed(struct holmes_conn *c)
{
    struct request_queue *q = &c->q;

    for (;;) {
        struct recv_slot *s = &q->recv.slots[proto_slot(q->recv.completed + 1)];
        struct holmes_request *r;
        int rc = 0;

        if (!s->request || !s->done)
            return 0;
        if (s->chunk)
            rc = part_arrived(c, s);
        else
            s->request->msg[s->index].len = s->len;
        if (rc != 0)
            return rc;
        r = s->request;
        q->messages += !s->chunk || s->seq == r->last || r->recv.ended;
        q->bytes += s->len;
        s->request = NULL;
        q->recv.completed++;
        if (r->recv.ended)
            skip_parts(c, r);
    }
}

int request_message_done(struct holmes_conn *c, struct recv_slot *s, size_t len)
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
    return sum == total ? request_message_done(c, s, total) : -EPROTO;
}

int request_take_immediate(struct holmes_conn *c, uint32_t wire)
{
    struct proto_imm imm;
    struct recv_slot *s;
    int rc = c->sending ? -EPROTO : proto_imm_decode(wire, &imm);

    if (rc == 0 && imm.mode == PROTO_IMM_EAGER) {
        rc = request_eager_arrived(c, &imm);
    } else if (rc == 0) {
        s = &c->q.recv.slots[imm.slot];
        if (!s->request || s->done || imm.generation != proto_generation(s->seq))
            rc = -EPROTO;
        else if (imm.mode == PROTO_IMM_RECORD)
            rc = take_record(c, s);
        else
            rc = request_message_done(c, s, imm.mode == PROTO_IMM_FULL ? s->size : imm.size);
    }
    if (rc == -EPROTO)
        holmes_warn(NET, "conn %llu: peer sent an immediate that fits no receive (%08x)",
                    (unsigned long long)c->id, wire);
    return rc;
}
