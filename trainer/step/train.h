/* One rank's part of training: its stages, its data, its optimizer shards, over links that are
 * open. Knows nothing of processes, files it writes or how ranks were started. */
#ifndef HOLMES_TRAIN_H
#define HOLMES_TRAIN_H

#include <stdatomic.h>

#include "config.h"
#include "dataloader.h"
#include "dp.h"
#include "group.h"
#include "kernels.h"
#include "links.h"
#include "schedule.h"
#include "stage.h"

#define HOLMES_TRAINER_SUMS 5 /* floats that all ranks sum up in a step */

struct holmes_trainer;

struct holmes_trainer_attr {
    const struct holmes_config *config; /* outlives the trainer, as do all of these */
    const struct holmes_group *group;
    struct holmes_links *links;
    struct holmes_dataloader *data;
    const struct holmes_kernels *kernels;
    const atomic_int *stop; /* not 0: this rank is asked to stop, as all hear; may be NULL */
};

/* The schedule of pipeline stage `stage`, and what its chunk is made of; the tensor group is left
 * out. What the trainer makes, for whoever wants to know before. */
struct holmes_schedule_attr holmes_trainer_plan(const struct holmes_config *c,
                                                const struct holmes_group *g, int stage);
struct holmes_stage_attr holmes_trainer_stage_attr(const struct holmes_config *c,
                                                   const struct holmes_group *g, int stage,
                                                   int chunk, const struct holmes_kernels *k);

int holmes_trainer_create(const struct holmes_trainer_attr *attr, struct holmes_trainer **out);
/* Settled before. NULL is fine. */
void holmes_trainer_destroy(struct holmes_trainer *t);

/* What a step was like: the same values on every rank. */
struct holmes_step_result {
    double loss;      /* mean over the global batch, nats per token, before the update */
    double grad_norm; /* global, before clipping */
    double lr;
    bool skipped; /* loss or norm is not finite, and the weights are as they were */
    bool stop;    /* some rank was asked to stop before the end of this step */
};

/* Step `t` counts from 1; training may begin at a later one. Collective over the job. With overlap
 * the new weights may still be on their way to other ranks when it returns.
 *
 * -EDOM: loss or gradient norm is not finite and --on-nan says that this ends training, on every
 * rank alike; the weights are as they were. */
int holmes_trainer_step(struct holmes_trainer *t, int step, struct holmes_step_result *out);
/* The same with another learning rate than the step's. */
int holmes_trainer_step_at(struct holmes_trainer *t, int step, double lr,
                           struct holmes_step_result *out);

/* After -EDOM, a sentence about the first tensor of the job at fault; NULL on the ranks that do not
 * hold it. */
const char *holmes_trainer_unfit(const struct holmes_trainer *t);

/* All weights are everywhere and nothing is under way: before weights or moments are read or
 * written, and before the end. Evaluation does it by itself. Collective. */
int holmes_trainer_settle(struct holmes_trainer *t);

/* Mean loss over the held-out sequences, at most config.eval_sequences of them, the same ones for
 * every split. Collective. *sequences: how many. */
int holmes_trainer_evaluate(struct holmes_trainer *t, double *loss, int *sequences);

/* The chunks of the model that this rank holds, in the model's order: several with virtual stages,
 * else one. Each is a stage with its own share of the optimizer. */
int holmes_trainer_nchunks(const struct holmes_trainer *t);
struct holmes_stage *holmes_trainer_stage(const struct holmes_trainer *t, int chunk);
struct holmes_dp *holmes_trainer_dp(const struct holmes_trainer *t, int chunk);

#endif
