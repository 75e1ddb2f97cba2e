/* What sysfs tells of an interface: kind, speed, place. Of this machine's or of a recorded one's.
 */
#include "netif_facts.h"

#include <dirent.h>
#include <limits.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <string.h>

#include "sysfs.h"

/* Interfaces stack: a VLAN on a bond on two adapters. */
#define LOWER_DEPTH_MAX 4

static const char *net_path(char *buf, size_t len, const char *ifname, const char *attr)
{
    snprintf(buf, len, "class/net/%s/%s", ifname, attr);
    return buf;
}

/* The interface at the bottom of a stack, or false when nothing below has a device. */
static bool find_device(const char *root, const char *ifname, int depth, char *pci, size_t pci_len)
{
    char path[PATH_MAX];
    struct dirent *e;
    bool found = false;
    DIR *dir;

    net_path(path, sizeof path, ifname, "device");
    if (sysfs_exists(root, path)) {
        sysfs_pci_path(root, path, pci, pci_len);
        return true;
    }
    if (depth == 0 ||
        (size_t)snprintf(path, sizeof path, "%s/class/net/%s", root, ifname) >= sizeof path)
        return false;
    dir = opendir(path);
    if (!dir)
        return false;
    while (!found && (e = readdir(dir))) {
        if (strncmp(e->d_name, "lower_", 6) == 0)
            found = find_device(root, e->d_name + 6, depth - 1, pci, pci_len);
    }
    closedir(dir);
    return found;
}

static bool has_devtype(const char *uevent, const char *type)
{
    const char *p = strstr(uevent, "DEVTYPE=");
    size_t len = strlen(type);

    return p && strncmp(p + 8, type, len) == 0 && (p[8 + len] == '\n' || p[8 + len] == '\0');
}

static bool is_tunnel(const char *root, const struct holmes_netif *nif, const char *uevent)
{
    char path[PATH_MAX];

    if (has_devtype(uevent, "wireguard") || has_devtype(uevent, "vxlan") ||
        has_devtype(uevent, "geneve") ||
        sysfs_exists(root, net_path(path, sizeof path, nif->name, "tun_flags")))
        return true;
    switch (nif->arp_type) {
    case ARPHRD_NONE:
    case ARPHRD_PPP:
    case ARPHRD_TUNNEL:
    case ARPHRD_TUNNEL6:
    case ARPHRD_SIT:
    case ARPHRD_IPGRE:
    case 823: /* ARPHRD_IP6GRE, not in every libc's header */
        return true;
    default:
        return false;
    }
}

static enum holmes_netif_kind kind_of(const char *root, const struct holmes_netif *nif)
{
    char path[PATH_MAX], uevent[512] = "";
    int64_t index = 0, link = 0;

    if (nif->flags & IFF_LOOPBACK)
        return HOLMES_NETIF_LOOPBACK;
    if (nif->arp_type == ARPHRD_INFINIBAND)
        return HOLMES_NETIF_IPOIB;
    sysfs_read(root, net_path(path, sizeof path, nif->name, "uevent"), uevent, sizeof uevent);
    if (has_devtype(uevent, "wlan") ||
        sysfs_exists(root, net_path(path, sizeof path, nif->name, "wireless")) ||
        sysfs_exists(root, net_path(path, sizeof path, nif->name, "phy80211")))
        return HOLMES_NETIF_WIRELESS;
    if (sysfs_exists(root, net_path(path, sizeof path, nif->name, "device")))
        return HOLMES_NETIF_PHYSICAL;
    if (has_devtype(uevent, "bond") || has_devtype(uevent, "team") ||
        sysfs_exists(root, net_path(path, sizeof path, nif->name, "bonding")))
        return HOLMES_NETIF_BOND;
    if (has_devtype(uevent, "vlan"))
        return HOLMES_NETIF_VLAN;
    if (has_devtype(uevent, "bridge") ||
        sysfs_exists(root, net_path(path, sizeof path, nif->name, "bridge")))
        return HOLMES_NETIF_BRIDGE;
    if (is_tunnel(root, nif, uevent))
        return HOLMES_NETIF_TUNNEL;
    if (sysfs_read_int(root, net_path(path, sizeof path, nif->name, "ifindex"), &index) == 0 &&
        sysfs_read_int(root, net_path(path, sizeof path, nif->name, "iflink"), &link) == 0 &&
        index != link)
        return HOLMES_NETIF_VETH;
    return HOLMES_NETIF_OTHER;
}

void netif_read_facts(const char *root, struct holmes_netif *nif)
{
    char path[PATH_MAX], numa[PATH_MAX];
    int64_t v;

    nif->numa_node = -1;
    nif->kind = kind_of(root, nif);
    if (sysfs_read_int(root, net_path(path, sizeof path, nif->name, "speed"), &v) == 0 && v > 0 &&
        v <= UINT32_MAX)
        nif->speed_mbps = (uint32_t)v;
    if (nif->kind == HOLMES_NETIF_LOOPBACK ||
        !find_device(root, nif->name, LOWER_DEPTH_MAX, nif->pci_path, sizeof nif->pci_path))
        return;
    nif->uplink = nif->kind == HOLMES_NETIF_BRIDGE;
    if (nif->pci_path[0] &&
        (size_t)snprintf(numa, sizeof numa, "%s/numa_node", nif->pci_path) < sizeof numa &&
        sysfs_read_int("", numa + 1, &v) == 0 && v >= 0 && v <= INT_MAX)
        nif->numa_node = (int)v;
}
