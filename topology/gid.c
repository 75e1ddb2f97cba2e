/* Ranks GIDs. A RoCE GID is the IP address of an interface, so what is known about addresses
 * decides: an address with a route reaches further than a link-local one. */
#include "gid.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Smaller is better. */
enum gid_rank {
    RANK_UNUSABLE = -1,
    RANK_V2_IPV4,
    RANK_V2_IPV6,
    RANK_V1_IPV4,
    RANK_V1_IPV6,
    RANK_LINK_LOCAL,
};

struct gid_addr {
    int family;
    const uint8_t *bytes; /* 4 or 16 */
};

static struct gid_addr addr_of(const uint8_t gid[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (memcmp(gid, mapped, sizeof mapped) == 0)
        return (struct gid_addr){AF_INET, gid + 12};
    return (struct gid_addr){AF_INET6, gid};
}

const char *gid_text(const uint8_t bytes[16], char *buf, size_t len)
{
    if (!inet_ntop(AF_INET6, bytes, buf, (socklen_t)len))
        snprintf(buf, len, "?");
    return buf;
}

static bool is_link_local(struct gid_addr a)
{
    if (a.family == AF_INET)
        return a.bytes[0] == 169 && a.bytes[1] == 254;
    return a.bytes[0] == 0xfe && (a.bytes[1] & 0xc0) == 0x80;
}

/* Addresses that no peer can have as ours: loopback, unspecified, multicast. */
static bool is_no_destination(struct gid_addr a)
{
    static const uint8_t loopback[16] = {[15] = 1};

    if (a.family == AF_INET)
        return a.bytes[0] == 127 || a.bytes[0] == 0 || a.bytes[0] >= 224;
    return memcmp(a.bytes, loopback, sizeof loopback) == 0 || a.bytes[0] == 0xff;
}

static bool in_range(struct gid_addr a, const struct holmes_addr *range)
{
    const uint8_t *r = range->sa.sa_family == AF_INET6 ? range->in6.sin6_addr.s6_addr
                                                       : (const uint8_t *)&range->in.sin_addr;
    unsigned bits = range->prefix_len;

    if (a.family != range->sa.sa_family || memcmp(a.bytes, r, bits / 8) != 0)
        return false;
    return bits % 8 == 0 || ((a.bytes[bits / 8] ^ r[bits / 8]) >> (8 - bits % 8)) == 0;
}

static int version_of(const struct holmes_gid_seen *g)
{
    return g->type == HOLMES_GID_ROCE_V1 ? 1 : g->type == HOLMES_GID_ROCE_V2 ? 2 : 0;
}

static enum gid_rank rank_of(const struct holmes_gid_seen *g, const struct gid_wish *w)
{
    struct gid_addr a = addr_of(g->bytes);
    int version = version_of(g);

    if (version == 0 || is_no_destination(a))
        return RANK_UNUSABLE;
    if (is_link_local(a))
        return version == 2 ? RANK_LINK_LOCAL : RANK_UNUSABLE;
    if (a.family == AF_INET)
        return version == 2 ? RANK_V2_IPV4 : RANK_V1_IPV4;
    if (version == 2)
        return RANK_V2_IPV6;
    /* Devices of other protocols show their MAC address in this form. */
    return w->version == 1 && w->family == AF_INET6 ? RANK_V1_IPV6 : RANK_UNUSABLE;
}

static const struct holmes_netif *find_netif(const struct holmes_netif *ifs, int nifs,
                                             const char *name)
{
    for (int i = 0; i < nifs; i++) {
        if (strcmp(ifs[i].name, name) == 0)
            return &ifs[i];
    }
    return NULL;
}

static bool netif_has(const struct holmes_netif *nif, struct gid_addr a)
{
    for (int i = 0; i < nif->naddrs; i++) {
        const struct holmes_addr *own = &nif->addrs[i];

        if (own->sa.sa_family != a.family)
            continue;
        if (a.family == AF_INET ? memcmp(&own->in.sin_addr, a.bytes, 4) == 0
                                : memcmp(&own->in6.sin6_addr, a.bytes, 16) == 0)
            return true;
    }
    return nif->naddrs == HOLMES_NIC_ADDRS_MAX; /* there may be more of them */
}

enum gid_place { PLACE_UNKNOWN, PLACE_OURS, PLACE_FOREIGN };

static enum gid_place place_of(const struct holmes_gid_seen *g, const struct holmes_netif *ifs,
                               int nifs)
{
    const struct holmes_netif *nif;
    struct gid_addr a = addr_of(g->bytes);

    if (!g->ndev[0])
        return PLACE_UNKNOWN;
    nif = find_netif(ifs, nifs, g->ndev);
    if (nif && netif_has(nif, a))
        return PLACE_OURS;
    /* An interface need not have the link-local address that its MAC address would give. */
    return is_link_local(a) ? PLACE_UNKNOWN : PLACE_FOREIGN;
}

bool gid_netdev_is_ours(const struct holmes_rdma_port_seen *port, const char *ndev,
                        const struct holmes_netif *ifs, int nifs)
{
    for (int i = 0; i < port->ngids; i++) {
        if (strcmp(port->gids[i].ndev, ndev) == 0 &&
            place_of(&port->gids[i], ifs, nifs) == PLACE_OURS)
            return true;
    }
    return false;
}

struct candidate {
    enum gid_rank rank;
    enum gid_place place;
    const struct holmes_gid_seen *gid;
};

static int candidate_compare(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;

    return a->rank != b->rank ? (int)a->rank - (int)b->rank : a->gid->index - b->gid->index;
}

static bool has_gid(const struct gid_choice *c, const struct holmes_gid_seen *g)
{
    for (int i = 0; i < c->n; i++) {
        if (c->gids[i].type == (uint8_t)g->type && memcmp(c->gids[i].bytes, g->bytes, 16) == 0)
            return true;
    }
    return false;
}

static void take(struct gid_choice *c, const struct holmes_gid_seen *g)
{
    struct holmes_gid *out;

    if (c->n == HOLMES_GIDS_MAX || has_gid(c, g))
        return;
    if (c->n == 0)
        memcpy(c->ndev, g->ndev, sizeof c->ndev);
    out = &c->gids[c->n++];
    memcpy(out->bytes, g->bytes, sizeof out->bytes);
    out->index = g->index;
    out->type = (uint8_t)g->type;
}

static bool wish_range(const struct candidate *c, const struct gid_wish *w)
{
    return in_range(addr_of(c->gid->bytes), &w->range);
}

static bool wish_family(const struct candidate *c, const struct gid_wish *w)
{
    return addr_of(c->gid->bytes).family == w->family;
}

static bool wish_version(const struct candidate *c, const struct gid_wish *w)
{
    return version_of(c->gid) == w->version;
}

/* Leaves those that fit, or all where none does. */
static int narrow(struct candidate *cands, int n,
                  bool (*fits)(const struct candidate *, const struct gid_wish *),
                  const struct gid_wish *w)
{
    int kept = 0;

    for (int i = 0; i < n; i++) {
        if (cands[i].rank != RANK_LINK_LOCAL && fits(&cands[i], w))
            cands[kept++] = cands[i];
    }
    return kept > 0 ? kept : n;
}

/* The wishes that differ from what is preferred anyway: the peer may have other GIDs, so what is
 * merely preferred leaves all in the list. */
static int narrow_to_wishes(struct candidate *cands, int n, const struct gid_wish *w)
{
    if (w->has_range)
        n = narrow(cands, n, wish_range, w);
    if (w->family == AF_INET6)
        n = narrow(cands, n, wish_family, w);
    if (w->version == 1)
        n = narrow(cands, n, wish_version, w);
    return n;
}

static int drop_foreign(struct candidate *cands, int n)
{
    bool ours = false;
    int kept = 0;

    for (int i = 0; i < n; i++)
        ours |= cands[i].place == PLACE_OURS && cands[i].rank != RANK_LINK_LOCAL;
    for (int i = 0; i < n; i++) {
        if (!ours || cands[i].place != PLACE_FOREIGN)
            cands[kept++] = cands[i];
    }
    return kept;
}

static int choose_best(const struct holmes_rdma_port_seen *port, const struct gid_wish *wish,
                       const struct holmes_netif *ifs, int nifs, struct gid_choice *out)
{
    struct candidate cands[HOLMES_GIDS_SEEN_MAX];
    bool routed_v2 = false;
    int n = 0;

    for (int i = 0; i < port->ngids; i++) {
        struct candidate c = {.rank = rank_of(&port->gids[i], wish), .gid = &port->gids[i]};

        if (c.rank == RANK_UNUSABLE)
            continue;
        c.place = place_of(c.gid, ifs, nifs);
        cands[n++] = c;
    }
    n = drop_foreign(cands, n);
    n = narrow_to_wishes(cands, n, wish);
    qsort(cands, (size_t)n, sizeof *cands, candidate_compare);
    for (int i = 0; i < n; i++) {
        routed_v2 |= cands[i].rank == RANK_V2_IPV4 || cands[i].rank == RANK_V2_IPV6;
        if (cands[i].rank == RANK_LINK_LOCAL && routed_v2)
            break;
        out->link_local |= cands[i].rank == RANK_LINK_LOCAL;
        take(out, cands[i].gid);
    }
    return out->n > 0 ? 0 : -ENOENT;
}

/* The user's own choice needs no rank. */
static int choose_fixed(const struct holmes_rdma_port_seen *port, int64_t index,
                        struct gid_choice *out)
{
    for (int i = 0; i < port->ngids; i++) {
        if (port->gids[i].index == index && version_of(&port->gids[i]) != 0)
            take(out, &port->gids[i]);
    }
    return out->n > 0 ? 0 : -ENOENT;
}

int gid_choose(const struct holmes_rdma_port_seen *port, const struct gid_wish *wish,
               const struct holmes_netif *ifs, int nifs, struct gid_choice *out)
{
    memset(out, 0, sizeof *out);
    return wish->index >= 0 ? choose_fixed(port, wish->index, out)
                            : choose_best(port, wish, ifs, nifs, out);
}

/* addr/len */
static int parse_range(const char *text, struct holmes_addr *out)
{
    char host[INET6_ADDRSTRLEN];
    const char *slash = strrchr(text, '/');
    unsigned long bits;
    char *end;

    if ((size_t)(slash - text) >= sizeof host || slash[1] < '0' || slash[1] > '9')
        return -EINVAL;
    memset(out, 0, sizeof *out);
    memcpy(host, text, (size_t)(slash - text));
    host[slash - text] = '\0';
    bits = strtoul(slash + 1, &end, 10);
    if (inet_pton(AF_INET, host, &out->in.sin_addr) == 1)
        out->sa.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, host, &out->in6.sin6_addr) == 1)
        out->sa.sa_family = AF_INET6;
    else
        return -EINVAL;
    if (*end != '\0' || bits > (out->sa.sa_family == AF_INET6 ? 128 : 32))
        return -EINVAL;
    out->prefix_len = (uint8_t)bits;
    return 0;
}

static void remark(char *buf, size_t len, const char *name, const char *value, const char *what)
{
    size_t used = strlen(buf);

    if (used < len)
        snprintf(buf + used, len - used, "%s%s=\"%s\" counts as unset: %s", used > 0 ? "; " : "",
                 name, value, what);
}

int gid_wish_parse(const struct holmes_rdma_request *req, struct gid_wish *out, char *why,
                   size_t why_len)
{
    const char *family = req->addr_family, *range = req->addr_range;
    struct gid_wish w = {.index = req->gid_index, .version = req->roce_version, .family = AF_INET};

    if (family && strcmp(family, "AF_INET6") == 0)
        w.family = AF_INET6;
    else if (family && *family && strcmp(family, "AF_INET") != 0)
        remark(why, why_len, "NCCL_IB_ADDR_FAMILY", family, "AF_INET or AF_INET6 is right");
    if (range && *range && !strchr(range, '/')) {
        remark(why, why_len, "NCCL_IB_ADDR_RANGE", range, "address/length is right");
    } else if (range && *range) {
        if (parse_range(range, &w.range) != 0) {
            snprintf(why, why_len,
                     "NCCL_IB_ADDR_RANGE=\"%s\": address/length is right, with up to 32 bits for "
                     "IPv4 and 128 for IPv6",
                     range);
            return -EINVAL;
        }
        w.has_range = w.range.sa.sa_family == w.family;
        if (!w.has_range)
            remark(why, why_len, "NCCL_IB_ADDR_RANGE", range,
                   "it is of the other family than NCCL_IB_ADDR_FAMILY");
    }
    *out = w;
    return 0;
}
