/* Probes: what one NIC reaches. They speak only where rules leave two hosts open; a fabric is
 * transitive, so answers that are not are refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/fabric_priv.h"

/* --- read ------------------------------------------------------------------------------------ */

static int group_of_host(const struct fabric_grouping *g, int host)
{
    int low = 0, high = g->ngroups - 1;

    while (low < high) {
        int mid = low + (high - low + 1) / 2;

        if (g->first_host[mid] <= host)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static int nic_find(const struct holmes_node_type *t, const char *name)
{
    for (int i = 0; i < t->nnics; i++)
        if (strcmp(t->nics[i].name, name) == 0)
            return i;
    return -1;
}

/* One end, "host" or "host:nic". *counts: its NICs are those that the grouping looks at. */
static int end_read(struct fabric_grouping *g, const struct holmes_hostindex *hosts, int probe,
                    const char *text, int *host, int *nic, bool *counts)
{
    const struct holmes_cluster_probe *p = &g->c->probes[probe];
    const char *colon = strchr(text, ':');
    char name[HOLMES_HOST_NAME_MAX];
    int group, at;

    snprintf(name, sizeof name, "%.*s", colon ? (int)(colon - text) : HOLMES_HOST_NAME_MAX - 1,
             text);
    if (holmes_hostindex_find(hosts, name, &group, &at) != 0)
        return fabric_fail_at(g, p->line,
                              "probe %d (from %s to %s): there is no host \"%s\" under \"nodes\"",
                              probe + 1, p->from, p->to, name);

    const struct holmes_node_type *t = &g->c->types[g->c->groups[group].type];

    *host = g->first_host[group] + at;
    *nic = -1;
    *counts = g->facts[group].link != HOLMES_LINK_UNKNOWN;
    if (colon) {
        *nic = nic_find(t, colon + 1);
        if (*nic < 0)
            return fabric_fail_at(g, p->line, "probe %d (from %s to %s): type %s has no NIC \"%s\"",
                                  probe + 1, p->from, p->to, t->name, colon + 1);
        *counts = *counts && fabric_nic_counts(&t->nics[*nic], g->facts[group].link);
    }
    return 0;
}

static int answer_read(struct fabric_grouping *g, const struct holmes_hostindex *hosts, int i)
{
    const struct holmes_cluster_probe *p = &g->c->probes[i];
    struct fabric_answer a = {.reaches = p->reaches, .probe = i};
    bool counts[2] = {false, false};
    int rc = end_read(g, hosts, i, p->from, &a.host[0], &a.nic[0], &counts[0]);

    if (rc == 0)
        rc = end_read(g, hosts, i, p->to, &a.host[1], &a.nic[1], &counts[1]);
    if (rc != 0)
        return rc;
    if (!counts[0] || !counts[1]) {
        if (p->reaches)
            fabric_note(g, "probe from %s to %s is not looked at: not both are NICs that count",
                        p->from, p->to);
        return 0;
    }
    if (a.host[0] == a.host[1])
        return 0; /* a node reaches itself whatever its NICs do */
    if (a.host[0] > a.host[1]) {
        a = (struct fabric_answer){.host = {a.host[1], a.host[0]},
                                   .nic = {a.nic[1], a.nic[0]},
                                   .reaches = a.reaches,
                                   .probe = i};
    }
    g->answers[g->nanswers++] = a;
    return 0;
}

static int by_ends(const void *x, const void *y)
{
    const struct fabric_answer *a = x, *b = y;
    int keys[][2] = {{a->host[0], b->host[0]},
                     {a->host[1], b->host[1]},
                     {a->nic[0], b->nic[0]},
                     {a->nic[1], b->nic[1]},
                     {a->probe, b->probe}};

    for (int i = 0; i < 5; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return 0;
}

static bool same_hosts(const struct fabric_answer *a, const struct fabric_answer *b)
{
    return a->host[0] == b->host[0] && a->host[1] == b->host[1];
}

/* One answer for each pair of hosts: yes where any of their NICs reaches another. */
static int answers_fold(struct fabric_grouping *g)
{
    int n = 0;

    qsort(g->answers, (size_t)g->nanswers, sizeof *g->answers, by_ends);
    for (int i = 0; i < g->nanswers; i++) {
        struct fabric_answer *a = &g->answers[i];
        const struct fabric_answer *before = i > 0 ? a - 1 : NULL;

        if (before && same_hosts(a, before) && a->nic[0] == before->nic[0] &&
            a->nic[1] == before->nic[1] && a->reaches != before->reaches) {
            const struct holmes_cluster_probe *p = g->c->probes;

            return fabric_fail(g,
                               "probes contradict one another: from %s to %s %s, from %s to %s %s",
                               p[before->probe].from, p[before->probe].to,
                               before->reaches ? "reaches" : "does not reach", p[a->probe].from,
                               p[a->probe].to, a->reaches ? "reaches" : "does not reach");
        }
    }
    for (int i = 0; i < g->nanswers; i++) {
        if (n > 0 && same_hosts(&g->answers[i], &g->answers[n - 1])) {
            if (g->answers[i].reaches && !g->answers[n - 1].reaches)
                g->answers[n - 1] = g->answers[i];
        } else {
            g->answers[n++] = g->answers[i];
        }
    }
    g->nanswers = n;
    return 0;
}

int fabric_probes_read(struct fabric_grouping *g)
{
    struct holmes_hostindex *hosts = NULL;
    int rc, twice;

    if (g->c->nprobes == 0)
        return 0;
    rc = holmes_hostindex_create(&hosts);
    for (int i = 0; rc == 0 && i < g->ngroups; i++)
        if (holmes_hostindex_add(hosts, &g->c->groups[i].hosts, i, &twice) != 0)
            rc = -ENOMEM;
    g->answers = calloc((size_t)g->c->nprobes, sizeof *g->answers);
    if (!g->answers)
        rc = -ENOMEM;
    for (int i = 0; rc == 0 && i < g->c->nprobes; i++)
        rc = answer_read(g, hosts, i);
    holmes_hostindex_destroy(hosts);
    return rc == 0 ? answers_fold(g) : rc;
}

/* --- apply ----------------------------------------------------------------------------------- */

static const char *host_text(const struct fabric_grouping *g, int host, char *buf, size_t len)
{
    int group = group_of_host(g, host);

    return holmes_hostlist_name(&g->c->groups[group].hosts, host - g->first_host[group], buf, len);
}

static enum fabric_relation ruled(struct fabric_grouping *g, const struct fabric_answer *a)
{
    const struct fabric_atom *x = &g->atoms[a->atom[0]], *y = &g->atoms[a->atom[1]];

    if (a->atom[0] == a->atom[1] || x->by_rule == y->by_rule)
        return FABRIC_SAME;
    return fabric_relate(&g->facts[x->group], &g->facts[y->group]);
}

static void note_ruled(struct fabric_grouping *g, const struct fabric_answer *a, bool same)
{
    const struct holmes_cluster_probe *p = &g->c->probes[a->probe];

    fabric_note(
        g, "the probe from %s to %s says %s, but ids, link layers or prefixes say %s and count",
        p->from, p->to, a->reaches ? "yes" : "no", same ? "yes" : "no");
}

/* Two of one entry that is taken as one fabric because the caller asked for it. */
static bool within_entry(const struct fabric_grouping *g, const struct fabric_answer *a)
{
    return a->atom[0] == a->atom[1] && g->as_entry[g->atoms[a->atom[0]].group];
}

/* A host that reaches both, or -1. */
static int third_host(const struct fabric_grouping *g, int x, int y)
{
    char *near_x = calloc((size_t)g->first_host[g->ngroups] + 1, 1);
    int third = -1;

    for (int i = 0; near_x && i < g->nanswers; i++)
        for (int end = 0; end < 2; end++)
            if (g->answers[i].reaches && g->answers[i].host[end] == x)
                near_x[g->answers[i].host[!end]] = 1;
    for (int i = 0; near_x && i < g->nanswers && third < 0; i++)
        for (int end = 0; end < 2; end++)
            if (g->answers[i].reaches && g->answers[i].host[end] == y &&
                near_x[g->answers[i].host[!end]])
                third = g->answers[i].host[!end];
    free(near_x);
    return third;
}

static int refuse_intransitive(struct fabric_grouping *g, const struct fabric_answer *no)
{
    char x[HOLMES_HOST_NAME_MAX], y[HOLMES_HOST_NAME_MAX], z[HOLMES_HOST_NAME_MAX];
    int third;

    host_text(g, no->host[0], x, sizeof x);
    host_text(g, no->host[1], y, sizeof y);
    if (within_entry(g, no))
        return fabric_fail(g,
                           "a probe says that %s does not reach %s, and both stand in one entry "
                           "that is to be taken as one fabric: write two entries",
                           x, y);
    third = third_host(g, no->host[0], no->host[1]);
    if (third >= 0)
        return fabric_fail(
            g,
            "probes are not transitive: %s reaches %s and %s reaches %s, but %s does "
            "not reach %s; no grouping fits. Probe again, or give ids (\"fabric:\")",
            x, host_text(g, third, z, sizeof z), z, y, x, y);
    return fabric_fail(
        g,
        "probes are not transitive: %s and %s are joined over other nodes, but %s "
        "does not reach %s; no grouping fits. Probe again, or give ids (\"fabric:\")",
        x, y, x, y);
}

/* Fabrics that rules keep apart, joined by probes over a third. */
static int refuse_bridge(struct fabric_grouping *g, int a, int b)
{
    char one[100], other[100];

    g->parent[a] = a; /* shown as the rules see them */
    fabric_hosts_text(g, a, false, one, sizeof one);
    fabric_hosts_text(g, b, false, other, sizeof other);
    return fabric_fail(g,
                       "probes are not transitive: they join %s and %s over other nodes, and ids, "
                       "prefixes or kinds of GIDs say that these two cannot share a fabric",
                       one, other);
}

/* Within what probes joined, no two may be apart by rule. Of each kind of fact the first atom that
 * has it stands for all: those of one kind that are not joined by rule are apart. */
static int bridges_check(struct fabric_grouping *g)
{
    enum { ID, PREFIX, DEFAULT, GIDS, KINDS = GIDS + GID_ANY + 1 };
    int(*first)[KINDS] = malloc(((size_t)g->natoms + 1) * sizeof *first), rc = 0;

    if (!first)
        return -ENOMEM;
    memset(first, -1, ((size_t)g->natoms + 1) * sizeof *first);
    for (int i = 0; i < g->natoms && rc == 0; i++) {
        const struct fabric_facts *f = &g->facts[g->atoms[i].group];
        int *seen = first[fabric_root(g, i)];
        int kind = f->nids > 0                       ? ID
                   : f->link == HOLMES_LINK_ETHERNET ? GIDS + f->gids
                   : f->nprefixes > 0                ? PREFIX
                                                     : DEFAULT;

        for (int k = 0; k < KINDS && rc == 0; k++)
            if (seen[k] >= 0 && g->atoms[seen[k]].by_rule != g->atoms[i].by_rule &&
                fabric_relate(&g->facts[g->atoms[seen[k]].group], f) == FABRIC_APART)
                rc = refuse_bridge(g, seen[k], i);
        if (seen[kind] < 0)
            seen[kind] = i;
    }
    free(first);
    return rc;
}

int fabric_probes_apply(struct fabric_grouping *g)
{
    if (g->nanswers == 0)
        return 0;
    for (int i = 0; i < g->nanswers; i++) {
        struct fabric_answer *a = &g->answers[i];

        for (int end = 0; end < 2; end++) {
            int group = group_of_host(g, a->host[end]);

            a->atom[end] = fabric_host_atom(g, group, a->host[end] - g->first_host[group]);
        }

        enum fabric_relation r = ruled(g, a);

        if (r == FABRIC_OPEN && a->reaches) {
            fabric_join(g, a->atom[0], a->atom[1]);
            g->atoms[a->atom[0]].probed = g->atoms[a->atom[1]].probed = true;
        } else if (r != FABRIC_OPEN && !within_entry(g, a) && a->reaches != (r == FABRIC_SAME)) {
            note_ruled(g, a, r == FABRIC_SAME);
        }
    }
    for (int i = 0; i < g->nanswers; i++) {
        const struct fabric_answer *a = &g->answers[i];

        if (a->reaches || (ruled(g, a) != FABRIC_OPEN && !within_entry(g, a)))
            continue;
        if (fabric_root(g, a->atom[0]) == fabric_root(g, a->atom[1]))
            return refuse_intransitive(g, a);
    }
    return bridges_check(g);
}

/* --- who is apart ---------------------------------------------------------------------------- */

static int by_roots(const void *x, const void *y)
{
    const struct fabric_apart *a = x, *b = y;

    return a->low != b->low ? (a->low > b->low) - (a->low < b->low)
                            : (a->high > b->high) - (a->high < b->high);
}

int fabric_probes_part(struct fabric_grouping *g)
{
    g->aparts = malloc(((size_t)g->nanswers + 1) * sizeof *g->aparts);
    if (!g->aparts)
        return -ENOMEM;
    for (int i = 0; i < g->nanswers; i++) {
        const struct fabric_answer *a = &g->answers[i];
        int x = fabric_root(g, a->atom[0]), y = fabric_root(g, a->atom[1]);

        if (!a->reaches && x != y)
            g->aparts[g->naparts++] = (struct fabric_apart){x < y ? x : y, x < y ? y : x};
    }
    qsort(g->aparts, (size_t)g->naparts, sizeof *g->aparts, by_roots);
    return 0;
}

bool fabric_probe_parts(const struct fabric_grouping *g, int root_a, int root_b)
{
    struct fabric_apart key = {root_a < root_b ? root_a : root_b,
                               root_a < root_b ? root_b : root_a};

    return g->naparts > 0 &&
           bsearch(&key, g->aparts, (size_t)g->naparts, sizeof key, by_roots) != NULL;
}
