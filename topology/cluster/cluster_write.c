/* From a cluster to the cluster file as it stands. Strings are the cluster's own; numbers and lists
 * are made here. What is unknown or usual is left out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/cluster_yaml.h"
#include "cluster/text.h"

static char version[] = "1";
_Static_assert(HOLMES_CLUSTER_VERSION == 1, "the text above");

static char *number(double n)
{
    char buf[32];

    return strdup(holmes_number_text(n, buf, sizeof buf));
}

/* Of a number whose 0 means unknown. False: no memory. */
static bool known(double n, char **out)
{
    if (n != 0)
        *out = number(n);
    return n == 0 || *out;
}

static bool nic_write(const struct holmes_cluster_nic *nic, struct file_nic *f)
{
    f->name = nic->name;
    f->kind = !nic->rdma                            ? FILE_ETHERNET
              : nic->link == HOLMES_LINK_INFINIBAND ? FILE_INFINIBAND
                                                    : FILE_ROCE;
    f->prefix = nic->prefix;
    f->fabric = nic->fabric;
    if (nic->gids) {
        f->gids = calloc(4, sizeof *f->gids);
        if (!f->gids)
            return false;
        for (int k = 0; k < 4; k++)
            if (strstr(nic->gids, holmes_cluster_gids[k].str))
                f->gids[f->ngids++] = (int)holmes_cluster_gids[k].val;
    }
    if (nic->numa >= 0 && !(f->numa = number(nic->numa)))
        return false;
    return known(nic->gbps, &f->gbps);
}

static bool type_write(const struct holmes_node_type *type, struct file_type *f)
{
    f->name = type->name;
    f->gpu = type->gpu;
    f->gpus = number(type->gpus);
    if (!f->gpus || !known(type->tflops, &f->tflops) || !known(type->memory_gib, &f->memory_gib) ||
        !known(type->intra_gbps, &f->intra_gbps))
        return false;
    if (type->nnics == 0)
        return true;
    f->nics = calloc((size_t)type->nnics, sizeof *f->nics);
    if (!f->nics)
        return false;
    for (int k = 0; k < type->nnics; k++)
        if (!nic_write(&type->nics[k], &f->nics[f->nnics++]))
            return false;
    return true;
}

static bool group_write(const struct holmes_cluster *c, const struct holmes_node_group *g,
                        struct file_nodes *f)
{
    static int states[] = {HOLMES_NODE_OK, HOLMES_NODE_IDLE, HOLMES_NODE_DEFECTIVE};

    f->hosts = holmes_hostlist_text(&g->hosts);
    f->type = c->types[g->type].name;
    f->fabric = g->fabric;
    f->why = g->why;
    if (g->state != HOLMES_NODE_OK)
        f->state = &states[g->state];
    return f->hosts && known(g->slots, &f->slots);
}

static bool link_write(const struct holmes_cluster_link *link, struct file_link *f)
{
    if (link->from && link->to) {
        f->between = calloc(2, sizeof *f->between);
        if (!f->between)
            return false;
        f->between[0] = link->from;
        f->between[1] = link->to;
        f->nbetween = 2;
    }
    return known(link->gbps, &f->gbps) && known(link->node_gbps, &f->node_gbps) &&
           known(link->rtt_ms, &f->rtt_ms);
}

static bool all_write(const struct holmes_cluster *c, struct file_cluster *f)
{
    f->version = version;
    f->name = c->name;
    f->types = calloc((size_t)c->ntypes + 1, sizeof *f->types);
    f->nodes = calloc((size_t)c->ngroups + 1, sizeof *f->nodes);
    if (!f->types || !f->nodes)
        return false;
    for (int i = 0; i < c->ntypes; i++)
        if (!type_write(&c->types[i], &f->types[f->ntypes++]))
            return false;
    for (int i = 0; i < c->ngroups; i++)
        if (!group_write(c, &c->groups[i], &f->nodes[f->nnodes++]))
            return false;
    if (c->nlinks > 0 && !(f->links = calloc((size_t)c->nlinks, sizeof *f->links)))
        return false;
    for (int i = 0; i < c->nlinks; i++)
        if (!link_write(&c->links[i], &f->links[f->nlinks++]))
            return false;
    if (c->nprobes > 0 && !(f->probes = calloc((size_t)c->nprobes, sizeof *f->probes)))
        return false;
    for (int i = 0; i < c->nprobes; i++)
        f->probes[f->nprobes++] =
            (struct file_probe){c->probes[i].from, c->probes[i].to, c->probes[i].reaches};
    return true;
}

int holmes_cluster_to_file(const struct holmes_cluster *c, struct file_cluster **out)
{
    struct file_cluster *f = calloc(1, sizeof *f);

    if (!f)
        return -ENOMEM;
    if (!all_write(c, f)) {
        holmes_cluster_file_free(f);
        return -ENOMEM;
    }
    *out = f;
    return 0;
}

void holmes_cluster_file_free(struct file_cluster *f)
{
    for (unsigned i = 0; i < f->ntypes; i++) {
        struct file_type *t = &f->types[i];

        for (unsigned k = 0; k < t->nnics; k++) {
            free(t->nics[k].gids);
            free(t->nics[k].numa);
            free(t->nics[k].gbps);
        }
        free(t->nics);
        free(t->gpus);
        free(t->tflops);
        free(t->memory_gib);
        free(t->intra_gbps);
    }
    for (unsigned i = 0; i < f->nnodes; i++) {
        free(f->nodes[i].hosts);
        free(f->nodes[i].slots);
    }
    for (unsigned i = 0; i < f->nlinks; i++) {
        free(f->links[i].between);
        free(f->links[i].gbps);
        free(f->links[i].node_gbps);
        free(f->links[i].rtt_ms);
    }
    free(f->types);
    free(f->nodes);
    free(f->links);
    free(f->probes);
    free(f);
}
