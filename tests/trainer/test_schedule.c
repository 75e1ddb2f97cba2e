/* The program of a rank: its shape, its buffers, and that P ranks running it with rendezvous sends
 * never wait for each other in a circle, found by executing it in a simulator. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

#define MAX_P 6
#define MAX_M 13
#define MAX_V 4

struct size {
    int P, M, V;
};

/* V = 1 with every number of microbatches, else with multiples of P. */
static void for_every_size(int from_v, int to_v, void (*check)(struct size n))
{
    for (int V = from_v; V <= to_v; V++)
        for (int P = V > 1 ? 2 : 1; P <= MAX_P; P++)
            for (int M = 1; M <= MAX_M; M++)
                if (V == 1 || M % P == 0)
                    check((struct size){P, M, V});
}

static struct holmes_schedule build(struct size n, int p, bool forward_only)
{
    struct holmes_schedule_attr attr = {.stages = n.P,
                                        .stage = p,
                                        .microbatches = n.M,
                                        .chunks = n.V,
                                        .forward_only = forward_only};
    struct holmes_schedule s;

    cr_assert_eq(holmes_schedule_init(&s, &attr), 0, "P=%d M=%d V=%d", n.P, n.M, n.V);
    return s;
}

static void check_chunk(struct size n, int p, int chunk)
{
    struct holmes_schedule s = build(n, p, false);
    int forwards = 0, backwards = 0, most = 0;

    for (int i = 0; i < s.count; i++) {
        struct holmes_step step = s.steps[i];

        if (step.chunk != chunk)
            continue;
        if (step.kind == HOLMES_STEP_FORWARD)
            cr_assert_eq(step.microbatch, forwards++, "P=%d M=%d V=%d rank %d", n.P, n.M, n.V, p);
        if (step.kind == HOLMES_STEP_BACKWARD) {
            cr_assert_eq(step.microbatch, backwards++, "P=%d M=%d V=%d rank %d", n.P, n.M, n.V, p);
            cr_assert_leq(backwards, forwards, "P=%d M=%d V=%d rank %d: backward first", n.P, n.M,
                          n.V, p);
        }
        if (forwards - backwards > most)
            most = forwards - backwards;
    }
    cr_assert_eq(forwards, n.M);
    cr_assert_eq(backwards, n.M);
    cr_assert_eq(s.slots[chunk], most);
    if (n.V == 1)
        cr_assert_eq(most, n.P - p < n.M ? n.P - p : n.M, "P=%d M=%d stage %d: %d in flight", n.P,
                     n.M, p, most);
    holmes_schedule_fini(&s);
}

static void check_each_once(struct size n)
{
    for (int p = 0; p < n.P; p++)
        for (int chunk = 0; chunk < n.V; chunk++)
            check_chunk(n, p, chunk);
}

Test(schedule, runs_each_microbatch_once_in_order_and_keeps_at_most_the_distance_to_the_end)
{
    for_every_size(1, 1, check_each_once);
}

Test(schedule, with_virtual_stages_runs_each_microbatch_once_through_each_chunk)
{
    for_every_size(2, MAX_V, check_each_once);
}

/* Forwards less backwards so far, over all chunks, at most. Narayanan et al., section 2.2: the
 * warm-up of rank p is 2 (P - p - 1) + (V - 1) P. */
static void check_in_flight(struct size n)
{
    for (int p = 0; p < n.P; p++) {
        struct holmes_schedule s = build(n, p, false);
        int bound = n.M == n.P ? n.M * n.V : 2 * (n.P - p - 1) + (n.V - 1) * n.P + 1;
        int held = 0, most = 0;

        for (int i = 0; i < s.count; i++) {
            held += s.steps[i].kind == HOLMES_STEP_FORWARD;
            held -= s.steps[i].kind == HOLMES_STEP_BACKWARD;
            most = held > most ? held : most;
        }
        cr_assert_leq(most, bound, "P=%d M=%d V=%d rank %d: %d in flight", n.P, n.M, n.V, p, most);
        holmes_schedule_fini(&s);
    }
}

Test(schedule, with_virtual_stages_keeps_at_most_what_its_warm_up_made)
{
    for_every_size(2, MAX_V, check_in_flight);
}

static void check_warm_up(struct size n)
{
    struct holmes_schedule s = build(n, 0, false);
    int before = 0;

    for (int i = 0; i < s.count && s.steps[i].kind != HOLMES_STEP_BACKWARD; i++)
        before += s.steps[i].kind == HOLMES_STEP_FORWARD;
    cr_assert_eq(before, n.P < n.M ? n.P : n.M, "P=%d M=%d: %d forwards before the first backward",
                 n.P, n.M, before);
    holmes_schedule_fini(&s);
}

Test(schedule, starts_the_first_backward_after_as_many_forwards_as_stages)
{
    for_every_size(1, 1, check_warm_up);
}

Test(schedule, refuses_what_cannot_be_scheduled)
{
    const struct holmes_schedule_attr bad[] = {
        {.stages = 2, .stage = 2, .microbatches = 2, .chunks = 1},
        {.stages = 2, .stage = -1, .microbatches = 2, .chunks = 1},
        {.stages = 2, .stage = 0, .microbatches = 3, .chunks = 2},
        {.stages = 1, .stage = 0, .microbatches = 2, .chunks = 2},
        {.stages = 2, .stage = 0, .microbatches = 2, .chunks = 0},
        {.stages = 2, .stage = 0, .microbatches = 2, .chunks = HOLMES_SCHEDULE_CHUNKS_MAX + 1},
    };
    struct holmes_schedule s;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(holmes_schedule_init(&s, &bad[i]), -EINVAL, "case %zu", i);
}

/* --- a simulator ------------------------------------------------------------------------------ */

enum channel { ACTIVATIONS, GRADIENTS, CHANNELS };

#define MESSAGES_MAX (MAX_M * MAX_V)

/* What crosses a link: which part of the model it leaves, for which microbatch, and when. */
struct message {
    int part, microbatch;
    double at;
};

struct sim_stage {
    struct holmes_schedule s;
    int at;
    double time;
    /* Per channel towards this rank: what was posted, and what the other end started. */
    int posted[CHANNELS], sent[CHANNELS];
    struct message messages[CHANNELS][MESSAGES_MAX];
    /* Buffer occupancy: message + 1, or 0; of slots: microbatch + 1. */
    int input[HOLMES_SCHEDULE_RING], grad[HOLMES_SCHEDULE_RING], output[HOLMES_SCHEDULE_RING],
        dinput[HOLMES_SCHEDULE_RING], slot[MAX_V][MAX_M];
};

struct sim {
    struct size n;
    bool forward_only;
    struct sim_stage stages[MAX_P];
};

static void occupy(int *buffer, int what, const char *kind)
{
    cr_assert_eq(*buffer, 0, "%s %d overwrites %d", kind, what, *buffer - 1);
    *buffer = what + 1;
}

static void release(int *buffer, int what, const char *kind)
{
    cr_assert_eq(*buffer, what + 1, "%s: %d expected, %d found", kind, what, *buffer - 1);
    *buffer = 0;
}

/* The parts of the model lie round robin: chunk v of rank p is part v * P + p. */
static int part_of(const struct sim *sim, const struct sim_stage *st, int chunk)
{
    return chunk * sim->n.P + (int)(st - sim->stages);
}

static bool compute_forward(struct sim *sim, struct sim_stage *st, struct holmes_step step)
{
    int part = part_of(sim, st, step.chunk);

    cr_assert_eq(step.in >= 0, part > 0);
    cr_assert_eq(step.out >= 0, part < sim->n.P * sim->n.V - 1);
    if (step.in >= 0) {
        struct message *m = &st->messages[ACTIVATIONS][step.in];

        cr_assert_eq(m->part, part - 1, "the input of part %d comes from part %d", part, m->part);
        cr_assert_eq(m->microbatch, step.microbatch);
        release(&st->input[step.in % HOLMES_SCHEDULE_RING], step.in, "input");
    }
    if (step.out >= 0)
        occupy(&st->output[step.out % HOLMES_SCHEDULE_RING], step.out, "output");
    if (!sim->forward_only)
        occupy(&st->slot[step.chunk][step.microbatch % st->s.slots[step.chunk]], step.microbatch,
               "slot");
    st->time += 1.0 / sim->n.V;
    return true;
}

static bool compute_backward(struct sim *sim, struct sim_stage *st, struct holmes_step step)
{
    int part = part_of(sim, st, step.chunk);

    cr_assert_eq(step.in >= 0, part < sim->n.P * sim->n.V - 1);
    cr_assert_eq(step.out >= 0, part > 0);
    release(&st->slot[step.chunk][step.microbatch % st->s.slots[step.chunk]], step.microbatch,
            "slot");
    if (step.in >= 0) {
        struct message *m = &st->messages[GRADIENTS][step.in];

        cr_assert_eq(m->part, part + 1, "the gradient of part %d comes from part %d", part,
                     m->part);
        cr_assert_eq(m->microbatch, step.microbatch);
        release(&st->grad[step.in % HOLMES_SCHEDULE_RING], step.in, "gradient");
    }
    if (step.out >= 0)
        occupy(&st->dinput[step.out % HOLMES_SCHEDULE_RING], step.out, "gradient to send");
    st->time += 2.0 / sim->n.V;
    return true;
}

static bool start_send(struct sim *sim, struct sim_stage *st, struct sim_stage *to,
                       enum channel channel, struct holmes_step step)
{
    cr_assert_eq(to->sent[channel], step.out);
    to->messages[channel][to->sent[channel]++] =
        (struct message){part_of(sim, st, step.chunk), step.microbatch, st->time};
    return true;
}

/* False when it is not here; else no earlier than it was sent. */
static bool wait_message(struct sim_stage *st, enum channel channel, int message)
{
    if (st->sent[channel] <= message)
        return false;
    if (st->time < st->messages[channel][message].at)
        st->time = st->messages[channel][message].at;
    return true;
}

/* Runs one step of a rank; false when it has to wait. A send is over when its receive is posted, a
 * receive when its send has been started: nothing is buffered on the way. */
static bool sim_step(struct sim *sim, int p)
{
    struct sim_stage *st = &sim->stages[p];
    struct sim_stage *prev = &sim->stages[(p + sim->n.P - 1) % sim->n.P];
    struct sim_stage *next = &sim->stages[(p + 1) % sim->n.P];
    struct holmes_step step = st->s.steps[st->at];

    switch (step.kind) {
    case HOLMES_STEP_POST_INPUT:
        occupy(&st->input[step.in % HOLMES_SCHEDULE_RING], step.in, "input");
        cr_assert_eq(st->posted[ACTIVATIONS]++, step.in);
        return true;
    case HOLMES_STEP_POST_GRAD:
        occupy(&st->grad[step.in % HOLMES_SCHEDULE_RING], step.in, "gradient");
        cr_assert_eq(st->posted[GRADIENTS]++, step.in);
        return true;
    case HOLMES_STEP_WAIT_INPUT:
        return wait_message(st, ACTIVATIONS, step.in);
    case HOLMES_STEP_WAIT_GRAD:
        return wait_message(st, GRADIENTS, step.in);
    case HOLMES_STEP_FORWARD:
        return compute_forward(sim, st, step);
    case HOLMES_STEP_BACKWARD:
        return compute_backward(sim, st, step);
    case HOLMES_STEP_SEND_OUTPUT:
        return start_send(sim, st, next, ACTIVATIONS, step);
    case HOLMES_STEP_SEND_DINPUT:
        return start_send(sim, st, prev, GRADIENTS, step);
    case HOLMES_STEP_FREE_OUTPUT:
        if (next->posted[ACTIVATIONS] <= step.out)
            return false;
        release(&st->output[step.out % HOLMES_SCHEDULE_RING], step.out, "output");
        return true;
    case HOLMES_STEP_FREE_DINPUT:
        if (prev->posted[GRADIENTS] <= step.out)
            return false;
        release(&st->dinput[step.out % HOLMES_SCHEDULE_RING], step.out, "gradient to send");
        return true;
    }
    return false;
}

static struct sim *sim_create(struct size n, bool forward_only)
{
    struct sim *sim = calloc(1, sizeof *sim);

    sim->n = n;
    sim->forward_only = forward_only;
    for (int p = 0; p < n.P; p++)
        sim->stages[p].s = build(n, p, forward_only);
    return sim;
}

static void sim_destroy(struct sim *sim)
{
    for (int p = 0; p < sim->n.P; p++)
        holmes_schedule_fini(&sim->stages[p].s);
    free(sim);
}

/* Until nobody can move. `eager`: each rank runs as far as it can before another has its turn; else
 * one step each. Returns the first rank that is not at its end, or -1. */
static int sim_run(struct sim *sim, bool eager)
{
    bool moved = true;

    while (moved) {
        moved = false;
        for (int i = 0; i < sim->n.P; i++) {
            int p = eager ? sim->n.P - 1 - i : i;
            struct sim_stage *st = &sim->stages[p];

            while (st->at < st->s.count && sim_step(sim, p)) {
                st->at++;
                moved = true;
                if (!eager)
                    break;
            }
        }
    }
    for (int p = 0; p < sim->n.P; p++)
        if (sim->stages[p].at < sim->stages[p].s.count)
            return p;
    return -1;
}

static void simulate(struct size n, bool forward_only, bool eager)
{
    static const struct sim_stage clean;
    struct sim *sim = sim_create(n, forward_only);
    int stuck = sim_run(sim, eager), whole = n.M * n.V;

    cr_assert_eq(stuck, -1, "P=%d M=%d V=%d: rank %d never ends", n.P, n.M, n.V, stuck);
    for (int p = 0; p < n.P; p++) {
        struct sim_stage *st = &sim->stages[p];

        cr_assert_eq(memcmp(st->input, clean.input, sizeof st->input), 0);
        cr_assert_eq(memcmp(st->grad, clean.grad, sizeof st->grad), 0);
        cr_assert_eq(memcmp(st->output, clean.output, sizeof st->output), 0);
        cr_assert_eq(memcmp(st->dinput, clean.dinput, sizeof st->dinput), 0);
        cr_assert_eq(memcmp(st->slot, clean.slot, sizeof st->slot), 0);
        cr_assert_eq(st->posted[ACTIVATIONS], p > 0 ? whole : whole - n.M);
        if (!forward_only)
            cr_assert_eq(st->posted[GRADIENTS], p < n.P - 1 ? whole : whole - n.M);
    }
    sim_destroy(sim);
}

static void check_training(struct size n)
{
    simulate(n, false, false);
    simulate(n, false, true);
}

static void check_evaluation(struct size n)
{
    simulate(n, true, false);
    simulate(n, true, true);
}

Test(schedule, ends_on_every_stage_when_sends_wait_for_their_receives)
{
    for_every_size(1, 1, check_training);
}

Test(schedule, with_virtual_stages_ends_on_every_rank_too)
{
    for_every_size(2, MAX_V, check_training);
}

Test(schedule, forward_only_ends_on_every_stage_too)
{
    for_every_size(1, 1, check_evaluation);
}

/* Any number: held-out sequences are as many as there are. */
Test(schedule, forward_only_ends_with_virtual_stages_and_microbatches_of_any_number)
{
    for (int V = 2; V <= MAX_V; V++)
        for (int P = 2; P <= MAX_P; P++)
            for (int M = 1; M <= MAX_M; M++)
                check_evaluation((struct size){P, M, V});
}

/* How long the ranks stand still in a step when a microbatch takes 1 forward and 2 backward on a
 * rank, however many chunks it has, and messages take no time: the slowest rank's time. */
static double bubble(struct size n)
{
    struct sim *sim = sim_create(n, false);
    double longest = 0;

    cr_assert_eq(sim_run(sim, false), -1);
    for (int p = 0; p < n.P; p++)
        if (sim->stages[p].time > longest)
            longest = sim->stages[p].time;
    sim_destroy(sim);
    return longest - 3.0 * n.M;
}

/* Narayanan et al., section 2.2: (P - 1) times a microbatch's time, over V. */
static void check_bubble(struct size n)
{
    double expected = 3.0 * (n.P - 1) / n.V;

    if (n.M < n.P)
        return;
    cr_assert_float_eq(bubble(n), expected, 1e-9, "P=%d M=%d V=%d: bubble %g instead of %g", n.P,
                       n.M, n.V, bubble(n), expected);
}

Test(schedule, virtual_stages_divide_the_bubble_by_their_number)
{
    for_every_size(1, MAX_V, check_bubble);
}

/* The same order with blocking calls: each receive posted when it is needed, each send waited for
 * at once. */
static void make_blocking(struct holmes_schedule *s)
{
    struct holmes_step *steps = calloc((size_t)s->count, sizeof *steps);
    int n = 0;

    for (int i = 0; i < s->count; i++) {
        struct holmes_step step = s->steps[i];

        switch (step.kind) {
        case HOLMES_STEP_POST_INPUT:
        case HOLMES_STEP_POST_GRAD:
        case HOLMES_STEP_FREE_OUTPUT:
        case HOLMES_STEP_FREE_DINPUT:
            continue;
        case HOLMES_STEP_WAIT_INPUT:
            steps[n++] = (struct holmes_step){HOLMES_STEP_POST_INPUT, step.chunk, step.microbatch,
                                              step.in, step.out};
            break;
        case HOLMES_STEP_WAIT_GRAD:
            steps[n++] = (struct holmes_step){HOLMES_STEP_POST_GRAD, step.chunk, step.microbatch,
                                              step.in, step.out};
            break;
        default:
            break;
        }
        steps[n++] = step;
        if (step.kind == HOLMES_STEP_SEND_OUTPUT)
            steps[n++] = (struct holmes_step){HOLMES_STEP_FREE_OUTPUT, step.chunk, step.microbatch,
                                              step.in, step.out};
        if (step.kind == HOLMES_STEP_SEND_DINPUT)
            steps[n++] = (struct holmes_step){HOLMES_STEP_FREE_DINPUT, step.chunk, step.microbatch,
                                              step.in, step.out};
    }
    free(s->steps);
    s->steps = steps;
    s->count = n;
}

/* The proof above is worth something only if the simulator can see a deadlock. */
Test(schedule, with_blocking_calls_the_same_order_deadlocks_and_the_simulator_sees_it)
{
    struct sim *sim = sim_create((struct size){.P = 2, .M = 4, .V = 1}, false);

    for (int p = 0; p < 2; p++)
        make_blocking(&sim->stages[p].s);
    cr_expect_neq(sim_run(sim, true), -1);
    sim_destroy(sim);
}
