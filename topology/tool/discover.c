/* holmes-topo discover: what a machine has to communicate with, what is used and why the rest is
 * not. */
#include <argp.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "gid.h"
#include "host.h"
#include "log.h"
#include "table.h"
#include "verbs.h"

enum { KEY_ROOT = 256, KEY_FROM, KEY_JSON, KEY_EXPLAIN, KEY_XML };

struct options {
    const char *root, *from, *xml;
    bool json, explain;
};

static const struct argp_option argp_options[] = {
    {NULL, 0, NULL, 0, "Which machine (default: this one):", 1},
    {"sysfs-root", KEY_ROOT, "DIR", 0,
     "one whose tree was recorded: the folder that has its sys/ in it, its sysfs, or a copy of its "
     "class/infiniband",
     0},
    {"from", KEY_FROM, "FILE", 0,
     "one that a file describes: what `discover --json` wrote, NCCL topology XML (NCCL_TOPO_FILE, "
     "NCCL_TOPO_DUMP_FILE) or hwloc XML (lstopo -f --of xml)",
     0},
    {NULL, 0, NULL, 0, "What to write:", 2},
    {"json", KEY_JSON, NULL, 0, "JSON in place of the tables: docs/host.md", 0},
    {"explain", KEY_EXPLAIN, NULL, 0, "all GIDs, the order NCCL sees, and what the words mean", 0},
    {"nccl-xml", KEY_XML, "FILE", 0,
     "write NCCL topology XML too, to be named in NCCL_TOPO_FILE; - is the output, without tables",
     0},
    {NULL, 0, NULL, 0, "Help:", -1},
    {0},
};

static const char argp_doc[] =
    "Shows a machine's RDMA ports, network interfaces and GPUs, which of them Holmes uses, and why "
    "not the others."
    "\v"
    "The choice is the plugin's own: NCCL_IB_HCA, NCCL_IB_GID_INDEX, NCCL_SOCKET_IFNAME and the "
    "other variables of docs/environment.md count here as they do there, so that a setting can be "
    "tried before a job runs with it. Ports are not opened: what libibverbs would say is not "
    "known here.\n"
    "\n"
    "Examples:\n"
    "  holmes-topo discover\n"
    "  NCCL_IB_HCA=^mlx5_bond_0 holmes-topo discover --explain\n"
    "  holmes-topo discover --json > $(hostname).json\n"
    "  holmes-topo discover --sysfs-root recorded/a0001\n"
    "  holmes-topo discover --from topo.xml --nccl-xml fixed.xml\n"
    "\n"
    "Exit status: 0 all is well; 1 the machine cannot be read; 2 usage, a bad file, or a variable "
    "that cannot be met.";

static error_t parse_key(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;

    switch (key) {
    case KEY_ROOT:
        o->root = arg;
        return 0;
    case KEY_FROM:
        o->from = arg;
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case KEY_EXPLAIN:
        o->explain = true;
        return 0;
    case KEY_XML:
        o->xml = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\": discover takes options only", arg);
        return EINVAL;
    case ARGP_KEY_END:
        if (o->root && o->from)
            argp_error(state, "--sysfs-root and --from: one machine at a time");
        if (o->json && o->xml && strcmp(o->xml, "-") == 0)
            argp_error(state, "--json and --nccl-xml -: the output takes one of them");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const char *gbps(uint32_t mbps, char buf[16])
{
    if (mbps == 0)
        return "?";
    snprintf(buf, 16, "%g", mbps / 1000.0);
    return buf;
}

static const char *or_dash(const char *s)
{
    return *s ? s : "-";
}

static const char *number(int v, char buf[16])
{
    if (v < 0)
        return "-";
    snprintf(buf, 16, "%d", v);
    return buf;
}

static int show(const char *title, struct holmes_table *t, FILE *out)
{
    int rc = t ? 0 : -ENOMEM;

    if (rc == 0) {
        fprintf(out, "%s\n", title);
        rc = holmes_table_print(t, out);
        fputc('\n', out);
    }
    holmes_table_destroy(t);
    return rc;
}

static const char *layer(const struct holmes_rdma_port_seen *s)
{
    return s->link_layer == HOLMES_LINK_INFINIBAND ? "InfiniBand"
           : s->link_layer == HOLMES_LINK_ETHERNET ? "Ethernet"
                                                   : "?";
}

/* "3 v2 ipv4": index, version and family of the GID in use. */
static const char *gid_in_use(const struct holmes_host *h, const struct holmes_host_port *p,
                              char buf[80])
{
    const struct holmes_rdma *r = p->nic >= 0 ? &h->chosen.nics[p->nic].rdma : NULL;
    char kinds[64];

    if (!r || r->ngids == 0)
        return "-";
    holmes_host_gid_kinds(h, p, kinds, sizeof kinds);
    kinds[strcspn(kinds, ",")] = '\0';
    snprintf(buf, 80, "%u%s%s", r->gids[0].index, *kinds ? " " : "", kinds);
    return buf;
}

static int show_ports(const struct holmes_host *h, FILE *out)
{
    static const char *const columns[] = {"port",   "state", "link layer", "Gb/s", "GID",
                                          "netdev", "PCI",   "NUMA",       "used", "why"};
    struct holmes_table *t;

    if (h->nports == 0) {
        fputs("RDMA ports: none\n\n", out);
        return 0;
    }
    t = holmes_table_of(columns, "lllrlllrll");
    for (int i = 0; t && i < h->nports; i++) {
        const struct holmes_host_port *p = &h->ports[i];
        char a[16], b[16], g[80];

        holmes_table_cell(t, "%s:%u", p->seen.device, p->seen.port);
        holmes_table_cell(t, "%s", p->seen.state_text[0] ? p->seen.state_text : "?");
        holmes_table_cell(t, "%s", layer(&p->seen));
        holmes_table_cell(t, "%s", gbps(p->seen.speed_mbps, a));
        holmes_table_cell(t, "%s", gid_in_use(h, p, g));
        holmes_table_cell(t, "%s", or_dash(p->netdev));
        holmes_table_cell(t, "%s", or_dash(p->seen.pci_path));
        holmes_table_cell(t, "%s", number(p->seen.numa_node, b));
        holmes_table_cell(t, "%s",
                          !p->verdict.used                ? "no"
                          : h->source == HOLMES_HOST_NCCL ? "yes"
                                                          : "yes (not opened)");
        holmes_table_cell(t, "%s", p->verdict.reason);
    }
    return show("RDMA ports", t, out);
}

static int show_netifs(const struct holmes_host *h, FILE *out)
{
    static const char *const columns[] = {"interface", "kind", "Gb/s", "addresses",
                                          "PCI",       "NUMA", "used", "why"};
    struct holmes_table *t;

    if (h->nnetifs == 0) {
        fputs("Network interfaces: none\n\n", out);
        return 0;
    }
    t = holmes_table_of(columns, "llrllrll");
    for (int i = 0; t && i < h->nnetifs; i++) {
        const struct holmes_host_netif *n = &h->netifs[i];
        char a[16], b[16], list[512] = "", ip[INET6_ADDRSTRLEN];

        for (int k = 0; k < n->seen.naddrs; k++) {
            size_t used = strlen(list);

            snprintf(list + used, sizeof list - used, "%s%s/%u", used > 0 ? " " : "",
                     holmes_addr_text(&n->seen.addrs[k], ip, sizeof ip),
                     n->seen.addrs[k].prefix_len);
        }
        holmes_table_cell(t, "%s", n->seen.name);
        holmes_table_cell(t, "%s", holmes_netif_kind_name(n->seen.kind));
        holmes_table_cell(t, "%s", gbps(n->seen.speed_mbps, a));
        holmes_table_cell(t, "%s", n->addrs_told ? or_dash(list) : "not recorded");
        holmes_table_cell(t, "%s", or_dash(n->seen.pci_path));
        holmes_table_cell(t, "%s", number(n->seen.numa_node, b));
        holmes_table_cell(t, "%s", n->verdict.used ? "yes" : "no");
        holmes_table_cell(t, "%s", n->verdict.reason);
    }
    return show("Network interfaces", t, out);
}

static int show_gpus(const struct holmes_host *h, FILE *out)
{
    static const char *const columns[] = {"GPU", "PCI", "vendor", "model", "GiB", "NUMA", "links"};
    struct holmes_table *t;

    if (h->ngpus == 0) {
        fputs("GPUs: none\n\n", out);
        return 0;
    }
    t = holmes_table_of(columns, "rlllrrr");
    for (int i = 0; t && i < h->ngpus; i++) {
        const struct holmes_host_gpu *g = &h->gpus[i];
        int links = 0;
        char b[16];

        for (int k = 0; k < g->nlinks; k++)
            links += g->links[k].count;
        holmes_table_cell(t, "%d", i);
        holmes_table_cell(t, "%s", or_dash(g->address));
        holmes_table_cell(t, "%s", or_dash(g->vendor_name));
        if (g->name[0])
            holmes_table_cell(t, "%s", g->name);
        else if (g->device)
            holmes_table_cell(t, "%04x:%04x", g->vendor, g->device);
        else
            holmes_table_cell(t, "?");
        if (g->memory_gib > 0)
            holmes_table_cell(t, "%.0f", g->memory_gib);
        else
            holmes_table_cell(t, "?");
        holmes_table_cell(t, "%s", number(g->numa_node, b));
        holmes_table_cell(t, "%s", links > 0 ? number(links, b) : "-");
    }
    return show("GPUs", t, out);
}

/* NICs in use, or all where none is. */
static bool is_shown(const struct holmes_host *h, int nic)
{
    for (int i = 0; i < h->nnics; i++)
        if (h->nics[i].used)
            return h->nics[nic].used;
    return true;
}

/* NICs down and GPUs across: machines have few GPUs, and some many NICs. */
static int show_distances(const struct holmes_host *h, FILE *out)
{
    struct holmes_table *t;
    bool any = false;

    if (h->ngpus == 0 || h->nnics == 0)
        return 0;
    if (holmes_table_create(1 + h->ngpus, &t) != 0)
        return -ENOMEM;
    holmes_table_column(t, "NIC", HOLMES_TABLE_LEFT);
    for (int g = 0; g < h->ngpus; g++) {
        char b[16];

        holmes_table_column(t, number(g, b), HOLMES_TABLE_LEFT);
    }
    for (int i = 0; i < h->nnics; i++) {
        if (!is_shown(h, i))
            continue;
        any = true;
        holmes_table_cell(t, "%s", h->nics[i].name);
        for (int g = 0; g < h->ngpus; g++)
            holmes_table_cell(t, "%s", holmes_path_name(h->distance[g * h->nnics + i]));
    }
    if (!any) {
        holmes_table_destroy(t);
        return 0;
    }
    return show("Distances to GPU", t, out);
}

static int show_skipped(const struct holmes_host *h, FILE *out)
{
    static const char *const columns[] = {"left out", "why"};
    struct holmes_table *t;

    if (h->nskipped == 0)
        return 0;
    t = holmes_table_of(columns, "ll");
    for (int i = 0; t && i < h->nskipped; i++) {
        holmes_table_cell(t, "%s", h->skipped[i].what);
        holmes_table_cell(t, "%s", h->skipped[i].reason);
    }
    return show("Seen and left out", t, out);
}

static int explain_gids(const struct holmes_host *h, FILE *out)
{
    static const char *const columns[] = {"port", "index", "type", "GID", "netdev", "rank"};
    static const char *const types[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
    struct holmes_table *t = holmes_table_of(columns, "lrlllr");
    bool any = false;

    for (int i = 0; t && i < h->nports; i++) {
        const struct holmes_host_port *p = &h->ports[i];
        const struct holmes_rdma *r = p->nic >= 0 ? &h->chosen.nics[p->nic].rdma : NULL;

        for (int k = 0; k < p->seen.ngids; k++) {
            const struct holmes_gid_seen *g = &p->seen.gids[k];
            char text[INET6_ADDRSTRLEN], b[16];
            int rank = -1;

            for (int j = 0; r && j < r->ngids && rank < 0; j++)
                if (r->gids[j].index == g->index)
                    rank = j + 1;
            any = true;
            holmes_table_cell(t, "%s:%u", p->seen.device, p->seen.port);
            holmes_table_cell(t, "%u", g->index);
            holmes_table_cell(t, "%s", g->type >= 0 ? types[g->type] : "?");
            holmes_table_cell(t, "%s", gid_text(g->bytes, text, sizeof text));
            holmes_table_cell(t, "%s", or_dash(g->ndev));
            holmes_table_cell(t, "%s", number(rank, b));
        }
    }
    if (t && !any) {
        holmes_table_destroy(t);
        return 0;
    }
    return show("GID tables (rank 1 is used first, - is not used)", t, out);
}

static int explain(const struct holmes_host *h, FILE *out)
{
    int rc = explain_gids(h, out);

    if (h->chosen.n > 0)
        fputs("NCCL is shown these devices, in this order:\n", out);
    for (int i = 0; i < h->chosen.nshown; i++)
        fprintf(out, "  %d  %s\n", i, h->chosen.nics[i].name);
    if (h->chosen.nshown < h->chosen.n)
        fputs("and connections that RDMA does not reach go over:\n", out);
    for (int i = h->chosen.nshown; i < h->chosen.n; i++)
        fprintf(out, "     %s\n", h->chosen.nics[i].name);
    fputs("\nDistances: PIX at most one PCIe switch between the two; PXB several; PHB through "
          "their host bridge;\nNODE through two host bridges of one NUMA node; SYS to another NUMA "
          "node; ? not told.\n",
          out);
    return rc;
}

static void head(const struct holmes_host *h, const char *what, FILE *out)
{
    fprintf(out, "%s (%s)", h->hostname[0] ? h->hostname : what,
            holmes_host_source_name(h->source));
    if (h->cores > 0)
        fprintf(out, ", %d cores", h->cores);
    if (h->memory_gib > 0)
        fprintf(out, ", %.0f GiB", h->memory_gib);
    fprintf(out, ": %d NIC%s, %d RDMA port%s of which %d used, %d GPU%s\n\n", h->nnics,
            h->nnics == 1 ? "" : "s", h->nports, h->nports == 1 ? "" : "s",
            holmes_host_ports_used(h), h->ngpus, h->ngpus == 1 ? "" : "s");
}

static int show_host(const struct holmes_host *h, const char *what, bool full, FILE *out)
{
    int rc;

    head(h, what, out);
    rc = show_ports(h, out);
    if (rc == 0)
        rc = show_netifs(h, out);
    if (rc == 0)
        rc = show_gpus(h, out);
    if (rc == 0)
        rc = show_distances(h, out);
    if (rc == 0)
        rc = show_skipped(h, out);
    for (int i = 0; i < h->nnotes; i++)
        fprintf(out, "note: %s\n", h->notes[i]);
    return rc == 0 && full ? explain(h, out) : rc;
}

static int write_xml(const struct holmes_host *h, const char *path)
{
    bool stdout_too = strcmp(path, "-") == 0;
    FILE *f = stdout;
    int rc = stdout_too ? 0 : holmes_file_create(path, &f);

    if (rc == 0) {
        rc = holmes_host_nccl_xml(h, f);
        if (!stdout_too && fclose(f) != 0 && rc == 0)
            rc = -errno;
    }
    if (rc == -ENODATA)
        fprintf(stderr, "holmes-topo: --nccl-xml: this machine has neither a GPU nor a NIC\n");
    else if (rc != 0)
        fprintf(stderr, "holmes-topo: %s: %s\n", path, holmes_file_strerror(rc));
    return rc;
}

static int get_host(const struct options *o, struct holmes_host **h, char *why, size_t why_len)
{
    return o->from ? holmes_host_read(o->from, h, why, why_len)
                   : holmes_host_discover(o->root ? o->root : "/", NULL, h, why, why_len);
}

int topo_discover(int argc, char **argv)
{
    static const struct argp argp = {argp_options, parse_key, "", argp_doc, NULL, NULL, NULL};
    struct options o = {.root = NULL};
    struct holmes_host *h;
    char why[1024];
    int rc;

    argp_err_exit_status = TOPO_USAGE;
    argv[0] = "holmes-topo discover";
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return TOPO_USAGE;
    rc = get_host(&o, &h, why, sizeof why);
    if (rc != 0) {
        fprintf(stderr, "holmes-topo: %s\n", why);
        return rc == -ENOMEM || rc == -EIO ? TOPO_FAILED : TOPO_USAGE;
    }
    if (o.xml)
        rc = write_xml(h, o.xml);
    if (rc == 0 && o.json)
        rc = holmes_host_json(h, stdout);
    else if (rc == 0 && !(o.xml && strcmp(o.xml, "-") == 0))
        rc = show_host(h, o.from ? o.from : o.root ? o.root : "this machine", o.explain, stdout);
    holmes_host_destroy(h);
    if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        fprintf(stderr, "holmes-topo: the output cannot be written\n");
        rc = -EIO;
    }
    return rc == 0 ? TOPO_OK : TOPO_FAILED;
}
