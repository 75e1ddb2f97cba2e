/* See cost.h. */
#include "cost.h"
#include "plan/train_memory.h"

#include <math.h>
#include <string.h>

double holmes_cost_layer_s(const struct holmes_cost_job *job, const struct holmes_cost_stage *s)
{
    const struct holmes_gpt *g = job->model;
    double flops = holmes_gpt_layer_passes(g) * holmes_gpt_layer_flops(g) * job->micro_batch;

    return flops / (job->tensor * s->tflops * 1e12 * job->efficiency);
}

double holmes_cost_tensor_s(const struct holmes_cost_job *job, const struct holmes_cost_stage *s)
{
    return holmes_gpt_tensor_bytes(job->model, job->micro_batch, job->tensor) * 8 /
           (s->intra_gbps * 1e9);
}

double holmes_cost_head_s(const struct holmes_cost_job *job, const struct holmes_cost_stage *s)
{
    return 3 * holmes_gpt_head_flops(job->model) * job->micro_batch /
           (job->tensor * s->tflops * 1e12 * job->efficiency);
}

/* As Megatron-LM keeps it. */
static double gpu_memory(const struct holmes_cost_job *job, int stage, int layers)
{
    const struct holmes_gpt *g = job->model;
    bool first = stage == 0, last = stage == job->pipeline - 1;
    int under_way = job->pipeline - stage;
    double parameters = holmes_gpt_stage_parameters(g, layers, first, last, job->tensor);
    double activations = layers * holmes_gpt_layer_activation(g, job->micro_batch, job->tensor);

    if (under_way > job->microbatches)
        under_way = job->microbatches;
    if (first)
        activations += holmes_gpt_embedding_activation(g, job->micro_batch);
    return parameters * holmes_gpt_parameter_bytes(g, job->data) + under_way * activations +
           holmes_gpt_working_set(g, job->micro_batch, job->tensor, last);
}

double holmes_cost_memory(const struct holmes_cost_job *job, int stage, int layers)
{
    return job->model->holmes_train ? holmes_train_memory(job, stage, layers)
                                    : gpu_memory(job, stage, layers);
}

/* A message that holmes-train's tensor groups sent in slices is gathered inside the node. */
static double gather_s(const struct holmes_cost_job *job, const struct holmes_cost_stage *s)
{
    double slice = holmes_gpt_message_bytes(job->model, job->micro_batch, job->tensor);

    if (!job->model->holmes_train || job->tensor == 1)
        return 0;
    return (job->tensor - 1) * slice * 8 / (s->intra_gbps * 1e9);
}

static void stage_compute(struct holmes_cost_job *job, int i)
{
    struct holmes_cost_stage *s = &job->stages[i];
    const struct holmes_gpt *g = job->model;
    bool last = i == job->pipeline - 1;
    double layers = s->layers * (holmes_cost_layer_s(job, s) + holmes_cost_tensor_s(job, s));
    double head = last ? holmes_cost_head_s(job, s) : 0;

    s->forward_s = layers / holmes_gpt_layer_passes(g) + head / 3;
    s->backward_s = layers + head - s->forward_s;
    s->forward_s += i > 0 ? gather_s(job, s) : 0;
    s->backward_s += last ? 0 : gather_s(job, s);
    s->parameters = holmes_gpt_stage_parameters(g, s->layers, i == 0, last, job->tensor);
}

/* --- what crosses ---------------------------------------------------------------------------- */

static void paths_load(struct holmes_cost_job *job, const struct holmes_cost_cross *crosses, int n,
                       int below)
{
    memset(job->path_flows, 0, (size_t)job->npaths * sizeof(*job->path_flows));
    for (int i = 0; i < n; i++)
        if (crosses[i].owner < below)
            job->path_flows[crosses[i].path] += crosses[i].flows;
}

/* Gb/s of one flow when `flows` share its path. */
static double flow_gbps(const struct holmes_cost_job *job, const struct holmes_cost_cross *x,
                        double flows, double *window)
{
    const struct holmes_cost_path *path = &job->paths[x->path];
    double gbps = x->gpu_gbps, cap = (double)job->window_bytes;
    double rtt_s = path->rtt_ms / 1e3;

    if (path->gbps > 0)
        gbps = fmin(gbps, path->gbps / flows);
    *window = fmax(*window, gbps * 1e9 / 8 * rtt_s);
    if (job->window_bytes == 0)
        cap = (double)HOLMES_NCCL_WINDOW_MAX;
    if (rtt_s > 0)
        gbps = fmin(gbps, cap * 8 / rtt_s / 1e9);
    return gbps;
}

/* --- pipeline -------------------------------------------------------------------------------- */

static void edge_local(struct holmes_cost_edge *e, double bytes)
{
    e->rtt_ms = 0;
    e->message_s = e->local_gbps > 0 ? bytes * 8 / (e->local_gbps * 1e9) : 0;
}

static void edge_cross(struct holmes_cost_job *job, const struct holmes_cost_cross *x, double bytes,
                       double flows, double *window)
{
    struct holmes_cost_edge *e = &job->edges[x->owner];
    double rtt_ms = job->paths[x->path].rtt_ms;
    double s = bytes * 8 / (flow_gbps(job, x, flows, window) * 1e9) + rtt_ms / 2e3;

    e->message_s = fmax(e->message_s, s);
    e->rtt_ms = fmax(e->rtt_ms, rtt_ms);
}

static double edges_step(struct holmes_cost_job *job, double *window)
{
    int last = job->pipeline - 1;
    double bytes = holmes_gpt_message_bytes(job->model, job->micro_batch, job->tensor), crossed = 0;

    for (int i = 0; i < last; i++)
        edge_local(&job->edges[i], bytes);
    paths_load(job, job->edge_crosses, job->nedge_crosses, last);
    for (int i = 0; i < job->nedge_crosses; i++) {
        const struct holmes_cost_cross *x = &job->edge_crosses[i];

        if (x->owner >= last)
            continue;
        edge_cross(job, x, bytes, job->path_flows[x->path], window);
        crossed += 2 * x->flows * bytes * job->microbatches;
    }
    return crossed;
}

static double embedding_step(struct holmes_cost_job *job, double *window)
{
    int last = job->pipeline - 1;
    double bytes = holmes_gpt_embedding_bytes(job->model, job->tensor), crossed = 0;

    job->edges[last].message_s = job->edges[last].rtt_ms = 0;
    if (last == 0 || !job->model->tied || job->model->vocabulary == 0)
        return 0;
    edge_local(&job->edges[last], bytes);
    for (int i = 0; i < job->nedge_crosses; i++)
        if (job->edge_crosses[i].owner == last)
            job->path_flows[job->edge_crosses[i].path] = 0;
    for (int i = 0; i < job->nedge_crosses; i++)
        if (job->edge_crosses[i].owner == last)
            job->path_flows[job->edge_crosses[i].path] += job->edge_crosses[i].flows;
    for (int i = 0; i < job->nedge_crosses; i++) {
        const struct holmes_cost_cross *x = &job->edge_crosses[i];

        if (x->owner != last)
            continue;
        edge_cross(job, x, bytes, job->path_flows[x->path], window);
        crossed += 2 * x->flows * bytes;
    }
    return crossed;
}

/* --- data groups ----------------------------------------------------------------------------- */

static double rings_step(struct holmes_cost_job *job, double *window)
{
    const struct holmes_gpt *g = job->model;
    double crossed = 0;

    for (int i = 0; i < job->pipeline; i++) {
        struct holmes_cost_stage *s = &job->stages[i];
        double scatter = holmes_gpt_scatter_bytes(g, s->parameters, job->data);
        double gather = holmes_gpt_gather_bytes(g, s->parameters, job->data);

        s->scatter_s = s->gather_s = 0;
        if (s->ring_gbps <= 0)
            continue;
        s->scatter_s = scatter * 8 / (s->ring_gbps * 1e9);
        s->gather_s = gather * 8 / (s->ring_gbps * 1e9);
    }
    paths_load(job, job->ring_crosses, job->nring_crosses, job->pipeline);
    for (int i = 0; i < job->nring_crosses; i++) {
        const struct holmes_cost_cross *x = &job->ring_crosses[i];
        struct holmes_cost_stage *s = &job->stages[x->owner];
        double scatter = holmes_gpt_scatter_bytes(g, s->parameters, job->data);
        double gather = holmes_gpt_gather_bytes(g, s->parameters, job->data);
        double gbps = flow_gbps(job, x, job->path_flows[x->path], window);

        s->scatter_s = fmax(s->scatter_s, scatter * 8 / (gbps * 1e9));
        s->gather_s = fmax(s->gather_s, gather * 8 / (gbps * 1e9));
        crossed += 2 * x->flows * (scatter + gather);
    }
    if (!g->distributed_optimizer) /* one all-reduce, all of it after the backward */
        for (int i = 0; i < job->pipeline; i++) {
            job->stages[i].scatter_s += job->stages[i].gather_s;
            job->stages[i].gather_s = 0;
        }
    return crossed;
}

/* The longest of what remains after hiding; the stages wait for each other at the norm's clip. */
static double rings_exposed(struct holmes_cost_job *job)
{
    double scatter = 0, gather = 0, drain = 0, fill = 0;

    for (int i = 0; i < job->pipeline; i++) {
        struct holmes_cost_stage *s = &job->stages[i];
        double after = s->scatter_s - (job->overlap ? s->backward_s : 0) - drain;
        double before = s->gather_s - (job->overlap ? s->forward_s : 0) - fill;

        after = fmax(after, 0);
        before = fmax(before, 0);
        s->exposed_s = after + before;
        scatter = fmax(scatter, after);
        gather = fmax(gather, before);
        drain += s->backward_s + job->edges[i].message_s;
        fill += s->forward_s + job->edges[i].message_s;
    }
    return scatter + gather;
}

double holmes_cost_least(struct holmes_cost_job *job)
{
    double work = holmes_gpt_sequence_flops(job->model) * job->micro_batch;
    double speed = 0, fastest = 0, messages = 0, pair = 0, need = 0, compute;
    int p = job->pipeline;

    edges_step(job, &need);
    for (int i = 0; i < p; i++) {
        double before = i > 0 ? job->edges[i - 1].message_s : 0;
        double after = i < p - 1 ? job->edges[i].message_s : 0;

        speed += job->stages[i].tflops;
        fastest = fmax(fastest, job->stages[i].tflops);
        messages += after;
        pair = fmax(pair, before + after);
    }
    compute = work / (job->tensor * 1e12 * job->efficiency);
    return compute / fastest + 2 * messages + (job->microbatches - 1) * fmax(compute / speed, pair);
}

void holmes_cost_step(struct holmes_cost_job *job, struct holmes_plan_cost *out, int64_t *window)
{
    const struct holmes_gpt *g = job->model;
    int p = job->pipeline;
    double sum = 0, longest = 0, period = 0, messages = 0, need = 0, flops;

    memset(out, 0, sizeof(*out));
    for (int i = 0; i < p; i++)
        stage_compute(job, i);
    out->cross_bytes = edges_step(job, &need);
    for (int i = 0; i < p; i++) {
        double c = job->stages[i].forward_s + job->stages[i].backward_s;
        double before = i > 0 ? job->edges[i - 1].message_s : 0;
        double after = i < p - 1 ? job->edges[i].message_s : 0;

        sum += c;
        messages += after;
        longest = fmax(longest, c);
        period = fmax(period, c + before + after);
    }
    out->cross_bytes += embedding_step(job, &need) + rings_step(job, &need);
    out->compute_s = job->microbatches * longest;
    out->bubble_s = sum - longest;
    out->pipeline_comm_s = 2 * messages + (job->microbatches - 1) * (period - longest);
    out->embedding_s = job->edges[p - 1].message_s;
    out->data_comm_s = rings_exposed(job);
    out->step_s =
        out->compute_s + out->bubble_s + out->pipeline_comm_s + out->embedding_s + out->data_comm_s;
    flops = holmes_gpt_sequence_flops(g) * job->micro_batch * (double)job->microbatches * job->data;
    out->tflops_per_gpu = flops / out->step_s / ((double)job->tensor * job->data * p) / 1e12;
    if (window)
        *window = (int64_t)fmin(ceil(need), (double)HOLMES_NCCL_WINDOW_MAX);
}
