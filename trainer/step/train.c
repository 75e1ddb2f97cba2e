/* The training step: pipeline, reduction, norm and loss over the job, clipped update. */
#include "train.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "finite.h"
#include "log.h"
#include "pipeline.h"
#include "tp.h"
#include "trace.h"

struct holmes_trainer {
    struct holmes_trainer_attr attr;
    struct holmes_tp tp;
    const struct holmes_stage_group *tp_group; /* NULL: nobody shares the stages */
    int nchunks;
    struct holmes_stage *stages[HOLMES_SCHEDULE_CHUNKS_MAX];
    struct holmes_dp *dps[HOLMES_SCHEDULE_CHUNKS_MAX];
    struct holmes_pipeline *pipeline;
    int skipped; /* steps in a row whose update was left out */
    char unfit[400];
    bool unfit_here;
    float sums[HOLMES_TRAINER_SUMS]; /* lives as long as an operation that is never waited for */
};

struct holmes_schedule_attr holmes_trainer_plan(const struct holmes_config *c,
                                                const struct holmes_group *g, int stage)
{
    return (struct holmes_schedule_attr){.stages = c->stages,
                                         .stage = stage,
                                         .microbatches = holmes_config_microbatches(c),
                                         .chunks = g->chunks};
}

struct holmes_stage_attr holmes_trainer_stage_attr(const struct holmes_config *c,
                                                   const struct holmes_group *g, int stage,
                                                   int chunk, const struct holmes_kernels *k)
{
    struct holmes_schedule_attr plan = holmes_trainer_plan(c, g, stage);
    int part = chunk * c->stages + stage, parts = c->stages * plan.chunks;

    return (struct holmes_stage_attr){
        .model = c->model,
        .first_layer = g->first_layer[part],
        .last_layer = g->first_layer[part + 1],
        .is_first = part == 0,
        .is_last = part == parts - 1,
        .batch = c->microbatch,
        .slots = holmes_schedule_in_flight(&plan, chunk),
        .recompute = c->recompute,
        .kernels = k,
    };
}

static int create_stage(struct holmes_trainer *t, int chunk)
{
    const struct holmes_trainer_attr *ta = &t->attr;
    struct holmes_stage_attr attr =
        holmes_trainer_stage_attr(ta->config, ta->group, ta->links->stage, chunk, ta->kernels);

    attr.group = t->tp_group;
    return holmes_stage_create(&attr, &t->stages[chunk]);
}

static int create_dp(struct holmes_trainer *t, int chunk)
{
    const struct holmes_config *c = t->attr.config;
    struct holmes_dp_attr attr = {.stage = t->stages[chunk],
                                  .links = t->attr.links,
                                  .hp = {.beta1 = (float)c->beta1,
                                         .beta2 = (float)c->beta2,
                                         .eps = (float)c->adam_eps,
                                         .weight_decay = (float)c->weight_decay},
                                  .bucket_bytes = (size_t)(c->bucket_mb * 1048576),
                                  .overlap = c->overlap == HOLMES_OVERLAP_ON};

    for (int i = 0; i < chunk; i++)
        attr.number += holmes_dp_nbuckets(t->dps[i]);
    return holmes_dp_create(&attr, &t->dps[chunk]);
}

static void last_backward(void *ctx, int chunk)
{
    struct holmes_trainer *t = ctx;

    holmes_dp_last_backward(t->dps[chunk]);
}

/* Ranks whose kernels queue their calls need communicators that come after what is queued. */
static int check_order(const struct holmes_trainer_attr *attr)
{
    for (int i = 0; attr->kernels->stream() && i < attr->links->count; i++) {
        const struct holmes_comm *c = attr->links->all[i].comm;

        if (c->size == 1 || c->ops->follow)
            continue;
        holmes_warn(TRAIN, "kernels %s queue their calls, which communicators of kind %s do not",
                    attr->kernels->name, c->ops->name);
        return -EINVAL;
    }
    return 0;
}

int holmes_trainer_create(const struct holmes_trainer_attr *attr, struct holmes_trainer **out)
{
    int rc = check_order(attr);
    struct holmes_trainer *t = rc == 0 ? calloc(1, sizeof *t) : NULL;

    if (!t)
        return rc ? rc : -ENOMEM;
    t->attr = *attr;
    attr->kernels->on_wait(holmes_links_look, attr->links);
    t->nchunks = attr->group->chunks;
    t->tp_group = holmes_tp_init(&t->tp, attr->links);
    for (int i = 0; i < t->nchunks && rc == 0; i++)
        rc = create_stage(t, i);
    for (int i = 0; i < t->nchunks && rc == 0; i++)
        rc = create_dp(t, i);
    for (int i = 0; i < t->nchunks && rc == 0; i++)
        holmes_stage_init_params(t->stages[i], attr->config->seed);
    if (rc == 0) {
        struct holmes_pipeline_attr pa = {
            .model = attr->config->model,
            .batch = attr->config->microbatch,
            .plan = holmes_trainer_plan(attr->config, attr->group, attr->links->stage),
            .chunks = t->stages,
            .links = attr->links,
            .data = attr->data,
            .last_backward = last_backward,
            .ctx = t};

        rc = holmes_pipeline_create(&pa, &t->pipeline);
    }
    if (rc != 0) {
        holmes_trainer_destroy(t);
        return rc;
    }
    *out = t;
    return 0;
}

void holmes_trainer_destroy(struct holmes_trainer *t)
{
    if (!t)
        return;
    t->attr.kernels->on_wait(NULL, NULL);
    holmes_pipeline_destroy(t->pipeline);
    for (int i = 0; i < t->nchunks; i++) {
        holmes_dp_destroy(t->dps[i]);
        holmes_stage_destroy(t->stages[i]);
    }
    free(t);
}

int holmes_trainer_nchunks(const struct holmes_trainer *t)
{
    return t->nchunks;
}

struct holmes_stage *holmes_trainer_stage(const struct holmes_trainer *t, int chunk)
{
    return t->stages[chunk];
}

struct holmes_dp *holmes_trainer_dp(const struct holmes_trainer *t, int chunk)
{
    return t->dps[chunk];
}

/* Two sums over the job in one message, each as a float and what rounding left of it. With them go
 * the ranks that are asked to stop; *stop: there are some. */
static int sum_over_world(struct holmes_trainer *t, double *a, double *b, bool *stop)
{
    struct holmes_links *l = t->attr.links;
    struct holmes_comm *c = l->world->comm;
    struct holmes_op *op = NULL;
    float *v = t->sums;
    int rc;

    v[0] = (float)*a;
    v[2] = (float)*b;
    v[1] = isfinite(v[0]) ? (float)(*a - v[0]) : 0;
    v[3] = isfinite(v[2]) ? (float)(*b - v[2]) : 0;
    v[4] = t->attr.stop && atomic_load(t->attr.stop) != 0;
    holmes_trace_name_next("sums");
    rc = c->ops->all_reduce(c, v, v, HOLMES_TRAINER_SUMS, HOLMES_FLOAT32, &op);
    if (rc == 0)
        rc = holmes_links_wait(l, l->world, &op);
    if (rc == 0) {
        *a = (double)v[0] + (double)v[1];
        *b = (double)v[2] + (double)v[3];
        *stop = v[4] > 0;
    }
    return rc;
}

static void zero_gradients(struct holmes_trainer *t)
{
    for (int i = 0; i < t->nchunks; i++)
        t->attr.kernels->zero(holmes_stage_grads(t->stages[i]),
                              holmes_stage_nparams(t->stages[i]) * sizeof(float));
}

/* The last part of the model is done with backward first. The host waits when all is queued. */
static int reduce(struct holmes_trainer *t, double *squares)
{
    int rc = 0;

    for (int i = t->nchunks - 1; i >= 0 && rc == 0; i--)
        rc = holmes_dp_reduce(t->dps[i]);
    for (int i = t->nchunks - 1; i >= 0 && rc == 0; i--) {
        double sum = 0;

        rc = holmes_dp_take_squares(t->dps[i], &sum);
        *squares += sum;
    }
    return rc;
}

/* The first of this rank's parts with such a tensor. */
static int find_unfit(struct holmes_trainer *t, struct holmes_unfit *out)
{
    struct holmes_unfit found;
    int rc = 0;

    *out = (struct holmes_unfit){.kind = HOLMES_ALL_FINITE};
    for (int i = 0; i < t->nchunks && rc == 0; i++) {
        int part = i * t->attr.config->stages + t->attr.links->stage;

        rc = holmes_unfit_find(t->stages[i], part, &found);
        if (rc == 0 && found.kind > out->kind)
            *out = found;
    }
    return rc;
}

static void describe_unfit(struct holmes_trainer *t, const struct holmes_unfit *u, const char *what)
{
    int n = snprintf(t->unfit, sizeof t->unfit, "%s: ", what);
    char *text = t->unfit + n;
    size_t len = sizeof t->unfit - (size_t)n;

    if (u->kind == HOLMES_ALL_FINITE)
        snprintf(text, len,
                 "all weights and gradients are finite; the gradients' squares add up to more than "
                 "a float holds");
    else
        snprintf(text, len,
                 "stage %d, %s: a %s is %s, the first in the order of the layers (and in %d other "
                 "tensors of this stage)",
                 u->part, u->name, u->kind == HOLMES_UNFIT_WEIGHT ? "weight" : "gradient",
                 u->nan ? "not a number" : "infinite", u->others);
}

/* Loss or norm is not finite. 0: the step is left out. -EDOM: training ends. */
static int not_finite(struct holmes_trainer *t, const struct holmes_step_result *step)
{
    const struct holmes_config *c = t->attr.config;
    enum holmes_unfit_kind kind;
    struct holmes_unfit mine;
    char what[200];
    int rc = find_unfit(t, &mine);

    if (rc == 0)
        rc = holmes_unfit_is_mine(t->attr.links, &mine, &t->unfit_here, &kind);
    if (rc != 0)
        return rc;
    snprintf(what, sizeof what, "the loss is %g and the gradient norm %g", step->loss,
             step->grad_norm);
    if (c->on_nan == HOLMES_NAN_SKIP && kind != HOLMES_UNFIT_WEIGHT &&
        t->skipped < c->max_skipped) {
        t->skipped++;
        return 0;
    }
    if (c->on_nan == HOLMES_NAN_SKIP && kind != HOLMES_UNFIT_WEIGHT)
        snprintf(what, sizeof what,
                 "the loss is %g and the gradient norm %g, as in the %d steps "
                 "before, which were skipped",
                 step->loss, step->grad_norm, t->skipped);
    describe_unfit(t, &mine, what);
    return -EDOM;
}

static int run_step(struct holmes_trainer *t, int step, double lr, struct holmes_step_result *out)
{
    const struct holmes_config *c = t->attr.config;
    double share = 1.0 / (holmes_config_microbatches(c) * c->replicas);
    double loss = 0, squares = 0, norm, scale = 1;
    int rc;

    zero_gradients(t);
    rc = holmes_pipeline_train(t->pipeline, (uint64_t)step, (float)share);
    if (rc == 0)
        rc = reduce(t, &squares);
    if (rc == 0)
        rc = holmes_pipeline_take_loss(t->pipeline, &loss);
    if (t->attr.links->tensor > 0)
        loss = 0; /* the tensor group's, told once */
    if (rc == 0)
        rc = sum_over_world(t, &squares, &loss, &out->stop);
    if (rc != 0)
        return rc;
    norm = sqrt(squares);
    if (c->clip > 0 && norm > c->clip)
        scale = c->clip / norm;
    out->loss = loss * share;
    out->grad_norm = norm;
    out->lr = lr;
    out->skipped = !isfinite(out->loss) || !isfinite(norm);
    if (out->skipped)
        return not_finite(t, out);
    t->skipped = 0;
    for (int i = 0; i < t->nchunks && rc == 0; i++)
        rc = holmes_dp_update(t->dps[i], (float)lr, (float)scale, step);
    return rc;
}

int holmes_trainer_step_at(struct holmes_trainer *t, int step, double lr,
                           struct holmes_step_result *out)
{
    uint64_t begin = holmes_trace_begin();
    int rc;

    holmes_trace_step(step);
    rc = run_step(t, step, lr, out);
    holmes_trace_end(begin, "step", "step %d", step);
    holmes_trace_step(0);
    return rc;
}

int holmes_trainer_step(struct holmes_trainer *t, int step, struct holmes_step_result *out)
{
    return holmes_trainer_step_at(t, step, holmes_config_lr(t->attr.config, step), out);
}

const char *holmes_trainer_unfit(const struct holmes_trainer *t)
{
    return t->unfit_here ? t->unfit : NULL;
}

int holmes_trainer_settle(struct holmes_trainer *t)
{
    int rc = 0;

    for (int i = 0; i < t->nchunks && rc == 0; i++)
        rc = holmes_dp_settle(t->dps[i]);
    return rc;
}

int holmes_trainer_evaluate(struct holmes_trainer *t, double *loss, int *sequences)
{
    const struct holmes_config *c = t->attr.config;
    struct holmes_links *l = t->attr.links;
    int available = holmes_dataloader_heldout_count(t->attr.data);
    int wanted = available < c->eval_sequences ? available : c->eval_sequences;
    int microbatches = wanted / c->microbatch;
    int mine = (microbatches - l->replica + c->replicas - 1) / c->replicas;
    double sum = 0, nothing = 0;
    bool stop; /* training sees it */
    int rc = holmes_trainer_settle(t);

    *sequences = microbatches * c->microbatch;
    *loss = 0;
    if (microbatches == 0 || rc != 0)
        return rc;
    holmes_links_eval_begin(l);
    if (mine > 0)
        rc = holmes_pipeline_evaluate(t->pipeline, l->replica, c->replicas, mine, &sum);
    if (l->tensor > 0)
        sum = 0;
    if (rc == 0)
        rc = sum_over_world(t, &sum, &nothing, &stop);
    holmes_links_eval_end(l);
    *loss = sum / microbatches;
    return rc;
}
