/* Buffers of one connection, and its socket. */
#include "rdv_peer.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"

#define OUT_MAX ((size_t)8 << 20)

static bool out_reserve(struct holmes_rdv_peer *p, size_t more)
{
    size_t cap = p->out_cap ? p->out_cap : 512;
    uint8_t *grown;

    if (p->out_at == p->out_len)
        p->out_at = p->out_len = 0;
    while (cap < p->out_len + more)
        cap *= 2;
    if (cap > OUT_MAX)
        return false;
    if (cap == p->out_cap)
        return true;
    grown = realloc(p->out, cap);
    if (!grown)
        return false;
    p->out = grown;
    p->out_cap = cap;
    return true;
}

void holmes_rdv_peer_say(struct holmes_rdv_peer *p, enum holmes_rdv_type type, uint32_t id,
                         const void *a, size_t a_len, const void *b, size_t b_len)
{
    struct holmes_rdv_header h = {(uint32_t)(a_len + b_len), type, id};

    if (!out_reserve(p, HOLMES_RDV_HEADER + a_len + b_len)) {
        p->doomed = true;
        return;
    }
    holmes_rdv_header_write(p->out + p->out_len, &h);
    p->out_len += HOLMES_RDV_HEADER;
    if (a_len)
        memcpy(p->out + p->out_len, a, a_len);
    p->out_len += a_len;
    if (b_len)
        memcpy(p->out + p->out_len, b, b_len);
    p->out_len += b_len;
}

void holmes_rdv_peer_reply(struct holmes_rdv_peer *p, uint32_t id, int status, const void *data,
                           size_t len)
{
    uint8_t code[4];

    holmes_rdv_u32_write(code, (uint32_t)-status);
    holmes_rdv_peer_say(p, HOLMES_RDV_REPLY, id, code, sizeof code, data, len);
}

void holmes_rdv_peer_refuse(struct holmes_rdv_peer *p, int status, const char *text)
{
    uint8_t code[4];

    holmes_warn(NET, "rendezvous: refused %s: %s", p->from, text);
    holmes_rdv_u32_write(code, (uint32_t)-status);
    holmes_rdv_peer_say(p, HOLMES_RDV_REFUSED, 0, code, sizeof code, text, strlen(text));
    p->doomed = true;
}

bool holmes_rdv_peer_flush(struct holmes_rdv_peer *p)
{
    while (p->out_at < p->out_len) {
        ssize_t n = send(p->fd, p->out + p->out_at, p->out_len - p->out_at, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (n < 0) {
            p->error = -errno;
            return false;
        }
        p->out_at += (size_t)n;
    }
    return true;
}

bool holmes_rdv_peer_reserve(struct holmes_rdv_peer *p, size_t cap)
{
    uint8_t *grown;

    if (cap <= p->in_cap)
        return true;
    grown = realloc(p->in, cap);
    if (!grown)
        return false;
    p->in = grown;
    p->in_cap = cap;
    return true;
}

bool holmes_rdv_peer_read(struct holmes_rdv_peer *p, bool *more)
{
    ssize_t n;

    *more = false;
    do
        n = recv(p->fd, p->in + p->in_len, p->in_cap - p->in_len, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return true;
    if (n <= 0) {
        p->error = n < 0 ? -errno : 0;
        return false;
    }
    p->in_len += (size_t)n;
    *more = true;
    return true;
}

void holmes_rdv_peer_free(struct holmes_rdv_peer *p)
{
    if (p->fd >= 0)
        close(p->fd);
    free(p->in);
    free(p->out);
    free(p);
}

void holmes_rdv_keep_alive(int fd)
{
    /* An idle connection is asked after 2 s, and given up 3 questions of 1 s later. */
    int one = 1, idle_s = 2, every_s = 1, count = 3, user_ms = HOLMES_RDV_GONE_MS;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms);
}
