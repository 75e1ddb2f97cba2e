/* Builds the program of one rank in two layers: the order of forwards and backwards, and around
 * each of them its communication: receives posted as early as a buffer is free, sends started at
 * once and waited for only when their buffer is needed. */
#include "schedule.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A kind of message of this rank: how many there are, were posted, used (received) or made (sent).
 */
struct flow {
    int posted, used;
};

struct builder {
    const struct holmes_schedule_attr *attr;
    struct holmes_schedule *s;
    int total;               /* forwards, and as many backwards */
    int forwards, backwards; /* done so far */
    struct flow input, grad;
    int outputs, dinputs; /* sent so far */
    int inputs_posted_at; /* the forward whose input is to be posted next, or later */
    int grads_posted_at;  /* likewise, of backwards */
    int held[HOLMES_SCHEDULE_CHUNKS_MAX];
};

/* The k-th computation of a rank, the same for all ranks: P microbatches of the first chunk, P of
 * the second, and so on, then the next P microbatches; backward takes the chunks from the last on.
 * The last group is smaller when P does not divide M. */
struct work {
    int chunk, microbatch;
};

static struct work work_at(const struct holmes_schedule_attr *a, int k, bool backward)
{
    int group = k / (a->stages * a->chunks) * a->stages; /* its first microbatch */
    int size = a->microbatches - group < a->stages ? a->microbatches - group : a->stages;
    int within = k - group * a->chunks;
    int chunk = within / size;

    return (struct work){.chunk = backward ? a->chunks - 1 - chunk : chunk,
                         .microbatch = group + within % size};
}

/* Whether a chunk of this rank gets its input, or its gradient, from another rank. */
static bool has_input(const struct holmes_schedule_attr *a, int chunk)
{
    return a->stage > 0 || chunk > 0;
}

static bool has_output(const struct holmes_schedule_attr *a, int chunk)
{
    return a->stage < a->stages - 1 || chunk < a->chunks - 1;
}

static void emit(struct builder *b, enum holmes_step_kind kind, struct work w, int in, int out)
{
    b->s->steps[b->s->count++] = (struct holmes_step){kind, w.chunk, w.microbatch, in, out};
}

static void emit_message(struct builder *b, enum holmes_step_kind kind, struct work w, int n)
{
    emit(b, kind, w, n, n);
}

static void post_receives(struct builder *b)
{
    const struct holmes_schedule_attr *a = b->attr;

    for (; b->inputs_posted_at < b->total; b->inputs_posted_at++) {
        struct work w = work_at(a, b->inputs_posted_at, false);

        if (!has_input(a, w.chunk))
            continue;
        if (b->input.posted == b->input.used + HOLMES_SCHEDULE_RING)
            break;
        emit_message(b, HOLMES_STEP_POST_INPUT, w, b->input.posted++);
    }
    for (; b->grads_posted_at < b->total && !a->forward_only; b->grads_posted_at++) {
        struct work w = work_at(a, b->grads_posted_at, true);

        if (!has_output(a, w.chunk))
            continue;
        if (b->grad.posted == b->grad.used + HOLMES_SCHEDULE_RING)
            break;
        emit_message(b, HOLMES_STEP_POST_GRAD, w, b->grad.posted++);
    }
}

static void emit_forward(struct builder *b)
{
    struct work w = work_at(b->attr, b->forwards, false);
    bool receives = has_input(b->attr, w.chunk), sends = has_output(b->attr, w.chunk);
    int in = receives ? b->input.used : -1, out = sends ? b->outputs : -1;

    post_receives(b);
    if (receives)
        emit_message(b, HOLMES_STEP_WAIT_INPUT, w, in);
    if (out >= HOLMES_SCHEDULE_RING)
        emit_message(b, HOLMES_STEP_FREE_OUTPUT, w, out - HOLMES_SCHEDULE_RING);
    emit(b, HOLMES_STEP_FORWARD, w, in, out);
    if (sends)
        emit_message(b, HOLMES_STEP_SEND_OUTPUT, w, out);
    b->input.used += receives;
    b->outputs += sends;
    b->forwards++;
    if (++b->held[w.chunk] > b->s->slots[w.chunk])
        b->s->slots[w.chunk] = b->held[w.chunk];
}

static void emit_backward(struct builder *b)
{
    struct work w = work_at(b->attr, b->backwards, true);
    bool receives = has_output(b->attr, w.chunk), sends = has_input(b->attr, w.chunk);
    int in = receives ? b->grad.used : -1, out = sends ? b->dinputs : -1;

    post_receives(b);
    if (receives)
        emit_message(b, HOLMES_STEP_WAIT_GRAD, w, in);
    if (out >= HOLMES_SCHEDULE_RING)
        emit_message(b, HOLMES_STEP_FREE_DINPUT, w, out - HOLMES_SCHEDULE_RING);
    emit(b, HOLMES_STEP_BACKWARD, w, in, out);
    if (sends)
        emit_message(b, HOLMES_STEP_SEND_DINPUT, w, out);
    b->grad.used += receives;
    b->dinputs += sends;
    b->backwards++;
    b->held[w.chunk]--;
}

static void drain(struct builder *b, enum holmes_step_kind kind, int sent)
{
    int from = sent > HOLMES_SCHEDULE_RING ? sent - HOLMES_SCHEDULE_RING : 0;

    for (int n = from; n < sent; n++)
        emit_message(b, kind, (struct work){0}, n);
}

/* Forwards before the first backward of a rank, but for the one that 1F1B starts with. */
static int warm_up(const struct holmes_schedule_attr *a, int total)
{
    int n = a->stages - a->stage - 1;

    if (a->chunks > 1)
        n = a->microbatches == a->stages ? total : 2 * n + (a->chunks - 1) * a->stages;
    return n < total ? n : total;
}

static int check(const struct holmes_schedule_attr *a)
{
    bool fits = a->stages > 0 && a->stage >= 0 && a->stage < a->stages && a->microbatches >= 0 &&
                a->chunks > 0 && a->chunks <= HOLMES_SCHEDULE_CHUNKS_MAX &&
                (a->chunks == 1 || a->stages > 1) &&
                (a->chunks == 1 || a->forward_only || a->microbatches % a->stages == 0);

    return fits ? 0 : -EINVAL;
}

int holmes_schedule_init(struct holmes_schedule *s, const struct holmes_schedule_attr *attr)
{
    int total = attr->microbatches * attr->chunks, rc = check(attr);
    struct builder b = {.attr = attr, .s = s, .total = total};

    if (rc != 0)
        return rc;
    *s = (struct holmes_schedule){0};
    s->steps = calloc((size_t)total * 10 + 1, sizeof *s->steps);
    if (!s->steps)
        return -ENOMEM;
    if (attr->forward_only) {
        while (b.forwards < total)
            emit_forward(&b);
        for (int c = 0; c < attr->chunks; c++)
            s->slots[c] = 1;
    } else {
        for (int n = warm_up(attr, total); n > 0; n--)
            emit_forward(&b);
        while (b.forwards < total) {
            emit_forward(&b);
            emit_backward(&b);
        }
        while (b.backwards < total)
            emit_backward(&b);
    }
    drain(&b, HOLMES_STEP_FREE_OUTPUT, b.outputs);
    drain(&b, HOLMES_STEP_FREE_DINPUT, b.dinputs);
    return 0;
}

void holmes_schedule_fini(struct holmes_schedule *s)
{
    free(s->steps);
    s->steps = NULL;
    s->count = 0;
}

int holmes_schedule_in_flight(const struct holmes_schedule_attr *attr, int chunk)
{
    struct holmes_schedule s;
    int slots;

    if (holmes_schedule_init(&s, attr) != 0)
        return -1;
    slots = s.slots[chunk];
    holmes_schedule_fini(&s);
    return slots;
}
