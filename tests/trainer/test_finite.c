/* Weights and gradients that are no numbers: training ends on all ranks in the same step, or leaves
 * it out, and the rank that holds the first of them says what and where. Ranks are threads. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/thread_comm.h"
#include "train.h"

#define STEPS    6
#define RANKS    4 /* two stages of two replicas */
#define BAD_STEP 3

struct job {
    struct holmes_config config;
    struct holmes_group *group;
    struct thread_hub *hub;
    char text[64];
    int bad_rank;
    const char *tensor;
    float value;     /* put into the tensor before BAD_STEP */
    bool taken_back; /* after that step */
    struct holmes_step_result results[RANKS][STEPS];
    int ended[RANKS]; /* step that failed, or 0 */
    int rc[RANKS];
    char says[RANKS][500];
};

struct thread {
    struct job *job;
    int rank;
};

static float *element(struct holmes_trainer *t, const char *name)
{
    struct holmes_stage *s = holmes_trainer_stage(t, 0);

    for (int i = 0; i < holmes_stage_ntensors(s); i++)
        if (strcmp(holmes_stage_tensor(s, i)->name, name) == 0)
            return (float *)holmes_stage_weights(s) + holmes_stage_tensor(s, i)->offset + 1;
    cr_assert_fail("this stage has no %s", name);
    return NULL;
}

static void run_steps(struct job *job, int rank, struct holmes_trainer *t)
{
    float before = 0, *bad = NULL;

    for (int step = 1; step <= STEPS && !job->ended[rank]; step++) {
        if (step == BAD_STEP && rank == job->bad_rank) {
            job->rc[rank] = holmes_trainer_settle(t);
            bad = element(t, job->tensor);
            before = *bad;
            *bad = job->value;
        }
        job->rc[rank] = holmes_trainer_step(t, step, &job->results[rank][step - 1]);
        if (job->rc[rank] != 0)
            job->ended[rank] = step;
        if (step == BAD_STEP && bad && job->taken_back)
            *bad = before;
    }
    if (job->rc[rank] == 0)
        job->rc[rank] = holmes_trainer_settle(t);
    if (holmes_trainer_unfit(t))
        snprintf(job->says[rank], sizeof job->says[0], "%s", holmes_trainer_unfit(t));
}

static void *run_rank(void *arg)
{
    struct thread *th = arg;
    struct job *job = th->job;
    struct holmes_links links = {.timeout_ms = 60000};
    struct holmes_dataloader *data = NULL;
    struct holmes_trainer *t = NULL;
    struct holmes_data_attr attr;
    char why[200];

    cr_assert_eq(holmes_config_data(&job->config, &attr, why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_dataloader_open(&attr, &data, why, sizeof why), 0, "%s", why);
    cr_assert_eq(
        holmes_links_open(&links, job->group, th->rank, false, thread_comm_create, job->hub), 0);
    cr_assert_eq(
        holmes_trainer_create(&(struct holmes_trainer_attr){.config = &job->config,
                                                            .group = job->group,
                                                            .links = &links,
                                                            .data = data,
                                                            .kernels = holmes_kernels_find("ref")},
                              &t),
        0);
    run_steps(job, th->rank, t);
    holmes_trainer_destroy(t);
    holmes_links_close(&links);
    holmes_dataloader_close(data);
    return NULL;
}

static void write_text(char *path)
{
    int fd = mkstemp(strcpy(path, "/tmp/holmes-finite-XXXXXX"));
    FILE *f = fdopen(fd, "w");

    for (int i = 0; i < 2000; i++)
        fprintf(f, "%d\n", i * i);
    cr_assert_eq(fclose(f), 0);
}

static void run(struct job *job)
{
    struct thread threads[RANKS];
    pthread_t ids[RANKS];
    char why[200];

    write_text(job->text);
    job->config = (struct holmes_config){
        .model = {.layers = 4, .channels = 16, .heads = 2, .seq_len = 8, .vocab = 256},
        .data = job->text,
        .heldout = 0.1,
        .batch = 4,
        .microbatch = 1,
        .steps = STEPS,
        .lr = 1e-3,
        .final_lr = 1e-3,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .adam_eps = 1e-8,
        .on_nan = job->config.on_nan,
        .max_skipped = 2,
        .stages = 2,
        .replicas = 2,
        .tensors = 1,
        .kernels = "ref",
    };
    cr_assert_eq(holmes_group_create(2, 2, 1, NULL, 4, NULL, &job->group, why, sizeof why), 0, "%s",
                 why);
    job->hub = thread_hub_create();
    for (int r = 0; r < RANKS; r++) {
        threads[r] = (struct thread){job, r};
        cr_assert_eq(pthread_create(&ids[r], NULL, run_rank, &threads[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(ids[r], NULL);
    thread_hub_destroy(job->hub);
    holmes_group_destroy(job->group);
    unlink(job->text);
}

/* All ranks end in `step`; one of `speakers` says it and nobody else does. */
static void expect_stop(const struct job *job, int step, unsigned int speakers, const char *says)
{
    int spoke = 0;

    for (int r = 0; r < RANKS; r++) {
        cr_expect_eq(job->rc[r], -EDOM, "rank %d: %d", r, job->rc[r]);
        cr_expect_eq(job->ended[r], step, "rank %d ends in step %d", r, job->ended[r]);
        if (!job->says[r][0])
            continue;
        spoke++;
        cr_expect(speakers >> r & 1, "rank %d speaks: %s", r, job->says[r]);
        cr_expect_not_null(strstr(job->says[r], says), "\"%s\" expected, rank %d says: %s", says, r,
                           job->says[r]);
    }
    cr_expect_eq(spoke, 1, "%d ranks speak", spoke);
}

Test(finite, a_weight_that_is_infinite_ends_training_and_is_named)
{
    struct job job = {.bad_rank = 2, .tensor = "h.3.mlp.fc.weight", .value = INFINITY};

    run(&job);
    expect_stop(&job, BAD_STEP, 1u << 2, "stage 1, h.3.mlp.fc.weight: a weight is infinite");
}

Test(finite, a_weight_that_is_no_number_is_told_from_an_infinite_one)
{
    struct job job = {.bad_rank = 1, .tensor = "h.0.ln_1.weight", .value = NAN};

    run(&job);
    expect_stop(&job, BAD_STEP, 1u << 1, "stage 0, h.0.ln_1.weight: a weight is not a number");
}

/* The weight is finite; what is computed from it overflows, so that it is in gradients only, from
 * the first tensor of the model on, which two replicas hold. */
Test(finite, the_first_gradient_in_the_order_of_layers_is_named)
{
    struct job job = {.bad_rank = 3, .tensor = "h.2.mlp.fc.weight", .value = 3e38f};

    run(&job);
    expect_stop(&job, BAD_STEP, 3u, "stage 0, wte.weight: a gradient is not a number");
}

Test(finite, a_step_is_skipped_on_all_ranks_and_leaves_the_weights)
{
    struct job job = {.config.on_nan = HOLMES_NAN_SKIP,
                      .bad_rank = 3,
                      .tensor = "h.2.mlp.fc.weight",
                      .value = 3e38f,
                      .taken_back = true};

    run(&job);
    for (int r = 0; r < RANKS; r++) {
        cr_expect_eq(job.rc[r], 0, "rank %d: %d in step %d", r, job.rc[r], job.ended[r]);
        for (int step = 1; step <= STEPS; step++) {
            const struct holmes_step_result *s = &job.results[r][step - 1];

            cr_expect_eq(s->skipped, step == BAD_STEP, "rank %d, step %d", r, step);
            cr_expect(step == BAD_STEP || (isfinite(s->loss) && isfinite(s->grad_norm)),
                      "rank %d, step %d: loss %g", r, step, s->loss);
        }
    }
}

Test(finite, too_many_skipped_steps_in_a_row_end_training)
{
    struct job job = {.config.on_nan = HOLMES_NAN_SKIP,
                      .bad_rank = 3,
                      .tensor = "h.2.mlp.fc.weight",
                      .value = 3e38f};

    run(&job);
    expect_stop(&job, BAD_STEP + 2, 3u, "as in the 2 steps before, which were skipped");
}

Test(finite, a_weight_at_fault_cannot_be_skipped)
{
    struct job job = {.config.on_nan = HOLMES_NAN_SKIP,
                      .bad_rank = 2,
                      .tensor = "h.3.mlp.fc.weight",
                      .value = NAN};

    run(&job);
    expect_stop(&job, BAD_STEP, 1u << 2, "a weight is not a number");
}
