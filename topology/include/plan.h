/* Which GPU does what: sizes of the three dimensions, order of the nodes, layers of every stage,
 * and what that costs per step. A pure, deterministic function of a cluster and a model.
 *
 * Ranks are numbered as Megatron-LM numbers them: rank = tensor + t * (data + d * stage). A *slot*
 * is a tensor group: t GPUs of one node. Stages are runs of d slots; all slots of a stage lie in
 * one fabric unless the user allowed a crossing.
 */
#ifndef HOLMES_PLAN_H
#define HOLMES_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cluster.h"
#include "gpt_model.h"

/* What NCCL keeps under way to one peer unless told otherwise, and what a plan asks for at most. */
#define HOLMES_NCCL_WINDOW     ((int64_t)2 << 20)
#define HOLMES_NCCL_WINDOW_MAX ((int64_t)64 << 20)

struct holmes_plan_request {
    struct holmes_gpt model;
    int64_t global_batch;       /* sequences per step */
    int micro_batch;            /* sequences; 0: chosen */
    int tensor, pipeline, data; /* 0: chosen */
    bool allow_cross;           /* data groups may straddle fabrics: warned of, not refused */
    bool no_overlap;   /* the data groups' traffic does not hide behind compute: Megatron-LM without
                          --overlap-grad-reduce and --overlap-param-gather */
    double efficiency; /* of the GPUs' tflops that a layer reaches; 0: the model's own (cost.h) */
    int64_t window_bytes; /* of NCCL per peer; 0: what the slowest crossing link needs, which emit
                             sets; HOLMES_NCCL_WINDOW: NCCL left alone */
};

/* One node's part in rank order. Ranks of a node are consecutive. */
struct holmes_plan_node {
    int group, host; /* of the cluster: host `host` of group `group` */
    int gpus;        /* used: a multiple of `tensor` */
    int64_t first_rank;
};

struct holmes_plan_stage {
    int fabric;   /* of its slots; of the first where it crosses */
    bool crosses; /* its data groups straddle fabrics */
    int first_layer, layers;
    int first_node, last_node; /* of plan nodes, both included; neighbouring stages may share one */
    double tflops;             /* per GPU, of its slowest */
    double compute_s;          /* forward and backward of one microbatch */
    double memory_gib;         /* per GPU, at its peak */
    double memory_limit_gib;   /* of its smallest GPU; 0: unknown */
    double data_bytes;         /* reduce-scatter and all-gather: sent per GPU and step */
    double data_s;             /* not hidden behind compute */
};

/* From stage i to i + 1 (and, tied, the embedding from last to first). */
struct holmes_plan_edge {
    int from_stage, to_stage;
    bool crosses; /* fabrics */
    double bytes; /* per step, all replicas, each way */
    double gbps;  /* what the replicas together get, each way, window and sharing counted */
    double rtt_ms;
    double message_s; /* of one microbatch */
};

struct holmes_plan_idle {
    int group, first_host, nhosts;
    int gpus; /* per host, idle */
    char *reason;
};

struct holmes_plan_cost {
    double step_s, compute_s, bubble_s, pipeline_comm_s, data_comm_s, embedding_s;
    double tflops_per_gpu; /* model FLOPs (Megatron's formula) per second and used GPU */
    double cross_bytes;    /* per step over links between fabrics, each way added */
};

struct holmes_plan {
    int tensor, pipeline, data, micro_batch, microbatches;
    int64_t world;
    int nnodes;
    struct holmes_plan_node *nodes; /* in rank order */
    int nstages;                    /* pipeline */
    struct holmes_plan_stage *stages;
    int nedges;
    struct holmes_plan_edge *edges;
    int nidle;
    struct holmes_plan_idle *idle;
    struct holmes_plan_cost cost;
    struct holmes_plan_cost
        naive;            /* same sizes, nodes in file order, layers even; step_s 0: none */
    int64_t window_bytes; /* per peer, that the crossing links need: bandwidth x round trip, at most
                             HOLMES_NCCL_WINDOW_MAX; 0: nothing crosses */
    int nnotes;
    char **notes; /* for people: choices made and why (--explain), warnings */
};

/* 0; -EINVAL when no plan meets the request, with a sentence in `why` that says what stands against
 * it and what would help; -ENOMEM. */
int holmes_plan_build(const struct holmes_cluster *c, const struct holmes_fabrics *f,
                      const struct holmes_plan_request *req, struct holmes_plan **out, char *why,
                      size_t why_len);
void holmes_plan_destroy(struct holmes_plan *p);

/* --- the plan as text: one JSON document that stands alone -------------------------------------
 */

/* A plan and what it was made from; a plan that was read has of the cluster only what the plan
 * needs (no probes, no NICs that are on no fabric). */
struct holmes_plan_doc {
    struct holmes_cluster *cluster;
    struct holmes_fabrics *fabrics;
    struct holmes_plan_request request;
    struct holmes_plan *plan;
};

/* Writes JSON, with host names as ranges: 80,000 ranks on equal nodes are a few lines. 0 or a
 * negative errno. */
int holmes_plan_write(const struct holmes_plan_doc *doc, FILE *out);
/* Reads it back; equal in all fields that emit, draw and check use. Errors as holmes_cluster_read;
 * a plan that contradicts itself (ranks missing, stages without layers) is refused. */
int holmes_plan_read(const char *path, struct holmes_plan_doc *out, char *why, size_t why_len);
int holmes_plan_parse(const char *name, const void *data, size_t len, struct holmes_plan_doc *out,
                      char *why, size_t why_len);
void holmes_plan_doc_fini(struct holmes_plan_doc *doc);

#endif
