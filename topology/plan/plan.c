/* Makes the plan of what the search found: nodes with their ranks, stages, edges, costs, the naive
 * order to compare with, notes. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "idle.h"
#include "search.h"

/* --- building -------------------------------------------------------------------------------- */

static int nodes_set(struct holmes_plan *p, const struct holmes_place_node *nodes, int n)
{
    int64_t rank = 0;

    p->nodes = calloc((size_t)n, sizeof(*p->nodes));
    if (!p->nodes)
        return -ENOMEM;
    for (int i = 0; i < n; i++) {
        int gpus = nodes[i].slots * p->tensor;

        p->nodes[i] = (struct holmes_plan_node){nodes[i].group, nodes[i].host, gpus, rank};
        rank += gpus;
    }
    p->nnodes = n;
    p->world = rank;
    return 0;
}

static void stages_set(struct holmes_plan *p, const struct holmes_cost_job *job,
                       const struct holmes_place_stage *places)
{
    int layer = 0;

    for (int i = 0; i < p->pipeline; i++) {
        const struct holmes_cost_stage *s = &job->stages[i];
        double parameters = s->parameters;

        p->stages[i] = (struct holmes_plan_stage){
            .fabric = places[i].fabric,
            .crosses = places[i].crosses,
            .first_layer = layer,
            .layers = s->layers,
            .first_node = places[i].first_node,
            .last_node = places[i].last_node,
            .tflops = places[i].tflops,
            .compute_s = s->forward_s + s->backward_s,
            .memory_gib = holmes_cost_memory(job, i, s->layers) / (double)(1 << 30),
            .memory_limit_gib = places[i].memory_gib,
            .data_bytes = holmes_gpt_scatter_bytes(job->model, parameters, job->data) +
                          holmes_gpt_gather_bytes(job->model, parameters, job->data),
            .data_s = s->exposed_s,
        };
        layer += s->layers;
    }
}

static bool edge_crosses(const struct holmes_cost_job *job, int edge)
{
    for (int i = 0; i < job->nedge_crosses; i++)
        if (job->edge_crosses[i].owner == edge)
            return true;
    return false;
}

static void edges_set(struct holmes_plan *p, const struct holmes_cost_job *job)
{
    const struct holmes_gpt *g = job->model;
    double flows = (double)job->data * job->tensor;
    double message = holmes_gpt_message_bytes(g, job->micro_batch, job->tensor);
    bool tied = p->pipeline > 1 && g->tied && g->vocabulary > 0;

    p->nedges = p->pipeline - 1 + tied;
    for (int i = 0; i < p->nedges; i++) {
        const struct holmes_cost_edge *e = &job->edges[i];
        bool closing = i == p->pipeline - 1;
        double bytes = closing ? holmes_gpt_embedding_bytes(g, job->tensor) : message;
        double moving_s = e->message_s - e->rtt_ms / 2e3;

        p->edges[i] = (struct holmes_plan_edge){
            .from_stage = i,
            .to_stage = closing ? 0 : i + 1,
            .crosses = edge_crosses(job, i),
            .bytes = bytes * flows * (closing ? 1 : job->microbatches),
            .gbps = moving_s > 0 ? bytes * flows * 8 / moving_s / 1e9 : 0,
            .rtt_ms = e->rtt_ms,
            .message_s = e->message_s,
        };
    }
}

static int plan_fill(struct holmes_plan *p, const struct holmes_world *w,
                     const struct holmes_plan_request *req, const struct holmes_place_node *nodes,
                     int n)
{
    struct holmes_place_stage *places = calloc((size_t)p->pipeline, sizeof(*places));
    struct holmes_place_job j = {0};
    int rc = holmes_place_job_init(&j, w, req, p->pipeline);

    p->nstages = p->pipeline;
    p->stages = calloc((size_t)p->pipeline, sizeof(*p->stages));
    p->edges = calloc((size_t)p->pipeline, sizeof(*p->edges));
    if (!places || !p->stages || !p->edges)
        rc = -ENOMEM;
    if (rc == 0)
        rc = nodes_set(p, nodes, n);
    if (rc == 0) {
        j.job.tensor = p->tensor;
        j.job.pipeline = p->pipeline;
        j.job.data = p->data;
        j.job.micro_batch = p->micro_batch;
        j.job.microbatches = p->microbatches;
        holmes_place_walk(w, nodes, p->data, p->pipeline, places);
        rc = holmes_place_cost(&j, w, places, nodes);
    }
    if (rc == 0)
        rc = holmes_search_layers(&j.job, places, &p->cost, &p->window_bytes);
    if (rc == 0) {
        stages_set(p, &j.job, places);
        edges_set(p, &j.job);
    }
    holmes_place_job_fini(&j);
    free(places);
    return rc;
}

/* --- the naive order ------------------------------------------------------------------------- */

/* The nodes as the file has them, layers even: what a job does that nobody planned. Nothing where
 * the file's order is the plan's. */
static int naive_cost(struct holmes_plan *p, const struct holmes_world *w,
                      const struct holmes_plan_request *req)
{
    const struct holmes_cluster *c = w->cluster;
    int64_t left = (int64_t)p->pipeline * p->data;
    struct holmes_place_stage *places = calloc((size_t)p->pipeline, sizeof(*places));
    struct holmes_place_node *nodes;
    struct holmes_place_job j = {0};
    int n = 0, all = 0, rc;

    for (int i = 0; i < c->ngroups; i++)
        all += holmes_world_gpus(w, i) >= p->tensor ? c->groups[i].hosts.nhosts : 0;
    nodes = malloc(((size_t)all + 1) * sizeof(*nodes));
    rc = places && nodes ? holmes_place_job_init(&j, w, req, p->pipeline) : -ENOMEM;
    for (int i = 0; rc == 0 && i < c->ngroups; i++) {
        int slots = holmes_world_gpus(w, i) / p->tensor;

        for (int k = 0; slots > 0 && k < c->groups[i].hosts.nhosts && left > 0; k++) {
            nodes[n++] = (struct holmes_place_node){i, k, left < slots ? (int)left : slots};
            left -= slots;
        }
    }
    if (rc == 0) {
        j.job.tensor = p->tensor;
        j.job.pipeline = p->pipeline;
        j.job.data = p->data;
        j.job.micro_batch = p->micro_batch;
        j.job.microbatches = p->microbatches;
        holmes_place_walk(w, nodes, p->data, p->pipeline, places);
        rc = holmes_place_cost(&j, w, places, nodes);
    }
    if (rc == 0) {
        holmes_search_even(&j.job);
        holmes_cost_step(&j.job, &p->naive, NULL);
    }
    holmes_place_job_fini(&j);
    free(places);
    free(nodes);
    return rc;
}

/* --- notes ----------------------------------------------------------------------------------- */

static void note_sizes(struct holmes_text_list *notes, const struct holmes_plan *p,
                       const struct holmes_plan_request *req, const struct holmes_search_result *r)
{
    if (req->tensor == 0 || req->pipeline == 0 || req->data == 0 || req->micro_batch == 0)
        holmes_text_add(notes,
                        "tensor %d, pipeline %d, data %d, microbatch %d: the least step time of %d "
                        "placements compared",
                        p->tensor, p->pipeline, p->data, p->micro_batch, r->considered);
    if (req->data == 0 && r->room > p->data)
        holmes_text_add(
            notes,
            "data %lld would fit, but the batch of %lld sequences does not divide by it: "
            "%lld GPUs more are idle",
            (long long)r->room, (long long)req->global_batch,
            (long long)(r->room - p->data) * p->tensor * p->pipeline);
    if (r->faster_s > 0)
        holmes_text_add(
            notes,
            "warning: %lld GPUs alone would take %.3g s in place of %.3g: the wires cost more "
            "than the other GPUs bring",
            (long long)r->faster_gpus, r->faster_s, r->step_s);
    if (req->model.vocabulary == 0)
        holmes_text_add(notes, "the vocabulary is not told: embedding and head count nothing");
}

static void note_stages(struct holmes_text_list *notes, const struct holmes_plan *p,
                        const struct holmes_fabrics *f)
{
    for (int i = 0; i < p->nstages; i++)
        if (p->stages[i].crosses)
            holmes_text_add(
                notes,
                "warning: the data groups of stage %d straddle fabrics: %.2f GB per GPU "
                "and step go at the pace of the link between them",
                i, p->stages[i].data_bytes / 1e9);
    for (int i = 0; i < p->nedges; i++) {
        const struct holmes_plan_edge *e = &p->edges[i];
        bool closing = e->to_stage == 0;

        if (e->crosses)
            holmes_text_add(
                notes, "%s %d (%s) to stage %d (%s) crosses fabrics: %.2f GB per step each way%s",
                closing ? "the tied embedding's gradient from stage" : "stage", e->from_stage,
                f->fabrics[p->stages[e->from_stage].fabric].name, e->to_stage,
                f->fabrics[p->stages[e->to_stage].fabric].name, e->bytes / 1e9,
                closing ? "; an untied head saves it" : "");
    }
}

static void note_window(struct holmes_text_list *notes, const struct holmes_plan *p,
                        const struct holmes_plan_request *req)
{
    if (p->window_bytes <= HOLMES_NCCL_WINDOW)
        return;
    if (req->window_bytes == 0)
        holmes_text_add(notes,
                        "the slow link needs %.1f MiB under way to a peer; NCCL's own %.0f MiB "
                        "would hold it back, so emit raises them",
                        (double)p->window_bytes / (1 << 20),
                        (double)HOLMES_NCCL_WINDOW / (1 << 20));
    else if (req->window_bytes < p->window_bytes)
        holmes_text_add(notes, "the slow link needs %.1f MiB under way to a peer and gets %.1f",
                        (double)p->window_bytes / (1 << 20), (double)req->window_bytes / (1 << 20));
}

static void note_layers(struct holmes_text_list *notes, const struct holmes_plan *p)
{
    bool even = true;
    char text[256];
    size_t used = 0;

    for (int i = 0; i < p->nstages; i++)
        even &= p->stages[i].layers == p->stages[0].layers;
    if (even || p->nstages > 16)
        return;
    for (int i = 0; i < p->nstages; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d", i ? ", " : "",
                                 p->stages[i].layers);
    holmes_text_add(notes, "layers %s: by the stages' TFLOPS and memory, the head counted", text);
}

/* --- public ---------------------------------------------------------------------------------- */

static int plan_make(struct holmes_plan *p, const struct holmes_world *w,
                     const struct holmes_plan_request *req, struct holmes_text_list *notes,
                     char *why, size_t why_len)
{
    struct holmes_search_result r;
    struct holmes_place_node *nodes = NULL;
    int n = 0, rc = holmes_search(w, req, &r, why, why_len);

    if (rc != 0)
        return rc;
    p->tensor = r.tensor;
    p->pipeline = r.pipeline;
    p->data = r.data;
    p->micro_batch = r.micro_batch;
    p->microbatches = (int)(req->global_batch / r.data / r.micro_batch);
    rc = holmes_search_nodes(w, &r, &nodes, &n);
    if (rc == 0)
        rc = plan_fill(p, w, req, nodes, n);
    if (rc == 0)
        rc = naive_cost(p, w, req);
    if (rc == 0)
        rc = holmes_idle_find(p, w, &p->idle, &p->nidle);
    if (rc == 0) {
        note_sizes(notes, p, req, &r);
        note_layers(notes, p);
        note_stages(notes, p, w->fabrics);
        note_window(notes, p, req);
    }
    free(nodes);
    free(r.blocks);
    return rc;
}

int holmes_plan_build(const struct holmes_cluster *c, const struct holmes_fabrics *f,
                      const struct holmes_plan_request *req, struct holmes_plan **out, char *why,
                      size_t why_len)
{
    struct holmes_text_list notes = {0};
    struct holmes_plan *p;
    struct holmes_world w;
    int rc = holmes_gpt_check(&req->model, why, why_len);

    if (rc != 0)
        return rc;
    rc = holmes_world_init(&w, c, f, &notes, why, why_len);
    if (rc != 0) {
        holmes_text_fini(&notes);
        return rc;
    }
    p = calloc(1, sizeof(*p));
    rc = p ? plan_make(p, &w, req, &notes, why, why_len) : -ENOMEM;
    holmes_world_fini(&w);
    if (rc == 0 && notes.failed)
        rc = -ENOMEM;
    if (rc != 0) {
        holmes_text_fini(&notes);
        holmes_plan_destroy(p);
        if (rc == -ENOMEM)
            snprintf(why, why_len, "no memory");
        return rc;
    }
    p->notes = notes.texts;
    p->nnotes = notes.n;
    *out = p;
    return 0;
}

void holmes_plan_destroy(struct holmes_plan *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->nidle; i++)
        free(p->idle[i].reason);
    for (int i = 0; i < p->nnotes; i++)
        free(p->notes[i]);
    free(p->nodes);
    free(p->stages);
    free(p->edges);
    free(p->idle);
    free(p->notes);
    free(p);
}
