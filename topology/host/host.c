/* The host as a value: its lists, what is made of them, and its end. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "build.h"
#include "pci.h"

struct holmes_host *host_new(enum holmes_host_source source)
{
    struct holmes_host *h = calloc(1, sizeof *h);

    if (h)
        h->source = source;
    return h;
}

void holmes_host_destroy(struct holmes_host *h)
{
    if (!h)
        return;
    for (int i = 0; i < h->nnotes; i++)
        free(h->notes[i]);
    free(h->notes);
    free(h->skipped);
    free(h->distance);
    free(h->nics);
    free(h->gpus);
    free(h->netifs);
    free(h->ports);
    free(h->pcis);
    free(h->cpus);
    free(h);
}

/* Room for one more; lists grow in powers of two, so their length tells their room. */
static void *list_add(void *list, int *n, size_t size)
{
    void **base = list, *p = *base;

    if ((*n & (*n - 1)) == 0) {
        p = realloc(p, (*n > 0 ? 2 * (size_t)*n : 1) * size);
        if (!p)
            return NULL;
        *base = p;
    }
    p = (char *)p + (size_t)(*n)++ * size;
    return memset(p, 0, size);
}

struct holmes_host_cpu *host_add_cpu(struct holmes_host *h)
{
    struct holmes_host_cpu *c = list_add(&h->cpus, &h->ncpus, sizeof *c);

    if (c)
        c->numa_node = c->family = c->model = -1;
    return c;
}

struct holmes_host_pci *host_add_pci(struct holmes_host *h, const char *address)
{
    struct holmes_host_pci *p = list_add(&h->pcis, &h->npcis, sizeof *p);

    if (p) {
        snprintf(p->address, sizeof p->address, "%s", address);
        p->parent = p->numa_node = -1;
    }
    return p;
}

struct holmes_host_port *host_add_port(struct holmes_host *h)
{
    struct holmes_host_port *p = list_add(&h->ports, &h->nports, sizeof *p);

    if (p)
        p->nic = p->seen.numa_node = -1;
    return p;
}

struct holmes_host_netif *host_add_netif(struct holmes_host *h)
{
    struct holmes_host_netif *p = list_add(&h->netifs, &h->nnetifs, sizeof *p);

    if (p)
        p->nic = p->seen.numa_node = -1;
    return p;
}

struct holmes_host_gpu *host_add_gpu(struct holmes_host *h)
{
    struct holmes_host_gpu *g = list_add(&h->gpus, &h->ngpus, sizeof *g);

    if (g)
        g->pci = g->numa_node = g->dev = -1;
    return g;
}

struct holmes_host_nic *host_add_nic(struct holmes_host *h)
{
    struct holmes_host_nic *n = list_add(&h->nics, &h->nnics, sizeof *n);

    if (n)
        n->pci = n->numa_node = -1;
    return n;
}

int host_skip(struct holmes_host *h, const char *what, const char *fmt, ...)
{
    struct holmes_host_skip *s = list_add(&h->skipped, &h->nskipped, sizeof *s);
    va_list ap;

    if (!s)
        return -ENOMEM;
    snprintf(s->what, sizeof s->what, "%s", what);
    va_start(ap, fmt);
    vsnprintf(s->reason, sizeof s->reason, fmt, ap);
    va_end(ap);
    return 0;
}

int host_note(struct holmes_host *h, const char *fmt, ...)
{
    char **slot, *text;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return -ENOMEM;
    slot = list_add(&h->notes, &h->nnotes, sizeof *slot);
    if (!slot) {
        free(text);
        return -ENOMEM;
    }
    *slot = text;
    return 0;
}

int host_find_pci(const struct holmes_host *h, const char *address)
{
    for (int i = 0; *address && i < h->npcis; i++)
        if (strcmp(h->pcis[i].address, address) == 0)
            return i;
    return -1;
}

static struct holmes_host_nic *find_nic(struct holmes_host *h, const char *address,
                                        const char *name)
{
    for (int i = 0; i < h->nnics; i++)
        if (*address ? strcmp(h->nics[i].address, address) == 0
                     : !h->nics[i].address[0] && strcmp(h->nics[i].name, name) == 0)
            return &h->nics[i];
    return NULL;
}

static int add_to_nic(struct holmes_host *h, const char *address, const char *name, int numa,
                      uint32_t mbps, bool used)
{
    struct holmes_host_nic *n = find_nic(h, address, name);

    if (!n) {
        n = host_add_nic(h);
        if (!n)
            return -ENOMEM;
        snprintf(n->address, sizeof n->address, "%s", address);
        n->pci = host_find_pci(h, address);
    }
    if (!n->name[0])
        snprintf(n->name, sizeof n->name, "%s", name);
    if (n->numa_node < 0)
        n->numa_node = numa;
    if (mbps > n->speed_mbps)
        n->speed_mbps = mbps;
    n->used |= used;
    return 0;
}

/* A software device is the NIC of its interface. */
static const struct holmes_host_netif *netif_below(const struct holmes_host *h,
                                                   const struct holmes_host_port *p)
{
    for (int i = 0; p->netdev[0] && i < h->nnetifs; i++)
        if (strcmp(h->netifs[i].seen.name, p->netdev) == 0)
            return &h->netifs[i];
    return NULL;
}

static int add_port_nics(struct holmes_host *h)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < h->nports; i++) {
        const struct holmes_host_port *p = &h->ports[i];
        const struct holmes_host_netif *nif = p->seen.pci_path[0] ? NULL : netif_below(h, p);
        const char *address = nif ? nif->seen.pci_path : p->seen.pci_path;

        rc = add_to_nic(h, address, p->seen.device, nif ? nif->seen.numa_node : p->seen.numa_node,
                        p->seen.speed_mbps, p->verdict.used);
        if (rc == 0 && nif && !*address) { /* no PCI at all: one NIC under both names */
            struct holmes_host_nic *n = find_nic(h, "", p->seen.device);

            if (n && nif->verdict.used)
                n->used = true;
        }
    }
    return rc;
}

static bool carries_rdma(const struct holmes_host *h, const char *netif)
{
    for (int i = 0; i < h->nports; i++)
        if (!h->ports[i].seen.pci_path[0] && strcmp(h->ports[i].netdev, netif) == 0)
            return true;
    return false;
}

/* Bonds, VLANs and bridges are no NICs: the interfaces below them are. */
static int add_netif_nics(struct holmes_host *h)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < h->nnetifs; i++) {
        const struct holmes_netif *s = &h->netifs[i].seen;

        if (s->kind != HOLMES_NETIF_PHYSICAL && s->kind != HOLMES_NETIF_IPOIB &&
            s->kind != HOLMES_NETIF_WIRELESS)
            continue;
        if (!s->pci_path[0] && (s->kind == HOLMES_NETIF_IPOIB || carries_rdma(h, s->name)))
            continue;
        rc = add_to_nic(h, s->pci_path, s->name, s->numa_node, s->speed_mbps,
                        h->netifs[i].verdict.used);
    }
    return rc;
}

/* Functions that no driver gave a name. */
static int add_bare_nics(struct holmes_host *h)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < h->npcis; i++)
        if (pci_is_nic(h->pcis[i].class) && !find_nic(h, h->pcis[i].address, ""))
            rc = add_to_nic(h, h->pcis[i].address, h->pcis[i].address, h->pcis[i].numa_node, 0,
                            false);
    return rc;
}

int host_measure(struct holmes_host *h)
{
    size_t n = (size_t)h->ngpus * (size_t)h->nnics;

    h->distance = calloc(n + 1, sizeof *h->distance);
    if (!h->distance)
        return -ENOMEM;
    for (int g = 0; g < h->ngpus; g++)
        for (int i = 0; i < h->nnics; i++)
            h->distance[g * h->nnics + i] = pci_distance(
                h, h->gpus[g].pci, h->nics[i].pci, h->gpus[g].numa_node, h->nics[i].numa_node);
    return 0;
}

static int nic_compare(const void *pa, const void *pb)
{
    const struct holmes_host_nic *a = pa, *b = pb;

    if (!a->address[0] != !b->address[0])
        return !a->address[0] - !b->address[0];
    return a->address[0] ? strcmp(a->address, b->address) : strverscmp(a->name, b->name);
}

int host_finish(struct holmes_host *h)
{
    int rc = add_port_nics(h);

    if (rc == 0)
        rc = add_netif_nics(h);
    if (rc == 0)
        rc = add_bare_nics(h);
    if (h->nnics > 0)
        qsort(h->nics, (size_t)h->nnics, sizeof *h->nics, nic_compare);
    return rc == 0 ? host_measure(h) : rc;
}

int holmes_host_ports_used(const struct holmes_host *h)
{
    int n = 0;

    for (int i = 0; i < h->nports; i++)
        n += h->ports[i].verdict.used;
    return n;
}

const char *holmes_host_prefix(const struct holmes_host_port *p, char *buf, size_t len)
{
    if (p->seen.link_layer != HOLMES_LINK_INFINIBAND)
        return NULL;
    for (int i = 0; i < p->seen.ngids; i++) {
        const uint8_t *b = p->seen.gids[i].bytes;

        if (p->seen.gids[i].index != 0)
            continue;
        snprintf(buf, len, "%x:%x:%x:%x", b[0] << 8 | b[1], b[2] << 8 | b[3], b[4] << 8 | b[5],
                 b[6] << 8 | b[7]);
        return buf;
    }
    return NULL;
}

const char *holmes_host_gid_kinds(const struct holmes_host *h, const struct holmes_host_port *p,
                                  char *buf, size_t len)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    const struct holmes_rdma *r = p->nic >= 0 ? &h->chosen.nics[p->nic].rdma : NULL;
    size_t used = 0;

    buf[0] = '\0';
    if (!r || p->seen.link_layer != HOLMES_LINK_ETHERNET)
        return buf;
    for (int i = 0; i < r->ngids && used < len; i++) {
        char kind[16];

        snprintf(kind, sizeof kind, "v%d-%s", r->gids[i].type == HOLMES_GID_ROCE_V1 ? 1 : 2,
                 memcmp(r->gids[i].bytes, mapped, sizeof mapped) == 0 ? "ipv4" : "ipv6");
        if (!strstr(buf, kind))
            used += (size_t)snprintf(buf + used, len - used, "%s%s", used > 0 ? "," : "", kind);
    }
    return buf;
}

const char *holmes_path_name(enum holmes_path p)
{
    static const char *const names[] = {
        [HOLMES_PATH_UNKNOWN] = "?", [HOLMES_PATH_PIX] = "PIX",   [HOLMES_PATH_PXB] = "PXB",
        [HOLMES_PATH_PHB] = "PHB",   [HOLMES_PATH_NODE] = "NODE", [HOLMES_PATH_SYS] = "SYS",
    };

    return names[p];
}

const char *holmes_host_source_name(enum holmes_host_source s)
{
    static const char *const names[] = {
        [HOLMES_HOST_LIVE] = "live",
        [HOLMES_HOST_RECORDED] = "recorded",
        [HOLMES_HOST_HWLOC] = "hwloc",
        [HOLMES_HOST_NCCL] = "nccl",
    };

    return names[s];
}
