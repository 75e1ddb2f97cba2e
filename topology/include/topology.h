/* What this host has to communicate with: the Ethernet interfaces, which of them are worth using,
 * and why the others are not.
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
#define HOLMES_NICS_MAX         16 /* as many interfaces as NCCL takes */

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

/* Puts the usable interfaces, best first, into `nics` (room for HOLMES_NICS_MAX), each with its
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

/* Both together, for the variables of the environment; one log line for each interface. `nics` has
 * room for HOLMES_NICS_MAX. Errors as holmes_netif_choose, after a log line that says why. */
int holmes_nics_discover(const char *sysfs_root, struct holmes_nic *nics, int *nnics);

const char *holmes_netif_kind_name(enum holmes_netif_kind kind);

/* "10.1.0.5" or "fd00::5" into `buf`, which it returns. */
const char *holmes_addr_text(const struct holmes_addr *addr, char *buf, size_t len);

#endif
