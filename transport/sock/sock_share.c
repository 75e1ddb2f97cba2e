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

#define PIECE_MIN  (64u * 1024)
#define PIECE_MAX  (1024u * 1024)
#define PIECE_NS   1000000u  /* a piece is what the stream moves in a millisecond */
#define FRESH_NS   100000u   /* a look at the kernel counts this long */
#define MEASURE_NS 500000u   /* a speed is reckoned from this time at least */
#define STALL_NS   10000000u /* or this long while none is acknowledged */
#define MEMORY_NS  5000000u  /* and forgotten over this */
#define FORGET_NS  1000000000u
#define ALIGN      128u /* an LL128 line is not torn */

static void rate_reckon(struct sock_speed *v)
{
    double sample = (double)v->busy_bytes * 1e9 / (double)v->busy_ns;

    /* One that was idle in between is at least as fast as that. */
    if (v->rate == 0)
        v->rate = sample;
    else if (!v->idled || sample > v->rate)
        v->rate += (sample - v->rate) * (double)v->busy_ns / (double)(v->busy_ns + MEMORY_NS);
    v->busy_ns = v->busy_bytes = 0;
    v->idled = false;
}

/* A stream that is given little is as fast as it moves that: the time between does not count, as
 * far as the looks are close enough to tell. */
void holmes_sock_speed_look(struct sock_speed *v, uint64_t now, uint64_t acked, uint64_t queued)
{
    uint64_t ns = now - v->looked_ns;

    if (v->queued > 0 && v->looked_ns != 0) {
        v->busy_ns += ns;
        v->busy_bytes += acked - v->acked;
        v->idled = v->idled || (queued == 0 && ns > 2 * FRESH_NS);
        v->used_ns = now;
    }
    /* Acknowledgements come for many bytes at once: up to one of them, not in between. */
    if (v->busy_ns >= (v->busy_bytes > 0 ? MEASURE_NS : STALL_NS))
        rate_reckon(v);
    if (queued == 0 && now - v->used_ns > FORGET_NS) /* it may be another by now */
        v->rate = 0;
    v->looked_ns = now;
    v->acked = acked;
    v->queued = queued;
}

static void look(struct sock_stream *s, uint64_t now)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    uint32_t rtt_us;

    if (now - s->speed.looked_ns < FRESH_NS || !sock_stream_lives(s))
        return;
    memset(&info, 0, sizeof info);
    if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return;
    /* With nothing under way, what queued when it was last used is gone. */
    rtt_us = info.tcpi_unacked == 0 && info.tcpi_min_rtt < info.tcpi_rtt ? info.tcpi_min_rtt
                                                                         : info.tcpi_rtt;
    s->speed.rtt = rtt_us * 1e-6;
    holmes_sock_speed_look(&s->speed, now, info.tcpi_bytes_acked,
                           (uint64_t)info.tcpi_unacked * info.tcpi_snd_mss +
                               info.tcpi_notsent_bytes);
}

/* Bytes in hand and in the kernel. */
static uint64_t before(const struct sock_stream *s)
{
    uint64_t bytes = s->speed.queued;

    for (unsigned i = s->first; i != s->end; i++)
        bytes += s->hand[i % SOCK_BATCH].head.len;
    return bytes;
}

/* One that nothing is known of gets its chance. */
static double rate_of(const struct sock_stream *s, double fastest)
{
    return s->speed.rate > 0 ? s->speed.rate : fastest;
}

/* Seconds until `len` more bytes are there. A stream that is slower than it was shows it first by
 * the time its acknowledgements take. */
static double time_for(const struct sock_stream *s, size_t len, double fastest)
{
    double moving = (double)(before(s) + len) / rate_of(s, fastest);

    return moving > s->speed.rtt ? moving : s->speed.rtt;
}

/* Whether a piece of `len` bytes is better given to `s` than kept for the others: nobody else would
 * have it there sooner, or it is there when they are half through with what waits. Who is
 * soonest is asked with one size for all, so that somebody is. */
static bool worth_it(const struct wire_lane *lane, const struct sock_stream *s, size_t len)
{
    double fastest = 1, rest_rate = 0, rest_bytes = (double)lane->out.waiting, own;
    size_t one = lane->out.waiting < PIECE_MIN ? (size_t)lane->out.waiting : PIECE_MIN;
    bool soonest = true;

    for (int i = 0; i < lane->nstreams; i++)
        if (sock_stream_lives(&lane->streams[i]) && lane->streams[i].speed.rate > fastest)
            fastest = lane->streams[i].speed.rate;
    own = time_for(s, one, fastest);
    for (int i = 0; i < lane->nstreams; i++) {
        const struct sock_stream *other = &lane->streams[i];

        if (other == s || !sock_stream_lives(other))
            continue;
        soonest = soonest && own <= time_for(other, one, fastest);
        rest_rate += rate_of(other, fastest);
        rest_bytes += (double)before(other);
    }
    return soonest || 2 * time_for(s, len, fastest) <= rest_bytes / rest_rate;
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
        size_t most = (size_t)(s->speed.rate * PIECE_NS / 1e9);

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
