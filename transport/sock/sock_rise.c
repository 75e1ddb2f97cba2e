/* How lanes rise: the connecting end dials and quotes the accepting lane's secret, the accepting
 * end answers. Streams of strangers are read no further than their request, and are few.
 *
 *     connecting end                                   accepting end
 *                                                      secret made with the lane
 *     <------------------ blob: address, secret ------------------------------
 *     connect ------------- request: secret -------->  the lane takes the stream
 *     up      <------------ answer -----------------   up
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../oob.h"
#include "clock.h"
#include "env.h"
#include "log.h"
#include "sock_ops.h"

#define ACCEPTS_MAX      64    /* in one go, so that a flood cannot keep the caller here */
#define ACCEPT_IDLE_MS   100   /* how long strangers may have to wait for their refusal */
#define SILENCE_LIMIT_MS 60000 /* a true peer sends its request as soon as it polls its connect */

static void answer_make(uint8_t out[SOCK_ANSWER_LEN])
{
    static const uint8_t answer[SOCK_ANSWER_LEN] = {'H', 'S', 'O', 'K', TCP_PEER_VERSION};

    memcpy(out, answer, sizeof answer);
}

/* No delay, the peer time-out, closed in forked children. */
static void stream_prepare(int fd)
{
    int on = 1, user_ms = (int)holmes_env_int(HOLMES_ENV_PEER_TIMEOUT) * 1000;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms);
    oob_fork_guard_add(fd);
}

/* 1 all of it has been sent or read, 0 not yet, or a negative errno. */
static int shake(struct wire_lane *lane, bool send_it, size_t len)
{
    while (lane->shaken < len) {
        uint8_t *at = lane->shake + lane->shaken;
        ssize_t n = send_it ? send(lane->fd, at, len - lane->shaken, MSG_NOSIGNAL)
                            : recv(lane->fd, at, len - lane->shaken, 0);

        if (n > 0)
            lane->shaken += (size_t)n;
        else if (n == 0)
            return -ECONNREFUSED; /* the peer's way to say no */
        else if (errno != EINTR)
            return errno == EAGAIN ? 0 : errno == ECONNRESET ? -ECONNREFUSED : -errno;
    }
    lane->shaken = 0;
    return 1;
}

/* ---- the connecting end ---- */

int holmes_sock_lane_dial(struct wire_lane *lane, const struct holmes_addr *source,
                          const struct holmes_addr *to)
{
    struct holmes_addr from = *source;
    int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), rc = 0;

    if (fd < 0)
        return -errno;
    tcp_addr_set_port(&from, 0);
    if (bind(fd, &from.sa, holmes_addr_len(&from)) != 0 ||
        (connect(fd, &to->sa, holmes_addr_len(to)) != 0 && errno != EINPROGRESS))
        rc = -errno;
    if (rc == -ECONNREFUSED) { /* told later, as when it comes from another host */
        holmes_sock_lane_fail(lane, rc);
        rc = 0;
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    stream_prepare(fd);
    lane->fd = fd;
    lane->rise = SOCK_DIALING;
    lane->wn->rising++;
    return 0;
}

static int dial_done(struct wire_lane *lane)
{
    struct pollfd p = {.fd = lane->fd, .events = POLLOUT};
    socklen_t len = sizeof(int);
    int error = 0;

    if (poll(&p, 1, 0) == 0)
        return 0;
    if (getsockopt(lane->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    return error ? -error : 1;
}

static int answer_check(const struct wire_lane *lane)
{
    uint8_t expected[SOCK_ANSWER_LEN];

    answer_make(expected);
    return memcmp(lane->shake, expected, sizeof expected) == 0 ? 1 : -EPROTO;
}

static void lane_rise(struct wire_lane *lane)
{
    int rc = holmes_sock_lane_poll(lane) == -EAGAIN ? 1 : -ECANCELED;

    if (rc > 0 && lane->rise == SOCK_DIALING) {
        rc = dial_done(lane);
        if (rc > 0) {
            tcp_request_encode(SOCK_MAGIC, lane->secret, lane->shake);
            lane->rise = SOCK_ASKING;
        }
    }
    if (rc > 0 && lane->rise == SOCK_ASKING) {
        rc = shake(lane, true, TCP_REQUEST_LEN);
        if (rc > 0)
            lane->rise = SOCK_LISTENING;
    }
    if (rc > 0 && lane->rise == SOCK_LISTENING) {
        rc = shake(lane, false, SOCK_ANSWER_LEN);
        if (rc > 0)
            rc = answer_check(lane);
    }
    if (rc == 0)
        return;
    lane->rise = SOCK_RISEN;
    lane->wn->rising--;
    if (rc < 0)
        holmes_sock_lane_fail(lane, rc);
    else
        atomic_store_explicit(&lane->status, 0, memory_order_release);
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

static struct wire_lane *lane_by_secret(struct wire_nic *wn, uint64_t secret)
{
    holmes_list_each(lane, tmp, &wn->lanes, struct wire_lane, node)
    {
        if (lane->role == WIRE_ACCEPT && lane->secret == secret &&
            holmes_sock_lane_poll(lane) == -EAGAIN)
            return lane;
    }
    return NULL;
}

static void stranger_admit(struct wire_nic *wn, struct sock_stranger *s)
{
    uint8_t answer[SOCK_ANSWER_LEN];
    struct wire_lane *lane;
    uint64_t secret;

    if (tcp_request_decode(SOCK_MAGIC, s->request, s->len, &secret) != 0) {
        stranger_refuse(wn, s, "its request is not ours");
        return;
    }
    lane = lane_by_secret(wn, secret);
    if (!lane) {
        stranger_refuse(wn, s, "it quotes no secret of a waiting lane");
        return;
    }
    lane->secret = 0; /* quoted once */
    wn->waiting--;
    lane->rise = SOCK_RISEN;
    lane->fd = s->fd;
    s->fd = -1;
    answer_make(answer);
    /* The first bytes of a stream always find room. */
    if (send(lane->fd, answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
        holmes_sock_lane_fail(lane, -ECONNRESET);
    else
        atomic_store_explicit(&lane->status, 0, memory_order_release);
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
    holmes_list_each(lane, tmp, &wn->lanes, struct wire_lane, node)
    {
        if (lane->role == WIRE_ACCEPT && lane->secret != 0)
            holmes_sock_lane_fail(lane, error);
    }
}

static void accept_all(struct wire_nic *wn, uint64_t now)
{
    if (wn->waiting == 0 && now < wn->next_accept_ns)
        return;
    wn->next_accept_ns = now + ACCEPT_IDLE_MS * 1000000ull;
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(wn->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            waiting_fail(wn, -errno);
        if (fd < 0)
            return;
        stream_prepare(fd);
        wn->strangers[wn->nstrangers] = (struct sock_stranger){.fd = fd, .since_ns = now};
        /* Most have said it already. */
        stranger_read(wn, &wn->strangers[wn->nstrangers++], now);
        strangers_forget_closed(wn);
        if (wn->nstrangers > SOCK_STRANGERS_MAX) /* the oldest makes room */
            stranger_refuse(wn, &wn->strangers[0], "too many that say nothing");
        strangers_forget_closed(wn);
    }
}

void holmes_sock_strangers_close(struct wire_nic *wn)
{
    for (int i = 0; i < wn->nstrangers; i++)
        stranger_refuse(wn, &wn->strangers[i], "closing");
    wn->nstrangers = 0;
}

void holmes_sock_nic_progress(struct wire_nic *wn)
{
    uint64_t now;

    /* Another thread that holds the lock does the same or closes a lane. */
    if (pthread_mutex_trylock(&wn->lock) != 0)
        return;
    now = holmes_now_ns();
    for (int i = 0; i < wn->nstrangers; i++)
        stranger_read(wn, &wn->strangers[i], now);
    strangers_forget_closed(wn);
    accept_all(wn, now);
    if (wn->rising > 0)
        holmes_list_each(lane, tmp, &wn->lanes, struct wire_lane, node)
        {
            if (lane->rise != SOCK_WAITING && lane->rise != SOCK_RISEN)
                lane_rise(lane);
        }
    pthread_mutex_unlock(&wn->lock);
}
