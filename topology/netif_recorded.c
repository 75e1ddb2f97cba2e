/* Fills the list of interfaces of another machine from its recorded sysfs, and asks nothing of this
 * machine's kernel. sysfs has no addresses. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "netif_facts.h"
#include "sysfs.h"

#define CLASS "class/net"

static int read_attr(const char *root, const char *ifname, const char *attr, char *buf, size_t len)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, CLASS "/%s/%s", ifname, attr);
    return sysfs_read(root, path, buf, len);
}

/* sysfs shows the flags without those that the kernel makes of the state when it is asked. */
static unsigned read_flags(const char *root, const char *ifname)
{
    char text[64];
    unsigned flags = 0;
    bool running = false;

    if (read_attr(root, ifname, "flags", text, sizeof text) == 0)
        flags = (unsigned)strtoul(text, NULL, 16) & ~(unsigned)IFF_RUNNING;
    if (read_attr(root, ifname, "operstate", text, sizeof text) == 0)
        running = strcmp(text, "up") == 0 || strcmp(text, "unknown") == 0;
    else if (read_attr(root, ifname, "carrier", text, sizeof text) == 0)
        running = strcmp(text, "1") == 0;
    if (running && flags & IFF_UP)
        flags |= IFF_RUNNING;
    if (read_attr(root, ifname, "type", text, sizeof text) == 0 &&
        strtoul(text, NULL, 10) == ARPHRD_LOOPBACK)
        flags |= IFF_LOOPBACK;
    return flags;
}

static void read_netif(const char *root, const char *name, struct holmes_netif *nif)
{
    char text[64];

    memset(nif, 0, sizeof *nif);
    memcpy(nif->name, name, strlen(name));
    nif->flags = read_flags(root, name);
    if (strcmp(name, "lo") == 0)
        nif->flags |= IFF_LOOPBACK;
    if (read_attr(root, name, "type", text, sizeof text) == 0)
        nif->arp_type = (unsigned)strtoul(text, NULL, 10);
    netif_read_facts(root, nif);
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

int holmes_netif_collect_recorded(const char *sysfs_root, struct holmes_netif **out, int *nifs)
{
    struct holmes_netif *ifs = NULL;
    struct dirent **names;
    char path[PATH_MAX];
    int n, used = 0;

    if ((size_t)snprintf(path, sizeof path, "%s/" CLASS, sysfs_root) >= sizeof path)
        return -ENAMETOOLONG;
    n = scandir(path, &names, is_visible, versionsort);
    if (n < 0 && errno != ENOENT && errno != ENOTDIR)
        return -errno;
    if (n >= 0) {
        ifs = calloc((size_t)n + 1, sizeof *ifs);
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, CLASS "/%s/.", names[i]->d_name);
            if (ifs && strlen(names[i]->d_name) < sizeof ifs->name &&
                sysfs_exists(sysfs_root, path))
                read_netif(sysfs_root, names[i]->d_name, &ifs[used++]);
            free(names[i]);
        }
        free(names);
        if (!ifs)
            return -ENOMEM;
    }
    *out = ifs;
    *nifs = used;
    return 0;
}
