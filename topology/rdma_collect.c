/* Fills the list of RDMA ports from sysfs, and judges nothing. Devices may vanish while they are
 * read: what cannot be read stays as if it were not there. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sysfs.h"
#include "topology.h"

#define CLASS "class/infiniband"

/* Where the devices are: `class` below `root`. */
struct place {
    const char *root, *class;
};

struct port_list {
    struct holmes_rdma_port_seen *ports;
    int n, room;
};

/* Where a port's attributes are: "class/infiniband/mlx5_0/ports/1". */
struct port_place {
    const char *root;
    char dir[PATH_MAX / 2];
};

static int read_attr(const struct port_place *at, const char *attr, char *buf, size_t len)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", at->dir, attr);
    return sysfs_read(at->root, path, buf, len);
}

/* "0002:c903:00f9:bfa0", `n` groups, into 2n bytes. */
static int parse_groups(const char *text, int n, uint8_t *out)
{
    for (int i = 0; i < n; i++) {
        char *end;
        unsigned long v = strtoul(text, &end, 16);

        if (end - text != 4 || *end != (i + 1 < n ? ':' : '\0'))
            return -EINVAL;
        out[2 * i] = (uint8_t)(v >> 8);
        out[2 * i + 1] = (uint8_t)v;
        text = end + 1;
    }
    return 0;
}

static uint64_t read_guid(const struct port_place *at, const char *attr)
{
    char text[64];
    uint8_t bytes[8];
    uint64_t guid = 0;

    if (read_attr(at, attr, text, sizeof text) != 0 || parse_groups(text, 4, bytes) != 0)
        return 0;
    for (int i = 0; i < 8; i++)
        guid = guid << 8 | bytes[i];
    return guid;
}

/* "2.5 Gb/sec (1X SDR)" in Mbit/s; 0 when it is none. */
static uint32_t parse_rate(const char *text)
{
    char *end;
    unsigned long gbit = strtoul(text, &end, 10), mbit = 0;

    if (end == text || gbit > 1000000)
        return 0;
    if (*end == '.') {
        unsigned long unit = 100;

        for (end++; *end >= '0' && *end <= '9'; end++, unit /= 10)
            mbit += unit * (unsigned long)(*end - '0');
    }
    return strncmp(end, " Gb/sec", 7) == 0 ? (uint32_t)(gbit * 1000 + mbit) : 0;
}

/* Attributes like "4: ACTIVE". The word is put behind what `words` has. */
static int read_state(const struct port_place *at, const char *attr, char *words, size_t len)
{
    char text[64], *word;
    size_t used = strlen(words);

    if (read_attr(at, attr, text, sizeof text) != 0)
        return 0;
    word = strstr(text, ": ");
    if (word)
        snprintf(words + used, len - used, "%s%s", used > 0 ? ", " : "", word + 2);
    return atoi(text);
}

static enum holmes_link_layer read_link_layer(const struct port_place *at)
{
    char text[32];

    if (read_attr(at, "link_layer", text, sizeof text) != 0)
        return HOLMES_LINK_UNKNOWN;
    return strcmp(text, "InfiniBand") == 0 ? HOLMES_LINK_INFINIBAND
           : strcmp(text, "Ethernet") == 0 ? HOLMES_LINK_ETHERNET
                                           : HOLMES_LINK_UNKNOWN;
}

static int8_t read_gid_type(const struct port_place *at, int index)
{
    char attr[48], text[32];

    snprintf(attr, sizeof attr, "gid_attrs/types/%d", index);
    if (read_attr(at, attr, text, sizeof text) != 0)
        return -1;
    if (strcmp(text, "RoCE v2") == 0)
        return HOLMES_GID_ROCE_V2;
    return strcmp(text, "IB/RoCE v1") == 0 || strcmp(text, "RoCE v1") == 0 ? HOLMES_GID_ROCE_V1
                                                                           : -1;
}

static void read_gids(const struct port_place *at, struct holmes_rdma_port_seen *p)
{
    static const uint8_t zero[16];

    for (int i = 0; i < HOLMES_GIDS_SEEN_MAX; i++) {
        struct holmes_gid_seen *g = &p->gids[p->ngids];
        char attr[48], text[64];
        int rc;

        snprintf(attr, sizeof attr, "gids/%d", i);
        rc = read_attr(at, attr, text, sizeof text);
        if (rc == -ENOENT)
            return;
        if (rc != 0 || parse_groups(text, 8, g->bytes) != 0 || memcmp(g->bytes, zero, 16) == 0)
            continue;
        g->index = (uint8_t)i;
        g->type =
            p->link_layer == HOLMES_LINK_INFINIBAND ? HOLMES_GID_INFINIBAND : read_gid_type(at, i);
        snprintf(attr, sizeof attr, "gid_attrs/ndevs/%d", i);
        if (read_attr(at, attr, g->ndev, sizeof g->ndev) != 0)
            g->ndev[0] = '\0';
        p->ngids++;
    }
}

static void read_port(const struct place *place, const struct holmes_rdma_port_seen *device,
                      int port, struct holmes_rdma_port_seen *p)
{
    struct port_place at = {.root = place->root};
    char text[64];
    int64_t lid;

    *p = *device;
    p->port = (uint8_t)port;
    snprintf(at.dir, sizeof at.dir, "%s/%s/ports/%d", place->class, device->device, port);
    p->state = read_state(&at, "state", p->state_text, sizeof p->state_text);
    read_state(&at, "phys_state", p->state_text, sizeof p->state_text);
    p->link_layer = read_link_layer(&at);
    if (read_attr(&at, "rate", text, sizeof text) == 0)
        p->speed_mbps = parse_rate(text);
    if (p->link_layer == HOLMES_LINK_INFINIBAND && read_attr(&at, "lid", text, sizeof text) == 0) {
        lid = strtoll(text, NULL, 0);
        p->lid = lid > 0 && lid <= UINT16_MAX ? (uint16_t)lid : 0;
    }
    read_gids(&at, p);
}

/* GPU memory is registered by address through one of these modules. */
static bool has_peer_memory(const char *root)
{
    return sysfs_exists(root, "kernel/mm/memory_peers/nv_mem/version") ||
           sysfs_exists(root, "kernel/mm/memory_peers/nv_mem_nc/version") ||
           sysfs_exists(root, "module/nvidia_peermem/version");
}

static void read_device(const struct place *place, const char *name,
                        struct holmes_rdma_port_seen *d)
{
    const char *root = place->root, *class = place->class;
    struct port_place at = {.root = root};
    char text[64], path[PATH_MAX];
    int64_t v;

    memset(d, 0, sizeof *d);
    snprintf(d->device, sizeof d->device, "%s", name);
    snprintf(at.dir, sizeof at.dir, "%s/%s", class, name);
    if (read_attr(&at, "node_type", text, sizeof text) == 0)
        d->node_type = atoi(text);
    d->guid = read_guid(&at, "sys_image_guid");
    if (d->guid == 0)
        d->guid = read_guid(&at, "node_guid");
    snprintf(path, sizeof path, "%s/%s/device", class, name);
    if (sysfs_pci_path(root, path, d->pci_path, sizeof d->pci_path) != 0)
        d->pci_path[0] = '\0';
    snprintf(path, sizeof path, "%s/%s/device/numa_node", class, name);
    d->numa_node = sysfs_read_int(root, path, &v) == 0 && v >= 0 && v <= INT_MAX ? (int)v : -1;
    d->peer_memory = has_peer_memory(root);
}

static struct holmes_rdma_port_seen *list_grow(struct port_list *l)
{
    if (l->n == l->room) {
        int room = l->room > 0 ? 2 * l->room : 4;
        struct holmes_rdma_port_seen *p = realloc(l->ports, (size_t)room * sizeof *p);

        if (!p)
            return NULL;
        l->ports = p;
        l->room = room;
    }
    return &l->ports[l->n++];
}

static int collect_device(const struct place *place, const char *name, struct port_list *l)
{
    struct holmes_rdma_port_seen device, *p;
    char path[PATH_MAX];

    if (strlen(name) >= sizeof device.device)
        return 0; /* longer than the kernel allows */
    read_device(place, name, &device);
    for (int port = 1; port <= UINT8_MAX; port++) {
        snprintf(path, sizeof path, "%s/%s/ports/%d", place->class, name, port);
        if (!sysfs_exists(place->root, path))
            return 0;
        p = list_grow(l);
        if (!p)
            return -ENOMEM;
        read_port(place, &device, port, p);
    }
    return 0;
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static int collect(const struct place *place, struct holmes_rdma_port_seen **out, int *nports)
{
    struct port_list l = {NULL, 0, 0};
    struct dirent **names;
    char path[PATH_MAX];
    int n, rc = 0;

    if ((size_t)snprintf(path, sizeof path, "%s/%s", place->root, place->class) >= sizeof path)
        return -ENAMETOOLONG;
    n = scandir(path, &names, is_visible, versionsort);
    if (n < 0 && errno != ENOENT && errno != ENOTDIR)
        return -errno;
    for (int i = 0; i < n; i++) {
        if (rc == 0)
            rc = collect_device(place, names[i]->d_name, &l);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    if (rc != 0) {
        free(l.ports);
        return rc;
    }
    *out = l.ports;
    *nports = l.n;
    return 0;
}

int holmes_rdma_collect(const char *sysfs_root, struct holmes_rdma_port_seen **out, int *nports)
{
    return collect(&(struct place){sysfs_root, CLASS}, out, nports);
}

int holmes_rdma_collect_class(const char *folder, struct holmes_rdma_port_seen **out, int *nports)
{
    return collect(&(struct place){folder, "."}, out, nports);
}
