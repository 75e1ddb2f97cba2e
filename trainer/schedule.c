/* Builds the program of one stage: forwards and backwards in 1F1B order, receives posted as early
 * as a buffer is free, sends started at once and waited for only when their buffer is needed. */
#include "schedule.h"

#include <errno.h>
#include <stdlib.h>

struct builder {
    struct holmes_schedule *s;
    bool first, last, forward_only;
    int microbatches;
    int inputs_posted, grads_posted;
    int forwards, backwards; /* done so far */
};

int holmes_schedule_in_flight(int stages, int stage, int microbatches)
{
    int depth = stages - stage;

    return depth < microbatches ? depth : microbatches;
}

static void emit(struct builder *b, enum holmes_step_kind kind, int microbatch)
{
    b->s->steps[b->s->count++] = (struct holmes_step){kind, microbatch};
}

/* An input buffer is free again when the backward that may still read it is done. */
static void post_receives(struct builder *b)
{
    int released = b->forward_only ? b->forwards : b->backwards;

    while (!b->first && b->inputs_posted < b->microbatches &&
           b->inputs_posted < released + b->s->inputs)
        emit(b, HOLMES_STEP_POST_INPUT, b->inputs_posted++);
    while (!b->last && !b->forward_only && b->grads_posted < b->microbatches &&
           b->grads_posted < b->backwards + HOLMES_SCHEDULE_RING)
        emit(b, HOLMES_STEP_POST_GRAD, b->grads_posted++);
}

static void emit_forward(struct builder *b)
{
    int m = b->forwards;

    post_receives(b);
    if (!b->first)
        emit(b, HOLMES_STEP_WAIT_INPUT, m);
    if (!b->last && m >= HOLMES_SCHEDULE_RING)
        emit(b, HOLMES_STEP_FREE_OUTPUT, m - HOLMES_SCHEDULE_RING);
    emit(b, HOLMES_STEP_FORWARD, m);
    if (!b->last)
        emit(b, HOLMES_STEP_SEND_OUTPUT, m);
    b->forwards++;
}

static void emit_backward(struct builder *b)
{
    int m = b->backwards;

    post_receives(b);
    if (!b->last)
        emit(b, HOLMES_STEP_WAIT_GRAD, m);
    if (!b->first && m >= HOLMES_SCHEDULE_RING)
        emit(b, HOLMES_STEP_FREE_DINPUT, m - HOLMES_SCHEDULE_RING);
    emit(b, HOLMES_STEP_BACKWARD, m);
    if (!b->first)
        emit(b, HOLMES_STEP_SEND_DINPUT, m);
    b->backwards++;
}

static void emit_drain(struct builder *b)
{
    int from = b->microbatches > HOLMES_SCHEDULE_RING ? b->microbatches - HOLMES_SCHEDULE_RING : 0;

    for (int m = from; m < b->microbatches; m++) {
        if (!b->last)
            emit(b, HOLMES_STEP_FREE_OUTPUT, m);
        if (!b->first && !b->forward_only)
            emit(b, HOLMES_STEP_FREE_DINPUT, m);
    }
}

int holmes_schedule_init(struct holmes_schedule *s, int stages, int stage, int microbatches,
                         bool forward_only)
{
    int in_flight = holmes_schedule_in_flight(stages, stage, microbatches);
    struct builder b = {.s = s,
                        .first = stage == 0,
                        .last = stage == stages - 1,
                        .forward_only = forward_only,
                        .microbatches = microbatches};
    struct holmes_step *steps = calloc((size_t)microbatches * 10 + 1, sizeof *steps);

    if (!steps)
        return -ENOMEM;
    s->steps = steps;
    s->count = 0;
    s->slots = forward_only || in_flight < 1 ? 1 : in_flight;
    s->inputs = s->slots + 1;

    if (forward_only) {
        while (b.forwards < microbatches)
            emit_forward(&b);
    } else {
        for (int warmup = in_flight - 1; warmup > 0; warmup--)
            emit_forward(&b);
        while (b.forwards < microbatches) {
            emit_forward(&b);
            emit_backward(&b);
        }
        while (b.backwards < microbatches)
            emit_backward(&b);
    }
    emit_drain(&b);
    return 0;
}

void holmes_schedule_fini(struct holmes_schedule *s)
{
    free(s->steps);
    s->steps = NULL;
    s->count = 0;
}
