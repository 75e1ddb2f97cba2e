/* The slots of each fabric in the order in which stages take them, and the nodes of a result. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "search.h"

/* A sort that carries its speed along: qsort has no argument for the world. */
struct keyed {
    double tflops;
    int at;
    struct holmes_place_node node;
};

static int faster_first(const void *a, const void *b)
{
    const struct keyed *ka = a, *kb = b;

    if (ka->tflops != kb->tflops)
        return ka->tflops > kb->tflops ? -1 : 1;
    return ka->at < kb->at ? -1 : 1;
}

static int pool_sort(const struct holmes_world *w, struct holmes_pool *p)
{
    struct keyed *keyed = malloc(((size_t)p->n + 1) * sizeof(*keyed));

    if (!keyed)
        return -ENOMEM;
    for (int i = 0; i < p->n; i++)
        keyed[i] = (struct keyed){holmes_world_type(w, p->nodes[i].group)->tflops, i, p->nodes[i]};
    qsort(keyed, (size_t)p->n, sizeof(*keyed), faster_first);
    for (int i = 0; i < p->n; i++)
        p->nodes[i] = keyed[i].node;
    free(keyed);
    return 0;
}

static int pool_slots(const struct holmes_world *w, int group, int tensor)
{
    return holmes_world_gpus(w, group) / tensor;
}

int holmes_pools_init(const struct holmes_world *w, int tensor, struct holmes_pool **out)
{
    int nfabrics = w->fabrics->n, ngroups = w->cluster->ngroups;
    struct holmes_pool *pools = calloc((size_t)nfabrics, sizeof(*pools));

    if (!pools)
        return -ENOMEM;
    for (int i = 0; i < ngroups; i++)
        if (pool_slots(w, i, tensor) > 0)
            pools[w->fabrics->group_fabric[i]].n += w->cluster->groups[i].hosts.nhosts;
    for (int i = 0; i < nfabrics; i++) {
        pools[i].nodes = malloc(((size_t)pools[i].n + 1) * sizeof(*pools[i].nodes));
        if (!pools[i].nodes) {
            holmes_pools_fini(pools, nfabrics);
            return -ENOMEM;
        }
        pools[i].n = 0;
    }
    for (int i = 0; i < ngroups; i++) {
        int slots = pool_slots(w, i, tensor), nhosts = w->cluster->groups[i].hosts.nhosts;
        struct holmes_pool *p;

        if (slots == 0) /* and perhaps of no fabric */
            continue;
        p = &pools[w->fabrics->group_fabric[i]];
        assert(p->nodes);
        if (p->n > 0 &&
            holmes_world_type(w, p->nodes[0].group)->tflops != holmes_world_type(w, i)->tflops)
            p->unequal = true;
        for (int host = 0; host < nhosts; host++)
            p->nodes[p->n++] = (struct holmes_place_node){i, host, slots};
        p->slots += (int64_t)slots * nhosts;
    }
    for (int i = 0; i < nfabrics; i++)
        if (pools[i].unequal && pool_sort(w, &pools[i]) != 0) {
            holmes_pools_fini(pools, nfabrics);
            return -ENOMEM;
        }
    *out = pools;
    return 0;
}

void holmes_pools_fini(struct holmes_pool *pools, int n)
{
    if (!pools)
        return;
    for (int i = 0; i < n; i++)
        free(pools[i].nodes);
    free(pools);
}

/* Groups and hosts count in the order of the file. */
static int by_file(const void *a, const void *b)
{
    const struct holmes_place_node *na = a, *nb = b;

    if (na->group != nb->group)
        return na->group < nb->group ? -1 : 1;
    return (na->host > nb->host) - (na->host < nb->host);
}

/* The first nodes of a pool, `slots` slots of them, at `out`; how many nodes. */
static int pool_take(const struct holmes_pool *p, int64_t slots, struct holmes_place_node *out)
{
    int n = 0;

    for (; n < p->n && slots > 0; n++) {
        out[n] = p->nodes[n];
        if (out[n].slots > slots)
            out[n].slots = (int)slots;
        slots -= out[n].slots;
    }
    return n;
}

static void turn(struct holmes_place_node *nodes, int n)
{
    for (int a = 0, b = n - 1; a < b; a++, b--) {
        struct holmes_place_node t = nodes[a];

        nodes[a] = nodes[b];
        nodes[b] = t;
    }
}

/* Puts the parts of a block in their order. 0 or -ENOMEM. */
static int reorder(struct holmes_place_node *nodes, int n, const struct holmes_search_block *b,
                   int data)
{
    int starts[HOLMES_SEARCH_PARTS_MOST + 1] = {0}, nparts = 0, at = 0;
    int64_t slots = 0;
    struct holmes_place_node *was = malloc(((size_t)n + 1) * sizeof(*was));

    if (!was)
        return -ENOMEM;
    memcpy(was, nodes, (size_t)n * sizeof(*was));
    for (int i = 0; i < n; i++) {
        slots += nodes[i].slots;
        if (slots % data == 0)
            starts[++nparts] = i + 1;
    }
    for (int i = 0; i < b->nparts; i++)
        for (int k = starts[b->parts[i]]; k < starts[b->parts[i] + 1]; k++)
            nodes[at++] = was[k];
    free(was);
    return 0;
}

int holmes_search_nodes(const struct holmes_world *w, const struct holmes_search_result *r,
                        struct holmes_place_node **out, int *n)
{
    struct holmes_pool *pools;
    struct holmes_place_node *nodes;
    int64_t left = (int64_t)r->pipeline * r->data;
    size_t all = 0;
    int rc = holmes_pools_init(w, r->tensor, &pools);

    if (rc != 0)
        return rc;
    for (int i = 0; i < w->fabrics->n; i++)
        all += (size_t)pools[i].n;
    nodes = malloc((all + 1) * sizeof(*nodes));
    *n = 0;
    for (int i = 0; nodes && i < r->nblocks; i++) {
        const struct holmes_search_block *b = &r->blocks[i];
        int64_t slots = r->crosses ? left : (int64_t)b->stages * r->data;
        int taken = pool_take(&pools[b->fabric], slots, nodes + *n);

        for (int k = 0; k < taken; k++)
            left -= nodes[*n + k].slots;
        if (!r->crosses && b->stages == 1)
            qsort(nodes + *n, (size_t)taken, sizeof(*nodes), by_file);
        else if (b->slowest_first)
            turn(nodes + *n, taken);
        else if (b->nparts > 1)
            rc = reorder(nodes + *n, taken, b, r->data);
        *n += taken;
    }
    holmes_pools_fini(pools, w->fabrics->n);
    if (!nodes || rc != 0) {
        free(nodes);
        return -ENOMEM;
    }
    *out = nodes;
    return 0;
}
