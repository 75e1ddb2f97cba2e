/* Life of a lane, but for its rise (sock_rise.c) and its data (sock_data.c). */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../oob.h"
#include "clock.h"
#include "log.h"
#include "sock_ops.h"

#define LINGER_MS 500

void holmes_sock_lane_fail(struct wire_lane *lane, int error)
{
    if (tcp_status_fail(&lane->status, error))
        holmes_trace(NET, "nic %s: a lane ends: %s", lane->wn->nic.name, holmes_strerror(error));
}

static void streams_init(struct wire_lane *lane, int n)
{
    lane->nstreams = n;
    for (int i = 0; i < n; i++) {
        lane->streams[i].lane = lane;
        lane->streams[i].fd = -1;
    }
}

int holmes_sock_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                            const struct wire_lane_params *params, void *blob, size_t *blob_len,
                            struct wire_lane **out)
{
    int streams = params && params->streams > 0 ? params->streams : 1;
    struct tcp_blob b = {.role = role, .addr = wn->listen};
    struct wire_lane *lane;
    int rc = 0;

    if (streams > SOCK_STREAMS_MAX)
        return -EINVAL;
    lane = calloc(1, sizeof *lane);
    if (!lane)
        return -ENOMEM;
    if (role == WIRE_ACCEPT)
        rc = tcp_secret_make(&lane->secret);
    if (rc != 0) {
        free(lane);
        return rc;
    }
    lane->wn = wn;
    lane->cq = cq;
    lane->role = role;
    atomic_init(&lane->status, -EAGAIN);
    /* The connecting end learns the number from the accepting one. */
    streams_init(lane, role == WIRE_ACCEPT ? streams : 0);
    b.secret = lane->secret;
    b.streams = (uint8_t)lane->nstreams;
    *blob_len = tcp_blob_encode(SOCK_MAGIC, &b, blob);
    holmes_list_append(&cq->lanes, &lane->in_cq);
    pthread_mutex_lock(&wn->lock);
    holmes_list_append(&wn->lanes, &lane->node);
    wn->waiting += lane->nstreams;
    pthread_mutex_unlock(&wn->lock);
    *out = lane;
    return 0;
}

void holmes_sock_lane_via(struct wire_lane *lane, const struct holmes_addr *peer)
{
    lane->via = *peer;
}

/* wn->lock held. */
static int dial_all(struct wire_lane *lane, const struct tcp_blob *peer,
                    const struct holmes_addr *source)
{
    int rc = 0;

    if (lane->nstreams > 0)
        return -EISCONN;
    lane->secret = peer->secret;
    streams_init(lane, peer->streams);
    for (int i = 0; rc == 0 && i < lane->nstreams; i++)
        rc = holmes_sock_stream_dial(&lane->streams[i], source, &peer->addr);
    return rc;
}

int holmes_sock_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len)
{
    const struct holmes_addr *source;
    struct tcp_blob peer;
    int rc = tcp_blob_decode(SOCK_MAGIC, blob, blob_len, &peer);

    if (rc == 0 && (peer.role == lane->role || (peer.role == WIRE_ACCEPT) != (peer.streams > 0) ||
                    peer.streams > SOCK_STREAMS_MAX))
        rc = -EPROTO;
    if (rc != 0 || lane->role == WIRE_ACCEPT)
        return rc;
    tcp_take_via(&lane->via, &peer.addr);
    source = tcp_source_for(&lane->wn->nic, &peer.addr);
    if (!source)
        return -EAFNOSUPPORT;
    pthread_mutex_lock(&lane->wn->lock);
    rc = dial_all(lane, &peer, source);
    pthread_mutex_unlock(&lane->wn->lock);
    return rc;
}

int holmes_sock_lane_poll(struct wire_lane *lane)
{
    return atomic_load_explicit(&lane->status, memory_order_acquire);
}

int holmes_sock_lane_streams(const struct wire_lane *lane)
{
    return lane->nstreams;
}

/* Whether the peer's kernel has all that this one was given, or takes nothing any more. */
static bool stream_is_through(const struct sock_stream *s)
{
    struct pollfd p = {.fd = s->fd};
    int left = 0;

    if (poll(&p, 1, 0) > 0 && p.revents & (POLLERR | POLLHUP))
        return true;
    return ioctl(s->fd, SIOCOUTQ, &left) != 0 || left == 0;
}

/* Copied writes may be said to be done before the peer has them. To close a stream whose own unread
 * bytes are still here resets it, which would drop what is on its way: so that waits, as long as it
 * takes a living peer's kernel to have it. */
static void lane_linger(struct wire_lane *lane)
{
    uint64_t deadline = holmes_deadline_ms(LINGER_MS);
    bool through = false;

    while (!through && holmes_sock_lane_poll(lane) == 0 && !holmes_deadline_passed(deadline)) {
        through = holmes_sock_lane_send(lane, true, false) || lane->in.tell;
        for (int i = 0; i < lane->nstreams && through; i++)
            through = stream_is_through(&lane->streams[i]);
        if (!through)
            poll(NULL, 0, 1);
    }
}

static void stream_close(struct sock_stream *s)
{
    if (s->fd < 0)
        return;
    oob_fork_guard_remove(s->fd);
    close(s->fd);
    s->fd = -1;
}

void holmes_sock_lane_close(struct wire_lane *lane)
{
    struct wire_nic *wn;

    if (!lane)
        return;
    wn = lane->wn;
    if (lane->out.posted != lane->out.landed)
        lane_linger(lane);
    holmes_list_remove(&lane->in_cq);
    pthread_mutex_lock(&wn->lock);
    holmes_list_remove(&lane->node);
    for (int i = 0; i < lane->nstreams; i++) {
        enum sock_rise rise = lane->streams[i].rise;

        wn->waiting -= lane->role == WIRE_ACCEPT && rise == SOCK_WAITING;
        wn->rising -= rise != SOCK_WAITING && rise != SOCK_RISEN;
    }
    pthread_mutex_unlock(&wn->lock);
    for (int i = 0; i < lane->nstreams; i++)
        stream_close(&lane->streams[i]);
    free(lane->out.ring);
    free(lane->out.copies.bytes);
    free(lane->in.ring);
    free(lane);
}
