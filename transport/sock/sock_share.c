/* Which stream takes how much. With several streams a piece goes where it is likely to arrive
 * soonest, counting what lies before it in the kernel (earliest completion first, as multipath
 * TCP's ECF scheduler by Lim et al., CoNEXT 2017), or where it arrives before the other streams are
 * through with all that waits. So a stream that is slow, or lossy, is used as far as it helps and
 * never waited for. Speeds are the kernel's (struct tcp_info); looking costs a system call for each
 * piece.
 */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "sock_ops.h"

#define PIECE_MIN (64u * 1024)
#define PIECE_MAX (1024u * 1024)
#define PIECE_NS  1000000u /* a piece is what the stream moves in a millisecond */
#define FRESH_NS  100000u  /* a look at the kernel counts this long */
#define ALIGN     128u     /* an LL128 line is not torn */

static void look(struct sock_stream *s, uint64_t now)
{
    struct tcp_info info;
    socklen_t len = sizeof info;

    if (now - s->speed.looked_ns < FRESH_NS)
        return;
    memset(&info, 0, sizeof info);
    if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return;
    s->speed = (struct sock_speed){.looked_ns = now,
                                   .rate = info.tcpi_delivery_rate,
                                   .queued = (uint64_t)info.tcpi_unacked * info.tcpi_snd_mss +
                                             info.tcpi_notsent_bytes};
}

/* Bytes in hand and in the kernel. */
static uint64_t before(const struct sock_stream *s)
{
    uint64_t bytes = s->speed.queued;

    for (unsigned i = s->first; i != s->end; i++)
        bytes += s->hand[i % SOCK_BATCH].head.len;
    return bytes;
}

static uint64_t ns_for(uint64_t bytes, uint64_t rate)
{
    return (uint64_t)((double)bytes * 1e9 / (double)rate);
}

/* Whether a piece of `len` bytes is better given to `s` than kept for the others. */
static bool worth_it(const struct wire_lane *lane, const struct sock_stream *s, size_t len)
{
    uint64_t fastest = 1, rest_rate = 0, rest_bytes = lane->out.waiting, own;

    for (int i = 0; i < lane->nstreams; i++)
        if (lane->streams[i].speed.rate > fastest)
            fastest = lane->streams[i].speed.rate;
    /* One that nothing is known of gets its chance. */
    own = ns_for(before(s) + len, s->speed.rate > 0 ? s->speed.rate : fastest);
    for (int i = 0; i < lane->nstreams; i++) {
        const struct sock_stream *other = &lane->streams[i];
        uint64_t rate = other->speed.rate > 0 ? other->speed.rate : fastest, bytes;

        if (other == s)
            continue;
        bytes = before(other);
        if (own > ns_for(bytes + len, rate))
            goto rest;
    }
    return true;
rest:
    for (int i = 0; i < lane->nstreams; i++) {
        const struct sock_stream *other = &lane->streams[i];

        if (other == s)
            continue;
        rest_rate += other->speed.rate > 0 ? other->speed.rate : fastest;
        rest_bytes += before(other);
    }
    return own <= ns_for(rest_bytes, rest_rate);
}

size_t holmes_sock_share(struct wire_lane *lane, struct sock_stream *s, size_t left)
{
    size_t len = left;
    uint64_t now;

    if (lane->nstreams == 1 || left == 0)
        return left;
    if (s->end != s->first && before(s) - s->speed.queued >= PIECE_MIN)
        return 0; /* what is in hand is enough */
    now = holmes_now_ns();
    for (int i = 0; i < lane->nstreams; i++)
        look(&lane->streams[i], now);
    if (len > PIECE_MIN) {
        uint64_t most = s->speed.rate / (1000000000u / PIECE_NS);

        most = most < PIECE_MIN ? PIECE_MIN : most > PIECE_MAX ? PIECE_MAX : most;
        len = left / (size_t)lane->nstreams > PIECE_MIN ? left / (size_t)lane->nstreams : PIECE_MIN;
        len = (len < most ? len : most) / ALIGN * ALIGN;
        if (left - len < PIECE_MIN / 2)
            len = left;
    }
    return worth_it(lane, s, len) ? len : 0;
}

void holmes_sock_share_note(struct sock_stream *s, size_t len)
{
    s->speed.queued += len;
}
