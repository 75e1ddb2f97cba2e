/* The result of the grouping: groups split so that each lies in one fabric, fabrics with their
 * names, speeds and reasons, and links that name what exists. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/fabric_priv.h"

struct builder {
    struct fabric_grouping *g;
    struct holmes_fabrics *out;
    int *fabric_of_root; /* [natoms]: -1: none */
    int ngroups;         /* after splitting */
    struct holmes_node_group *groups;
};

static char *text_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static char *text_of(const char *fmt, ...)
{
    char *text;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    return text;
}

/* --- fabrics --------------------------------------------------------------------------------- */

/* What joined the atoms of one fabric. */
struct joined {
    bool wanted;        /* nodes that are OK, or an id */
    const char *id;     /* the first */
    const char *prefix; /* the first that is not the default one */
    bool probed, entry;
    bool counted; /* a node that is OK */
    int hosts;
};

static int joined_find(struct fabric_grouping *g, struct joined **out)
{
    struct joined *all = calloc((size_t)g->natoms + 1, sizeof *all);

    if (!all)
        return -ENOMEM;
    for (int i = 0; i < g->natoms; i++) {
        const struct fabric_atom *a = &g->atoms[i];
        const struct fabric_facts *f = &g->facts[a->group];
        struct joined *j = &all[fabric_root(g, i)];

        j->wanted |= g->c->groups[a->group].state == HOLMES_NODE_OK || f->nids > 0;
        if (!j->id && f->nids > 0)
            j->id = f->ids[0];
        if (!j->prefix && f->nprefixes > 0)
            j->prefix = f->prefixes[0];
        j->probed |= a->probed;
        j->entry |= g->as_entry[a->group];
        j->hosts += a->host >= 0 ? 1 : g->c->groups[a->group].hosts.nhosts;
    }
    *out = all;
    return 0;
}

static char *reason_text(const struct joined *j, enum holmes_link_layer link)
{
    const char *kind = link == HOLMES_LINK_INFINIBAND ? "InfiniBand"
                       : link == HOLMES_LINK_ETHERNET ? "RoCE"
                                                      : "no RDMA, joined by Ethernet";

    if (j->id)
        return text_of("%s; told by the id \"%s\"", kind, j->id);
    if (link == HOLMES_LINK_UNKNOWN)
        return text_of("%s", kind);
    if (j->prefix && !j->probed)
        return text_of("%s; one subnet prefix, %s", kind, j->prefix);
    if (j->probed)
        return text_of("%s; joined by probes", kind);
    if (j->entry)
        return text_of("%s; taken as one because they stand in one entry", kind);
    return text_of("%s; %s", kind, j->hosts == 1 ? "one node" : "one entry");
}

static bool name_is_id(const struct fabric_grouping *g, const char *name)
{
    for (int i = 0; i < g->ngroups; i++)
        for (int k = 0; k < g->facts[i].nids; k++)
            if (strcmp(g->facts[i].ids[k], name) == 0)
                return true;
    return false;
}

/* A, B, ..., Z, AA, AB, ... without those that are ids. */
static char *name_next(const struct fabric_grouping *g, int *counter)
{
    for (;;) {
        char name[16];
        int at = sizeof name - 1;

        name[at] = '\0';
        for (int n = ++*counter; n > 0; n = (n - 1) / 26)
            name[--at] = (char)('A' + (n - 1) % 26);
        if (!name_is_id(g, name + at))
            return strdup(name + at);
    }
}

static int fabric_add(struct builder *b, const struct joined *j, int group, int *counter)
{
    const struct fabric_facts *f = &b->g->facts[group];
    struct holmes_fabric *new = &b->out->fabrics[b->out->n++];

    new->name = j->id ? strdup(j->id) : name_next(b->g, counter);
    new->rdma = f->link != HOLMES_LINK_UNKNOWN;
    new->link = f->link;
    new->reason = reason_text(j, f->link);
    return new->name &&new->reason ? 0 : -ENOMEM;
}

/* The least of the nodes that are OK; of the first node where none is. */
static void fabric_count(struct holmes_fabric *fabric, const struct fabric_facts *f, bool ok,
                         bool *seen_ok)
{
    bool first = fabric->nics == 0 && fabric->gbps == 0 && !*seen_ok;

    if (first || (ok && !*seen_ok)) {
        fabric->nics = f->nics;
        fabric->gbps = f->gbps;
    } else if (ok) {
        if (f->nics < fabric->nics)
            fabric->nics = f->nics;
        if (f->gbps < fabric->gbps)
            fabric->gbps = f->gbps;
    }
    *seen_ok |= ok;
}

static int fabrics_add(struct builder *b)
{
    struct fabric_grouping *g = b->g;
    struct joined *all;
    int counter = 0, rc = joined_find(g, &all);

    if (rc != 0)
        return rc;
    b->out->fabrics = calloc((size_t)g->natoms + 1, sizeof *b->out->fabrics);
    b->fabric_of_root = malloc(((size_t)g->natoms + 1) * sizeof *b->fabric_of_root);
    if (!b->out->fabrics || !b->fabric_of_root)
        rc = -ENOMEM;
    for (int i = 0; rc == 0 && i < g->natoms; i++) { /* atoms are in the order of the file */
        int root = fabric_root(g, i), group = g->atoms[i].group;

        if (root == i) {
            b->fabric_of_root[i] = all[i].wanted ? b->out->n : -1;
            if (all[i].wanted)
                rc = fabric_add(b, &all[i], group, &counter);
        }
        if (all[root].wanted)
            fabric_count(&b->out->fabrics[b->fabric_of_root[root]], &g->facts[group],
                         g->c->groups[group].state == HOLMES_NODE_OK, &all[root].counted);
    }
    free(all);
    return rc;
}

/* --- groups ---------------------------------------------------------------------------------- */

static int fabric_at(const struct builder *b, int group, int host)
{
    return b->fabric_of_root[fabric_root(b->g, fabric_host_atom(b->g, group, host))];
}

/* Hosts [first, end) of a group that lie in one fabric. */
static int run_end(const struct builder *b, int group, int first)
{
    int end = first + 1, n = b->g->c->groups[group].hosts.nhosts;

    if (!b->g->host_atom)
        return n;
    while (end < n && fabric_at(b, group, end) == fabric_at(b, group, first))
        end++;
    return end;
}

static int part_add(struct builder *b, int group, int first, int end)
{
    const struct holmes_node_group *from = &b->g->c->groups[group];
    struct holmes_node_group *to = &b->groups[b->ngroups];
    int rc;

    b->out->group_fabric[b->ngroups++] = fabric_at(b, group, first);
    *to = *from;
    to->fabric = to->why = NULL;
    to->hosts = (struct holmes_hostlist){0};
    rc = holmes_hostlist_slice(&from->hosts, first, end - first, &to->hosts);
    if (rc == 0 && from->fabric && !(to->fabric = strdup(from->fabric)))
        rc = -ENOMEM;
    if (rc == 0 && from->why && !(to->why = strdup(from->why)))
        rc = -ENOMEM;
    return rc;
}

static void groups_free(struct holmes_node_group *groups, int n)
{
    for (int i = 0; i < n; i++) {
        holmes_hostlist_fini(&groups[i].hosts);
        free(groups[i].fabric);
        free(groups[i].why);
    }
    free(groups);
}

/* Makes the groups anew where one must be split; else only says where each lies. */
static int groups_split(struct builder *b)
{
    struct holmes_cluster *c = b->g->c;
    int parts = 0, rc = 0;

    for (int i = 0; i < c->ngroups; i++)
        for (int h = 0; h < c->groups[i].hosts.nhosts; h = run_end(b, i, h))
            parts++;
    b->out->group_fabric = malloc(((size_t)parts + 1) * sizeof *b->out->group_fabric);
    if (!b->out->group_fabric)
        return -ENOMEM;
    if (parts == c->ngroups) {
        for (int i = 0; i < c->ngroups; i++)
            b->out->group_fabric[i] = fabric_at(b, i, 0);
        return 0;
    }
    b->groups = calloc((size_t)parts + 1, sizeof *b->groups);
    if (!b->groups)
        return -ENOMEM;
    for (int i = 0; i < c->ngroups && rc == 0; i++) {
        int before = b->ngroups, end;

        for (int h = 0; h < c->groups[i].hosts.nhosts && rc == 0; h = end) {
            end = run_end(b, i, h);
            rc = part_add(b, i, h, end);
        }
        if (rc == 0 && b->ngroups > before + 1) {
            char *text = holmes_hostlist_text(&c->groups[i].hosts);

            fabric_note(b->g,
                        "%.100s were split into %d parts: probes put them into different fabrics",
                        text ? text : "?", b->ngroups - before);
            free(text);
        }
    }
    return rc;
}

/* --- links ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int link_check(struct fabric_grouping *g, const struct holmes_fabrics *f, const char **names,
                      const struct holmes_cluster_link *link)
{
    const char *ends[2] = {link->from, link->to};
    char list[300] = "";

    if (!link->from != !link->to)
        return fabric_fail_at(g, link->line, "a link needs both its ends or none");
    if (link->from && strcmp(link->from, link->to) == 0)
        return fabric_fail_at(g, link->line,
                              "a link between \"%s\" and itself: links join different fabrics",
                              link->from);
    for (int end = 0; end < 2 && link->from; end++) {
        if (bsearch(&ends[end], names, (size_t)f->n, sizeof *names, by_name))
            continue;
        for (int i = 0; i < f->n && strlen(list) < sizeof list - 80; i++)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%.60s", i > 0 ? ", " : "",
                     f->fabrics[i].name);
        return fabric_fail_at(g, link->line,
                              "link between %s and %s: there is no fabric \"%s\"; there are: %s",
                              link->from, link->to, ends[end], list);
    }
    return 0;
}

static int by_ends(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    int order = strcmp(x[0], y[0]);

    return order != 0 ? order : strcmp(x[1], y[1]);
}

/* Two links between the same fabrics, or two for all: which of them holds is not told. */
static int links_twice_check(struct fabric_grouping *g)
{
    const char *(*ends)[2] = malloc(((size_t)g->c->nlinks + 1) * sizeof *ends);
    int rc = 0;

    if (!ends)
        return -ENOMEM;
    for (int i = 0; i < g->c->nlinks; i++) {
        const struct holmes_cluster_link *l = &g->c->links[i];
        bool turned = l->from && strcmp(l->from, l->to) > 0;

        ends[i][0] = !l->from ? "" : turned ? l->to : l->from;
        ends[i][1] = !l->from ? "" : turned ? l->from : l->to;
    }
    qsort(ends, (size_t)g->c->nlinks, sizeof *ends, by_ends);
    for (int i = 1; i < g->c->nlinks && rc == 0; i++)
        if (by_ends(ends[i - 1], ends[i]) == 0)
            rc = *ends[i][0]
                     ? fabric_fail(g, "two links between \"%s\" and \"%s\"", ends[i][0], ends[i][1])
                     : fabric_fail(g, "two links without \"between\": one holds for all "
                                      "pairs that have none of their own");
    free(ends);
    return rc;
}

static int links_check(struct fabric_grouping *g, const struct holmes_fabrics *f)
{
    const char **names = malloc(((size_t)f->n + 1) * sizeof *names);
    int rc = 0;

    if (!names)
        return -ENOMEM;
    for (int i = 0; i < f->n; i++)
        names[i] = f->fabrics[i].name;
    qsort(names, (size_t)f->n, sizeof *names, by_name);
    for (int i = 0; i < g->c->nlinks && rc == 0; i++)
        rc = link_check(g, f, names, &g->c->links[i]);
    free(names);
    return rc == 0 ? links_twice_check(g) : rc;
}

int fabric_build(struct fabric_grouping *g, struct holmes_fabrics **out)
{
    struct builder b = {.g = g, .out = calloc(1, sizeof *b.out)};
    int rc = b.out ? fabrics_add(&b) : -ENOMEM;

    if (rc == 0)
        rc = links_check(g, b.out);
    if (rc == 0)
        rc = groups_split(&b);
    free(b.fabric_of_root);
    if (rc != 0) {
        groups_free(b.groups, b.ngroups);
        holmes_fabrics_destroy(b.out);
        return rc;
    }
    if (b.groups) {
        groups_free(g->c->groups, g->c->ngroups);
        g->c->groups = b.groups;
        g->c->ngroups = b.ngroups;
    }
    b.out->notes = g->notes;
    b.out->nnotes = g->nnotes;
    g->notes = NULL;
    g->nnotes = 0;
    *out = b.out;
    return 0;
}

void holmes_fabrics_destroy(struct holmes_fabrics *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n; i++) {
        free(f->fabrics[i].name);
        free(f->fabrics[i].reason);
    }
    for (int i = 0; i < f->nnotes; i++)
        free(f->notes[i]);
    free(f->fabrics);
    free(f->group_fabric);
    free(f->notes);
    free(f);
}
