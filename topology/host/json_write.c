/* A host as JSON. What is unknown is null; what is derived from the rest (NICs, distances) is
 * written for programs that only look, and not read back. */
#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"
#include "json.h"
#include "utf8.h"

/* jansson keeps what it is given and answers -1 to NULL, so that one lost piece of memory shows in
 * `lost` and nowhere else. */
struct writer {
    bool lost;
};

static void put(struct writer *w, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        w->lost = true;
}

static void push(struct writer *w, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        w->lost = true;
}

/* Names come from drivers and files: bytes that are no UTF-8 become '?'. */
static json_t *text(const char *s)
{
    char *clean = strdup(s);
    json_t *value;
    size_t n;

    if (!clean)
        return NULL;
    for (char *p = clean; *p; p += n)
        if (holmes_utf8_decode(p, &n) == HOLMES_UTF8_REPLACEMENT && n == 1)
            *p = '?';
    value = json_string(clean);
    free(clean);
    return value;
}

static json_t *text_or_null(const char *s)
{
    return *s ? text(s) : json_null();
}

static json_t *known(int64_t v, int64_t unknown)
{
    return v == unknown ? json_null() : json_integer(v);
}

static json_t *measured(double v)
{
    return v > 0 ? json_real(v) : json_null();
}

static json_t *hex(uint64_t v, int digits)
{
    return v ? json_sprintf("0x%0*llx", digits, (unsigned long long)v) : json_null();
}

static json_t *addr(const struct holmes_addr *a)
{
    char buf[INET6_ADDRSTRLEN];

    return json_sprintf("%s/%u", holmes_addr_text(a, buf, sizeof buf), a->prefix_len);
}

static json_t *addrs(struct writer *w, const struct holmes_addr *list, int n)
{
    json_t *array = json_array();

    for (int i = 0; i < n; i++)
        push(w, array, addr(&list[i]));
    return array;
}

static json_t *gid(const uint8_t bytes[16])
{
    char buf[INET6_ADDRSTRLEN];

    return text(inet_ntop(AF_INET6, bytes, buf, sizeof buf) ? buf : "");
}

static json_t *link_layer(enum holmes_link_layer l)
{
    return text_or_null(host_link_layers[l]);
}

static json_t *gid_type(int type)
{
    return type >= 0 ? text(host_gid_types[type]) : json_null();
}

static json_t *write_cpu(struct writer *w, const struct holmes_host_cpu *c)
{
    json_t *o = json_object();

    put(w, o, "numa_node", known(c->numa_node, -1));
    put(w, o, "affinity", text_or_null(c->affinity));
    put(w, o, "arch", text_or_null(c->arch));
    put(w, o, "vendor", text_or_null(c->vendor));
    put(w, o, "family", known(c->family, -1));
    put(w, o, "model", known(c->model, -1));
    return o;
}

static json_t *write_pci(struct writer *w, const struct holmes_host *h,
                         const struct holmes_host_pci *p)
{
    json_t *o = json_object();

    put(w, o, "address", text(p->address));
    put(w, o, "parent", p->parent >= 0 ? text(h->pcis[p->parent].address) : json_null());
    put(w, o, "root", json_integer(p->root));
    put(w, o, "class", hex(p->class, 6));
    put(w, o, "vendor", hex(p->vendor, 4));
    put(w, o, "device", hex(p->device, 4));
    put(w, o, "subsystem_vendor", hex(p->subsystem_vendor, 4));
    put(w, o, "subsystem_device", hex(p->subsystem_device, 4));
    put(w, o, "numa_node", known(p->numa_node, -1));
    put(w, o, "link_gts", measured(p->link_gts));
    put(w, o, "link_width", known(p->link_width, 0));
    return o;
}

static json_t *write_gids_seen(struct writer *w, const struct holmes_rdma_port_seen *s)
{
    json_t *array = json_array();

    for (int i = 0; i < s->ngids; i++) {
        json_t *o = json_object();

        put(w, o, "index", json_integer(s->gids[i].index));
        put(w, o, "gid", gid(s->gids[i].bytes));
        put(w, o, "type", gid_type(s->gids[i].type));
        put(w, o, "netdev", text_or_null(s->gids[i].ndev));
        push(w, array, o);
    }
    return array;
}

static json_t *write_port(struct writer *w, const struct holmes_host *h,
                          const struct holmes_host_port *p)
{
    const struct holmes_rdma_port_seen *s = &p->seen;
    const struct holmes_rdma *r = p->nic >= 0 ? &h->chosen.nics[p->nic].rdma : NULL;
    json_t *o = json_object();

    put(w, o, "device", text(s->device));
    put(w, o, "port", json_integer(s->port));
    put(w, o, "used", json_boolean(p->verdict.used));
    put(w, o, "reason", text(p->verdict.reason));
    put(w, o, "gid_index", r && r->ngids > 0 ? json_integer(r->gids[0].index) : json_null());
    put(w, o, "netdev", text_or_null(p->netdev));
    put(w, o, "link_local", json_boolean(p->verdict.link_local));
    put(w, o, "told", json_boolean(p->told));
    put(w, o, "state", known(s->state, 0));
    put(w, o, "state_text", text_or_null(s->state_text));
    put(w, o, "link_layer", link_layer(s->link_layer));
    put(w, o, "speed_mbps", known(s->speed_mbps, 0));
    put(w, o, "lid", known(s->lid, 0));
    put(w, o, "guid", hex(s->guid, 16));
    put(w, o, "node_type", known(s->node_type, 0));
    put(w, o, "pci", text_or_null(s->pci_path));
    put(w, o, "numa_node", known(s->numa_node, -1));
    put(w, o, "peer_memory", json_boolean(s->peer_memory));
    put(w, o, "gids", write_gids_seen(w, s));
    return o;
}

static json_t *write_netif(struct writer *w, const struct holmes_host_netif *n)
{
    const struct holmes_netif *s = &n->seen;
    json_t *o = json_object();

    put(w, o, "name", text(s->name));
    put(w, o, "kind", text(holmes_netif_kind_name(s->kind)));
    put(w, o, "used", json_boolean(n->verdict.used));
    put(w, o, "reason", text(n->verdict.reason));
    put(w, o, "speed_mbps", known(s->speed_mbps, 0));
    put(w, o, "addresses", n->addrs_told ? addrs(w, s->addrs, s->naddrs) : json_null());
    put(w, o, "flags", json_integer(s->flags));
    put(w, o, "arp_type", json_integer(s->arp_type));
    put(w, o, "uplink", json_boolean(s->uplink));
    put(w, o, "pci", text_or_null(s->pci_path));
    put(w, o, "numa_node", known(s->numa_node, -1));
    return o;
}

static json_t *write_gpu(struct writer *w, const struct holmes_host_gpu *g)
{
    json_t *o = json_object(), *links = json_array();

    put(w, o, "pci", text_or_null(g->address));
    put(w, o, "vendor", hex(g->vendor, 4));
    put(w, o, "device", hex(g->device, 4));
    put(w, o, "vendor_name", text_or_null(g->vendor_name));
    put(w, o, "name", text_or_null(g->name));
    put(w, o, "memory_gib", measured(g->memory_gib));
    put(w, o, "numa_node", known(g->numa_node, -1));
    put(w, o, "dev", known(g->dev, -1));
    put(w, o, "sm", known(g->sm, 0));
    put(w, o, "gdr", json_boolean(g->gdr));
    put(w, o, "xgmi", json_boolean(g->xgmi));
    for (int i = 0; i < g->nlinks; i++) {
        json_t *l = json_object();

        put(w, l, "target", text(g->links[i].target));
        put(w, l, "target_class", hex(g->links[i].target_class, 6));
        put(w, l, "count", json_integer(g->links[i].count));
        push(w, links, l);
    }
    put(w, o, "links", links);
    return o;
}

static json_t *write_nic(struct writer *w, const struct holmes_host_nic *n)
{
    json_t *o = json_object();

    put(w, o, "name", text(n->name));
    put(w, o, "pci", text_or_null(n->address));
    put(w, o, "numa_node", known(n->numa_node, -1));
    put(w, o, "speed_mbps", known(n->speed_mbps, 0));
    put(w, o, "used", json_boolean(n->used));
    return o;
}

static json_t *write_chosen(struct writer *w, const struct holmes_nic *n)
{
    json_t *o = json_object(), *gids = json_array();

    put(w, o, "name", text(n->name));
    put(w, o, "ifname", text_or_null(n->ifname));
    put(w, o, "pci_path", text_or_null(n->pci_path));
    put(w, o, "speed_mbps", known(n->speed_mbps, 0));
    put(w, o, "numa_node", known(n->numa_node, -1));
    put(w, o, "addresses", addrs(w, n->addrs, n->naddrs));
    put(w, o, "device", text_or_null(n->rdma.device));
    put(w, o, "port", known(n->rdma.port, 0));
    put(w, o, "link_layer", link_layer((enum holmes_link_layer)n->rdma.link_layer));
    put(w, o, "lid", known(n->rdma.lid, 0));
    put(w, o, "guid", hex(n->rdma.guid, 16));
    put(w, o, "fabric", text_or_null(n->rdma.fabric));
    put(w, o, "cuda", json_boolean(n->rdma.cuda));
    for (int i = 0; i < n->rdma.ngids; i++) {
        json_t *g = json_object();

        put(w, g, "index", json_integer(n->rdma.gids[i].index));
        put(w, g, "gid", gid(n->rdma.gids[i].bytes));
        put(w, g, "type", gid_type(n->rdma.gids[i].type));
        push(w, gids, g);
    }
    put(w, o, "gids", gids);
    return o;
}

static json_t *write_distances(struct writer *w, const struct holmes_host *h)
{
    json_t *array = json_array();

    for (int g = 0; g < h->ngpus; g++) {
        json_t *row = json_array();

        for (int n = 0; n < h->nnics; n++)
            push(w, row, text(holmes_path_name(h->distance[g * h->nnics + n])));
        push(w, array, row);
    }
    return array;
}

static void write_lists(struct writer *w, const struct holmes_host *h, json_t *root)
{
    json_t *cpus = json_array(), *pcis = json_array(), *ports = json_array();
    json_t *netifs = json_array(), *gpus = json_array(), *nics = json_array();
    json_t *chosen = json_array(), *skipped = json_array(), *notes = json_array();

    for (int i = 0; i < h->nports; i++)
        push(w, ports, write_port(w, h, &h->ports[i]));
    for (int i = 0; i < h->nnetifs; i++)
        push(w, netifs, write_netif(w, &h->netifs[i]));
    for (int i = 0; i < h->ngpus; i++)
        push(w, gpus, write_gpu(w, &h->gpus[i]));
    for (int i = 0; i < h->nnics; i++)
        push(w, nics, write_nic(w, &h->nics[i]));
    for (int i = 0; i < h->chosen.n; i++)
        push(w, chosen, write_chosen(w, &h->chosen.nics[i]));
    for (int i = 0; i < h->ncpus; i++)
        push(w, cpus, write_cpu(w, &h->cpus[i]));
    for (int i = 0; i < h->npcis; i++)
        push(w, pcis, write_pci(w, h, &h->pcis[i]));
    for (int i = 0; i < h->nskipped; i++) {
        json_t *o = json_object();

        put(w, o, "what", text(h->skipped[i].what));
        put(w, o, "reason", text(h->skipped[i].reason));
        push(w, skipped, o);
    }
    for (int i = 0; i < h->nnotes; i++)
        push(w, notes, text(h->notes[i]));
    put(w, root, "rdma_ports", ports);
    put(w, root, "interfaces", netifs);
    put(w, root, "gpus", gpus);
    put(w, root, "nics", nics);
    put(w, root, "distances", write_distances(w, h));
    put(w, root, "chosen", chosen);
    put(w, root, "chosen_shown", json_integer(h->chosen.nshown));
    put(w, root, "cpus", cpus);
    put(w, root, "pci", pcis);
    put(w, root, "skipped", skipped);
    put(w, root, "notes", notes);
}

int holmes_host_json(const struct holmes_host *h, FILE *out)
{
    struct writer w = {false};
    json_t *root = json_object();
    int rc = 0;

    put(&w, root, "holmes-host", json_integer(HOLMES_HOST_VERSION));
    put(&w, root, "hostname", text_or_null(h->hostname));
    put(&w, root, "source", text(holmes_host_source_name(h->source)));
    put(&w, root, "memory_gib", measured(h->memory_gib));
    put(&w, root, "cores", known(h->cores, 0));
    write_lists(&w, h, root);
    if (!root || w.lost)
        rc = -ENOMEM;
    else if (json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) != 0 ||
             fputc('\n', out) == EOF)
        rc = -EIO;
    json_decref(root);
    return rc;
}
