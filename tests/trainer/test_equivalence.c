/* The same seed and data give the same losses and gradient norms for every split of the ranks.
 * Ranks are threads here, so that one reduction can be broken on purpose: then the comparison must
 * fail. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/thread_comm.h"
#include "trainer/train.h"

#define STEPS          50
#define RANKS_MAX      8
#define LOSS_TOLERANCE 1e-5
#define NORM_TOLERANCE 1e-4

struct split {
    int stages, replicas, break_nth;
    int chunks; /* virtual stages; 0: one */
    bool no_overlap;
    double bucket_mb;
    bool tied;
    const char *order; /* NULL: rank = place */
    const char *break_kind;
};

struct curve {
    struct holmes_step_result steps[STEPS];
    double held_out;
    float *tied; /* copy of the tied embedding of the last stage's first replica */
};

struct job {
    struct holmes_config config;
    const struct holmes_kernels *kernels;
    struct holmes_group *group;
    struct thread_hub *hub;
    char text[64];
    struct curve curves[RANKS_MAX];
    struct holmes_stage *stages[RANKS_MAX];
    float *wte[RANKS_MAX]; /* copies at the end, or NULL */
    size_t wte_count;
    int failed;
};

struct thread {
    struct job *job;
    int rank;
};

/* Text with some structure, the same for every run: words of a small made-up language. */
static void write_text(char *path)
{
    static const char *const words[] = {"ta", "kora", "mi", "selo", "vantu", "re", "ipo", "nesh"};
    uint64_t state = 1;
    int fd = mkstemp(path);
    FILE *f;

    cr_assert_geq(fd, 0);
    f = fdopen(fd, "w");
    for (int i = 0; i < 6000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        fprintf(f, "%s%c", words[state >> 61], i % 11 == 10 ? '\n' : ' ');
    }
    cr_assert_eq(fclose(f), 0);
}

static struct holmes_config base_config(const struct split *s)
{
    return (struct holmes_config){
        .model = {.layers = 4,
                  .channels = 16,
                  .heads = 2,
                  .seq_len = 16,
                  .vocab = HOLMES_BYTE_VOCAB,
                  .tied = s->tied},
        .heldout = 0.1,
        .batch = 6,
        .microbatch = 1,
        .steps = STEPS,
        .lr = 3e-3,
        .final_lr = 3e-3,
        .clip = 1,
        .weight_decay = 0.01,
        .seed = 8,
        .eval_sequences = 24,
        .stages = s->stages,
        .replicas = s->replicas,
        .tensors = 1,
        .kernels = "ref",
        .overlap = s->no_overlap ? HOLMES_OVERLAP_OFF : HOLMES_OVERLAP_ON,
        .bucket_mb = s->bucket_mb,
    };
}

static int run_steps(struct job *job, int rank, struct holmes_links *links,
                     struct holmes_dataloader *data)
{
    struct holmes_trainer_attr attr = {.config = &job->config,
                                       .group = job->group,
                                       .links = links,
                                       .data = data,
                                       .kernels = job->kernels};
    struct curve *curve = &job->curves[rank];
    struct holmes_trainer *t = NULL;
    const struct holmes_tensor *tied;
    int sequences, rc = holmes_trainer_create(&attr, &t);

    for (int step = 1; step <= STEPS && rc == 0; step++)
        rc = holmes_trainer_step(t, step, &curve->steps[step - 1]);
    if (rc == 0)
        rc = holmes_trainer_evaluate(t, &curve->held_out, &sequences);
    for (int i = 0; rc == 0 && i < holmes_trainer_nchunks(t); i++) {
        struct holmes_stage *s = holmes_trainer_stage(t, i);

        tied = holmes_stage_tied(s);
        if (!tied || tied->count != job->wte_count)
            continue;
        job->wte[rank] = malloc(tied->count * sizeof(float));
        memcpy(job->wte[rank], holmes_stage_params(s) + tied->offset, tied->count * sizeof(float));
    }
    holmes_trainer_destroy(t);
    return rc;
}

static void *run_rank(void *arg)
{
    struct thread *th = arg;
    struct job *job = th->job;
    struct holmes_links links = {.timeout_ms = 60000};
    struct holmes_dataloader *data = NULL;
    struct holmes_data_attr attr;
    char why[200];
    int rc = holmes_config_data(&job->config, &attr, why, sizeof why);

    if (rc == 0)
        rc = holmes_dataloader_open(&attr, &data, why, sizeof why);

    if (rc == 0)
        rc = holmes_links_open(&links, job->group, th->rank, job->config.model.tied,
                               thread_comm_create, job->hub);
    if (rc == 0)
        rc = run_steps(job, th->rank, &links, data);
    holmes_links_close(&links);
    holmes_dataloader_close(data);
    if (rc != 0)
        __atomic_store_n(&job->failed, rc, __ATOMIC_RELAXED);
    return NULL;
}

/* All ranks of a job must report the same; the caller gets rank 0's curve. */
static struct curve run(const struct split *s)
{
    struct job *job = calloc(1, sizeof *job);
    struct thread threads[RANKS_MAX];
    pthread_t ids[RANKS_MAX];
    int world = s->stages * s->replicas, order[RANKS_MAX];
    struct curve result;
    char why[200];

    snprintf(job->text, sizeof job->text, "/tmp/holmes-equivalence-XXXXXX");
    write_text(job->text);
    job->config = base_config(s);
    job->config.data = job->text;
    job->wte_count = (size_t)HOLMES_BYTE_VOCAB * (size_t)job->config.model.channels;
    if (s->order)
        cr_assert_eq(holmes_order_parse(s->order, world, order, why, sizeof why), 0);
    cr_assert_eq(holmes_group_create(s->stages, s->replicas, 1, s->order ? order : NULL,
                                     job->config.model.layers, NULL, &job->group, why, sizeof why),
                 0);
    if (s->chunks > 1)
        cr_assert_eq(holmes_group_set_chunks(job->group, s->chunks, job->config.model.layers, NULL,
                                             why, sizeof why),
                     0);
    job->hub = thread_hub_create();
    job->kernels = holmes_kernels_find("ref");
    if (s->break_kind)
        thread_hub_break(job->hub, s->break_kind, s->break_nth);
    for (int r = 0; r < world; r++) {
        threads[r] = (struct thread){job, r};
        cr_assert_eq(pthread_create(&ids[r], NULL, run_rank, &threads[r]), 0);
    }
    for (int r = 0; r < world; r++)
        pthread_join(ids[r], NULL);
    cr_assert_eq(job->failed, 0, "a rank failed with %d", job->failed);

    result = job->curves[0];
    for (int r = 1; r < world; r++)
        cr_expect_eq(memcmp(result.steps, job->curves[r].steps, sizeof result.steps), 0,
                     "rank %d saw another curve than rank 0", r);
    for (int r = 0; r < world; r++)
        for (int q = 0; q < r; q++)
            if (job->wte[r] && job->wte[q])
                cr_expect_eq(memcmp(job->wte[r], job->wte[q], job->wte_count * sizeof(float)), 0,
                             "the copies of the tied embedding on ranks %d and %d differ", q, r);
    for (int r = 0; r < world; r++)
        free(job->wte[r]);
    unlink(job->text);
    thread_hub_destroy(job->hub);
    holmes_group_destroy(job->group);
    free(job);
    return result;
}

static double relative(double a, double b)
{
    return fabs(a - b) / fabs(b);
}

/* Largest relative differences over the steps. */
static void compare(const struct curve *a, const struct curve *b, double *loss, double *norm)
{
    *loss = *norm = 0;
    for (int i = 0; i < STEPS; i++) {
        *loss = fmax(*loss, relative(a->steps[i].loss, b->steps[i].loss));
        *norm = fmax(*norm, relative(a->steps[i].grad_norm, b->steps[i].grad_norm));
    }
}

static void check_same(bool tied)
{
    const struct split splits[] = {
        {.stages = 2, .replicas = 1},
        {.stages = 1, .replicas = 2},
        {.stages = 2, .replicas = 2},
        {.stages = 4, .replicas = 1},
        {.stages = 1, .replicas = 3},
        {.stages = 2, .replicas = 3},
        {.stages = 2, .replicas = 2, .order = "3,1,0,2"},
        {.stages = 2, .replicas = 1, .chunks = 2},
        {.stages = 2, .replicas = 3, .chunks = 2},
    };
    struct curve one = run(&(struct split){.stages = 1, .replicas = 1, .tied = tied});

    cr_assert_geq(one.steps[0].loss - one.steps[STEPS - 1].loss, 0.5,
                  "the loss fell from %.3f to %.3f only", one.steps[0].loss,
                  one.steps[STEPS - 1].loss);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        struct split s = splits[i];
        struct curve c;
        double loss, norm;

        s.tied = tied;
        c = run(&s);
        compare(&c, &one, &loss, &norm);
        cr_expect_lt(loss, LOSS_TOLERANCE, "pipeline %d, data %d: loss differs by %.2g", s.stages,
                     s.replicas, loss);
        cr_expect_lt(norm, NORM_TOLERANCE, "pipeline %d, data %d: gradient norm differs by %.2g",
                     s.stages, s.replicas, norm);
        cr_expect_lt(relative(c.held_out, one.held_out), LOSS_TOLERANCE,
                     "pipeline %d, data %d: held-out loss %.6f, %.6f on one rank", s.stages,
                     s.replicas, c.held_out, one.held_out);
    }
}

Test(equivalence, every_split_gives_the_same_curve)
{
    check_same(false);
}

Test(equivalence, every_split_gives_the_same_curve_with_tied_weights)
{
    check_same(true);
}

/* The same operations in the same order: what is waited for when makes no difference to any bit. A
 * hundred kilobytes of parameters in buckets of eight, which three replicas do not divide. */
static void check_overlap(int stages, int replicas, int chunks, bool tied)
{
    struct split s = {.stages = stages,
                      .replicas = replicas,
                      .chunks = chunks,
                      .tied = tied,
                      .bucket_mb = 8.0 / 1024};
    struct curve on = run(&s), off;

    s.no_overlap = true;
    off = run(&s);
    for (int i = 0; i < STEPS; i++)
        cr_assert(on.steps[i].loss == off.steps[i].loss &&
                      on.steps[i].grad_norm == off.steps[i].grad_norm,
                  "pipeline %d, data %d, chunks %d: step %d differs with and without overlap: loss "
                  "%.17g, %.17g; norm %.17g, %.17g",
                  stages, replicas, chunks, i + 1, on.steps[i].loss, off.steps[i].loss,
                  on.steps[i].grad_norm, off.steps[i].grad_norm);
    cr_expect(on.held_out == off.held_out, "held-out loss %.17g with overlap, %.17g without",
              on.held_out, off.held_out);
}

Test(equivalence, overlap_changes_no_bit)
{
    check_overlap(1, 3, 1, false);
    check_overlap(2, 2, 1, true);
    check_overlap(2, 3, 2, true);
}

/* One reduction of one bucket in one step without one rank's part: the comparison must see it. */
static void check_broken(const char *kind, int nth, int stages, int replicas)
{
    struct curve one = run(&(struct split){.stages = 1, .replicas = 1, .tied = true});
    struct curve broken = run(&(struct split){.stages = stages,
                                              .replicas = replicas,
                                              .tied = true,
                                              .break_kind = kind,
                                              .break_nth = nth});
    double loss, norm;

    compare(&broken, &one, &loss, &norm);
    cr_expect_gt(loss, LOSS_TOLERANCE, "a broken %s reduction changed the loss by %.2g only", kind,
                 loss);
    cr_expect_gt(norm, NORM_TOLERANCE, "a broken %s reduction changed the norm by %.2g only", kind,
                 norm);
}

Test(equivalence, a_broken_data_parallel_reduction_is_seen)
{
    check_broken("dp", 5, 1, 2);
}

Test(equivalence, a_broken_embedding_reduction_is_seen)
{
    check_broken("embed", 3, 2, 1);
}
