/* Plain description of a NIC as the host sees it. Filled by topology/, used by transport/. */
#ifndef HOLMES_NIC_H
#define HOLMES_NIC_H

#include <netinet/in.h>
#include <stdbool.h>
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

enum holmes_link_layer { HOLMES_LINK_UNKNOWN, HOLMES_LINK_INFINIBAND, HOLMES_LINK_ETHERNET };

enum holmes_gid_type { HOLMES_GID_INFINIBAND, HOLMES_GID_ROCE_V1, HOLMES_GID_ROCE_V2 };

/* One entry of a port's GID table. */
struct holmes_gid {
    uint8_t bytes[16]; /* in network order */
    uint8_t index;
    uint8_t type; /* enum holmes_gid_type */
};

#define HOLMES_GIDS_MAX      8
#define HOLMES_RDMA_NAME_MAX 32

/* An RDMA port: what decides which other ports it can talk to. */
struct holmes_rdma {
    char device[HOLMES_RDMA_NAME_MAX]; /* "mlx5_0" */
    uint8_t port;                      /* from 1; 0: the NIC has no RDMA */
    uint8_t link_layer;                /* enum holmes_link_layer */
    uint16_t lid;                      /* InfiniBand */
    uint16_t mtu;                      /* active path MTU: 256 to 4096 bytes */
    uint64_t guid;                     /* of the adapter (system image), host order */
    char fabric[HOLMES_RDMA_NAME_MAX]; /* what the user said (HOLMES_FABRIC); "" is nothing */
    int ngids;
    struct holmes_gid gids[HOLMES_GIDS_MAX]; /* usable ones, best first */
    bool cuda;                               /* registers GPU memory by address (peer memory) */
};

struct holmes_nic {
    char name[HOLMES_NIC_NAME_MAX]; /* unique on the host: an Ethernet NIC has its interface's, an
                                       RDMA port "mlx5_0", or "mlx5_0:2" where the device has
                                       several ports in use */
    char ifname[16];                /* interface whose addresses these are */
    char pci_path[256];             /* resolved sysfs path of the PCI function; "" when not PCI */
    uint32_t speed_mbps;            /* 0: unknown */
    int numa_node;                  /* -1: unknown */
    int naddrs;
    struct holmes_addr addrs[HOLMES_NIC_ADDRS_MAX]; /* best first; an RDMA port may have none */
    struct holmes_rdma rdma;
};

#endif
