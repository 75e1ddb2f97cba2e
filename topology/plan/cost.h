/* The time of one step, from sizes and speeds. Pure; no cluster, no nodes: place.h makes the input.
 *
 * One microbatch takes stage i c_i seconds of forward and backward, and a message between
 * neighbours x_i. Megatron-LM's 1F1B without interleaving sends and receives between the
 * computations, so that a stage's period is c_i + x_(i-1) + x_i, and
 *
 *     step = sum c_i + 2 sum x_i + (microbatches - 1) * longest period
 *            + exposed reduce-scatter + exposed all-gather + tied embedding's all-reduce
 *
 * (Narayanan et al., arXiv 2104.04473, section 2.2, for equal stages: (p - 1)/m of bubble.)
 *
 * A stage's reduce-scatter starts with its last backward and may hide behind it, and behind what
 * the stages before it still have to do in the drain; its all-gather behind its first forward and
 * the fill. That is what Megatron-LM's overlap of the distributed optimizer can hide; the clip of
 * the gradient's norm stands between the two.
 *
 * A ring of reduce-scatter sends (d - 1)/d of its bytes from each rank (Patarasuk and Yuan 2009);
 * rings that leave a node over the same NICs share them; messages likewise. A flow over a slow
 * round trip is capped at window / round trip (design: NCCL keeps 2 MiB under way to a peer), and
 * all flows between two fabrics share their link. */
#ifndef HOLMES_COST_H
#define HOLMES_COST_H

#include "gpt.h"

/* Shares of the told speeds that are reached, fitted: docs/cost-model.md. */
#define HOLMES_COST_COMPUTE 0.565 /* of a GPU's peak, over a whole layer */
#define HOLMES_COST_RDMA    0.41  /* of the NICs' speed, over RDMA */
#define HOLMES_COST_TCP     0.92  /* over TCP */
/* Kept free of a GPU's memory: the driver's context, NCCL's buffers, what the allocator loses. */
#define HOLMES_COST_MEMORY_KEPT 0.06

struct holmes_cost_stage {
    double tflops;     /* per GPU, of the slowest */
    double intra_gbps; /* per GPU inside a node, each way */
    double ring_gbps;  /* one data ring, NICs shared, without what crosses; 0: data is 1 */
    int layers;

    double forward_s, backward_s; /* out: one microbatch */
    double parameters;            /* out: of one GPU */
    double scatter_s, gather_s;   /* out: alone */
    double exposed_s;             /* out: of both, not hidden */
};

struct holmes_cost_edge {
    double
        local_gbps; /* one GPU to its peer inside node or fabric, sharing counted; 0: all cross */

    double message_s; /* out */
    double rtt_ms;    /* out: longest */
};

/* Flows of one stage's rings, or of one edge, over one path between fabrics. */
struct holmes_cost_cross {
    int owner, path;
    double flows;    /* GPU to GPU, each way */
    double gpu_gbps; /* of one flow, as its node's NIC is shared */
};

struct holmes_cost_path {
    double gbps; /* of the whole, each way; 0: no limit of its own */
    double rtt_ms;
};

struct holmes_cost_job {
    const struct holmes_gpt *model;
    int tensor, pipeline, data, micro_batch;
    int microbatches;
    double efficiency;
    bool overlap;
    int64_t window_bytes; /* 0: as much as a flow needs, up to HOLMES_NCCL_WINDOW_MAX */

    int npaths;
    const struct holmes_cost_path *paths;
    double *path_flows; /* scratch [npaths] */

    struct holmes_cost_stage *stages; /* [pipeline] */
    struct holmes_cost_edge *edges;   /* [pipeline]; the last is from the last stage to the first */
    int nedge_crosses, nring_crosses;
    struct holmes_cost_cross *edge_crosses, *ring_crosses;
};

/* Forward and backward of one microbatch on one GPU of the stage: the products of a layer, its
 * tensor group's traffic, the products of the head. */
double holmes_cost_layer_s(const struct holmes_cost_job *job, const struct holmes_cost_stage *s);
double holmes_cost_tensor_s(const struct holmes_cost_job *job, const struct holmes_cost_stage *s);
double holmes_cost_head_s(const struct holmes_cost_job *job, const struct holmes_cost_stage *s);

/* Bytes that a GPU of stage i needs at its peak, with `layers` layers: weights, gradients,
 * optimizer, and the activations of min(microbatches, pipeline - i) microbatches. */
double holmes_cost_memory(const struct holmes_cost_job *job, int stage, int layers);

/* Less than any division of the layers can reach: no microbatch takes less than all its work on the
 * fastest stage, nor follows the one before it sooner than perfectly divided work, or the messages
 * on both sides of a stage, allow. Sets the messages of the edges. */
double holmes_cost_least(struct holmes_cost_job *job);

/* Fills what is marked "out", and *out. `window` (may be NULL): bytes that the crossing flows need
 * under way; 0 where none cross. */
void holmes_cost_step(struct holmes_cost_job *job, struct holmes_plan_cost *out, int64_t *window);

#endif
