/* hwloc's XML of versions 1 to 3. Read here and not by hwloc, because each hwloc refuses the files
 * of the next major version, and because it trusts its files more than these deserve. */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "build.h"
#include "pci.h"
#include "xml.h"

#define GPUS_MAX     256
#define BRIDGES_DEEP 32

/* Kinds of OS devices: up to version 2 a number, from 3 on a set of bits. */
enum os_kind { OS_OTHER, OS_NETWORK, OS_OPENFABRICS };

struct reader {
    struct xml_file f;
    struct holmes_host *h;
    int major;
    int roots; /* host bridges seen */
    int cores;
    const xmlNode *package; /* whose processor the NUMA nodes below it have */
};

/* Where an object is: below which bridges, near which NUMA node. */
struct place {
    struct holmes_host_pci bridges[BRIDGES_DEEP];
    int nbridges;
    int root;
    int numa_node;
    const char *cpuset; /* of the object that the NUMA node belongs to */
    int pci;            /* the function an OS device belongs to; -1 */
};

static const char *info(const xmlNode *object, const char *name)
{
    for (const xmlNode *n = object ? object->children : NULL; n; n = n->next) {
        const char *key = xml_is(n, "info") ? xml_attr(n, "name") : NULL;

        if (key && strcmp(key, name) == 0)
            return xml_attr(n, "value");
    }
    return NULL;
}

static bool is_type(const xmlNode *object, const char *type)
{
    const char *s = xml_is(object, "object") ? xml_attr(object, "type") : NULL;

    return s && strcmp(s, type) == 0;
}

/* "0x00000002" or "0x0,0x00000001": the one node of the set, -1 where there are several. */
static int one_node(const char *set)
{
    int node = -1, groups = 1;

    for (const char *p = set; *p; p++)
        groups += *p == ',';
    for (const char *p = set; groups > 0; groups--) {
        char *end;
        unsigned long bits = strtoul(p, &end, 16);

        for (int i = 0; i < 32; i++)
            if (bits >> i & 1) {
                if (node >= 0)
                    return -1;
                node = 32 * (groups - 1) + i;
            }
        if (end == p || *end != ',')
            break;
        p = end + 1;
    }
    return node;
}

/* "0xffff0000,0x0000ffff" as NCCL and the kernel write it: "ffff0000,0000ffff". */
static void affinity_of(const char *cpuset, char *out, size_t len)
{
    size_t n = 0;

    for (const char *p = cpuset; p && *p; p += *p == ',') {
        char *end;
        unsigned long bits = strtoul(p, &end, 16);

        if (end == p || bits > UINT32_MAX || n + 10 > len) {
            out[0] = '\0'; /* infinite sets, and those of more processors than fit */
            return;
        }
        n += (size_t)snprintf(out + n, len - n, "%s%08lx", n > 0 ? "," : "", bits);
        p = end;
        if (*p && *p != ',') {
            out[0] = '\0';
            return;
        }
    }
}

/* -1 for what is no number from 0 to `most`. */
static int small_number(const char *s, int base, long most)
{
    char *end;
    long v = s ? strtol(s, &end, base) : -1;

    return s && end != s && v >= 0 && v <= most ? (int)v : -1;
}

static void copy(char *out, size_t len, const char *s)
{
    if (s)
        snprintf(out, len, "%s", s);
}

static void add_cpu(struct reader *r, const xmlNode *node, const struct place *at)
{
    int64_t bytes = xml_int(&r->f, node, "local_memory", 0, INT64_C(1) << 50, 0);
    struct holmes_host_cpu *c;

    if (r->h->ncpus >= HOLMES_HOST_DEVICES_MAX) {
        xml_mistake(&r->f, node, NULL, "more than %d NUMA nodes", HOLMES_HOST_DEVICES_MAX);
        return;
    }
    c = host_add_cpu(r->h);
    if (!c) {
        xml_no_memory(&r->f);
        return;
    }
    c->numa_node = (int)xml_int(&r->f, node, "os_index", 0, INT32_MAX, -1);
    affinity_of(at->cpuset, c->affinity, sizeof c->affinity);
    copy(c->arch, sizeof c->arch, info(xmlDocGetRootElement(r->f.doc)->children, "Architecture"));
    copy(c->vendor, sizeof c->vendor, info(r->package, "CPUVendor"));
    c->family = small_number(info(r->package, "CPUFamilyNumber"), 10, INT32_MAX);
    c->model = small_number(info(r->package, "CPUModelNumber"), 10, INT32_MAX);
    r->h->memory_gib += (double)bytes / (1 << 30);
}

/* "0207 [15b3:1013] [15b3:0013] 00 00" */
static bool read_ids(struct reader *r, const xmlNode *node, struct holmes_host_pci *f)
{
    const char *busid = xml_need(&r->f, node, "pci_busid"), *type = xml_attr(node, "pci_type");
    unsigned class, vendor, device, subvendor, subdevice;

    if (!busid)
        return false;
    if (!pci_address(busid, f->address)) {
        xml_mistake(&r->f, node, "pci_busid", "a PCI address like 0000:3b:00.0 is right");
        return false;
    }
    if (!type)
        return true;
    /* A sign, which %x takes, gives a number beyond what four digits can. */
    if (sscanf(type, "%4x [%4x:%4x] [%4x:%4x]", &class, &vendor, &device, &subvendor, &subdevice) !=
            5 ||
        (class | vendor | device | subvendor | subdevice) > UINT16_MAX) {
        xml_mistake(&r->f, node, "pci_type",
                    "something like 0207 [15b3:1013] [15b3:0013] 00 00 is "
                    "right");
        return false;
    }
    f->class = class << 8;
    f->vendor = (uint16_t)vendor;
    f->device = (uint16_t)device;
    f->subsystem_vendor = (uint16_t)subvendor;
    f->subsystem_device = (uint16_t)subdevice;
    return true;
}

/* Adds the function with the bridges above it; its index or -1 after a mistake. */
static int add_function(struct reader *r, const xmlNode *node, const struct holmes_host_pci *f,
                        const struct place *at)
{
    int parent = -1;

    if (r->h->npcis + at->nbridges >= HOLMES_HOST_DEVICES_MAX) {
        xml_mistake(&r->f, node, NULL, "more than %d PCI functions", HOLMES_HOST_DEVICES_MAX);
        return -1;
    }
    for (int i = 0; i <= at->nbridges; i++) {
        const struct holmes_host_pci *from = i < at->nbridges ? &at->bridges[i] : f;
        int found = host_find_pci(r->h, from->address);

        if (found < 0) {
            struct holmes_host_pci *p = host_add_pci(r->h, from->address);

            if (!p) {
                xml_no_memory(&r->f);
                return -1;
            }
            *p = *from;
            p->parent = parent;
            p->root = at->root;
            p->numa_node = at->numa_node;
            found = r->h->npcis - 1;
        } else if (i == at->nbridges) {
            xml_mistake(&r->f, node, "pci_busid", "comes twice");
            return -1;
        }
        parent = found;
    }
    return parent;
}

/* An object of a compute library below a function says that the function computes. */
static const xmlNode *compute_device(const xmlNode *pci)
{
    static const char *const names[] = {"nvml", "cuda", "rsmi", "opencl", "ze"};

    for (const xmlNode *n = pci->children; n; n = n->next) {
        const char *name = is_type(n, "OSDev") ? xml_attr(n, "name") : NULL;

        for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
            if (strncmp(name, names[i], strlen(names[i])) == 0 &&
                isdigit((unsigned char)name[strlen(names[i])]))
                return n;
    }
    return NULL;
}

static double kib_info(const xmlNode *os, const char *name)
{
    const char *s = info(os, name);
    double v = s ? strtod(s, NULL) : 0;

    return v > 0 && v / (1 << 20) < GPU_MEMORY_MAX ? v / (1 << 20) : 0;
}

static void add_gpu(struct reader *r, const xmlNode *node, const struct holmes_host_pci *f,
                    const xmlNode *os, const struct place *at)
{
    static const char *const memory[] = {"CUDAGlobalMemorySize", "OpenCLGlobalMemorySize",
                                         "NVIDIAGlobalMemorySize", "RSMIVRAMSize",
                                         "LevelZeroHBMSize"};
    int pci = add_function(r, node, f, at);
    struct holmes_host_gpu *g;

    if (pci < 0)
        return;
    if (r->h->ngpus >= GPUS_MAX) {
        xml_mistake(&r->f, node, NULL, "more than %d GPUs", GPUS_MAX);
        return;
    }
    g = host_add_gpu(r->h);
    if (!g) {
        xml_no_memory(&r->f);
        return;
    }
    memcpy(g->address, f->address, sizeof g->address);
    g->pci = pci;
    g->vendor = f->vendor;
    g->device = f->device;
    g->numa_node = at->numa_node;
    copy(g->vendor_name, sizeof g->vendor_name, pci_vendor_name(f->vendor));
    copy(g->name, sizeof g->name, info(os, "GPUModel"));
    for (size_t i = 0; os && g->memory_gib <= 0 && i < sizeof memory / sizeof *memory; i++)
        g->memory_gib = kib_info(os, memory[i]);
    gpu_memory_of_name(g);
}

static enum os_kind kind_of(struct reader *r, const xmlNode *node)
{
    int64_t v = xml_int(&r->f, node, "osdev_type", 0, INT32_MAX, 0);

    if (r->major < 3)
        return v == 2 ? OS_NETWORK : v == 3 ? OS_OPENFABRICS : OS_OTHER;
    return v & 32 ? OS_OPENFABRICS : v & 16 ? OS_NETWORK : OS_OTHER;
}

static void add_netif(struct reader *r, const xmlNode *node, const struct place *at)
{
    struct holmes_host_netif *n;

    if (r->h->nnetifs >= HOLMES_HOST_DEVICES_MAX) {
        xml_mistake(&r->f, node, NULL, "more than %d interfaces", HOLMES_HOST_DEVICES_MAX);
        return;
    }
    n = host_add_netif(r->h);
    if (!n) {
        xml_no_memory(&r->f);
        return;
    }
    xml_need(&r->f, node, "name");
    xml_text(&r->f, node, "name", n->seen.name, sizeof n->seen.name);
    /* An InfiniBand hardware address has 20 bytes. */
    n->seen.kind = info(node, "Address") && strlen(info(node, "Address")) > 20
                       ? HOLMES_NETIF_IPOIB
                       : HOLMES_NETIF_PHYSICAL;
    n->seen.numa_node = at->numa_node;
    if (at->pci >= 0)
        memcpy(n->seen.pci_path, r->h->pcis[at->pci].address, HOLMES_PCI_MAX);
    snprintf(n->verdict.reason, sizeof n->verdict.reason,
             "hwloc tells neither its state nor its addresses");
}

static uint64_t guid_of(const char *s)
{
    unsigned a, b, c, d;

    if (!s || sscanf(s, "%4x:%4x:%4x:%4x", &a, &b, &c, &d) != 4 || (a | b | c | d) > UINT16_MAX)
        return 0;
    return (uint64_t)a << 48 | (uint64_t)b << 32 | (uint64_t)c << 16 | d;
}

static void read_port_gids(const xmlNode *node, int port, struct holmes_rdma_port_seen *s)
{
    static const uint8_t zero[16];

    for (int i = 0; i < HOLMES_GIDS_SEEN_MAX; i++) {
        struct holmes_gid_seen *g = &s->gids[s->ngids];
        char key[32];
        const char *text;

        snprintf(key, sizeof key, "Port%dGID%d", port, i);
        text = info(node, key);
        if (!text)
            return; /* hwloc lists them without gaps, zero ones left out at the end */
        if (inet_pton(AF_INET6, text, g->bytes) != 1 || memcmp(g->bytes, zero, 16) == 0)
            continue;
        g->index = (uint8_t)i;
        g->type = -1;
        s->ngids++;
    }
}

static void add_port(struct reader *r, const xmlNode *node, const struct place *at, int port)
{
    struct holmes_rdma_port_seen *s;
    struct holmes_host_port *p;
    char key[32];
    int state, lid;

    if (r->h->nports >= HOLMES_HOST_DEVICES_MAX) {
        xml_mistake(&r->f, node, NULL, "more than %d RDMA ports", HOLMES_HOST_DEVICES_MAX);
        return;
    }
    p = host_add_port(r->h);
    if (!p) {
        xml_no_memory(&r->f);
        return;
    }
    s = &p->seen;
    xml_need(&r->f, node, "name");
    xml_text(&r->f, node, "name", s->device, sizeof s->device);
    s->port = (uint8_t)port;
    s->guid = guid_of(info(node, "SysImageGUID"));
    if (s->guid == 0)
        s->guid = guid_of(info(node, "NodeGUID"));
    snprintf(key, sizeof key, "Port%dState", port);
    state = small_number(info(node, key), 10, UINT8_MAX);
    s->state = state >= 0 ? state : 0;
    if (s->state == 4)
        snprintf(s->state_text, sizeof s->state_text, "ACTIVE");
    else if (s->state == 1)
        snprintf(s->state_text, sizeof s->state_text, "DOWN");
    snprintf(key, sizeof key, "Port%dLID", port);
    lid = small_number(info(node, key), 0, UINT16_MAX);
    s->lid = lid >= 0 ? (uint16_t)lid : 0;
    read_port_gids(node, port, s);
    s->numa_node = at->numa_node;
    if (at->pci >= 0)
        memcpy(s->pci_path, r->h->pcis[at->pci].address, HOLMES_PCI_MAX);
    snprintf(p->verdict.reason, sizeof p->verdict.reason, "hwloc does not tell its link layer");
}

static void add_os_device(struct reader *r, const xmlNode *node, const struct place *at)
{
    enum os_kind kind = kind_of(r, node);
    char key[32];
    int ports = 0;

    if (kind == OS_NETWORK)
        add_netif(r, node, at);
    if (kind != OS_OPENFABRICS)
        return;
    for (int port = 1; port <= UINT8_MAX && r->f.rc == 0; port++) {
        snprintf(key, sizeof key, "Port%dState", port);
        if (!info(node, key))
            break;
        add_port(r, node, at, port);
        ports++;
    }
    if (ports == 0)
        add_port(r, node, at, 1);
}

static void read_objects(struct reader *r, const xmlNode *parent, const struct place *at);

static void read_bridge(struct reader *r, const xmlNode *node, const struct place *at)
{
    const char *type = xml_need(&r->f, node, "bridge_type");
    struct place below = *at;

    if (!type)
        return;
    if (type[0] == '0') {
        below.root = r->roots++;
    } else if (type[0] != '1') {
        xml_mistake(&r->f, node, "bridge_type", "0-1 (host bridge) or 1-1 is right");
        return;
    } else if (at->nbridges == BRIDGES_DEEP) {
        xml_mistake(&r->f, node, NULL, "more than %d bridges, one below the other", BRIDGES_DEEP);
        return;
    } else {
        struct holmes_host_pci f = {.parent = -1, .numa_node = -1};

        if (!read_ids(r, node, &f))
            return;
        below.bridges[below.nbridges++] = f;
    }
    read_objects(r, node, &below);
}

static void read_device(struct reader *r, const xmlNode *node, const struct place *at)
{
    struct holmes_host_pci f = {.parent = -1, .numa_node = -1};
    const xmlNode *compute = compute_device(node);
    struct place below = *at;
    enum pci_gpu kind;

    if (!read_ids(r, node, &f))
        return;
    kind = pci_gpu(f.class, f.vendor, NULL);
    if (pci_is_nic(f.class))
        add_function(r, node, &f, at);
    else if (kind == PCI_GPU || compute)
        add_gpu(r, node, &f, compute, at);
    else if (gpu_skip(r->h, f.address, kind, f.vendor) != 0)
        xml_no_memory(&r->f);
    below.pci = host_find_pci(r->h, f.address);
    if (r->f.rc == 0)
        read_objects(r, node, &below);
}

static void read_object(struct reader *r, const xmlNode *node, const struct place *at)
{
    const char *type = xml_need(&r->f, node, "type"), *nodeset = xml_attr(node, "nodeset");
    struct place below = *at;

    if (!type)
        return;
    if (strcmp(type, "Bridge") == 0) {
        read_bridge(r, node, at);
        return;
    }
    if (strcmp(type, "PCIDev") == 0) {
        read_device(r, node, at);
        return;
    }
    if (strcmp(type, "OSDev") == 0) {
        add_os_device(r, node, at);
        return;
    }
    r->cores += strcmp(type, "Core") == 0;
    if (strcmp(type, "Package") == 0 || strcmp(type, "Socket") == 0)
        r->package = node;
    if (nodeset)
        below.numa_node = one_node(nodeset);
    if (xml_attr(node, "cpuset"))
        below.cpuset = xml_attr(node, "cpuset");
    if (strcmp(type, "NUMANode") == 0)
        add_cpu(r, node, &below);
    read_objects(r, node, &below);
}

static void read_objects(struct reader *r, const xmlNode *parent, const struct place *at)
{
    for (const xmlNode *n = parent->children; n && r->f.rc == 0; n = n->next)
        if (xml_is(n, "object"))
            read_object(r, n, at);
}

static void read_topology(struct reader *r, const xmlNode *root)
{
    struct place at = {.root = -1, .numa_node = -1, .pci = -1};
    const char *version;

    if (!xml_is(root, "topology")) {
        xml_mistake(&r->f, root, NULL, "hwloc's files begin with <topology>");
        return;
    }
    version = xml_attr(root, "version"); /* version 1 has none */
    r->major = version ? atoi(version) : 1;
    if (r->major < 1 || r->major > 3) {
        xml_mistake(&r->f, root, "version", "1 to 3 can be read");
        return;
    }
    for (const xmlNode *n = root->children; n; n = n->next)
        if (is_type(n, "Machine"))
            copy(r->h->hostname, sizeof r->h->hostname, info(n, "HostName"));
    read_objects(r, root, &at);
    if (r->f.rc == 0 && r->cores == 0 && r->h->npcis == 0 && r->h->ncpus == 0)
        xml_mistake(&r->f, root, NULL, "holds no processor and no device");
    if (r->h->memory_gib > HOST_MEMORY_MAX)
        r->h->memory_gib = 0;
    r->h->cores = r->cores;
}

int holmes_host_parse_hwloc(const char *name, const void *data, size_t len,
                            struct holmes_host **out, char *why, size_t why_len)
{
    struct reader r = {.f = {.name = name, .why = why, .why_len = why_len}};

    if (xml_open(&r.f, data, len) == 0) {
        r.h = host_new(HOLMES_HOST_HWLOC);
        if (r.h)
            read_topology(&r, xmlDocGetRootElement(r.f.doc));
        else
            xml_no_memory(&r.f);
    }
    xml_close(&r.f);
    if (r.f.rc == 0 &&
        (host_finish(r.h) != 0 ||
         host_note(r.h, "hwloc XML has no link layer, speed, state or address: which ports and "
                        "interfaces would be used is not told") != 0))
        xml_no_memory(&r.f);
    if (r.f.rc != 0) {
        holmes_host_destroy(r.h);
        return r.f.rc;
    }
    *out = r.h;
    return 0;
}
