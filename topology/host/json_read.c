/* Reads a host's JSON, which may come from anywhere: every value is checked for its type and range,
 * and an error names the field by its path. */
#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "build.h"
#include "json.h"
#include "pci.h"

const char *const host_link_layers[3] = {
    [HOLMES_LINK_UNKNOWN] = "",
    [HOLMES_LINK_INFINIBAND] = "InfiniBand",
    [HOLMES_LINK_ETHERNET] = "Ethernet",
};

const char *const host_gid_types[3] = {
    [HOLMES_GID_INFINIBAND] = "InfiniBand",
    [HOLMES_GID_ROCE_V1] = "RoCE v1",
    [HOLMES_GID_ROCE_V2] = "RoCE v2",
};

#define GPUS_MAX  256
#define DEPTH_MAX 64 /* of bridges, one below the other */

struct reader {
    const char *name;
    char path[128]; /* of the object that is being read: "rdma_ports[2].gids[0]." */
    char *why;
    size_t why_len;
    int rc; /* of the first mistake; later ones keep it */
};

__attribute__((format(printf, 3, 4))) static void mistake(struct reader *r, const char *key,
                                                          const char *fmt, ...)
{
    char what[256];
    va_list ap;

    if (r->rc != 0)
        return;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    snprintf(r->why, r->why_len, "%s: %s%s: %s", r->name, r->path, key, what);
    r->rc = -EINVAL;
}

static void no_memory(struct reader *r)
{
    if (r->rc == 0) {
        snprintf(r->why, r->why_len, "%s: no memory", r->name);
        r->rc = -ENOMEM;
    }
}

enum need { OPTIONAL, REQUIRED };

/* The value of a key, NULL where it is absent or null. */
static json_t *get(struct reader *r, json_t *object, const char *key, enum need need)
{
    json_t *v = json_object_get(object, key);

    if (v && !json_is_null(v))
        return v;
    if (need == REQUIRED)
        mistake(r, key, "is missing");
    return NULL;
}

static void get_text(struct reader *r, json_t *object, const char *key, enum need need, char *out,
                     size_t len)
{
    json_t *v = get(r, object, key, need);
    const char *s = json_string_value(v);

    if (!v)
        return;
    if (!s)
        mistake(r, key, "a string is right");
    else if (json_string_length(v) >= len)
        mistake(r, key, "longer than %zu characters", len - 1);
    else if (need == REQUIRED && !*s)
        mistake(r, key, "is empty");
    else
        memcpy(out, s, json_string_length(v) + 1);
}

static int64_t get_int(struct reader *r, json_t *object, const char *key, int64_t low, int64_t high,
                       int64_t unknown)
{
    json_t *v = get(r, object, key, OPTIONAL);

    if (!v)
        return unknown;
    if (!json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > high) {
        mistake(r, key, "a whole number from %lld to %lld is right", (long long)low,
                (long long)high);
        return unknown;
    }
    return json_integer_value(v);
}

static double get_real(struct reader *r, json_t *object, const char *key, double most)
{
    json_t *v = get(r, object, key, OPTIONAL);

    if (!v)
        return 0;
    if (!json_is_number(v) || !(json_number_value(v) > 0) || json_number_value(v) > most) {
        mistake(r, key, "a number above 0 and up to %g is right", most);
        return 0;
    }
    return json_number_value(v);
}

static bool get_bool(struct reader *r, json_t *object, const char *key)
{
    json_t *v = get(r, object, key, OPTIONAL);

    if (v && !json_is_boolean(v))
        mistake(r, key, "true or false is right");
    return json_is_true(v);
}

/* "0x15b3" */
static uint64_t get_hex(struct reader *r, json_t *object, const char *key, uint64_t most)
{
    char s[24] = "", *end;
    unsigned long long n;

    get_text(r, object, key, OPTIONAL, s, sizeof s);
    if (!s[0])
        return 0;
    errno = 0;
    n = strtoull(s, &end, 16);
    if (strncmp(s, "0x", 2) != 0 || end == s + 2 || *end || errno || n > most) {
        mistake(r, key, "\"%s\": a hexadecimal number from 0x0 to 0x%llx is right", s,
                (unsigned long long)most);
        return 0;
    }
    return n;
}

static void get_address(struct reader *r, json_t *object, const char *key, enum need need,
                        char out[HOLMES_PCI_MAX])
{
    char s[64] = "";

    get_text(r, object, key, need, s, sizeof s);
    if (s[0] && !pci_address(s, out))
        mistake(r, key, "\"%s\": a PCI address like 0000:3b:00.0 is right", s);
}

static int get_word(struct reader *r, json_t *object, const char *key, const char *const *words,
                    int n, int unknown)
{
    char s[32] = "", list[160] = "";

    get_text(r, object, key, OPTIONAL, s, sizeof s);
    if (!s[0])
        return unknown;
    for (int i = 0; i < n; i++) {
        size_t used = strlen(list);

        if (strcmp(words[i], s) == 0)
            return i;
        if (words[i][0])
            snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", words[i]);
    }
    mistake(r, key, "\"%s\": one of %s is right", s, list);
    return unknown;
}

/* An array, NULL where there is none; at most `most` entries. */
static json_t *get_array(struct reader *r, json_t *object, const char *key, enum need need,
                         size_t most)
{
    json_t *v = get(r, object, key, need);

    if (!v)
        return NULL;
    if (!json_is_array(v))
        mistake(r, key, "an array is right");
    else if (json_array_size(v) > most)
        mistake(r, key, "%zu entries, more than %zu", json_array_size(v), most);
    else
        return v;
    return NULL;
}

/* Enters entry i of array `key`: false where it is no object. `mark` takes what leave() needs. */
static bool enter(struct reader *r, const char *key, size_t i, json_t *entry, size_t *mark)
{
    *mark = strlen(r->path);
    snprintf(r->path + *mark, sizeof r->path - *mark, "%s[%zu].", key, i);
    if (json_is_object(entry))
        return true;
    r->path[strlen(r->path) - 1] = '\0';
    mistake(r, "", "an object is right");
    return false;
}

static void leave(struct reader *r, size_t mark)
{
    r->path[mark] = '\0';
}

static void get_addrs(struct reader *r, json_t *object, const char *key, struct holmes_addr *out,
                      int *n)
{
    json_t *list = get_array(r, object, key, OPTIONAL, HOLMES_NIC_ADDRS_MAX), *entry;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        const char *s = json_string_value(entry), *slash = s ? strrchr(s, '/') : NULL;
        char host[INET6_ADDRSTRLEN] = "", *end = NULL;
        struct holmes_addr *a = &out[*n];
        unsigned long bits = 0;

        if (slash && (size_t)(slash - s) < sizeof host) {
            memcpy(host, s, (size_t)(slash - s));
            bits = slash[1] >= '0' && slash[1] <= '9' ? strtoul(slash + 1, &end, 10) : 999;
        }
        memset(a, 0, sizeof *a);
        if (inet_pton(AF_INET, host, &a->in.sin_addr) == 1 && bits <= 32)
            a->sa.sa_family = AF_INET;
        else if (inet_pton(AF_INET6, host, &a->in6.sin6_addr) == 1 && bits <= 128)
            a->sa.sa_family = AF_INET6;
        if (a->sa.sa_family == AF_UNSPEC || !end || *end) {
            mistake(r, key, "entry %zu: an address with its prefix length is right, 10.1.0.5/24",
                    i);
            return;
        }
        a->prefix_len = (uint8_t)bits;
        ++*n;
    }
}

static void get_gid(struct reader *r, json_t *object, uint8_t out[16])
{
    char s[INET6_ADDRSTRLEN] = "";

    get_text(r, object, "gid", REQUIRED, s, sizeof s);
    if (r->rc == 0 && inet_pton(AF_INET6, s, out) != 1)
        mistake(r, "gid", "\"%s\": 16 bytes as an IPv6 address are right", s);
}

static void read_cpu(struct reader *r, struct holmes_host *h, json_t *o)
{
    struct holmes_host_cpu *c = host_add_cpu(h);

    if (!c) {
        no_memory(r);
        return;
    }
    c->numa_node = (int)get_int(r, o, "numa_node", 0, INT32_MAX, -1);
    get_text(r, o, "affinity", OPTIONAL, c->affinity, sizeof c->affinity);
    if (c->affinity[strspn(c->affinity, "0123456789abcdefABCDEF,")])
        mistake(r, "affinity", "hexadecimal groups with commas between are right");
    get_text(r, o, "arch", OPTIONAL, c->arch, sizeof c->arch);
    get_text(r, o, "vendor", OPTIONAL, c->vendor, sizeof c->vendor);
    c->family = (int)get_int(r, o, "family", 0, INT32_MAX, -1);
    c->model = (int)get_int(r, o, "model", 0, INT32_MAX, -1);
}

static void read_pci(struct reader *r, struct holmes_host *h, json_t *o)
{
    char address[HOLMES_PCI_MAX] = "", parent[HOLMES_PCI_MAX] = "";
    struct holmes_host_pci *p;
    int above, depth = 0;

    get_address(r, o, "address", REQUIRED, address);
    get_address(r, o, "parent", OPTIONAL, parent);
    above = host_find_pci(h, parent);
    if (parent[0] && above < 0)
        mistake(r, "parent", "\"%s\" does not come before it", parent);
    for (int i = above; i >= 0; i = h->pcis[i].parent)
        if (++depth > DEPTH_MAX)
            mistake(r, "parent", "more than %d bridges, one below the other", DEPTH_MAX);
    if (r->rc == 0 && host_find_pci(h, address) >= 0)
        mistake(r, "address", "\"%s\" comes twice", address);
    p = r->rc == 0 ? host_add_pci(h, address) : NULL;
    if (!p) {
        if (r->rc == 0)
            no_memory(r);
        return;
    }
    p->parent = above;
    p->root = (int)get_int(r, o, "root", INT32_MIN, INT32_MAX, 0);
    p->class = (uint32_t)get_hex(r, o, "class", 0xffffff);
    p->vendor = (uint16_t)get_hex(r, o, "vendor", UINT16_MAX);
    p->device = (uint16_t)get_hex(r, o, "device", UINT16_MAX);
    p->subsystem_vendor = (uint16_t)get_hex(r, o, "subsystem_vendor", UINT16_MAX);
    p->subsystem_device = (uint16_t)get_hex(r, o, "subsystem_device", UINT16_MAX);
    p->numa_node = (int)get_int(r, o, "numa_node", 0, INT32_MAX, -1);
    p->link_gts = get_real(r, o, "link_gts", 1024);
    p->link_width = (int)get_int(r, o, "link_width", 1, 64, 0);
}

static void read_gids_seen(struct reader *r, json_t *o, struct holmes_rdma_port_seen *s)
{
    json_t *list = get_array(r, o, "gids", OPTIONAL, HOLMES_GIDS_SEEN_MAX), *entry;
    size_t i, mark;

    json_array_foreach(list, i, entry)
    {
        struct holmes_gid_seen *g = &s->gids[s->ngids];

        if (!enter(r, "gids", i, entry, &mark))
            return;
        g->index = (uint8_t)get_int(r, entry, "index", 0, UINT8_MAX, 0);
        g->type = (int8_t)get_word(r, entry, "type", host_gid_types, 3, -1);
        get_text(r, entry, "netdev", OPTIONAL, g->ndev, sizeof g->ndev);
        get_gid(r, entry, g->bytes);
        s->ngids++;
        leave(r, mark);
    }
}

static void read_port(struct reader *r, struct holmes_host *h, json_t *o)
{
    struct holmes_host_port *p = host_add_port(h);
    struct holmes_rdma_port_seen *s;

    if (!p) {
        no_memory(r);
        return;
    }
    s = &p->seen;
    get_text(r, o, "device", REQUIRED, s->device, sizeof s->device);
    s->port = (uint8_t)get_int(r, o, "port", 1, UINT8_MAX, 0);
    if (s->port == 0)
        mistake(r, "port", "is missing");
    p->verdict.used = get_bool(r, o, "used");
    p->verdict.link_local = get_bool(r, o, "link_local");
    get_text(r, o, "reason", OPTIONAL, p->verdict.reason, sizeof p->verdict.reason);
    get_text(r, o, "netdev", OPTIONAL, p->netdev, sizeof p->netdev);
    p->told = get_bool(r, o, "told");
    s->state = (int)get_int(r, o, "state", INT32_MIN, INT32_MAX, 0);
    get_text(r, o, "state_text", OPTIONAL, s->state_text, sizeof s->state_text);
    s->link_layer = (enum holmes_link_layer)get_word(r, o, "link_layer", host_link_layers, 3, 0);
    s->speed_mbps = (uint32_t)get_int(r, o, "speed_mbps", 0, UINT32_MAX, 0);
    s->lid = (uint16_t)get_int(r, o, "lid", 0, UINT16_MAX, 0);
    s->guid = get_hex(r, o, "guid", UINT64_MAX);
    s->node_type = (int)get_int(r, o, "node_type", INT32_MIN, INT32_MAX, 0);
    get_address(r, o, "pci", OPTIONAL, s->pci_path);
    s->numa_node = (int)get_int(r, o, "numa_node", 0, INT32_MAX, -1);
    s->peer_memory = get_bool(r, o, "peer_memory");
    read_gids_seen(r, o, s);
}

static void read_netif(struct reader *r, struct holmes_host *h, json_t *o)
{
    const char *kinds[HOLMES_NETIF_OTHER + 1];
    struct holmes_host_netif *n = host_add_netif(h);
    struct holmes_netif *s;

    if (!n) {
        no_memory(r);
        return;
    }
    for (int i = 0; i <= HOLMES_NETIF_OTHER; i++)
        kinds[i] = holmes_netif_kind_name((enum holmes_netif_kind)i);
    s = &n->seen;
    get_text(r, o, "name", REQUIRED, s->name, sizeof s->name);
    s->kind = (enum holmes_netif_kind)get_word(r, o, "kind", kinds, HOLMES_NETIF_OTHER + 1,
                                               HOLMES_NETIF_OTHER);
    n->verdict.used = get_bool(r, o, "used");
    get_text(r, o, "reason", OPTIONAL, n->verdict.reason, sizeof n->verdict.reason);
    s->speed_mbps = (uint32_t)get_int(r, o, "speed_mbps", 0, UINT32_MAX, 0);
    n->addrs_told = json_is_array(json_object_get(o, "addresses"));
    get_addrs(r, o, "addresses", s->addrs, &s->naddrs);
    s->flags = (unsigned)get_int(r, o, "flags", 0, UINT32_MAX, 0);
    s->arp_type = (unsigned)get_int(r, o, "arp_type", 0, UINT32_MAX, 0);
    s->uplink = get_bool(r, o, "uplink");
    get_address(r, o, "pci", OPTIONAL, s->pci_path);
    s->numa_node = (int)get_int(r, o, "numa_node", 0, INT32_MAX, -1);
}

static void read_links(struct reader *r, json_t *o, struct holmes_host_gpu *g)
{
    json_t *list = get_array(r, o, "links", OPTIONAL, HOLMES_HOST_LINKS_MAX), *entry;
    size_t i, mark;

    json_array_foreach(list, i, entry)
    {
        struct holmes_host_link *l = &g->links[g->nlinks];

        if (!enter(r, "links", i, entry, &mark))
            return;
        get_text(r, entry, "target", REQUIRED, l->target, sizeof l->target);
        l->target_class = (uint32_t)get_hex(r, entry, "target_class", 0xffffff);
        l->count = (int)get_int(r, entry, "count", 1, 1024, 1);
        g->nlinks++;
        leave(r, mark);
    }
}

static void read_gpu(struct reader *r, struct holmes_host *h, json_t *o)
{
    struct holmes_host_gpu *g = host_add_gpu(h);

    if (!g) {
        no_memory(r);
        return;
    }
    get_address(r, o, "pci", OPTIONAL, g->address);
    for (int i = 0; g->address[0] && i < h->ngpus - 1; i++)
        if (strcmp(h->gpus[i].address, g->address) == 0)
            mistake(r, "pci", "\"%s\" comes twice", g->address);
    g->pci = host_find_pci(h, g->address);
    g->vendor = (uint16_t)get_hex(r, o, "vendor", UINT16_MAX);
    g->device = (uint16_t)get_hex(r, o, "device", UINT16_MAX);
    get_text(r, o, "vendor_name", OPTIONAL, g->vendor_name, sizeof g->vendor_name);
    get_text(r, o, "name", OPTIONAL, g->name, sizeof g->name);
    g->memory_gib = get_real(r, o, "memory_gib", GPU_MEMORY_MAX);
    g->numa_node = (int)get_int(r, o, "numa_node", 0, INT32_MAX, -1);
    g->dev = (int)get_int(r, o, "dev", 0, INT32_MAX, -1);
    g->sm = (int)get_int(r, o, "sm", 1, 10000, 0);
    g->gdr = get_bool(r, o, "gdr");
    g->xgmi = get_bool(r, o, "xgmi");
    read_links(r, o, g);
}

static void read_chosen_gids(struct reader *r, json_t *o, struct holmes_rdma *rdma)
{
    json_t *list = get_array(r, o, "gids", OPTIONAL, HOLMES_GIDS_MAX), *entry;
    size_t i, mark;

    json_array_foreach(list, i, entry)
    {
        struct holmes_gid *g = &rdma->gids[rdma->ngids];

        if (!enter(r, "gids", i, entry, &mark))
            return;
        g->index = (uint8_t)get_int(r, entry, "index", 0, UINT8_MAX, 0);
        g->type = (uint8_t)get_word(r, entry, "type", host_gid_types, 3, 0);
        get_gid(r, entry, g->bytes);
        rdma->ngids++;
        leave(r, mark);
    }
}

/* Ties the port or interface that this NIC is to it. */
static void join(struct reader *r, struct holmes_host *h, int index)
{
    const struct holmes_nic *n = &h->chosen.nics[index];

    for (int i = 0; n->rdma.port > 0 && i < h->nports; i++) {
        struct holmes_host_port *p = &h->ports[i];

        if (p->verdict.used && p->nic < 0 && p->seen.port == n->rdma.port &&
            strcmp(p->seen.device, n->rdma.device) == 0) {
            p->nic = index;
            return;
        }
    }
    for (int i = 0; n->rdma.port == 0 && i < h->nnetifs; i++) {
        struct holmes_host_netif *p = &h->netifs[i];

        if (p->verdict.used && p->nic < 0 && strcmp(p->seen.name, n->ifname) == 0) {
            p->nic = index;
            return;
        }
    }
    mistake(r, "name", "\"%s\" is no port or interface in use of this host", n->name);
}

static void read_chosen(struct reader *r, struct holmes_host *h, json_t *o)
{
    struct holmes_nic *n = &h->chosen.nics[h->chosen.n];

    get_text(r, o, "name", REQUIRED, n->name, sizeof n->name);
    get_text(r, o, "ifname", OPTIONAL, n->ifname, sizeof n->ifname);
    get_text(r, o, "pci_path", OPTIONAL, n->pci_path, sizeof n->pci_path);
    n->speed_mbps = (uint32_t)get_int(r, o, "speed_mbps", 0, UINT32_MAX, 0);
    n->numa_node = (int)get_int(r, o, "numa_node", 0, INT32_MAX, -1);
    get_addrs(r, o, "addresses", n->addrs, &n->naddrs);
    get_text(r, o, "device", OPTIONAL, n->rdma.device, sizeof n->rdma.device);
    n->rdma.port = (uint8_t)get_int(r, o, "port", 1, UINT8_MAX, 0);
    n->rdma.link_layer = (uint8_t)get_word(r, o, "link_layer", host_link_layers, 3, 0);
    n->rdma.lid = (uint16_t)get_int(r, o, "lid", 0, UINT16_MAX, 0);
    n->rdma.guid = get_hex(r, o, "guid", UINT64_MAX);
    get_text(r, o, "fabric", OPTIONAL, n->rdma.fabric, sizeof n->rdma.fabric);
    n->rdma.cuda = get_bool(r, o, "cuda");
    read_chosen_gids(r, o, &n->rdma);
    join(r, h, h->chosen.n++);
}

static void read_skipped(struct reader *r, struct holmes_host *h, json_t *o)
{
    struct holmes_host_skip s = {.what = ""};

    get_text(r, o, "what", REQUIRED, s.what, sizeof s.what);
    get_text(r, o, "reason", OPTIONAL, s.reason, sizeof s.reason);
    if (host_skip(h, s.what, "%s", s.reason) != 0)
        no_memory(r);
}

static void read_list(struct reader *r, struct holmes_host *h, json_t *root, const char *key,
                      enum need need, size_t most,
                      void (*read)(struct reader *, struct holmes_host *, json_t *))
{
    json_t *list = r->rc == 0 ? get_array(r, root, key, need, most) : NULL, *entry;
    size_t i, mark;

    json_array_foreach(list, i, entry)
    {
        if (enter(r, key, i, entry, &mark))
            read(r, h, entry);
        if (r->rc != 0)
            return;
        leave(r, mark);
    }
}

static void read_notes(struct reader *r, struct holmes_host *h, json_t *root)
{
    json_t *list = get_array(r, root, "notes", OPTIONAL, HOLMES_HOST_DEVICES_MAX), *entry;
    size_t i;

    json_array_foreach(list, i, entry)
    {
        if (!json_is_string(entry))
            mistake(r, "notes", "entry %zu: a string is right", i);
        else if (host_note(h, "%s", json_string_value(entry)) != 0)
            no_memory(r);
    }
}

static void read_host(struct reader *r, struct holmes_host *h, json_t *root)
{
    const char *sources[HOLMES_HOST_NCCL + 1];
    json_t *version = json_object_get(root, "holmes-host");

    for (int i = 0; i <= HOLMES_HOST_NCCL; i++)
        sources[i] = holmes_host_source_name((enum holmes_host_source)i);
    if (!json_is_integer(version))
        mistake(r, "holmes-host",
                "the version is missing: not what `holmes-topo discover --json` "
                "writes");
    else if (json_integer_value(version) != HOLMES_HOST_VERSION)
        mistake(r, "holmes-host", "version %lld; this program reads %d",
                (long long)json_integer_value(version), HOLMES_HOST_VERSION);
    get_text(r, root, "hostname", OPTIONAL, h->hostname, sizeof h->hostname);
    h->source = (enum holmes_host_source)get_word(r, root, "source", sources, HOLMES_HOST_NCCL + 1,
                                                  HOLMES_HOST_RECORDED);
    h->memory_gib = get_real(r, root, "memory_gib", HOST_MEMORY_MAX);
    h->cores = (int)get_int(r, root, "cores", 0, 1 << 20, 0);
    read_list(r, h, root, "cpus", OPTIONAL, HOLMES_HOST_DEVICES_MAX, read_cpu);
    read_list(r, h, root, "pci", OPTIONAL, HOLMES_HOST_DEVICES_MAX, read_pci);
    read_list(r, h, root, "rdma_ports", REQUIRED, HOLMES_HOST_DEVICES_MAX, read_port);
    read_list(r, h, root, "interfaces", REQUIRED, HOLMES_HOST_DEVICES_MAX, read_netif);
    read_list(r, h, root, "gpus", REQUIRED, GPUS_MAX, read_gpu);
    read_list(r, h, root, "chosen", OPTIONAL, HOLMES_NICS_MAX, read_chosen);
    h->chosen.nshown = (int)get_int(r, root, "chosen_shown", 0, h->chosen.n, h->chosen.n);
    read_list(r, h, root, "skipped", OPTIONAL, HOLMES_HOST_DEVICES_MAX, read_skipped);
    read_notes(r, h, root);
}

int holmes_host_parse_json(const char *name, const void *data, size_t len, struct holmes_host **out,
                           char *why, size_t why_len)
{
    struct reader r = {.name = name, .why = why, .why_len = why_len};
    json_error_t error;
    json_t *root = json_loadb(data, len, JSON_REJECT_DUPLICATES, &error);
    struct holmes_host *h;

    if (!root) {
        snprintf(why, why_len, "%s:%d:%d: %s", name, error.line, error.column, error.text);
        return -EINVAL;
    }
    h = host_new(HOLMES_HOST_RECORDED);
    if (!h)
        no_memory(&r);
    else if (!json_is_object(root))
        mistake(&r, "", "an object is right");
    else
        read_host(&r, h, root);
    json_decref(root);
    if (r.rc == 0 && host_finish(h) != 0)
        no_memory(&r);
    if (r.rc != 0) {
        holmes_host_destroy(h);
        return r.rc;
    }
    *out = h;
    return 0;
}
