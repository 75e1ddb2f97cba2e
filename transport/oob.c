/* Non-blocking framed sockets for the handshake and for watching the peer's life. */
#include "oob.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "env.h"

/* ---- sockets that a forked child must not hold ---- */

/* A bitmap by descriptor number: the child handler may not allocate and must find all of them. Its
 * pages hold nothing else: libibverbs keeps those from children where something is registered. It
 * only grows. Adding and removing happen under the lock, which the fork handlers hold across the
 * fork, so that the child sees a whole map. */
static struct {
    pthread_mutex_t lock;
    uint64_t *bits;
    size_t words;
} guard = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t guard_once = PTHREAD_ONCE_INIT;

static void guard_before_fork(void)
{
    pthread_mutex_lock(&guard.lock);
}

static void guard_in_parent(void)
{
    pthread_mutex_unlock(&guard.lock);
}

static void guard_in_child(void)
{
    for (size_t w = 0; w < guard.words; w++) {
        for (int b = 0; b < 64; b++) {
            if (guard.bits[w] >> b & 1)
                close((int)(w * 64) + b);
        }
        guard.bits[w] = 0;
    }
    pthread_mutex_unlock(&guard.lock);
}

static void guard_install(void)
{
    pthread_atfork(guard_before_fork, guard_in_parent, guard_in_child);
}

#define GUARD_STEP 512 /* words */

static void guard_grow(size_t words)
{
    uint64_t *bits = mmap(NULL, words * sizeof *bits, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (bits == MAP_FAILED)
        return;
    if (guard.words > 0) {
        memcpy(bits, guard.bits, guard.words * sizeof *bits);
        munmap(guard.bits, guard.words * sizeof *bits);
    }
    guard.bits = bits;
    guard.words = words;
}

void oob_fork_guard_add(int fd)
{
    size_t word = (size_t)fd / 64;

    pthread_once(&guard_once, guard_install);
    pthread_mutex_lock(&guard.lock);
    if (word >= guard.words)
        guard_grow((word / GUARD_STEP + 1) * GUARD_STEP);
    if (word < guard.words)
        guard.bits[word] |= 1ull << (fd % 64);
    pthread_mutex_unlock(&guard.lock);
}

/* Removed before it is closed, or another thread's new socket of the same number would lose its
 * entry. */
void oob_fork_guard_remove(int fd)
{
    pthread_mutex_lock(&guard.lock);
    if ((size_t)fd / 64 < guard.words)
        guard.bits[fd / 64] &= ~(1ull << (fd % 64));
    pthread_mutex_unlock(&guard.lock);
}

/* ---- life ---- */

/* Keepalive lets the peer's kernel answer for a process that is stopped or busy, and notices a cut
 * link when nothing is in flight; TCP_USER_TIMEOUT does so when something is. */
void oob_peer_timeout(int fd)
{
    int timeout_s = (int)holmes_env_int(HOLMES_ENV_PEER_TIMEOUT);
    int idle_s = timeout_s / 3 > 0 ? timeout_s / 3 : 1;
    int interval_s = timeout_s / 6 > 0 ? timeout_s / 6 : 1;
    int probes = (timeout_s - idle_s) / interval_s > 0 ? (timeout_s - idle_s) / interval_s : 1;
    int on = 1, user_ms = timeout_s * 1000;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void oob_reset(struct oob *o, int fd)
{
    o->fd = fd;
    o->in_done = o->out_len = o->out_done = 0;
}

void oob_init(struct oob *o, int fd)
{
    oob_reset(o, fd);
    oob_peer_timeout(fd);
    oob_fork_guard_add(fd);
}

void oob_close(struct oob *o)
{
    if (o->fd < 0)
        return;
    oob_fork_guard_remove(o->fd);
    close(o->fd);
    oob_reset(o, -1);
}

void oob_move(struct oob *to, struct oob *from)
{
    *to = *from;
    oob_reset(from, -1);
}

/* ---- dialing ---- */

int oob_dial(struct oob *o, const struct holmes_addr *source, const struct holmes_addr *peer)
{
    int fd = socket(peer->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int rc = 0;

    oob_reset(o, -1);
    if (fd < 0)
        return -errno;
    if (source && source->sa.sa_family == peer->sa.sa_family) {
        struct holmes_addr any_port = *source;
        int on = 1;

        if (any_port.sa.sa_family == AF_INET)
            any_port.in.sin_port = 0;
        else
            any_port.in6.sin6_port = 0;
        /* The port is chosen at connect, where it only has to be unique per destination. */
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        if (bind(fd, &any_port.sa, holmes_addr_len(&any_port)) != 0)
            rc = -errno;
    }
    if (rc == 0 && connect(fd, &peer->sa, holmes_addr_len(peer)) != 0 && errno != EINPROGRESS)
        rc = -errno;
    if (rc != 0) {
        close(fd);
        return rc;
    }
    oob_init(o, fd);
    return 0;
}

int oob_dial_poll(struct oob *o)
{
    struct pollfd p = {.fd = o->fd, .events = POLLOUT};
    int error = 0;
    socklen_t len = sizeof error;

    if (poll(&p, 1, 0) <= 0)
        return -EAGAIN;
    if (getsockopt(o->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        return -errno;
    return -error;
}

/* ---- frames ---- */

int oob_flush(struct oob *o)
{
    while (o->out_done < o->out_len) {
        ssize_t n = send(o->fd, o->out + o->out_done, o->out_len - o->out_done,
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? -EAGAIN : errno == EPIPE ? -ECONNRESET : -errno;
        o->out_done += (size_t)n;
    }
    o->out_len = o->out_done = 0;
    return 0;
}

int oob_send(struct oob *o, enum proto_type type, const void *payload)
{
    int size = proto_payload_size((uint16_t)type);
    struct proto_frame f = {.magic = PROTO_FRAME_MAGIC,
                            .version = PROTO_VERSION,
                            .type = (uint16_t)type,
                            .length = (uint32_t)size};
    int rc;

    if (o->fd < 0)
        return -ENOTCONN;
    if (o->out_len + sizeof f + (size_t)size > sizeof o->out)
        return -ENOBUFS;
    memcpy(o->out + o->out_len, &f, sizeof f);
    if (size > 0)
        memcpy(o->out + o->out_len + sizeof f, payload, (size_t)size);
    o->out_len += sizeof f + (size_t)size;
    rc = oob_flush(o);
    return rc == -EAGAIN ? 0 : rc;
}

/* Reads up to `want` bytes of the current frame in all; header and payload lie apart. */
static int recv_until(struct oob *o, size_t want)
{
    while (o->in_done < want) {
        uint8_t *to = o->in_done < sizeof o->in_frame
                          ? (uint8_t *)&o->in_frame + o->in_done
                          : o->in_payload + (o->in_done - sizeof o->in_frame);
        ssize_t n = recv(o->fd, to, want - o->in_done, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? -EAGAIN : -errno;
        if (n == 0)
            return -ECONNRESET;
        o->in_done += (size_t)n;
    }
    return 0;
}

int oob_recv(struct oob *o, char *why, size_t why_len)
{
    int rc;

    if (o->fd < 0)
        return -ENOTCONN;
    if (o->in_done >= sizeof o->in_frame && o->in_done == sizeof o->in_frame + o->in_frame.length)
        o->in_done = 0; /* the last one was taken */
    rc = recv_until(o, sizeof o->in_frame);
    if (rc == 0)
        rc = proto_frame_check(&o->in_frame, why, why_len);
    if (rc == 0)
        rc = recv_until(o, sizeof o->in_frame + o->in_frame.length);
    if (rc == -ECONNRESET || rc == -ETIMEDOUT)
        snprintf(why, why_len, "%s",
                 rc == -ETIMEDOUT ? "its kernel does not answer" : "it closed the connection");
    return rc;
}

/* ---- addresses ---- */

const char *oob_addr_text(const struct sockaddr *sa, char *buf, size_t len)
{
    char ip[INET6_ADDRSTRLEN] = "?";

    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)sa;

        inet_ntop(AF_INET, &in->sin_addr, ip, sizeof ip);
        snprintf(buf, len, "%s:%u", ip, ntohs(in->sin_port));
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)sa;

        inet_ntop(AF_INET6, &in6->sin6_addr, ip, sizeof ip);
        snprintf(buf, len, "[%s]:%u", ip, ntohs(in6->sin6_port));
    } else {
        snprintf(buf, len, "unknown");
    }
    return buf;
}

/* An IPv4 peer of a dual-stack listener shows as ::ffff:a.b.c.d. */
static void unmap(struct holmes_addr *a)
{
    struct sockaddr_in in = {.sin_family = AF_INET};

    if (a->sa.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
        return;
    in.sin_port = a->in6.sin6_port;
    memcpy(&in.sin_addr, &a->in6.sin6_addr.s6_addr[12], 4);
    a->in = in;
}

void oob_local_addr(const struct oob *o, struct holmes_addr *out)
{
    socklen_t len = sizeof out->in6;

    memset(out, 0, sizeof *out);
    if (getsockname(o->fd, &out->sa, &len) == 0)
        unmap(out);
}

void oob_peer_addr(const struct oob *o, struct holmes_addr *out)
{
    socklen_t len = sizeof out->in6;

    memset(out, 0, sizeof *out);
    if (getpeername(o->fd, &out->sa, &len) == 0)
        unmap(out);
}
