/* The cluster as the cost model sees it: speeds with nothing left unknown, paths between fabrics,
 * the nodes that may be used. What had to be assumed becomes a note. */
#ifndef HOLMES_WORLD_H
#define HOLMES_WORLD_H

#include "cost.h"
#include "text_list.h"

/* Where the cluster does not tell. */
#define HOLMES_WORLD_TFLOPS     100.0 /* of all GPUs alike */
#define HOLMES_WORLD_INTRA_GBPS 200.0 /* PCIe 4.0 x16, as protocol overhead leaves it */
#define HOLMES_WORLD_RDMA_GBPS  100.0
#define HOLMES_WORLD_ETH_GBPS   10.0
#define HOLMES_WORLD_RTT_MS     0.1

struct holmes_world_type {
    double tflops, memory_gib, intra_gbps;
    double ethernet_gbps; /* of the node's fastest, as TCP reaches it */
};

struct holmes_world {
    const struct holmes_cluster *cluster;
    const struct holmes_fabrics *fabrics;
    struct holmes_world_type *types; /* [ntypes of the cluster] */
    double *fabric_gbps;             /* [n of fabrics]: of a node, as its wire reaches it */
    int npaths;                      /* one per link, and one for what no link tells */
    struct holmes_cost_path *paths;
    double *path_node_gbps; /* [npaths]; 0: the node's own Ethernet */
    int *path;              /* [n * n of fabrics]: index of the path between two */
    int most_gpus;          /* of a usable node */
    double most_tflops;     /* per GPU, of a usable node */
    int64_t gpus;           /* usable */
};

/* 0; -EINVAL with a sentence in `why`; -ENOMEM. `notes` gets what was assumed. */
int holmes_world_init(struct holmes_world *w, const struct holmes_cluster *c,
                      const struct holmes_fabrics *f, struct holmes_text_list *notes, char *why,
                      size_t why_len);
void holmes_world_fini(struct holmes_world *w);

static inline const struct holmes_world_type *holmes_world_type(const struct holmes_world *w,
                                                                int group)
{
    return &w->types[w->cluster->groups[group].type];
}

/* GPUs of a group's host that may be used; 0: none. */
int holmes_world_gpus(const struct holmes_world *w, int group);

#endif
