/* The 1F1B program: its shape, its buffers, and that P stages running it with rendezvous sends
 * never wait for each other in a circle, found by executing it in a simulator. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "schedule.h"

#define MAX_P 8
#define MAX_M 20

static void for_every_size(void (*check)(int stages, int microbatches))
{
    for (int P = 1; P <= MAX_P; P++)
        for (int M = 1; M <= MAX_M; M++)
            check(P, M);
}

static void check_each_once(int P, int M)
{
    for (int p = 0; p < P; p++) {
        struct holmes_schedule s;
        int forwards = 0, backwards = 0, most = 0;

        cr_assert_eq(holmes_schedule_init(&s, P, p, M, false), 0);
        for (int i = 0; i < s.count; i++) {
            struct holmes_step step = s.steps[i];

            if (step.kind == HOLMES_STEP_FORWARD)
                cr_assert_eq(step.microbatch, forwards++, "P=%d M=%d stage %d", P, M, p);
            if (step.kind == HOLMES_STEP_BACKWARD) {
                cr_assert_eq(step.microbatch, backwards++, "P=%d M=%d stage %d", P, M, p);
                cr_assert_leq(backwards, forwards, "P=%d M=%d stage %d: backward first", P, M, p);
            }
            if (forwards - backwards > most)
                most = forwards - backwards;
        }
        cr_assert_eq(forwards, M);
        cr_assert_eq(backwards, M);
        cr_assert_eq(most, P - p < M ? P - p : M, "P=%d M=%d stage %d: %d in flight", P, M, p,
                     most);
        cr_assert_eq(s.slots, most);
        holmes_schedule_fini(&s);
    }
}

Test(schedule, runs_each_microbatch_once_in_order_and_keeps_at_most_the_distance_to_the_end)
{
    for_every_size(check_each_once);
}

static void check_warm_up(int P, int M)
{
    struct holmes_schedule s;
    int before = 0;

    cr_assert_eq(holmes_schedule_init(&s, P, 0, M, false), 0);
    for (int i = 0; i < s.count && s.steps[i].kind != HOLMES_STEP_BACKWARD; i++)
        before += s.steps[i].kind == HOLMES_STEP_FORWARD;
    cr_assert_eq(before, P < M ? P : M, "P=%d M=%d: %d forwards before the first backward", P, M,
                 before);
    holmes_schedule_fini(&s);
}

Test(schedule, starts_the_first_backward_after_as_many_forwards_as_stages)
{
    for_every_size(check_warm_up);
}

/* --- a simulator ------------------------------------------------------------------------------ */

enum channel { ACTIVATIONS, GRADIENTS, CHANNELS };

struct sim_stage {
    struct holmes_schedule s;
    int at;
    /* Per channel towards this stage; what was posted, and what the other end started. */
    int posted[CHANNELS], sent[CHANNELS];
    /* Buffer occupancy: microbatch + 1, or 0. */
    int input[MAX_P + 2], grad[HOLMES_SCHEDULE_RING], output[HOLMES_SCHEDULE_RING],
        dinput[HOLMES_SCHEDULE_RING], slot[MAX_P + 1];
};

struct sim {
    int P, M;
    bool forward_only;
    struct sim_stage stages[MAX_P];
};

static void occupy(int *buffer, int microbatch, const char *what)
{
    cr_assert_eq(*buffer, 0, "%s of microbatch %d overwrites that of %d", what, microbatch,
                 *buffer - 1);
    *buffer = microbatch + 1;
}

static void release(int *buffer, int microbatch, const char *what)
{
    cr_assert_eq(*buffer, microbatch + 1, "%s: microbatch %d expected, %d found", what, microbatch,
                 *buffer - 1);
    *buffer = 0;
}

static bool compute_forward(struct sim *sim, struct sim_stage *st, int p, int m)
{
    if (p > 0)
        cr_assert_eq(st->input[m % st->s.inputs], m + 1);
    if (p < sim->P - 1)
        occupy(&st->output[m % HOLMES_SCHEDULE_RING], m, "output");
    if (!sim->forward_only)
        occupy(&st->slot[m % st->s.slots], m, "slot");
    else if (p > 0)
        release(&st->input[m % st->s.inputs], m, "input");
    return true;
}

static bool compute_backward(struct sim *sim, struct sim_stage *st, int p, int m)
{
    release(&st->slot[m % st->s.slots], m, "slot");
    if (p < sim->P - 1)
        release(&st->grad[m % HOLMES_SCHEDULE_RING], m, "gradient");
    if (p > 0) {
        release(&st->input[m % st->s.inputs], m, "input");
        occupy(&st->dinput[m % HOLMES_SCHEDULE_RING], m, "gradient to send");
    }
    return true;
}

/* Runs one step of a stage; false when it has to wait. A send is over when its receive is posted,
 * a receive when its send has been started: nothing is buffered on the way. */
static bool sim_step(struct sim *sim, int p)
{
    struct sim_stage *st = &sim->stages[p], *prev = st - 1, *next = st + 1;
    int m = st->s.steps[st->at].microbatch;

    switch (st->s.steps[st->at].kind) {
    case HOLMES_STEP_POST_INPUT:
        occupy(&st->input[m % st->s.inputs], m, "input");
        cr_assert_eq(st->posted[ACTIVATIONS]++, m);
        return true;
    case HOLMES_STEP_POST_GRAD:
        occupy(&st->grad[m % HOLMES_SCHEDULE_RING], m, "gradient");
        cr_assert_eq(st->posted[GRADIENTS]++, m);
        return true;
    case HOLMES_STEP_WAIT_INPUT:
        return st->sent[ACTIVATIONS] > m;
    case HOLMES_STEP_WAIT_GRAD:
        return st->sent[GRADIENTS] > m;
    case HOLMES_STEP_FORWARD:
        return compute_forward(sim, st, p, m);
    case HOLMES_STEP_BACKWARD:
        return compute_backward(sim, st, p, m);
    case HOLMES_STEP_SEND_OUTPUT:
        cr_assert_eq(next->sent[ACTIVATIONS]++, m);
        return true;
    case HOLMES_STEP_SEND_DINPUT:
        cr_assert_eq(prev->sent[GRADIENTS]++, m);
        return true;
    case HOLMES_STEP_FREE_OUTPUT:
        if (next->posted[ACTIVATIONS] <= m)
            return false;
        release(&st->output[m % HOLMES_SCHEDULE_RING], m, "output");
        return true;
    case HOLMES_STEP_FREE_DINPUT:
        if (prev->posted[GRADIENTS] <= m)
            return false;
        release(&st->dinput[m % HOLMES_SCHEDULE_RING], m, "gradient to send");
        return true;
    }
    return false;
}

static void sim_init(struct sim *sim, int P, int M, bool forward_only)
{
    *sim = (struct sim){.P = P, .M = M, .forward_only = forward_only};
    for (int p = 0; p < P; p++)
        cr_assert_eq(holmes_schedule_init(&sim->stages[p].s, P, p, M, forward_only), 0);
}

static void sim_fini(struct sim *sim)
{
    for (int p = 0; p < sim->P; p++)
        holmes_schedule_fini(&sim->stages[p].s);
}

/* Until nobody can move. `eager`: each stage runs as far as it can before another has its turn;
 * else one step each. Returns the first stage that is not at its end, or -1. */
static int sim_run(struct sim *sim, bool eager)
{
    bool moved = true;

    while (moved) {
        moved = false;
        for (int i = 0; i < sim->P; i++) {
            int p = eager ? sim->P - 1 - i : i;
            struct sim_stage *st = &sim->stages[p];

            while (st->at < st->s.count && sim_step(sim, p)) {
                st->at++;
                moved = true;
                if (!eager)
                    break;
            }
        }
    }
    for (int p = 0; p < sim->P; p++)
        if (sim->stages[p].at < sim->stages[p].s.count)
            return p;
    return -1;
}

static void simulate(int P, int M, bool forward_only, bool eager)
{
    static const struct sim_stage clean;
    struct sim sim;
    int stuck;

    sim_init(&sim, P, M, forward_only);
    stuck = sim_run(&sim, eager);
    cr_assert_eq(stuck, -1, "P=%d M=%d: stage %d never ends", P, M, stuck);
    for (int p = 0; p < P; p++) {
        struct sim_stage *st = &sim.stages[p];

        cr_assert_eq(memcmp(st->input, clean.input, sizeof st->input), 0);
        cr_assert_eq(memcmp(st->output, clean.output, sizeof st->output), 0);
        cr_assert_eq(memcmp(st->dinput, clean.dinput, sizeof st->dinput), 0);
        cr_assert_eq(st->posted[ACTIVATIONS], p > 0 ? M : 0);
        cr_assert_eq(st->posted[GRADIENTS], p < P - 1 && !forward_only ? M : 0);
    }
    sim_fini(&sim);
}

static void check_training(int P, int M)
{
    simulate(P, M, false, false);
    simulate(P, M, false, true);
}

static void check_evaluation(int P, int M)
{
    simulate(P, M, true, false);
    simulate(P, M, true, true);
}

Test(schedule, ends_on_every_stage_when_sends_wait_for_their_receives)
{
    for_every_size(check_training);
}

Test(schedule, forward_only_ends_on_every_stage_too)
{
    for_every_size(check_evaluation);
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
            steps[n++] = (struct holmes_step){HOLMES_STEP_POST_INPUT, step.microbatch};
            break;
        case HOLMES_STEP_WAIT_GRAD:
            steps[n++] = (struct holmes_step){HOLMES_STEP_POST_GRAD, step.microbatch};
            break;
        default:
            break;
        }
        steps[n++] = step;
        if (step.kind == HOLMES_STEP_SEND_OUTPUT)
            steps[n++] = (struct holmes_step){HOLMES_STEP_FREE_OUTPUT, step.microbatch};
        if (step.kind == HOLMES_STEP_SEND_DINPUT)
            steps[n++] = (struct holmes_step){HOLMES_STEP_FREE_DINPUT, step.microbatch};
    }
    free(s->steps);
    s->steps = steps;
    s->count = n;
}

/* The proof above is worth something only if the simulator can see a deadlock. */
Test(schedule, with_blocking_calls_the_same_order_deadlocks_and_the_simulator_sees_it)
{
    struct sim sim;

    sim_init(&sim, 2, 4, false);
    for (int p = 0; p < 2; p++)
        make_blocking(&sim.stages[p].s);
    cr_expect_neq(sim_run(&sim, true), -1);
    sim_fini(&sim);
}
