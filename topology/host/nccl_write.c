/* Writes NCCL topology XML, in the narrow form that NCCL's own parser takes: no declaration, no
 * text, one blank before each attribute, values of at most 254 characters. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"
#include "pci.h"
#include "utf8.h"

#define VALUE_MAX 254

struct writer {
    const struct holmes_host *h;
    FILE *out;
    int indent;
    bool *has_net; /* by PCI function: in or below it */
    int bare;      /* number of the next address that no machine has */
};

static void open_tag(struct writer *w, const char *name)
{
    fprintf(w->out, "%*s<%s", w->indent, "", name);
}

/* NCCL's parser knows no references: what XML would have to escape becomes '_'. */
static void attr(struct writer *w, const char *key, const char *value)
{
    size_t n, used = 0;

    fprintf(w->out, " %s=\"", key);
    for (const char *p = value; *p && used < VALUE_MAX; p += n, used += n) {
        uint32_t c = holmes_utf8_decode(p, &n);

        if (c < ' ' || c >= 0x7f || strchr("\"'<>&", (int)c))
            fputc('_', w->out);
        else
            fputc((int)c, w->out);
    }
    fputc('"', w->out);
}

static void attr_int(struct writer *w, const char *key, long long value)
{
    fprintf(w->out, " %s=\"%lld\"", key, value);
}

static void attr_hex(struct writer *w, const char *key, unsigned long long value, int digits)
{
    fprintf(w->out, " %s=\"0x%0*llx\"", key, digits, value);
}

static void open_end(struct writer *w)
{
    fputs(">\n", w->out);
    w->indent += 2;
}

static void close_tag(struct writer *w, const char *name)
{
    w->indent -= 2;
    fprintf(w->out, "%*s</%s>\n", w->indent, "", name);
}

static void write_net(struct writer *w, const char *name, int nic, uint32_t mbps, int port,
                      uint64_t guid, bool gdr)
{
    open_tag(w, "net");
    attr(w, "name", name);
    if (nic >= 0 && nic < w->h->chosen.nshown) /* else NCCL is not shown it: no number */
        attr_int(w, "dev", nic);
    if (mbps > 0)
        attr_int(w, "speed", mbps);
    attr_int(w, "port", port);
    if (guid != 0)
        attr_hex(w, "guid", guid, 1);
    if (gdr) /* what is written here NCCL does not ask the plugin */
        attr_int(w, "gdr", 1);
    fputs("/>\n", w->out);
}

/* Where nets are written: in a function, or right below a <cpu>. */
struct spot {
    const char *pci; /* "": those of the <cpu> that have no function */
    const struct holmes_host_cpu *cpu;
    bool first; /* <cpu>, with which goes what has none of its own */
};

static const struct holmes_host_cpu no_cpu;

static struct spot spot_in(const char *pci)
{
    return (struct spot){.pci = pci, .cpu = &no_cpu};
}

static bool numa_fits(const struct holmes_host *h, int numa, const struct spot *spot)
{
    for (int k = 0; k < h->ncpus; k++)
        if (h->cpus[k].numa_node == numa)
            return numa == spot->cpu->numa_node;
    return spot->first;
}

static bool is_at(const struct holmes_host *h, const char *address, int numa,
                  const struct spot *spot)
{
    if (*spot->pci)
        return strcmp(address, spot->pci) == 0;
    for (int i = 0; i < h->npcis; i++)
        if (strcmp(h->pcis[i].address, address) == 0)
            return false;
    return numa_fits(h, numa, spot);
}

static bool is_nic_of(const struct holmes_host *h, const struct holmes_host_netif *n)
{
    for (int i = 0; i < h->nnics; i++)
        if (n->seen.pci_path[0] ? strcmp(h->nics[i].address, n->seen.pci_path) == 0
                                : strcmp(h->nics[i].name, n->seen.name) == 0)
            return true;
    return n->nic >= 0;
}

/* Whatever has a place, in use or not: NCCL looks its devices up by their names and takes no notice
 * of others. How many are there. */
static int nets_at(struct writer *w, const struct spot *spot, bool write)
{
    const struct holmes_host *h = w->h;
    int n = 0;

    for (int i = 0; i < h->nports; i++) {
        const struct holmes_host_port *p = &h->ports[i];
        const char *name = p->nic >= 0 ? h->chosen.nics[p->nic].name : p->seen.device;

        if (!is_at(h, p->seen.pci_path, p->seen.numa_node, spot))
            continue;
        n++;
        if (write)
            write_net(w, name, p->nic, p->seen.speed_mbps, p->seen.port, p->seen.guid,
                      h->source == HOLMES_HOST_NCCL && p->seen.peer_memory);
    }
    for (int i = 0; i < h->nnetifs; i++) {
        const struct holmes_host_netif *p = &h->netifs[i];

        if (!is_nic_of(h, p) || !is_at(h, p->seen.pci_path, p->seen.numa_node, spot))
            continue;
        n++;
        if (write)
            write_net(w, p->seen.name, p->nic, p->seen.speed_mbps, 0, 0, false);
    }
    return n;
}

static void write_nic(struct writer *w, const struct spot *spot)
{
    if (nets_at(w, spot, false) == 0)
        return;
    open_tag(w, "nic");
    open_end(w);
    nets_at(w, spot, true);
    close_tag(w, "nic");
}

static void write_gpu(struct writer *w, const struct holmes_host_gpu *g)
{
    open_tag(w, "gpu");
    if (g->dev >= 0)
        attr_int(w, "dev", g->dev);
    if (g->sm > 0)
        attr_int(w, "sm", g->sm);
    if (g->gdr)
        attr_int(w, "gdr", 1);
    if (g->nlinks == 0) {
        fputs("/>\n", w->out);
        return;
    }
    open_end(w);
    for (int i = 0; i < g->nlinks; i++) {
        open_tag(w, g->xgmi ? "xgmi" : "nvlink");
        attr(w, "target", g->links[i].target);
        attr_int(w, "count", g->links[i].count);
        if (g->links[i].target_class != 0)
            attr_hex(w, "tclass", g->links[i].target_class, 6);
        fputs("/>\n", w->out);
    }
    close_tag(w, "gpu");
}

static const struct holmes_host_gpu *gpu_at(const struct holmes_host *h, int pci)
{
    for (int i = 0; i < h->ngpus; i++)
        if (h->gpus[i].pci == pci)
            return &h->gpus[i];
    return NULL;
}

static bool has_child(const struct holmes_host *h, int i)
{
    for (int k = i + 1; k < h->npcis; k++)
        if (h->pcis[k].parent == i)
            return true;
    return false;
}

/* Marks the functions with a net in or below them; parents come before their children. */
static void mark_nets(struct writer *w)
{
    for (int i = w->h->npcis - 1; i >= 0; i--) {
        const struct spot spot = spot_in(w->h->pcis[i].address);

        w->has_net[i] |= nets_at(w, &spot, false) > 0;
        if (w->has_net[i] && w->h->pcis[i].parent >= 0)
            w->has_net[w->h->pcis[i].parent] = true;
    }
}

/* What is absent NCCL reads from sysfs, but only on the way up from a GPU: above a <net> that it
 * finds in the file all must be there, be it empty. Empty is 8 GT/s x16. */
static void open_pci(struct writer *w, const struct holmes_host_pci *p, bool complete)
{
    char speed[32] = "";

    open_tag(w, "pci");
    attr(w, "busid", p->address);
    if (p->class != 0)
        attr_hex(w, "class", p->class, 6);
    else if (complete)
        attr_hex(w, "class", PCI_CLASS_BRIDGE, 6);
    if (p->vendor != 0)
        attr_hex(w, "vendor", p->vendor, 4);
    if (p->device != 0)
        attr_hex(w, "device", p->device, 4);
    if (p->subsystem_vendor != 0)
        attr_hex(w, "subsystem_vendor", p->subsystem_vendor, 4);
    if (p->subsystem_device != 0)
        attr_hex(w, "subsystem_device", p->subsystem_device, 4);
    if (p->link_gts > 0)
        snprintf(speed, sizeof speed, "%.1f GT/s PCIe", p->link_gts);
    if (speed[0] || complete)
        attr(w, "link_speed", speed);
    if (p->link_width > 0 || complete)
        attr_int(w, "link_width", p->link_width);
}

static void write_pci(struct writer *w, int i)
{
    const struct holmes_host_pci *p = &w->h->pcis[i];
    const struct holmes_host_gpu *g = gpu_at(w->h, i);
    const struct spot spot = spot_in(p->address);
    bool told = g && (g->dev >= 0 || g->sm > 0 || g->gdr || g->nlinks > 0);

    open_pci(w, p, w->has_net[i]);
    if (!told && !has_child(w->h, i) && nets_at(w, &spot, false) == 0) {
        fputs("/>\n", w->out);
        return;
    }
    open_end(w);
    if (told) /* else NCCL asks the driver */
        write_gpu(w, g);
    write_nic(w, &spot);
    for (int k = i + 1; k < w->h->npcis; k++)
        if (w->h->pcis[k].parent == i)
            write_pci(w, k);
    close_tag(w, "pci");
}

static bool is_taken(const struct holmes_host *h, const char *address)
{
    for (int i = 0; i < h->npcis; i++)
        if (strcmp(h->pcis[i].address, address) == 0)
            return true;
    for (int i = 0; i < h->ngpus; i++)
        if (strcmp(h->gpus[i].address, address) == 0)
            return true;
    return false;
}

/* A GPU whose function is not among the host's: with the address it has, or with one that no
 * machine has. */
static void write_bare_gpu(struct writer *w, const struct holmes_host_gpu *g)
{
    struct holmes_host_pci p = {.class = 0x030200, .vendor = g->vendor, .device = g->device};

    snprintf(p.address, sizeof p.address, "%s", g->address);
    while (!g->address[0] && (!p.address[0] || is_taken(w->h, p.address))) {
        snprintf(p.address, sizeof p.address, "ffff:%02x:%02x.0", (w->bare >> 5) & 0xff,
                 w->bare & 31);
        w->bare++;
    }
    open_pci(w, &p, false);
    open_end(w);
    write_gpu(w, g);
    close_tag(w, "pci");
}

/* Whether the function right below a host bridge is written with this <cpu>. */
static bool is_below(const struct holmes_host *h, int i, const struct spot *cpu)
{
    return h->pcis[i].parent < 0 && numa_fits(h, h->pcis[i].numa_node, cpu);
}

static bool cpu_has_nets(struct writer *w, const struct spot *cpu)
{
    if (nets_at(w, cpu, false) > 0)
        return true;
    for (int i = 0; i < w->h->npcis; i++)
        if (is_below(w->h, i, cpu) && w->has_net[i])
            return true;
    return false;
}

static void open_cpu(struct writer *w, const struct holmes_host_cpu *c, bool complete)
{
    open_tag(w, "cpu");
    attr_int(w, "numaid", c->numa_node);
    if (c->affinity[0] && strlen(c->affinity) <= VALUE_MAX)
        attr(w, "affinity", c->affinity);
    if (c->arch[0] || complete)
        attr(w, "arch", strcmp(c->arch, "aarch64") == 0 ? "arm64" : c->arch);
    if (c->vendor[0] || complete)
        attr(w, "vendor", c->vendor);
    if (c->family >= 0 || complete)
        attr_int(w, "familyid", c->family >= 0 ? c->family : 0);
    if (c->model >= 0 || complete)
        attr_int(w, "modelid", c->model >= 0 ? c->model : 0);
}

static void write_cpu(struct writer *w, const struct holmes_host_cpu *c, bool first)
{
    const struct spot spot = {.pci = "", .cpu = c, .first = first};
    const struct holmes_host *h = w->h;

    open_cpu(w, c, cpu_has_nets(w, &spot));
    open_end(w);
    for (int i = 0; i < h->npcis; i++)
        if (is_below(h, i, &spot))
            write_pci(w, i);
    for (int i = 0; i < h->ngpus; i++)
        if (h->gpus[i].pci < 0 && numa_fits(h, h->gpus[i].numa_node, &spot))
            write_bare_gpu(w, &h->gpus[i]);
    write_nic(w, &spot);
    close_tag(w, "cpu");
}

/* RCCL takes version 2 alone, NCCL version 1. */
static bool is_for_rccl(const struct holmes_host *h)
{
    bool amd = false;

    for (int i = 0; i < h->ngpus; i++) {
        if (h->gpus[i].vendor == 0x10de)
            return false;
        amd |= h->gpus[i].xgmi || h->gpus[i].vendor == 0x1002;
    }
    return amd;
}

/* NCCL takes a NUMA node once. */
static bool is_repeated(const struct holmes_host *h, int cpu)
{
    for (int i = 0; i < cpu; i++)
        if (h->cpus[i].numa_node == h->cpus[cpu].numa_node)
            return true;
    return false;
}

int holmes_host_nccl_xml(const struct holmes_host *h, FILE *out)
{
    static const struct holmes_host_cpu unknown = {.numa_node = 0, .family = -1, .model = -1};
    struct writer w = {.h = h, .out = out};

    if (h->ngpus == 0 && h->nnics == 0)
        return -ENODATA;
    w.has_net = calloc((size_t)h->npcis + 1, sizeof *w.has_net);
    if (!w.has_net)
        return -ENOMEM;
    mark_nets(&w);
    open_tag(&w, "system");
    attr_int(&w, "version", is_for_rccl(h) ? 2 : 1);
    open_end(&w);
    for (int i = 0; i < h->ncpus; i++)
        if (!is_repeated(h, i))
            write_cpu(&w, &h->cpus[i], i == 0);
    if (h->ncpus == 0)
        write_cpu(&w, &unknown, true);
    close_tag(&w, "system");
    free(w.has_net);
    return ferror(out) ? -EIO : 0;
}
