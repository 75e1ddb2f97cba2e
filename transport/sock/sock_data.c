/* The data path. A write is a head and its bytes in the stream; the receiving end reads the bytes
 * straight to where the head says. Writes of one lane arrive in the order of posting, so an
 * immediate comes after all bytes before it. Everything happens in lane_post and cq_poll, on the
 * caller's thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "log.h"
#include "sock_ops.h"

#define BATCH      16 /* writes in one system call */
#define READS      16 /* of one lane in a poll, so that its neighbours have their turn */
#define IDLE_READS 64 /* a lane that brought nothing so often is looked at */
#define IDLE_EVERY 16 /* only in every so many polls */

int holmes_sock_cq_open(struct wire_nic *wn, struct wire_cq **out)
{
    struct wire_cq *cq = calloc(1, sizeof *cq);

    if (!cq)
        return -ENOMEM;
    cq->wn = wn;
    holmes_list_init(&cq->lanes);
    *out = cq;
    return 0;
}

void holmes_sock_cq_close(struct wire_cq *cq)
{
    free(cq);
}

int holmes_sock_head_check(const struct sock_head *h)
{
    if (h->flags & ~SOCK_HAS_IMM || h->zero[0] | h->zero[1] | h->zero[2] ||
        h->len > SOCK_MAX_WRITE || (h->len == 0 && !(h->flags & SOCK_HAS_IMM)) ||
        (!(h->flags & SOCK_HAS_IMM) && h->imm != 0))
        return -EPROTO;
    return 0;
}

/* ---- sending ---- */

static struct sock_write *write_at(struct sock_sender *s, unsigned i)
{
    return &s->ring[i % SOCK_WRITES_MAX];
}

/* What of the write is left after its first `done` bytes; the number of entries. */
static int write_left(struct sock_write *w, size_t done, struct iovec out[2])
{
    int n = 0;

    if (done < w->head_len)
        out[n++] = (struct iovec){w->head + done, w->head_len - done};
    done = done > w->head_len ? done - w->head_len : 0;
    if (done < w->body_len)
        out[n++] = (struct iovec){(void *)(uintptr_t)(w->body + done), w->body_len - done};
    return n;
}

/* The kernel has taken `n` more bytes. */
static void sender_advance(struct sock_sender *s, size_t n)
{
    while (n > 0) {
        const struct sock_write *w = write_at(s, s->sent);
        size_t left = w->head_len + w->body_len - s->done;

        if (n < left) {
            s->done += n;
            return;
        }
        n -= left;
        s->done = 0;
        s->sent++;
    }
}

static void lane_send(struct wire_lane *lane)
{
    struct sock_sender *s = &lane->out;

    while (s->sent != s->posted && holmes_sock_lane_poll(lane) == 0) {
        struct iovec iov[2 * BATCH];
        struct msghdr msg = {.msg_iov = iov};
        size_t wanted = 0;
        ssize_t n;

        for (unsigned i = s->sent; i != s->posted && i - s->sent < BATCH; i++)
            msg.msg_iovlen += (size_t)write_left(write_at(s, i), i == s->sent ? s->done : 0,
                                                 iov + msg.msg_iovlen);
        for (size_t i = 0; i < msg.msg_iovlen; i++)
            wanted += iov[i].iov_len;
        n = sendmsg(lane->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            if (errno != EAGAIN)
                holmes_sock_lane_fail(lane, errno == EPIPE ? -ECONNRESET : -errno);
            return;
        }
        sender_advance(s, (size_t)n);
        if ((size_t)n < wanted)
            return; /* the kernel is full */
    }
}

int holmes_sock_lane_post(struct wire_lane *lane, const struct wire_write *w)
{
    struct sock_head head = {.key = w->remote_key,
                             .offset = w->remote_addr,
                             .len = w->len,
                             .imm = w->flags & WIRE_WITH_IMM ? w->imm : 0,
                             .flags = w->flags & WIRE_WITH_IMM ? SOCK_HAS_IMM : 0};
    struct sock_sender *s = &lane->out;
    bool inlined = w->flags & WIRE_INLINE;
    struct sock_write *out;
    int rc = holmes_sock_lane_poll(lane);

    if (rc != 0)
        return rc;
    if (w->len > (inlined ? SOCK_INLINE_MAX : SOCK_MAX_WRITE) ||
        (w->len == 0 && !(w->flags & WIRE_WITH_IMM)))
        return -EINVAL;
    if (s->posted - s->reported == SOCK_WRITES_MAX)
        return -EAGAIN;
    out = write_at(s, s->posted);
    memcpy(out->head, &head, sizeof head);
    out->head_len = sizeof head;
    out->body_len = 0;
    if (inlined && w->len > 0) {
        memcpy(out->head + sizeof head, w->buf, w->len);
        out->head_len += (uint32_t)w->len;
    } else {
        out->body = w->buf;
        out->body_len = w->len;
    }
    out->report = !(w->flags & (WIRE_INLINE | WIRE_QUIET));
    out->context = w->context;
    s->posted++;
    if (s->posted - s->sent == 1) /* else the kernel was full, and cq_poll goes on */
        lane_send(lane);
    return 0;
}

/* What has become of the lane's writes; the number of events. */
static int lane_report(struct wire_lane *lane, struct wire_event *events, int max)
{
    struct sock_sender *s = &lane->out;
    int status = holmes_sock_lane_poll(lane), n = 0;
    unsigned end = status == 0 || status == -EAGAIN ? s->sent : s->posted;

    while (n < max && s->reported != end) {
        const struct sock_write *w = write_at(s, s->reported);
        bool left = (int)(s->reported - s->sent) < 0;

        if (w->report)
            events[n++] = (struct wire_event){.type = left ? WIRE_WRITE_DONE : WIRE_ERROR,
                                              .error = left ? 0 : status,
                                              .context = w->context};
        s->reported++;
    }
    return n;
}

/* ---- receiving ---- */

static void lane_refuse(struct wire_lane *lane, const char *what)
{
    holmes_warn(NET, "nic %s: a peer wrote %s", lane->wn->nic.name, what);
    holmes_sock_lane_fail(lane, -EPROTO);
}

/* Where the next of the arriving bytes go. mrs_lock held; NULL after failing the lane. */
static uint8_t *arriving_at(struct wire_lane *lane)
{
    const struct sock_receiver *r = &lane->in;
    uint8_t *at = holmes_sock_mr_find(lane->wn, r->head.key, r->head.offset, r->head.len);

    if (!at) {
        lane_refuse(lane, "to where no registered memory is");
        return NULL;
    }
    return at + (r->head.len - r->left);
}

static bool head_take(struct wire_lane *lane)
{
    struct sock_receiver *r = &lane->in;

    if (r->end - r->first < sizeof r->head)
        return false;
    memcpy(&r->head, r->ahead + r->first, sizeof r->head);
    r->first += sizeof r->head;
    if (holmes_sock_head_check(&r->head) != 0) {
        lane_refuse(lane, "a head that is none");
        return false;
    }
    r->left = r->head.len;
    r->arriving = true;
    return true;
}

/* Moves what was read ahead to where it belongs. False after failing the lane. */
static bool body_take(struct wire_lane *lane)
{
    struct sock_receiver *r = &lane->in;
    size_t n = r->end - r->first < r->left ? r->end - r->first : r->left;
    uint8_t *at;

    if (n == 0)
        return true;
    pthread_rwlock_rdlock(&lane->wn->mrs_lock);
    at = arriving_at(lane);
    if (at)
        memcpy(at, r->ahead + r->first, n);
    pthread_rwlock_unlock(&lane->wn->mrs_lock);
    r->first += n;
    r->left -= n;
    return at != NULL;
}

/* Deals with what was read ahead; the number of events. */
static int lane_take(struct wire_lane *lane, struct wire_event *events, int max)
{
    struct sock_receiver *r = &lane->in;
    int n = 0;

    while (n < max && holmes_sock_lane_poll(lane) == 0) {
        if (!r->arriving && !head_take(lane))
            break;
        if (!body_take(lane) || r->left > 0)
            break;
        r->arriving = false;
        if (r->head.flags & SOCK_HAS_IMM)
            events[n++] = (struct wire_event){.type = WIRE_IMM, .imm = r->head.imm};
    }
    return n;
}

/* Reads the rest of the arriving write to its place and what comes behind it ahead. */
static ssize_t read_body(struct wire_lane *lane)
{
    struct sock_receiver *r = &lane->in;
    struct iovec iov[2] = {{.iov_len = r->left},
                           {.iov_base = r->ahead, .iov_len = sizeof r->ahead}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    ssize_t n = -1;

    pthread_rwlock_rdlock(&lane->wn->mrs_lock);
    iov[0].iov_base = arriving_at(lane);
    if (iov[0].iov_base)
        n = recvmsg(lane->fd, &msg, MSG_DONTWAIT);
    else
        errno = EAGAIN; /* the lane has failed */
    pthread_rwlock_unlock(&lane->wn->mrs_lock);
    if (n <= 0)
        return n;
    r->first = 0;
    r->end = (size_t)n > r->left ? (size_t)n - r->left : 0;
    r->left -= (size_t)n < r->left ? (size_t)n : r->left;
    return n;
}

static ssize_t read_ahead(struct wire_lane *lane)
{
    struct sock_receiver *r = &lane->in;
    ssize_t n;

    memmove(r->ahead, r->ahead + r->first, r->end - r->first);
    r->end -= r->first;
    r->first = 0;
    n = recv(lane->fd, r->ahead + r->end, sizeof r->ahead - r->end, MSG_DONTWAIT);
    if (n > 0)
        r->end += (size_t)n;
    return n;
}

/* Whether there may be more. */
static bool lane_read(struct wire_lane *lane)
{
    struct sock_receiver *r = &lane->in;
    size_t wanted = r->arriving ? r->left + sizeof r->ahead : sizeof r->ahead - (r->end - r->first);
    ssize_t n = r->arriving ? read_body(lane) : read_ahead(lane);

    r->idle = n > 0 ? 0 : r->idle + 1;
    if (n == 0)
        holmes_sock_lane_fail(lane, -ECONNRESET);
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        holmes_sock_lane_fail(lane, -errno);
    return n > 0 && (size_t)n == wanted;
}

static int lane_receive(struct wire_lane *lane, struct wire_event *events, int max)
{
    int n = lane_take(lane, events, max);
    bool more = true;

    for (int i = 0; i < READS && more && n < max && holmes_sock_lane_poll(lane) == 0; i++) {
        more = lane_read(lane);
        n += lane_take(lane, events + n, max - n);
    }
    return n;
}

/* ---- both ---- */

/* An idle lane costs a system call to look at; the first one carries control and is always. */
static bool worth_a_look(const struct wire_cq *cq, const struct wire_lane *lane)
{
    return lane->in.idle < IDLE_READS || lane->in.end > lane->in.first ||
           cq->polls % IDLE_EVERY == 0 || cq->lanes.next == &lane->in_cq;
}

int holmes_sock_cq_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = 0;

    cq->polls++;
    holmes_list_each(lane, tmp, &cq->lanes, struct wire_lane, in_cq)
    {
        if (holmes_sock_lane_poll(lane) == 0) {
            lane_send(lane);
            if (worth_a_look(cq, lane))
                n += lane_receive(lane, events + n, max - n);
        }
        n += lane_report(lane, events + n, max - n);
    }
    return n;
}
