/* The trainer on memory that only the calls of the kernels and communicators made for it may touch,
 * as a GPU's is: nothing of the host looks into it, and every result is that of `ref`, or of its
 * bfloat16, bit for bit. Ranks are threads. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "ckpt_job.h"
#include "support/bf16_kernels.h"
#include "support/guarded_kernels.h"

static char dir[TEST_FOLDER_MAX], text[128];

static void set_up(void)
{
    test_folder_make(dir, "guarded");
    snprintf(text, sizeof text, "%s/text", dir);
    ckpt_job_text(text);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(guarded, .init = set_up, .fini = tear_down, .timeout = 300);

/* 20 channels leave a rest among three replicas. */
static struct ckpt_job job_of(struct ckpt_split split, bool tied)
{
    return (struct ckpt_job){
        .split = split, .tied = tied, .channels = 20, .text = text, .first = 1, .last = 3};
}

/* The job on `base`, or on ref for NULL, behind the guard. */
static void guard(struct ckpt_job *job, const struct holmes_kernels *base)
{
    job->kernels = guarded_kernels(base ? base : holmes_kernels_find("ref"));
    job->touch = guarded_open;
}

static void expect_same(const struct ckpt_job *a, const struct ckpt_job *b)
{
    for (int step = a->first; step <= a->last; step++) {
        cr_expect_eq(a->steps[step].loss, b->steps[step].loss, "step %d", step);
        cr_expect_eq(a->steps[step].grad_norm, b->steps[step].grad_norm, "step %d", step);
    }
    cr_expect_eq(a->held_out, b->held_out);
}

/* Trains, evaluates and saves on both; then goes on from there on both. */
static void compare_on(const struct holmes_kernels *base, struct ckpt_split split, bool tied,
                       bool measure)
{
    struct ckpt_job ref = job_of(split, tied), guarded;
    char a[100], b[100], at_a[130], at_b[130];
    const unsigned long before = guarded_calls();

    snprintf(a, sizeof a, "%s/ref", dir);
    snprintf(b, sizeof b, "%s/guarded", dir);
    snprintf(at_a, sizeof at_a, "%s/step-00000003", a);
    snprintf(at_b, sizeof at_b, "%s/step-00000003", b);
    ref.save_at = 3;
    ref.evaluate = true;
    ref.kernels = base;
    guarded = ref;
    guard(&guarded, base);
    guarded.measure = measure; /* which leaves everything as it was */
    ref.save = a;
    guarded.save = b;
    ckpt_job_ok(&ref);
    ckpt_job_ok(&guarded);
    cr_expect_gt(ref.held_out, 0);
    cr_expect_gt(ref.steps[1].grad_norm, 1, "clipping has something to do");
    expect_same(&ref, &guarded);
    ckpt_job_same_state(at_a, at_b);

    ref.first = guarded.first = 4;
    ref.last = guarded.last = 5;
    ref.save_at = guarded.save_at = 5;
    ref.resume = at_a;
    guarded.resume = at_b;
    ckpt_job_ok(&ref);
    ckpt_job_ok(&guarded);
    expect_same(&ref, &guarded);
    snprintf(at_a, sizeof at_a, "%s/step-00000005", a);
    snprintf(at_b, sizeof at_b, "%s/step-00000005", b);
    ckpt_job_same_state(at_a, at_b);
    cr_expect_gt(guarded_calls(), before + 100);
}

static void compare(struct ckpt_split split, bool tied, bool measure)
{
    compare_on(NULL, split, tied, measure);
}

Test(guarded, one_rank)
{
    compare((struct ckpt_split){1, 1, 1, 1}, false, true);
}

Test(guarded, one_rank_tied_that_computes_activations_again)
{
    compare((struct ckpt_split){1, 1, 1, 1, .recompute = true, .no_overlap = true}, true, false);
}

Test(guarded, stages)
{
    compare((struct ckpt_split){2, 1, 1, 1}, true, false);
}

Test(guarded, stages_of_two_chunks)
{
    compare((struct ckpt_split){2, 1, 1, 2}, false, false);
}

Test(guarded, replicas)
{
    compare((struct ckpt_split){1, 2, 1, 1}, false, false);
}

Test(guarded, replicas_whose_blocks_leave_a_tail)
{
    compare((struct ckpt_split){1, 3, 1, 1, .no_overlap = true}, true, false);
}

Test(guarded, tensor_ranks)
{
    compare((struct ckpt_split){1, 1, 2, 1, .recompute = true}, true, false);
}

Test(guarded, all_together)
{
    compare((struct ckpt_split){2, 2, 2, 1}, true, true);
}

Test(guarded, one_rank_of_bf16)
{
    compare_on(bf16_kernels(), (struct ckpt_split){1, 1, 1, 1}, true, true);
}

Test(guarded, replicas_of_bf16_whose_blocks_leave_a_tail)
{
    compare_on(bf16_kernels(), (struct ckpt_split){1, 3, 1, 1}, false, true);
}

Test(guarded, all_together_of_bf16)
{
    compare_on(bf16_kernels(), (struct ckpt_split){2, 2, 2, 1}, true, false);
}

Test(guarded, chunks_and_replicas_of_bf16)
{
    compare_on(bf16_kernels(), (struct ckpt_split){2, 2, 1, 2, .recompute = true}, true, false);
}

static void take_in_a_model(const struct holmes_kernels *base)
{
    struct ckpt_job ref = job_of((struct ckpt_split){1, 1, 1, 1}, true), guarded;
    char folder[100], at[130], model[100], why[600] = "";
    struct holmes_ckpt *c;
    uint64_t bytes;

    snprintf(folder, sizeof folder, "%s/checkpoints", dir);
    snprintf(at, sizeof at, "%s/step-00000003", folder);
    snprintf(model, sizeof model, "%s/model", dir);
    ref.kernels = base;
    guarded = ref;
    guard(&guarded, base);
    guarded.save = folder;
    guarded.save_at = 3;
    ckpt_job_ok(&guarded);
    cr_assert_eq(holmes_ckpt_open(at, &c, why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_gpt2_export(c, model, NULL, &bytes, why, sizeof why), 0, "%s", why);
    holmes_ckpt_close(c);

    guarded.save = NULL;
    guarded.init = ref.init = model;
    ckpt_job_ok(&ref);
    ckpt_job_ok(&guarded);
    expect_same(&ref, &guarded);
}

Test(guarded, a_model_of_others_is_taken_in)
{
    take_in_a_model(NULL);
}

Test(guarded, a_model_of_others_is_taken_in_as_bf16)
{
    take_in_a_model(bf16_kernels());
}

/* The weight is rank 0's last, which another replica owns where there is one. */
static void find_no_number(const struct holmes_kernels *base, int replicas)
{
    struct ckpt_job job = job_of((struct ckpt_split){1, replicas, 1, 1}, false);

    guard(&job, base);
    job.poison_at = 2;
    ckpt_job_run(&job);
    for (int r = 0; r < replicas; r++)
        cr_expect_eq(job.rc[r], -EDOM, "rank %d: %d", r, job.rc[r]);
    cr_expect_not_null(strstr(job.why[0], "lm_head.weight: a weight is not a number"), "%s",
                       job.why[0]);
}

Test(guarded, a_weight_that_is_no_number_is_found)
{
    find_no_number(NULL, 1);
}

Test(guarded, a_weight_of_bf16_that_is_no_number_is_found)
{
    find_no_number(bf16_kernels(), 2);
}

/* What the guard is worth. */

/* The signal that ends a child that does this; 0: none. */
static int death_of(void (*deed)(float *table))
{
    /* May start threads, which a child must not. */
    const struct holmes_kernels *k = guarded_kernels(holmes_kernels_find("ref"));
    const pid_t child = fork();
    int status;

    if (child == 0) {
        float *table = k->alloc(sizeof *table);

        signal(SIGSEGV, SIG_DFL); /* sanitizers and Criterion have handlers */
        signal(SIGABRT, SIG_DFL);
        k->zero(table, sizeof *table);
        deed(table);
        _exit(0);
    }
    cr_assert_gt(child, 0);
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void read_it(float *table)
{
    _exit(*(volatile float *)table != 0);
}

static void write_it(float *table)
{
    *(volatile float *)table = 1;
}

static void sum_into_the_host(float *table)
{
    double sum = 0;

    guarded_kernels(holmes_kernels_find("ref"))->sum_squares(&sum, table, 1);
}

static void copy_it(float *table)
{
    const struct holmes_kernels *k = guarded_kernels(holmes_kernels_find("ref"));
    float x = 1;

    k->copy(table, &x, sizeof x);
    k->copy(&x, table, sizeof x);
}

Test(guarded, whoever_touches_it_dies)
{
    cr_expect_eq(death_of(read_it), SIGSEGV);
    cr_expect_eq(death_of(write_it), SIGSEGV);
    cr_expect_eq(death_of(sum_into_the_host), SIGABRT);
    cr_expect_eq(death_of(copy_it), 0);
}
