#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>

#include "../route.h"
#include "log.h"
#include "sock_ops.h"

static const uint8_t *addr_bytes(const struct holmes_addr *a)
{
    return a->sa.sa_family == AF_INET ? (const uint8_t *)&a->in.sin_addr
                                      : (const uint8_t *)&a->in6.sin6_addr;
}

/* Whether `to` lies in the subnet of our address. */
static bool same_subnet(const struct holmes_addr *own, const struct holmes_addr *to)
{
    int bits = own->prefix_len, whole = bits / 8, rest = bits % 8;
    const uint8_t *a = addr_bytes(own), *b = addr_bytes(to);

    return bits > 0 && memcmp(a, b, (size_t)whole) == 0 &&
           (rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0);
}

/* A bound address does not choose the interface: the routes do. */
static bool leaves_by_itself(struct wire_nic *wn, const struct holmes_addr *from,
                             const struct holmes_addr *to)
{
    unsigned own = if_nametoindex(wn->nic.ifname), loopback = if_nametoindex("lo");
    char name[IF_NAMESIZE] = "?", a[INET6_ADDRSTRLEN] = "?", b[INET6_ADDRSTRLEN] = "?";
    int used = 0;

    if (own == 0 || route_lookup(from, to, &used) != 0)
        return false;
    /* Between addresses of one host all goes by the loopback. */
    if ((unsigned)used == own || (unsigned)used == loopback)
        return true;
    if (atomic_exchange(&wn->route_warned, true))
        return false;
    if_indextoname((unsigned)used, name);
    inet_ntop(from->sa.sa_family, addr_bytes(from), a, sizeof a);
    inet_ntop(to->sa.sa_family, addr_bytes(to), b, sizeof b);
    holmes_warn(
        NET,
        "nic %s adds nothing to the bundle: from %s to %s the kernel leaves by %s. To use it: "
        "ip rule add from %s table 1%u && ip route add %s dev %s table 1%u",
        wn->nic.name, a, b, name, a, own, b, wn->nic.ifname, own);
    return false;
}

struct way {
    bool usable, near;
    struct sock_pair pair;
};

static struct way way_to(struct wire_nic *wn, const struct holmes_addr *to, bool check)
{
    struct way w = {.pair = {.wn = wn, .to = *to}};
    const struct holmes_addr *from = tcp_source_for(&wn->nic, &w.pair.to);

    if (!from)
        return w;
    w.pair.from = *from;
    w.near = same_subnet(from, &w.pair.to);
    w.usable = !check || leaves_by_itself(wn, from, &w.pair.to);
    return w;
}

int holmes_sock_pairs(struct wire_nic *const *wns, int nwns, const struct sock_peer *peer,
                      struct sock_pair out[SOCK_PAIRS_MAX])
{
    struct way ways[HOLMES_BUNDLE_MAX][HOLMES_BUNDLE_MAX];
    bool reached[HOLMES_BUNDLE_MAX] = {false};
    int n = 0;

    for (int k = 0; k < nwns; k++) {
        const struct way *best = NULL;
        int best_j = 0;

        for (int j = 0; j < peer->naddrs; j++) {
            struct way *w = &ways[k][j];

            *w = way_to(wns[k], &peer->addrs[j], nwns > 1);
            if (w->usable &&
                (!best || w->near > best->near || (w->near == best->near && reached[best_j]))) {
                best = w;
                best_j = j;
            }
        }
        if (best) {
            out[n++] = best->pair;
            reached[best_j] = true;
        }
    }
    for (int j = 0; j < peer->naddrs; j++) {
        for (int k = 0; k < nwns && !reached[j]; k++) {
            if (!ways[k][j].usable)
                continue;
            out[n++] = ways[k][j].pair;
            reached[j] = true;
        }
    }
    if (n == 0 && nwns > 1) /* better one that shares its way than none */
        return holmes_sock_pairs(wns, 1, peer, out);
    return n > 0 ? n : -EAFNOSUPPORT;
}
