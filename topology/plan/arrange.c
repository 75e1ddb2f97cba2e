/* Placements for given sizes and numbers of stages: orders of the fabrics, directions or orders of
 * the nodes in each, microbatch sizes; each weighed by the cost model, the best kept. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "search_priv.h"

#define MICRO_BATCH_MOST 64
#define PROMISING        1.2 /* times the best step: such an order is worth improving */

/* --- one placement --------------------------------------------------------------------------- */

static void keep(struct holmes_search_run *s, int nblocks, bool crosses, double step_s)
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

/* All microbatch sizes for the stages at hand. */
int holmes_search_weigh(struct holmes_search_run *s, int nblocks, bool crosses)
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
        if (s->out->step_s > 0 && holmes_cost_least(job) >= s->out->step_s * HOLMES_SEARCH_BETTER)
            continue;
        rc = holmes_search_layers(job, s->stages, &cost, NULL);
        if (rc == -ENOSPC) {
            holmes_search_miss_memory(s);
            rc = 0;
            continue;
        }
        if (rc != 0)
            break;
        s->out->considered++;
        s->least_s = fmin(s->least_s, cost.step_s);
        if (s->out->step_s == 0 || cost.step_s < s->out->step_s * HOLMES_SEARCH_BETTER)
            keep(s, nblocks, crosses, cost.step_s);
    }
    return rc;
}

static int part_start(const struct holmes_search_run *s, const struct holmes_search_block *b,
                      int part)
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
static int parts_count(const struct holmes_search_run *s, const struct holmes_search_block *b)
{
    const struct holmes_place_stage *table = s->tables[b->fabric];
    int n = 1;

    for (int i = 1; i < b->stages && n <= HOLMES_SEARCH_PARTS_MOST; i++)
        n += table[i].first_node != table[i - 1].last_node;
    return n <= HOLMES_SEARCH_PARTS_MOST ? n : 0;
}

static void assemble(struct holmes_search_run *s, int nblocks)
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

/* Seconds per step that the edge between two fabrics takes, one being last and one first. */
static double hop_s(struct holmes_search_run *s, int from, int to, double bytes)
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

static int order_far(struct holmes_search_run *s, const int *used, int n)
{
    const struct holmes_gpt *g = &s->req->model;
    int micro = holmes_search_micro_least(s), order[HOLMES_ORDER_MOST], rc;
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

int64_t holmes_search_factorial(int n)
{
    return n < 2 ? 1 : n * holmes_search_factorial(n - 1);
}

/* Stages to be weighed for one placement, all microbatches. */
int64_t holmes_search_work(const struct holmes_search_run *s)
{
    return (int64_t)s->job.job.pipeline * (s->only_micro > 0 ? 1 : s->ndivisors);
}

/* All directions of blocks whose nodes are unequal, or all orders of their parts. */
static int arrange(struct holmes_search_run *s, int n, int at, bool parts)
{
    struct holmes_search_block *b = &s->blocks[at];
    int order[HOLMES_SEARCH_PARTS_MOST] = {0, 1, 2, 3, 4}, rc;

    if (at == n) {
        assemble(s, n);
        return holmes_search_weigh(s, n, false);
    }
    b->nparts = parts && s->pools[b->fabric].unequal ? parts_count(s, b) : 0;
    do {
        for (int i = 0; i < b->nparts; i++)
            b->parts[i] = (unsigned char)order[i];
        rc = arrange(s, n, at + 1, parts);
    } while (rc == 0 && b->nparts > 0 && holmes_order_next(order, b->nparts));
    if (rc == 0 && b->nparts == 0 && b->stages > 1 && s->pools[b->fabric].unequal &&
        at < HOLMES_SEARCH_TURNED_MOST) {
        b->slowest_first = true;
        rc = arrange(s, n, at + 1, parts);
        b->slowest_first = false;
    }
    return rc;
}

/* `times` placements like this one are to be weighed. */
static int directions(struct holmes_search_run *s, int n, int64_t times)
{
    int64_t all = holmes_search_work(s) * times;

    for (int i = 0; i < n; i++) {
        s->blocks[i] =
            (struct holmes_search_block){s->order[i], s->allocation[s->order[i]], false, 0, {0}};
        if (s->pools[s->order[i]].unequal)
            all *= holmes_search_factorial(parts_count(s, &s->blocks[i]));
    }
    return arrange(s, n, 0, all <= s->work_each);
}

int holmes_search_permute(struct holmes_search_run *s, int n)
{
    int rc;

    do
        rc = directions(s, n, holmes_search_factorial(n));
    while (rc == 0 && holmes_order_next(s->order, n));
    return rc;
}

/* From an order that is good for the links to one that no exchange of two fabrics makes better. */
static int exchange(struct holmes_search_run *s, int n)
{
    int64_t left = s->work_each / holmes_search_work(s);
    int rc;

    s->least_s = INFINITY;
    rc = directions(s, n, 1);
    for (bool better = s->least_s < s->out->step_s * PROMISING; rc == 0 && better;) {
        better = false;
        for (int i = 0; rc == 0 && i < n; i++)
            for (int k = i + 1; rc == 0 && k < n && left > 0; k++, left--) {
                double was = s->least_s;
                int a = s->order[i], b = s->order[k];

                s->order[i] = b;
                s->order[k] = a;
                rc = directions(s, n, 1);
                if (s->least_s < was * HOLMES_SEARCH_BETTER) {
                    better = true;
                    continue;
                }
                s->order[i] = a;
                s->order[k] = b;
            }
    }
    return rc;
}

int holmes_search_orders(struct holmes_search_run *s, const int *used, int n)
{
    int rc;

    for (int i = 0; i < n; i++)
        s->order[i] = used[i];
    if (n <= HOLMES_SEARCH_ORDERED_MOST &&
        holmes_search_factorial(n) * holmes_search_work(s) <= s->work_each)
        return holmes_search_permute(s, n);
    rc = order_far(s, used, n);
    return rc != 0 ? rc : exchange(s, n);
}
