#include <errno.h>
#include <string.h>

#include "sock_ops.h"

#define EXTRA_LEN 20

_Static_assert(TCP_BLOB_LEN + (HOLMES_BUNDLE_MAX - 1) * EXTRA_LEN <= HOLMES_LANE_BLOB_MAX,
               "all NICs of a bundle fit");

static void extra_encode(const struct holmes_addr *a, uint8_t out[EXTRA_LEN])
{
    in_port_t port = tcp_addr_port(a);

    memset(out, 0, EXTRA_LEN);
    out[0] = a->sa.sa_family == AF_INET6 ? 6 : 4;
    memcpy(out + 2, &port, 2);
    if (a->sa.sa_family == AF_INET6)
        memcpy(out + 4, &a->in6.sin6_addr, 16);
    else
        memcpy(out + 4, &a->in.sin_addr, 4);
}

static int extra_decode(const uint8_t *p, struct holmes_addr *out)
{
    static const uint8_t zeros[12];
    in_port_t port;

    memset(out, 0, sizeof *out);
    memcpy(&port, p + 2, 2);
    if (p[1] != 0 || port == 0)
        return -EPROTO;
    if (p[0] == 6) {
        out->in6.sin6_family = AF_INET6;
        memcpy(&out->in6.sin6_addr, p + 4, 16);
    } else if (p[0] == 4 && memcmp(p + 8, zeros, sizeof zeros) == 0) {
        out->in.sin_family = AF_INET;
        memcpy(&out->in.sin_addr, p + 4, 4);
    } else {
        return -EPROTO;
    }
    tcp_addr_set_port(out, port);
    return 0;
}

size_t holmes_sock_blob_encode(const struct sock_peer *p, uint8_t out[HOLMES_LANE_BLOB_MAX])
{
    struct tcp_blob b = {
        .role = p->role, .addr = p->addrs[0], .secret = p->secret, .streams = (uint8_t)p->streams};
    size_t len = tcp_blob_encode(SOCK_MAGIC, &b, out);

    for (int i = 1; p->role == WIRE_ACCEPT && i < p->naddrs; i++, len += EXTRA_LEN)
        extra_encode(&p->addrs[i], out + len);
    return len;
}

int holmes_sock_blob_decode(const void *bytes, size_t len, struct sock_peer *out)
{
    const uint8_t *p = bytes;
    size_t first = len < TCP_BLOB_LEN ? len : TCP_BLOB_LEN, more = len - first;
    struct sock_peer peer = {.naddrs = 0};
    struct tcp_blob b;
    int rc = more % EXTRA_LEN == 0 && more / EXTRA_LEN < HOLMES_BUNDLE_MAX ? 0 : -EPROTO;

    if (rc == 0)
        rc = tcp_blob_decode(SOCK_MAGIC, bytes, first, &b);
    if (rc == 0 &&
        (b.role == WIRE_ACCEPT ? b.streams < 1 || b.streams > SOCK_STREAMS_MAX : b.streams != 0))
        rc = -EPROTO;
    if (rc != 0)
        return rc;
    peer.role = b.role;
    peer.streams = b.streams;
    peer.secret = b.secret;
    if (b.role == WIRE_ACCEPT)
        peer.addrs[peer.naddrs++] = b.addr;
    for (size_t at = first; rc == 0 && at < len; at += EXTRA_LEN)
        rc = extra_decode(p + at, &peer.addrs[peer.naddrs++]);
    if (rc == 0)
        *out = peer;
    return rc;
}
