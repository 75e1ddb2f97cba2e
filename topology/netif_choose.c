/* Chooses interfaces. Every interface gets a class from what it is and which addresses it has; the
 * best class present is used, or exactly what the user named. Pure: the answer depends on the
 * arguments only. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ifname_filter.h"
#include "topology.h"

/* From best to worst. */
enum netif_class {
    CLASS_ETHERNET, /* a cable ends here */
    CLASS_VIRTUAL,  /* Ethernet without one: inside a container there is nothing else */
    CLASS_WIRELESS,
    CLASS_IPOIB, /* ends at the edge of its InfiniBand cluster */
    CLASS_TUNNEL,
    CLASS_HOST_ONLY,  /* leads to this host's own guests */
    CLASS_LINK_LOCAL, /* no address that a router would know */
    CLASS_LOOPBACK,
};

static const char *const class_names[] = {
    [CLASS_ETHERNET] = "ethernet",
    [CLASS_VIRTUAL] = "virtual ethernet",
    [CLASS_WIRELESS] = "wireless",
    [CLASS_IPOIB] = "IP over InfiniBand, which ends at its own cluster",
    [CLASS_TUNNEL] = "tunnel",
    [CLASS_HOST_ONLY] = "network of this host's guests",
    [CLASS_LINK_LOCAL] = "link-local addresses only",
    [CLASS_LOOPBACK] = "loopback",
};

static const struct {
    const char *prefix;
    enum netif_class class;
} known_names[] = {
    {"docker", CLASS_HOST_ONLY}, {"br-", CLASS_HOST_ONLY},    {"virbr", CLASS_HOST_ONLY},
    {"veth", CLASS_HOST_ONLY},   {"vnet", CLASS_HOST_ONLY},   {"lxcbr", CLASS_HOST_ONLY},
    {"lxdbr", CLASS_HOST_ONLY},  {"podman", CLASS_HOST_ONLY}, {"cni", CLASS_HOST_ONLY},
    {"cali", CLASS_HOST_ONLY},   {"cilium", CLASS_HOST_ONLY}, {"lxc", CLASS_HOST_ONLY},
    {"weave", CLASS_HOST_ONLY},  {"kube-", CLASS_HOST_ONLY},  {"dummy", CLASS_HOST_ONLY},
    {"flannel", CLASS_TUNNEL},   {"tailscale", CLASS_TUNNEL}, {"wg", CLASS_TUNNEL},
    {"tun", CLASS_TUNNEL},       {"tap", CLASS_TUNNEL},       {"zt", CLASS_TUNNEL},
};

const char *holmes_netif_kind_name(enum holmes_netif_kind kind)
{
    static const char *const names[] = {
        [HOLMES_NETIF_PHYSICAL] = "physical", [HOLMES_NETIF_BOND] = "bond",
        [HOLMES_NETIF_VLAN] = "vlan",         [HOLMES_NETIF_BRIDGE] = "bridge",
        [HOLMES_NETIF_VETH] = "veth",         [HOLMES_NETIF_TUNNEL] = "tunnel",
        [HOLMES_NETIF_WIRELESS] = "wireless", [HOLMES_NETIF_IPOIB] = "ipoib",
        [HOLMES_NETIF_LOOPBACK] = "loopback", [HOLMES_NETIF_OTHER] = "other",
    };

    return names[kind];
}

const char *holmes_addr_text(const struct holmes_addr *addr, char *buf, size_t len)
{
    const void *src = addr->sa.sa_family == AF_INET6 ? (const void *)&addr->in6.sin6_addr
                                                     : (const void *)&addr->in.sin_addr;

    if (!inet_ntop(addr->sa.sa_family, src, buf, (socklen_t)len))
        snprintf(buf, len, "?");
    return buf;
}

static bool addr_is_link_local(const struct holmes_addr *a)
{
    if (a->sa.sa_family == AF_INET6)
        return IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr);
    return (ntohl(a->in.sin_addr.s_addr) >> 16) == 0xa9fe; /* 169.254/16 */
}

/* Smaller is better; -1: never used. */
static int addr_rank(const struct holmes_addr *a, int family)
{
    bool v6 = a->sa.sa_family == AF_INET6;

    if (family != AF_UNSPEC && a->sa.sa_family != family)
        return -1;
    if (v6 && IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr))
        return -1; /* as NCCL does: 127.0.0.1 is there too */
    if (addr_is_link_local(a))
        return v6 ? 3 : 2;
    return v6 ? 1 : 0;
}

/* Copies the usable addresses of the interface, best first, and link-local ones only when it has
 * no others. */
static int pick_addrs(const struct holmes_netif *nif, int family, struct holmes_addr *out)
{
    int n = 0;

    for (int rank = 0; rank <= 3; rank++) {
        if (rank >= 2 && n > 0)
            break;
        for (int i = 0; i < nif->naddrs && n < HOLMES_NIC_ADDRS_MAX; i++) {
            if (addr_rank(&nif->addrs[i], family) == rank)
                out[n++] = nif->addrs[i];
        }
    }
    return n;
}

static enum netif_class class_by_kind(const struct holmes_netif *nif)
{
    switch (nif->kind) {
    case HOLMES_NETIF_PHYSICAL:
    case HOLMES_NETIF_BOND:
    case HOLMES_NETIF_VLAN:
        return CLASS_ETHERNET;
    case HOLMES_NETIF_BRIDGE:
        return nif->uplink ? CLASS_ETHERNET : CLASS_HOST_ONLY;
    case HOLMES_NETIF_TUNNEL:
        return CLASS_TUNNEL;
    case HOLMES_NETIF_WIRELESS:
        return CLASS_WIRELESS;
    case HOLMES_NETIF_IPOIB:
        return CLASS_IPOIB;
    case HOLMES_NETIF_LOOPBACK:
        return CLASS_LOOPBACK;
    case HOLMES_NETIF_VETH:
        return CLASS_VIRTUAL;
    case HOLMES_NETIF_OTHER:
        break;
    }
    return nif->flags & IFF_NOARP ? CLASS_HOST_ONLY : CLASS_VIRTUAL;
}

static enum netif_class classify(const struct holmes_netif *nif, const struct holmes_addr *addrs)
{
    enum netif_class class = class_by_kind(nif);

    /* A name says nothing about an interface that a cable ends in. */
    if (class != CLASS_ETHERNET && class != CLASS_LOOPBACK) {
        for (size_t i = 0; i < sizeof known_names / sizeof *known_names; i++) {
            if (strncmp(nif->name, known_names[i].prefix, strlen(known_names[i].prefix)) == 0 &&
                known_names[i].class > class)
                class = known_names[i].class;
        }
    }
    if (class < CLASS_LINK_LOCAL && addr_is_link_local(&addrs[0]))
        class = CLASS_LINK_LOCAL;
    return class;
}

/* ip:port or [ipv6%scope]:port; host names are not looked up here. */
static int parse_comm_id(const char *text, struct holmes_addr *out)
{
    char host[64];
    size_t len;

    memset(out, 0, sizeof *out);
    if (!text)
        return -ENOENT;
    if (*text == '[') {
        text++;
        len = strcspn(text, "%]");
    } else {
        len = strcspn(text, ":");
    }
    if (len == 0 || len >= sizeof host)
        return -EINVAL;
    memcpy(host, text, len);
    host[len] = '\0';
    if (inet_pton(AF_INET, host, &out->in.sin_addr) == 1)
        out->sa.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, host, &out->in6.sin6_addr) == 1)
        out->sa.sa_family = AF_INET6;
    else
        return -EINVAL;
    return 0;
}

static bool same_subnet(const struct holmes_addr *own, const struct holmes_addr *other)
{
    bool v6 = own->sa.sa_family == AF_INET6;
    const uint8_t *a = v6 ? own->in6.sin6_addr.s6_addr : (const uint8_t *)&own->in.sin_addr;
    const uint8_t *b = v6 ? other->in6.sin6_addr.s6_addr : (const uint8_t *)&other->in.sin_addr;
    unsigned bits = own->prefix_len;

    if (own->sa.sa_family != other->sa.sa_family || bits == 0)
        return false;
    if (memcmp(a, b, bits / 8) != 0)
        return false;
    return bits % 8 == 0 || ((a[bits / 8] ^ b[bits / 8]) >> (8 - bits % 8)) == 0;
}

struct candidate {
    int index; /* of the interface */
    enum netif_class class;
    bool hinted;  /* in the subnet of NCCL_COMM_ID */
    int position; /* in the user's list; 0 without one */
    int naddrs;
    struct holmes_addr addrs[HOLMES_NIC_ADDRS_MAX];
};

static int candidate_compare(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;

    if (a->position != b->position)
        return a->position - b->position;
    if (a->hinted != b->hinted)
        return b->hinted - a->hinted;
    return a->index - b->index;
}

static void reject(struct holmes_netif_verdict *v, const char *reason)
{
    v->used = false;
    snprintf(v->reason, sizeof v->reason, "%s", reason);
}

/* Whether the interface could carry anything; otherwise the verdict says why not. */
static bool is_live(const struct holmes_netif *nif, int family, struct candidate *c,
                    struct holmes_netif_verdict *v)
{
    if (!(nif->flags & IFF_UP)) {
        reject(v, "is down");
        return false;
    }
    if (!(nif->flags & IFF_RUNNING)) {
        reject(v, "has no carrier");
        return false;
    }
    c->naddrs = pick_addrs(nif, family, c->addrs);
    if (c->naddrs == 0) {
        reject(v, family == AF_INET    ? "has no IPv4 address"
                  : family == AF_INET6 ? "has no IPv6 address"
                                       : "has no address");
        return false;
    }
    return true;
}

static int collect_candidates(const struct holmes_netif *ifs, int nifs,
                              const struct ifname_filter *filter, int family,
                              const struct holmes_addr *hint, struct holmes_netif_verdict *verdicts,
                              struct candidate *out)
{
    int n = 0;

    for (int i = 0; i < nifs; i++) {
        struct candidate c = {.index = i};
        int position = ifname_filter_match(filter, ifs[i].name);

        if (filter->n > 0 && filter->exclude == (position >= 0)) {
            reject(&verdicts[i], filter->exclude ? "excluded by NCCL_SOCKET_IFNAME"
                                                 : "not named in NCCL_SOCKET_IFNAME");
            continue;
        }
        if (!is_live(&ifs[i], family, &c, &verdicts[i]))
            continue;
        if (filter->n > 0 && !filter->exclude)
            c.position = position;
        c.class = classify(&ifs[i], c.addrs);
        for (int k = 0; hint && c.class != CLASS_LOOPBACK && k < c.naddrs; k++)
            c.hinted |= same_subnet(&c.addrs[k], hint);
        if (c.hinted)
            c.class = CLASS_ETHERNET; /* the user's own address for the job is there */
        out[n++] = c;
    }
    return n;
}

static void use(const struct holmes_netif *nif, const struct candidate *c, bool named,
                struct holmes_nic *nic, struct holmes_netif_verdict *v)
{
    char text[INET6_ADDRSTRLEN];

    memset(nic, 0, sizeof *nic);
    memcpy(nic->name, nif->name, sizeof nif->name);
    memcpy(nic->ifname, nif->name, sizeof nif->name);
    memcpy(nic->pci_path, nif->pci_path, sizeof nif->pci_path);
    nic->speed_mbps = nif->speed_mbps;
    nic->numa_node = nif->numa_node;
    nic->naddrs = c->naddrs;
    memcpy(nic->addrs, c->addrs, sizeof c->addrs);
    v->used = true;
    snprintf(v->reason, sizeof v->reason, "%s, %s%s",
             holmes_addr_text(&c->addrs[0], text, sizeof text), holmes_netif_kind_name(nif->kind),
             named       ? ", named in NCCL_SOCKET_IFNAME"
             : c->hinted ? ", in the subnet of NCCL_COMM_ID"
                         : "");
}

/* "lo, eth0 (is down), eth1" */
static void list_interfaces(const struct holmes_netif *ifs, int nifs, int family, char *buf,
                            size_t len)
{
    size_t used = 0;

    snprintf(buf, len, "none");
    for (int i = 0; i < nifs && used < len; i++) {
        struct candidate c;
        struct holmes_netif_verdict v;
        bool live = is_live(&ifs[i], family, &c, &v);

        used +=
            (size_t)snprintf(buf + used, len - used, "%s%s%s%s%s", i > 0 ? ", " : "", ifs[i].name,
                             live ? "" : " (", live ? "" : v.reason, live ? "" : ")");
    }
}

static int refuse(const struct holmes_netif *ifs, int nifs, const struct holmes_netif_request *req,
                  int family, const char *what, char *why, size_t why_len)
{
    bool named = req->ifname && *req->ifname;
    char list[512];

    list_interfaces(ifs, nifs, family, list, sizeof list);
    if (named)
        snprintf(why, why_len, "NCCL_SOCKET_IFNAME=\"%s\" %s; interfaces here: %s", req->ifname,
                 what, list);
    else
        snprintf(why, why_len, "no network interface is usable%s%s; interfaces here: %s",
                 family == AF_UNSPEC ? "" : " with NCCL_SOCKET_FAMILY=",
                 family == AF_UNSPEC ? "" : req->family, list);
    return named ? -EINVAL : -ENODEV;
}

static int parse_family(const char *text)
{
    if (text && strcmp(text, "AF_INET") == 0)
        return AF_INET;
    if (text && strcmp(text, "AF_INET6") == 0)
        return AF_INET6;
    return AF_UNSPEC; /* NCCL's rule: other text counts as unset */
}

static enum netif_class best_class(const struct candidate *cands, int n)
{
    enum netif_class best = CLASS_LOOPBACK;

    for (int i = 0; i < n; i++) {
        if (cands[i].class < best)
            best = cands[i].class;
    }
    return best;
}

int holmes_netif_choose(const struct holmes_netif *ifs, int nifs,
                        const struct holmes_netif_request *req,
                        struct holmes_netif_verdict *verdicts, struct holmes_nic *nics, int *nnics,
                        char *why, size_t why_len)
{
    int family = parse_family(req->family), n, used = 0;
    struct ifname_filter filter;
    struct candidate *cands;
    struct holmes_addr hint;
    enum netif_class best;
    bool named;

    if (ifname_filter_parse(req->ifname, &filter, why, why_len) != 0) {
        char list[512];
        size_t len = strlen(why);

        list_interfaces(ifs, nifs, family, list, sizeof list);
        snprintf(why + len, why_len - len, "; interfaces here: %s", list);
        return -EINVAL;
    }
    named = filter.n > 0 && !filter.exclude;
    cands = calloc((size_t)nifs + 1, sizeof *cands);
    if (!cands)
        return -ENOMEM;
    n = collect_candidates(ifs, nifs, &filter, family,
                           parse_comm_id(req->comm_id, &hint) == 0 ? &hint : NULL, verdicts, cands);
    if (n == 0) {
        free(cands);
        return refuse(ifs, nifs, req, family,
                      named ? "fits no usable interface" : "leaves no usable interface", why,
                      why_len);
    }
    qsort(cands, (size_t)n, sizeof *cands, candidate_compare);
    best = best_class(cands, n);
    for (int i = 0; i < n; i++) {
        struct holmes_netif_verdict *v = &verdicts[cands[i].index];

        if (!named && cands[i].class != best)
            snprintf(v->reason, sizeof v->reason, "%s; there is %s", class_names[cands[i].class],
                     class_names[best]);
        else if (used == HOLMES_NETIFS_MAX)
            snprintf(v->reason, sizeof v->reason, "more than %d interfaces", HOLMES_NETIFS_MAX);
        else
            use(&ifs[cands[i].index], &cands[i], named, &nics[used++], v);
    }
    free(cands);
    *nnics = used;
    return 0;
}
