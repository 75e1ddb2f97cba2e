/* What this host has to communicate with: the RDMA ports and the Ethernet interfaces, which of them
 * are worth using, and why the others are not.
 *
 * The choice is a pure function over a list, so that recorded hosts can be replayed; the list comes
 * from a thin collector. Nothing here keeps state.
 */
#ifndef HOLMES_TOPOLOGY_H
#define HOLMES_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nic.h"

#define HOLMES_NETIF_REASON_MAX 160
#define HOLMES_NETIFS_MAX       16 /* used at once: as many interfaces as NCCL takes */
#define HOLMES_RDMA_PORTS_MAX   32 /* used at once: as many as NCCL takes */
#define HOLMES_NICS_MAX         (HOLMES_RDMA_PORTS_MAX + HOLMES_NETIFS_MAX)

enum holmes_netif_kind {
    HOLMES_NETIF_PHYSICAL, /* has a device below it: adapters, virtual functions, virtio */
    HOLMES_NETIF_BOND,     /* bonding or team */
    HOLMES_NETIF_VLAN,
    HOLMES_NETIF_BRIDGE,
    HOLMES_NETIF_VETH, /* one end of a pair; eth0 of a container is one */
    HOLMES_NETIF_TUNNEL,
    HOLMES_NETIF_WIRELESS,
    HOLMES_NETIF_IPOIB, /* InfiniBand: ARP type 32 */
    HOLMES_NETIF_LOOPBACK,
    HOLMES_NETIF_OTHER, /* dummy, macvlan and whatever else has no device */
};

/* One interface as the host shows it. */
struct holmes_netif {
    char name[16];
    unsigned flags;    /* IFF_* */
    unsigned arp_type; /* ARPHRD_* */
    enum holmes_netif_kind kind;
    bool uplink; /* a bridge with a physical port: the host's own way out, not a guest network */
    uint32_t speed_mbps; /* 0: unknown */
    int numa_node;       /* -1: unknown */
    char pci_path[256];  /* of the PCI function at the bottom; "" when there is none */
    int naddrs;
    struct holmes_addr addrs[HOLMES_NIC_ADDRS_MAX]; /* in the system's order */
};

/* NCCL's variables, each as the user wrote it or NULL. */
struct holmes_netif_request {
    const char *ifname;  /* NCCL_SOCKET_IFNAME */
    const char *family;  /* NCCL_SOCKET_FAMILY */
    const char *comm_id; /* NCCL_COMM_ID: a numeric address in it points at an interface */
};

struct holmes_netif_verdict {
    bool used;
    char reason[HOLMES_NETIF_REASON_MAX]; /* why it is used, or why not */
};

/* Puts the usable interfaces, best first, into `nics` (room for HOLMES_NETIFS_MAX), each with its
 * addresses best first, and gives a verdict on every interface of the list (`verdicts` has room for
 * `nifs`).
 *
 * Interfaces the user names are all used. Otherwise only the best class present is: an interface of
 * a lower class (guest bridges, tunnels, wireless, IPoIB, link-local, loopback) counts only where
 * nothing better exists.
 *
 * Returns 0; -EINVAL when NCCL_SOCKET_IFNAME cannot be met, with a sentence in `why` that names its
 * value and what exists; -ENODEV when no interface is usable at all. */
int holmes_netif_choose(const struct holmes_netif *ifs, int nifs,
                        const struct holmes_netif_request *req,
                        struct holmes_netif_verdict *verdicts, struct holmes_nic *nics, int *nnics,
                        char *why, size_t why_len);

/* Lists this network namespace's interfaces, with the facts that sysfs has below `sysfs_root`
 * ("/sys"). An interface that sysfs does not show, or shows with another index (a /sys of another
 * namespace), keeps what the kernel says without it. The caller frees *out. 0 or a negative errno.
 */
int holmes_netif_collect(const char *sysfs_root, struct holmes_netif **out, int *nifs);

/* The same of another machine whose sysfs was recorded: nothing comes from this machine's kernel,
 * so no interface has addresses. Those that were recorded as a name only are left out. */
int holmes_netif_collect_recorded(const char *sysfs_root, struct holmes_netif **out, int *nifs);

#define HOLMES_GIDS_SEEN_MAX 256 /* entries of a port's GID table that are looked at */

/* One entry of a GID table that is not zero. */
struct holmes_gid_seen {
    uint8_t bytes[16]; /* in network order */
    uint8_t index;
    int8_t type;   /* enum holmes_gid_type; -1: not told */
    char ndev[16]; /* its interface, which may be another namespace's; "" when not told */
};

/* One port of an RDMA device as sysfs shows it. */
struct holmes_rdma_port_seen {
    char device[HOLMES_RDMA_NAME_MAX];
    uint8_t port;
    int node_type;       /* 1: channel adapter, 4: iWARP; 0 when not told */
    int state;           /* 4: active; 0 when not told */
    char state_text[40]; /* of the port, for people: "DOWN, Polling" */
    enum holmes_link_layer link_layer;
    uint16_t lid;
    uint32_t speed_mbps; /* 0: unknown */
    uint64_t guid;       /* system image, or the node's where there is none */
    char pci_path[256];  /* of its own PCI function; "" when there is none */
    int numa_node;       /* -1: unknown */
    bool peer_memory;    /* the kernel lets it register GPU memory by address */
    int ngids;
    struct holmes_gid_seen gids[HOLMES_GIDS_SEEN_MAX];
};

/* The variables, each text as the user wrote it or NULL; HOLMES_RDMA_NOTHING_ASKED has NCCL's
 * defaults. */
struct holmes_rdma_request {
    const char *hca;         /* NCCL_IB_HCA */
    const char *fabric;      /* HOLMES_FABRIC */
    const char *host;        /* to be found in a file that it names; NULL: this one */
    int64_t gid_index;       /* NCCL_IB_GID_INDEX; below 0: the best one */
    int roce_version;        /* NCCL_IB_ROCE_VERSION_NUM */
    const char *addr_family; /* NCCL_IB_ADDR_FAMILY */
    const char *addr_range;  /* NCCL_IB_ADDR_RANGE */
    int64_t flid_gid_index;  /* NCCL_IB_ROUTABLE_FLID_GID_INDEX */
    bool keep_vfs;           /* NCCL_IB_MERGE_VFS=0 */
    /* Whether the port can be opened: 0 or a negative errno. Asked once for each port that is worth
     * using. NULL: not asked. */
    int (*open_error)(void *arg, const char *device, int port);
    void *arg;
};
#define HOLMES_RDMA_NOTHING_ASKED                                                                  \
    {                                                                                              \
        .gid_index = -1, .roce_version = 2, .flid_gid_index = 1                                    \
    }

struct holmes_rdma_verdict {
    bool used;
    bool link_local; /* used, but its only RoCE v2 GIDs end at the next router */
    char reason[HOLMES_NETIF_REASON_MAX];
};

/* Puts the usable ports, in the order of their PCI addresses, into `nics` (room for
 * HOLMES_RDMA_PORTS_MAX), each with its GIDs best first, and gives a verdict on every port of the
 * list. Pure but for req->open_error and a file that req->fabric may name.
 *
 * `ifs` are the interfaces of this network namespace, `ethernet` those in use: a RoCE port has the
 * addresses of its own one when that is in use. nic.rdma.mtu is left 0 (sysfs has none): whoever
 * opens the port fills it.
 *
 * Returns 0, also when no port is usable; `why` is then "" or tells of what has no effect in a
 * variable. -EINVAL when a variable cannot be met, with a sentence in `why` that names its value
 * and what exists. */
int holmes_rdma_choose(const struct holmes_rdma_port_seen *ports, int nports,
                       const struct holmes_rdma_request *req, const struct holmes_netif *ifs,
                       int nifs, const struct holmes_nic *ethernet, int nethernet,
                       struct holmes_rdma_verdict *verdicts, struct holmes_nic *nics, int *nnics,
                       char *why, size_t why_len);

/* Lists the ports of all RDMA devices below `sysfs_root`, by name. None is no error. The caller
 * frees *out. 0 or a negative errno. */
int holmes_rdma_collect(const char *sysfs_root, struct holmes_rdma_port_seen **out, int *nports);

/* The same for a folder that holds what class/infiniband does, and nothing else of a sysfs. */
int holmes_rdma_collect_class(const char *folder, struct holmes_rdma_port_seen **out, int *nports);

/* The requests of this process's environment, as holmes_nics_discover makes them. */
struct holmes_netif_request holmes_netif_request_env(void);
struct holmes_rdma_request holmes_rdma_request_env(void);

struct holmes_nics {
    int n;
    int nshown; /* the first ones, for NCCL: the RDMA ports, or all where there is none */
    struct holmes_nic nics[HOLMES_NICS_MAX]; /* RDMA ports, then Ethernet NICs */
};

/* All together, for the variables of the environment; one log line for each interface and port.
 * `open_error` and `arg` as in struct holmes_rdma_request. Errors as holmes_netif_choose and
 * holmes_rdma_choose, after a log line that says why. */
int holmes_nics_discover(const char *sysfs_root,
                         int (*open_error)(void *arg, const char *device, int port), void *arg,
                         struct holmes_nics *out);

#define HOLMES_FUSE_MAX 4

/* Describes the device that the `n` RDMA ports, or Ethernet NICs, make together: "mlx5_0+mlx5_1"
 * with their summed speed and the first one's place and port. -EINVAL for members that cannot be
 * one, with a sentence in `why`. */
int holmes_nics_fuse(const struct holmes_nic *const *members, int n, struct holmes_nic *out,
                     char *why, size_t why_len);

const char *holmes_netif_kind_name(enum holmes_netif_kind kind);

/* "10.1.0.5" or "fd00::5" into `buf`, which it returns. */
const char *holmes_addr_text(const struct holmes_addr *addr, char *buf, size_t len);

#endif
