/* NCCL topology XML: <system> of <cpu> per NUMA node, below them <pci> nested as the bus is, with
 * <gpu> or <nic> in them and <net> in <nic>. RCCL writes the same as version 2, with <xgmi>. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "build.h"
#include "pci.h"
#include "xml.h"

#define GPUS_MAX 256

struct reader {
    struct xml_file f;
    struct holmes_host *h;
    int cpu; /* number of the <cpu> that is being read */
    /* NCCL's number of each port and interface; -1: none */
    int port_dev[HOLMES_HOST_DEVICES_MAX], netif_dev[HOLMES_HOST_DEVICES_MAX];
};

/* Where an element is. */
struct place {
    int pci; /* index, -1: right below the <cpu> */
    int numa_node;
};

static bool is_full(struct reader *r, const xmlNode *node, int n, int most)
{
    if (n >= most)
        xml_mistake(&r->f, node, NULL, "more than %d of this kind", most);
    return n >= most;
}

static void skip_element(struct reader *r, const xmlNode *node)
{
    char what[96];

    snprintf(what, sizeof what, "<%.60s>, line %ld", (const char *)node->name, xmlGetLineNo(node));
    if (r->h->nskipped < HOLMES_HOST_DEVICES_MAX &&
        host_skip(r->h, what, "an element that NCCL's files do not have here") != 0)
        xml_no_memory(&r->f);
}

/* "16.0 GT/s PCIe"; "" and "Unknown speed" tell nothing. */
static double read_speed(struct reader *r, const xmlNode *node)
{
    const char *s = xml_attr(node, "link_speed");
    char *end;
    double v;

    if (!s || !*s || strncmp(s, "Unknown", 7) == 0)
        return 0;
    v = strtod(s, &end);
    if (end != s && strncmp(end, " GT/s", 5) == 0 && v > 0 && v <= 1024)
        return v;
    xml_mistake(&r->f, node, "link_speed", "a speed like 16.0 GT/s is right");
    return 0;
}

static void read_link(struct reader *r, const xmlNode *node, struct holmes_host_gpu *g)
{
    struct holmes_host_link *l = &g->links[g->nlinks];
    const char *target = xml_need(&r->f, node, "target"), *class = xml_attr(node, "tclass");

    if (!target || is_full(r, node, g->nlinks, HOLMES_HOST_LINKS_MAX))
        return;
    /* A switch that a guest does not see has an address that is none: it is kept as it is. */
    if (!pci_address(target, l->target))
        xml_text(&r->f, node, "target", l->target, sizeof l->target);
    l->count = (int)xml_int(&r->f, node, "count", 1, 1024, 1);
    if (class && *class && !pci_class(class, &l->target_class))
        xml_mistake(&r->f, node, "tclass", "a PCI class like 0x068000 is right");
    g->xgmi |= xml_is(node, "xgmi");
    g->nlinks++;
}

static void read_gpu(struct reader *r, const xmlNode *node, struct holmes_host_gpu *g)
{
    g->dev = (int)xml_int(&r->f, node, "dev", -1, INT32_MAX, -1);
    g->sm = (int)xml_int(&r->f, node, "sm", 0, 10000, 0);
    g->gdr = xml_int(&r->f, node, "gdr", 0, 1, 0) != 0;
    for (const xmlNode *n = node->children; n && r->f.rc == 0; n = n->next) {
        if (xml_is(n, "nvlink") || xml_is(n, "xgmi"))
            read_link(r, n, g);
        else if (n->type == XML_ELEMENT_NODE && !xml_is(n, "c2c"))
            skip_element(r, n);
    }
}

static void add_gpu(struct reader *r, const xmlNode *pci, const xmlNode *node, int index)
{
    const struct holmes_host_pci *p = &r->h->pcis[index];
    struct holmes_host_gpu *g;

    if (is_full(r, pci, r->h->ngpus, GPUS_MAX))
        return;
    g = host_add_gpu(r->h);
    if (!g) {
        xml_no_memory(&r->f);
        return;
    }
    memcpy(g->address, p->address, sizeof g->address);
    g->pci = index;
    g->vendor = p->vendor;
    g->device = p->device;
    g->numa_node = p->numa_node;
    snprintf(g->vendor_name, sizeof g->vendor_name, "%s", pci_vendor_name(p->vendor));
    if (node)
        read_gpu(r, node, g);
}

static uint64_t read_guid(struct reader *r, const xmlNode *node)
{
    const char *s = xml_attr(node, "guid");
    unsigned long long v;
    char *end;

    if (!s || !*s)
        return 0;
    errno = 0;
    v = strtoull(s, &end, 16);
    if (end == s || *end || errno || *s == '-') {
        xml_mistake(&r->f, node, "guid", "a hexadecimal number is right");
        return 0;
    }
    return v;
}

/* NCCL numbers the devices that it uses. */
static int judge(struct reader *r, const xmlNode *node, bool *used,
                 char reason[HOLMES_NETIF_REASON_MAX])
{
    int64_t dev = xml_int(&r->f, node, "dev", -1, INT32_MAX, -1);

    *used = dev >= 0;
    if (dev >= 0)
        snprintf(reason, HOLMES_NETIF_REASON_MAX, "NCCL's device %lld", (long long)dev);
    else
        snprintf(reason, HOLMES_NETIF_REASON_MAX, "has no device number: NCCL does not use it");
    return (int)dev;
}

static void add_port(struct reader *r, const xmlNode *node, const struct place *at, int port,
                     uint32_t mbps)
{
    struct holmes_host_port *p;

    if (is_full(r, node, r->h->nports, HOLMES_HOST_DEVICES_MAX))
        return;
    p = host_add_port(r->h);
    if (!p) {
        xml_no_memory(&r->f);
        return;
    }
    xml_text(&r->f, node, "name", p->seen.device, sizeof p->seen.device);
    p->seen.port = (uint8_t)port;
    p->seen.speed_mbps = mbps;
    p->seen.guid = read_guid(r, node);
    p->seen.peer_memory = xml_int(&r->f, node, "gdr", 0, 1, 0) != 0;
    p->seen.numa_node = at->numa_node;
    if (at->pci >= 0)
        memcpy(p->seen.pci_path, r->h->pcis[at->pci].address, HOLMES_PCI_MAX);
    r->port_dev[r->h->nports - 1] = judge(r, node, &p->verdict.used, p->verdict.reason);
}

static void add_netif(struct reader *r, const xmlNode *node, const struct place *at, uint32_t mbps)
{
    struct holmes_host_netif *n;

    if (is_full(r, node, r->h->nnetifs, HOLMES_HOST_DEVICES_MAX))
        return;
    n = host_add_netif(r->h);
    if (!n) {
        xml_no_memory(&r->f);
        return;
    }
    xml_text(&r->f, node, "name", n->seen.name, sizeof n->seen.name);
    n->seen.kind = HOLMES_NETIF_PHYSICAL;
    n->seen.speed_mbps = mbps;
    n->seen.numa_node = at->numa_node;
    if (at->pci >= 0)
        memcpy(n->seen.pci_path, r->h->pcis[at->pci].address, HOLMES_PCI_MAX);
    r->netif_dev[r->h->nnetifs - 1] = judge(r, node, &n->verdict.used, n->verdict.reason);
}

static bool has_port(const struct holmes_host *h, const char *name, int port)
{
    for (int i = 0; i < h->nports; i++)
        if (h->ports[i].seen.port == port && strcmp(h->ports[i].seen.device, name) == 0)
            return true;
    for (int i = 0; port == 0 && i < h->nnetifs; i++)
        if (strcmp(h->netifs[i].seen.name, name) == 0)
            return true;
    return false;
}

/* Ports of RDMA devices count from 1; NCCL's socket transport gives its interfaces port 0. */
static void read_net(struct reader *r, const xmlNode *node, const struct place *at)
{
    const char *name = xml_need(&r->f, node, "name");
    int port = (int)xml_int(&r->f, node, "port", 0, UINT8_MAX, 0);
    int64_t mbps = xml_int(&r->f, node, "speed", -1, UINT32_MAX, 0);
    size_t room = port > 0 ? sizeof((struct holmes_rdma_port_seen *)0)->device
                           : sizeof((struct holmes_netif *)0)->name;

    if (!name || r->f.rc != 0 || has_port(r->h, name, port))
        return; /* the same device once more, for another use */
    if (strlen(name) >= room) {
        if (host_skip(r->h, name, "its name is longer than devices have: several fused ones") != 0)
            xml_no_memory(&r->f);
    } else if (port > 0) {
        add_port(r, node, at, port, mbps > 0 ? (uint32_t)mbps : 0);
    } else {
        add_netif(r, node, at, mbps > 0 ? (uint32_t)mbps : 0);
    }
}

static void read_nic(struct reader *r, const xmlNode *node, const struct place *at)
{
    for (const xmlNode *n = node->children; n && r->f.rc == 0; n = n->next) {
        if (xml_is(n, "net"))
            read_net(r, n, at);
        else if (n->type == XML_ELEMENT_NODE)
            skip_element(r, n);
    }
}

static const xmlNode *child(const xmlNode *node, const char *name)
{
    for (const xmlNode *n = node->children; n; n = n->next)
        if (xml_is(n, name))
            return n;
    return NULL;
}

static int add_function(struct reader *r, const xmlNode *node, const struct place *at)
{
    const char *busid = xml_need(&r->f, node, "busid"), *class = xml_attr(node, "class");
    struct holmes_host_pci f = {.address = ""}, *p;
    int64_t width;

    if (!busid || is_full(r, node, r->h->npcis, HOLMES_HOST_DEVICES_MAX))
        return -1;
    if (!pci_address(busid, f.address))
        xml_mistake(&r->f, node, "busid", "a PCI address like 0000:3b:00.0 is right");
    else if (host_find_pci(r->h, f.address) >= 0)
        xml_mistake(&r->f, node, "busid", "comes twice");
    if (class && *class && !pci_class(class, &f.class))
        xml_mistake(&r->f, node, "class", "a PCI class like 0x020700 is right");
    f.vendor = (uint16_t)xml_int(&r->f, node, "vendor", 0, UINT16_MAX, 0);
    f.device = (uint16_t)xml_int(&r->f, node, "device", 0, UINT16_MAX, 0);
    f.subsystem_vendor = (uint16_t)xml_int(&r->f, node, "subsystem_vendor", 0, UINT16_MAX, 0);
    f.subsystem_device = (uint16_t)xml_int(&r->f, node, "subsystem_device", 0, UINT16_MAX, 0);
    f.link_gts = read_speed(r, node);
    width = xml_int(&r->f, node, "link_width", 0, 255, 0); /* 255: the kernel does not know */
    f.link_width = width <= 64 ? (int)width : 0;
    f.parent = at->pci;
    f.root = r->cpu;
    f.numa_node = at->numa_node;
    if (r->f.rc != 0)
        return -1;
    p = host_add_pci(r->h, f.address);
    if (!p) {
        xml_no_memory(&r->f);
        return -1;
    }
    *p = f;
    return r->h->npcis - 1;
}

static void read_pci(struct reader *r, const xmlNode *node, const struct place *at)
{
    struct place below = {.numa_node = at->numa_node};
    const xmlNode *gpu = child(node, "gpu");
    uint32_t class;

    below.pci = add_function(r, node, at);
    if (below.pci < 0)
        return;
    class = r->h->pcis[below.pci].class;
    if (gpu || class >> 16 == 0x03 || class >> 16 == 0x12)
        add_gpu(r, node, gpu, below.pci);
    else if (class == 0 && !child(node, "nic") && !child(node, "pci") &&
             host_skip(r->h, r->h->pcis[below.pci].address,
                       "the file has no class for it: GPU or NIC cannot be told") != 0)
        xml_no_memory(&r->f);
    for (const xmlNode *n = node->children; n && r->f.rc == 0; n = n->next) {
        if (xml_is(n, "pci"))
            read_pci(r, n, &below);
        else if (xml_is(n, "nic"))
            read_nic(r, n, &below);
        else if (n->type == XML_ELEMENT_NODE && !xml_is(n, "gpu") && !xml_is(n, "pcilink"))
            skip_element(r, n);
    }
}

static void read_cpu(struct reader *r, const xmlNode *node)
{
    struct place at = {.pci = -1};
    struct holmes_host_cpu *c;

    if (is_full(r, node, r->h->ncpus, HOLMES_HOST_DEVICES_MAX))
        return;
    xml_need(&r->f, node, "numaid");
    at.numa_node = (int)xml_int(&r->f, node, "numaid", -1, INT32_MAX, -1);
    for (int i = 0; i < r->h->ncpus; i++)
        if (r->h->cpus[i].numa_node == at.numa_node)
            xml_mistake(&r->f, node, "numaid",
                        "comes twice; a file of several machines is not read");
    c = host_add_cpu(r->h);
    if (!c) {
        xml_no_memory(&r->f);
        return;
    }
    c->numa_node = at.numa_node;
    xml_text(&r->f, node, "affinity", c->affinity, sizeof c->affinity);
    if (c->affinity[strspn(c->affinity, "0123456789abcdefABCDEF,")])
        xml_mistake(&r->f, node, "affinity", "hexadecimal groups with commas between are right");
    xml_text(&r->f, node, "arch", c->arch, sizeof c->arch);
    xml_text(&r->f, node, "vendor", c->vendor, sizeof c->vendor);
    c->family = (int)xml_int(&r->f, node, "familyid", 0, INT32_MAX, -1);
    c->model = (int)xml_int(&r->f, node, "modelid", 0, INT32_MAX, -1);
    for (const xmlNode *n = node->children; n && r->f.rc == 0; n = n->next) {
        if (xml_is(n, "pci"))
            read_pci(r, n, &at);
        else if (xml_is(n, "nic"))
            read_nic(r, n, &at);
        else if (n->type == XML_ELEMENT_NODE)
            skip_element(r, n);
    }
    r->cpu++;
}

static void read_system(struct reader *r, const xmlNode *node)
{
    if (!xml_is(node, "system")) {
        xml_mistake(&r->f, node, NULL, "NCCL's topology files begin with <system>");
        return;
    }
    xml_need(&r->f, node, "version");
    xml_int(&r->f, node, "version", 1, 2, 1);
    for (const xmlNode *n = node->children; n && r->f.rc == 0; n = n->next) {
        if (xml_is(n, "cpu"))
            read_cpu(r, n);
        else if (n->type == XML_ELEMENT_NODE)
            skip_element(r, n);
    }
    if (r->f.rc == 0 && r->h->ncpus == 0)
        xml_mistake(&r->f, node, NULL, "has no <cpu>");
}

/* The entry of the lowest number that is left; -1 when there is none. */
static int next_dev(const int *dev, int n)
{
    int best = -1;

    for (int i = 0; i < n; i++)
        if (dev[i] >= 0 && (best < 0 || dev[i] < dev[best]))
            best = i;
    return best;
}

static void choose_ports(struct reader *r)
{
    struct holmes_host *h = r->h;
    struct holmes_nics *c = &h->chosen;
    int i;

    while ((i = next_dev(r->port_dev, h->nports)) >= 0) {
        struct holmes_host_port *p = &h->ports[i];
        struct holmes_nic *n = &c->nics[c->n];

        r->port_dev[i] = -1;
        if (c->n == HOLMES_RDMA_PORTS_MAX) {
            p->verdict.used = false;
            snprintf(p->verdict.reason, sizeof p->verdict.reason, "more than %d ports",
                     HOLMES_RDMA_PORTS_MAX);
            continue;
        }
        snprintf(n->name, sizeof n->name, "%s", p->seen.device);
        n->speed_mbps = p->seen.speed_mbps;
        n->numa_node = p->seen.numa_node;
        memcpy(n->rdma.device, p->seen.device, sizeof n->rdma.device);
        n->rdma.port = p->seen.port;
        n->rdma.guid = p->seen.guid;
        n->rdma.cuda = p->seen.peer_memory;
        p->nic = c->n++;
    }
}

static void choose_netifs(struct reader *r)
{
    struct holmes_host *h = r->h;
    struct holmes_nics *c = &h->chosen;
    int i;

    while ((i = next_dev(r->netif_dev, h->nnetifs)) >= 0) {
        struct holmes_host_netif *p = &h->netifs[i];
        struct holmes_nic *n = &c->nics[c->n];

        r->netif_dev[i] = -1;
        if (c->n - c->nshown == HOLMES_NETIFS_MAX) {
            p->verdict.used = false;
            snprintf(p->verdict.reason, sizeof p->verdict.reason, "more than %d interfaces",
                     HOLMES_NETIFS_MAX);
            continue;
        }
        memcpy(n->name, p->seen.name, sizeof p->seen.name);
        memcpy(n->ifname, p->seen.name, sizeof n->ifname);
        n->speed_mbps = p->seen.speed_mbps;
        n->numa_node = p->seen.numa_node;
        p->nic = c->n++;
    }
}

/* What NCCL used, in the order of its numbers: RDMA ports first. */
static void choose(struct reader *r)
{
    struct holmes_nics *c = &r->h->chosen;

    choose_ports(r);
    c->nshown = c->n;
    choose_netifs(r);
    if (c->nshown == 0)
        c->nshown = c->n;
}

int holmes_host_parse_nccl(const char *name, const void *data, size_t len, struct holmes_host **out,
                           char *why, size_t why_len)
{
    struct reader r = {.f = {.name = name, .why = why, .why_len = why_len}};

    if (xml_open(&r.f, data, len) == 0) {
        r.h = host_new(HOLMES_HOST_NCCL);
        if (r.h)
            read_system(&r, xmlDocGetRootElement(r.f.doc));
        else
            xml_no_memory(&r.f);
    }
    xml_close(&r.f);
    if (r.f.rc == 0) {
        choose(&r);
        if (host_finish(r.h) != 0)
            xml_no_memory(&r.f);
    }
    if (r.f.rc != 0) {
        holmes_host_destroy(r.h);
        return r.f.rc;
    }
    *out = r.h;
    return 0;
}
