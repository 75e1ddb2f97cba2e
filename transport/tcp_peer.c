/* Encodes and decodes what the ends of a TCP lane tell each other, and picks addresses. */
#include "tcp_peer.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

static void put_be(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, v >>= 8)
        p[i] = (uint8_t)v;
}

static uint64_t get_be(const uint8_t *p, int bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

size_t tcp_blob_encode(uint32_t magic, const struct tcp_blob *b, uint8_t out[TCP_BLOB_LEN])
{
    const struct holmes_addr *a = &b->addr;

    memset(out, 0, TCP_BLOB_LEN);
    put_be(out, magic, 4);
    out[4] = TCP_PEER_VERSION;
    out[5] = (uint8_t)b->role;
    out[7] = b->streams;
    if (b->role == WIRE_CONNECT)
        return TCP_BLOB_HEAD;

    if (a->sa.sa_family == AF_INET6) {
        out[6] = 6;
        memcpy(out + 8, &a->in6.sin6_port, 2);
        memcpy(out + 20, &a->in6.sin6_addr, 16);
    } else {
        out[6] = 4;
        memcpy(out + 8, &a->in.sin_port, 2);
        memcpy(out + 20, &a->in.sin_addr, 4);
    }
    put_be(out + 12, b->secret, 8);
    return TCP_BLOB_LEN;
}

static int decode_addr(const uint8_t *p, struct holmes_addr *out)
{
    uint8_t rest = 0;

    memset(out, 0, sizeof *out);
    if (p[6] == 6) {
        out->in6.sin6_family = AF_INET6;
        memcpy(&out->in6.sin6_port, p + 8, 2);
        memcpy(&out->in6.sin6_addr, p + 20, 16);
    } else if (p[6] == 4) {
        out->in.sin_family = AF_INET;
        memcpy(&out->in.sin_port, p + 8, 2);
        memcpy(&out->in.sin_addr, p + 20, 4);
        for (int i = 24; i < TCP_BLOB_LEN; i++)
            rest |= p[i];
    } else {
        return -EPROTO;
    }
    return rest == 0 && get_be(p + 8, 2) != 0 && get_be(p + 10, 2) == 0 ? 0 : -EPROTO;
}

int tcp_blob_decode(uint32_t magic, const void *bytes, size_t len, struct tcp_blob *out)
{
    const uint8_t *p = bytes;
    struct tcp_blob b = {0};

    if (len < TCP_BLOB_HEAD || get_be(p, 4) != magic || p[4] != TCP_PEER_VERSION)
        return -EPROTO;
    b.streams = p[7];
    if (p[5] == WIRE_CONNECT) {
        if (len != TCP_BLOB_HEAD || p[6] != 0)
            return -EPROTO;
        b.role = WIRE_CONNECT;
    } else if (p[5] == WIRE_ACCEPT) {
        if (len != TCP_BLOB_LEN || decode_addr(p, &b.addr) != 0)
            return -EPROTO;
        b.role = WIRE_ACCEPT;
        b.secret = get_be(p + 12, 8);
        if (b.secret == 0)
            return -EPROTO;
    } else {
        return -EPROTO;
    }
    *out = b;
    return 0;
}

void tcp_request_encode(uint32_t magic, uint64_t secret, uint8_t out[TCP_REQUEST_LEN])
{
    memset(out, 0, TCP_REQUEST_LEN);
    put_be(out, magic, 4);
    out[4] = TCP_PEER_VERSION;
    put_be(out + 8, secret, 8);
}

int tcp_request_decode(uint32_t magic, const void *bytes, size_t len, uint64_t *secret)
{
    const uint8_t *p = bytes;

    if (len != TCP_REQUEST_LEN || get_be(p, 4) != magic || p[4] != TCP_PEER_VERSION ||
        get_be(p + 5, 3) != 0 || get_be(p + 8, 8) == 0)
        return -EPROTO;
    *secret = get_be(p + 8, 8);
    return 0;
}

void tcp_status_up(atomic_int *status)
{
    int rising = -EAGAIN;

    atomic_compare_exchange_strong(status, &rising, 0);
}

bool tcp_status_fail(atomic_int *status, int error)
{
    int now = atomic_load(status);

    while (now == 0 || now == -EAGAIN)
        if (atomic_compare_exchange_weak(status, &now, error))
            return true;
    return false;
}

int tcp_secret_make(uint64_t *out)
{
    do {
        if (getrandom(out, sizeof *out, 0) != sizeof *out)
            return -EIO;
    } while (*out == 0);
    return 0;
}

bool tcp_addr_is_unspecified(const struct holmes_addr *a)
{
    return a->sa.sa_family == AF_INET ? a->in.sin_addr.s_addr == htonl(INADDR_ANY)
                                      : IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr);
}

in_port_t tcp_addr_port(const struct holmes_addr *a)
{
    return a->sa.sa_family == AF_INET ? a->in.sin_port : a->in6.sin6_port;
}

void tcp_addr_set_port(struct holmes_addr *a, in_port_t port)
{
    if (a->sa.sa_family == AF_INET)
        a->in.sin_port = port;
    else
        a->in6.sin6_port = port;
}

void tcp_take_via(const struct holmes_addr *via, struct holmes_addr *to)
{
    in_port_t port = tcp_addr_port(to);

    if (!tcp_addr_is_unspecified(to) || via->sa.sa_family == AF_UNSPEC)
        return;
    *to = *via;
    tcp_addr_set_port(to, port);
}

const struct holmes_addr *tcp_source_for(const struct holmes_nic *nic, struct holmes_addr *to)
{
    for (int i = 0; i < nic->naddrs; i++) {
        const struct holmes_addr *a = &nic->addrs[i];

        if (a->sa.sa_family != to->sa.sa_family ||
            (tcp_addr_is_unspecified(a) && i + 1 < nic->naddrs))
            continue;
        if (a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to->in6.sin6_addr)) {
            if (!IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr))
                continue;
            to->in6.sin6_scope_id = a->in6.sin6_scope_id;
        }
        return a;
    }
    return NULL;
}
