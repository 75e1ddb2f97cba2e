/* Which nodes share a fabric: ids, link layers, prefixes and kinds of GIDs first (fabric_facts.h),
 * then probes (fabric_probe.c); what is open after that is refused, or kept apart where the caller
 * says so. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/fabric_priv.h"

#define NOTES_MAX 48

int fabric_fail(struct fabric_grouping *g, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(g->why, g->why_len, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

int fabric_fail_at(struct fabric_grouping *g, int line, const char *fmt, ...)
{
    int n = line > 0 ? snprintf(g->why, g->why_len, "line %d: ", line) : 0;
    va_list ap;

    va_start(ap, fmt);
    if (n >= 0 && (size_t)n < g->why_len)
        vsnprintf(g->why + n, g->why_len - (size_t)n, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

void fabric_note(struct fabric_grouping *g, const char *fmt, ...)
{
    va_list ap;
    char *text = NULL;

    if (!g->notes && !(g->notes = calloc(NOTES_MAX + 1, sizeof *g->notes)))
        return;
    if (fabric_notes_full(g))
        return;
    va_start(ap, fmt);
    if (g->nnotes == NOTES_MAX)
        text = strdup("... and more of this kind");
    else if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    if (text)
        g->notes[g->nnotes++] = text;
}

bool fabric_notes_full(const struct fabric_grouping *g)
{
    return g->nnotes > NOTES_MAX;
}

int fabric_root(struct fabric_grouping *g, int atom)
{
    while (g->parent[atom] != atom) {
        g->parent[atom] = g->parent[g->parent[atom]];
        atom = g->parent[atom];
    }
    return atom;
}

void fabric_join(struct fabric_grouping *g, int a, int b)
{
    a = fabric_root(g, a);
    b = fabric_root(g, b);
    if (a < b)
        g->parent[b] = a;
    else
        g->parent[a] = b;
}

int fabric_host_atom(const struct fabric_grouping *g, int group, int host)
{
    int atom = g->host_atom ? g->host_atom[g->first_host[group] + host] : -1;

    return atom >= 0 ? atom : g->group_atom[group];
}

const char *fabric_hosts_text(struct fabric_grouping *g, int atom, bool joined, char *buf,
                              size_t len)
{
    struct holmes_hostlist hosts = {0};
    char name[HOLMES_HOST_NAME_MAX], *text;
    int want = joined ? fabric_root(g, atom) : atom;

    for (int i = 0; i < g->ngroups; i++)
        for (int h = 0; h < g->c->groups[i].hosts.nhosts; h++) {
            int a = fabric_host_atom(g, i, h);

            if ((joined ? fabric_root(g, a) : a) == want)
                holmes_hostlist_append(
                    &hosts, holmes_hostlist_name(&g->c->groups[i].hosts, h, name, sizeof name));
        }
    text = holmes_hostlist_text(&hosts);
    if (text && strlen(text) >= len)
        snprintf(buf, len, "%.*s...", (int)len - 4, text);
    else
        snprintf(buf, len, "%s", text ? text : "?");
    free(text);
    holmes_hostlist_fini(&hosts);
    return buf;
}

/* --- atoms ----------------------------------------------------------------------------------- */

static int facts_find(struct fabric_grouping *g)
{
    int n = g->ngroups;

    g->facts = calloc((size_t)n + 1, sizeof *g->facts);
    g->first_host = calloc((size_t)n + 1, sizeof *g->first_host);
    g->as_entry = calloc((size_t)n + 1, sizeof *g->as_entry);
    g->group_atom = calloc((size_t)n + 1, sizeof *g->group_atom);
    if (!g->facts || !g->first_host || !g->as_entry || !g->group_atom)
        return -ENOMEM;
    for (int i = 0; i < n; i++) {
        if (fabric_facts_find(g->c, &g->c->groups[i], &g->facts[i]) != 0)
            return -ENOMEM;
        g->first_host[i + 1] = g->first_host[i] + g->c->groups[i].hosts.nhosts;
    }
    return 0;
}

static void facts_note(struct fabric_grouping *g)
{
    bool *told = calloc((size_t)g->c->ntypes + 1, sizeof *told);

    for (int i = 0; told && i < g->ngroups; i++) {
        const struct fabric_facts *f = &g->facts[i];
        int type = g->c->groups[i].type;

        if (f->left_out && !told[type])
            fabric_note(g, "type %s counts by its %d %s NIC%s; %s (%s) is not part of the grouping",
                        g->c->types[type].name, f->nics,
                        f->link == HOLMES_LINK_INFINIBAND ? "InfiniBand" : "RoCE",
                        f->nics == 1 ? "" : "s", f->left_out,
                        f->link == HOLMES_LINK_INFINIBAND ? "RoCE" : "InfiniBand");
        told[type] = true;
    }
    free(told);
}

static int atom_add(struct fabric_grouping *g, int group, int host)
{
    g->atoms[g->natoms] = (struct fabric_atom){.group = group, .host = host};
    g->parent[g->natoms] = g->natoms;
    return g->natoms++;
}

/* Hosts of this group that no probe mentions. */
static int unprobed(const struct fabric_grouping *g, int group)
{
    int n = 0;

    for (int h = g->first_host[group]; h < g->first_host[group + 1]; h++)
        n += g->host_atom[h] < 0;
    return n;
}

static int refuse_entry(struct fabric_grouping *g, int group)
{
    char *text = holmes_hostlist_text(&g->c->groups[group].hosts);

    fabric_fail(g,
                "ambiguous: whether %.100s reach one another over RDMA cannot be told: %s. Write "
                "\"fabric: NAME\" into their entry under \"nodes\" (an entry for each fabric), or "
                "list \"probes\" that join them",
                text ? text : "?", fabric_facts_text(&g->facts[group]));
    free(text);
    return -EINVAL;
}

/* Probed hosts of a group that rules do not join become atoms of their own. */
static int group_atoms(struct fabric_grouping *g, int group, bool probes)
{
    struct holmes_node_group *entry = &g->c->groups[group];
    int nhosts = entry->hosts.nhosts, rest = probes ? unprobed(g, group) : nhosts;
    bool loose = nhosts > 1 && fabric_relate_inside(&g->facts[group]) == FABRIC_OPEN;

    if (loose && rest > 0 && g->separate && entry->state == HOLMES_NODE_OK) {
        char *text = holmes_hostlist_text(&entry->hosts);

        fabric_note(g, "%.100s are taken as one fabric because they stand in one entry (%s)",
                    text ? text : "?", fabric_facts_text(&g->facts[group]));
        free(text);
        g->as_entry[group] = true;
        loose = false;
    }
    if (loose && rest > 1 && entry->state == HOLMES_NODE_OK)
        return refuse_entry(g, group);
    g->group_atom[group] = !loose || rest > 0 ? atom_add(g, group, -1) : -1;
    if (!probes)
        return 0;
    for (int h = 0; h < nhosts; h++) {
        int *atom = &g->host_atom[g->first_host[group] + h];

        *atom = loose && *atom >= 0 ? atom_add(g, group, h) : -1;
    }
    return 0;
}

static int atoms_make(struct fabric_grouping *g)
{
    int hosts = g->first_host[g->ngroups];
    bool probes = g->nanswers > 0;
    size_t most = (size_t)g->ngroups + (size_t)(probes ? hosts : 0) + 1;

    g->atoms = calloc(most, sizeof *g->atoms);
    g->parent = calloc(most, sizeof *g->parent);
    if (probes)
        g->host_atom = malloc(((size_t)hosts + 1) * sizeof *g->host_atom);
    if (!g->atoms || !g->parent || (probes && !g->host_atom))
        return -ENOMEM;
    for (int h = 0; probes && h < hosts; h++)
        g->host_atom[h] = -1;
    for (int i = 0; i < g->nanswers; i++)
        for (int end = 0; end < 2; end++)
            g->host_atom[g->answers[i].host[end]] = 0;
    for (int i = 0; i < g->ngroups; i++) {
        int rc = group_atoms(g, i, probes);

        if (rc != 0)
            return rc;
    }
    return 0;
}

/* --- rules 1 to 3 ---------------------------------------------------------------------------- */

/* A text that a group's nodes have, an id or a prefix. */
struct mark {
    const char *text;
    int group;
};

static int by_text(const void *a, const void *b)
{
    const struct mark *x = a, *y = b;
    int order = strcmp(x->text, y->text);

    return order != 0 ? order : (x->group > y->group) - (x->group < y->group);
}

static int id_kind_check(struct fabric_grouping *g, const struct mark *a, const struct mark *b)
{
    static const char *const names[] = {"no RDMA", "InfiniBand", "RoCE"};
    char one[80], other[80];

    if (g->facts[a->group].link == g->facts[b->group].link)
        return 0;
    fabric_hosts_text(g, g->group_atom[a->group], false, one, sizeof one);
    fabric_hosts_text(g, g->group_atom[b->group], false, other, sizeof other);
    return fabric_fail(g,
                       "fabric \"%s\" is given to %s (%s) and to %s (%s), which can never be one: "
                       "give them different ids",
                       a->text, one, names[g->facts[a->group].link], other,
                       names[g->facts[b->group].link]);
}

/* Equal ids: groups with ids are always one atom, since the rules join them inside. */
static int ids_join(struct fabric_grouping *g, const struct mark *ids, int n)
{
    for (int i = 1; i < n; i++) {
        if (strcmp(ids[i - 1].text, ids[i].text) != 0)
            continue;

        int rc = id_kind_check(g, &ids[i - 1], &ids[i]);

        if (rc != 0)
            return rc;
        fabric_join(g, g->group_atom[ids[i - 1].group], g->group_atom[ids[i].group]);
    }
    return 0;
}

/* Equal prefixes join groups of which at most one knows its id. */
static int prefix_join(struct fabric_grouping *g, const struct mark *run, int n)
{
    int with_id = -1, other_id = -1, without = -1;

    for (int i = 0; i < n; i++) {
        int atom = g->group_atom[run[i].group];

        if (g->facts[run[i].group].nids > 0) {
            if (with_id < 0)
                with_id = atom;
            else if (fabric_root(g, atom) != fabric_root(g, with_id))
                other_id = atom;
        } else {
            if (without >= 0)
                fabric_join(g, without, atom);
            without = atom;
        }
    }
    if (without < 0 || with_id < 0)
        return 0;
    if (other_id < 0) {
        fabric_join(g, without, with_id);
        return 0;
    }

    char hosts[100];

    fabric_hosts_text(g, without, true, hosts, sizeof hosts);
    if (g->separate) {
        fabric_note(g, "%s are kept apart: their subnet prefix %s is that of several fabrics",
                    hosts, run[0].text);
        return 0;
    }
    return fabric_fail(g,
                       "ambiguous: %s have the subnet prefix %s, as have nodes of \"%s\" and of "
                       "\"%s\": give them an id too (\"fabric:\" in their entry under \"nodes\")",
                       hosts, run[0].text, g->facts[g->atoms[with_id].group].ids[0],
                       g->facts[g->atoms[other_id].group].ids[0]);
}

static int prefixes_join(struct fabric_grouping *g, const struct mark *marks, int n)
{
    int rc = 0;

    for (int i = 0, end; i < n && rc == 0; i = end) {
        for (end = i + 1; end < n && strcmp(marks[i].text, marks[end].text) == 0;)
            end++;
        rc = prefix_join(g, marks + i, end - i);
    }
    return rc;
}

/* Groups with several prefixes may have tied together fabrics that the user told apart. */
static int ids_check(struct fabric_grouping *g, const int *id_root)
{
    int *known = malloc(((size_t)g->natoms + 1) * sizeof *known), rc = 0;

    if (!known)
        return -ENOMEM;
    for (int i = 0; i < g->natoms; i++)
        known[i] = -1;
    for (int i = 0; i < g->ngroups && rc == 0; i++) {
        int atom = g->group_atom[i];

        if (g->facts[i].nids == 0)
            continue;

        int root = fabric_root(g, atom);

        if (known[root] < 0)
            known[root] = atom;
        else if (id_root[known[root]] != id_root[atom])
            rc = fabric_fail(g,
                             "ambiguous: nodes without an id share subnet prefixes with \"%s\" and "
                             "with \"%s\": give them an id too",
                             g->facts[g->atoms[known[root]].group].ids[0], g->facts[i].ids[0]);
    }
    free(known);
    return rc;
}

static int rules_apply(struct fabric_grouping *g)
{
    int n = g->ngroups, nids = 0, nprefixes = 0, plain = -1, rc = -ENOMEM;
    struct mark *ids = NULL, *prefixes = NULL;
    int *id_root = NULL;

    for (int i = 0; i < n; i++) {
        nids += g->facts[i].nids;
        nprefixes += g->facts[i].nprefixes;
    }
    ids = malloc(((size_t)nids + 1) * sizeof *ids);
    prefixes = malloc(((size_t)nprefixes + 1) * sizeof *prefixes);
    id_root = malloc(((size_t)g->natoms + 1) * sizeof *id_root);
    if (!ids || !prefixes || !id_root)
        goto done;
    nids = nprefixes = 0;
    for (int i = 0; i < n; i++) {
        const struct fabric_facts *f = &g->facts[i];

        for (int k = 0; k < f->nids; k++)
            ids[nids++] = (struct mark){f->ids[k], i};
        /* Some NICs with a prefix and some without: the group's hosts are joined all the same. */
        for (int k = 0; k < f->nprefixes; k++)
            prefixes[nprefixes++] = (struct mark){f->prefixes[k], i};
        if (f->link != HOLMES_LINK_UNKNOWN || f->nids > 0)
            continue;
        if (f->nics == 0 && g->c->groups[i].state != HOLMES_NODE_OK)
            continue; /* it did not answer: what it has is not known */
        if (plain >= 0)
            fabric_join(g, plain, g->group_atom[i]);
        plain = g->group_atom[i];
    }
    qsort(ids, (size_t)nids, sizeof *ids, by_text);
    qsort(prefixes, (size_t)nprefixes, sizeof *prefixes, by_text);
    rc = ids_join(g, ids, nids);
    for (int i = 0; i < g->natoms; i++)
        id_root[i] = fabric_root(g, i);
    if (rc == 0)
        rc = prefixes_join(g, prefixes, nprefixes);
    if (rc == 0)
        rc = ids_check(g, id_root);
    for (int i = 0; i < g->natoms; i++)
        g->atoms[i].by_rule = fabric_root(g, i);

done:
    free(ids);
    free(prefixes);
    free(id_root);
    return rc;
}

/* --- what is left open ----------------------------------------------------------------------- */

/* All that is joined, seen from outside. */
struct body {
    int root;
    enum holmes_link_layer link;
    bool ok, id, prefix, prefix_default;
    int gids;
};

static int bodies_find(struct fabric_grouping *g, struct body **out, int *nout)
{
    struct body *bodies = calloc((size_t)g->natoms + 1, sizeof *bodies);
    int *index = malloc(((size_t)g->natoms + 1) * sizeof *index), n = 0;

    if (!bodies || !index) {
        free(bodies);
        free(index);
        return -ENOMEM;
    }
    for (int i = 0; i < g->natoms; i++) {
        const struct fabric_facts *f = &g->facts[g->atoms[i].group];
        int root = fabric_root(g, i); /* the lowest of its atoms, so seen before the others */

        if (root == i) {
            bodies[n] = (struct body){.root = i, .link = f->link};
            index[i] = n++;
        }

        struct body *b = &bodies[index[root]];

        b->ok |= g->c->groups[g->atoms[i].group].state == HOLMES_NODE_OK;
        b->id |= f->nids > 0;
        b->prefix |= f->nprefixes > 0;
        b->prefix_default |= f->prefix_default;
        b->gids |= f->gids;
    }
    free(index);
    *out = bodies;
    *nout = n;
    return 0;
}

static bool bodies_open(const struct body *a, const struct body *b)
{
    if ((a->id && b->id) || a->link != b->link || a->link == HOLMES_LINK_UNKNOWN)
        return false;
    if (a->link == HOLMES_LINK_ETHERNET)
        return (a->gids & b->gids) != 0;

    bool a_untold = !a->prefix && !a->prefix_default, b_untold = !b->prefix && !b->prefix_default;

    return a_untold || b_untold || (a->prefix_default && b->prefix_default);
}

/* Fully told prefixes other than the default one settle all among themselves. */
static bool body_told(const struct body *b)
{
    return b->link == HOLMES_LINK_INFINIBAND && b->prefix && !b->prefix_default;
}

static int refuse_open(struct fabric_grouping *g, const struct body *a, const struct body *b)
{
    char one[100], other[100];
    const struct body *nameless = a->id ? b : a;

    if (g->separate && fabric_notes_full(g))
        return 0;
    fabric_hosts_text(g, a->root, true, one, sizeof one);
    fabric_hosts_text(g, b->root, true, other, sizeof other);
    if (g->separate) {
        fabric_note(g, "%s and %s are kept apart: whether they share a fabric cannot be told", one,
                    other);
        return 0;
    }
    return fabric_fail(g,
                       "ambiguous: whether %s and %s share a fabric cannot be told: %s. Write "
                       "\"fabric: NAME\" into the entries of both under \"nodes\" (equal names "
                       "share, different ones never do), or list \"probes\" between them",
                       one, other, fabric_facts_text(&g->facts[g->atoms[nameless->root].group]));
}

static int open_check(struct fabric_grouping *g)
{
    struct body *bodies = NULL;
    int n = 0, rc = bodies_find(g, &bodies, &n);

    for (int i = 0; i < n && rc == 0; i++) {
        const struct body *a = &bodies[i];

        if (!a->ok || a->link == HOLMES_LINK_UNKNOWN)
            continue;
        for (int k = 0; k < n && rc == 0; k++) {
            const struct body *b = &bodies[k];

            /* A told one is looked at from the other's side; of two others once. */
            if (k == i || !b->ok || (a->id && b->id) || body_told(a) || (!body_told(b) && k < i) ||
                !bodies_open(a, b) || fabric_probe_parts(g, a->root, b->root))
                continue;
            rc = refuse_open(g, a, b);
            if (g->separate)
                break; /* one note for each is enough */
        }
    }
    free(bodies);
    return rc;
}

static void grouping_fini(struct fabric_grouping *g)
{
    for (int i = 0; g->facts && i < g->ngroups; i++)
        fabric_facts_fini(&g->facts[i]);
    free(g->facts);
    free(g->first_host);
    free(g->as_entry);
    free(g->atoms);
    free(g->parent);
    free(g->group_atom);
    free(g->host_atom);
    free(g->answers);
    free(g->aparts);
    for (int i = 0; i < g->nnotes; i++)
        free(g->notes[i]);
    free(g->notes);
}

int holmes_fabrics_find(struct holmes_cluster *c, bool separate_ambiguous,
                        struct holmes_fabrics **out, char *why, size_t why_len)
{
    struct fabric_grouping g = {.c = c,
                                .ngroups = c->ngroups,
                                .separate = separate_ambiguous,
                                .why = why,
                                .why_len = why_len};
    int rc = facts_find(&g);

    if (rc == 0)
        rc = fabric_probes_read(&g);
    if (rc == 0)
        rc = atoms_make(&g);
    if (rc == 0)
        rc = rules_apply(&g);
    if (rc == 0)
        rc = fabric_probes_apply(&g);
    if (rc == 0)
        rc = fabric_probes_part(&g);
    if (rc == 0)
        rc = open_check(&g);
    if (rc == 0) {
        facts_note(&g);
        rc = fabric_build(&g, out);
    }
    if (rc == -ENOMEM)
        snprintf(why, why_len, "not enough memory for the fabrics");
    grouping_fini(&g);
    return rc;
}
