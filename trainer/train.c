/* The training step: pipeline, reduction, norm and loss over the job, clipped update. */
#include "train.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "pipeline.h"
#include "tp.h"

struct holmes_trainer {
    struct holmes_trainer_attr attr;
    struct holmes_tp tp;
    struct holmes_stage *stage;
    struct holmes_pipeline *pipeline;
    struct holmes_dp *dp;
    float sums[4]; /* lives as long as an operation that is never waited for */
};

static int create_stage(struct holmes_trainer *t)
{
    const struct holmes_config *c = t->attr.config;
    int p = t->attr.links->stage;
    struct holmes_stage_attr attr = {
        .model = c->model,
        .first_layer = t->attr.group->first_layer[p],
        .last_layer = t->attr.group->first_layer[p + 1],
        .is_first = p == 0,
        .is_last = p == c->stages - 1,
        .batch = c->microbatch,
        .slots = holmes_schedule_in_flight(c->stages, p, holmes_config_microbatches(c)),
        .recompute = c->recompute,
        .group = holmes_tp_init(&t->tp, t->attr.links, t->attr.kernels),
        .kernels = t->attr.kernels,
    };
    int rc = holmes_stage_create(&attr, &t->stage);

    if (rc == 0)
        holmes_stage_init_params(t->stage, c->seed);
    return rc;
}

int holmes_trainer_create(const struct holmes_trainer_attr *attr, struct holmes_trainer **out)
{
    const struct holmes_config *c = attr->config;
    struct holmes_adamw hp = {
        .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = (float)c->weight_decay};
    struct holmes_trainer *t = calloc(1, sizeof *t);
    int rc;

    if (!t)
        return -ENOMEM;
    t->attr = *attr;
    rc = create_stage(t);
    if (rc == 0) {
        struct holmes_pipeline_attr pa = {.model = c->model,
                                          .batch = c->microbatch,
                                          .microbatches = holmes_config_microbatches(c),
                                          .stages = c->stages,
                                          .stage = t->stage,
                                          .links = attr->links,
                                          .data = attr->data};

        rc = holmes_pipeline_create(&pa, &t->pipeline);
    }
    if (rc == 0)
        rc = holmes_dp_create(t->stage, attr->links, &hp, &t->dp);
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
    holmes_dp_destroy(t->dp);
    holmes_pipeline_destroy(t->pipeline);
    holmes_stage_destroy(t->stage);
    free(t);
}

int holmes_trainer_nchunks(const struct holmes_trainer *t)
{
    (void)t;
    return 1;
}

struct holmes_stage *holmes_trainer_stage(const struct holmes_trainer *t, int chunk)
{
    return chunk == 0 ? t->stage : NULL;
}

struct holmes_dp *holmes_trainer_dp(const struct holmes_trainer *t, int chunk)
{
    return chunk == 0 ? t->dp : NULL;
}

/* Two sums over the job in one message, each as a float and what rounding left of it. */
static int sum_over_world(struct holmes_trainer *t, double *a, double *b)
{
    struct holmes_links *l = t->attr.links;
    struct holmes_comm *c = l->world->comm;
    struct holmes_op *op = NULL;
    float *v = t->sums;
    int rc;

    v[0] = (float)*a;
    v[2] = (float)*b;
    v[1] = (float)(*a - v[0]);
    v[3] = (float)(*b - v[2]);
    rc = c->ops->all_reduce(c, v, v, 4, HOLMES_FLOAT32, &op);
    if (rc == 0)
        rc = holmes_links_wait(l, l->world, &op);
    if (rc == 0) {
        *a = (double)v[0] + (double)v[1];
        *b = (double)v[2] + (double)v[3];
    }
    return rc;
}

int holmes_trainer_step(struct holmes_trainer *t, int step, struct holmes_step_result *out)
{
    const struct holmes_config *c = t->attr.config;
    double share = 1.0 / (holmes_config_microbatches(c) * c->replicas);
    double loss = 0, squares = 0, norm, scale = 1;
    int rc;

    t->attr.kernels->zero(holmes_stage_grads(t->stage),
                          holmes_stage_nparams(t->stage) * sizeof(float));
    rc = holmes_pipeline_train(t->pipeline, (uint64_t)step, (float)share, &loss);
    if (rc == 0)
        rc = holmes_dp_reduce(t->dp, &squares);
    if (t->attr.links->tensor > 0)
        loss = 0; /* the tensor group's, told once */
    if (rc == 0)
        rc = sum_over_world(t, &squares, &loss);
    if (rc != 0)
        return rc;
    norm = sqrt(squares);
    if (c->clip > 0 && norm > c->clip)
        scale = c->clip / norm;
    out->loss = loss * share;
    out->grad_norm = norm;
    out->lr = holmes_config_lr(c, step);
    return holmes_dp_update(t->dp, (float)out->lr, (float)scale, step);
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
    int rc = 0;

    *sequences = microbatches * c->microbatch;
    *loss = 0;
    if (microbatches == 0)
        return 0;
    holmes_links_eval_begin(l);
    if (mine > 0)
        rc = holmes_pipeline_evaluate(t->pipeline, l->replica, c->replicas, mine, &sum);
    if (l->tensor > 0)
        sum = 0;
    if (rc == 0)
        rc = sum_over_world(t, &sum, &nothing);
    holmes_links_eval_end(l);
    *loss = sum / microbatches;
    return rc;
}
