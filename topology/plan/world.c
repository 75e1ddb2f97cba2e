/* See world.h. */
#include "world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int holmes_world_gpus(const struct holmes_world *w, int group)
{
    const struct holmes_node_group *g = &w->cluster->groups[group];
    int gpus = w->cluster->types[g->type].gpus;

    if (g->state != HOLMES_NODE_OK)
        return 0;
    return g->slots > 0 && g->slots < gpus ? g->slots : gpus;
}

static double ethernet_gbps(const struct holmes_node_type *t)
{
    double plain = 0, roce = 0;

    for (int i = 0; i < t->nnics; i++) {
        const struct holmes_cluster_nic *nic = &t->nics[i];

        if (!nic->rdma && nic->gbps > plain)
            plain = nic->gbps;
        if (nic->rdma && nic->link == HOLMES_LINK_ETHERNET && nic->gbps > roce)
            roce = nic->gbps;
    }
    return plain > 0 ? plain : roce;
}

static bool type_is_used(const struct holmes_world *w, int type)
{
    for (int i = 0; i < w->cluster->ngroups; i++)
        if (w->cluster->groups[i].type == type && holmes_world_gpus(w, i) > 0)
            return true;
    return false;
}

static int types_init(struct holmes_world *w, bool crossing, struct holmes_text_list *notes,
                      char *why, size_t why_len)
{
    const struct holmes_cluster *c = w->cluster;
    const struct holmes_node_type *told = NULL, *untold = NULL;

    for (int i = 0; i < c->ntypes; i++) {
        const struct holmes_node_type *t = &c->types[i];
        struct holmes_world_type *out = &w->types[i];

        out->tflops = t->tflops > 0 ? t->tflops : HOLMES_WORLD_TFLOPS;
        out->memory_gib = t->memory_gib;
        out->intra_gbps = t->intra_gbps > 0 ? t->intra_gbps : HOLMES_WORLD_INTRA_GBPS;
        out->ethernet_gbps = ethernet_gbps(t);
        if (t->gpus > 0 && type_is_used(w, i)) {
            if (t->tflops > 0)
                told = t;
            else
                untold = t;
            if (t->gpus > 1 && t->intra_gbps <= 0)
                holmes_text_add(notes,
                                "node type %s: intra-gbps is not told; its GPUs are taken to reach "
                                "each other at %.0f Gb/s",
                                t->name, HOLMES_WORLD_INTRA_GBPS);
            if (t->memory_gib <= 0)
                holmes_text_add(
                    notes,
                    "node type %s: memory-gib is not told; whether the model fits is not checked",
                    t->name);
            if (crossing && out->ethernet_gbps <= 0)
                holmes_text_add(
                    notes,
                    "node type %s: no Ethernet NIC with a speed is told; it is taken as "
                    "%.0f Gb/s",
                    t->name, HOLMES_WORLD_ETH_GBPS);
        }
        if (out->ethernet_gbps <= 0)
            out->ethernet_gbps = HOLMES_WORLD_ETH_GBPS;
        out->ethernet_gbps *= HOLMES_COST_TCP;
    }
    if (told && untold) {
        snprintf(why, why_len,
                 "node type %s has tflops %g and %s has none: give both, or neither (then all GPUs "
                 "count as equal)",
                 told->name, told->tflops, untold->name);
        return -EINVAL;
    }
    if (untold)
        holmes_text_add(notes,
                        "tflops are not told: all GPUs count as equal, and times are those of GPUs "
                        "with %.0f TFLOPS",
                        HOLMES_WORLD_TFLOPS);
    return 0;
}

static void fabrics_init(struct holmes_world *w, struct holmes_text_list *notes)
{
    for (int i = 0; i < w->fabrics->n; i++) {
        const struct holmes_fabric *f = &w->fabrics->fabrics[i];
        double gbps = f->gbps;

        if (gbps <= 0) {
            gbps = f->rdma ? HOLMES_WORLD_RDMA_GBPS : HOLMES_WORLD_ETH_GBPS;
            holmes_text_add(notes,
                            "fabric %s: the speed of its NICs is not told; %.0f Gb/s per node is "
                            "assumed",
                            f->name, gbps);
        }
        w->fabric_gbps[i] = gbps * (f->rdma ? HOLMES_COST_RDMA : HOLMES_COST_TCP);
    }
}

static int fabric_named(const struct holmes_fabrics *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->fabrics[i].name, name) == 0)
            return i;
    return -1;
}

/* Which link joins each two fabrics: their own, else the one for all pairs, else `untold`. */
static void paths_find(struct holmes_world *w, int untold)
{
    const struct holmes_cluster *c = w->cluster;
    int n = w->fabrics->n, any = untold;

    for (int i = 0; i < c->nlinks && any == untold; i++)
        if (!c->links[i].from)
            any = i;
    for (size_t i = 0; i < (size_t)n * (size_t)n; i++)
        w->path[i] = any;
    for (int i = 0; i < c->nlinks; i++) {
        int a, b;

        if (!c->links[i].from)
            continue;
        a = fabric_named(w->fabrics, c->links[i].from);
        b = fabric_named(w->fabrics, c->links[i].to);
        if (a >= 0 && b >= 0)
            w->path[(size_t)a * n + b] = w->path[(size_t)b * n + a] = i;
    }
}

/* One sentence, however many fabrics there are. */
static void note_untold(const struct holmes_world *w, int untold, struct holmes_text_list *notes)
{
    const struct holmes_fabrics *f = w->fabrics;
    const char *first = NULL, *second = NULL;
    int64_t pairs = 0;
    char others[48] = "";

    for (int a = 0; a < f->n; a++)
        for (int b = a + 1; b < f->n; b++)
            if (w->path[(size_t)a * f->n + b] == untold && pairs++ == 0) {
                first = f->fabrics[a].name;
                second = f->fabrics[b].name;
            }
    if (pairs > 1)
        snprintf(others, sizeof(others), " (and %lld other pairs)", (long long)pairs - 1);
    if (pairs > 0)
        holmes_text_add(notes,
                        "no link between fabrics %s and %s%s is told: the nodes' own Ethernet NICs "
                        "and %g ms of round trip are assumed",
                        first, second, others, HOLMES_WORLD_RTT_MS);
}

static void paths_init(struct holmes_world *w, struct holmes_text_list *notes)
{
    const struct holmes_cluster *c = w->cluster;
    int untold = c->nlinks;

    for (int i = 0; i < c->nlinks; i++) {
        w->paths[i].gbps = c->links[i].gbps * HOLMES_COST_TCP;
        w->paths[i].rtt_ms = c->links[i].rtt_ms > 0 ? c->links[i].rtt_ms : HOLMES_WORLD_RTT_MS;
        w->path_node_gbps[i] = c->links[i].node_gbps * HOLMES_COST_TCP;
    }
    w->paths[untold].rtt_ms = HOLMES_WORLD_RTT_MS;
    paths_find(w, untold);
    note_untold(w, untold, notes);
}

int holmes_world_init(struct holmes_world *w, const struct holmes_cluster *c,
                      const struct holmes_fabrics *f, struct holmes_text_list *notes, char *why,
                      size_t why_len)
{
    int rc;

    memset(w, 0, sizeof(*w));
    w->cluster = c;
    w->fabrics = f;
    w->npaths = c->nlinks + 1;
    w->types = calloc((size_t)c->ntypes + 1, sizeof(*w->types));
    w->fabric_gbps = calloc((size_t)f->n + 1, sizeof(*w->fabric_gbps));
    w->paths = calloc((size_t)w->npaths, sizeof(*w->paths));
    w->path_node_gbps = calloc((size_t)w->npaths, sizeof(*w->path_node_gbps));
    w->path = calloc((size_t)f->n * (size_t)f->n + 1, sizeof(*w->path));
    if (!w->types || !w->fabric_gbps || !w->paths || !w->path_node_gbps || !w->path) {
        holmes_world_fini(w);
        return -ENOMEM;
    }
    rc = types_init(w, f->n > 1, notes, why, why_len);
    if (rc != 0) {
        holmes_world_fini(w);
        return rc;
    }
    fabrics_init(w, notes);
    paths_init(w, notes);
    for (int i = 0; i < c->ngroups; i++) {
        int gpus = holmes_world_gpus(w, i);
        double tflops = holmes_world_type(w, i)->tflops;

        w->gpus += (int64_t)gpus * c->groups[i].hosts.nhosts;
        if (gpus > w->most_gpus)
            w->most_gpus = gpus;
        if (gpus > 0 && tflops > w->most_tflops)
            w->most_tflops = tflops;
    }
    return 0;
}

void holmes_world_fini(struct holmes_world *w)
{
    free(w->types);
    free(w->fabric_gbps);
    free(w->paths);
    free(w->path_node_gbps);
    free(w->path);
    memset(w, 0, sizeof(*w));
}
