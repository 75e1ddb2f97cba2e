/* Plans built by hand, for the tests of what is done with a plan. The caller ends them with
 * holmes_plan_doc_fini. */
#ifndef HOLMES_TEST_PLANS_H
#define HOLMES_TEST_PLANS_H

#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "plan.h"

/* One run of hosts in one fabric. */
struct plan_part {
    const char *hosts; /* as in a cluster file */
    int gpus;          /* of each */
    const char *fabric;
    enum holmes_link_layer link; /* UNKNOWN: Ethernet without RDMA */
    bool told;                   /* the user gave the fabric's id */
};

struct plan_shape {
    const char *model;
    int layers, tensor, pipeline, data;
    const int *stage_layers;
    bool tied;
    double rtt_ms, gbps; /* of links between fabrics */
    int64_t window_bytes;
};

static inline char *plan_text(const char *text)
{
    return text ? strdup(text) : NULL;
}

static inline void plan_add_part(struct holmes_plan_doc *doc, const struct plan_part *part)
{
    struct holmes_cluster *c = doc->cluster;
    struct holmes_fabrics *f = doc->fabrics;
    struct holmes_node_type *type = &c->types[c->ntypes];
    struct holmes_node_group *group = &c->groups[c->ngroups];
    char name[32], why[256];
    int at = 0;

    snprintf(name, sizeof name, "type%d", c->ntypes);
    *type = (struct holmes_node_type){.name = strdup(name),
                                      .gpus = part->gpus,
                                      .gpu = strdup("A100-SXM4-80GB"),
                                      .tflops = 312,
                                      .memory_gib = 80,
                                      .intra_gbps = 2400,
                                      .nnics = 2};
    type->nics = calloc(2, sizeof *type->nics);
    type->nics[0] = (struct holmes_cluster_nic){.name = strdup("eth0"), .gbps = 25, .numa = -1};
    type->nics[1] = (struct holmes_cluster_nic){.name = strdup("mlx5_0"),
                                                .rdma = part->link != HOLMES_LINK_UNKNOWN,
                                                .link = part->link,
                                                .gbps = 200,
                                                .numa = 0};
    *group = (struct holmes_node_group){.type = c->ntypes,
                                        .fabric = part->told ? strdup(part->fabric) : NULL};
    cr_assert(holmes_hostlist_parse(part->hosts, &group->hosts, why, sizeof why) == 0, "%s", why);
    while (at < f->n && strcmp(f->fabrics[at].name, part->fabric) != 0)
        at++;
    if (at == f->n)
        f->fabrics[f->n++] = (struct holmes_fabric){.name = strdup(part->fabric),
                                                    .rdma = part->link != HOLMES_LINK_UNKNOWN,
                                                    .link = part->link,
                                                    .nics = 1,
                                                    .gbps = 200,
                                                    .reason = strdup("the test says so")};
    f->group_fabric[c->ngroups] = at;
    c->ntypes++;
    c->ngroups++;
}

/* All hosts in file order, which the caller gives in the plan's order. */
static inline void plan_add_nodes(struct holmes_plan_doc *doc)
{
    struct holmes_plan *p = doc->plan;
    int64_t rank = 0;

    for (int g = 0; g < doc->cluster->ngroups; g++)
        p->nnodes += doc->cluster->groups[g].hosts.nhosts;
    p->nodes = calloc((size_t)p->nnodes, sizeof *p->nodes);
    p->nnodes = 0;
    for (int g = 0; g < doc->cluster->ngroups; g++) {
        int gpus = doc->cluster->types[doc->cluster->groups[g].type].gpus;

        gpus -= gpus % p->tensor;
        for (int h = 0; h < doc->cluster->groups[g].hosts.nhosts && rank < p->world; h++) {
            if (gpus > p->world - rank)
                gpus = (int)(p->world - rank);
            p->nodes[p->nnodes++] = (struct holmes_plan_node){g, h, gpus, rank};
            rank += gpus;
        }
    }
    cr_assert(rank == p->world, "the test's hosts have %d GPUs", (int)rank);
}

static inline int plan_node_of(const struct holmes_plan *p, int64_t rank)
{
    int i = 0;

    while (i + 1 < p->nnodes && p->nodes[i + 1].first_rank <= rank)
        i++;
    return i;
}

static inline void plan_add_stages(struct holmes_plan_doc *doc, const struct plan_shape *shape)
{
    struct holmes_plan *p = doc->plan;
    int64_t per_stage = (int64_t)p->tensor * p->data;
    int layer = 0;

    p->nstages = p->pipeline;
    p->stages = calloc((size_t)p->nstages, sizeof *p->stages);
    p->edges = calloc((size_t)p->nstages, sizeof *p->edges);
    for (int i = 0; i < p->nstages; i++) {
        struct holmes_plan_stage *s = &p->stages[i];
        int first = plan_node_of(p, i * per_stage), last = plan_node_of(p, (i + 1) * per_stage - 1);

        *s = (struct holmes_plan_stage){
            .fabric = doc->fabrics->group_fabric[p->nodes[first].group],
            .first_layer = layer,
            .layers = shape->stage_layers[i],
            .first_node = first,
            .last_node = last,
            .tflops = 140.4,
            .compute_s = 0.1 * shape->stage_layers[i],
            .memory_gib = 41.3,
            .memory_limit_gib = 80,
            .data_bytes = 3.6e8 * shape->stage_layers[i],
            .data_s = 0.004,
        };
        for (int k = first; k <= last; k++)
            s->crosses |= doc->fabrics->group_fabric[p->nodes[k].group] != s->fabric;
        layer += s->layers;
    }
    for (int i = 0; i + 1 < p->nstages + (shape->tied && p->nstages > 1); i++) {
        bool back = i + 1 == p->nstages;
        struct holmes_plan_edge *e = &p->edges[p->nedges++];

        *e = (struct holmes_plan_edge){.from_stage = i,
                                       .to_stage = back ? 0 : i + 1,
                                       .bytes = back ? 6e8 : 3.2e9,
                                       .message_s = 0.002};
        e->crosses = p->stages[e->from_stage].fabric != p->stages[e->to_stage].fabric;
        e->gbps = e->crosses ? shape->gbps : 200;
        e->rtt_ms = e->crosses ? shape->rtt_ms : 0.01;
    }
}

static inline struct holmes_plan_doc plan_make(const struct plan_shape *shape,
                                               const struct plan_part *parts, int nparts)
{
    struct holmes_plan_doc doc = {.cluster = calloc(1, sizeof *doc.cluster),
                                  .fabrics = calloc(1, sizeof *doc.fabrics),
                                  .plan = calloc(1, sizeof *doc.plan)};
    struct holmes_cluster *c = doc.cluster;
    struct holmes_plan *p = doc.plan;

    c->name = strdup("two floors");
    c->types = calloc((size_t)nparts, sizeof *c->types);
    c->groups = calloc((size_t)nparts, sizeof *c->groups);
    c->links = calloc(1, sizeof *c->links);
    c->links[c->nlinks++] =
        (struct holmes_cluster_link){.gbps = shape->gbps, .rtt_ms = shape->rtt_ms};
    doc.fabrics->fabrics = calloc((size_t)nparts, sizeof *doc.fabrics->fabrics);
    doc.fabrics->group_fabric = calloc((size_t)nparts, sizeof *doc.fabrics->group_fabric);
    for (int i = 0; i < nparts; i++)
        plan_add_part(&doc, &parts[i]);
    doc.request = (struct holmes_plan_request){
        .model = {.layers = shape->layers,
                  .hidden = 3072,
                  .heads = 32,
                  .sequence = 2048,
                  .vocabulary = 51200,
                  .tied = shape->tied,
                  .recompute = true,
                  .distributed_optimizer = true,
                  .bytes_per_weight = 2},
        .global_batch = 4LL * 24 * shape->data,
    };
    snprintf(doc.request.model.name, sizeof doc.request.model.name, "%s", shape->model);
    *p = (struct holmes_plan){.tensor = shape->tensor,
                              .pipeline = shape->pipeline,
                              .data = shape->data,
                              .micro_batch = 4,
                              .microbatches = 24,
                              .world = (int64_t)shape->tensor * shape->pipeline * shape->data,
                              .window_bytes = shape->window_bytes};
    plan_add_nodes(&doc);
    plan_add_stages(&doc, shape);
    p->cost = (struct holmes_plan_cost){.step_s = 8.25,
                                        .compute_s = 6.5,
                                        .bubble_s = 0.5,
                                        .pipeline_comm_s = 1,
                                        .data_comm_s = 0.25,
                                        .tflops_per_gpu = 140.4,
                                        .cross_bytes = 6.4e9};
    p->naive = p->cost;
    p->naive.step_s = 21.5;
    p->naive.data_comm_s = 13.5;
    p->naive.cross_bytes = 9.3e10;
    return doc;
}

#endif
