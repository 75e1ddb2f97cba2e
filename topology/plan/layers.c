/* Layers for the stages of a job: what partition.h needs to know of them, and the step that comes
 * of it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "partition.h"
#include "search_priv.h"

#define WORTH 0.999 /* of a step: less is no reason to leave the rule */

double holmes_search_usable_bytes(const struct holmes_place_stage *s)
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
        if (stages[i].memory_gib > 0 && holmes_cost_memory(job, i, job->stages[i].layers) >
                                            holmes_search_usable_bytes(&stages[i]))
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
        double fit = stages[i].memory_gib > 0
                         ? (holmes_search_usable_bytes(&stages[i]) - none) / each
                         : layers;

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
