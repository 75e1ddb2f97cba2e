/* How lanes rise: the connecting end dials each stream and quotes the accepting lane's secret, the
 * accepting end answers. Streams of strangers are read no further than their request, and are few.
 *
 *     connecting end                                   accepting end
 *                                                      secret made with the lane
 *     <------------- blob: address, number of streams, secret ----------------
 *     connect --------- request: secret + i -------->  the lane takes it as stream i
 *             <------------ answer -----------------
 *     up, when all streams are                         up, when all streams are
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../oob.h"
#include "clock.h"
#include "env.h"
#include "log.h"
#include "sock_ops.h"

#define ACCEPTS_MAX      64  /* in one go, so that a flood cannot keep the caller here */
#define ACCEPT_IDLE_MS   100 /* how long strangers may have to wait for their refusal */
#define UNSENT_MAX       (128 * 1024)
#define SILENCE_LIMIT_MS 60000 /* a true peer sends its request as soon as it polls its connect */

static void answer_make(uint8_t out[SOCK_ANSWER_LEN])
{
    static const uint8_t answer[SOCK_ANSWER_LEN] = {'H', 'S', 'O', 'K', TCP_PEER_VERSION};

    memcpy(out, answer, sizeof answer);
}

static void fd_prepare(int fd)
{
    oob_peer_timeout(fd);
    oob_fork_guard_add(fd);
}

/* 1 all of it has been sent or read, 0 not yet, or a negative errno. */
static int shake(struct sock_stream *s, bool send_it, size_t len)
{
    while (s->shaken < len) {
        uint8_t *at = s->shake + s->shaken;
        ssize_t n = send_it ? send(s->fd, at, len - s->shaken, MSG_NOSIGNAL)
                            : recv(s->fd, at, len - s->shaken, 0);

        if (n > 0)
            s->shaken += (size_t)n;
        else if (n == 0)
            return -ECONNREFUSED; /* the peer's way to say no */
        else if (errno != EINTR)
            return errno == EAGAIN ? 0 : errno == ECONNRESET ? -ECONNREFUSED : -errno;
    }
    s->shaken = 0;
    return 1;
}

/* The last stream to rise, up or not, decides for the lane. */
static void stream_risen(struct sock_stream *s, int error)
{
    struct wire_lane *lane = s->lane;

    s->rise = SOCK_RISEN;
    if (error != 0)
        holmes_sock_lane_fail(lane, error);
    else if (atomic_fetch_add(&lane->nrisen, 1) + 1 == lane->nstreams)
        tcp_status_up(&lane->status);
}

static bool is_within_host(const struct sock_stream *s)
{
    struct holmes_addr own = {.prefix_len = 0};
    socklen_t len = sizeof own.in6;

    if (getsockname(s->fd, &own.sa, &len) != 0 || own.sa.sa_family != s->peer.sa.sa_family)
        return false;
    return own.sa.sa_family == AF_INET
               ? own.in.sin_addr.s_addr == s->peer.in.sin_addr.s_addr
               : memcmp(&own.in6.sin6_addr, &s->peer.in6.sin6_addr, sizeof own.in6.sin6_addr) == 0;
}

/* Between two processes of a host there is no congestion, and pacing (BBR) only costs: Reno has
 * none and is always allowed. With several streams a slow one must not take more than it moves
 * soon, nor its kernel hide it: only so much is buffered unsent. What the accepting end sends is
 * clear-to-sends and counts, and its acknowledgements: they go before bulk where a queue knows
 * priorities (TC_PRIO_INTERACTIVE).
 */
static void stream_tune(struct sock_stream *s)
{
    int unsent = UNSENT_MAX, interactive = 6;
    socklen_t len = sizeof s->peer.in6;

    getpeername(s->fd, &s->peer.sa, &len);
    if (is_within_host(s))
        setsockopt(s->fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    if (s->lane->role == WIRE_ACCEPT)
        setsockopt(s->fd, SOL_SOCKET, SO_PRIORITY, &interactive, sizeof interactive);
    else if (s->lane->nstreams > 1)
        setsockopt(s->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
}

/* ---- the connecting end ---- */

int holmes_sock_stream_dial(struct sock_stream *s, const struct sock_pair *way)
{
    struct holmes_addr from = way->from;
    int fd = socket(from.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), rc = 0;

    if (fd < 0)
        return -errno;
    tcp_addr_set_port(&from, 0);
    if (bind(fd, &from.sa, holmes_addr_len(&from)) != 0 ||
        (connect(fd, &way->to.sa, holmes_addr_len(&way->to)) != 0 && errno != EINPROGRESS))
        rc = -errno;
    if (rc == -ECONNREFUSED) { /* told later, as when it comes from another host */
        holmes_sock_lane_fail(s->lane, rc);
        rc = 0;
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    fd_prepare(fd);
    s->fd = fd;
    s->wn = way->wn;
    s->rise = SOCK_DIALING;
    return 0;
}

static int dial_done(const struct sock_stream *s)
{
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};
    socklen_t len = sizeof(int);
    int error = 0;

    if (poll(&p, 1, 0) == 0)
        return 0;
    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    return error ? -error : 1;
}

static int answer_check(const struct sock_stream *s)
{
    uint8_t expected[SOCK_ANSWER_LEN];

    answer_make(expected);
    return memcmp(s->shake, expected, sizeof expected) == 0 ? 1 : -EPROTO;
}

static void stream_rise(struct sock_stream *s)
{
    int rc = holmes_sock_lane_poll(s->lane) == -EAGAIN ? 1 : -ECANCELED;

    if (rc > 0 && s->rise == SOCK_DIALING) {
        rc = dial_done(s);
        if (rc > 0) {
            stream_tune(s);
            tcp_request_encode(SOCK_MAGIC, s->lane->secret + (uint64_t)(s - s->lane->streams),
                               s->shake);
            s->rise = SOCK_ASKING;
        }
    }
    if (rc > 0 && s->rise == SOCK_ASKING) {
        rc = shake(s, true, TCP_REQUEST_LEN);
        if (rc > 0)
            s->rise = SOCK_LISTENING;
    }
    if (rc > 0 && s->rise == SOCK_LISTENING) {
        rc = shake(s, false, SOCK_ANSWER_LEN);
        if (rc > 0)
            rc = answer_check(s);
    }
    if (rc == 0)
        return;
    stream_risen(s, rc < 0 ? rc : 0);
}

static void lane_rise(struct wire_lane *lane)
{
    for (int i = 0; i < lane->nstreams; i++) {
        struct sock_stream *s = &lane->streams[i];

        if (s->rise != SOCK_WAITING && s->rise != SOCK_RISEN)
            stream_rise(s);
    }
    if (holmes_sock_lane_poll(lane) != -EAGAIN)
        holmes_list_remove(&lane->node);
}

/* ---- the accepting end ---- */

static void stranger_refuse(struct wire_nic *wn, struct sock_stranger *s, const char *reason)
{
    struct holmes_addr peer = {.prefix_len = 0};
    socklen_t len = sizeof peer.in6;
    char text[64] = "an unknown peer";

    if (getpeername(s->fd, &peer.sa, &len) == 0)
        oob_addr_text(&peer.sa, text, sizeof text);
    holmes_warn(NET, "nic %s: a stream from %s is closed: %s", wn->nic.name, text, reason);
    oob_fork_guard_remove(s->fd);
    close(s->fd);
    s->fd = -1;
}

/* Lanes that are up or have failed need their gates no more. */
static void gates_shut(struct wire_nic *wn)
{
    holmes_list_each(gate, tmp, &wn->gates, struct sock_gate, node)
    {
        if (holmes_sock_lane_poll(gate->lane) != -EAGAIN)
            holmes_list_remove(&gate->node);
    }
}

/* The waiting stream that the secret belongs to; it waits no more. Another NIC of its lane may look
 * at the same time. */
static struct sock_stream *stream_by_secret(struct wire_nic *wn, uint64_t secret)
{
    holmes_list_each(gate, tmp, &wn->gates, struct sock_gate, node)
    {
        struct wire_lane *lane = gate->lane;
        uint64_t i = secret - lane->secret;
        enum sock_rise waiting = SOCK_WAITING;

        if (i < (uint64_t)lane->nstreams && holmes_sock_lane_poll(lane) == -EAGAIN &&
            atomic_compare_exchange_strong(&lane->streams[i].rise, &waiting, SOCK_LISTENING))
            return &lane->streams[i];
    }
    return NULL;
}

static void stranger_admit(struct wire_nic *wn, struct sock_stranger *stranger)
{
    uint8_t answer[SOCK_ANSWER_LEN];
    struct sock_stream *s;
    uint64_t secret;

    if (tcp_request_decode(SOCK_MAGIC, stranger->request, stranger->len, &secret) != 0) {
        stranger_refuse(wn, stranger, "its request is not ours");
        return;
    }
    s = stream_by_secret(wn, secret);
    if (!s) {
        stranger_refuse(wn, stranger, "it quotes no secret of a waiting lane");
        return;
    }
    s->fd = stranger->fd;
    s->wn = wn;
    stranger->fd = -1;
    stream_tune(s);
    answer_make(answer);
    /* The first bytes of a stream always find room. */
    stream_risen(
        s, send(s->fd, answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer ? 0 : -ECONNRESET);
}

static void stranger_read(struct wire_nic *wn, struct sock_stranger *s, uint64_t now)
{
    ssize_t n = recv(s->fd, s->request + s->len, sizeof s->request - s->len, 0);

    if (n > 0)
        s->len += (size_t)n;
    if (n == 0)
        stranger_refuse(wn, s, "it ended before its request");
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        stranger_refuse(wn, s, holmes_strerror(-errno));
    else if (s->len == sizeof s->request)
        stranger_admit(wn, s);
    else if (now - s->since_ns > SILENCE_LIMIT_MS * 1000000ull)
        stranger_refuse(wn, s, "it said nothing for a minute");
}

static void strangers_forget_closed(struct wire_nic *wn)
{
    int kept = 0;

    for (int i = 0; i < wn->nstrangers; i++)
        if (wn->strangers[i].fd >= 0)
            wn->strangers[kept++] = wn->strangers[i];
    wn->nstrangers = kept;
}

/* Whose stream it is that no descriptor is left for is not known. */
static void waiting_fail(struct wire_nic *wn, int error)
{
    holmes_list_each(gate, tmp, &wn->gates, struct sock_gate, node)
        holmes_sock_lane_fail(gate->lane, error);
}

/* Those that are awaited are no strangers, but which they are shows only when they speak. */
static int strangers_max(struct wire_nic *wn)
{
    int n = SOCK_STRANGERS_MAX;

    holmes_list_each(gate, tmp, &wn->gates, struct sock_gate, node) n +=
        gate->lane->nstreams - atomic_load(&gate->lane->nrisen);
    return n;
}

static bool stranger_add(struct wire_nic *wn, int fd, uint64_t now)
{
    if (wn->nstrangers == wn->strangers_cap) {
        int cap = wn->strangers_cap > 0 ? 2 * wn->strangers_cap : SOCK_STRANGERS_MAX;
        struct sock_stranger *more = realloc(wn->strangers, (size_t)cap * sizeof *more);

        if (!more)
            return false;
        wn->strangers = more;
        wn->strangers_cap = cap;
    }
    wn->strangers[wn->nstrangers++] = (struct sock_stranger){.fd = fd, .since_ns = now};
    return true;
}

static void accept_all(struct wire_nic *wn, uint64_t now)
{
    if (holmes_list_empty(&wn->gates) && now < wn->next_accept_ns)
        return;
    wn->next_accept_ns = now + ACCEPT_IDLE_MS * 1000000ull;
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(wn->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            waiting_fail(wn, -errno);
        if (fd < 0)
            return;
        fd_prepare(fd);
        if (!stranger_add(wn, fd, now)) {
            oob_fork_guard_remove(fd);
            close(fd);
            return;
        }
        /* Most have said it already. */
        stranger_read(wn, &wn->strangers[wn->nstrangers - 1], now);
        strangers_forget_closed(wn);
    }
}

/* The oldest make room. */
static void strangers_bound(struct wire_nic *wn)
{
    int many = wn->nstrangers > SOCK_STRANGERS_MAX ? wn->nstrangers - strangers_max(wn) : 0;

    for (int i = 0; i < many; i++)
        stranger_refuse(wn, &wn->strangers[i], "too many that say nothing");
    strangers_forget_closed(wn);
}

void holmes_sock_strangers_close(struct wire_nic *wn)
{
    for (int i = 0; i < wn->nstrangers; i++)
        stranger_refuse(wn, &wn->strangers[i], "closing");
    wn->nstrangers = 0;
}

/* Copies the NICs that are looked after together with this one. */
static int progress(struct wire_nic *wn, struct wire_nic *mates[SOCK_MATES_MAX])
{
    uint64_t now;
    int n;

    /* Another thread that holds the lock does the same or closes a lane. */
    if (pthread_mutex_trylock(&wn->lock) != 0)
        return 0;
    now = holmes_now_ns();
    for (int i = 0; i < wn->nstrangers; i++)
        stranger_read(wn, &wn->strangers[i], now);
    strangers_forget_closed(wn);
    accept_all(wn, now);
    gates_shut(wn);
    strangers_bound(wn);
    holmes_list_each(lane, tmp, &wn->dialing, struct wire_lane, node) lane_rise(lane);
    n = wn->nmates;
    memcpy(mates, wn->mates, (size_t)n * sizeof *mates);
    pthread_mutex_unlock(&wn->lock);
    return n;
}

void holmes_sock_nic_progress(struct wire_nic *wn)
{
    struct wire_nic *mates[SOCK_MATES_MAX], *theirs[SOCK_MATES_MAX];
    int n = progress(wn, mates);

    for (int i = 0; i < n; i++)
        progress(mates[i], theirs);
}
