/* The sending half of a lane. What is posted waits in a ring until the peer has it; streams that
 * have room take pieces of it in the order of posting and give them to the kernel.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "sock_ops.h"

#define FIRST_RING 16 /* writes */

static struct sock_write *write_at(const struct sock_sender *o, uint32_t seq)
{
    return &o->ring[seq & (o->size - 1)];
}

/* ---- posting ---- */

static int ring_grow(struct sock_sender *o)
{
    struct sock_sender more = *o;

    more.size = o->size > 0 ? 2 * o->size : FIRST_RING;
    if (more.size > SOCK_WRITES_MAX)
        return -EAGAIN;
    more.ring = malloc(more.size * sizeof *more.ring);
    if (!more.ring)
        return -ENOMEM;
    for (uint32_t seq = o->reported + 1; seq != o->posted + 1; seq++)
        *write_at(&more, seq) = *write_at(o, seq);
    free(o->ring);
    *o = more;
    return 0;
}

static int check_post(const struct wire_write *w)
{
    size_t max = w->flags & WIRE_INLINE ? SOCK_INLINE_MAX : SOCK_MAX_WRITE;

    return w->len > max || (w->len == 0 && !(w->flags & WIRE_WITH_IMM)) ? -EINVAL : 0;
}

/* A place for `len` bytes. -EAGAIN: none is free now. */
static int copies_take(struct sock_copies *c, size_t len, uint64_t *at)
{
    uint64_t start;

    if (!c->bytes) {
        c->bytes = malloc(SOCK_COPIES);
        if (!c->bytes)
            return -ENOMEM;
    }
    if (c->first == c->end) /* empty: the first pages stay in use */
        c->first = c->end = (c->end + SOCK_COPIES - 1) / SOCK_COPIES * SOCK_COPIES;
    start = c->end;
    if (start % SOCK_COPIES + len > SOCK_COPIES)
        start = (start / SOCK_COPIES + 1) * SOCK_COPIES;
    if (start + len - c->first > SOCK_COPIES)
        return -EAGAIN;
    *at = start;
    c->end = start + len;
    return 0;
}

/* A fraction of what the exact time costs. */
static uint64_t now_about_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int lane_post(struct wire_lane *lane, const struct wire_write *w)
{
    struct sock_sender *o = &lane->out;
    struct sock_write *out;
    uint64_t copy = 0;
    int rc = holmes_sock_lane_poll(lane);

    if (rc == 0)
        rc = check_post(w);
    if (rc == 0 && o->posted - o->landed == SOCK_WRITES_MAX)
        rc = -EAGAIN;
    if (rc == 0 && o->posted - o->reported == o->size)
        rc = ring_grow(o);
    if (rc == 0 && w->flags & WIRE_INLINE && w->len > 0)
        rc = copies_take(&o->copies, w->len, &copy);
    if (rc != 0)
        return rc;
    out = write_at(o, ++o->posted);
    out->head = (struct sock_head){.key = w->remote_key,
                                   .write_len = (uint32_t)w->len,
                                   .seq = o->posted,
                                   .imm = w->flags & WIRE_WITH_IMM ? w->imm : 0,
                                   .flags = w->flags & WIRE_WITH_IMM ? SOCK_HAS_IMM : 0};
    out->offset = w->remote_addr;
    out->report = !(w->flags & (WIRE_INLINE | WIRE_QUIET));
    out->context = w->context;
    out->body = w->buf;
    out->copy_end = 0;
    if (out->report && lane->nstreams > 1)
        out->head.flags |= SOCK_TELL;
    if (w->flags & WIRE_INLINE && w->len > 0) {
        memcpy(o->copies.bytes + copy % SOCK_COPIES, w->buf, w->len);
        out->body = o->copies.bytes + copy % SOCK_COPIES;
        out->copy_end = copy + w->len;
    }
    o->waiting += w->len;
    o->posted_ns = now_about_ns();
    if (!(w->flags & WIRE_MORE))
        holmes_sock_lane_send(lane, false, false);
    return 0;
}

int holmes_sock_lane_post(struct wire_lane *lane, const struct wire_write *w)
{
    int rc;

    sock_lane_lock(lane);
    rc = lane_post(lane, w);
    sock_lane_unlock(lane);
    return rc;
}

/* ---- dealing ---- */

static struct sock_piece *hand_add(struct sock_stream *s, const struct sock_head *head)
{
    struct sock_piece *p = &s->hand[s->end++ % SOCK_BATCH];
    struct sock_receiver *in = &s->lane->in;

    p->head = *head;
    p->head.landed = in->told = in->landed;
    p->head.lost = s->lane->lost;
    in->untold_bytes = 0;
    in->tell = false;
    s->lane->tell_lost = false;
    p->body = NULL;
    return p;
}

static void hand_add_piece(struct sock_stream *s, const struct sock_dealt *d, uint8_t flags)
{
    const struct sock_write *w = write_at(&s->lane->out, d->seq);
    struct sock_piece *p = hand_add(s, &w->head);

    p->head.offset = w->offset + d->offset;
    p->head.len = d->len;
    p->head.flags |= flags;
    p->body = w->body ? w->body + d->offset : NULL;
    s->lane->out.waiting -= d->len;
}

/* A piece keeps its bounds, so that the peer knows whether it has it. */
static bool deal_again(struct sock_stream *s, const struct sock_dealt *next)
{
    struct sock_dealt d = *next;

    if (d.len > 0 && holmes_sock_share(s->lane, s, d.len) == 0)
        return false;
    if (!holmes_sock_dealt_note(s, &d))
        return false;
    s->lane->out.again.first++;
    hand_add_piece(s, &d, SOCK_AGAIN);
    return true;
}

/* The next piece of what waits goes to the stream. False: it gets none now. */
static bool deal(struct sock_stream *s)
{
    struct wire_lane *lane = s->lane;
    struct sock_sender *o = &lane->out;
    const struct sock_dealt *again = holmes_sock_again_next(o);
    struct sock_dealt d;
    size_t left, len;

    if (s->end - s->first == SOCK_BATCH || !sock_stream_lives(s))
        return false;
    if (again)
        return deal_again(s, again);
    if (o->dealt == o->posted)
        return false;
    left = write_at(o, o->dealt + 1)->head.write_len - o->dealt_len;
    len = holmes_sock_share(lane, s, left);
    if (len == 0 && left > 0)
        return false;
    d = (struct sock_dealt){o->dealt + 1, (uint32_t)o->dealt_len, (uint32_t)len};
    if (lane->nstreams > 1 && !holmes_sock_dealt_note(s, &d))
        return false;
    hand_add_piece(s, &d, 0);
    o->dealt_len += len;
    if (len == left) {
        o->dealt++;
        o->dealt_len = 0;
    }
    return true;
}

/* ---- giving to the kernel ---- */

/* What of the piece is left after its first `done` bytes; the number of entries. */
static int piece_left(struct sock_piece *p, size_t done, struct iovec out[2])
{
    const uint8_t *body = p->body;
    int n = 0;

    if (done < sizeof p->head)
        out[n++] = (struct iovec){(uint8_t *)&p->head + done, sizeof p->head - done};
    done = done > sizeof p->head ? done - sizeof p->head : 0;
    if (done < p->head.len)
        out[n++] = (struct iovec){(void *)(uintptr_t)(body + done), p->head.len - done};
    return n;
}

/* The kernel has taken `n` more bytes. */
static void hand_advance(struct sock_stream *s, size_t n)
{
    while (n > 0) {
        const struct sock_head *h = &s->hand[s->first % SOCK_BATCH].head;
        size_t left = sizeof *h + h->len - s->done;

        if (n < left) {
            s->done += n;
            return;
        }
        if (h->flags != SOCK_ONLY_ACK)
            s->lane->out.sent = h->seq;
        n -= left;
        s->done = 0;
        s->first++;
    }
}

#define FIRST_BYTES (32u * 1024)

/* The peer waits for this piece and nothing else: it begins to copy the first bytes out of its
 * kernel while ours takes the others. */
static bool goes_in_two(const struct sock_stream *s)
{
    const struct sock_head *h = &s->hand[s->first % SOCK_BATCH].head;

    return s->end - s->first == 1 && s->done == 0 && h->len >= FIRST_BYTES + FIRST_BYTES / 2 &&
           h->write_len <= SOCK_SHORT && h->seq == s->lane->out.landed + 1;
}

/* One system call, for which the lane is unlocked. False: no more now. */
static bool hand_send(struct sock_stream *s)
{
    struct iovec iov[2 * SOCK_BATCH];
    struct msghdr msg = {.msg_iov = iov};
    size_t wanted = 0;
    ssize_t n;
    int error;

    for (unsigned i = s->first; i != s->end; i++)
        msg.msg_iovlen += (size_t)piece_left(&s->hand[i % SOCK_BATCH], i == s->first ? s->done : 0,
                                             iov + msg.msg_iovlen);
    if (goes_in_two(s))
        iov[1].iov_len = FIRST_BYTES;
    for (size_t i = 0; i < msg.msg_iovlen; i++)
        wanted += iov[i].iov_len;
    sock_stream_enter_kernel(s);
    do {
        n = sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    error = n < 0 ? errno : 0;
    sock_stream_leave_kernel(s);
    if (error == EPIPE || error == ECONNRESET) {
        s->idle = 0; /* what the peer sent before it closed may still be unread: its end tells */
        s->reset = true;
    } else if (error != 0 && error != EAGAIN) {
        holmes_sock_stream_lost(s, -error);
    }
    if (n > 0) {
        hand_advance(s, (size_t)n);
        holmes_sock_share_note(s, (size_t)n);
    }
    s->full = n < (ssize_t)wanted;
    return !s->full;
}

static void stream_send(struct sock_stream *s, bool tell)
{
    bool more = sock_stream_lives(s);

    while (more && holmes_sock_lane_poll(s->lane) == 0) {
        while (deal(s))
            continue;
        /* What no head takes along goes alone. */
        if (s->first == s->end && (s->lane->tell_lost || (tell && s->lane->in.tell)))
            hand_add(s, &(struct sock_head){.flags = SOCK_ONLY_ACK});
        more = s->first != s->end && hand_send(s);
    }
}

bool holmes_sock_lane_send(struct wire_lane *lane, bool retry, bool tell)
{
    bool sent = true;

    for (int i = 0; i < lane->nstreams; i++) {
        struct sock_stream *s = &lane->streams[i];

        if (retry || !s->full)
            stream_send(s, tell);
        sent = sent && s->first == s->end;
    }
    return sent && lane->out.dealt == lane->out.posted && !lane->in.tell &&
           !holmes_sock_again_next(&lane->out);
}

/* ---- what has become of it ---- */

bool holmes_sock_lane_landed(struct wire_lane *lane, uint32_t landed)
{
    struct sock_sender *o = &lane->out;
    uint32_t more = landed - o->landed;

    if (more == 0 || more > UINT32_MAX / 2) /* nothing new: streams overtake each other */
        return true;
    if (more > o->dealt - o->landed)
        return false;
    for (int i = 0; i < lane->nstreams; i++) {
        const struct sock_stream *s = &lane->streams[i];

        /* What has not left our hands cannot be there, but by a stream that is lost. */
        for (unsigned p = s->first; p != s->end; p++) {
            const struct sock_head *h = &s->hand[p % SOCK_BATCH].head;

            if (!(h->flags & (SOCK_ONLY_ACK | SOCK_AGAIN)) && h->seq - o->landed <= more)
                return false;
        }
    }
    o->landed = landed;
    return true;
}

/* Writes that are done for their users: of what is being sent again the bytes are still needed. */
static uint32_t done_up_to(const struct wire_lane *lane)
{
    const struct sock_sender *o = &lane->out;
    uint32_t done = o->landed;

    if (lane->nstreams == 1)
        return o->sent;
    for (int i = 0; lane->lost != 0 && i < lane->nstreams; i++) {
        const struct sock_stream *s = &lane->streams[i];

        for (unsigned p = s->first; p != s->end; p++) {
            const struct sock_head *h = &s->hand[p % SOCK_BATCH].head;

            if (h->flags & SOCK_AGAIN && h->seq - o->reported <= done - o->reported)
                done = h->seq - 1;
        }
    }
    return done;
}

int holmes_sock_lane_report(struct wire_lane *lane, struct wire_event *events, int max)
{
    struct sock_sender *o = &lane->out;
    int status = holmes_sock_lane_poll(lane), n = 0;
    uint32_t through = done_up_to(lane);
    uint32_t end = status == 0 || status == -EAGAIN ? through : o->posted;

    while (n < max && o->reported != end) {
        bool done = through - ++o->reported <= UINT32_MAX / 2;
        const struct sock_write *w = write_at(o, o->reported);

        if (w->copy_end > 0)
            o->copies.first = w->copy_end;
        if (w->report)
            events[n++] = (struct wire_event){.type = done ? WIRE_WRITE_DONE : WIRE_ERROR,
                                              .error = done ? 0 : status,
                                              .context = w->context};
    }
    return n;
}
