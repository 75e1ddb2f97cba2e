/* The interpreter of schedules: one small function per kind of step, buffers as the schedule's
 * rings say. */
#include "pipeline.h"

#include <errno.h>
#include <stdlib.h>

struct ring {
    char *data; /* (depth, B, T, C) in the kernels' dtype, memory of the kernels */
    struct holmes_op **ops;
    int depth;
};

struct run {
    bool training;
    uint64_t step;
    int first, stride;
    float loss_scale;
};

struct holmes_pipeline {
    struct holmes_pipeline_attr attr;
    struct holmes_schedule train;
    struct run run;
    const struct holmes_kernels *kernels;
    size_t bytes; /* of one microbatch's activations, (B, T, C) */
    struct ring input, output, grad, dinput;
    int32_t *tokens, *targets; /* (B, T) */
};

static int ring_init(const struct holmes_pipeline *p, struct ring *r, int depth)
{
    r->depth = depth;
    r->data = p->kernels->alloc((size_t)depth * p->bytes);
    r->ops = calloc((size_t)depth, sizeof(void *));
    return r->data && r->ops ? 0 : -ENOMEM;
}

static void ring_fini(const struct holmes_pipeline *p, struct ring *r)
{
    p->kernels->free(r->data);
    free(r->ops);
}

static void *ring_at(const struct holmes_pipeline *p, const struct ring *r, int m)
{
    return r->data ? r->data + (size_t)(m % r->depth) * p->bytes : NULL;
}

static struct holmes_op **ring_op(const struct ring *r, int m)
{
    return &r->ops[m % r->depth];
}

int holmes_pipeline_create(const struct holmes_pipeline_attr *attr, struct holmes_pipeline **out)
{
    const struct holmes_links *l = attr->links;
    struct holmes_pipeline *p = calloc(1, sizeof *p);
    size_t tokens = (size_t)attr->batch * (size_t)attr->model.seq_len;
    int rc;

    if (!p)
        return -ENOMEM;
    p->attr = *attr;
    p->kernels = holmes_stage_kernels(attr->stage);
    p->bytes = tokens * (size_t)attr->model.channels * holmes_dtype_size(p->kernels->dtype);
    p->tokens = calloc(tokens, sizeof *p->tokens);
    p->targets = calloc(tokens, sizeof *p->targets);
    rc = p->tokens && p->targets ? 0 : -ENOMEM;
    if (rc == 0)
        rc = holmes_schedule_init(&p->train, attr->stages, l->stage, attr->microbatches, false);
    if (rc == 0 && l->prev)
        rc = ring_init(p, &p->input, p->train.inputs);
    if (rc == 0 && l->prev)
        rc = ring_init(p, &p->dinput, HOLMES_SCHEDULE_RING);
    if (rc == 0 && l->next)
        rc = ring_init(p, &p->output, HOLMES_SCHEDULE_RING);
    if (rc == 0 && l->next)
        rc = ring_init(p, &p->grad, HOLMES_SCHEDULE_RING);
    if (rc != 0) {
        holmes_pipeline_destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

void holmes_pipeline_destroy(struct holmes_pipeline *p)
{
    if (!p)
        return;
    holmes_schedule_fini(&p->train);
    ring_fini(p, &p->input);
    ring_fini(p, &p->dinput);
    ring_fini(p, &p->output);
    ring_fini(p, &p->grad);
    free(p->tokens);
    free(p->targets);
    free(p);
}

/* The neighbour is the other one of the two in the pair. */
static int start_send(struct holmes_pipeline *p, struct holmes_link *to, struct ring *r, int m)
{
    p->kernels->sync();
    return to->comm->ops->send(to->comm, ring_at(p, r, m), p->bytes, 1 - to->comm->rank,
                               ring_op(r, m));
}

static int start_recv(struct holmes_pipeline *p, struct holmes_link *from, struct ring *r, int m)
{
    return from->comm->ops->recv(from->comm, ring_at(p, r, m), p->bytes, 1 - from->comm->rank,
                                 ring_op(r, m));
}

/* Replica d has the microbatches [d*M, (d+1)*M) of the global batch. */
static int load(struct holmes_pipeline *p, int m)
{
    const struct holmes_pipeline_attr *a = &p->attr;
    int index;

    if (a->links->prev && a->links->next)
        return 0;
    if (p->run.training) {
        index = a->links->replica * a->microbatches + m;
        return holmes_dataloader_train(a->data, p->run.step, index * a->batch, a->batch, p->tokens,
                                       p->targets);
    }
    index = p->run.first + m * p->run.stride;
    return holmes_dataloader_heldout(a->data, index * a->batch, a->batch, p->tokens, p->targets);
}

static int forward(struct holmes_pipeline *p, int m)
{
    const int rc = load(p, m);

    if (rc != 0)
        return rc;
    return holmes_stage_forward(p->attr.stage, p->run.training ? m % p->train.slots : 0, p->tokens,
                                p->targets, ring_at(p, &p->input, m), ring_at(p, &p->output, m));
}

static int backward(struct holmes_pipeline *p, int m)
{
    return holmes_stage_backward(p->attr.stage, m % p->train.slots, ring_at(p, &p->grad, m),
                                 ring_at(p, &p->dinput, m), p->run.loss_scale);
}

static int execute(struct holmes_pipeline *p, struct holmes_step s)
{
    struct holmes_links *l = p->attr.links;
    int m = s.microbatch;

    switch (s.kind) {
    case HOLMES_STEP_POST_INPUT:
        return start_recv(p, l->prev, &p->input, m);
    case HOLMES_STEP_POST_GRAD:
        return start_recv(p, l->next, &p->grad, m);
    case HOLMES_STEP_WAIT_INPUT:
        return holmes_links_wait(l, l->prev, ring_op(&p->input, m));
    case HOLMES_STEP_WAIT_GRAD:
        return holmes_links_wait(l, l->next, ring_op(&p->grad, m));
    case HOLMES_STEP_FORWARD:
        return forward(p, m);
    case HOLMES_STEP_BACKWARD:
        return backward(p, m);
    case HOLMES_STEP_SEND_OUTPUT:
        return start_send(p, l->next, &p->output, m);
    case HOLMES_STEP_SEND_DINPUT:
        return start_send(p, l->prev, &p->dinput, m);
    case HOLMES_STEP_FREE_OUTPUT:
        return holmes_links_wait(l, l->next, ring_op(&p->output, m));
    case HOLMES_STEP_FREE_DINPUT:
        return holmes_links_wait(l, l->prev, ring_op(&p->dinput, m));
    }
    return -EINVAL;
}

static int run_schedule(struct holmes_pipeline *p, const struct holmes_schedule *s,
                        const struct run *run, double *loss)
{
    int rc = 0;

    p->run = *run;
    for (int i = 0; i < s->count && rc == 0; i++)
        rc = execute(p, s->steps[i]);
    if (rc == 0)
        holmes_stage_take_loss(p->attr.stage, loss);
    return rc;
}

int holmes_pipeline_train(struct holmes_pipeline *p, uint64_t step, float loss_scale, double *loss)
{
    struct run run = {.training = true, .step = step, .loss_scale = loss_scale};

    return run_schedule(p, &p->train, &run, loss);
}

int holmes_pipeline_evaluate(struct holmes_pipeline *p, int first, int stride, int count,
                             double *loss)
{
    struct run run = {.first = first, .stride = stride};
    struct holmes_schedule s;
    int rc = holmes_schedule_init(&s, p->attr.stages, p->attr.links->stage, count, true);

    if (rc == 0) {
        rc = run_schedule(p, &s, &run, loss);
        holmes_schedule_fini(&s);
    }
    return rc;
}
