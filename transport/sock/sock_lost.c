/* A stream that dies takes nothing along as long as its lane has others. What it was dealt and is
 * not known to have landed goes again over them, cut as before, so that the peer can tell what it
 * has. Every head says which streams its writer lost: the reader kills them too before it looks at
 * what is sent again, and so nothing of the same bytes can still come from there.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "../oob.h"
#include "clock.h"
#include "log.h"
#include "sock_ops.h"

#define WATCH_NS    100000000u
#define WATCH_POLLS 64 /* the clock is read in every so many */
#define BACKOFF_MAX                                                                                \
    4 /* times that the kernel waited for an acknowledgement in vain: 3 s and more */
#define FIRST_RING 16

/* ---- what was dealt ---- */

static struct sock_dealt *dealt_at(const struct sock_dealt_ring *r, uint32_t i)
{
    return &r->at[i & (r->size - 1)];
}

static bool dealt_push(struct sock_dealt_ring *r, const struct sock_dealt *d)
{
    struct sock_dealt_ring more = *r;

    if (r->end - r->first == r->size) {
        more.size = r->size > 0 ? 2 * r->size : FIRST_RING;
        more.at = malloc(more.size * sizeof *more.at);
        if (!more.at)
            return false;
        for (uint32_t i = r->first; i != r->end; i++)
            *dealt_at(&more, i) = *dealt_at(r, i);
        free(r->at);
        *r = more;
    }
    *dealt_at(r, r->end++) = *d;
    return true;
}

static bool has_landed(const struct sock_sender *o, const struct sock_dealt *d)
{
    return o->landed - d->seq <= UINT32_MAX / 2;
}

bool holmes_sock_dealt_note(struct sock_stream *s, const struct sock_dealt *piece)
{
    struct sock_dealt_ring *r = &s->dealt;

    while (r->first != r->end && has_landed(&s->lane->out, dealt_at(r, r->first)))
        r->first++;
    if (dealt_push(r, piece))
        return true;
    holmes_sock_lane_fail(s->lane, -ENOMEM);
    return false;
}

const struct sock_dealt *holmes_sock_again_next(struct sock_sender *o)
{
    struct sock_dealt_ring *r = &o->again;

    while (r->first != r->end && has_landed(o, dealt_at(r, r->first)))
        o->waiting -= dealt_at(r, r->first++)->len;
    return r->first != r->end ? dealt_at(r, r->first) : NULL;
}

/* ---- losing a stream ---- */

static int living(const struct wire_lane *lane)
{
    int n = 0;

    for (int i = 0; i < lane->nstreams; i++)
        n += sock_stream_lives(&lane->streams[i]);
    return n;
}

static void take_back(struct sock_stream *s)
{
    struct sock_sender *o = &s->lane->out;

    for (; s->dealt.first != s->dealt.end; s->dealt.first++) {
        const struct sock_dealt *d = dealt_at(&s->dealt, s->dealt.first);

        if (has_landed(o, d))
            continue;
        if (!dealt_push(&o->again, d)) {
            holmes_sock_lane_fail(s->lane, -ENOMEM);
            return;
        }
        o->waiting += d->len;
    }
    s->first = s->end;
    s->done = 0;
}

/* The descriptor stays until the lane is closed, in no connection: who still uses it meets an
 * error, not another's socket. The peer's kernel is told, if it can be reached. */
static void disconnect(struct sock_stream *s)
{
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};

    if (connect(s->fd, &nobody, sizeof nobody) != 0)
        shutdown(s->fd, SHUT_RDWR);
}

void holmes_sock_stream_lost(struct sock_stream *s, int error)
{
    struct wire_lane *lane = s->lane;

    /* Else the kernel might still write where the user has its memory back by then. */
    while (s->busy) {
        sock_lane_unlock(lane);
        sched_yield();
        sock_lane_lock(lane);
    }
    if (s->lost != 0)
        return;
    s->lost = error;
    lane->lost |= (uint8_t)(1u << (s - lane->streams));
    if (s->ended)
        lane->nended--;
    if (living(lane) == 0) {
        holmes_sock_lane_fail(lane, error);
        return;
    }
    holmes_sock_arrival_drop(s);
    take_back(s);
    disconnect(s);
    lane->tell_lost = true;
}

bool holmes_sock_peer_lost(struct sock_stream *s, uint8_t lost)
{
    struct wire_lane *lane = s->lane;

    if (lost >> lane->nstreams || lost & 1u << (s - lane->streams)) {
        holmes_warn(NET, "nic %s: a peer wrote that it lost streams 0x%x of %d by stream %d",
                    lane->wn->nic.name, lost, lane->nstreams, (int)(s - lane->streams));
        holmes_sock_lane_fail(lane, -EPROTO);
        return false;
    }
    for (int i = 0; i < lane->nstreams; i++)
        if (lost & 1u << i)
            holmes_sock_stream_lost(&lane->streams[i], -ECONNRESET);
    return holmes_sock_lane_poll(lane) == 0 && s->lost == 0;
}

/* ---- watching ---- */

/* Asked once for all lanes of the NIC. What cannot be told counts as up. */
static bool link_is_down(struct wire_nic *wn, uint64_t now)
{
    struct ifreq ifr = {.ifr_flags = 0};
    short up = IFF_UP | IFF_RUNNING;

    if (now - atomic_load(&wn->link_looked_ns) >= WATCH_NS) {
        atomic_store(&wn->link_looked_ns, now);
        snprintf(ifr.ifr_name, sizeof ifr.ifr_name, "%.15s", wn->nic.ifname);
        atomic_store(&wn->link_down,
                     ioctl(wn->listen_fd, SIOCGIFFLAGS, &ifr) == 0 && (ifr.ifr_flags & up) != up);
    }
    return atomic_load(&wn->link_down);
}

/* 0: it moves or has nothing to move. -EAGAIN: it waits for acknowledgements. Else why it is given
 * up if others move. */
static int state_of(const struct sock_stream *s, uint64_t now)
{
    struct tcp_info info;
    socklen_t len = sizeof info;

    if (!sock_stream_lives(s))
        return -ENOTCONN;
    if (link_is_down(s->wn, now))
        return -ENETDOWN;
    memset(&info, 0, sizeof info);
    if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 || info.tcpi_backoff == 0)
        return 0;
    /* A peer that takes nothing acknowledges what it has: then none is on its way. */
    return info.tcpi_unacked > 0 && info.tcpi_backoff >= BACKOFF_MAX ? -ETIMEDOUT : -EAGAIN;
}

/* A moment later, so that a peer that died, and took all along, is spoken of once. */
static void say_lost(struct wire_lane *lane)
{
    char text[64];

    for (int i = 0; i < lane->nstreams; i++) {
        const struct sock_stream *s = &lane->streams[i];

        if (lane->lost & ~lane->said & 1u << i)
            holmes_warn(NET,
                        "nic %s: a stream to %s is lost (%s): its connection goes on with %d of %d",
                        s->wn->nic.name, oob_addr_text(&s->peer.sa, text, sizeof text),
                        holmes_strerror(s->lost), living(lane), lane->nstreams);
    }
    lane->said = lane->lost;
}

void holmes_sock_lane_watch(struct wire_lane *lane)
{
    int state[SOCK_STREAMS_MAX];
    bool one_moves = false;
    uint64_t now;

    if (lane->cq->polls % WATCH_POLLS != 0)
        return;
    now = holmes_now_ns();
    if (now < lane->next_watch_ns)
        return;
    lane->next_watch_ns = now + WATCH_NS;
    if (lane->lost != lane->said)
        say_lost(lane);
    for (int i = 0; i < lane->nstreams; i++) {
        state[i] = state_of(&lane->streams[i], now);
        one_moves = one_moves || state[i] == 0;
    }
    /* When none moves it may be the peer, or the whole network: the peer time-out decides. */
    for (int i = 0; one_moves && i < lane->nstreams; i++) {
        struct sock_stream *s = &lane->streams[i];

        if (state[i] == 0 || state[i] == -EAGAIN || !sock_stream_lives(s))
            continue;
        holmes_sock_stream_drain(s); /* the peer may think that this was heard, and look no more */
        holmes_sock_stream_lost(s, state[i]);
    }
}
