/* The same seed and data give the same losses and gradient norms for every split of up to eight
 * ranks into tensor groups, stages and replicas, with tied weights or not; and the same bits with
 * blocks run again in backward or not, with communication overlapped or not. Ranks are threads
 * here, so that one reduction can be broken on purpose: then the comparison must fail. The log of
 * the test has the table of what was measured. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/sample.h"
#include "support/thread_comm.h"
#include "train.h"

#define STEPS          16
#define RANKS_MAX      8
#define LOSS_TOLERANCE 1e-5
#define NORM_TOLERANCE 1e-4

struct split {
    int tensors, stages, replicas, break_nth;
    int chunks; /* virtual stages; 0: one */
    bool tied, recompute, no_overlap;
    const char *order; /* NULL: rank = place */
    const char *break_kind;
};

struct curve {
    struct holmes_step_result steps[STEPS];
    double held_out;
};

struct job {
    struct holmes_config config;
    const struct holmes_kernels *kernels;
    struct holmes_group *group;
    struct thread_hub *hub;
    char text[64];
    struct curve curves[RANKS_MAX];
    struct holmes_stage *stages[RANKS_MAX];
    float *wte[RANKS_MAX]; /* each rank's part of the tied embedding at the end, or NULL */
    size_t wte_count[RANKS_MAX];
    int failed;
};

struct thread {
    struct job *job;
    int rank;
};

/* Text with some structure, the same for every run: words of a small made-up language, in bytes
 * from all over the vocabulary, so that every tensor rank has some of its rows. */
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
        for (const char *c = words[state >> 61]; *c; c++)
            fputc(*c * 37 & 255, f);
        fputc(i % 11 == 10 ? '\n' : ' ', f);
    }
    cr_assert_eq(fclose(f), 0);
}

/* As many heads, and sequences in a batch, as the split can divide: 8, or what has its 3, 5 or 7.
 */
static int divisible(const struct split *s)
{
    static const int counts[] = {8, 6, 5, 7};
    int i = 0;

    while (i < 3 && (counts[i] % s->tensors != 0 || counts[i] % s->replicas != 0))
        i++;
    return counts[i];
}

static struct holmes_config base_config(const struct split *s, int n)
{
    return (struct holmes_config){
        .model = {.layers = 8,
                  .channels = 2 * n,
                  .heads = n,
                  .seq_len = 8,
                  .vocab = HOLMES_BYTE_VOCAB,
                  .tied = s->tied},
        .heldout = 0.1,
        .batch = n,
        .microbatch = 1,
        .steps = STEPS,
        .lr = 3e-3,
        .final_lr = 3e-3,
        .clip = 1,
        .weight_decay = 0.01,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .adam_eps = 1e-8,
        .seed = 8,
        .eval_sequences = 24,
        .stages = s->stages,
        .replicas = s->replicas,
        .tensors = s->tensors,
        .recompute = s->recompute,
        .overlap = s->no_overlap ? HOLMES_OVERLAP_OFF : HOLMES_OVERLAP_ON,
        .bucket_mb = 8.0 / 1024, /* several to a stage */
        .kernels = "ref",
    };
}

static void keep_tied(struct job *job, int rank, struct holmes_stage *s)
{
    const struct holmes_tensor *tied = holmes_stage_tied(s);

    if (!tied)
        return;
    job->wte_count[rank] = tied->count;
    job->wte[rank] = malloc(tied->count * sizeof(float));
    memcpy(job->wte[rank], (float *)holmes_stage_weights(s) + tied->offset,
           tied->count * sizeof(float));
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
    int sequences, rc = holmes_trainer_create(&attr, &t);

    for (int step = 1; step <= STEPS && rc == 0; step++)
        rc = holmes_trainer_step(t, step, &curve->steps[step - 1]);
    if (rc == 0)
        rc = holmes_trainer_evaluate(t, &curve->held_out, &sequences);
    for (int i = 0; rc == 0 && i < holmes_trainer_nchunks(t); i++)
        keep_tied(job, rank, holmes_trainer_stage(t, i));
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

/* On all stages and replicas that hold the same part of it, the tied embedding ends equal bit for
 * bit; so do the curves of all ranks. */
static void check_agreement(const struct job *job)
{
    const struct holmes_group *g = job->group;

    for (int r = 1; r < g->world; r++)
        cr_expect_eq(
            memcmp(job->curves[0].steps, job->curves[r].steps, sizeof job->curves[0].steps), 0,
            "rank %d saw another curve than rank 0", r);
    for (int r = 0; r < g->world; r++)
        for (int q = 0; q < r; q++)
            if (job->wte[r] && job->wte[q] &&
                holmes_group_place(g, r).tensor == holmes_group_place(g, q).tensor)
                cr_expect_eq(memcmp(job->wte[r], job->wte[q], job->wte_count[r] * sizeof(float)), 0,
                             "the copies of the tied embedding on ranks %d and %d differ", q, r);
}

static void run_threads(struct job *job)
{
    struct thread threads[RANKS_MAX];
    pthread_t ids[RANKS_MAX];

    for (int r = 0; r < job->group->world; r++) {
        threads[r] = (struct thread){job, r};
        cr_assert_eq(pthread_create(&ids[r], NULL, run_rank, &threads[r]), 0);
    }
    for (int r = 0; r < job->group->world; r++)
        pthread_join(ids[r], NULL);
    cr_assert_eq(job->failed, 0, "a rank failed with %d", job->failed);
}

/* A job of a model with `n` heads; the caller gets rank 0's curve. */
static struct curve run_model(const struct split *s, int n)
{
    struct job *job = calloc(1, sizeof *job);
    int world = s->tensors * s->stages * s->replicas, order[RANKS_MAX];
    struct curve result;
    char why[200];

    snprintf(job->text, sizeof job->text, "/tmp/holmes-equivalence-XXXXXX");
    write_text(job->text);
    job->config = base_config(s, n);
    job->config.data = job->text;
    if (s->order)
        cr_assert_eq(holmes_order_parse(s->order, world, order, why, sizeof why), 0);
    cr_assert_eq(holmes_group_create(s->stages, s->replicas, s->tensors, s->order ? order : NULL,
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
    run_threads(job);
    check_agreement(job);
    result = job->curves[0];
    for (int r = 0; r < world; r++)
        free(job->wte[r]);
    unlink(job->text);
    thread_hub_destroy(job->hub);
    holmes_group_destroy(job->group);
    free(job);
    return result;
}

static struct curve run(const struct split *s)
{
    return run_model(s, divisible(s));
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

/* The curve of one rank for a model that the split can divide. */
static struct curve run_whole(const struct split *s)
{
    static struct curve curves[2][9];
    static bool known[2][9];
    int n = divisible(s);
    struct curve *c = &curves[s->tied][n];

    if (!known[s->tied][n]) {
        struct split whole = {.tensors = 1, .stages = 1, .replicas = 1, .tied = s->tied};

        *c = run_model(&whole, n);
        known[s->tied][n] = true;
        cr_expect_geq(c->steps[0].loss - c->steps[STEPS - 1].loss, 0.5,
                      "the loss fell from %.3f to %.3f only", c->steps[0].loss,
                      c->steps[STEPS - 1].loss);
    }
    return *c;
}

/* What is waited for when, and whether activations were kept or made again, makes no difference to
 * any bit: the same operations in the same order. */
static void check_variants(const struct split *s, const struct curve *base, const char *name)
{
    for (int i = 1; i < 4; i++) {
        struct split other = *s;
        struct curve c;

        other.recompute = i & 1;
        other.no_overlap = i & 2;
        c = run(&other);
        cr_expect_eq(memcmp(c.steps, base->steps, sizeof c.steps), 0,
                     "%s: other bits with%s recompute, overlap %s", name,
                     other.recompute ? "" : "out", other.no_overlap ? "off" : "on");
        cr_expect(c.held_out == base->held_out, "%s: held-out loss %.17g, %.17g with%s recompute",
                  name, base->held_out, c.held_out, other.recompute ? "" : "out");
    }
}

static void check_split(const struct split *s)
{
    struct curve whole = run_whole(s), c = run(s);
    double loss, norm, held_out = relative(c.held_out, whole.held_out);
    char name[80];

    snprintf(name, sizeof name, "tensor %d, pipeline %d%s, data %d, %s", s->tensors, s->stages,
             s->chunks > 1 ? " (2 chunks each)" : "", s->replicas, s->tied ? "tied" : "untied");
    compare(&c, &whole, &loss, &norm);
    printf("%-58s loss %.4f -> %.4f, differs by %.1e, gradient norm by %.1e\n", name,
           c.steps[0].loss, c.steps[STEPS - 1].loss, loss, norm);
    cr_expect_lt(loss, LOSS_TOLERANCE, "%s: loss differs by %.2g", name, loss);
    cr_expect_lt(norm, NORM_TOLERANCE, "%s: gradient norm differs by %.2g", name, norm);
    cr_expect_lt(held_out, LOSS_TOLERANCE, "%s: held-out loss %.6f, %.6f on one rank", name,
                 c.held_out, whole.held_out);
    check_variants(s, &c, name);
}

/* All with tensor groups of `first` to `last` ranks. */
static void check_all(int first, int last, bool tied)
{
    size_t n = 0;

    for (int t = first; t <= last; t++)
        for (int p = 1; t * p <= RANKS_MAX; p++)
            for (int d = 1; t * p * d <= RANKS_MAX; d++)
                if (n++ % sample_every() == sample_every() - 1)
                    check_split(
                        &(struct split){.tensors = t, .stages = p, .replicas = d, .tied = tied});
}

Test(equivalence, every_split_gives_the_same_curve)
{
    check_all(1, 1, false);
}

Test(equivalence, every_split_with_tensor_groups_gives_the_same_curve)
{
    check_all(2, RANKS_MAX, false);
}

Test(equivalence, every_split_gives_the_same_curve_with_tied_weights)
{
    check_all(1, 1, true);
}

Test(equivalence, every_split_with_tensor_groups_gives_the_same_curve_with_tied_weights)
{
    check_all(2, RANKS_MAX, true);
}

Test(equivalence, virtual_stages_give_the_same_curve)
{
    static const struct split splits[] = {
        {.tensors = 1, .stages = 2, .replicas = 1, .chunks = 2, .tied = false},
        {.tensors = 1, .stages = 4, .replicas = 2, .chunks = 2, .tied = true},
        {.tensors = 1, .stages = 2, .replicas = 3, .chunks = 2, .tied = true},
        {.tensors = 2, .stages = 2, .replicas = 2, .chunks = 2, .tied = false},
        {.tensors = 2, .stages = 2, .replicas = 1, .chunks = 2, .tied = true},
    };

    for (size_t i = 0; i < sizeof splits / sizeof *splits; i += sample_every())
        check_split(&splits[i]);
}

Test(equivalence, ranks_may_take_any_place)
{
    check_split(&(struct split){
        .tensors = 2, .stages = 2, .replicas = 2, .tied = true, .order = "3,7,1,0,6,2,5,4"});
}

/* One reduction in one step without one rank's part: the comparison must see it. */
static void check_broken(const struct split *s)
{
    struct curve whole = run_whole(s), broken = run(s);
    double loss, norm;

    compare(&broken, &whole, &loss, &norm);
    cr_expect_gt(loss, LOSS_TOLERANCE, "a broken %s reduction changed the loss by %.2g only",
                 s->break_kind, loss);
    cr_expect_gt(norm, NORM_TOLERANCE, "a broken %s reduction changed the norm by %.2g only",
                 s->break_kind, norm);
}

Test(equivalence, a_broken_data_parallel_reduction_is_seen)
{
    check_broken(&(struct split){.tensors = 1,
                                 .stages = 1,
                                 .replicas = 2,
                                 .tied = true,
                                 .break_kind = "dp",
                                 .break_nth = 5});
}

Test(equivalence, a_broken_embedding_reduction_is_seen)
{
    check_broken(&(struct split){.tensors = 1,
                                 .stages = 2,
                                 .replicas = 1,
                                 .tied = true,
                                 .break_kind = "embed",
                                 .break_nth = 3});
}

/* Each kind of sum that a tensor group makes, in the first microbatch of the first step: the
 * embedding, after attention and after the MLP of the first block; then, backward, at the head, in
 * the MLP and in attention of the last block. */
Test(equivalence, a_broken_tensor_reduction_is_seen)
{
    const int layers = 8, forward = 1 + 2 * layers;
    const int nth[] = {1, 2, 3, forward + 1, forward + 2, forward + 3};

    for (size_t i = 0; i < sizeof nth / sizeof *nth; i++)
        check_broken(&(struct split){.tensors = 2,
                                     .stages = 1,
                                     .replicas = 1,
                                     .tied = true,
                                     .break_kind = "tp",
                                     .break_nth = nth[i]});
}
