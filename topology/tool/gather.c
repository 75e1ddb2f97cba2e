/* holmes-topo gather: what all nodes of a job are, as one cluster file. */
#include "tool/gather.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/check_probes.h"
#include "cluster/text.h"
#include "table.h"
#include "tool/fanout.h"
#include "tool/hosts.h"
#include "tool/output.h"
#include "verbs.h"

enum {
    KEY_FROM = 256,
    KEY_HOSTS,
    KEY_HOSTFILE,
    KEY_LAUNCHER,
    KEY_PROGRAM,
    KEY_AT_ONCE,
    KEY_TIME_LIMIT,
    KEY_FABRIC,
    KEY_TOPOLOGY,
    KEY_PROBES,
    KEY_RDMA_KIND,
    KEY_NAME,
    KEY_JSON,
    KEY_QUIET,
};

struct run {
    struct gather_options o;
    const char *output, *probes;
    bool json;
};

static const struct argp_option argp_options[] = {
    {NULL, 0, NULL, 0,
     "Which hosts (default: those of the Slurm allocation that this runs in):", 1},
    {"hosts", KEY_HOSTS, "LIST", 0, "these, like a[01-04],b7", 0},
    {"hostfile", KEY_HOSTFILE, "FILE", 0,
     "one a line, with slots=8 or host:8 where not all of its GPUs are to be used", 0},
    {"from", KEY_FROM, "DIR", 0,
     "recorded ones: NAME.json for each, as `holmes-topo discover --json` wrote it there (or "
     "NAME.xml, of NCCL or hwloc); all of the folder, or those that --hosts or --hostfile name",
     0},
    {NULL, 0, NULL, 0, "How they are reached:", 2},
    {"launcher", KEY_LAUNCHER, "COMMAND", 0,
     "what starts a command on {host} (default: srun in an allocation, else ssh without questions)",
     0},
    {"program", KEY_PROGRAM, "PATH", 0, "holmes-topo on the hosts (default: as here)", 0},
    {"at-once", KEY_AT_ONCE, "N", 0, "hosts asked at the same time, 1 to 4096 (default 64)", 0},
    {"time-limit", KEY_TIME_LIMIT, "SECONDS", 0, "for each host, 1 to 3600 (default 30)", 0},
    {NULL, 0, NULL, 0, "What nobody can see from a node:", 3},
    {"fabric", KEY_FABRIC, "ID[=HOSTS]", 0,
     "the RDMA fabric of these hosts, or of all; may come again. Default: HOLMES_FABRIC on each",
     0},
    {"topology", KEY_TOPOLOGY, "FILE", 0,
     "Slurm's topology.conf: hosts below one top switch are one fabric", 0},
    {"probes", KEY_PROBES, "FILE", 0,
     "what `holmes-topo check --json` found: which pairs RDMA joins, and where it was tried in "
     "vain",
     0},
    {"rdma-kind", KEY_RDMA_KIND, "KIND", 0,
     "infiniband or roce: what RDMA NICs are where the source has no word of it, as NCCL's XML has "
     "none (default: they are left out, with a note)",
     0},
    {NULL, 0, NULL, 0, "What to write:", 4},
    {"output", 'o', "FILE", 0, "the cluster file (default: the standard output)", 0},
    {"json", KEY_JSON, NULL, 0, "JSON in place of YAML, with the same keys", 0},
    {"name", KEY_NAME, "TEXT", 0, "the cluster's name in it", 0},
    {"quiet", KEY_QUIET, NULL, 0, "no progress and no summary", 0},
    {NULL, 0, NULL, 0, "Help:", -1},
    {0},
};

static const char argp_doc[] =
    "Asks every host what it has, and writes one cluster file: node types, host ranges, NICs and "
    "fabrics. That file is what `plan` reads, and is meant to be looked at and completed by hand "
    "(docs/cluster-file.md)."
    "\v"
    "Equal machines become one node type; a host that differs from the others of its kind is "
    "named, "
    "with the difference. A host that does not answer is kept as \"state: defective\" with the "
    "reason.\n"
    "\n"
    "Whether two nodes reach each other over RDMA cannot be seen from either of them: where subnet "
    "prefixes do not tell, give ids with --fabric or --topology, or let `check` try it and hand "
    "that on "
    "with --probes.\n"
    "\n"
    "Examples:\n"
    "  holmes-topo gather --hosts 'a[01-16],b[01-16]' -o cluster.yaml\n"
    "  holmes-topo gather --hostfile hosts --launcher 'ssh -p 2222 root@{host}' > cluster.yaml\n"
    "  srun -N8 --ntasks-per-node=1 sh -c 'holmes-topo discover --json > dir/$(hostname).json'\n"
    "  holmes-topo gather --from dir --fabric 'east=a[01-16]' --fabric 'west=b[01-16]'\n"
    "\n"
    "Exit status: 0 the file is written (also with defective hosts); 1 no host answered, or it "
    "cannot be written; 2 usage or bad input.";

static int whole_or_error(struct argp_state *state, const char *what, const char *text, int low,
                          int high)
{
    int n = 0;

    if (holmes_text_whole(text, low, high, &n) != 0)
        argp_error(state, "%s: \"%s\" is no whole number from %d to %d", what, text, low, high);
    return n;
}

static void check_options(const struct run *r, struct argp_state *state)
{
    const struct gather_options *o = &r->o;

    if (o->hosts && o->hostfile)
        argp_error(state, "--hosts and --hostfile: give one of them");
    if (o->from && (o->launcher || o->program))
        argp_error(state, "--from asks no host: leave out --launcher and --program");
}

static error_t parse_key(int key, char *arg, struct argp_state *state)
{
    struct run *r = state->input;
    struct gather_options *o = &r->o;

    switch (key) {
    case KEY_FROM:
        o->from = arg;
        return 0;
    case KEY_HOSTS:
        o->hosts = arg;
        return 0;
    case KEY_HOSTFILE:
        o->hostfile = arg;
        return 0;
    case KEY_LAUNCHER:
        o->launcher = arg;
        return 0;
    case KEY_PROGRAM:
        o->program = arg;
        return 0;
    case KEY_AT_ONCE:
        o->at_once = whole_or_error(state, "--at-once", arg, 1, 4096);
        return 0;
    case KEY_TIME_LIMIT:
        o->time_limit_s = whole_or_error(state, "--time-limit", arg, 1, 3600);
        return 0;
    case KEY_FABRIC:
        o->fabrics[o->nfabrics++] = arg; /* room for as many as there are arguments */
        return 0;
    case KEY_TOPOLOGY:
        o->topology = arg;
        return 0;
    case KEY_PROBES:
        r->probes = arg;
        return 0;
    case KEY_RDMA_KIND:
        o->rdma_kind = strcmp(arg, "infiniband") == 0 ? HOLMES_LINK_INFINIBAND
                       : strcmp(arg, "roce") == 0     ? HOLMES_LINK_ETHERNET
                                                      : HOLMES_LINK_UNKNOWN;
        if (o->rdma_kind == HOLMES_LINK_UNKNOWN)
            argp_error(state, "--rdma-kind: \"%s\" is neither infiniband nor roce", arg);
        return 0;
    case 'o':
        r->output = arg;
        return 0;
    case KEY_JSON:
        r->json = true;
        return 0;
    case KEY_NAME:
        o->name = arg;
        return 0;
    case KEY_QUIET:
        o->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\": gather takes options only", arg);
        return EINVAL;
    case ARGP_KEY_END:
        check_options(r, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* --- hosts ----------------------------------------------------------------------------------- */

static int hosts_find(const struct gather_options *o, struct gather_hosts *out, char *why,
                      size_t why_len)
{
    struct holmes_hostfile file;
    int rc;

    *out = (struct gather_hosts){.slots = NULL};
    if (o->hostfile) {
        rc = holmes_hostfile_read(o->hostfile, &file, why, why_len);
        if (rc == 0)
            *out = (struct gather_hosts){.list = file.hosts, .slots = file.slots};
        return rc;
    }
    if (o->from && !o->hosts)
        return 0;
    return holmes_hosts_choose(o->hosts, NULL, &out->list, &out->slurm, why, why_len);
}

/* --- summary --------------------------------------------------------------------------------- */

static const char *hosts_text(const struct holmes_hostlist *l, char *buf, size_t len)
{
    char *text = holmes_hostlist_text(l);

    if (text && strlen(text) >= len)
        snprintf(buf, len, "%.*s...", (int)len - 4, text);
    else
        snprintf(buf, len, "%s", text ? text : "?");
    free(text);
    return buf;
}

static void show_groups(const struct holmes_cluster *c, const struct holmes_fabrics *f)
{
    enum { SHOWN = 40 };
    static const char *const states[] = {"ok", "idle", "defective"};
    static const char *const heads[] = {"hosts", "nodes", "type", "GPUs", "fabric", "state"};
    struct holmes_table *t;

    if (holmes_table_create(6, &t) != 0)
        return;
    for (int i = 0; i < 6; i++)
        holmes_table_column(t, heads[i], i == 1 || i == 3 ? HOLMES_TABLE_RIGHT : HOLMES_TABLE_LEFT);
    for (int i = 0; i < c->ngroups && i < SHOWN; i++) {
        const struct holmes_node_group *g = &c->groups[i];
        const struct holmes_node_type *type = &c->types[g->type];
        char hosts[48];
        int fabric = f ? f->group_fabric[i] : -1;

        holmes_table_cell(t, "%s", hosts_text(&g->hosts, hosts, sizeof hosts));
        holmes_table_cell(t, "%d", g->hosts.nhosts);
        holmes_table_cell(t, "%s", type->name);
        holmes_table_cell(t, "%d", g->slots > 0 ? g->slots : type->gpus);
        holmes_table_cell(t, "%s", fabric >= 0 ? f->fabrics[fabric].name : "?");
        holmes_table_cell(t, "%s", states[g->state]);
    }
    holmes_table_print(t, stderr);
    holmes_table_destroy(t);
    if (c->ngroups > SHOWN)
        fprintf(stderr, "... and %d more entries\n", c->ngroups - SHOWN);
}

/* What `plan` would make of the file. The cluster's groups may be split after this. */
static void show(struct holmes_cluster *c, const struct holmes_merge_report *report)
{
    struct holmes_fabrics *f = NULL;
    char why[1024];
    int rc = holmes_fabrics_find(c, false, &f, why, sizeof why);

    show_groups(c, f);
    for (int i = 0; f && i < f->n; i++)
        fprintf(stderr, "fabric %s: %s\n", f->fabrics[i].name, f->fabrics[i].reason);
    for (int i = 0; f && i < f->nnotes; i++)
        fprintf(stderr, "note: %s\n", f->notes[i]);
    for (int i = 0; i < report->nnotes; i++)
        fprintf(stderr, "note: %s\n", report->notes[i]);
    if (rc == -EINVAL)
        fprintf(stderr, "fabrics are not settled: %s\n", why);
    holmes_fabrics_destroy(f);
}

/* --- all together ---------------------------------------------------------------------------- */

static int write_file(const struct run *r, const struct holmes_cluster *c, char *why,
                      size_t why_len)
{
    struct topo_output out;
    int rc = topo_output_open(r->output ? r->output : "-", 0644, &out, why, why_len);

    if (rc != 0)
        return rc;
    rc = r->json ? holmes_cluster_json(c, out.file) : holmes_cluster_write(c, out.file);
    return topo_output_close(&out, rc, why, why_len);
}

static int probes_add(const struct run *r, struct holmes_cluster *c, char *why, size_t why_len)
{
    int added, rc = holmes_check_probes_read(r->probes, c, &added, why, why_len);

    if (rc == 0 && !r->o.quiet)
        fprintf(stderr, "%d probe%s of %s\n", added, added == 1 ? "" : "s", r->probes);
    return rc;
}

static int gather(const struct run *r, struct holmes_cluster **out,
                  struct holmes_merge_report *report, char *why, size_t why_len)
{
    struct gather_hosts hosts = {.slots = NULL};
    struct gather_ids *ids = NULL;
    struct holmes_merge *m = NULL;
    int rc = hosts_find(&r->o, &hosts, why, why_len);

    if (rc == 0)
        rc = gather_ids_create(&r->o, &ids, why, why_len);
    if (rc == 0)
        rc = holmes_merge_create(r->o.rdma_kind, &m);
    if (rc == 0)
        rc = r->o.from ? gather_from_folder(&r->o, &hosts, ids, m, why, why_len)
                       : gather_from_hosts(&r->o, &hosts, ids, m, why, why_len);
    if (rc == 0 && gather_ids_unused(ids)) {
        snprintf(why, why_len, "--fabric %s: none of its hosts was met", gather_ids_unused(ids));
        rc = -EINVAL;
    }
    if (rc == 0)
        rc = holmes_merge_finish(m, r->o.name, out, report);
    if (rc == 0 && r->probes)
        rc = probes_add(r, *out, why, why_len);
    holmes_merge_destroy(m);
    gather_ids_destroy(ids);
    holmes_hostlist_fini(&hosts.list);
    free(hosts.slots);
    return rc;
}

static int run(struct run *r)
{
    struct holmes_cluster *c = NULL;
    struct holmes_merge_report report = {.hosts = 0};
    char why[1024] = "not enough memory";
    int rc = gather(r, &c, &report, why, sizeof why), status;

    if (rc != 0) {
        fprintf(stderr, "holmes-topo gather: %s\n", why);
        holmes_merge_report_fini(&report);
        holmes_cluster_destroy(c);
        return rc == -ENOMEM || rc == -EINTR || rc == -EIO ? TOPO_FAILED : TOPO_USAGE;
    }
    rc = write_file(r, c, why, sizeof why);
    if (rc != 0)
        fprintf(stderr, "holmes-topo gather: %s\n", why);
    status = rc != 0 || report.failed == report.hosts ? TOPO_FAILED : TOPO_OK;
    if (rc == 0 && !r->o.quiet)
        show(c, &report);
    if (rc == 0 && report.failed > 0)
        fprintf(stderr, "holmes-topo gather: %d of %d hosts did not answer and are \"defective\"\n",
                report.failed, report.hosts);
    holmes_merge_report_fini(&report);
    holmes_cluster_destroy(c);
    return status;
}

int topo_gather(int argc, char **argv)
{
    static const struct argp argp = {argp_options, parse_key, "", argp_doc, NULL, NULL, NULL};
    static char name[] = "holmes-topo gather";
    struct run r = {.o = {.time_limit_s = 30}};
    int status;

    r.o.fabrics = calloc((size_t)argc + 1, sizeof *r.o.fabrics);
    if (!r.o.fabrics) {
        fprintf(stderr, "%s: not enough memory\n", name);
        return TOPO_FAILED;
    }
    argp_err_exit_status = TOPO_USAGE;
    argv[0] = name;
    status = argp_parse(&argp, argc, argv, 0, NULL, &r) == 0 ? run(&r) : TOPO_USAGE;
    free(r.o.fabrics);
    return status;
}
