/* The steps: each is trained, told, logged; held-out text and checkpoints when they are due. */
#include "rank_priv.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "launch.h"
#include "notes.h"
#include "record.h"

/* Counting the tokens takes a while: only for those who read it. */
static int write_held_out(struct rank *r, int step, double loss, int sequences)
{
    double unigram;
    const int rc = holmes_dataloader_unigram_nats(r->data, &unigram);

    if (rc != 0)
        return holmes_rank_step_failed(r, "evaluation after step", step, rc);
    return holmes_rank_write(r, holmes_record_held_out(step, loss, unigram, sequences));
}

/* Said by the rank that holds the first tensor at fault, and heard by the others. */
static int not_finite(struct rank *r, int step)
{
    const char *unfit = holmes_trainer_unfit(r->trainer);

    if (!unfit)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true,
                                "step %d: loss or gradients are not finite", step);
    return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "step %d: %s", step, unfit);
}

int holmes_rank_evaluate(struct rank *r, int step, double *loss)
{
    int sequences, rc;

    *loss = -1;
    if (r->config->eval_sequences == 0)
        return 0;
    rc = holmes_trainer_evaluate(r->trainer, loss, &sequences);
    if (rc != 0)
        return holmes_rank_step_failed(r, "evaluation after step", step, rc);
    if (!isfinite(*loss))
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, r->rank != 0,
                                "evaluation after step %d: the held-out loss is %g", step, *loss);
    if (sequences == 0) {
        *loss = -1;
        return 0;
    }
    return r->rank == 0 ? write_held_out(r, step, *loss, sequences) : 0;
}

/* Work is counted for the whole job, the share of the peak for each of its processors. */
static void show_progress(struct rank *r, int step, const struct holmes_step_result *s, double rate)
{
    const struct holmes_config *c = r->config;
    double tflops = rate * holmes_model_flops_per_token(&c->model) / 1e12;
    char mfu[24] = "";

    if (c->peak_tflops > 0)
        snprintf(mfu, sizeof mfu, ", MFU %.1f %%", tflops / c->peak_tflops / r->world * 100);
    holmes_progress_update(&r->progress, (uint64_t)step,
                           "loss %.4f, norm %.3g, lr %.3g, %.0f tokens/s, %.3g %s%s", s->loss,
                           s->grad_norm, s->lr, rate, tflops < 1 ? tflops * 1e3 : tflops,
                           tflops < 1 ? "GFLOPS" : "TFLOPS", mfu);
}

static int after_step(struct rank *r, int step, const struct holmes_step_result *s)
{
    const struct holmes_config *c = r->config;
    uint64_t now = holmes_now_ns();
    double seconds = (double)(now - r->step_ns) / 1e9;
    double rate = (double)c->batch * c->model.seq_len / seconds;

    r->step_ns = now;
    if (s->skipped)
        r->skipped++;
    if (s->stop)
        r->last_step = step;
    if (step > r->last_step - 10 && !s->skipped) {
        r->loss_sum += s->loss;
        r->loss_count++;
    }
    holmes_notes_show(rank_hide_progress, &r->progress);
    if (r->rank != 0)
        return 0;
    if (s->skipped) {
        holmes_progress_hide(&r->progress);
        fprintf(stderr, "holmes-train: step %d is skipped: loss %g, gradient norm %g\n", step,
                s->loss, s->grad_norm);
    }
    if (!c->quiet)
        show_progress(r, step, s, rate);
    return holmes_rank_write(r, holmes_record_step(step, s, seconds, rate));
}

/* The time it takes is no time of training. */
static int save(struct rank *r, int step)
{
    struct holmes_ckpt_failure f;
    struct holmes_saved saved;
    uint64_t before;
    int rc;

    if (!holmes_ckpt_run_due(r->ckpt, step, step == r->last_step))
        return 0;
    rc = holmes_trainer_settle(r->trainer);
    if (rc != 0)
        return holmes_rank_step_failed(r, "step", step, rc);
    before = holmes_now_ns();
    if (holmes_ckpt_run_save(r->ckpt, r->trainer, &r->links, step, &saved, &f) != 0)
        return holmes_rank_ckpt_fail(r, &f);
    r->started_ns += holmes_now_ns() - before;
    r->step_ns = holmes_now_ns();
    if (r->rank != 0)
        return 0;
    if (!r->config->quiet) {
        holmes_progress_hide(&r->progress);
        fprintf(stderr, "holmes-train: %s saved, %.1f MB in %.1f s, %.0f MB/s\n", saved.path,
                (double)saved.bytes / 1e6, saved.seconds,
                (double)saved.bytes / 1e6 / saved.seconds);
    }
    return holmes_rank_write(r, holmes_record_checkpoint(step, &saved));
}

int holmes_rank_train(struct rank *r, double *held_out)
{
    const struct holmes_config *c = r->config;
    int code = 0;

    r->started_ns = r->step_ns = holmes_now_ns();
    r->progress.first = (uint64_t)r->resumed.step;
    atomic_store(&r->stop.training, true);
    for (int step = r->resumed.step + 1; step <= r->last_step && code == 0; step++) {
        struct holmes_step_result s;
        int rc = holmes_trainer_step(r->trainer, step, &s);

        if (rc == -EDOM && !r->kernels->error())
            return not_finite(r, step);
        if (rc != 0 || r->kernels->error())
            return holmes_rank_step_failed(r, "step", step, rc);
        code = after_step(r, step, &s);
        if (code == 0 && c->eval_every > 0 && step % c->eval_every == 0 && step < r->last_step) {
            uint64_t before = holmes_now_ns();

            code = holmes_rank_evaluate(r, step, held_out);
            r->started_ns += holmes_now_ns() - before;
            r->step_ns = holmes_now_ns();
        }
        if (code == 0)
            code = save(r, step);
    }
    if (code == 0) {
        int rc = holmes_trainer_settle(r->trainer);

        if (rc != 0)
            return holmes_rank_step_failed(r, "weights of step", r->last_step, rc);
    }
    if (r->rank == 0)
        holmes_progress_finish(&r->progress);
    return code;
}
