/* Equal machines together. */
#include "cluster/merge.h"
#include "cluster/gpu_spec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/gpu_spec.h"
#include "cluster/host_type.h"
#include "siphash.h"

#define NOTES_MAX 64

/* A type, and the text that tells it from others. */
struct kind {
    char *key;
    uint64_t hash;
    int hosts;
    bool untold; /* it was said that NICs are left out */
    bool sheet;  /* its TFLOPS are the data sheet's */
    /* Why ports of the first such machine are not used: "mlx5_3: port is down". */
    int nunused;
    char **unused;
};

struct holmes_merge {
    enum holmes_link_layer untold_link;
    struct holmes_cluster *c;
    struct kind *kinds;                 /* [c->ntypes] */
    int types_cap, groups_cap, unknown; /* unknown: type of hosts that failed, or -1 */
    struct holmes_merge_report report;
};

int holmes_merge_create(enum holmes_link_layer untold_link, struct holmes_merge **out)
{
    struct holmes_merge *m = calloc(1, sizeof *m);

    if (!m || !(m->c = calloc(1, sizeof *m->c))) {
        free(m);
        return -ENOMEM;
    }
    m->unknown = -1;
    m->untold_link = untold_link;
    *out = m;
    return 0;
}

void holmes_merge_destroy(struct holmes_merge *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->types_cap && m->kinds; i++) {
        free(m->kinds[i].key);
        for (int k = 0; k < m->kinds[i].nunused; k++)
            free(m->kinds[i].unused[k]);
        free(m->kinds[i].unused);
    }
    free(m->kinds);
    holmes_cluster_destroy(m->c);
    holmes_merge_report_fini(&m->report);
    free(m);
}

void holmes_merge_report_fini(struct holmes_merge_report *r)
{
    for (int i = 0; i < r->nnotes; i++)
        free(r->notes[i]);
    free(r->notes);
    *r = (struct holmes_merge_report){0};
}

static void note(struct holmes_merge *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void note(struct holmes_merge *m, const char *fmt, ...)
{
    struct holmes_merge_report *r = &m->report;
    char *text = NULL;
    va_list ap;

    if (!r->notes && !(r->notes = calloc(NOTES_MAX + 1, sizeof *r->notes)))
        return;
    if (r->nnotes > NOTES_MAX)
        return;
    va_start(ap, fmt);
    if (r->nnotes == NOTES_MAX)
        text = strdup("... and more of this kind");
    else if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    if (text)
        r->notes[r->nnotes++] = text;
}

/* --- types ----------------------------------------------------------------------------------- */

static int types_room(struct holmes_merge *m)
{
    int cap = m->types_cap > 0 ? 2 * m->types_cap : 8;
    struct holmes_node_type *types;
    struct kind *kinds;

    if (m->c->ntypes < m->types_cap)
        return 0;
    types = realloc(m->c->types, (size_t)cap * sizeof *types);
    if (!types)
        return -ENOMEM;
    m->c->types = types;
    kinds = realloc(m->kinds, (size_t)cap * sizeof *kinds);
    if (!kinds)
        return -ENOMEM;
    memset(kinds + m->types_cap, 0, (size_t)(cap - m->types_cap) * sizeof *kinds);
    m->kinds = kinds;
    m->types_cap = cap;
    return 0;
}

/* A name that no other type has: "8gpu-8ib400", "8gpu-8ib400-2". No type's own name ends in a bare
 * number. */
static char *type_name(const struct holmes_merge *m, const struct holmes_node_type *t)
{
    char base[200], name[240];
    size_t len;
    int same = 1;

    holmes_node_type_name(t, base, sizeof base);
    len = strlen(base);
    for (int i = 0; i < m->c->ntypes; i++) {
        const char *other = m->c->types[i].name;

        if (strncmp(other, base, len) == 0 &&
            (!other[len] ||
             (other[len] == '-' && !other[len + 1 + strspn(other + len + 1, "0123456789")])))
            same++;
    }
    if (same == 1)
        return strdup(base);
    snprintf(name, sizeof name, "%s-%d", base, same);
    return strdup(name);
}

static void unused_keep(struct kind *k, const struct holmes_host *h)
{
    k->unused = calloc((size_t)h->nports + 1, sizeof *k->unused);
    for (int i = 0; k->unused && i < h->nports; i++)
        if (!h->ports[i].verdict.used &&
            asprintf(&k->unused[k->nunused], "%s:%d: %s", h->ports[i].seen.device,
                     h->ports[i].seen.port, h->ports[i].verdict.reason) >= 0)
            k->nunused++;
}

/* Takes over `t`. The type's index or a negative errno. */
static int type_index(struct holmes_merge *m, struct holmes_node_type *t,
                      const struct holmes_host *h)
{
    static const uint8_t seed[16] = "holmes-node-type";
    char *key = holmes_node_type_key(t);
    uint64_t hash = key ? holmes_siphash(seed, key, strlen(key)) : 0;

    for (int i = 0; key && i < m->c->ntypes; i++)
        if (m->kinds[i].key && m->kinds[i].hash == hash && strcmp(m->kinds[i].key, key) == 0) {
            free(key);
            holmes_node_type_fini(t);
            return i;
        }
    if (!key || types_room(m) != 0 || !(t->name = type_name(m, t))) {
        free(key);
        holmes_node_type_fini(t);
        return -ENOMEM;
    }

    int i = m->c->ntypes++;

    m->c->types[i] = *t;
    m->kinds[i] = (struct kind){.key = key, .hash = hash, .sheet = t->tflops > 0};
    unused_keep(&m->kinds[i], h);
    return i;
}

/* --- groups ---------------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static int groups_room(struct holmes_merge *m)
{
    int cap = m->groups_cap > 0 ? 2 * m->groups_cap : 8;
    void *more;

    if (m->c->ngroups < m->groups_cap)
        return 0;
    more = realloc(m->c->groups, (size_t)cap * sizeof *m->c->groups);
    if (!more)
        return -ENOMEM;
    m->c->groups = more;
    m->groups_cap = cap;
    return 0;
}

static bool same_group(const struct holmes_node_group *a, const struct holmes_node_group *b)
{
    return a->type == b->type && a->state == b->state && a->slots == b->slots &&
           same_text(a->fabric, b->fabric) && same_text(a->why, b->why);
}

static int group_add(struct holmes_merge *m, const char *name, const struct holmes_node_group *like)
{
    struct holmes_cluster *c = m->c;

    if (groups_room(m) != 0)
        return -ENOMEM;
    if (c->ngroups == 0 || !same_group(&c->groups[c->ngroups - 1], like)) {
        struct holmes_node_group *new = &c->groups[c->ngroups++];

        *new = *like;
        new->hosts = (struct holmes_hostlist){0};
        new->fabric = like->fabric ? strdup(like->fabric) : NULL;
        new->why = like->why ? strdup(like->why) : NULL;
        if ((like->fabric && !new->fabric) || (like->why && !new->why))
            return -ENOMEM;
    }
    m->report.hosts++;
    return holmes_hostlist_append(&c->groups[c->ngroups - 1].hosts, name);
}

int holmes_merge_add(struct holmes_merge *m, const char *name, const struct holmes_host *h,
                     int slots, const char *fabric)
{
    struct holmes_node_type t;
    struct holmes_host_sides sides;
    struct holmes_node_group like = {.state = HOLMES_NODE_OK};
    int rc;

    if (!holmes_host_name_ok(name, strlen(name)))
        return -EINVAL;
    rc = holmes_host_type(h, m->untold_link, &t, &sides);
    if (rc != 0)
        return rc;
    like.type = type_index(m, &t, h);
    if (like.type < 0) {
        free(sides.fabric);
        return like.type;
    }

    const struct holmes_node_type *type = &m->c->types[like.type];

    if (slots > type->gpus)
        note(m, "%s has %d GPUs; the %d slots that were told are not used", name, type->gpus,
             slots);
    if (sides.nuntold > 0 && !m->kinds[like.type].untold)
        note(m, "%s (%s): %s%s left out: whether RDMA is InfiniBand or RoCE is not told", name,
             type->name, sides.untold, sides.nuntold == 1 ? " is" : " and others are");
    m->kinds[like.type].untold |= sides.nuntold > 0;
    like.slots = slots > 0 && slots < type->gpus ? slots : 0;
    like.fabric = fabric ? (char *)fabric : sides.fabric;
    m->kinds[like.type].hosts++;
    rc = group_add(m, name, &like);
    free(sides.fabric);
    return rc;
}

int holmes_merge_fail(struct holmes_merge *m, const char *name, const char *why)
{
    struct holmes_node_group like = {.state = HOLMES_NODE_DEFECTIVE, .why = (char *)why};

    if (!holmes_host_name_ok(name, strlen(name)))
        return -EINVAL;
    if (m->unknown < 0) {
        if (types_room(m) != 0)
            return -ENOMEM;
        m->c->types[m->c->ntypes] = (struct holmes_node_type){.name = strdup("unknown")};
        if (!m->c->types[m->c->ntypes].name)
            return -ENOMEM;
        m->unknown = m->c->ntypes++;
    }
    like.type = m->unknown;
    m->report.failed++;
    note(m, "%s is listed as defective: %s", name, why);
    return group_add(m, name, &like);
}

/* --- report ---------------------------------------------------------------------------------- */

/* Hosts of a type as text, cut where it is long. */
static void type_hosts(const struct holmes_cluster *c, int type, char *buf, size_t len)
{
    struct holmes_hostlist all = {0};
    char name[HOLMES_HOST_NAME_MAX], *text;

    for (int i = 0; i < c->ngroups; i++)
        for (int k = 0; k < c->groups[i].hosts.nhosts && c->groups[i].type == type; k++)
            holmes_hostlist_append(&all,
                                   holmes_hostlist_name(&c->groups[i].hosts, k, name, sizeof name));
    text = holmes_hostlist_text(&all);
    if (text && strlen(text) >= len)
        snprintf(buf, len, "%.*s...", (int)len - 4, text);
    else
        snprintf(buf, len, "%s", text ? text : "?");
    free(text);
    holmes_hostlist_fini(&all);
}

/* Of NICs that the usual type has and this one has not, why its ports are not used. */
static void note_unused(struct holmes_merge *m, int type, int usual)
{
    const struct kind *k = &m->kinds[type];

    for (int i = 0; i < k->nunused; i++) {
        const struct holmes_node_type *u = &m->c->types[usual], *t = &m->c->types[type];
        size_t device = strcspn(k->unused[i], ":");

        for (int n = 0; n < u->nnics; n++) {
            bool has = false;

            if (!u->nics[n].rdma || strcspn(u->nics[n].name, ":") != device ||
                strncmp(u->nics[n].name, k->unused[i], device) != 0)
                continue;
            for (int o = 0; o < t->nnics; o++)
                has |= strcmp(t->nics[o].name, u->nics[n].name) == 0;
            if (!has)
                note(m, "type %s: %s", t->name, k->unused[i]);
        }
    }
}

/* A type is compared with the one most hosts have, of those with its main kind of NIC. */
static char main_kind(const struct holmes_node_type *t)
{
    for (int i = 0; i < t->nnics; i++)
        if (t->nics[i].rdma)
            return t->nics[i].link == HOLMES_LINK_INFINIBAND ? 'i' : 'r';
    return t->nnics > 0 ? 'e' : '-';
}

static void notes_differences(struct holmes_merge *m)
{
    for (int i = 0; i < m->c->ntypes; i++) {
        int usual = -1;
        char hosts[100], others[100], what[400];

        if (i == m->unknown)
            continue;
        for (int k = 0; k < m->c->ntypes; k++)
            if (k != m->unknown && main_kind(&m->c->types[k]) == main_kind(&m->c->types[i]) &&
                (usual < 0 || m->kinds[k].hosts > m->kinds[usual].hosts))
                usual = k;
        if (m->report.nnotes > NOTES_MAX)
            return;
        if (usual == i || usual < 0)
            continue;
        type_hosts(m->c, i, hosts, sizeof hosts);
        type_hosts(m->c, usual, others, sizeof others);
        note(m, "%s (%s) differ%s from %s (%s): %s", hosts, m->c->types[i].name,
             m->kinds[i].hosts == 1 ? "s" : "", others, m->c->types[usual].name,
             holmes_node_type_difference(&m->c->types[i], &m->c->types[usual], what, sizeof what));
        note_unused(m, i, usual);
    }
}

static void notes_specs(struct holmes_merge *m)
{
    for (int i = 0; i < m->c->ntypes; i++) {
        const struct holmes_node_type *t = &m->c->types[i];

        if (t->gpus > 0 && m->kinds[i].sheet)
            note(m, "type %s: %g TFLOPS are the data sheet's peak of %s; write what yours reach",
                 t->name, t->tflops, t->gpu);
        else if (t->gpus > 0)
            note(m, "type %s: the GPUs' speed is not known; write \"tflops\" into the file",
                 t->name);
        if (t->gpus > 0 && t->gpu && t->intra_gbps > 0 &&
            t->intra_gbps == holmes_gpu_spec_nvlink_gbps(t->gpu))
            note(m, "type %s: %g Gb/s between its GPUs are the data sheet's NVLink of %s", t->name,
                 t->intra_gbps, t->gpu);
    }
}

int holmes_merge_finish(struct holmes_merge *m, const char *name, struct holmes_cluster **out,
                        struct holmes_merge_report *report)
{
    if (name && !(m->c->name = strdup(name)))
        return -ENOMEM;
    notes_differences(m);
    notes_specs(m);
    *out = m->c;
    m->c = NULL;
    *report = m->report;
    m->report = (struct holmes_merge_report){0};
    return 0;
}
