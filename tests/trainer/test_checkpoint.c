/* Training that is cut in two by a checkpoint is the same training: bit for bit under the same
 * split of the ranks, and the same state under any other. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "ckpt_job.h"
#include "support/sample.h"

#define CUT            7
#define LOSS_TOLERANCE 1e-5
#define NORM_TOLERANCE 1e-4

static char dir[TEST_FOLDER_MAX], text[128];

static void set_up(void)
{
    test_folder_make(dir, "checkpoint");
    snprintf(text, sizeof text, "%s/text", dir);
    ckpt_job_text(text);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(checkpoint, .init = set_up, .fini = tear_down, .timeout = 600);

static const struct ckpt_split splits[] = {
    {1, 1, 1, 1, false, false}, {2, 1, 1, 1, false, false}, {1, 2, 1, 1, false, true},
    {1, 3, 1, 1, true, false},  {1, 1, 2, 1, false, false}, {1, 1, 4, 1, false, false},
    {2, 2, 2, 1, false, false}, {4, 1, 1, 1, true, false},  {2, 1, 2, 1, false, true},
    {2, 3, 1, 1, false, false}, {2, 1, 1, 2, false, false}, {2, 2, 1, 2, true, false},
};
#define NSPLITS (sizeof splits / sizeof *splits)

static const char *name_of(const struct ckpt_split *s)
{
    static char names[4][64];
    static int next;
    char *name = names[next++ % 4];

    snprintf(name, sizeof names[0], "pipeline %d data %d tensor %d parts %d", s->stages,
             s->replicas, s->tensors, s->chunks);
    return name;
}

static void path_of(const char *what, size_t number, char *out, size_t len)
{
    snprintf(out, len, "%s/%s-%zu", dir, what, number);
}

/* Trains all steps in one go, with a checkpoint after CUT in folder "from-NUMBER". */
static struct ckpt_job whole(size_t number, bool tied, char *folder, size_t len)
{
    struct ckpt_job job = {.split = splits[number],
                           .tied = tied,
                           .text = text,
                           .first = 1,
                           .last = CKPT_JOB_STEPS,
                           .save_at = CUT};

    path_of(tied ? "tied" : "from", number, folder, len);
    job.save = folder;
    ckpt_job_ok(&job);
    job.save = NULL;
    return job;
}

static struct ckpt_job rest(const struct ckpt_split *split, bool tied, const char *folder)
{
    char resume[200];
    struct ckpt_job job = {.split = *split,
                           .tied = tied,
                           .text = text,
                           .first = CUT + 1,
                           .last = CKPT_JOB_STEPS,
                           .resume = resume};

    snprintf(resume, sizeof resume, "%s/step-%08d", folder, CUT);
    ckpt_job_ok(&job);
    job.resume = NULL;
    return job;
}

static void check_same_split(bool tied)
{
    for (size_t i = 0; i < NSPLITS; i += sample_every()) {
        char folder[128];
        struct ckpt_job all = whole(i, tied, folder, sizeof folder);
        struct ckpt_job later = rest(&splits[i], tied, folder);

        cr_expect_gt(all.steps[1].loss - all.steps[CKPT_JOB_STEPS].loss, 0.5);
        for (int step = CUT + 1; step <= CKPT_JOB_STEPS; step++)
            cr_expect_eq(memcmp(&later.steps[step], &all.steps[step], sizeof all.steps[step]), 0,
                         "%s, step %d: loss %.17g, %.17g without the cut", name_of(&splits[i]),
                         step, later.steps[step].loss, all.steps[step].loss);
    }
}

Test(checkpoint, the_same_split_goes_on_bit_for_bit)
{
    check_same_split(false);
}

Test(checkpoint, the_same_split_goes_on_bit_for_bit_with_tied_weights)
{
    check_same_split(true);
}

static void check_near(const struct ckpt_job *a, const struct ckpt_job *all, const char *from,
                       const char *to)
{
    for (int step = CUT + 1; step <= CKPT_JOB_STEPS; step++) {
        const struct holmes_step_result *x = &a->steps[step], *y = &all->steps[step];
        const double loss = fabs(x->loss - y->loss) / y->loss;
        const double norm = fabs(x->grad_norm - y->grad_norm) / y->grad_norm;

        cr_expect_lt(loss, LOSS_TOLERANCE, "%s, then %s: step %d: loss differs by %.2g", from, to,
                     step, loss);
        cr_expect_lt(norm, NORM_TOLERANCE, "%s, then %s: step %d: norm differs by %.2g", from, to,
                     step, norm);
        cr_expect_eq(x->lr, y->lr, "%s, then %s: step %d: learning rate", from, to, step);
    }
}

static void check_other_splits(size_t from, bool tied)
{
    char folder[128];
    struct ckpt_job all = whole(from, tied, folder, sizeof folder);

    for (size_t to = 0; to < NSPLITS; to += sample_every()) {
        struct ckpt_job later = rest(&splits[to], tied, folder);

        check_near(&later, &all, name_of(&splits[from]), name_of(&splits[to]));
    }
}

Test(checkpoint, any_split_goes_on_from_one_rank)
{
    check_other_splits(0, false);
}

Test(checkpoint, any_split_goes_on_from_eight_ranks)
{
    check_other_splits(6, true);
}

/* Loaded under another split and saved at once: not a bit is lost on the way. */
Test(checkpoint, the_state_survives_every_change_of_split)
{
    for (size_t i = 0; i < NSPLITS; i += sample_every()) {
        const bool tied = i % 2;
        const struct ckpt_split *to = &splits[(i * 5 + 3) % NSPLITS];
        char folder[128], copy[128], resume[200], again[200];
        struct ckpt_job job = {.split = *to, .tied = tied, .text = text};

        whole(i, tied, folder, sizeof folder);
        path_of("copy", i, copy, sizeof copy);
        snprintf(resume, sizeof resume, "%s/step-%08d", folder, CUT);
        snprintf(again, sizeof again, "%s/step-%08d", copy, CUT);
        job.resume = resume;
        job.save = copy;
        job.save_at = CUT;
        job.first = CUT + 1;
        ckpt_job_ok(&job);
        ckpt_job_same_state(resume, again);
    }
}
