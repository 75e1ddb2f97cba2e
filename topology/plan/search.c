/* See search.h. For every tensor and pipeline size: the largest data size, the ways to give the
 * fabrics their stages; arrange.c does the rest. How many ways are tried is bounded by an amount of
 * work, not of time, so that equal input gives equal plans. */
#include "search.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "search_priv.h"

#define WORK_MOST        4000000 /* stages weighed, all together; the simplest ways come first */
#define ALLOCATIONS_MOST 256

/* --- stages of the fabrics ------------------------------------------------------------------- */

static int allocate(struct holmes_search_run *s)
{
    int n = 0, used[HOLMES_SEARCH_STAGES_MOST];

    for (int i = 0; i < s->w->fabrics->n; i++)
        if (s->allocation[i] > 0)
            used[n++] = i;
    return holmes_search_orders(s, used, n);
}

/* Stages to the fabrics one fabric after the other, as many as fit, by slots or by speed. */
static void allocate_greedily(struct holmes_search_run *s, bool by_speed)
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
static int64_t room(const struct holmes_search_run *s, int at)
{
    int64_t n = 0;

    for (; at < s->w->fabrics->n; at++)
        n += s->capacity[at];
    return n;
}

/* In how many ways they can take `left`; counted up to `most`. */
static int64_t ways(const struct holmes_search_run *s, int at, int left, int64_t most)
{
    int64_t n = 0;

    if (at == s->w->fabrics->n)
        return left == 0;
    for (int k = 0; k <= s->capacity[at] && k <= left && n < most; k++)
        if (left - k <= room(s, at + 1))
            n += ways(s, at + 1, left - k, most - n);
    return n;
}

static int allocate_all(struct holmes_search_run *s, int at, int left)
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

static int allocations(struct holmes_search_run *s)
{
    int n = s->w->fabrics->n, rc;
    int64_t each = holmes_search_work(s) *
                   (n <= HOLMES_SEARCH_PERMUTED_MOST ? holmes_search_factorial(n) : 1) *
                   (1 << HOLMES_SEARCH_TURNED_MOST);
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

static int64_t capacity_of(const struct holmes_search_run *s, int64_t data)
{
    int64_t n = 0;

    for (int i = 0; i < s->w->fabrics->n; i++)
        n += s->pools[i].slots / data;
    return n;
}

/* Largest data size with which `pipeline` stages fit, each in a fabric (or all in the sum). */
static int64_t data_for(const struct holmes_search_run *s, int pipeline, bool crosses)
{
    int64_t all = 0, batch = s->req->global_batch;
    int micro = holmes_search_micro_least(s);

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

/* The largest that fits, whatever the batch. More of it fits fewer stages. */
static int64_t data_room(const struct holmes_search_run *s, int pipeline)
{
    int64_t low = 0, high = s->w->gpus;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;

        if (capacity_of(s, middle) >= pipeline)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static int tables_fill(struct holmes_search_run *s, int data)
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
static int crossing(struct holmes_search_run *s)
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
        rc = holmes_search_weigh(s, nblocks, true);
    } while (rc == 0 && nblocks <= HOLMES_SEARCH_PERMUTED_MOST &&
             holmes_order_next(s->order, nblocks));
    return rc;
}

/* Whether a plan of so many GPUs is weighed in this pass; notes the largest. */
static bool in_pass(struct holmes_search_run *s, int64_t gpus)
{
    if (gpus > s->most_used)
        s->most_used = gpus;
    return gpus >= s->used_from && gpus < s->used_below;
}

static int pair(struct holmes_search_run *s, int tensor, int pipeline)
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

static int pools_for(struct holmes_search_run *s, int tensor)
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
static int pass(struct holmes_search_run *s, int64_t used_from, int64_t used_below)
{
    const struct holmes_plan_request *req = s->req;
    int low = req->tensor > 0 ? req->tensor : 1, rc = 0;
    int high = req->tensor > 0 ? req->tensor : s->w->most_gpus, npairs = 0;

    s->used_from = used_from;
    s->used_below = used_below;
    for (int t = low; t <= high; t++)
        npairs += holmes_search_tensor_divides(s, t);
    npairs *= req->pipeline > 0 ? 1 : s->most_stages;
    s->work_each = WORK_MOST / (npairs > 0 ? npairs : 1);
    for (int t = low; rc == 0 && t <= high; t++) {
        if (!holmes_search_tensor_divides(s, t))
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
static int refine(struct holmes_search_run *s)
{
    struct holmes_search_result *out = s->out;
    struct holmes_cost_job *job = &s->job.job;
    int n = out->nblocks, rc;

    rc = pools_for(s, out->tensor);
    if (rc != 0)
        return rc;
    out->room = data_room(s, out->pipeline);
    if (out->crosses || n > HOLMES_SEARCH_ORDERED_MOST ||
        holmes_search_factorial(n) * out->pipeline > WORK_MOST / 2)
        return 0;
    job->tensor = out->tensor;
    job->pipeline = out->pipeline;
    job->data = out->data;
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
    rc = holmes_search_permute(s, n);
    s->only_micro = s->req->micro_batch;
    return rc;
}

/* Plans that use the most GPUs first, and of them those that use nearly as many; only where the
 * model fits none of these, smaller ones. */
static int sizes(struct holmes_search_run *s)
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

/* --- all of it ------------------------------------------------------------------------------- */

static int divisors_fill(struct holmes_search_run *s)
{
    int64_t batch = s->req->global_batch;
    int n = 0;

    for (int64_t i = 1; i * i <= batch; i++)
        n += batch % i == 0 ? 2 : 0;
    s->divisors = malloc(((size_t)n + 1) * sizeof(*s->divisors));
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

static int search_init(struct holmes_search_run *s)
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

static void search_fini(struct holmes_search_run *s)
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
    struct holmes_search_run s = {.w = w, .req = req, .out = out, .only_micro = req->micro_batch};
    int rc;

    memset(out, 0, sizeof(*out));
    rc = holmes_search_check(&s, why, why_len);
    if (rc != 0)
        return rc;
    rc = search_init(&s);
    if (rc == 0)
        rc = sizes(&s);
    if (rc == 0 && out->step_s == 0) {
        rc = -EINVAL;
        if (s.miss == HOLMES_MISS_MEMORY)
            snprintf(why, why_len, "%s", s.miss_why);
        else
            holmes_search_refuse(&s, why, why_len);
    }
    search_fini(&s);
    if (rc != 0) {
        free(out->blocks);
        out->blocks = NULL;
    }
    return rc;
}
