/* Why there is no plan, in sentences. */
#include <errno.h>
#include <stdlib.h>

#include "search_priv.h"

int holmes_search_micro_least(const struct holmes_search_run *s)
{
    return s->req->micro_batch > 0 ? s->req->micro_batch : 1;
}

bool holmes_search_tensor_divides(const struct holmes_search_run *s, int tensor)
{
    const struct holmes_gpt *g = &s->req->model;

    return g->heads % tensor == 0 && (g->ffn > 0 ? g->ffn : 4 * (int64_t)g->hidden) % tensor == 0 &&
           (!g->sequence_parallel || g->sequence % tensor == 0);
}

int holmes_search_check(const struct holmes_search_run *s, char *why, size_t why_len)
{
    const struct holmes_plan_request *r = s->req;
    const struct holmes_gpt *g = &r->model;
    int64_t per_step = (int64_t)(r->data > 0 ? r->data : 1) * holmes_search_micro_least(s);

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
    else if (r->tensor > 0 && !holmes_search_tensor_divides(s, r->tensor))
        snprintf(why, why_len,
                 "tensor %d does not divide the model's %d heads, its ffn size and its sequence",
                 r->tensor, g->heads);
    else if (r->global_batch % per_step != 0)
        snprintf(why, why_len,
                 "the global batch of %lld sequences is not a multiple of data %d x microbatch %d",
                 (long long)r->global_batch, r->data > 0 ? r->data : 1,
                 holmes_search_micro_least(s));
    else
        return 0;
    return -EINVAL;
}

void holmes_search_refuse(const struct holmes_search_run *s, char *why, size_t why_len)
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

/* What the model could do about it: "; with --recompute 12.3, with ..." */
static const char *remedies(const struct holmes_cost_job *job, int stage, int layers, char *text,
                            size_t len)
{
    struct holmes_gpt model = *job->model;
    struct holmes_cost_job other = *job;
    size_t used = 0;

    text[0] = '\0';
    other.model = &model;
    if (!model.recompute) {
        model.recompute = true;
        used += (size_t)snprintf(text, len, "; with --recompute it needs %.1f",
                                 holmes_cost_memory(&other, stage, layers) / (double)(1 << 30));
        model.recompute = false;
    }
    if (!model.distributed_optimizer && job->data > 1 && used < len) {
        model.distributed_optimizer = true;
        snprintf(text + used, len - used, "; with the distributed optimizer %.1f",
                 holmes_cost_memory(&other, stage, layers) / (double)(1 << 30));
    }
    return text;
}

void holmes_search_miss_memory(struct holmes_search_run *s)
{
    const struct holmes_cost_job *job = &s->job.job;
    double worst = 0;
    int at = 0, layers = job->model->layers / job->pipeline;
    char text[128];

    layers += layers == 0;
    for (int i = 0; i < job->pipeline; i++) {
        double ratio = s->stages[i].memory_gib > 0 ? holmes_cost_memory(job, i, layers) /
                                                         holmes_search_usable_bytes(&s->stages[i])
                                                   : 0;

        if (ratio > worst) {
            worst = ratio;
            at = i;
        }
    }
    if (s->miss == HOLMES_MISS_MEMORY && s->miss_ratio <= worst)
        return;
    s->miss = HOLMES_MISS_MEMORY;
    s->miss_ratio = worst;
    snprintf(s->miss_why, sizeof(s->miss_why),
             "the model does not fit: with tensor %d, pipeline %d, data %d and a microbatch of %d, "
             "stage %d needs %.1f GiB per GPU for %d layers and its GPUs have %.1f (%.0f%% kept "
             "free)%s; more nodes, or more tensor or pipeline parallelism, would help",
             job->tensor, job->pipeline, job->data, job->micro_batch, at,
             holmes_cost_memory(job, at, layers) / (double)(1 << 30), layers,
             s->stages[at].memory_gib, HOLMES_COST_MEMORY_KEPT * 100,
             remedies(job, at, layers, text, sizeof(text)));
}
