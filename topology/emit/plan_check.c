/* What the numbers of a plan must be to each other: a plan that contradicts itself would start
 * ranks that wait for each other for ever. */
#include "plan_check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static int check_sizes(const struct holmes_plan_doc *doc, struct holmes_json_reader *r)
{
    const struct holmes_plan *p = doc->plan;
    int64_t batch, world = (int64_t)p->tensor * p->pipeline;

    if (__builtin_mul_overflow(world, p->data, &world) || world != p->world)
        return holmes_json_refuse(
            r, ".world is %" PRId64 ", but tensor %d x data %d x pipeline %d are %" PRId64 " ranks",
            p->world, p->tensor, p->data, p->pipeline, world);
    if (__builtin_mul_overflow((int64_t)p->micro_batch * p->microbatches, p->data, &batch) ||
        batch != doc->request.global_batch)
        return holmes_json_refuse(r,
                                  ".microbatches is %d: with micro_batch %d and data %d that is "
                                  "not the request's global_batch %" PRId64,
                                  p->microbatches, p->micro_batch, p->data,
                                  doc->request.global_batch);
    if (p->nstages != p->pipeline)
        return holmes_json_refuse(r, ".stages has %d entries, but pipeline is %d", p->nstages,
                                  p->pipeline);
    return 0;
}

static const char *node_name(const struct holmes_plan_doc *doc, int node, char *buf, size_t len)
{
    const struct holmes_plan_node *n = &doc->plan->nodes[node];

    return holmes_hostlist_name(&doc->cluster->groups[n->group].hosts, n->host, buf, len);
}

/* One bit for each host of the cluster. */
static int check_used_once(const struct holmes_plan_doc *doc, struct holmes_json_reader *r)
{
    const struct holmes_cluster *c = doc->cluster;
    int64_t *first = calloc((size_t)c->ngroups + 1, sizeof *first);
    char name[HOLMES_HOST_NAME_MAX];
    uint8_t *used;
    int rc = 0;

    if (!first)
        return -ENOMEM;
    for (int i = 0; i < c->ngroups; i++)
        first[i + 1] = first[i] + c->groups[i].hosts.nhosts;
    used = calloc(1, (size_t)first[c->ngroups] / 8 + 1);
    for (int i = 0; used && rc == 0 && i < doc->plan->nnodes; i++) {
        int64_t at = first[doc->plan->nodes[i].group] + doc->plan->nodes[i].host;

        if (used[at / 8] & 1 << at % 8)
            rc = holmes_json_refuse(r, ".nodes has the host %s twice",
                                    node_name(doc, i, name, sizeof name));
        used[at / 8] |= (uint8_t)(1 << at % 8);
    }
    rc = used ? rc : -ENOMEM;
    free(used);
    free(first);
    return rc;
}

static int check_nodes(const struct holmes_plan_doc *doc, struct holmes_json_reader *r)
{
    const struct holmes_plan *p = doc->plan;
    char name[HOLMES_HOST_NAME_MAX];
    int64_t rank = 0;

    for (int i = 0; i < p->nnodes; i++) {
        const struct holmes_plan_node *n = &p->nodes[i];
        const struct holmes_node_group *g = &doc->cluster->groups[n->group];
        int gpus = doc->cluster->types[g->type].gpus;

        node_name(doc, i, name, sizeof name);
        if (g->slots > 0 && g->slots < gpus)
            gpus = g->slots;
        if (n->gpus > gpus)
            return holmes_json_refuse(r, ".nodes uses %d GPUs of %s, which has %d", n->gpus, name,
                                      gpus);
        if (n->gpus % p->tensor != 0)
            return holmes_json_refuse(r, ".nodes uses %d GPUs of %s: no multiple of tensor %d",
                                      n->gpus, name, p->tensor);
        if (doc->fabrics->group_fabric[n->group] < 0)
            return holmes_json_refuse(r, ".nodes uses %s, which is in no fabric", name);
        if (g->state != HOLMES_NODE_OK)
            return holmes_json_refuse(r, ".nodes uses %s, which the cluster calls %s", name,
                                      g->state == HOLMES_NODE_IDLE ? "idle" : "defective");
        if (n->first_rank != rank)
            return holmes_json_refuse(
                r, ".nodes gives %s the first_rank %" PRId64 ", but %" PRId64 " is next", name,
                n->first_rank, rank);
        rank += n->gpus;
    }
    if (rank != p->world)
        return holmes_json_refuse(r, ".nodes have %" PRId64 " ranks, but world is %" PRId64, rank,
                                  p->world);
    return check_used_once(doc, r);
}

static int check_stage(const struct holmes_plan_doc *doc, struct holmes_json_reader *r, int i,
                       int layer)
{
    const struct holmes_plan *p = doc->plan;
    const struct holmes_plan_stage *s = &p->stages[i];
    int64_t first = (int64_t)i * p->tensor * p->data, end = first + (int64_t)p->tensor * p->data;
    int fabric;

    if (s->first_layer != layer)
        return holmes_json_refuse(r, ".stages[%d].first_layer is %d, but layer %d is next", i,
                                  s->first_layer, layer);
    if (s->first_node > s->last_node || s->last_node >= p->nnodes ||
        p->nodes[s->first_node].first_rank > first ||
        p->nodes[s->first_node].first_rank + p->nodes[s->first_node].gpus <= first ||
        p->nodes[s->last_node].first_rank >= end ||
        p->nodes[s->last_node].first_rank + p->nodes[s->last_node].gpus < end)
        return holmes_json_refuse(
            r, ".stages[%d]: nodes %d to %d do not hold its ranks %" PRId64 " to %" PRId64, i,
            s->first_node, s->last_node, first, end - 1);
    fabric = doc->fabrics->group_fabric[p->nodes[s->first_node].group];
    if (s->fabric != fabric)
        return holmes_json_refuse(r,
                                  ".stages[%d].fabric is \"%s\", but its first node is in "
                                  "\"%s\"",
                                  i, doc->fabrics->fabrics[s->fabric].name,
                                  doc->fabrics->fabrics[fabric].name);
    for (int k = s->first_node; !s->crosses && k <= s->last_node; k++)
        if (doc->fabrics->group_fabric[p->nodes[k].group] != fabric)
            return holmes_json_refuse(r,
                                      ".stages[%d] says nothing of crossing, but its nodes are "
                                      "in several fabrics",
                                      i);
    return 0;
}

static int too_many_or_few(const struct holmes_plan_doc *doc, struct holmes_json_reader *r)
{
    return holmes_json_refuse(r, ".stages: their layers do not add up to the model's %d",
                              doc->request.model.layers);
}

static int check_stages(const struct holmes_plan_doc *doc, struct holmes_json_reader *r)
{
    const struct holmes_plan *p = doc->plan;
    int layer = 0, rc;

    for (int i = 0; i < p->nstages; i++) {
        rc = check_stage(doc, r, i, layer);
        if (rc != 0)
            return rc;
        if (p->stages[i].layers > doc->request.model.layers - layer)
            return too_many_or_few(doc, r);
        layer += p->stages[i].layers;
    }
    if (layer != doc->request.model.layers)
        return too_many_or_few(doc, r);
    return 0;
}

static int check_edges(const struct holmes_plan_doc *doc, struct holmes_json_reader *r)
{
    const struct holmes_plan *p = doc->plan;

    if (p->nedges < p->nstages - 1)
        return holmes_json_refuse(r, ".edges: %d of them do not join %d stages", p->nedges,
                                  p->nstages);
    for (int i = 0; i < p->nedges; i++) {
        const struct holmes_plan_edge *e = &p->edges[i];
        bool chain = i < p->nstages - 1 && e->from_stage == i && e->to_stage == i + 1,
             embedding = doc->request.model.tied && p->nstages > 1 && i == p->nstages - 1 &&
                         e->from_stage == i && e->to_stage == 0;

        if (!chain && !embedding)
            return holmes_json_refuse(r,
                                      ".edges[%d] goes from stage %d to %d: neighbours of %d "
                                      "stages are right%s",
                                      i, e->from_stage, e->to_stage, p->nstages,
                                      doc->request.model.tied ? ", and from the last to the first"
                                                              : "");
    }
    return 0;
}

int holmes_plan_check(const struct holmes_plan_doc *doc, struct holmes_json_reader *r)
{
    int rc = check_sizes(doc, r);

    if (rc == 0)
        rc = check_nodes(doc, r);
    if (rc == 0)
        rc = check_stages(doc, r);
    return rc == 0 ? check_edges(doc, r) : rc;
}
