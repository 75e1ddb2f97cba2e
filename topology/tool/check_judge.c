/* Measured against planned. Pure. */
#include "tool/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_GAP 3.0 /* times: what parts fast pairs from slow ones */
#define RTT_SHARE 1.5 /* times the planned round trip, and */
#define RTT_EXTRA 0.5 /* ms above it, are too much */

/* --- what a plan counts on -------------------------------------------------------------------- */

static const struct holmes_node_type *type_of(const struct holmes_plan_doc *doc, int node)
{
    const struct holmes_cluster *c = doc->cluster;
    int group = doc->plan->nodes[node].group;

    return &c->types[c->groups[group].type];
}

static double ethernet_gbps(const struct holmes_node_type *t)
{
    double most = 0;

    for (int i = 0; i < t->nnics; i++)
        if (!t->nics[i].rdma && t->nics[i].gbps > most)
            most = t->nics[i].gbps;
    return most;
}

static bool ends_on(const char *name, const char *fabric)
{
    return !name || strcmp(name, fabric) == 0;
}

static const struct holmes_cluster_link *link_between(const struct holmes_cluster *c,
                                                      const char *from, const char *to)
{
    for (int i = 0; i < c->nlinks; i++) {
        const struct holmes_cluster_link *l = &c->links[i];

        if ((ends_on(l->from, from) && ends_on(l->to, to)) ||
            (ends_on(l->from, to) && ends_on(l->to, from)))
            return l;
    }
    return NULL;
}

/* The less of two, where 0 says nothing. */
static double lesser(double a, double b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

void holmes_check_expect(const struct holmes_plan_doc *doc, int a, int b,
                         struct holmes_check_expect *out)
{
    const struct holmes_fabrics *f = doc->fabrics;
    int from = f->group_fabric[doc->plan->nodes[a].group];
    int to = f->group_fabric[doc->plan->nodes[b].group];
    struct holmes_check_expect e = {.from = from < to ? from : to, .to = from < to ? to : from};
    const struct holmes_fabric *near, *far;
    const struct holmes_cluster_link *l;

    if (e.from < 0 || e.to >= f->n) { /* a plan made by hand */
        snprintf(e.what, sizeof e.what, "no fabric");
        *out = e;
        return;
    }
    near = &f->fabrics[e.from];
    far = &f->fabrics[e.to];
    if (from == to) {
        e.rdma = near->rdma;
        e.gbps = near->gbps / (near->nics > 0 ? near->nics : 1);
        snprintf(e.what, sizeof e.what, "fabric %.60s", near->name);
        *out = e;
        return;
    }
    e.gbps = lesser(ethernet_gbps(type_of(doc, a)), ethernet_gbps(type_of(doc, b)));
    l = link_between(doc->cluster, near->name, far->name);
    if (l) {
        if (l->node_gbps > 0)
            e.gbps = l->node_gbps;
        e.link_gbps = l->gbps;
        e.rtt_ms = l->rtt_ms;
    }
    snprintf(e.what, sizeof e.what, "the link between fabrics %.60s and %.60s", near->name,
             far->name);
    *out = e;
}

/* --- findings --------------------------------------------------------------------------------- */

struct judge {
    const struct holmes_check_run *run;
    const struct holmes_check_limits *limits;
    struct holmes_check_finding *findings;
    int n, room;
    bool no_memory;
};

/* Causes: a number of the kind, and for pairs the fabrics. */
enum { LIKE_BROKEN = 1, LIKE_LEAST, LIKE_WIRE, LIKE_RATE, LIKE_RTT, LIKE_KINDS };

static int like(int kind, const struct holmes_check_expect *e)
{
    return kind + (e ? LIKE_KINDS * (1 + e->from * 4096 + e->to) : 0);
}

static struct holmes_check_finding *find(struct judge *j, int node, int pair)
{
    static struct holmes_check_finding lost;

    if (j->n == j->room) {
        int room = j->room ? 2 * j->room : 32;
        struct holmes_check_finding *grown =
            realloc(j->findings, (size_t)room * sizeof *j->findings);

        if (!grown) {
            j->no_memory = true;
            return &lost;
        }
        j->findings = grown;
        j->room = room;
    }
    j->findings[j->n] = (struct holmes_check_finding){.node = node, .pair = pair};
    return &j->findings[j->n++];
}

static const char *const node_remedies[] = {
    [HOLMES_CHECK_UNREACHED] = "see that the launcher's command works by hand and asks for no "
                               "password; or name another with --launcher",
    [HOLMES_CHECK_NO_PROGRAM] = "install holmes-topo there in the same place as here, or say where "
                                "it is with --program",
    [HOLMES_CHECK_REFUSED] =
        "the variables NCCL_* and HOLMES_* of this shell go to every host; see "
        "docs/environment.md",
    [HOLMES_CHECK_SILENT] = "look for a hung file system or an overloaded host; a slow login needs "
                            "a longer --time-limit",
    [HOLMES_CHECK_GARBLED] =
        "let the login shell write nothing when it is not interactive, and see "
        "that --program is holmes-topo",
    [HOLMES_CHECK_OTHER] = "install the same version everywhere",
    [HOLMES_CHECK_LOST] = "look at the host's log: the agent or the way to it was ended",
    [HOLMES_CHECK_CUT_OFF] = "look for a firewall (HOLMES_PORT_RANGE says which ports) and for "
                             "the interface that is used (NCCL_SOCKET_IFNAME)",
};

static void judge_node(struct judge *j, int i)
{
    static const char *const states[] = {
        [HOLMES_CHECK_STARTING] = "never answered",
        [HOLMES_CHECK_UNREACHED] = "cannot be reached",
        [HOLMES_CHECK_NO_PROGRAM] = "does not have the program",
        [HOLMES_CHECK_REFUSED] = "cannot take part",
        [HOLMES_CHECK_SILENT] = "hangs",
        [HOLMES_CHECK_GARBLED] = "does not speak as an agent does",
        [HOLMES_CHECK_OTHER] = "has another version",
        [HOLMES_CHECK_LOST] = "was lost",
        [HOLMES_CHECK_CUT_OFF] = "is cut off",
    };
    const struct holmes_check_node *n = &j->run->nodes[i];
    struct holmes_check_finding *f;

    if (n->state == HOLMES_CHECK_THERE) {
        if (n->nnics != 1 || strcmp(n->nics[0].name, "lo") != 0 || n->successes > 0 ||
            n->failures == 0)
            return;
        f = find(j, i, -1);
        snprintf(f->what, sizeof f->what, "%s has no network that can be used but lo", n->host);
        snprintf(f->remedy, sizeof f->remedy,
                 "holmes-topo discover says there why each interface is left out");
        return;
    }
    f = find(j, i, -1);
    snprintf(f->what, sizeof f->what, "%s %s%s%s", n->host, states[n->state], n->why[0] ? ": " : "",
             n->why);
    if (node_remedies[n->state])
        snprintf(f->remedy, sizeof f->remedy, "%s", node_remedies[n->state]);
}

/* Pairs that were measured at the same time over the same link. */
static int sharing(const struct judge *j, const struct holmes_check_result *p,
                   const struct holmes_check_expect *e)
{
    int n = 0;

    if (p->alone)
        return 1;
    for (int i = 0; i < j->run->npairs; i++) {
        const struct holmes_check_result *q = &j->run->pairs[i];
        struct holmes_check_expect other;

        if (q->round != p->round || q->state != HOLMES_CHECK_MEASURED)
            continue;
        holmes_check_expect(j->limits->doc, q->a, q->b, &other);
        n += other.from == e->from && other.to == e->to;
    }
    return n > 0 ? n : 1;
}

static const char *host(const struct judge *j, int node)
{
    return j->run->nodes[node].host;
}

static void judge_rate(struct judge *j, int i, double enough, const char *of_what, int cause)
{
    const struct holmes_check_result *p = &j->run->pairs[i];

    for (int way = 0; way < 2; way++) {
        struct holmes_check_finding *f;

        if (enough <= 0 || p->gbps[way] >= enough)
            continue;
        f = find(j, -1, i);
        f->slow = !p->alone;
        f->like = cause;
        snprintf(f->what, sizeof f->what, "%s to %s: %.3g Gb/s over %s%s, %s",
                 host(j, way ? p->b : p->a), host(j, way ? p->a : p->b), p->gbps[way], p->wire,
                 p->alone ? ", alone" : "", of_what);
        snprintf(
            f->remedy, sizeof f->remedy,
            "look at the speed that %.*s has (ethtool, ibstat), at errors and other traffic on "
            "the way%s",
            (int)strcspn(p->local, " "), p->local,
            j->limits->doc ? "; or correct the number in the cluster file" : "");
    }
}

static void judge_wire(struct judge *j, int i, const struct holmes_check_expect *e)
{
    const struct holmes_check_result *p = &j->run->pairs[i];
    struct holmes_check_finding *f;

    if (!e->rdma || strcmp(p->wire, "verbs") == 0)
        return;
    f = find(j, -1, i);
    f->like = like(LIKE_WIRE, e);
    snprintf(f->what, sizeof f->what, "%s to %s: %s in the place of RDMA on %s: %s", host(j, p->a),
             host(j, p->b), p->wire, e->what, p->reason[0] ? p->reason : "no reason was given");
    snprintf(f->remedy, sizeof f->remedy, "%s",
             strstr(p->reason, "probe")
                 ? "RDMA does not pass between these ports: look at VLAN, MTU and routes of the "
                   "RoCE network or at the subnet manager; or give the hosts fabrics of their own"
             : strstr(p->reason, "HOLMES_") ? "the variable named there decides it"
                                            : "see that the ports are up and in use on both "
                                              "hosts (holmes-topo discover); or correct the "
                                              "fabrics in the cluster file");
}

static void judge_plan(struct judge *j, int i)
{
    const struct holmes_check_result *p = &j->run->pairs[i];
    struct holmes_check_finding *f;
    struct holmes_check_expect e;
    double planned, share;
    char of_what[320];
    int n;

    holmes_check_expect(j->limits->doc, p->a, p->b, &e);
    judge_wire(j, i, &e);
    n = e.link_gbps > 0 ? sharing(j, p, &e) : 1;
    share = e.link_gbps / n;
    planned = lesser(e.gbps, share);
    if (e.link_gbps > 0 && n > 1 && planned == share)
        snprintf(of_what, sizeof of_what,
                 "where the plan counts on %.3g on %s, shared by %d pairs here", e.link_gbps,
                 e.what, n);
    else
        snprintf(of_what, sizeof of_what, "where the plan counts on %.3g on %s", planned, e.what);
    judge_rate(j, i, planned * j->limits->share, of_what, like(LIKE_RATE, &e));
    if (e.rtt_ms <= 0 || p->rtt_us / 1e3 <= e.rtt_ms * RTT_SHARE ||
        p->rtt_us / 1e3 <= e.rtt_ms + RTT_EXTRA)
        return;
    f = find(j, -1, i);
    f->slow = !p->alone;
    f->like = like(LIKE_RTT, &e);
    snprintf(f->what, sizeof f->what,
             "%s to %s: round trip %.3g ms where the plan counts on %.3g on %s", host(j, p->a),
             host(j, p->b), p->rtt_us / 1e3, e.rtt_ms, e.what);
    snprintf(f->remedy, sizeof f->remedy,
             "correct rtt-ms in the cluster file: NCCL's window is set by it");
}

static void judge_pair(struct judge *j, int i)
{
    const struct holmes_check_result *p = &j->run->pairs[i];
    struct holmes_check_finding *f;
    char of_what[80];

    switch (p->state) {
    case HOLMES_CHECK_SKIPPED: /* told with its node */
    case HOLMES_CHECK_WAITING: /* told once for all */
        break;
    case HOLMES_CHECK_BROKEN:
        f = find(j, -1, i);
        f->like = like(LIKE_BROKEN, NULL);
        f->slow = !p->alone; /* a hello may have stood in line behind the others' messages */
        snprintf(f->what, sizeof f->what, "%s and %s: %s", host(j, p->a), host(j, p->b), p->why);
        snprintf(f->remedy, sizeof f->remedy,
                 "look for a firewall between them (HOLMES_PORT_RANGE says which ports) and for "
                 "the interface that is used (NCCL_SOCKET_IFNAME)");
        break;
    case HOLMES_CHECK_MEASURED:
        snprintf(of_what, sizeof of_what, "below --min-gbps %.3g", j->limits->min_gbps);
        judge_rate(j, i, j->limits->min_gbps, of_what, like(LIKE_LEAST, NULL));
        if (j->limits->doc)
            judge_plan(j, i);
        break;
    }
}

static void judge_time(struct judge *j)
{
    struct holmes_check_finding *f;
    int waiting = 0;

    for (int i = 0; i < j->run->npairs; i++)
        waiting += j->run->pairs[i].state == HOLMES_CHECK_WAITING;
    if (waiting == 0)
        return;
    f = find(j, -1, -1);
    snprintf(f->what, sizeof f->what, "%d of %d pairs were not measured: %s", waiting,
             j->run->npairs, j->run->signal ? "interrupted" : "the time was up");
    snprintf(f->remedy, sizeof f->remedy, "give it more with --time-limit");
}

int holmes_check_judge(const struct holmes_check_run *run, const struct holmes_check_limits *limits,
                       struct holmes_check_finding **out, int *n)
{
    struct judge j = {.run = run, .limits = limits};

    for (int i = 0; i < run->nnodes; i++)
        judge_node(&j, i);
    for (int i = 0; i < run->npairs; i++)
        judge_pair(&j, i);
    judge_time(&j);
    for (int i = 0; i < j.n; i++)
        holmes_check_clean(j.findings[i].what);
    if (j.no_memory) {
        free(j.findings);
        return -ENOMEM;
    }
    *out = j.findings;
    *n = j.n;
    return 0;
}

/* --- groups ----------------------------------------------------------------------------------- */

static double pair_gbps(const struct holmes_check_result *p)
{
    return p->gbps[0] < p->gbps[1] ? p->gbps[0] : p->gbps[1];
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static int root(int *of, int i)
{
    while (of[i] != i)
        i = of[i] = of[of[i]];
    return i;
}

/* Numbers the sets in the order of their first nodes; returns how many. */
static int number_sets(const struct holmes_check_run *run, int *of, int *group)
{
    int n = 0;

    for (int i = 0; i < run->nnodes; i++)
        group[i] = -1;
    for (int i = 0; i < run->nnodes; i++) {
        int r;

        if (run->nodes[i].successes == 0)
            continue;
        r = root(of, i);
        if (group[r] < 0)
            group[r] = n++;
        group[i] = group[r];
    }
    return n;
}

/* Sets of hosts that pairs of at least this rate join; returns how many. */
static int join(const struct holmes_check_run *run, double fast, int *of, int *group)
{
    for (int i = 0; i < run->nnodes; i++)
        of[i] = i;
    for (int i = 0; i < run->npairs; i++) {
        const struct holmes_check_result *p = &run->pairs[i];

        if (p->state == HOLMES_CHECK_MEASURED && pair_gbps(p) >= fast)
            of[root(of, p->b)] = root(of, p->a);
    }
    return number_sets(run, of, group);
}

/* The lowest gap that parts the hosts: rates differ inside a network too, most of all on busy
 * hosts, and pairs that share a slow link do not get equal parts of it. */
int holmes_check_groups(const struct holmes_check_run *run, struct holmes_check_groups *out)
{
    double *rates = calloc((size_t)run->npairs + 1, sizeof *rates);
    int *of = calloc((size_t)run->nnodes + 1, sizeof *of);
    struct holmes_check_groups g = {.group = calloc((size_t)run->nnodes + 1, sizeof *g.group)};
    int n = 0;

    if (!rates || !of || !g.group) {
        free(rates);
        free(of);
        free(g.group);
        return -ENOMEM;
    }
    for (int i = 0; i < run->npairs; i++)
        if (run->pairs[i].state == HOLMES_CHECK_MEASURED)
            rates[n++] = pair_gbps(&run->pairs[i]);
    qsort(rates, (size_t)n, sizeof *rates, by_value);
    for (int i = 1; i < n && g.n < 2; i++) {
        if (rates[i] <= 0 || rates[i] < rates[i - 1] * GROUP_GAP)
            continue;
        g.within_gbps = rates[i];
        g.n = join(run, rates[i], of, g.group);
    }
    g.n = g.n > 1 ? g.n : 0;
    *out = g;
    free(rates);
    free(of);
    return 0;
}

void holmes_check_groups_fini(struct holmes_check_groups *g)
{
    free(g->group);
    g->group = NULL;
    g->n = 0;
}
