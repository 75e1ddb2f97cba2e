/* The receiving half of a lane. A head says where its bytes go, and the kernel copies them straight
 * there; a write is here when all its pieces are, and is reported when all before it have been.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "clock.h"
#include "log.h"
#include "sock_ops.h"

#define READS        16  /* of one stream in a poll, so that its neighbours have their turn */
#define IDLE_READS   64  /* a stream that brought nothing so often is looked at */
#define IDLE_EVERY   16  /* only in every so many polls */
#define END_GRACE_MS 500 /* streams of a peer that closes end together */
#define FIRST_RING   16  /* writes */

int holmes_sock_head_check(const struct sock_head *h)
{
    bool only_ack = h->flags == SOCK_ONLY_ACK;

    if (h->zero[0] | h->zero[1] || (h->flags & SOCK_AGAIN && h->lost == 0))
        return -EPROTO;
    if (only_ack)
        return h->key || h->offset || h->len || h->write_len || h->seq || h->imm ? -EPROTO : 0;
    if (h->flags & ~(SOCK_HAS_IMM | SOCK_TELL | SOCK_AGAIN) || h->write_len > SOCK_MAX_WRITE ||
        h->len > h->write_len || (h->len == 0 && h->write_len > 0) ||
        (h->write_len == 0 && !(h->flags & SOCK_HAS_IMM)) ||
        (!(h->flags & SOCK_HAS_IMM) && h->imm != 0))
        return -EPROTO;
    return 0;
}

static bool refuse(struct wire_lane *lane, const char *what)
{
    holmes_warn(NET, "nic %s: a peer wrote %s", lane->wn->nic.name, what);
    holmes_sock_lane_fail(lane, -EPROTO);
    return false;
}

/* ---- writes that are arriving ---- */

static struct sock_arrival *arrival_at(const struct sock_receiver *in, uint32_t seq)
{
    return &in->ring[seq & (in->size - 1)];
}

static int ring_grow(struct sock_receiver *in)
{
    struct sock_receiver more = *in;

    more.size = in->size > 0 ? 2 * in->size : FIRST_RING;
    more.ring = calloc(more.size, sizeof *more.ring);
    if (!more.ring)
        return -ENOMEM;
    /* No write beyond the old ring has come. */
    for (uint32_t i = 1; i <= in->size; i++)
        *arrival_at(&more, in->landed + i) = *arrival_at(in, in->landed + i);
    free(in->ring);
    *in = more;
    return 0;
}

static bool part_is_here(const struct sock_arrival *a, uint64_t offset)
{
    for (uint32_t i = 0; i < a->nparts; i++)
        if (a->parts[i] == offset)
            return true;
    return false;
}

/* More pieces than a true peer makes of a write are not kept account of. */
static int part_add(struct sock_arrival *a, uint64_t offset)
{
    uint32_t max = 2 * SOCK_STREAMS_MAX + a->write_len / SOCK_PART_MIN, cap;
    uint64_t *more;

    if (a->nparts == max)
        return -EPROTO;
    if (a->nparts == a->parts_cap) {
        cap = a->parts_cap > 0 ? 2 * a->parts_cap : 8;
        more = realloc(a->parts, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        a->parts = more;
        a->parts_cap = cap;
    }
    a->parts[a->nparts++] = offset;
    return 0;
}

static void arrival_end(struct sock_arrival *a)
{
    free(a->parts);
    *a = (struct sock_arrival){.begun = false};
}

/* Whether the peer sends again what is here. */
static bool is_here(const struct sock_receiver *in, const struct sock_head *h)
{
    const struct sock_arrival *a;
    uint32_t ahead = h->seq - in->landed;

    if (!(h->flags & SOCK_AGAIN))
        return false;
    if (ahead == 0 || ahead > UINT32_MAX / 2)
        return true;
    if (ahead > in->size)
        return false;
    a = arrival_at(in, h->seq);
    return a->begun &&
           (h->len < h->write_len ? part_is_here(a, h->offset) : a->announced == a->write_len);
}

/* The piece that the head announces. False after failing the lane. */
static bool arrival_note(struct wire_lane *lane, const struct sock_head *h)
{
    struct sock_receiver *in = &lane->in;
    uint32_t ahead = h->seq - in->landed;
    uint8_t flags = h->flags & ~SOCK_AGAIN;
    struct sock_arrival *a;
    int rc = 0;

    if (ahead == 0 || ahead > SOCK_WRITES_MAX)
        return refuse(lane, "a head out of turn");
    while (ahead > in->size) {
        if (ring_grow(in) != 0) {
            holmes_sock_lane_fail(lane, -ENOMEM);
            return false;
        }
    }
    a = arrival_at(in, h->seq);
    if (!a->begun)
        *a = (struct sock_arrival){.begun = true,
                                   .flags = flags,
                                   .write_len = h->write_len,
                                   .imm = h->imm,
                                   .left = h->write_len};
    else if (a->flags != flags || a->write_len != h->write_len || a->imm != h->imm)
        return refuse(lane, "pieces that do not belong together");
    else if (a->announced == a->write_len)
        return refuse(lane, "a piece too many");
    if (h->len > a->write_len - a->announced)
        return refuse(lane, "more bytes than it announced");
    if (lane->nstreams > 1 && h->len < h->write_len)
        rc = part_add(a, h->offset);
    if (rc == -EPROTO)
        return refuse(lane, "a write in too many pieces");
    if (rc != 0) {
        holmes_sock_lane_fail(lane, rc);
        return false;
    }
    a->announced += h->len;
    return true;
}

void holmes_sock_arrival_drop(struct sock_stream *s)
{
    struct sock_arrival *a = arrival_at(&s->lane->in, s->head.seq);

    if (s->left > 0 && !s->again) {
        a->announced -= s->head.len;
        a->left += s->head.len - s->left;
        for (uint32_t i = 0; i < a->nparts; i++) {
            if (a->parts[i] == s->head.offset) {
                a->parts[i] = a->parts[--a->nparts];
                break;
            }
        }
    }
    s->left = 0;
    s->nahead = 0;
}

void holmes_sock_receiver_fini(struct sock_receiver *in)
{
    for (uint32_t i = 0; i < in->size; i++)
        free(in->ring[i].parts);
    free(in->ring);
}

int holmes_sock_lane_deliver(struct wire_lane *lane, struct wire_event *events, int max)
{
    struct sock_receiver *in = &lane->in;
    int n = 0;

    while (n < max && in->size > 0) {
        struct sock_arrival *a = arrival_at(in, in->landed + 1);

        if (!a->begun || a->left > 0)
            break;
        in->landed++;
        if (a->flags & SOCK_HAS_IMM)
            events[n++] = (struct wire_event){.type = WIRE_IMM, .imm = a->imm};
        in->untold_bytes += a->write_len;
        if (a->flags & SOCK_TELL || in->landed - in->told >= SOCK_WRITES_MAX / 4 ||
            (lane->nstreams > 1 && in->untold_bytes >= SOCK_COPIES / 4))
            in->tell = true;
        arrival_end(a);
    }
    return n;
}

/* ---- reading ---- */

/* Where the next of the arriving bytes go. mrs_lock held; NULL after failing the lane. */
static uint8_t *arriving_at(struct sock_stream *s)
{
    const struct sock_head *h = &s->head;
    uint8_t *at = holmes_sock_mr_find(s->lane->wn, h->key, h->offset, h->len);

    if (!at)
        refuse(s->lane, "to where no registered memory is");
    return at ? at + (h->len - s->left) : NULL;
}

static void arrived(struct sock_stream *s, size_t n)
{
    s->left -= (uint32_t)n;
    if (!s->again)
        arrival_at(&s->lane->in, s->head.seq)->left -= (uint32_t)n;
}

static bool take_head(struct sock_stream *s, const uint8_t *bytes)
{
    struct sock_head *h = &s->head;

    memcpy(h, bytes, sizeof *h);
    if (holmes_sock_head_check(h) != 0)
        return refuse(s->lane, "a head that is none");
    if (!holmes_sock_lane_landed(s->lane, h->landed))
        return refuse(s->lane, "that it has what was never sent");
    if (h->lost & ~s->lane->lost && !holmes_sock_peer_lost(s, h->lost))
        return false;
    if (h->flags == SOCK_ONLY_ACK)
        return true;
    s->again = is_here(&s->lane->in, h);
    s->left = h->len;
    return s->again || arrival_note(s->lane, h);
}

static bool take_body(struct sock_stream *s, const uint8_t *bytes, size_t n)
{
    uint8_t *at = s->again ? NULL : arriving_at(s);

    if (!s->again && !at)
        return false;
    if (at)
        memcpy(at, bytes, n);
    arrived(s, n);
    return true;
}

/* What was read ahead. mrs_lock held. */
static void take(struct sock_stream *s, const uint8_t *bytes, size_t len)
{
    bool good = true;
    size_t n;

    while (good && len > 0) {
        if (s->left > 0) {
            n = len < s->left ? len : s->left;
            good = take_body(s, bytes, n);
        } else if (len >= sizeof s->head) {
            n = sizeof s->head;
            good = take_head(s, bytes);
        } else {
            n = s->nahead = len;
            memcpy(s->ahead, bytes, len);
        }
        bytes += n;
        len -= n;
    }
}

static void stream_end(struct sock_stream *s)
{
    struct wire_lane *lane = s->lane;

    s->ended = true;
    if (lane->nended++ == 0)
        lane->ended_ns = holmes_now_ns();
    for (int i = 0; i < lane->nstreams; i++)
        if (sock_stream_lives(&lane->streams[i]))
            return;
    holmes_sock_lane_fail(lane, -ECONNRESET);
}

/* One system call: the rest of the arriving piece to its place, and what comes behind it. mrs_lock
 * held. */
static ssize_t read_piece(struct sock_stream *s, uint8_t *ahead, size_t len)
{
    struct iovec iov[2] = {{.iov_base = arriving_at(s), .iov_len = s->left},
                           {.iov_base = ahead, .iov_len = len}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

    if (!iov[0].iov_base) {
        errno = EAGAIN; /* the lane has failed already */
        return -1;
    }
    return recvmsg(s->fd, &msg, MSG_DONTWAIT);
}

/* Takes mrs_lock, before the lane's. False: the stream was lost meanwhile, and it is not taken. */
static bool hold_mrs(struct sock_stream *s)
{
    sock_lane_unlock(s->lane);
    pthread_rwlock_rdlock(&s->lane->wn->mrs_lock);
    sock_lane_lock(s->lane);
    if (sock_stream_lives(s))
        return true;
    pthread_rwlock_unlock(&s->lane->wn->mrs_lock);
    return false;
}

/* What was read: of the arriving piece, that is in its place, and ahead, behind `kept` bytes from
 * before. mrs_lock held. */
static void take_read(struct sock_stream *s, size_t body, uint8_t *ahead, size_t kept, size_t len)
{
    if (body > 0)
        arrived(s, body);
    memcpy(ahead, s->ahead, kept);
    s->nahead = 0;
    take(s, ahead, kept + len);
}

static void read_ended(struct sock_stream *s, ssize_t n, int error)
{
    s->idle = n > 0 ? 0 : s->idle + 1;
    if (n == 0 && s->reset)
        holmes_sock_stream_lost(s, -ECONNRESET);
    else if (n == 0)
        stream_end(s);
    else if (error != 0 && error != EAGAIN && error != EINTR)
        holmes_sock_stream_lost(s, -error);
}

/* Of a long write what comes meanwhile had better become more before the next call. */
static bool is_short(const struct sock_stream *s)
{
    return s->head.write_len <= SOCK_SHORT;
}

/* Between pieces, or of one that is here already: only ahead. Most looks bring nothing. */
static bool read_ahead(struct sock_stream *s)
{
    uint8_t ahead[SOCK_READ_AHEAD];
    size_t kept = s->nahead, room = sizeof ahead - kept;
    ssize_t n;
    int error;

    sock_stream_enter_kernel(s);
    n = recv(s->fd, ahead + kept, room, MSG_DONTWAIT);
    error = n < 0 ? errno : 0;
    sock_stream_leave_kernel(s);
    if (n > 0) {
        if (!hold_mrs(s))
            return false;
        take_read(s, 0, ahead, kept, (size_t)n);
        pthread_rwlock_unlock(&s->lane->wn->mrs_lock);
    }
    read_ended(s, n, error);
    return n > 0 && ((size_t)n == room || (s->left > 0 && is_short(s)));
}

/* More of the piece may have come while the kernel copied. */
static bool read_direct(struct sock_stream *s)
{
    uint8_t ahead[SOCK_READ_AHEAD];
    size_t left = s->left, body;
    ssize_t n;
    int error;

    if (!hold_mrs(s))
        return false;
    sock_stream_enter_kernel(s);
    n = read_piece(s, ahead, sizeof ahead);
    error = n < 0 ? errno : 0;
    sock_stream_leave_kernel(s);
    if (n > 0) {
        body = (size_t)n < left ? (size_t)n : left;
        take_read(s, body, ahead, 0, (size_t)n - body);
    }
    pthread_rwlock_unlock(&s->lane->wn->mrs_lock);
    read_ended(s, n, error);
    return n > 0 && ((size_t)n == left + sizeof ahead || (s->left > 0 && is_short(s)));
}

/* One system call, for which the lane is unlocked, and before mrs_lock is taken. False: no more
 * now.
 */
static bool stream_read(struct sock_stream *s)
{
    return s->left > 0 && !s->again ? read_direct(s) : read_ahead(s);
}

void holmes_sock_stream_drain(struct sock_stream *s)
{
    while (sock_stream_lives(s) && holmes_sock_lane_poll(s->lane) == 0 && stream_read(s))
        continue;
}

/* To look at an idle stream costs a system call; the first one carries control and is always. */
static bool worth_a_look(const struct sock_stream *s, unsigned polls)
{
    return sock_stream_lives(s) && (s->idle < IDLE_READS || polls % IDLE_EVERY == 0 ||
                                    s == s->lane->streams || s->lane->lost != 0);
}

void holmes_sock_lane_read(struct wire_lane *lane)
{
    for (int i = 0; i < lane->nstreams; i++) {
        struct sock_stream *s = &lane->streams[i];
        bool more = worth_a_look(s, lane->cq->polls);

        for (int r = 0; r < READS && more && holmes_sock_lane_poll(lane) == 0; r++)
            more = stream_read(s);
    }
    if (lane->nended > 0 && holmes_now_ns() - lane->ended_ns > END_GRACE_MS * 1000000ull)
        holmes_sock_lane_fail(lane, -ECONNRESET);
}
