/* Plain description of a NIC as the host sees it. Filled by topology/, used by transport/. */
#ifndef HOLMES_NIC_H
#define HOLMES_NIC_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#define HOLMES_NIC_NAME_MAX  64
#define HOLMES_NIC_ADDRS_MAX 8

/* An IP address with its on-link prefix. `sa` has port 0; for IPv6 link-local the scope is set. */
struct holmes_addr {
    union {
        struct sockaddr sa;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    };
    uint8_t prefix_len; /* bits */
};

static inline socklen_t holmes_addr_len(const struct holmes_addr *a)
{
    return a->sa.sa_family == AF_INET6 ? sizeof a->in6 : sizeof a->in;
}

struct holmes_nic {
    char name[HOLMES_NIC_NAME_MAX]; /* unique on the host; an Ethernet NIC has its interface's */
    char ifname[16];                /* interface whose addresses these are */
    char pci_path[256];             /* resolved sysfs path of the PCI function; "" when not PCI */
    uint32_t speed_mbps;            /* 0: unknown */
    int numa_node;                  /* -1: unknown */
    int naddrs;
    struct holmes_addr addrs[HOLMES_NIC_ADDRS_MAX]; /* best first */
};

#endif
