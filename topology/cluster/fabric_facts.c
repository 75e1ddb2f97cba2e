/* The facts of one group, and the rules that compare two. */
#include "cluster/fabric_facts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/prefix.h"

bool fabric_nic_counts(const struct holmes_cluster_nic *nic, enum holmes_link_layer link)
{
    return link == HOLMES_LINK_UNKNOWN ? !nic->rdma : nic->rdma && nic->link == link;
}

struct sum {
    int nics;
    double gbps;
    const char *first;
};

static struct sum type_sum(const struct holmes_node_type *t, enum holmes_link_layer link)
{
    struct sum s = {0};

    for (int i = 0; i < t->nnics; i++)
        if (fabric_nic_counts(&t->nics[i], link)) {
            if (s.nics++ == 0)
                s.first = t->nics[i].name;
            s.gbps += t->nics[i].gbps;
        }
    return s;
}

/* Of several kinds the one that is fastest in all; a GPU node's lone RoCE bond is for storage. */
static enum holmes_link_layer type_link(const struct holmes_node_type *t, const char **left_out)
{
    struct sum ib = type_sum(t, HOLMES_LINK_INFINIBAND), roce = type_sum(t, HOLMES_LINK_ETHERNET);

    if (ib.nics == 0 && roce.nics == 0)
        return HOLMES_LINK_UNKNOWN;

    bool infiniband = ib.gbps != roce.gbps ? ib.gbps > roce.gbps : ib.nics >= roce.nics;

    if (ib.nics > 0 && roce.nics > 0)
        *left_out = infiniband ? roce.first : ib.first;
    return infiniband ? HOLMES_LINK_INFINIBAND : HOLMES_LINK_ETHERNET;
}

static void add_new(const char **texts, int *n, const char *text)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(texts[i], text) == 0)
            return;
    texts[(*n)++] = text;
}

static int gids_mask(const char *text)
{
    if (!text)
        return GID_ANY;
    return (strstr(text, "v1-ipv4") ? GID_V1_IPV4 : 0) |
           (strstr(text, "v1-ipv6") ? GID_V1_IPV6 : 0) |
           (strstr(text, "v2-ipv4") ? GID_V2_IPV4 : 0) |
           (strstr(text, "v2-ipv6") ? GID_V2_IPV6 : 0);
}

int fabric_facts_find(const struct holmes_cluster *c, const struct holmes_node_group *g,
                      struct fabric_facts *out)
{
    const struct holmes_node_type *t = &c->types[g->type];
    struct fabric_facts f = {.left_out = NULL};
    bool unknown_speed = false;

    f.link = type_link(t, &f.left_out);
    f.ids = calloc((size_t)t->nnics + 1, sizeof *f.ids);
    f.prefixes = calloc((size_t)t->nnics + 1, sizeof *f.prefixes);
    if (!f.ids || !f.prefixes) {
        fabric_facts_fini(&f);
        return -ENOMEM;
    }
    for (int i = 0; i < t->nnics; i++) {
        const struct holmes_cluster_nic *nic = &t->nics[i];

        if (!fabric_nic_counts(nic, f.link))
            continue;
        f.nics++;
        f.gbps += nic->gbps;
        unknown_speed |= nic->gbps == 0;
        if (nic->fabric && !g->fabric)
            add_new(f.ids, &f.nids, nic->fabric);
        if (f.link == HOLMES_LINK_ETHERNET)
            f.gids |= gids_mask(nic->gids);
        else if (!nic->prefix)
            f.prefix_untold = true;
        else if (holmes_prefix_is_default(nic->prefix))
            f.prefix_default = true;
        else
            add_new(f.prefixes, &f.nprefixes, nic->prefix);
    }
    if (unknown_speed)
        f.gbps = 0;
    if (g->fabric)
        f.ids[f.nids++] = g->fabric;
    *out = f;
    return 0;
}

void fabric_facts_fini(struct fabric_facts *f)
{
    free(f->ids);
    free(f->prefixes);
    f->ids = f->prefixes = NULL;
}

static bool common(const char *const *a, int na, const char *const *b, int nb)
{
    for (int i = 0; i < na; i++)
        for (int k = 0; k < nb; k++)
            if (strcmp(a[i], b[k]) == 0)
                return true;
    return false;
}

enum fabric_relation fabric_relate(const struct fabric_facts *a, const struct fabric_facts *b)
{
    if (a->nids > 0 && b->nids > 0)
        return common(a->ids, a->nids, b->ids, b->nids) ? FABRIC_SAME : FABRIC_APART;
    if (a->link != b->link)
        return FABRIC_APART;
    if (a->link ==
        HOLMES_LINK_UNKNOWN) /* TCP reaches everywhere, but into another's id nobody is put */
        return a->nids == b->nids ? FABRIC_SAME : FABRIC_APART;
    if (a->link == HOLMES_LINK_ETHERNET)
        return (a->gids & b->gids) != 0 ? FABRIC_OPEN : FABRIC_APART;
    if (common(a->prefixes, a->nprefixes, b->prefixes, b->nprefixes))
        return FABRIC_SAME;
    if (a->prefix_untold || b->prefix_untold || (a->prefix_default && b->prefix_default))
        return FABRIC_OPEN;
    return FABRIC_APART;
}

enum fabric_relation fabric_relate_inside(const struct fabric_facts *f)
{
    return fabric_relate(f, f);
}

const char *fabric_facts_text(const struct fabric_facts *f)
{
    if (f->link == HOLMES_LINK_UNKNOWN)
        return "without RDMA";
    if (f->link == HOLMES_LINK_ETHERNET)
        return "RoCE, where addresses do not tell who reaches whom";
    if (f->prefix_default)
        return "InfiniBand with the default subnet prefix fe80::, which tells nothing";
    if (f->prefix_untold)
        return "InfiniBand of which no subnet prefix is told";
    return "InfiniBand";
}
