#include "route.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "log.h"

struct route_query {
    struct nlmsghdr nh;
    struct rtmsg rt;
    uint8_t attrs[64];
};

static const void *addr_bytes(const struct holmes_addr *a, size_t *len)
{
    *len = a->sa.sa_family == AF_INET ? 4 : 16;
    return a->sa.sa_family == AF_INET ? (const void *)&a->in.sin_addr
                                      : (const void *)&a->in6.sin6_addr;
}

static void add_addr(struct route_query *q, unsigned short type, const struct holmes_addr *a)
{
    size_t len;
    const void *bytes = addr_bytes(a, &len);
    struct rtattr *attr = (void *)((char *)q + NLMSG_ALIGN(q->nh.nlmsg_len));

    attr->rta_type = type;
    attr->rta_len = (unsigned short)RTA_LENGTH(len);
    memcpy(RTA_DATA(attr), bytes, len);
    q->nh.nlmsg_len = (uint32_t)(NLMSG_ALIGN(q->nh.nlmsg_len) + RTA_ALIGN(attr->rta_len));
}

static int find_oif(const struct nlmsghdr *nh, size_t len, int *ifindex)
{
    const struct rtmsg *rt = NLMSG_DATA(nh);
    int left;

    if (!NLMSG_OK(nh, len))
        return -EBADMSG;
    if (nh->nlmsg_type == NLMSG_ERROR) {
        const struct nlmsgerr *e = NLMSG_DATA(nh);

        return e->error != 0 ? e->error : -EBADMSG;
    }
    if (nh->nlmsg_type != RTM_NEWROUTE)
        return -EBADMSG;
    left = (int)RTM_PAYLOAD(nh);
    for (const struct rtattr *a = RTM_RTA(rt); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (a->rta_type == RTA_OIF && RTA_PAYLOAD(a) >= sizeof *ifindex) {
            memcpy(ifindex, RTA_DATA(a), sizeof *ifindex);
            return 0;
        }
    }
    return -ENOENT;
}

int route_lookup(const struct holmes_addr *source, const struct holmes_addr *peer, int *ifindex)
{
    struct route_query q = {
        .nh = {.nlmsg_len = NLMSG_LENGTH(sizeof q.rt),
               .nlmsg_type = RTM_GETROUTE,
               .nlmsg_flags = NLM_F_REQUEST},
        .rt = {.rtm_family = (unsigned char)peer->sa.sa_family,
               .rtm_src_len = peer->sa.sa_family == AF_INET ? 32 : 128,
               .rtm_dst_len = peer->sa.sa_family == AF_INET ? 32 : 128},
    };
    _Alignas(struct nlmsghdr) char answer[4096];
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    int rc = 0;
    ssize_t n = 0;

    if (fd < 0)
        return -errno;
    add_addr(&q, RTA_DST, peer);
    add_addr(&q, RTA_SRC, source);
    /* The kernel answers a route request inside send, so that recv never waits. */
    if (send(fd, &q, q.nh.nlmsg_len, 0) < 0 ||
        (n = recv(fd, answer, sizeof answer, MSG_DONTWAIT)) < 0)
        rc = -errno;
    if (rc == 0)
        rc = find_oif((struct nlmsghdr *)answer, (size_t)n, ifindex);
    close(fd);
    return rc;
}

void route_check(struct device *dev, const struct holmes_addr *source,
                 const struct holmes_addr *peer)
{
    unsigned own = if_nametoindex(dev->nic.ifname), loopback = if_nametoindex("lo");
    char name[IF_NAMESIZE] = "?", from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
    size_t len;
    int used = 0;

    if (own == 0 || route_lookup(source, peer, &used) != 0)
        return;
    /* Traffic between two addresses of one host takes the loopback whatever the NIC. */
    if ((unsigned)used == own || (unsigned)used == loopback ||
        atomic_exchange(&dev->route_warned, true))
        return;
    if_indextoname((unsigned)used, name);
    inet_ntop(source->sa.sa_family, addr_bytes(source, &len), from, sizeof from);
    inet_ntop(peer->sa.sa_family, addr_bytes(peer, &len), to, sizeof to);
    holmes_warn(NET,
                "nic %s is no path of its own: from %s to %s the kernel leaves by %s. To use it: "
                "ip rule add from %s table 1%u && ip route add %s dev %s table 1%u",
                dev->nic.name, from, to, name, from, own, to, dev->nic.ifname, own);
}
