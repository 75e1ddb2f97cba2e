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
#define RANKS    8 /* at most; two stages of two replicas where a test says nothing else */
#define BAD_STEP 3

struct split {
    int stages, replicas, tensors, chunks;
    enum holmes_overlap overlap;
    bool recompute, tied;
};

struct job {
    struct split split; /* all 0: two stages of two replicas */
    struct holmes_config config;
    int world;
    struct holmes_group *group;
    struct thread_hub *hub;
    char text[64];
    int bad_rank; /* -1: of those that hold the tensor the last replica's first of the tensor group
                   */
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

/* NULL: this rank has no such tensor. */
static float *element(struct holmes_trainer *t, const char *name)
{
    for (int chunk = 0; chunk < holmes_trainer_nchunks(t); chunk++) {
        struct holmes_stage *s = holmes_trainer_stage(t, chunk);

        for (int i = 0; i < holmes_stage_ntensors(s); i++)
            if (strcmp(holmes_stage_tensor(s, i)->name, name) == 0)
                return (float *)holmes_stage_weights(s) + holmes_stage_tensor(s, i)->offset + 1;
    }
    return NULL;
}

static bool is_bad(const struct job *job, int rank, const struct holmes_links *l)
{
    if (job->bad_rank >= 0)
        return rank == job->bad_rank;
    return l->replica == job->config.replicas - 1 && l->tensor == 0;
}

static void run_steps(struct job *job, int rank, struct holmes_trainer *t,
                      const struct holmes_links *links)
{
    float before = 0, *bad = NULL;

    for (int step = 1; step <= STEPS && !job->ended[rank]; step++) {
        if (step == BAD_STEP) {
            job->rc[rank] = holmes_trainer_settle(t);
            bad = is_bad(job, rank, links) ? element(t, job->tensor) : NULL;
        }
        if (step == BAD_STEP && bad) {
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
    cr_assert_eq(holmes_links_open(&links, job->group, th->rank, job->config.model.tied,
                                   thread_comm_create, job->hub),
                 0);
    cr_assert_eq(
        holmes_trainer_create(&(struct holmes_trainer_attr){.config = &job->config,
                                                            .group = job->group,
                                                            .links = &links,
                                                            .data = data,
                                                            .kernels = holmes_kernels_find("ref")},
                              &t),
        0);
    run_steps(job, th->rank, t, &links);
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
    struct split s = job->split;
    struct thread threads[RANKS];
    pthread_t ids[RANKS];
    char why[200];

    if (s.stages == 0)
        s = (struct split){2, 2, 1, 1};
    job->world = s.stages * s.replicas * s.tensors;
    write_text(job->text);
    job->config = (struct holmes_config){
        .model =
            {.layers = 4, .channels = 16, .heads = 2, .seq_len = 8, .vocab = 256, .tied = s.tied},
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
        .stages = s.stages,
        .replicas = s.replicas,
        .tensors = s.tensors,
        .virtual_stages = s.chunks,
        .overlap = s.overlap,
        .recompute = s.recompute,
        .kernels = "ref",
    };
    cr_assert_eq(holmes_group_create(s.stages, s.replicas, s.tensors, NULL, 4, NULL, &job->group,
                                     why, sizeof why),
                 0, "%s", why);
    if (s.chunks > 1)
        cr_assert_eq(holmes_group_set_chunks(job->group, s.chunks, 4, NULL, why, sizeof why), 0,
                     "%s", why);
    job->hub = thread_hub_create();
    for (int r = 0; r < job->world; r++) {
        threads[r] = (struct thread){job, r};
        cr_assert_eq(pthread_create(&ids[r], NULL, run_rank, &threads[r]), 0);
    }
    for (int r = 0; r < job->world; r++)
        pthread_join(ids[r], NULL);
    thread_hub_destroy(job->hub);
    holmes_group_destroy(job->group);
    unlink(job->text);
}

/* All ranks end in `step`; one of `speakers` says it and nobody else does. */
static void expect_stop(const struct job *job, int step, unsigned int speakers, const char *says)
{
    int spoke = 0;

    for (int r = 0; r < job->world; r++) {
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
    for (int r = 0; r < job.world; r++) {
        cr_expect_eq(job.rc[r], 0, "rank %d: %d in step %d", r, job.rc[r], job.ended[r]);
        for (int step = 1; step <= STEPS; step++) {
            const struct holmes_step_result *s = &job.results[r][step - 1];

            cr_expect_eq(s->skipped, step == BAD_STEP, "rank %d, step %d", r, step);
            cr_expect(step == BAD_STEP || (isfinite(s->loss) && isfinite(s->grad_norm)),
                      "rank %d, step %d: loss %g", r, step, s->loss);
        }
    }
}

/* Whatever the split, the steps after one that is skipped are those of one rank that skips it:
 * weights, moments and gradients were left as they were everywhere. */
Test(finite, skipping_is_the_same_under_every_split)
{
    static const struct split splits[] = {
        {1, 1, 2, 1, HOLMES_OVERLAP_ON, false, false},
        {1, 1, 2, 1, HOLMES_OVERLAP_OFF, true, false},
        {2, 1, 2, 1, HOLMES_OVERLAP_ON, false, true},
        {1, 2, 2, 1, HOLMES_OVERLAP_ON, false, false},
        {2, 2, 2, 1, HOLMES_OVERLAP_ON, true, false},
        {2, 2, 2, 1, HOLMES_OVERLAP_OFF, false, true},
        {2, 1, 1, 2, HOLMES_OVERLAP_ON, false, false},
        {2, 1, 1, 2, HOLMES_OVERLAP_OFF, false, true},
        {2, 2, 1, 2, HOLMES_OVERLAP_ON, false, true},
        {2, 2, 1, 2, HOLMES_OVERLAP_OFF, true, false},
        {2, 2, 2, 2, HOLMES_OVERLAP_ON, false, false},
        {2, 2, 2, 2, HOLMES_OVERLAP_OFF, true, true},
        {2, 2, 1, 1, HOLMES_OVERLAP_OFF, false, false},
        {1, 4, 1, 1, HOLMES_OVERLAP_OFF, false, false},
        {1, 4, 1, 1, HOLMES_OVERLAP_ON, false, false},
        {4, 2, 1, 1, HOLMES_OVERLAP_ON, false, true},
    };
    struct job one[2];

    for (int tied = 0; tied < 2; tied++) {
        one[tied] = (struct job){.split = {1, 1, 1, 1, HOLMES_OVERLAP_ON, false, tied},
                                 .config.on_nan = HOLMES_NAN_SKIP,
                                 .bad_rank = -1,
                                 .tensor = "h.2.mlp.fc.weight",
                                 .value = 3e38f,
                                 .taken_back = true};
        run(&one[tied]);
        cr_assert(one[tied].results[0][BAD_STEP - 1].skipped);
    }
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        struct job job = one[splits[i].tied];

        job.split = splits[i];
        memset(job.results, 0, sizeof job.results);
        run(&job);
        for (int r = 0; r < job.world; r++) {
            cr_expect_eq(job.rc[r], 0, "split %zu, rank %d: %d", i, r, job.rc[r]);
            for (int step = 0; step < STEPS; step++) {
                const struct holmes_step_result *is = &job.results[r][step];
                const struct holmes_step_result *was = &one[splits[i].tied].results[0][step];

                cr_expect_eq(is->skipped, was->skipped, "split %zu, rank %d, step %d", i, r,
                             step + 1);
                cr_expect(was->skipped || fabs(is->loss / was->loss - 1) < 1e-5,
                          "split %zu, rank %d, step %d: loss %.9g, %.9g on one rank", i, r,
                          step + 1, is->loss, was->loss);
                cr_expect(was->skipped || fabs(is->grad_norm / was->grad_norm - 1) < 1e-4,
                          "split %zu, rank %d, step %d: norm %.9g, %.9g on one rank", i, r,
                          step + 1, is->grad_norm, was->grad_norm);
            }
        }
    }
}

/* A weight of one tensor rank, or of a rank's second chunk, is found and told like any other. */
Test(finite, a_weight_at_fault_is_named_under_other_splits)
{
    static const struct {
        struct split split;
        const char *tensor, *says;
    } rows[] = {
        {{1, 1, 2, 1}, "h.1.attn.qkv.weight", "stage 0, h.1.attn.qkv.weight: a weight is not"},
        {{2, 1, 2, 1}, "h.3.mlp.proj.weight", "stage 1, h.3.mlp.proj.weight: a weight is not"},
        {{2, 2, 1, 2}, "h.3.mlp.fc.weight", "stage 3, h.3.mlp.fc.weight: a weight is not"},
        {{2, 1, 1, 2, HOLMES_OVERLAP_OFF},
         "h.2.ln_1.weight",
         "stage 2, h.2.ln_1.weight: a weight is"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct job job = {.split = rows[i].split,
                          .config.on_nan = HOLMES_NAN_SKIP,
                          .bad_rank = -1,
                          .tensor = rows[i].tensor,
                          .value = NAN};

        run(&job);
        expect_stop(&job, BAD_STEP, 0xff, rows[i].says);
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
