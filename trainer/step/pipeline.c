/* The interpreter of schedules: one small function per kind of step, buffers as the schedule's
 * rings say. */
#include "pipeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

struct ring {
    char *data; /* (HOLMES_SCHEDULE_RING, B, T, C) in the kernels' dtype, memory of the kernels */
    struct holmes_op *ops[HOLMES_SCHEDULE_RING];
};

struct run {
    bool training;
    uint64_t step;
    int first, stride;
    float loss_scale;
};

struct holmes_pipeline {
    struct holmes_pipeline_attr attr;
    struct holmes_stage *chunks[HOLMES_SCHEDULE_CHUNKS_MAX];
    struct holmes_schedule train;
    struct run run;
    const struct holmes_kernels *kernels;
    size_t bytes; /* of one microbatch's activations, (B, T, C) */
    /* The tensor group's ranks hold the same bits: each sends its slice of the (B, T, C) values to
     * the rank of its index, and the receivers gather what they got inside their host. What goes
     * between stages, over the slower link, is sent once and not by each of the group. */
    size_t slice;         /* values; C is a multiple of the group's size */
    struct holmes_op *op; /* of gathering; lives as long as one that is never waited for */
    struct ring input, output, grad, dinput;
    int32_t *tokens, *targets; /* (B, T) */
};

static int ring_init(const struct holmes_pipeline *p, struct ring *r)
{
    r->data = p->kernels->alloc(HOLMES_SCHEDULE_RING * p->bytes);
    return r->data ? 0 : -ENOMEM;
}

/* NULL for no message. */
static void *ring_at(const struct holmes_pipeline *p, const struct ring *r, int message)
{
    if (message < 0)
        return NULL;
    return r->data + (size_t)(message % HOLMES_SCHEDULE_RING) * p->bytes;
}

/* This rank's slice of a message. */
static char *slice_at(const struct holmes_pipeline *p, const struct ring *r, int message)
{
    size_t bytes = p->slice * holmes_dtype_size(p->kernels->dtype);

    return (char *)ring_at(p, r, message) + (size_t)p->attr.links->tensor * bytes;
}

static struct holmes_op **ring_op(struct ring *r, int message)
{
    return &r->ops[message % HOLMES_SCHEDULE_RING];
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
    p->kernels = holmes_stage_kernels(attr->chunks[0]);
    p->bytes = tokens * (size_t)attr->model.channels * holmes_dtype_size(p->kernels->dtype);
    p->slice = tokens * (size_t)attr->model.channels / (size_t)(l->tp ? l->tp->comm->size : 1);
    p->tokens = calloc(tokens, sizeof *p->tokens);
    p->targets = calloc(tokens, sizeof *p->targets);
    rc = p->tokens && p->targets ? 0 : -ENOMEM;
    memcpy(p->chunks, attr->chunks, (size_t)attr->plan.chunks * sizeof(void *));
    p->attr.chunks = p->chunks;
    if (rc == 0)
        rc = holmes_schedule_init(&p->train, &attr->plan);
    if (rc == 0 && l->prev)
        rc = ring_init(p, &p->input);
    if (rc == 0 && l->prev)
        rc = ring_init(p, &p->dinput);
    if (rc == 0 && l->next)
        rc = ring_init(p, &p->output);
    if (rc == 0 && l->next)
        rc = ring_init(p, &p->grad);
    if (rc != 0) {
        holmes_pipeline_destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

int holmes_pipeline_measure(const struct holmes_model *m, int batch,
                            const struct holmes_schedule_attr *plan, enum holmes_dtype t,
                            size_t *bytes)
{
    bool ring = plan->chunks > 1, prev = plan->stage > 0 || ring;
    bool next = plan->stage < plan->stages - 1 || ring;
    size_t rings = 2 * (size_t)prev + 2 * (size_t)next; /* both ways to each neighbour */
    size_t tokens = (size_t)batch * (size_t)m->seq_len, message;

    if (__builtin_mul_overflow(tokens, (size_t)m->channels * holmes_dtype_size(t), &message) ||
        __builtin_mul_overflow(message, rings * HOLMES_SCHEDULE_RING, bytes) ||
        __builtin_add_overflow(*bytes, 2 * tokens * sizeof(int32_t), bytes))
        return -ENOMEM;
    return 0;
}

void holmes_pipeline_destroy(struct holmes_pipeline *p)
{
    if (!p)
        return;
    holmes_schedule_fini(&p->train);
    p->kernels->free(p->input.data);
    p->kernels->free(p->dinput.data);
    p->kernels->free(p->output.data);
    p->kernels->free(p->grad.data);
    free(p->tokens);
    free(p->targets);
    free(p);
}

/* "3", or "3.1" of chunk 1. */
static const char *label(const struct holmes_pipeline *p, struct holmes_step s, char text[24])
{
    if (p->attr.plan.chunks == 1)
        snprintf(text, 24, "%d", s.microbatch);
    else
        snprintf(text, 24, "%d.%d", s.microbatch, s.chunk);
    return text;
}

/* The neighbour is the other one of the two in the pair. */
static int start_send(struct holmes_pipeline *p, struct holmes_link *to, struct ring *r,
                      struct holmes_step s)
{
    char text[24];

    holmes_trace_name_next("send %s%s", r == &p->dinput ? "d" : "", label(p, s, text));
    return to->comm->ops->send(to->comm, slice_at(p, r, s.out),
                               p->slice * holmes_dtype_size(p->kernels->dtype), 1 - to->comm->rank,
                               ring_op(r, s.out));
}

static int start_recv(struct holmes_pipeline *p, struct holmes_link *from, struct ring *r,
                      struct holmes_step s)
{
    char text[24];

    holmes_trace_name_next("recv %s%s", r == &p->grad ? "d" : "", label(p, s, text));
    return from->comm->ops->recv(from->comm, slice_at(p, r, s.in),
                                 p->slice * holmes_dtype_size(p->kernels->dtype),
                                 1 - from->comm->rank, ring_op(r, s.in));
}

/* The slice is here, and then the others of the tensor group. Its ranks run the same schedule, so
 * that they come to it in the same order among their other operations. */
static int wait_recv(struct holmes_pipeline *p, struct holmes_link *from, struct ring *r,
                     struct holmes_step s)
{
    struct holmes_links *l = p->attr.links;
    int rc = holmes_links_follow(l, from, ring_op(r, s.in));
    char text[24];

    if (rc != 0 || !l->tp)
        return rc;
    holmes_trace_name_next("gather %s%s", r == &p->grad ? "d" : "", label(p, s, text));
    rc = l->tp->comm->ops->all_gather(l->tp->comm, slice_at(p, r, s.in), ring_at(p, r, s.in),
                                      p->slice, p->kernels->dtype, &p->op);
    return rc ? rc : holmes_links_follow(l, l->tp, &p->op);
}

/* The first part of the model reads tokens, the last one targets. */
static bool reads_data(const struct holmes_pipeline *p, int chunk)
{
    const struct holmes_schedule_attr *a = &p->attr.plan;

    return (a->stage == 0 && chunk == 0) || (a->stage == a->stages - 1 && chunk == a->chunks - 1);
}

/* Replica d has the microbatches [d*M, (d+1)*M) of the global batch. */
static int load(struct holmes_pipeline *p, int m)
{
    const struct holmes_pipeline_attr *a = &p->attr;
    int index;

    if (p->run.training) {
        index = a->links->replica * a->plan.microbatches + m;
        return holmes_dataloader_train(a->data, p->run.step, index * a->batch, a->batch, p->tokens,
                                       p->targets);
    }
    index = p->run.first + m * p->run.stride;
    return holmes_dataloader_heldout(a->data, index * a->batch, a->batch, p->tokens, p->targets);
}

static int forward(struct holmes_pipeline *p, struct holmes_step s)
{
    int slot = p->run.training ? s.microbatch % p->train.slots[s.chunk] : 0;
    int rc = reads_data(p, s.chunk) ? load(p, s.microbatch) : 0;
    uint64_t begin = holmes_trace_begin();
    char text[24];

    if (rc == 0)
        rc = holmes_stage_forward(p->chunks[s.chunk], slot, p->tokens, p->targets,
                                  ring_at(p, &p->input, s.in), ring_at(p, &p->output, s.out));
    holmes_trace_end(begin, "compute", "forward %s", label(p, s, text));
    return rc;
}

static int backward(struct holmes_pipeline *p, struct holmes_step s)
{
    uint64_t begin = holmes_trace_begin();
    char text[24];
    int rc;

    if (s.microbatch == p->attr.plan.microbatches - 1 && p->attr.last_backward)
        p->attr.last_backward(p->attr.ctx, s.chunk);
    rc = holmes_stage_backward(p->chunks[s.chunk], s.microbatch % p->train.slots[s.chunk],
                               ring_at(p, &p->grad, s.in), ring_at(p, &p->dinput, s.out),
                               p->run.loss_scale);
    holmes_trace_end(begin, "compute", "backward %s", label(p, s, text));
    return rc;
}

static int execute(struct holmes_pipeline *p, struct holmes_step s)
{
    struct holmes_links *l = p->attr.links;

    switch (s.kind) {
    case HOLMES_STEP_POST_INPUT:
        return start_recv(p, l->prev, &p->input, s);
    case HOLMES_STEP_POST_GRAD:
        return start_recv(p, l->next, &p->grad, s);
    case HOLMES_STEP_WAIT_INPUT:
        return wait_recv(p, l->prev, &p->input, s);
    case HOLMES_STEP_WAIT_GRAD:
        return wait_recv(p, l->next, &p->grad, s);
    case HOLMES_STEP_FORWARD:
        return forward(p, s);
    case HOLMES_STEP_BACKWARD:
        return backward(p, s);
    case HOLMES_STEP_SEND_OUTPUT:
        return start_send(p, l->next, &p->output, s);
    case HOLMES_STEP_SEND_DINPUT:
        return start_send(p, l->prev, &p->dinput, s);
    case HOLMES_STEP_FREE_OUTPUT:
        return holmes_links_follow(l, l->next, ring_op(&p->output, s.out));
    case HOLMES_STEP_FREE_DINPUT:
        return holmes_links_follow(l, l->prev, ring_op(&p->dinput, s.out));
    }
    return -EINVAL;
}

static int run_schedule(struct holmes_pipeline *p, const struct holmes_schedule *s,
                        const struct run *run)
{
    int rc = 0;

    p->run = *run;
    for (int i = 0; i < s->count && rc == 0; i++)
        rc = execute(p, s->steps[i]);
    return rc;
}

int holmes_pipeline_take_loss(struct holmes_pipeline *p, double *loss)
{
    int rc = holmes_links_drain(p->attr.links);

    if (rc == 0) /* the model's last part is a rank's last chunk */
        holmes_stage_take_loss(p->chunks[p->attr.plan.chunks - 1], loss);
    return rc;
}

int holmes_pipeline_train(struct holmes_pipeline *p, uint64_t step, float loss_scale)
{
    struct run run = {.training = true, .step = step, .loss_scale = loss_scale};

    return run_schedule(p, &p->train, &run);
}

int holmes_pipeline_evaluate(struct holmes_pipeline *p, int first, int stride, int count,
                             double *loss)
{
    struct run run = {.first = first, .stride = stride};
    struct holmes_schedule_attr plan = p->attr.plan;
    struct holmes_schedule s;
    int rc;

    plan.microbatches = count;
    plan.forward_only = true;
    rc = holmes_schedule_init(&s, &plan);

    if (rc == 0) {
        rc = run_schedule(p, &s, &run);
        holmes_schedule_fini(&s);
    }
    return rc ? rc : holmes_pipeline_take_loss(p, loss);
}
