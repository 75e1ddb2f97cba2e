/* See search.h. For every tensor and pipeline size: the largest data size, the ways to give the
 * fabrics their stages, the orders of the fabrics, the microbatch sizes. How many ways are tried is
 * bounded by an amount of work, not of time, so that equal input gives equal plans. */
#include "search.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "partition.h"

#define WORK_MOST        4000000 /* stages weighed, all together; the simplest ways come first */
#define ORDERED_MOST     8       /* fabrics of which all orders may be tried */
#define PERMUTED_MOST    4       /* fabrics of which they always are, where they straddle */
#define TURNED_MOST      3       /* fabrics of which both directions are tried */
#define ALLOCATIONS_MOST 256
#define MICRO_BATCH_MOST 64
#define BETTER           (1 - 1e-9)
#define WORTH            0.999 /* of a step: less is no reason to leave the rule */

/* Why nothing was found. */
enum miss { MISS_SLOTS, MISS_MEMORY };

struct search {
    const struct holmes_world *w;
    const struct holmes_plan_request *req;
    struct holmes_search_result *out;
    struct holmes_place_job job;
    struct holmes_place_stage *stages; /* of the placement at hand, [most_stages] */
    int most_stages;
    int64_t *divisors; /* of the batch, ascending */
    int ndivisors;
    int64_t work_each;  /* for one pair of tensor and pipeline */
    int64_t only_micro; /* 0: all */
    double least_s;     /* of what was weighed since it was set */
    int64_t used_from, used_below, most_used;
    struct holmes_search_block *spare; /* [fabrics] */

    struct holmes_pool *pools; /* of the tensor size at hand */
    int table_data;            /* data size of the tables; 0: none */
    struct holmes_place_stage **tables;
    int *capacity;                    /* [fabrics]: stages that fit */
    struct holmes_place_node *joined; /* scratch: all nodes, for crossing */

    struct holmes_search_block *blocks; /* scratch [fabrics] */
    int *allocation, *order;            /* scratch [fabrics] */
    double *cost, *close;               /* scratch [HOLMES_ORDER_MOST squared] */

    enum miss miss;
    char miss_why[512];
    double miss_ratio; /* MISS_MEMORY: of need to limit, the least */
};

/* --- layers ---------------------------------------------------------------------------------- */

static double usable_bytes(const struct holmes_place_stage *s)
{
    return s->memory_gib * (1 - HOLMES_COST_MEMORY_KEPT) * (double)(1 << 30);
}

void holmes_search_even(struct holmes_cost_job *job)
{
    int layers = job->model->layers;

    for (int i = 0; i < job->pipeline; i++)
        job->stages[i].layers = layers / job->pipeline + (i < layers % job->pipeline);
}

static bool fits(const struct holmes_cost_job *job, const struct holmes_place_stage *stages)
{
    for (int i = 0; i < job->pipeline; i++)
        if (stages[i].memory_gib > 0 &&
            holmes_cost_memory(job, i, job->stages[i].layers) > usable_bytes(&stages[i]))
            return false;
    return true;
}

/* By TFLOPS and memory into `share`. */
static int divide(const struct holmes_cost_job *job, const struct holmes_place_stage *stages,
                  int *share)
{
    int p = job->pipeline, layers = job->model->layers, rc;
    struct holmes_partition_stage *parts = calloc((size_t)p, sizeof(*parts));

    if (!parts)
        return -ENOMEM;
    for (int i = 0; i < p; i++) {
        double none = holmes_cost_memory(job, i, 0);
        double each = holmes_cost_memory(job, i, 1) - none;
        double fit = stages[i].memory_gib > 0 ? (usable_bytes(&stages[i]) - none) / each : layers;

        parts[i].layer_s = holmes_cost_layer_s(job, &job->stages[i]);
        parts[i].extra_s = i == p - 1 ? holmes_cost_head_s(job, &job->stages[i]) : 0;
        parts[i].most = (int)floor(fmax(fmin(fit, layers), 0));
    }
    rc = holmes_partition(parts, p, layers, share);
    free(parts);
    return rc;
}

int holmes_search_layers(struct holmes_cost_job *job, const struct holmes_place_stage *stages,
                         struct holmes_plan_cost *cost, int64_t *window)
{
    int p = job->pipeline, *share = malloc((size_t)p * sizeof(*share)), rc;
    bool differs = false, alike = true;

    if (!share)
        return -ENOMEM;
    rc = divide(job, stages, share);
    if (rc == 0) {
        struct holmes_plan_cost even = {0};

        holmes_search_even(job);
        for (int i = 0; i < p; i++)
            differs |= share[i] != job->stages[i].layers;
        for (int i = 1; i < p; i++)
            alike &= job->stages[i].tflops == job->stages[0].tflops;
        if (differs && alike && fits(job, stages))
            holmes_cost_step(job, &even, NULL);
        for (int i = 0; i < p; i++)
            job->stages[i].layers = share[i];
        holmes_cost_step(job, cost, window);
        if (even.step_s > 0 && even.step_s < cost->step_s * WORTH) {
            holmes_search_even(job);
            holmes_cost_step(job, cost, window);
        }
    }
    free(share);
    return rc;
}

static void miss_memory(struct search *s)
{
    const struct holmes_cost_job *job = &s->job.job;
    double worst = 0;
    int at = 0, layers = job->model->layers / job->pipeline;

    layers += layers == 0;
    for (int i = 0; i < job->pipeline; i++) {
        double ratio = s->stages[i].memory_gib > 0
                           ? holmes_cost_memory(job, i, layers) / usable_bytes(&s->stages[i])
                           : 0;

        if (ratio > worst) {
            worst = ratio;
            at = i;
        }
    }
    if (s->miss == MISS_MEMORY && s->miss_ratio <= worst)
        return;
    s->miss = MISS_MEMORY;
    s->miss_ratio = worst;
    snprintf(s->miss_why, sizeof(s->miss_why),
             "the model does not fit: with tensor %d, pipeline %d, data %d and a microbatch of %d, "
             "stage %d needs %.1f GiB per GPU for %d layers and its GPUs have %.1f (%.0f%% kept "
             "free); more pipeline or tensor parallelism, recomputation%s would need less",
             job->tensor, job->pipeline, job->data, job->micro_batch, at,
             holmes_cost_memory(job, at, layers) / (double)(1 << 30), layers,
             s->stages[at].memory_gib, HOLMES_COST_MEMORY_KEPT * 100,
             job->model->distributed_optimizer ? "" : " or the distributed optimizer");
}

/* --- one placement --------------------------------------------------------------------------- */

static void keep(struct search *s, int nblocks, bool crosses, double step_s)
{
    struct holmes_search_result *out = s->out;
    const struct holmes_cost_job *job = &s->job.job;

    out->tensor = job->tensor;
    out->pipeline = job->pipeline;
    out->data = job->data;
    out->micro_batch = job->micro_batch;
    out->crosses = crosses;
    out->nblocks = nblocks;
    memcpy(out->blocks, s->blocks, (size_t)nblocks * sizeof(*out->blocks));
    out->step_s = step_s;
}

/* No microbatch takes less than all its work on the fastest stage, nor follows the one before it
 * sooner than perfectly divided work allows. */
static double least_step_s(const struct search *s)
{
    const struct holmes_cost_job *job = &s->job.job;
    double work = holmes_gpt_sequence_flops(job->model) * job->micro_batch, sum = 0, fastest = 0;

    for (int i = 0; i < job->pipeline; i++) {
        sum += s->stages[i].tflops;
        fastest = fmax(fastest, s->stages[i].tflops);
    }
    return work / (job->tensor * 1e12 * job->efficiency) *
           (1 / fastest + (job->microbatches - 1) / sum);
}

/* All microbatch sizes for the stages at hand. */
static int weigh(struct search *s, int nblocks, bool crosses)
{
    struct holmes_cost_job *job = &s->job.job;
    int64_t per_replica = s->req->global_batch / job->data;
    int rc = holmes_place_cost(&s->job, s->w, s->stages, crosses ? s->joined : NULL);

    for (int i = 0; rc == 0 && i < s->ndivisors; i++) {
        int64_t micro = s->divisors[i];
        struct holmes_plan_cost cost;

        if (s->only_micro > 0 ? micro != s->only_micro : micro > MICRO_BATCH_MOST)
            continue;
        if (per_replica % micro != 0)
            continue;
        job->micro_batch = (int)micro;
        job->microbatches = (int)(per_replica / micro);
        if (s->out->step_s > 0 && least_step_s(s) >= s->out->step_s * BETTER)
            continue;
        rc = holmes_search_layers(job, s->stages, &cost, NULL);
        if (rc == -ENOSPC) {
            miss_memory(s);
            rc = 0;
            continue;
        }
        if (rc != 0)
            break;
        s->out->considered++;
        s->least_s = fmin(s->least_s, cost.step_s);
        if (s->out->step_s == 0 || cost.step_s < s->out->step_s * BETTER)
            keep(s, nblocks, crosses, cost.step_s);
    }
    return rc;
}

static int part_start(const struct search *s, const struct holmes_search_block *b, int part)
{
    const struct holmes_place_stage *table = s->tables[b->fabric];
    int at = 0;

    for (; part > 0 && at < b->stages; part--)
        do
            at++;
        while (at < b->stages && table[at].first_node == table[at - 1].last_node);
    return at;
}

/* Parts of a block; 0 where they are more than are put in order one by one. */
static int parts_count(const struct search *s, const struct holmes_search_block *b)
{
    const struct holmes_place_stage *table = s->tables[b->fabric];
    int n = 1;

    for (int i = 1; i < b->stages && n <= HOLMES_SEARCH_PARTS_MOST; i++)
        n += table[i].first_node != table[i - 1].last_node;
    return n <= HOLMES_SEARCH_PARTS_MOST ? n : 0;
}

static void assemble(struct search *s, int nblocks)
{
    int n = 0;

    for (int i = 0; i < nblocks; i++) {
        const struct holmes_search_block *b = &s->blocks[i];
        const struct holmes_place_stage *table = s->tables[b->fabric];

        for (int k = 0; b->nparts == 0 && k < b->stages; k++)
            s->stages[n++] = table[b->slowest_first ? b->stages - 1 - k : k];
        for (int k = 0; k < b->nparts; k++)
            for (int at = part_start(s, b, b->parts[k]); at < part_start(s, b, b->parts[k] + 1);
                 at++)
                s->stages[n++] = table[at];
    }
}

/* --- orders ---------------------------------------------------------------------------------- */

static int job_micro_least(const struct search *s)
{
    return s->req->micro_batch > 0 ? s->req->micro_batch : 1;
}

/* Seconds per step that the edge between two fabrics takes, one being last and one first. */
static double hop_s(struct search *s, int from, int to, double bytes)
{
    const struct holmes_world *w = s->w;
    const struct holmes_place_stage *a = &s->tables[from][s->allocation[from] - 1];
    const struct holmes_place_stage *b = &s->tables[to][0];
    int path = w->path[from * w->fabrics->n + to], t = s->job.job.tensor;
    double node = w->path_node_gbps[path], gbps;

    gbps = fmin((node > 0 ? node : a->ethernet_gbps) / a->most_slots,
                (node > 0 ? node : b->ethernet_gbps) / b->most_slots) /
           t;
    if (w->paths[path].gbps > 0)
        gbps = fmin(gbps, w->paths[path].gbps / ((double)t * s->job.job.data));
    if (s->req->window_bytes > 0)
        gbps = fmin(gbps, (double)s->req->window_bytes * 8 / (w->paths[path].rtt_ms * 1e6));
    return bytes * 8 / (gbps * 1e9) + w->paths[path].rtt_ms / 2e3;
}

static int order_far(struct search *s, const int *used, int n)
{
    const struct holmes_gpt *g = &s->req->model;
    int micro = job_micro_least(s), order[HOLMES_ORDER_MOST], rc;
    int64_t microbatches = s->req->global_batch / s->job.job.data / micro;
    double bytes = holmes_gpt_message_bytes(g, micro, s->job.job.tensor);
    bool tied = g->tied && g->vocabulary > 0;

    for (int i = 0; i < n; i++)
        s->order[i] = used[i];
    if (n > HOLMES_ORDER_MOST)
        return 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            s->cost[i * n + k] =
                i == k ? 0 : (double)(microbatches + 1) * hop_s(s, used[i], used[k], bytes);
            s->close[i * n + k] =
                i == k || !tied
                    ? 0
                    : hop_s(s, used[i], used[k], holmes_gpt_embedding_bytes(g, s->job.job.tensor));
        }
    rc = holmes_order_find(n, s->cost, tied ? s->close : NULL, order);
    for (int i = 0; rc == 0 && i < n; i++)
        s->order[i] = used[order[i]];
    return rc;
}

static int64_t factorial(int n)
{
    return n < 2 ? 1 : n * factorial(n - 1);
}

/* Stages to be weighed for one placement, all microbatches. */
static int64_t placement_work(const struct search *s)
{
    return (int64_t)s->job.job.pipeline * (s->only_micro > 0 ? 1 : s->ndivisors);
}

/* All directions of blocks whose nodes are unequal, or all orders of their parts. */
static int arrange(struct search *s, int n, int at, bool parts)
{
    struct holmes_search_block *b = &s->blocks[at];
    int order[HOLMES_SEARCH_PARTS_MOST] = {0, 1, 2, 3, 4}, rc;

    if (at == n) {
        assemble(s, n);
        return weigh(s, n, false);
    }
    b->nparts = parts && s->pools[b->fabric].unequal ? parts_count(s, b) : 0;
    do {
        for (int i = 0; i < b->nparts; i++)
            b->parts[i] = (unsigned char)order[i];
        rc = arrange(s, n, at + 1, parts);
    } while (rc == 0 && b->nparts > 0 && holmes_order_next(order, b->nparts));
    if (rc == 0 && b->nparts == 0 && b->stages > 1 && s->pools[b->fabric].unequal &&
        at < TURNED_MOST) {
        b->slowest_first = true;
        rc = arrange(s, n, at + 1, parts);
        b->slowest_first = false;
    }
    return rc;
}

/* `times` placements like this one are to be weighed. */
static int directions(struct search *s, int n, int64_t times)
{
    int64_t all = placement_work(s) * times;

    for (int i = 0; i < n; i++) {
        s->blocks[i] =
            (struct holmes_search_block){s->order[i], s->allocation[s->order[i]], false, 0, {0}};
        if (s->pools[s->order[i]].unequal)
            all *= factorial(parts_count(s, &s->blocks[i]));
    }
    return arrange(s, n, 0, all <= s->work_each);
}

static int permute(struct search *s, int n)
{
    int rc;

    do
        rc = directions(s, n, factorial(n));
    while (rc == 0 && holmes_order_next(s->order, n));
    return rc;
}

/* From an order that is good for the links to one that no exchange of two fabrics makes better. */
static int exchange(struct search *s, int n)
{
    int64_t left = s->work_each / placement_work(s);
    int rc;

    s->least_s = INFINITY;
    rc = directions(s, n, 1);
    for (bool better = true; rc == 0 && better;) {
        better = false;
        for (int i = 0; rc == 0 && i < n; i++)
            for (int k = i + 1; rc == 0 && k < n && left > 0; k++, left--) {
                double was = s->least_s;
                int a = s->order[i], b = s->order[k];

                s->order[i] = b;
                s->order[k] = a;
                rc = directions(s, n, 1);
                if (s->least_s < was * BETTER) {
                    better = true;
                    continue;
                }
                s->order[i] = a;
                s->order[k] = b;
            }
    }
    return rc;
}

static int orders(struct search *s, const int *used, int n)
{
    int rc;

    for (int i = 0; i < n; i++)
        s->order[i] = used[i];
    if (n <= ORDERED_MOST && factorial(n) * placement_work(s) <= s->work_each)
        return permute(s, n);
    rc = order_far(s, used, n);
    return rc != 0 ? rc : exchange(s, n);
}

/* --- stages of the fabrics ------------------------------------------------------------------- */

static int allocate(struct search *s)
{
    int n = 0, used[HOLMES_SEARCH_STAGES_MOST];

    for (int i = 0; i < s->w->fabrics->n; i++)
        if (s->allocation[i] > 0)
            used[n++] = i;
    return orders(s, used, n);
}

/* Stages to the fabrics one fabric after the other, as many as fit, by slots or by speed. */
static void allocate_greedily(struct search *s, bool by_speed)
{
    int left = s->job.job.pipeline, nfabrics = s->w->fabrics->n;

    memset(s->allocation, 0, (size_t)nfabrics * sizeof(int));
    while (left > 0) {
        int best = -1;

        for (int i = 0; i < nfabrics; i++) {
            double a, b;

            if (s->allocation[i] > 0 || s->capacity[i] == 0)
                continue;
            a = by_speed ? s->tables[i][0].tflops : (double)s->pools[i].slots;
            b = best < 0 ? 0 : by_speed ? s->tables[best][0].tflops : (double)s->pools[best].slots;
            if (a > b)
                best = i;
        }
        s->allocation[best] = s->capacity[best] < left ? s->capacity[best] : left;
        left -= s->allocation[best];
    }
}

/* Stages that the fabrics from `at` on can take. */
static int64_t room(const struct search *s, int at)
{
    int64_t n = 0;

    for (; at < s->w->fabrics->n; at++)
        n += s->capacity[at];
    return n;
}

/* In how many ways they can take `left`; counted up to `most`. */
static int64_t ways(const struct search *s, int at, int left, int64_t most)
{
    int64_t n = 0;

    if (at == s->w->fabrics->n)
        return left == 0;
    for (int k = 0; k <= s->capacity[at] && k <= left && n < most; k++)
        if (left - k <= room(s, at + 1))
            n += ways(s, at + 1, left - k, most - n);
    return n;
}

static int allocate_all(struct search *s, int at, int left)
{
    int rc = 0;

    if (at == s->w->fabrics->n)
        return left == 0 ? allocate(s) : 0;
    for (int k = s->capacity[at] < left ? s->capacity[at] : left; rc == 0 && k >= 0; k--) {
        if (left - k > room(s, at + 1))
            break;
        s->allocation[at] = k;
        rc = allocate_all(s, at + 1, left - k);
    }
    return rc;
}

static int allocations(struct search *s)
{
    int n = s->w->fabrics->n, rc;
    int64_t each = placement_work(s) * (n <= PERMUTED_MOST ? factorial(n) : 1) * (1 << TURNED_MOST);
    int64_t most = s->work_each / each;

    if (most > ALLOCATIONS_MOST)
        most = ALLOCATIONS_MOST;
    if (room(s, 0) == s->job.job.pipeline || ways(s, 0, s->job.job.pipeline, most + 1) <= most)
        return allocate_all(s, 0, s->job.job.pipeline);
    allocate_greedily(s, false);
    rc = allocate(s);
    if (rc == 0) {
        allocate_greedily(s, true);
        rc = allocate(s);
    }
    return rc;
}

/* --- sizes ----------------------------------------------------------------------------------- */

static int64_t capacity_of(const struct search *s, int64_t data)
{
    int64_t n = 0;

    for (int i = 0; i < s->w->fabrics->n; i++)
        n += s->pools[i].slots / data;
    return n;
}

/* Largest data size with which `pipeline` stages fit, each in a fabric (or all in the sum). */
static int64_t data_for(const struct search *s, int pipeline, bool crosses)
{
    int64_t all = 0, batch = s->req->global_batch;
    int micro = job_micro_least(s);

    for (int i = 0; i < s->w->fabrics->n; i++)
        all += s->pools[i].slots;
    for (int i = s->ndivisors - 1; i >= 0; i--) {
        int64_t d = s->divisors[i];

        if (s->req->data > 0 && d != s->req->data)
            continue;
        if (batch / d % micro == 0 &&
            (crosses ? all / d >= pipeline : capacity_of(s, d) >= pipeline))
            return d;
    }
    return 0;
}

static int tables_fill(struct search *s, int data)
{
    if (s->table_data == data)
        return 0;
    for (int i = 0; i < s->w->fabrics->n; i++) {
        int64_t n = s->pools[i].slots / data;

        s->capacity[i] = n < s->most_stages ? (int)n : s->most_stages;
        free(s->tables[i]);
        s->tables[i] = malloc(((size_t)s->capacity[i] + 1) * sizeof(*s->tables[i]));
        if (!s->tables[i])
            return -ENOMEM;
        holmes_place_walk(s->w, s->pools[i].nodes, data, s->capacity[i], s->tables[i]);
    }
    s->table_data = data;
    return 0;
}

/* All slots in a row, fabric after fabric. */
static int crossing(struct search *s)
{
    int n = s->w->fabrics->n, nblocks = 0, rc = 0;

    for (int i = 0; i < n; i++)
        if (s->pools[i].slots > 0)
            s->order[nblocks++] = i;
    do {
        int nnodes = 0;

        for (int i = 0; i < nblocks; i++) {
            const struct holmes_pool *p = &s->pools[s->order[i]];

            s->blocks[i] = (struct holmes_search_block){s->order[i], 0, false, 0, {0}};
            memcpy(s->joined + nnodes, p->nodes, (size_t)p->n * sizeof(*p->nodes));
            nnodes += p->n;
        }
        holmes_place_walk(s->w, s->joined, s->job.job.data, s->job.job.pipeline, s->stages);
        rc = weigh(s, nblocks, true);
    } while (rc == 0 && nblocks <= PERMUTED_MOST && holmes_order_next(s->order, nblocks));
    return rc;
}

/* Whether a plan of so many GPUs is weighed in this pass; notes the largest. */
static bool in_pass(struct search *s, int64_t gpus)
{
    if (gpus > s->most_used)
        s->most_used = gpus;
    return gpus >= s->used_from && gpus < s->used_below;
}

static int pair(struct search *s, int tensor, int pipeline)
{
    struct holmes_cost_job *job = &s->job.job;
    int64_t data = data_for(s, pipeline, false), across = 0;
    int64_t stages = (int64_t)tensor * pipeline;
    int rc = 0;

    job->tensor = tensor;
    job->pipeline = pipeline;
    if (data > 0 && in_pass(s, stages * data)) {
        rc = tables_fill(s, (int)data);
        job->data = (int)data;
        if (rc == 0)
            rc = allocations(s);
    }
    if (s->req->allow_cross)
        across = data_for(s, pipeline, true);
    if (rc == 0 && across > data && in_pass(s, stages * across)) {
        job->data = (int)across;
        rc = crossing(s);
    }
    return rc;
}

static bool tensor_divides(const struct search *s, int tensor)
{
    const struct holmes_gpt *g = &s->req->model;

    return g->heads % tensor == 0 && (g->ffn > 0 ? g->ffn : 4 * (int64_t)g->hidden) % tensor == 0 &&
           (!g->sequence_parallel || g->sequence % tensor == 0);
}

static int pools_for(struct search *s, int tensor)
{
    holmes_pools_fini(s->pools, s->w->fabrics->n);
    s->pools = NULL;
    s->table_data = 0;
    return holmes_pools_init(s->w, tensor, &s->pools);
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* All pairs of tensor and pipeline whose plans use [used_from, used_below) GPUs. */
static int pass(struct search *s, int64_t used_from, int64_t used_below)
{
    const struct holmes_plan_request *req = s->req;
    int low = req->tensor > 0 ? req->tensor : 1, rc = 0;
    int high = req->tensor > 0 ? req->tensor : s->w->most_gpus, npairs = 0;

    s->used_from = used_from;
    s->used_below = used_below;
    for (int t = low; t <= high; t++)
        npairs += tensor_divides(s, t);
    npairs *= req->pipeline > 0 ? 1 : s->most_stages;
    s->work_each = WORK_MOST / (npairs > 0 ? npairs : 1);
    for (int t = low; rc == 0 && t <= high; t++) {
        if (!tensor_divides(s, t))
            continue;
        rc = pools_for(s, t);
        for (int p = req->pipeline > 0 ? req->pipeline : 1; rc == 0 && p <= s->most_stages; p++) {
            rc = pair(s, t, p);
            if (req->pipeline > 0)
                break;
        }
    }
    return rc;
}

/* All orders of the fabrics for the sizes found, where the search could not afford them. */
static int refine(struct search *s)
{
    struct holmes_search_result *out = s->out;
    struct holmes_cost_job *job = &s->job.job;
    int n = out->nblocks, rc;

    if (out->crosses || n > ORDERED_MOST || factorial(n) * out->pipeline > WORK_MOST / 2)
        return 0;
    rc = pools_for(s, out->tensor);
    job->tensor = out->tensor;
    job->pipeline = out->pipeline;
    job->data = out->data;
    if (rc == 0)
        rc = tables_fill(s, out->data);
    if (rc != 0)
        return rc;
    memset(s->allocation, 0, (size_t)s->w->fabrics->n * sizeof(*s->allocation));
    for (int i = 0; i < n; i++) {
        s->allocation[out->blocks[i].fabric] = out->blocks[i].stages;
        s->order[i] = out->blocks[i].fabric;
    }
    qsort(s->order, (size_t)n, sizeof(*s->order), ascending);
    s->only_micro = out->micro_batch;
    s->work_each = WORK_MOST;
    rc = permute(s, n);
    s->only_micro = s->req->micro_batch;
    return rc;
}

/* Plans that use the most GPUs first, and of them those that use nearly as many; only where the
 * model fits none of these, smaller ones. */
static int sizes(struct search *s)
{
    int64_t below = INT64_MAX;
    int rc = pass(s, INT64_MAX, INT64_MAX);

    for (int tenths = HOLMES_SEARCH_USED_TENTHS; rc == 0 && s->out->step_s == 0 && tenths >= 0;
         tenths -= 2) {
        int64_t from = (s->most_used * tenths + 9) / 10;

        rc = pass(s, from, below);
        below = from;
    }
    if (rc == 0 && s->out->step_s > 0)
        rc = refine(s);
    if (rc == 0 && s->out->step_s > 0 && below > 0) {
        struct holmes_search_result best = *s->out;

        s->out->blocks = s->spare;
        rc = pass(s, 0, below);
        best.faster_s = s->out->step_s < best.step_s ? s->out->step_s : 0;
        best.faster_gpus = (int64_t)s->out->tensor * s->out->pipeline * s->out->data;
        best.considered = s->out->considered;
        *s->out = best;
    }
    return rc;
}

/* --- refusals -------------------------------------------------------------------------------- */

static int check(const struct search *s, char *why, size_t why_len)
{
    const struct holmes_plan_request *r = s->req;
    const struct holmes_gpt *g = &r->model;
    int64_t per_step = (int64_t)(r->data > 0 ? r->data : 1) * job_micro_least(s);

    if (s->w->gpus == 0)
        snprintf(why, why_len, "no GPU can be used: every node is idle, defective or has none");
    else if (r->tensor < 0 || r->pipeline < 0 || r->data < 0 || r->micro_batch < 0)
        snprintf(why, why_len, "a size is negative; 0 leaves it open");
    else if (r->global_batch < 1 || r->global_batch > INT32_MAX)
        snprintf(why, why_len, "the global batch is %lld sequences; it must be from 1 to %d",
                 (long long)r->global_batch, INT32_MAX);
    else if (r->pipeline > g->layers)
        snprintf(why, why_len,
                 "%d layers are fewer than %d pipeline stages: each stage needs a layer", g->layers,
                 r->pipeline);
    else if (r->pipeline > HOLMES_SEARCH_STAGES_MOST)
        snprintf(why, why_len, "pipeline %d: at most %d stages are planned", r->pipeline,
                 HOLMES_SEARCH_STAGES_MOST);
    else if (r->tensor > s->w->most_gpus)
        snprintf(why, why_len,
                 "tensor %d: a tensor group lies in a node, and none has more than "
                 "%d usable GPUs",
                 r->tensor, s->w->most_gpus);
    else if (r->tensor > 0 && !tensor_divides(s, r->tensor))
        snprintf(why, why_len,
                 "tensor %d does not divide the model's %d heads, its ffn size and its sequence",
                 r->tensor, g->heads);
    else if (r->global_batch % per_step != 0)
        snprintf(why, why_len,
                 "the global batch of %lld sequences is not a multiple of data %d x microbatch %d",
                 (long long)r->global_batch, r->data > 0 ? r->data : 1, job_micro_least(s));
    else
        return 0;
    return -EINVAL;
}

static void refuse_slots(const struct search *s, char *why, size_t why_len)
{
    const struct holmes_plan_request *r = s->req;
    int t = r->tensor > 0 ? r->tensor : 1, p = r->pipeline > 0 ? r->pipeline : 1;
    int d = r->data > 0 ? r->data : 1, nfabrics = s->w->fabrics->n;
    struct holmes_pool *pools = NULL;
    int64_t all = 0;
    size_t used;

    if (holmes_pools_init(s->w, t, &pools) != 0) {
        snprintf(why, why_len, "no memory");
        return;
    }
    used = (size_t)snprintf(why, why_len,
                            "there is no room for %d stage%s of %d tensor group%s of %d GPU%s:", p,
                            p == 1 ? "" : "s", d, d == 1 ? "" : "s", t, t == 1 ? "" : "s");
    for (int i = 0; i < nfabrics; i++) {
        all += pools[i].slots;
        if (used < why_len)
            used += (size_t)snprintf(why + used, why_len - used, "%s fabric %s has room for %lld",
                                     i > 0 ? "," : "", s->w->fabrics->fabrics[i].name,
                                     (long long)pools[i].slots);
    }
    if (used < why_len)
        snprintf(why + used, why_len - used,
                 all >= (int64_t)p * d && nfabrics > 1
                     ? "; a data group would straddle fabrics. Smaller data groups, another number "
                       "of stages, or --allow-cross (slow) would fit"
                     : " tensor groups; fewer stages or smaller groups would fit");
    holmes_pools_fini(pools, nfabrics);
}

/* --- all of it ------------------------------------------------------------------------------- */

static int divisors_fill(struct search *s)
{
    int64_t batch = s->req->global_batch;
    int n = 0;

    for (int64_t i = 1; i * i <= batch; i++)
        n += batch % i == 0 ? 2 : 0;
    s->divisors = malloc((size_t)n * sizeof(*s->divisors));
    if (!s->divisors)
        return -ENOMEM;
    for (int64_t i = 1; i * i <= batch; i++)
        if (batch % i == 0)
            s->divisors[s->ndivisors++] = i;
    for (int i = s->ndivisors - 1; i >= 0; i--)
        if (batch / s->divisors[i] != s->divisors[i])
            s->divisors[s->ndivisors++] = batch / s->divisors[i];
    return 0;
}

static int search_init(struct search *s)
{
    size_t n = (size_t)s->w->fabrics->n;
    int64_t slots = s->w->gpus;
    size_t nodes = 0;

    s->most_stages = s->req->model.layers;
    if (s->most_stages > slots)
        s->most_stages = (int)slots;
    if (s->most_stages > HOLMES_SEARCH_STAGES_MOST)
        s->most_stages = HOLMES_SEARCH_STAGES_MOST;
    for (int i = 0; i < s->w->cluster->ngroups; i++)
        nodes += (size_t)s->w->cluster->groups[i].hosts.nhosts;
    s->stages = calloc((size_t)s->most_stages, sizeof(*s->stages));
    s->tables = calloc(n, sizeof(*s->tables));
    s->capacity = calloc(n, sizeof(*s->capacity));
    s->blocks = calloc(n, sizeof(*s->blocks));
    s->out->blocks = calloc(n, sizeof(*s->out->blocks));
    s->spare = calloc(n, sizeof(*s->spare));
    s->allocation = calloc(n, sizeof(*s->allocation));
    s->order = calloc(n, sizeof(*s->order));
    s->cost = calloc(HOLMES_ORDER_MOST * HOLMES_ORDER_MOST, sizeof(double));
    s->close = calloc(HOLMES_ORDER_MOST * HOLMES_ORDER_MOST, sizeof(double));
    s->joined = s->req->allow_cross ? malloc((nodes + 1) * sizeof(*s->joined)) : NULL;
    if (!s->stages || !s->tables || !s->capacity || !s->blocks || !s->out->blocks || !s->spare ||
        !s->allocation || !s->order || !s->cost || !s->close || (s->req->allow_cross && !s->joined))
        return -ENOMEM;
    if (divisors_fill(s) != 0)
        return -ENOMEM;
    return holmes_place_job_init(&s->job, s->w, s->req, s->most_stages);
}

static void search_fini(struct search *s)
{
    holmes_place_job_fini(&s->job);
    holmes_pools_fini(s->pools, s->w->fabrics->n);
    for (int i = 0; s->tables && i < s->w->fabrics->n; i++)
        free(s->tables[i]);
    free(s->stages);
    free(s->divisors);
    free(s->tables);
    free(s->capacity);
    free(s->joined);
    free(s->blocks);
    free(s->spare);
    free(s->allocation);
    free(s->order);
    free(s->cost);
    free(s->close);
}

int holmes_search(const struct holmes_world *w, const struct holmes_plan_request *req,
                  struct holmes_search_result *out, char *why, size_t why_len)
{
    struct search s = {.w = w, .req = req, .out = out, .only_micro = req->micro_batch};
    int rc;

    memset(out, 0, sizeof(*out));
    rc = check(&s, why, why_len);
    if (rc != 0)
        return rc;
    rc = search_init(&s);
    if (rc == 0)
        rc = sizes(&s);
    if (rc == 0 && out->step_s == 0) {
        rc = -EINVAL;
        if (s.miss == MISS_MEMORY)
            snprintf(why, why_len, "%s", s.miss_why);
        else
            refuse_slots(&s, why, why_len);
    }
    search_fini(&s);
    if (rc != 0) {
        free(out->blocks);
        out->blocks = NULL;
    }
    return rc;
}
