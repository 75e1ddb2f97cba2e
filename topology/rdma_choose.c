/* Chooses RDMA ports: what the port is, what the user wants, what its GIDs are good for, and last
 * whether the port opens. Pure but for that last question. */
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric_ids.h"
#include "gid.h"
#include "hca_list.h"
#include "log.h"
#include "topology.h"

#define STATE_ACTIVE    4
#define NODE_TYPE_CA    1 /* InfiniBand and RoCE */
#define NODE_TYPE_IWARP 4

struct chooser {
    const struct holmes_rdma_port_seen *ports;
    int nports;
    const struct holmes_rdma_request *req;
    const struct holmes_netif *ifs;
    int nifs;
    const struct holmes_nic *ethernet;
    int nethernet;
    struct hca_list hca;
    struct fabric_ids fabric;
    struct gid_wish wish;
    struct holmes_rdma_verdict *verdicts;
};

struct candidate {
    int index; /* of the port */
    struct gid_choice gids;
    const char *pci_path; /* its own, or its interface's */
    int numa_node;        /* likewise */
    uint64_t pci_order;
};

static bool reject(struct holmes_rdma_verdict *v, const char *reason)
{
    v->used = false;
    snprintf(v->reason, sizeof v->reason, "%s", reason);
    return false;
}

static bool is_named(const struct chooser *c)
{
    return c->hca.n > 0 && !c->hca.exclude;
}

/* The port itself: active, and of a kind that the verbs wire speaks. */
static bool is_live(const struct holmes_rdma_port_seen *p, struct holmes_rdma_verdict *v)
{
    if (p->node_type == NODE_TYPE_IWARP)
        return reject(v, "iWARP, not RoCE");
    if (p->link_layer == HOLMES_LINK_UNKNOWN)
        return reject(v, "its link layer is neither InfiniBand nor Ethernet");
    if (p->node_type != 0 && p->node_type != NODE_TYPE_CA)
        return reject(v, "neither an InfiniBand nor a RoCE adapter");
    if (p->state != STATE_ACTIVE) {
        snprintf(v->reason, sizeof v->reason, "port is not active (%s)",
                 p->state_text[0] ? p->state_text : "no state");
        return false;
    }
    return true;
}

static const struct holmes_netif *find_netif(const struct chooser *c, const char *name)
{
    for (int i = 0; i < c->nifs; i++) {
        if (strcmp(c->ifs[i].name, name) == 0)
            return &c->ifs[i];
    }
    return NULL;
}

/* Loopback and bridges of this host's guests: no peer is behind them. */
static bool leads_nowhere(const struct chooser *c, const struct holmes_rdma_port_seen *p,
                          const char *ndev)
{
    static const char *const prefixes[] = {"docker", "br-", "virbr", "podman", "cni"};
    const struct holmes_netif *nif = find_netif(c, ndev);

    if (nif && gid_netdev_is_ours(p, ndev, c->ifs, c->nifs))
        return nif->kind == HOLMES_NETIF_LOOPBACK ||
               (nif->kind == HOLMES_NETIF_BRIDGE && !nif->uplink);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(ndev, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    }
    return strcmp(ndev, "lo") == 0;
}

static const struct holmes_gid_seen *gid_at(const struct holmes_rdma_port_seen *p, int64_t index)
{
    for (int i = 0; i < p->ngids; i++) {
        if (p->gids[i].index == index)
            return &p->gids[i];
    }
    return NULL;
}

static void take_infiniband_gid(const struct holmes_gid_seen *g, struct gid_choice *out)
{
    memcpy(out->gids[out->n].bytes, g->bytes, sizeof g->bytes);
    out->gids[out->n].index = g->index;
    out->gids[out->n++].type = HOLMES_GID_INFINIBAND;
}

/* GID 0 has prefix and port GUID. Where routers join subnets, another one carries the id of its
 * subnet's local area (FLID) in bytes 4 and 5 and goes first. */
static bool choose_infiniband(const struct chooser *c, const struct holmes_rdma_port_seen *p,
                              struct gid_choice *out, struct holmes_rdma_verdict *v)
{
    int64_t routed = c->req->flid_gid_index;
    const struct holmes_gid_seen *zero = gid_at(p, 0), *flid = gid_at(p, routed);

    memset(out, 0, sizeof *out);
    if (routed > 0 && flid && (flid->bytes[4] | flid->bytes[5]))
        take_infiniband_gid(flid, out);
    if (zero)
        take_infiniband_gid(zero, out);
    return out->n > 0 || reject(v, "has no GID 0");
}

static bool has_roce_type(const struct holmes_rdma_port_seen *p)
{
    for (int i = 0; i < p->ngids; i++) {
        if (p->gids[i].type == HOLMES_GID_ROCE_V1 || p->gids[i].type == HOLMES_GID_ROCE_V2)
            return true;
    }
    return false;
}

static bool choose_roce(const struct chooser *c, const struct holmes_rdma_port_seen *p,
                        struct gid_choice *out, struct holmes_rdma_verdict *v)
{
    if (p->ngids == 0)
        return reject(v, "its GID table is empty: its interface needs an address");
    if (!has_roce_type(p))
        return reject(v, "Ethernet without a GID of RoCE's types: not RoCE");
    if (gid_choose(p, &c->wish, c->ifs, c->nifs, out) != 0) {
        if (c->wish.index < 0)
            return reject(v, "no GID is an address that a peer could reach");
        snprintf(v->reason, sizeof v->reason, "has no GID %lld (NCCL_IB_GID_INDEX)",
                 (long long)c->wish.index);
        return false;
    }
    if (!is_named(c) && leads_nowhere(c, p, out->ndev)) {
        snprintf(v->reason, sizeof v->reason, "its interface %s leads to no other host", out->ndev);
        return false;
    }
    return true;
}

static bool is_selected(const struct chooser *c, const struct holmes_rdma_port_seen *p,
                        struct holmes_rdma_verdict *v)
{
    if (c->hca.n == 0 || hca_list_fits(&c->hca, p->device, p->port) != c->hca.exclude)
        return true;
    return reject(v, c->hca.exclude ? "excluded by NCCL_IB_HCA" : "not named in NCCL_IB_HCA");
}

/* "0000:3b:00.1" as a number; UINT64_MAX for what is none, so that it comes last. */
static uint64_t pci_order(const char *path)
{
    const char *name = strrchr(path, '/');
    unsigned domain, bus, dev, fn;

    if (!name || sscanf(name + 1, "%x:%x:%x.%x", &domain, &bus, &dev, &fn) != 4)
        return UINT64_MAX;
    return (uint64_t)domain << 16 | (uint64_t)(bus << 8 | dev << 3 | fn);
}

static int candidate_compare(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;

    if (a->pci_order != b->pci_order)
        return a->pci_order < b->pci_order ? -1 : 1;
    return a->index - b->index;
}

/* The interface that carries the port's best GID, where it is in this namespace. */
static const char *own_netdev(const struct chooser *c, const struct holmes_rdma_port_seen *p,
                              const struct gid_choice *gids)
{
    return gids->ndev[0] && gid_netdev_is_ours(p, gids->ndev, c->ifs, c->nifs) ? gids->ndev : "";
}

static void candidate_place(const struct chooser *c, struct candidate *cand)
{
    const struct holmes_rdma_port_seen *p = &c->ports[cand->index];
    const struct holmes_netif *nif;

    cand->pci_path = p->pci_path;
    cand->numa_node = p->numa_node;
    if (!p->pci_path[0] && p->link_layer == HOLMES_LINK_ETHERNET) {
        nif = find_netif(c, own_netdev(c, p, &cand->gids)); /* a software device */
        if (nif) {
            cand->pci_path = nif->pci_path;
            cand->numa_node = nif->numa_node;
        }
    }
    cand->pci_order = pci_order(cand->pci_path);
}

static int collect_candidates(const struct chooser *c, struct candidate *out)
{
    int n = 0;

    for (int i = 0; i < c->nports; i++) {
        const struct holmes_rdma_port_seen *p = &c->ports[i];
        struct holmes_rdma_verdict *v = &c->verdicts[i];
        struct candidate *cand = &out[n];

        cand->index = i;
        if (!is_selected(c, p, v) || !is_live(p, v))
            continue;
        if (p->link_layer == HOLMES_LINK_INFINIBAND ? !choose_infiniband(c, p, &cand->gids, v)
                                                    : !choose_roce(c, p, &cand->gids, v))
            continue;
        candidate_place(c, cand);
        n++;
    }
    return n;
}

static int drop_closed(const struct chooser *c, struct candidate *cands, int n)
{
    int kept = 0;

    for (int i = 0; i < n; i++) {
        const struct holmes_rdma_port_seen *p = &c->ports[cands[i].index];
        int rc = c->req->open_error ? c->req->open_error(c->req->arg, p->device, p->port) : 0;

        if (rc == 0)
            cands[kept++] = cands[i];
        else
            snprintf(c->verdicts[cands[i].index].reason, HOLMES_NETIF_REASON_MAX,
                     "cannot be opened: %s", holmes_strerror(rc));
    }
    return kept;
}

/* NCCL attaches a NIC to the PCI function of this path, and merges NICs with equal ones: so ports
 * of an adapter (last digit), and virtual functions with their physical one, get the same. */
static void merge_pci_path(char *path, bool keep_vfs)
{
    size_t len = strlen(path);

    if (len < sizeof "/0000:00:00.0" - 1)
        return;
    path[len - 1] = '0';
    if (!keep_vfs)
        path[len - 3] = path[len - 4] = '0';
}

static void use_netdev(const struct chooser *c, const char *ndev, struct holmes_nic *nic)
{
    snprintf(nic->ifname, sizeof nic->ifname, "%s", ndev);
    for (int i = 0; *ndev && i < c->nethernet; i++) {
        if (strcmp(c->ethernet[i].ifname, ndev) != 0)
            continue;
        nic->naddrs = c->ethernet[i].naddrs;
        memcpy(nic->addrs, c->ethernet[i].addrs, sizeof nic->addrs);
    }
}

static void describe_port(const struct holmes_nic *nic, struct holmes_rdma_verdict *v)
{
    const struct holmes_gid *g = &nic->rdma.gids[0];
    char text[INET6_ADDRSTRLEN];

    gid_text(g->bytes, text, sizeof text);
    if (nic->rdma.link_layer == HOLMES_LINK_INFINIBAND)
        snprintf(v->reason, sizeof v->reason, "InfiniBand, %u Mbit/s, lid %u, GID %u %s",
                 nic->speed_mbps, nic->rdma.lid, g->index, text);
    else
        snprintf(v->reason, sizeof v->reason, "RoCE v%d, %u Mbit/s, GID %u %s%s%s%s",
                 g->type == HOLMES_GID_ROCE_V1 ? 1 : 2, nic->speed_mbps, g->index, text,
                 nic->ifname[0] ? " on " : "", nic->ifname,
                 v->link_local ? "; without another IP address it reaches its own link only" : "");
}

static void use(const struct chooser *c, const struct candidate *cand, bool several_ports,
                struct holmes_nic *nic)
{
    const struct holmes_rdma_port_seen *p = &c->ports[cand->index];
    struct holmes_rdma_verdict *v = &c->verdicts[cand->index];

    memset(nic, 0, sizeof *nic);
    if (several_ports)
        snprintf(nic->name, sizeof nic->name, "%s:%u", p->device, p->port);
    else
        snprintf(nic->name, sizeof nic->name, "%s", p->device);
    snprintf(nic->pci_path, sizeof nic->pci_path, "%s", cand->pci_path);
    if (p->pci_path[0])
        merge_pci_path(nic->pci_path, c->req->keep_vfs);
    nic->speed_mbps = p->speed_mbps;
    nic->numa_node = cand->numa_node;
    if (p->link_layer == HOLMES_LINK_ETHERNET)
        use_netdev(c, own_netdev(c, p, &cand->gids), nic);
    memcpy(nic->rdma.device, p->device, sizeof nic->rdma.device);
    nic->rdma.port = p->port;
    nic->rdma.link_layer = (uint8_t)p->link_layer;
    nic->rdma.lid = p->lid;
    nic->rdma.guid = p->guid;
    snprintf(nic->rdma.fabric, sizeof nic->rdma.fabric, "%s",
             fabric_ids_find(&c->fabric, p->device, p->port));
    nic->rdma.ngids = cand->gids.n;
    memcpy(nic->rdma.gids, cand->gids.gids, sizeof nic->rdma.gids);
    nic->rdma.cuda = p->peer_memory;
    v->used = true;
    v->link_local = cand->gids.link_local;
    describe_port(nic, v);
}

static int use_all(const struct chooser *c, const struct candidate *cands, int n,
                   struct holmes_nic *nics)
{
    int used = n < HOLMES_RDMA_PORTS_MAX ? n : HOLMES_RDMA_PORTS_MAX;

    for (int i = 0; i < n; i++) {
        const char *device = c->ports[cands[i].index].device;
        int of_device = 0;

        for (int k = 0; k < used; k++)
            of_device += strcmp(c->ports[cands[k].index].device, device) == 0;
        if (i < used)
            use(c, &cands[i], of_device > 1, &nics[i]);
        else
            snprintf(c->verdicts[cands[i].index].reason, HOLMES_NETIF_REASON_MAX,
                     "more than %d ports", HOLMES_RDMA_PORTS_MAX);
    }
    return used;
}

/* "mlx5_0:1, mlx4_0:1, mlx4_0:2" */
static void list_ports(const struct chooser *c, char *buf, size_t len)
{
    size_t used = 0;

    snprintf(buf, len, "none");
    for (int i = 0; i < c->nports && used < len; i++)
        used += (size_t)snprintf(buf + used, len - used, "%s%s:%u", i > 0 ? ", " : "",
                                 c->ports[i].device, c->ports[i].port);
}

static int refuse_hca(const struct chooser *c, const char *syntax, char *why, size_t why_len)
{
    char list[512];

    list_ports(c, list, sizeof list);
    if (syntax)
        snprintf(why, why_len, "%s; RDMA ports here: %s", syntax, list);
    else
        snprintf(why, why_len, "NCCL_IB_HCA=\"%s\" fits no RDMA port; RDMA ports here: %s",
                 c->req->hca, list);
    return -EINVAL;
}

/* A list that fits no port at all is a mistake; one whose ports are down is not. Nor is it one
 * where there is no port to fit: the same settings go to all hosts of a job. */
static int check_hca(const struct chooser *c, char *why, size_t why_len)
{
    if (!is_named(c) || c->nports == 0)
        return 0;
    for (int i = 0; i < c->nports; i++) {
        if (hca_list_fits(&c->hca, c->ports[i].device, c->ports[i].port))
            return 0;
    }
    return refuse_hca(c, NULL, why, why_len);
}

static int check_fabric(const struct chooser *c, char *why, size_t why_len)
{
    for (int i = 0; c->nports > 0 && i < c->fabric.n; i++) {
        const struct fabric_entry *e = &c->fabric.entries[i];
        char list[512], port[8] = "", line[24] = "";
        bool found = false;

        for (int k = 0; k < c->nports; k++)
            found |= strcmp(c->ports[k].device, e->device) == 0 &&
                     (e->port == 0 || e->port == c->ports[k].port);
        if (found)
            continue;
        if (e->port != 0)
            snprintf(port, sizeof port, ":%d", e->port);
        if (e->line != 0)
            snprintf(line, sizeof line, " in line %d", e->line);
        list_ports(c, list, sizeof list);
        snprintf(why, why_len, "HOLMES_FABRIC=\"%s\" names %s%s%s; RDMA ports here: %s",
                 c->req->fabric, e->device, port, line, list);
        return -EINVAL;
    }
    return 0;
}

/* "mlx5_0:1 has 0, 1, 3" */
static size_t list_indices(const struct holmes_rdma_port_seen *p, char *buf, size_t len)
{
    size_t used =
        (size_t)snprintf(buf, len, "%s:%u has %s", p->device, p->port, p->ngids > 0 ? "" : "none");

    for (int i = 0; i < p->ngids && used < len; i++)
        used +=
            (size_t)snprintf(buf + used, len - used, "%s%u", i > 0 ? ", " : "", p->gids[i].index);
    return used;
}

/* An index that no RoCE port has is a mistake; that some lack it is told in their verdicts. */
static int check_gid_index(const struct chooser *c, char *why, size_t why_len)
{
    struct holmes_rdma_verdict ignored;
    char list[512] = "";
    size_t used = 0;

    for (int i = 0; c->wish.index >= 0 && i < c->nports; i++) {
        const struct holmes_rdma_port_seen *p = &c->ports[i];
        struct gid_choice choice;

        if (p->link_layer != HOLMES_LINK_ETHERNET || !is_selected(c, p, &ignored) ||
            !is_live(p, &ignored) || !has_roce_type(p))
            continue;
        if (gid_choose(p, &c->wish, c->ifs, c->nifs, &choice) == 0)
            return 0;
        if (used > 0 && used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "; ");
        if (used < sizeof list)
            used += list_indices(p, list + used, sizeof list - used);
    }
    if (used == 0)
        return 0;
    snprintf(why, why_len, "NCCL_IB_GID_INDEX=%lld is in no RoCE port's GID table: %s",
             (long long)c->wish.index, list);
    return -EINVAL;
}

static int parse_request(struct chooser *c, char *why, size_t why_len)
{
    char syntax[512];
    size_t used;
    int rc;

    if (hca_list_parse(c->req->hca, &c->hca, syntax, sizeof syntax) != 0)
        return refuse_hca(c, syntax, why, why_len);
    rc = fabric_ids_read(c->req->fabric, c->req->host, &c->fabric, why, why_len);
    if (rc == 0 && c->nports == 0)
        why[0] = '\0'; /* a host without ports needs no line in the file */
    if (rc == 0)
        rc = gid_wish_parse(c->req, &c->wish, why, why_len);
    used = strlen(why);
    if (rc == 0 && c->hca.rails && used < why_len)
        snprintf(why + used, why_len - used,
                 "%sNCCL_IB_HCA=\"%s\": rails and planes have no effect", used > 0 ? "; " : "",
                 c->req->hca);
    if (rc == 0)
        rc = check_hca(c, why, why_len);
    if (rc == 0)
        rc = check_fabric(c, why, why_len);
    return rc == 0 ? check_gid_index(c, why, why_len) : rc;
}

int holmes_rdma_choose(const struct holmes_rdma_port_seen *ports, int nports,
                       const struct holmes_rdma_request *req, const struct holmes_netif *ifs,
                       int nifs, const struct holmes_nic *ethernet, int nethernet,
                       struct holmes_rdma_verdict *verdicts, struct holmes_nic *nics, int *nnics,
                       char *why, size_t why_len)
{
    struct chooser c = {
        .ports = ports,
        .nports = nports,
        .req = req,
        .ifs = ifs,
        .nifs = nifs,
        .ethernet = ethernet,
        .nethernet = nethernet,
        .verdicts = verdicts,
    };
    struct candidate *cands;
    int n, rc;

    why[0] = '\0';
    rc = parse_request(&c, why, why_len);
    if (rc != 0)
        return rc;
    cands = calloc((size_t)nports + 1, sizeof *cands);
    if (!cands)
        return -ENOMEM;
    for (int i = 0; i < nports; i++)
        verdicts[i] = (struct holmes_rdma_verdict){.used = false};
    n = drop_closed(&c, cands, collect_candidates(&c, cands));
    qsort(cands, (size_t)n, sizeof *cands, candidate_compare);
    *nnics = use_all(&c, cands, n, nics);
    free(cands);
    return 0;
}
