/* Nodes in order, cut into stages, and what the cost model needs to know of them. */
#ifndef HOLMES_PLACE_H
#define HOLMES_PLACE_H

#include "world.h"

struct holmes_place_node {
    int group, host;
    int slots; /* tensor groups used */
};

/* `data` slots in a row. Node indices are of the array that was walked. */
struct holmes_place_stage {
    int fabric;   /* of its first slot */
    bool crosses; /* its slots lie in several fabrics */
    int first_node, last_node;
    int most_slots;                                                    /* of it on one node */
    double tflops, memory_gib, intra_gbps, ethernet_gbps, fabric_gbps; /* least of its nodes */
};

/* Cuts the slots of `nodes` into `n` stages of `data` slots; the nodes have enough. */
void holmes_place_walk(const struct holmes_world *w, const struct holmes_place_node *nodes,
                       int data, int n, struct holmes_place_stage *out);

/* A cost job and the memory behind it, for up to `most_stages` stages; used again and again. */
struct holmes_place_job {
    struct holmes_cost_job job;
    int edge_capacity, ring_capacity;
};

int holmes_place_job_init(struct holmes_place_job *j, const struct holmes_world *w,
                          const struct holmes_plan_request *req, int most_stages);
void holmes_place_job_fini(struct holmes_place_job *j);

/* Fills speeds, rings and edges of the job from its stages; sizes (tensor, pipeline, data) are set.
 * `nodes` may be NULL where no stage crosses fabrics. 0 or -ENOMEM. */
int holmes_place_cost(struct holmes_place_job *j, const struct holmes_world *w,
                      const struct holmes_place_stage *stages,
                      const struct holmes_place_node *nodes);

#endif
