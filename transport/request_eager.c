/* Eager messages: small ones that do not wait for their clear-to-send, so that a message costs one
 * write on the way that its receiver waits for. Only over a wire that keeps all writes of a
 * connection in order: when an eager message is here, so are all sends before it, and both ends
 * find the same receive for it, the receiver when it has both, the sender when the clear-to-send
 * comes.
 *
 * The bytes lie in the receiver's control memory until a receive takes them. The sender uses a
 * place again when it knows that the message in it was counted.
 */
#include <errno.h>
#include <string.h>

#include "clock.h"
#include "env.h"
#include "log.h"
#include "request_ops.h"

size_t request_eager_max(const struct holmes_conn *c)
{
    size_t head = offsetof(struct proto_eager, bytes), max;

    if (!c->ops->bundles || c->nlanes != 1 || c->limits.inline_max < head)
        return 0;
    max = (size_t)holmes_env_int(HOLMES_ENV_EAGER);
    if (max > c->limits.inline_max - head)
        max = c->limits.inline_max - head;
    return max < PROTO_EAGER_MAX ? max : PROTO_EAGER_MAX;
}

static unsigned eager_slot(uint64_t number)
{
    return (unsigned)((number - 1) % PROTO_EAGERS);
}

static unsigned eager_generation(uint64_t number)
{
    return (unsigned)((number - 1) / PROTO_EAGERS % PROTO_GENERATIONS);
}

/* ---- sender ---- */

static int too_large(const struct holmes_conn *c, int tag, size_t len, uint64_t room)
{
    holmes_warn(NET,
                "conn %llu: a send of %zu bytes (tag %d) meets a receive of %llu bytes: the counts "
                "of the two ranks differ",
                (unsigned long long)c->id, len, tag, (unsigned long long)room);
    return -EMSGSIZE;
}

/* Whether the eager send fills a receive of the current group. */
static int number_one(struct holmes_conn *c, unsigned i)
{
    struct eager_sends *e = &c->q.send.eager;
    struct proto_cts slot;
    uint64_t seq;
    int rc = request_match(c, e->ring[i].tag, &seq, &slot);

    if (rc != 0)
        return rc;
    if (e->ring[i].len > slot.size)
        return too_large(c, e->ring[i].tag, e->ring[i].len, slot.size);
    request_take_slot(&c->q, &slot);
    e->ring[i].last = seq + slot.parts_left;
    e->unknown--;
    if (e->ring[i].last > c->q.send.sent)
        c->q.send.sent = e->ring[i].last;
    /* What was counted before its number was known. */
    return request_take_ack(c, e->acked_ahead > slot.acked ? e->acked_ahead : slot.acked);
}

int request_eager_number(struct holmes_conn *c)
{
    struct eager_sends *e = &c->q.send.eager;
    uint64_t n = e->free + 1;

    while (e->unknown > 0 && n <= e->sent) {
        int rc = e->ring[eager_slot(n)].last == 0 ? number_one(c, eager_slot(n)) : -EAGAIN;

        if (rc != 0 && rc != -EAGAIN)
            return rc;
        n = rc == 0 ? e->free + 1 : n + 1; /* a group that is full gives way to the next */
    }
    for (; e->free < e->sent; e->free++) {
        uint64_t last = e->ring[eager_slot(e->free + 1)].last;

        if (last == 0 || last > c->q.send.acked)
            break;
    }
    return 0;
}

/* Nothing that was sent before is still to be posted, and no known receive refuses the tag. */
static bool may_go_ahead(const struct holmes_conn *c, size_t len, const struct holmes_mr *mr)
{
    const struct eager_sends *e = &c->q.send.eager;

    return len <= c->q.eager_max && c->q.eager_max > 0 && (len == 0 || !mr->staged) &&
           holmes_list_empty(&c->q.pushing) && e->sent - e->free < PROTO_EAGERS &&
           !request_group_is_here(c);
}

static int post_eager(struct holmes_conn *c, const void *buf, size_t len, int tag)
{
    uint64_t number = c->q.send.eager.sent + 1;
    struct proto_eager message = {.number = number, .tag = tag, .len = (uint32_t)len};
    struct proto_imm imm = {.mode = PROTO_IMM_EAGER,
                            .slot = eager_slot(number),
                            .generation = eager_generation(number),
                            .size = (uint32_t)len};
    struct wire_write w = {.buf = &message,
                           .len = offsetof(struct proto_eager, bytes) + len,
                           .remote_addr = c->peer.control_addr +
                                          offsetof(struct proto_recv_control, eager) +
                                          imm.slot * sizeof message,
                           .remote_key = c->peer.control_keys[0],
                           .imm = proto_imm_encode(&imm),
                           .flags = WIRE_INLINE | WIRE_WITH_IMM};

    if (len > 0)
        memcpy(message.bytes, buf, len);
    return c->ops->lane_post(c->lanes[0], &w);
}

int request_eager_send(struct holmes_conn *c, const void *buf, size_t len, int tag,
                       struct holmes_mr *mr, struct holmes_request **out)
{
    struct eager_sends *e = &c->q.send.eager;
    struct holmes_request *r;
    int rc;

    if (!may_go_ahead(c, len, mr))
        return -EAGAIN;
    r = request_get(c, REQUEST_SEND);
    if (!r)
        return -EAGAIN;
    rc = post_eager(c, buf, len, tag);
    if (rc != 0) {
        request_release(r);
        return rc;
    }
    e->sent++;
    e->unknown++;
    e->ring[eager_slot(e->sent)].tag = tag;
    e->ring[eager_slot(e->sent)].len = (uint32_t)len;
    e->ring[eager_slot(e->sent)].last = 0;
    r->send.eager = true;
    r->n = 1;
    r->msg[0] = (struct request_message){.buf = buf, .posted = len, .len = len, .tag = tag};
    *out = r;
    return 0;
}

/* ---- receiver ---- */

int request_eager_arrived(struct holmes_conn *c, const struct proto_imm *imm)
{
    uint64_t number = c->q.recv.eager_here + 1;
    const struct proto_eager *m = &c->recv_control->eager[imm->slot];

    if (imm->slot != eager_slot(number) || imm->generation != eager_generation(number) ||
        c->q.recv.eager_waiting >> imm->slot & 1 ||
        __atomic_load_n(&m->number, __ATOMIC_ACQUIRE) != number || m->len != imm->size)
        return -EPROTO;
    c->q.recv.eager_here = number;
    c->q.recv.eager_waiting |= 1u << imm->slot;
    return request_eager_match(c);
}

/* The request that the next message belongs to; NULL: it is not posted yet. */
static struct holmes_request *current(struct holmes_conn *c)
{
    uint64_t seq = c->q.recv.completed + 1;
    const struct recv_slot *s = &c->q.recv.slots[proto_slot(seq)];

    if (s->request && s->seq == seq)
        return s->request;
    holmes_list_each(r, tmp, &c->q.pushing, struct holmes_request, link)
    {
        if (r->seq <= seq && seq <= r->last)
            return r;
    }
    return NULL;
}

/* The first free buffer with the tag. -EAGAIN: there is none. */
static int find_slot(struct holmes_conn *c, struct holmes_request *r, int tag,
                     struct recv_slot **out)
{
    for (int i = 0; i < r->n; i++) {
        int rc;

        if (r->seq + (uint64_t)i <= c->q.recv.completed)
            continue;
        rc = request_claim_slot(c, r, (size_t)i, out);
        if (rc != 0)
            return rc == -EINPROGRESS ? -EAGAIN : rc;
        if (!(*out)->done && r->msg[i].tag == tag)
            return 0;
    }
    return -EAGAIN;
}

static int match_one(struct holmes_conn *c, unsigned slot)
{
    const struct proto_eager *m = &c->recv_control->eager[slot];
    struct holmes_request *r = current(c);
    struct recv_slot *s;
    size_t len = m->len; /* the peer can still write there */
    int rc = r ? find_slot(c, r, m->tag, &s) : -EAGAIN;

    if (rc != 0)
        return rc;
    if (len > PROTO_EAGER_MAX)
        return -EPROTO;
    if (len > s->size)
        return too_large(c, m->tag, len, s->size);
    if (len > 0)
        memcpy(s->chunk ? s->chunk->buf : (void *)(uintptr_t)r->msg[s->index].buf, m->bytes, len);
    r->recv.ended = r->recv.stride > 0;
    c->q.recv.eager_waiting &= ~(1u << slot);
    return request_message_done(c, s, len);
}

int request_eager_match(struct holmes_conn *c)
{
    uint64_t end = c->q.recv.eager_here, first = end > PROTO_EAGERS ? end - PROTO_EAGERS + 1 : 1;

    for (uint64_t n = first; c->q.recv.eager_waiting != 0 && n <= end; n++) {
        int rc =
            c->q.recv.eager_waiting >> eager_slot(n) & 1 ? match_one(c, eager_slot(n)) : -EAGAIN;

        if (rc != 0 && rc != -EAGAIN)
            return rc;
        if (rc == 0)
            n = first - 1; /* a group that is full gives way to the next */
    }
    return 0;
}

bool request_eager_is_enough(const struct holmes_conn *c)
{
    return !c->sending && c->q.recv.eager_waiting != 0 && c->q.recv.completed + 1 == c->q.next_seq;
}
