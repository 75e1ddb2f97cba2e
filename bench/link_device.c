#include "link_device.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of linux/if_link.h, since 6.3: IPv4's own limits. */
#define LINK_GSO_IPV4_MAX_SIZE 63
#define LINK_GRO_IPV4_MAX_SIZE 64

struct link_order {
    struct nlmsghdr nh;
    struct ifinfomsg info;
    uint8_t attrs[64];
};

static void add_u32(struct link_order *o, unsigned short type, uint32_t value)
{
    struct rtattr *attr = (void *)((char *)o + NLMSG_ALIGN(o->nh.nlmsg_len));

    attr->rta_type = type;
    attr->rta_len = RTA_LENGTH(sizeof value);
    memcpy(RTA_DATA(attr), &value, sizeof value);
    o->nh.nlmsg_len = (uint32_t)(NLMSG_ALIGN(o->nh.nlmsg_len) + RTA_ALIGN(attr->rta_len));
}

static int order_run(const struct link_order *o)
{
    _Alignas(struct nlmsghdr) char answer[1024];
    const struct nlmsghdr *nh = (const void *)answer;
    const struct nlmsgerr *e = NLMSG_DATA(nh);
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), rc;
    ssize_t n = -1;

    if (fd < 0)
        return -errno;
    /* The kernel answers inside send, so that recv never waits. */
    if (send(fd, o, o->nh.nlmsg_len, 0) < 0 ||
        (n = recv(fd, answer, sizeof answer, MSG_DONTWAIT)) < 0)
        rc = -errno;
    else
        rc = NLMSG_OK(nh, (size_t)n) && nh->nlmsg_type == NLMSG_ERROR ? e->error : -EBADMSG;
    close(fd);
    return rc;
}

int holmes_device_super_packets(const char *ifname, uint32_t bytes)
{
    struct link_order o = {
        .nh = {.nlmsg_len = NLMSG_LENGTH(sizeof o.info),
               .nlmsg_type = RTM_NEWLINK,
               .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
        .info = {.ifi_index = (int)if_nametoindex(ifname)},
    };

    if (o.info.ifi_index == 0)
        return -ENODEV;
    add_u32(&o, IFLA_GSO_MAX_SIZE, bytes); /* of IPv4 too where that has none of its own */
    add_u32(&o, LINK_GSO_IPV4_MAX_SIZE, bytes);
    add_u32(&o, LINK_GRO_IPV4_MAX_SIZE, bytes);
    return order_run(&o);
}
