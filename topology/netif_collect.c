/* Fills the list of interfaces from the kernel: names, flags and addresses from getifaddrs, which
 * always speaks of this network namespace; kind, speed and place from sysfs, which may be mounted
 * for another one and is then not believed. */
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "netif_facts.h"
#include "sysfs.h"

static bool sysfs_is_ours(const char *root, const char *ifname)
{
    char path[PATH_MAX];
    int64_t index;

    snprintf(path, sizeof path, "class/net/%s/ifindex", ifname);
    return sysfs_read_int(root, path, &index) == 0 && index == (int64_t)if_nametoindex(ifname);
}

static uint8_t prefix_bits(const struct sockaddr *mask)
{
    const uint8_t *p;
    size_t len;
    uint8_t bits = 0;

    if (!mask)
        return 0;
    if (mask->sa_family == AF_INET6) {
        p = ((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr.s6_addr;
        len = 16;
    } else {
        p = (const uint8_t *)&((const struct sockaddr_in *)(const void *)mask)->sin_addr;
        len = 4;
    }
    for (size_t i = 0; i < len; i++)
        bits = (uint8_t)(bits + __builtin_popcount(p[i]));
    return bits;
}

/* Labels of further addresses ("eth0:1") belong to their interface. */
static void base_name(const char *label, char *name, size_t len)
{
    snprintf(name, len, "%.*s", (int)strcspn(label, ":"), label);
}

static struct holmes_netif *find_or_add(struct holmes_netif *ifs, int *n, const char *label)
{
    char name[sizeof ifs->name];

    base_name(label, name, sizeof name);
    for (int i = 0; i < *n; i++) {
        if (strcmp(ifs[i].name, name) == 0)
            return &ifs[i];
    }
    memcpy(ifs[*n].name, name, sizeof name);
    return &ifs[(*n)++];
}

static void add_entry(struct holmes_netif *nif, const struct ifaddrs *ifa)
{
    struct holmes_addr *addr = &nif->addrs[nif->naddrs];

    nif->flags |= ifa->ifa_flags;
    if (!ifa->ifa_addr)
        return;
    if (ifa->ifa_addr->sa_family == AF_PACKET)
        nif->arp_type = ((const struct sockaddr_ll *)(const void *)ifa->ifa_addr)->sll_hatype;
    if (nif->naddrs == HOLMES_NIC_ADDRS_MAX)
        return;
    if (ifa->ifa_addr->sa_family == AF_INET)
        memcpy(&addr->in, ifa->ifa_addr, sizeof addr->in);
    else if (ifa->ifa_addr->sa_family == AF_INET6)
        memcpy(&addr->in6, ifa->ifa_addr, sizeof addr->in6);
    else
        return;
    addr->prefix_len = prefix_bits(ifa->ifa_netmask);
    nif->naddrs++;
}

int holmes_netif_collect(const char *sysfs_root, struct holmes_netif **out, int *nifs)
{
    struct holmes_netif *ifs;
    struct ifaddrs *list;
    size_t entries = 0;
    int n = 0;

    if (getifaddrs(&list) != 0)
        return -errno;
    for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next)
        entries++;
    ifs = calloc(entries + 1, sizeof *ifs);
    if (!ifs) {
        freeifaddrs(list);
        return -ENOMEM;
    }
    for (const struct ifaddrs *ifa = list; ifa; ifa = ifa->ifa_next)
        add_entry(find_or_add(ifs, &n, ifa->ifa_name), ifa);
    freeifaddrs(list);
    for (int i = 0; i < n; i++)
        netif_read_facts(sysfs_is_ours(sysfs_root, ifs[i].name) ? sysfs_root : NULL, &ifs[i]);
    *out = ifs;
    *nifs = n;
    return 0;
}
