/* The blob of a lane of plain sockets, from a peer that may be anyone: what is taken must be within
 * the bounds of a lane and be what it encodes to; the pairs made of it lead to its addresses only.
 */
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "transport/sock/sock_ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void no_log(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                   const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)level, (void)subsys, (void)file, (void)line, (void)func, (void)msg;
}

static bool is_addr_of(const struct sock_peer *p, const struct holmes_addr *a)
{
    for (int i = 0; i < p->naddrs; i++) {
        const struct holmes_addr *b = &p->addrs[i];

        if (a->sa.sa_family != b->sa.sa_family || tcp_addr_port(a) != tcp_addr_port(b))
            continue;
        if (a->sa.sa_family == AF_INET6
                ? memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof a->in6.sin6_addr) == 0
                : a->in.sin_addr.s_addr == b->in.sin_addr.s_addr)
            return true;
    }
    return false;
}

static void check_pairs(const struct sock_peer *p)
{
    static struct wire_nic wn = {.nic = {.ifname = "lo", .naddrs = 1}};
    struct wire_nic *wns[1] = {&wn};
    struct sock_pair pairs[SOCK_PAIRS_MAX];
    int n;

    wn.nic.addrs[0].in.sin_family = AF_INET;
    wn.nic.addrs[0].prefix_len = 8;
    memcpy(&wn.nic.addrs[0].in.sin_addr, "\x7f\0\0\1", 4);
    n = holmes_sock_pairs(wns, 1, p, pairs);
    if (n > SOCK_PAIRS_MAX || n == 0)
        __builtin_trap();
    for (int i = 0; i < n; i++)
        if (pairs[i].wn != &wn || !is_addr_of(p, &pairs[i].to))
            __builtin_trap();
}

static void check(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1); /* so that a byte behind it is found */
    uint8_t again[HOLMES_LANE_BLOB_MAX];
    struct sock_peer p;

    if (!exact)
        abort();
    memcpy(exact, data, size);
    if (holmes_sock_blob_decode(exact, size, &p) == 0) {
        bool accepts = p.role == WIRE_ACCEPT;

        if (size > HOLMES_LANE_BLOB_MAX || holmes_sock_blob_encode(&p, again) != size ||
            memcmp(again, exact, size) != 0)
            __builtin_trap();
        if (accepts ? p.streams < 1 || p.streams > SOCK_STREAMS_MAX || p.naddrs < 1 ||
                          p.naddrs > HOLMES_BUNDLE_MAX
                    : p.streams != 0 || p.naddrs != 0)
            __builtin_trap();
        if (accepts)
            check_pairs(&p);
    }
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t head[] = {'H', 'S', 'O', 'K', TCP_PEER_VERSION, WIRE_ACCEPT};
    uint8_t close_to_right[HOLMES_LANE_BLOB_MAX + 24] = {0};
    size_t len = size < sizeof close_to_right ? size : sizeof close_to_right;

    holmes_log_set_sink(no_log, NULL, HOLMES_LOG_WARN);
    check(data, size);
    /* Past the magic, and with whole addresses, so that the fields are reached. */
    memcpy(close_to_right, data, len);
    memcpy(close_to_right, head, sizeof head);
    check(close_to_right, len);
    for (size_t n = 0; n <= 4; n++)
        check(close_to_right, TCP_BLOB_LEN + 20 * n);
    return 0;
}
