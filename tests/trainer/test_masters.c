/* Mixed precision: float32 masters of what a rank updates and of nothing else, computing weights
 * that are the masters rounded wherever they lie, and no bit of a master lost between ranks, files
 * and splits. Ranks are threads; the table is ref's bfloat16. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/test_folder.h"
#include "ckpt_job.h"
#include "memory.h"
#include "support/bf16_kernels.h"
#include "support/sample.h"

static char dir[TEST_FOLDER_MAX], text[128];

static void set_up(void)
{
    test_folder_make(dir, "masters");
    snprintf(text, sizeof text, "%s/text", dir);
    ckpt_job_text(text);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(masters, .init = set_up, .fini = tear_down, .timeout = 600);

static const struct ckpt_split splits[] = {{1, 1, 1, 1, false, false}, {1, 2, 1, 1, false, true},
                                           {1, 3, 1, 1, true, false},  {2, 1, 1, 1, false, false},
                                           {2, 3, 1, 1, false, true},  {1, 2, 2, 1, false, false},
                                           {2, 2, 1, 2, true, false},  {2, 2, 2, 1, false, false}};
#define NSPLITS (sizeof splits / sizeof *splits)

static const char *name_of(const struct ckpt_split *s)
{
    static _Thread_local char name[64];

    snprintf(name, sizeof name, "pipeline %d data %d tensor %d parts %d", s->stages, s->replicas,
             s->tensors, s->chunks);
    return name;
}

/* 20 channels leave a rest among three replicas, of two stages at least. */
static struct ckpt_job job_of(size_t split, bool tied)
{
    return (struct ckpt_job){.split = splits[split],
                             .tied = tied,
                             .channels = 20,
                             .text = text,
                             .first = 1,
                             .kernels = bf16_kernels()};
}

/* --- what lies where -----------------------------------------------------------------------------
 */

static void expect_rounded(const struct ckpt_job *job, int rank, struct holmes_stage *s,
                           const struct holmes_owned *o)
{
    const uint16_t *weights = holmes_stage_weights(s);

    for (size_t i = 0; i < o->count; i++)
        cr_assert_eq(weights[o->offset + i], bf16_round(o->w[i]),
                     "%s, rank %d: weight %zu is not its master, %g, rounded", name_of(&job->split),
                     rank, o->offset + i, o->w[i]);
}

static atomic_int tails; /* seen */

/* Of what a rank owns, and of the tails that all replicas have; and that it owns but its part. */
static void look_at_masters(struct ckpt_job *job, int rank, const struct holmes_trainer *t)
{
    for (int chunk = 0; chunk < holmes_trainer_nchunks(t); chunk++) {
        const struct holmes_dp *dp = holmes_trainer_dp(t, chunk);
        struct holmes_stage *s = holmes_trainer_stage(t, chunk);
        const size_t n = holmes_stage_nparams(s), replicas = (size_t)job->split.replicas;
        struct holmes_owned o;
        size_t owned = 0;

        for (int i = 0; i < holmes_dp_nowned(dp); i++) {
            holmes_dp_owned(dp, i, &o);
            expect_rounded(job, rank, s, &o);
            owned += o.count;
        }
        for (int i = 0; i < holmes_dp_nshared(dp); i++) {
            holmes_dp_shared(dp, i, &o);
            expect_rounded(job, rank, s, &o);
            cr_expect_lt(o.count, replicas, "a tail of %zu", o.count);
        }
        tails += holmes_dp_nshared(dp);
        cr_expect_leq(owned, n / replicas + 2 * replicas, "rank %d owns %zu of %zu", rank, owned,
                      n);
    }
}

/* The computing weights of each rank, to be compared. */
struct copies {
    uint16_t *at[CKPT_JOB_RANKS];
    size_t count[CKPT_JOB_RANKS];
};
static struct copies copies;

static void keep_weights(struct ckpt_job *job, int rank, const struct holmes_trainer *t)
{
    look_at_masters(job, rank, t);
    copies.count[rank] = 0;
    for (int chunk = 0; chunk < holmes_trainer_nchunks(t); chunk++) {
        struct holmes_stage *s = holmes_trainer_stage(t, chunk);
        const size_t n = holmes_stage_nparams(s);

        copies.at[rank] =
            realloc(copies.at[rank], (copies.count[rank] + n) * sizeof *copies.at[rank]);
        memcpy(copies.at[rank] + copies.count[rank], holmes_stage_weights(s),
               n * sizeof *copies.at[rank]);
        copies.count[rank] += n;
    }
}

/* All replicas have the same weights. */
static void compare_replicas(struct ckpt_job *job)
{
    const struct ckpt_split *s = &job->split;
    struct holmes_config c = ckpt_job_config(job);
    struct holmes_group *g;
    int first[CKPT_JOB_RANKS], compared = 0;
    char why[200];

    cr_assert_eq(holmes_group_create(s->stages, s->replicas, s->tensors, NULL, c.model.layers, NULL,
                                     &g, why, sizeof why),
                 0, "%s", why);
    for (int r = 0; r < ckpt_job_world(job); r++) {
        const struct holmes_place p = holmes_group_place(g, r);
        const int part = p.stage * s->tensors + p.tensor;

        if (p.replica == 0)
            first[part] = r;
    }
    for (int r = 0; r < ckpt_job_world(job); r++) {
        const struct holmes_place p = holmes_group_place(g, r);
        const int of = first[p.stage * s->tensors + p.tensor];

        compared += p.replica > 0;
        cr_assert_eq(copies.count[r], copies.count[of]);
        cr_expect_eq(memcmp(copies.at[r], copies.at[of], copies.count[r] * sizeof *copies.at[r]), 0,
                     "%s: ranks %d and %d have other weights", name_of(s), r, of);
    }
    cr_expect_eq(compared, ckpt_job_world(job) / s->replicas * (s->replicas - 1));
    for (int r = 0; r < ckpt_job_world(job); r++) {
        free(copies.at[r]);
        copies.at[r] = NULL;
    }
    holmes_group_destroy(g);
    holmes_config_fini(&c);
}

/* New, after steps, and after a checkpoint of another split. */
Test(masters, computing_weights_are_the_masters_rounded_on_all_replicas)
{
    for (size_t i = 0; i < NSPLITS; i += sample_every()) {
        char folder[100], resume[140];
        struct ckpt_job job = job_of(i, i % 2);

        tails = 0;
        job.look = keep_weights;
        ckpt_job_ok(&job);
        compare_replicas(&job);
        cr_expect_eq(tails > 0, splits[i].stages == 2 && splits[i].replicas == 3);

        snprintf(folder, sizeof folder, "%s/from-%zu", dir, i);
        snprintf(resume, sizeof resume, "%s/step-%08d", folder, 4);
        job.last = job.save_at = 4;
        job.save = folder;
        ckpt_job_ok(&job);
        compare_replicas(&job);

        job = job_of((i + 3) % NSPLITS, i % 2);
        job.look = keep_weights;
        job.resume = resume;
        job.first = 5;
        ckpt_job_ok(&job);
        compare_replicas(&job);
    }
}

/* --- not a bit is lost ---------------------------------------------------------------------------
 */

/* Begins as the job says and saves that, without a step, as the state after `step`. */
static void save_at_once(struct ckpt_job job, const char *name, int step, char *out, size_t len)
{
    char folder[100];

    snprintf(folder, sizeof folder, "%s/%s", dir, name);
    snprintf(out, len, "%s/step-%08d", folder, step);
    job.save = folder;
    job.save_at = step;
    job.first = step + 1;
    job.last = step;
    ckpt_job_ok(&job);
}

Test(masters, begin_as_the_weights_of_float32_whatever_the_split)
{
    for (int tied = 0; tied < 2; tied++) {
        struct ckpt_job ref = job_of(0, tied);
        char want[140], got[140], name[32];

        ref.kernels = NULL;
        save_at_once(ref, tied ? "ref-tied" : "ref", 1, want, sizeof want);
        for (size_t i = (size_t)tied; i < NSPLITS; i += 2) {
            snprintf(name, sizeof name, "new-%zu", i);
            save_at_once(job_of(i, tied), name, 1, got, sizeof got);
            ckpt_job_same_state(want, got);
        }
    }
}

Test(masters, survive_every_change_of_split)
{
    for (size_t i = 0; i < NSPLITS; i += sample_every()) {
        struct ckpt_job job = job_of(i, i % 2), next = job_of((i * 3 + 2) % NSPLITS, i % 2);
        char folder[100], saved[140], again[140], name[32];

        snprintf(folder, sizeof folder, "%s/of-%zu", dir, i);
        snprintf(saved, sizeof saved, "%s/step-%08d", folder, 3);
        job.save = folder;
        job.save_at = job.last = 3;
        ckpt_job_ok(&job);
        next.resume = saved;
        snprintf(name, sizeof name, "again-%zu", i);
        save_at_once(next, name, 3, again, sizeof again);
        ckpt_job_same_state(saved, again);
    }
}

/* Also through the format of others, which has F32. */
Test(masters, survive_export_and_import)
{
    struct ckpt_job job = job_of(2, true), next = job_of(4, true);
    char folder[100], saved[140], model[100], again[140], why[600] = "";
    struct holmes_ckpt *c;
    uint64_t bytes;

    snprintf(folder, sizeof folder, "%s/trained", dir);
    snprintf(saved, sizeof saved, "%s/step-%08d", folder, 3);
    snprintf(model, sizeof model, "%s/model", dir);
    job.save = folder;
    job.save_at = job.last = 3;
    ckpt_job_ok(&job);
    cr_assert_eq(holmes_ckpt_open(saved, &c, why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_gpt2_export(c, model, NULL, &bytes, why, sizeof why), 0, "%s", why);
    holmes_ckpt_close(c);
    next.init = model;
    next.look = look_at_masters;
    save_at_once(next, "imported", 1, again, sizeof again);
    ckpt_job_same_part(saved, again, HOLMES_PART_WEIGHTS);
}

/* --- training ------------------------------------------------------------------------------------
 */

/* Sums of bfloat16 in another order differ in their last of 8 bits. */
Test(masters, losses_are_those_of_one_rank)
{
    for (int tied = 0; tied < 2; tied++) {
        struct ckpt_job one = job_of(0, tied), single = one;

        one.last = single.last = CKPT_JOB_STEPS;
        single.kernels = NULL;
        ckpt_job_ok(&one);
        ckpt_job_ok(&single);
        cr_expect_gt(one.steps[1].loss - one.steps[CKPT_JOB_STEPS].loss, 0.5);
        for (int step = 1; step <= CKPT_JOB_STEPS; step++)
            cr_expect_lt(fabs(one.steps[step].loss / single.steps[step].loss - 1), 2e-3,
                         "step %d: loss %g in bfloat16, %g in float32", step, one.steps[step].loss,
                         single.steps[step].loss);
        for (size_t i = 1; i < NSPLITS; i += sample_every()) {
            struct ckpt_job job = job_of(i, tied);

            job.last = CKPT_JOB_STEPS;
            ckpt_job_ok(&job);
            for (int step = 1; step <= CKPT_JOB_STEPS; step++) {
                const double loss = job.steps[step].loss / one.steps[step].loss - 1;
                const double norm = job.steps[step].grad_norm / one.steps[step].grad_norm - 1;

                cr_expect_lt(fabs(loss), 2e-4, "%s, step %d: loss differs by %g",
                             name_of(&splits[i]), step, loss);
                cr_expect_lt(fabs(norm), 5e-3, "%s, step %d: gradient norm differs by %g",
                             name_of(&splits[i]), step, norm);
            }
        }
    }
}

/* --- memory --------------------------------------------------------------------------------------
 */

static const struct holmes_kernels *counted;
static atomic_size_t taken; /* by all ranks */

static void *counting_alloc(size_t bytes)
{
    taken += bytes;
    return counted->alloc(bytes);
}

/* What all ranks of a job take of the kernels' memory, and should. */
static void count_memory(struct ckpt_job *job, size_t *predicted)
{
    struct holmes_kernels k = *job->kernels;
    struct holmes_config c;
    struct holmes_group *g;
    char why[200];

    counted = job->kernels;
    k.alloc = counting_alloc;
    job->kernels = &k;
    taken = 0;
    ckpt_job_ok(job);
    c = ckpt_job_config(job);
    cr_assert_eq(holmes_group_create(c.stages, c.replicas, c.tensors, NULL, c.model.layers, NULL,
                                     &g, why, sizeof why),
                 0, "%s", why);
    if (c.virtual_stages > 1)
        cr_assert_eq(
            holmes_group_set_chunks(g, c.virtual_stages, c.model.layers, NULL, why, sizeof why), 0,
            "%s", why);
    *predicted = 0;
    for (int r = 0; r < ckpt_job_world(job); r++) {
        struct holmes_memory m;

        cr_assert_eq(holmes_memory_predict(&c, g, holmes_group_place(g, r), &k, &m), 0);
        *predicted += holmes_memory_total(&m) - m.communication;
        *predicted -= 2 * (size_t)c.model.seq_len * sizeof(int32_t); /* tokens, of the host's */
        *predicted += (size_t)c.virtual_stages * sizeof(double);     /* sums of squares */
    }
    holmes_group_destroy(g);
    holmes_config_fini(&c);
}

/* The tails of a tied embedding and of the rest are two where one is predicted. */
Test(masters, take_the_memory_that_is_predicted)
{
    for (size_t i = 0; i < 2 * NSPLITS; i++) {
        struct ckpt_job job = job_of(i / 2, i % 2);
        const size_t replicas = (size_t)job.split.replicas;
        const size_t slack = job.tied && job.split.stages > 1
                                 ? (size_t)ckpt_job_world(&job) * 3 * sizeof(float) * replicas
                                 : 0;
        size_t predicted;

        count_memory(&job, &predicted);
        cr_expect(taken + slack >= predicted && taken <= predicted + slack,
                  "%s%s: %zu bytes taken, %zu predicted", name_of(&job.split),
                  job.tied ? " tied" : "", taken, predicted);
    }
}

/* Of each parameter a replica has a d-th of two moments and, in bfloat16, of a master. */
Test(masters, are_shared_by_the_replicas)
{
    size_t of[2][4], predicted;
    struct holmes_config c;
    size_t params;

    for (size_t replicas = 1; replicas <= 3; replicas++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct ckpt_job job = job_of(0, false);

            job.split.replicas = (int)replicas;
            job.kernels = bf16 ? bf16_kernels() : holmes_kernels_find("ref");
            count_memory(&job, &predicted);
            of[bf16][replicas] = taken / replicas;
            c = ckpt_job_config(&job);
            params = holmes_model_params(&c.model);
            holmes_config_fini(&c);
        }
    for (size_t d = 2; d <= 3; d++) {
        const double whole = (double)params, saved = whole - whole / (double)d;

        cr_expect_float_eq((double)(of[0][1] - of[0][d]), 8 * saved, 8.0 * d,
                           "float32, %zu replicas", d);
        cr_expect_float_eq((double)(of[1][1] - of[1][d]), 12 * saved, 12.0 * d,
                           "bfloat16, %zu replicas", d);
    }
}
