/* Life of a lane, but for its rise (sock_rise.c) and its data (sock_data.c). */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../oob.h"
#include "clock.h"
#include "log.h"
#include "sock_ops.h"

#define LINGER_MS      500 /* while nothing moves */
#define LINGER_MOST_MS 10000
#define DISCARDS       256 /* reads: control of a mebibyte */

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

/* NICs that are looked after together from here on. wn->lock held. */
static int mate_add(struct wire_nic *wn, struct wire_nic *mate)
{
    int i = 0;

    while (i < wn->nmates && wn->mates[i] != mate)
        i++;
    if (i == SOCK_MATES_MAX)
        return -ENOSPC;
    if (i == wn->nmates) {
        wn->mates[wn->nmates++] = mate;
        wn->mate_lanes[i] = 0;
    }
    wn->mate_lanes[i]++;
    return 0;
}

/* One that no lane uses any more is forgotten. wn->lock held. */
static void mate_remove(struct wire_nic *wn, const struct wire_nic *mate)
{
    int i = 0;

    while (wn->mates[i] != mate)
        i++;
    if (--wn->mate_lanes[i] > 0)
        return;
    wn->nmates--;
    wn->mates[i] = wn->mates[wn->nmates];
    wn->mate_lanes[i] = wn->mate_lanes[wn->nmates];
}

/* The lock of its own NIC held. */
static void lane_leave_mates(struct wire_lane *lane)
{
    while (lane->nwns > 1)
        mate_remove(lane->wn, lane->wns[--lane->nwns]);
}

static int lane_take_nics(struct wire_lane *lane, struct wire_nic *wn,
                          const struct wire_lane_params *params)
{
    int rc = 0;

    lane->wn = wn;
    lane->wns[lane->nwns++] = wn;
    pthread_mutex_lock(&wn->lock);
    for (int i = 0; params && i < params->nmates && rc == 0; i++) {
        rc = mate_add(wn, params->mates[i]);
        if (rc == 0)
            lane->wns[lane->nwns++] = params->mates[i];
    }
    if (rc != 0)
        lane_leave_mates(lane);
    pthread_mutex_unlock(&wn->lock);
    return rc;
}

static void gates_open(struct wire_lane *lane)
{
    for (int i = 0; i < lane->nwns; i++) {
        struct sock_gate *gate = &lane->gates[i];

        *gate = (struct sock_gate){.wn = lane->wns[i], .lane = lane};
        pthread_mutex_lock(&gate->wn->lock);
        holmes_list_append(&gate->wn->gates, &gate->node);
        pthread_mutex_unlock(&gate->wn->lock);
    }
}

int holmes_sock_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                            const struct wire_lane_params *params, void *blob, size_t *blob_len,
                            struct wire_lane **out)
{
    int streams = params && params->streams > 0 ? params->streams : 1, rc = 0;
    struct sock_peer self = {.role = role};
    struct wire_lane *lane;

    if (streams > SOCK_STREAMS_MAX || (params && params->nmates > HOLMES_BUNDLE_MAX - 1))
        return -EINVAL;
    lane = calloc(1, sizeof *lane);
    if (!lane)
        return -ENOMEM;
    if (role == WIRE_ACCEPT)
        rc = tcp_secret_make(&lane->secret);
    if (rc == 0)
        rc = lane_take_nics(lane, wn, params);
    if (rc != 0) {
        free(lane);
        return rc;
    }
    lane->cq = cq;
    lane->role = role;
    pthread_mutex_init(&lane->lock, NULL);
    atomic_init(&lane->status, -EAGAIN);
    /* The connecting end learns the number from the accepting one. */
    streams_init(lane, role == WIRE_ACCEPT ? streams : 0);
    self.streams = lane->nstreams;
    self.secret = lane->secret;
    for (int i = 0; i < lane->nwns; i++)
        self.addrs[self.naddrs++] = lane->wns[i]->listen;
    *blob_len = holmes_sock_blob_encode(&self, blob);
    holmes_list_append(&cq->lanes, &lane->in_cq);
    holmes_list_init(&lane->node);
    if (role == WIRE_ACCEPT)
        gates_open(lane);
    *out = lane;
    return 0;
}

void holmes_sock_lane_via(struct wire_lane *lane, const struct holmes_addr *peer)
{
    lane->via = *peer;
}

static int dial_all(struct wire_lane *lane, const struct sock_peer *peer)
{
    struct sock_pair pairs[SOCK_PAIRS_MAX];
    int n = holmes_sock_pairs(lane->wns, lane->nwns, peer, pairs), rc = n < 0 ? n : 0;

    pthread_mutex_lock(&lane->wn->lock);
    if (rc == 0 && lane->nstreams > 0)
        rc = -EISCONN;
    if (rc == 0) {
        lane->secret = peer->secret;
        streams_init(lane, peer->streams);
        holmes_list_append(&lane->wn->dialing, &lane->node);
    }
    for (int i = 0; rc == 0 && i < lane->nstreams; i++)
        rc = holmes_sock_stream_dial(&lane->streams[i], &pairs[i % n]);
    pthread_mutex_unlock(&lane->wn->lock);
    return rc;
}

int holmes_sock_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len)
{
    struct sock_peer peer;
    int rc = holmes_sock_blob_decode(blob, blob_len, &peer);

    if (rc == 0 && peer.role == lane->role)
        rc = -EPROTO;
    if (rc != 0 || lane->role == WIRE_ACCEPT)
        return rc;
    for (int i = 0; i < peer.naddrs; i++)
        tcp_take_via(&lane->via, &peer.addrs[i]);
    return dial_all(lane, &peer);
}

int holmes_sock_lane_poll(struct wire_lane *lane)
{
    return atomic_load_explicit(&lane->status, memory_order_acquire);
}

int holmes_sock_lane_streams(const struct wire_lane *lane)
{
    return lane->nstreams;
}

/* The peer takes nothing any more. */
static bool stream_is_gone(const struct sock_stream *s)
{
    struct pollfd p = {.fd = s->fd};

    return s->lost == 0 && poll(&p, 1, 0) > 0 && p.revents & (POLLERR | POLLHUP);
}

/* Bytes of the stream that the peer's kernel does not have. */
static uint64_t stream_left(const struct sock_stream *s)
{
    int queued = 0;
    uint64_t left = 0;

    for (unsigned i = s->first; i != s->end; i++)
        left += sizeof(struct sock_head) + s->hand[i % SOCK_BATCH].head.len;
    left -= s->done;
    if (s->lost == 0 && ioctl(s->fd, SIOCOUTQ, &queued) == 0)
        left += (uint64_t)queued;
    return left;
}

/* Gives the kernel what it takes. False: a stream of the lane is gone. */
static bool linger_look(struct wire_lane *lane, uint64_t *left)
{
    bool there = true;

    holmes_sock_lane_send(lane, true, true);
    *left = lane->out.waiting;
    for (int i = 0; i < lane->nstreams; i++) {
        there = there && !stream_is_gone(&lane->streams[i]);
        *left += stream_left(&lane->streams[i]);
    }
    return there && holmes_sock_lane_poll(lane) == 0;
}

/* Each lane may wait. But many are closed one after the other, and after one that waited in vain,
 * time counts from the last post: a living peer's kernel would have it. */
static uint64_t linger_deadline(const struct wire_lane *lane)
{
    uint64_t now = holmes_now_ns(), in_vain = atomic_load(&lane->wn->lingered_ns);

    if (in_vain == 0 || now - in_vain > LINGER_MS * 1000000ull)
        return now + LINGER_MS * 1000000ull;
    return lane->out.posted_ns + LINGER_MS * 1000000ull;
}

/* Nothing is unread then, so that closing resets nothing and the kernel goes on sending. */
static void stream_discard(struct sock_stream *s)
{
    char unread[4096];

    for (int i = 0; i < DISCARDS; i++) {
        if (recv(s->fd, unread, sizeof unread, MSG_DONTWAIT) <= 0)
            return;
    }
}

/* Writes may be said to be done before the peer has them: copied ones, and those of a lane of one
 * stream. To close a stream whose own unread bytes are still here resets it, which would drop what
 * is on its way: so that waits, as long as it takes a living peer's kernel to have it. */
void holmes_sock_lane_linger(struct wire_lane *lane)
{
    uint64_t end = holmes_deadline_ms(LINGER_MOST_MS), idle_end, left, least = UINT64_MAX;
    bool late = false;

    sock_lane_lock(lane);
    idle_end = linger_deadline(lane);
    if (lane->out.posted == lane->out.landed)
        least = 0;
    while (least > 0 && !late && linger_look(lane, &left)) {
        if (left < least && least != UINT64_MAX)
            idle_end = holmes_deadline_ms(LINGER_MS);
        least = left < least ? left : least;
        late = least > 0 && holmes_deadline_passed(idle_end < end ? idle_end : end);
        sock_lane_unlock(lane);
        if (least > 0 && !late)
            poll(NULL, 0, 1);
        sock_lane_lock(lane);
    }
    for (int i = 0; late && i < lane->nstreams; i++)
        stream_discard(&lane->streams[i]);
    sock_lane_unlock(lane);
    if (late)
        atomic_store(&lane->wn->lingered_ns, holmes_now_ns());
}

bool holmes_sock_lane_settled(struct wire_lane *lane)
{
    bool through = true;

    if (lane->nstreams == 1 || holmes_sock_lane_poll(lane) != 0)
        return true;
    for (int i = 0; through && i < lane->nstreams; i++)
        through = stream_left(&lane->streams[i]) == 0;
    return through;
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
    holmes_list_remove(&lane->in_cq);
    pthread_mutex_lock(&wn->lock);
    holmes_list_remove(&lane->node);
    pthread_mutex_unlock(&wn->lock);
    for (int i = 0; lane->role == WIRE_ACCEPT && i < lane->nwns; i++) {
        pthread_mutex_lock(&lane->gates[i].wn->lock);
        holmes_list_remove(&lane->gates[i].node);
        pthread_mutex_unlock(&lane->gates[i].wn->lock);
    }
    pthread_mutex_lock(&wn->lock);
    lane_leave_mates(lane);
    pthread_mutex_unlock(&wn->lock);
    for (int i = 0; i < lane->nstreams; i++) {
        stream_close(&lane->streams[i]);
        free(lane->streams[i].dealt.at);
    }
    free(lane->out.again.at);
    free(lane->out.ring);
    free(lane->out.copies.bytes);
    holmes_sock_receiver_fini(&lane->in);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}
