/* From the cluster file as it stands to a cluster: numbers, names that must exist, hosts that may
 * come once. Strings move from one to the other. */
#include "cluster/cluster_yaml.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/prefix.h"
#include "cluster/text.h"
#include "fabric_ids.h"
#include "near_name.h"

#define GPUS_MAX     1024 /* of a node */
#define NUMBER_LEAST 1e-6 /* of Gb/s, TFLOPS, GiB and ms: times stay finite */

struct reader {
    const struct holmes_yaml_doc *doc;
    struct file_cluster *file;
    struct holmes_cluster *c;
    const struct holmes_node_type **by_name; /* [ntypes], sorted */
    char *why;
    size_t why_len;
};

static char *take(char **text)
{
    char *t = *text;

    *text = NULL;
    return t;
}

static int number(const struct reader *r, const char *text, double high, double *out,
                  const char *path_fmt, ...) __attribute__((format(printf, 5, 6)));

/* Reads an optional number; absent, *out stays. Zero is how a cluster keeps what is unknown, so
 * that it is not taken for a measurement. */
static int number(const struct reader *r, const char *text, double high, double *out,
                  const char *path_fmt, ...)
{
    char path[256];
    va_list ap;

    if (!text || holmes_text_number(text, NUMBER_LEAST, high, out) == 0)
        return 0;
    va_start(ap, path_fmt);
    vsnprintf(path, sizeof path, path_fmt, ap);
    va_end(ap);
    return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                "\"%.40s\" is no number from %g to %g; leave out what is unknown",
                                text, NUMBER_LEAST, high);
}

static int whole(const struct reader *r, const char *text, int low, int high, int *out,
                 const char *path_fmt, ...) __attribute__((format(printf, 6, 7)));

static int whole(const struct reader *r, const char *text, int low, int high, int *out,
                 const char *path_fmt, ...)
{
    char path[256];
    va_list ap;

    if (!text || holmes_text_whole(text, low, high, out) == 0)
        return 0;
    va_start(ap, path_fmt);
    vsnprintf(path, sizeof path, path_fmt, ap);
    va_end(ap);
    return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                "\"%.40s\" is no whole number from %d to %d", text, low, high);
}

/* --- node types ------------------------------------------------------------------------------ */

static const char *kind_name(enum file_kind kind)
{
    return kind == FILE_INFINIBAND ? "infiniband" : kind == FILE_ROCE ? "roce" : "ethernet";
}

static int gids_read(const struct file_nic *f, struct holmes_cluster_nic *nic)
{
    int seen = 0;
    char text[64] = "";

    for (unsigned i = 0; i < f->ngids; i++)
        seen |= f->gids[i];
    for (int k = 0; k < 4; k++)
        if (seen & (int)holmes_cluster_gids[k].val)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] ? "," : "",
                     holmes_cluster_gids[k].str);
    nic->gids = strdup(text);
    return nic->gids ? 0 : -ENOMEM;
}

static int fabric_id(const struct reader *r, char **text, char **out, const char *path_fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Reads an optional id of a fabric: what the plugin takes in HOLMES_FABRIC. */
static int fabric_id(const struct reader *r, char **text, char **out, const char *path_fmt, ...)
{
    char word[HOLMES_RDMA_NAME_MAX], path[128];
    va_list ap;

    if (!*text || fabric_word_copy(*text, strlen(*text), word) == 0) {
        *out = take(text);
        return 0;
    }
    va_start(ap, path_fmt);
    vsnprintf(path, sizeof path, path_fmt, ap);
    va_end(ap);
    return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                "\"%.60s\" is no id of a fabric: 1 to %d letters, digits or -_.",
                                *text, HOLMES_RDMA_NAME_MAX - 1);
}

static int nic_read(const struct reader *r, int t, int k, struct file_nic *f,
                    struct holmes_cluster_nic *nic)
{
    char path[128], prefix[HOLMES_PREFIX_MAX];
    int rc;

    nic->rdma = f->kind != FILE_ETHERNET;
    nic->link = f->kind == FILE_INFINIBAND ? HOLMES_LINK_INFINIBAND
                : f->kind == FILE_ROCE     ? HOLMES_LINK_ETHERNET
                                           : HOLMES_LINK_UNKNOWN;
    nic->numa = -1;
    rc = number(r, f->gbps, 1e6, &nic->gbps, "node-types[%d].nics[%d].gbps", t, k);
    if (rc == 0)
        rc = whole(r, f->numa, 0, 4095, &nic->numa, "node-types[%d].nics[%d].numa", t, k);
    if (rc != 0)
        return rc;
    if (f->prefix) {
        snprintf(path, sizeof path, "node-types[%d].nics[%d].prefix", t, k);
        if (f->kind != FILE_INFINIBAND)
            return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                        "only InfiniBand has subnet prefixes; this NIC is \"%s\"",
                                        kind_name(f->kind));
        if (holmes_prefix_read(f->prefix, prefix) != 0)
            return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                        "\"%.60s\" is no subnet prefix such as fe80:0:0:0 (the "
                                        "first 64 bits of a GID)",
                                        f->prefix);
        nic->prefix = strdup(prefix);
        if (!nic->prefix)
            return -ENOMEM;
    }
    if (f->ngids > 0 && f->kind != FILE_ROCE) {
        snprintf(path, sizeof path, "node-types[%d].nics[%d].gids", t, k);
        return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                    "only RoCE chooses by kinds of GIDs; this NIC is \"%s\"",
                                    kind_name(f->kind));
    }
    if (f->ngids > 0 && gids_read(f, nic) != 0)
        return -ENOMEM;
    nic->name = take(&f->name);
    return fabric_id(r, &f->fabric, &nic->fabric, "node-types[%d].nics[%d].fabric", t, k);
}

static int nics_read(const struct reader *r, int t, struct file_type *f,
                     struct holmes_node_type *type)
{
    if (f->nnics == 0)
        return 0;
    type->nics = calloc(f->nnics, sizeof *type->nics);
    if (!type->nics)
        return -ENOMEM;
    for (int k = 0; k < (int)f->nnics; k++) {
        type->nnics++;

        int rc = nic_read(r, t, k, &f->nics[k], &type->nics[k]);

        if (rc != 0)
            return rc;
        for (int before = 0; before < k; before++)
            if (strcmp(type->nics[before].name, type->nics[k].name) == 0) {
                char path[128];

                snprintf(path, sizeof path, "node-types[%d].nics[%d].name", t, k);
                return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                            "NIC %s comes twice in type %s", type->nics[k].name,
                                            type->name);
            }
    }
    return 0;
}

static int type_read(const struct reader *r, int t, struct file_type *f,
                     struct holmes_node_type *type)
{
    type->name = take(&f->name);
    type->gpu = take(&f->gpu);

    int rc = whole(r, f->gpus, 0, GPUS_MAX, &type->gpus, "node-types[%d].gpus", t);

    if (rc == 0)
        rc = number(r, f->tflops, 1e9, &type->tflops, "node-types[%d].tflops", t);
    if (rc == 0)
        rc = number(r, f->memory_gib, 1e6, &type->memory_gib, "node-types[%d].memory-gib", t);
    if (rc == 0)
        rc = number(r, f->intra_gbps, 1e6, &type->intra_gbps, "node-types[%d].intra-gbps", t);
    if (rc == 0)
        rc = nics_read(r, t, f, type);
    return rc;
}

static int by_type_name(const void *a, const void *b)
{
    const struct holmes_node_type *x = *(const struct holmes_node_type *const *)a;
    const struct holmes_node_type *y = *(const struct holmes_node_type *const *)b;
    int order = strcmp(x->name, y->name);

    return order != 0 ? order : (x > y) - (x < y);
}

static int types_read(struct reader *r)
{
    struct holmes_cluster *c = r->c;
    int n = (int)r->file->ntypes;

    c->types = calloc((size_t)n, sizeof *c->types);
    r->by_name = malloc((size_t)n * sizeof *r->by_name);
    if (!c->types || !r->by_name)
        return -ENOMEM;
    for (int t = 0; t < n; t++) {
        c->ntypes++;

        int rc = type_read(r, t, &r->file->types[t], &c->types[t]);

        if (rc != 0)
            return rc;
        r->by_name[t] = &c->types[t];
    }
    qsort(r->by_name, (size_t)n, sizeof *r->by_name, by_type_name);
    for (int i = 1; i < n; i++)
        if (strcmp(r->by_name[i - 1]->name, r->by_name[i]->name) == 0) {
            char path[64];

            snprintf(path, sizeof path, "node-types[%d].name", (int)(r->by_name[i - 1] - c->types));

            int line = holmes_yaml_doc_line(r->doc, path);

            snprintf(path, sizeof path, "node-types[%d].name", (int)(r->by_name[i] - c->types));
            return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                        "type \"%s\" comes twice, first in line %d",
                                        r->by_name[i]->name, line);
        }
    return 0;
}

/* The type's index, or -1 after a message. */
static int type_find(const struct reader *r, int entry, const char *name)
{
    int low = 0, high = r->c->ntypes - 1;

    while (low <= high) {
        int mid = low + (high - low) / 2, order = strcmp(name, r->by_name[mid]->name);

        if (order == 0)
            return (int)(r->by_name[mid] - r->c->types);
        if (order < 0)
            high = mid - 1;
        else
            low = mid + 1;
    }

    enum { SHOWN = 16 };
    const char *words[SHOWN + 1] = {NULL};
    char path[64], list[SHOWN * 42 + 8] = "";

    for (int i = 0; i < r->c->ntypes && i < SHOWN; i++) {
        size_t len = strlen(list);

        words[i] = r->c->types[i].name;
        snprintf(list + len, sizeof list - len, "%s%.40s", i > 0 ? ", " : "", words[i]);
    }
    if (r->c->ntypes > SHOWN)
        snprintf(list + strlen(list), sizeof list - strlen(list), ", ...");

    const char *near = holmes_near_name(name, words);

    snprintf(path, sizeof path, "nodes[%d].type", entry);
    if (near)
        holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                             "there is no node type \"%.60s\"; did you mean \"%s\"?", name, near);
    else
        holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                             "there is no node type \"%.60s\"; there are: %s", name, list);
    return -1;
}

/* --- nodes ----------------------------------------------------------------------------------- */

static int group_read(const struct reader *r, int g, struct file_nodes *f,
                      struct holmes_node_group *group)
{
    char path[64], say[300];
    int rc = holmes_hostlist_parse(f->hosts, &group->hosts, say, sizeof say);

    if (rc == -EINVAL) {
        snprintf(path, sizeof path, "nodes[%d].hosts", g);
        return holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len, "%s", say);
    }
    if (rc != 0)
        return rc;
    group->type = type_find(r, g, f->type);
    if (group->type < 0)
        return -EINVAL;
    group->state = f->state ? (enum holmes_node_state) * f->state : HOLMES_NODE_OK;
    group->why = take(&f->why);
    rc = fabric_id(r, &f->fabric, &group->fabric, "nodes[%d].fabric", g);
    if (rc != 0)
        return rc;

    const struct holmes_node_type *type = &r->c->types[group->type];

    return whole(r, f->slots, 1, type->gpus > 0 ? type->gpus : GPUS_MAX, &group->slots,
                 "nodes[%d].slots", g);
}

static int groups_read(const struct reader *r)
{
    struct holmes_cluster *c = r->c;
    struct holmes_hostindex *seen = NULL;
    int rc = holmes_hostindex_create(&seen), hosts = 0;

    c->groups = calloc(r->file->nnodes, sizeof *c->groups);
    if (!c->groups)
        rc = -ENOMEM;
    for (int g = 0; rc == 0 && g < (int)r->file->nnodes; g++) {
        struct holmes_node_group *group = &c->groups[g];
        char name[HOLMES_HOST_NAME_MAX], path[64];
        int twice = 0, tag = 0, host;

        c->ngroups++;
        rc = group_read(r, g, &r->file->nodes[g], group);
        if (rc != 0)
            break;
        snprintf(path, sizeof path, "nodes[%d].hosts", g);
        if (group->hosts.nhosts > HOLMES_HOSTS_MAX - hosts) {
            rc = holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len, "more than %d hosts in all",
                                      HOLMES_HOSTS_MAX);
            break;
        }
        hosts += group->hosts.nhosts;
        rc = holmes_hostindex_add(seen, &group->hosts, g, &twice);
        if (rc != -EEXIST)
            continue;
        holmes_hostlist_name(&group->hosts, twice, name, sizeof name);
        holmes_hostindex_find(seen, name, &tag, &host);

        char first[64];

        snprintf(first, sizeof first, "nodes[%d].hosts", tag);
        rc = holmes_yaml_doc_fail(r->doc, path, r->why, r->why_len,
                                  "host %s comes twice, first in line %d", name,
                                  holmes_yaml_doc_line(r->doc, first));
    }
    holmes_hostindex_destroy(seen);
    return rc;
}

/* --- links and probes ------------------------------------------------------------------------ */

static int links_read(const struct reader *r)
{
    struct holmes_cluster *c = r->c;
    int rc = 0;

    if (r->file->nlinks == 0)
        return 0;
    c->links = calloc(r->file->nlinks, sizeof *c->links);
    if (!c->links)
        return -ENOMEM;
    for (int i = 0; rc == 0 && i < (int)r->file->nlinks; i++) {
        struct file_link *f = &r->file->links[i];
        struct holmes_cluster_link *link = &c->links[c->nlinks++];
        char path[32];

        if (f->between) {
            link->from = take(&f->between[0]);
            link->to = take(&f->between[1]);
        }
        snprintf(path, sizeof path, "links[%d]", i);
        link->line = holmes_yaml_doc_line(r->doc, path);
        rc = number(r, f->gbps, 1e9, &link->gbps, "links[%d].gbps", i);
        if (rc == 0)
            rc = number(r, f->node_gbps, 1e6, &link->node_gbps, "links[%d].node-gbps", i);
        if (rc == 0)
            rc = number(r, f->rtt_ms, 1e6, &link->rtt_ms, "links[%d].rtt-ms", i);
    }
    return rc;
}

static int probes_read(const struct reader *r)
{
    struct holmes_cluster *c = r->c;

    if (r->file->nprobes == 0)
        return 0;
    c->probes = calloc(r->file->nprobes, sizeof *c->probes);
    if (!c->probes)
        return -ENOMEM;
    for (unsigned i = 0; i < r->file->nprobes; i++) {
        struct file_probe *f = &r->file->probes[i];
        char path[32];

        snprintf(path, sizeof path, "probes[%u]", i);
        c->probes[c->nprobes++] = (struct holmes_cluster_probe){
            take(&f->from), take(&f->to), f->reaches != 0, holmes_yaml_doc_line(r->doc, path)};
    }
    return 0;
}

int holmes_cluster_from_file(const struct holmes_yaml_doc *doc, struct file_cluster *file,
                             struct holmes_cluster **out, char *why, size_t why_len)
{
    struct reader r = {.doc = doc, .file = file, .why = why, .why_len = why_len};
    int rc;

    r.c = calloc(1, sizeof *r.c);
    if (!r.c)
        return -ENOMEM;
    r.c->name = take(&file->name);
    rc = types_read(&r);
    if (rc == 0)
        rc = groups_read(&r);
    if (rc == 0)
        rc = links_read(&r);
    if (rc == 0)
        rc = probes_read(&r);
    free(r.by_name);
    if (rc == 0)
        *out = r.c;
    else
        holmes_cluster_destroy(r.c);
    return rc;
}
