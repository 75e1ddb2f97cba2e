/* Executes a schedule on the stages of one rank between its neighbours: activations forward,
 * gradients back, sends and receives under way while the stages compute. */
#ifndef HOLMES_PIPELINE_H
#define HOLMES_PIPELINE_H

#include "dataloader.h"
#include "links.h"
#include "schedule.h"
#include "stage.h"

struct holmes_pipeline;

struct holmes_pipeline_attr {
    struct holmes_model model;
    int batch;                          /* B: sequences in a microbatch */
    struct holmes_schedule_attr plan;   /* of training: microbatches of this replica in one step */
    struct holmes_stage *const *chunks; /* [plan.chunks]; made with the slots that
                                           holmes_schedule_in_flight says */
    struct holmes_links *links;
    struct holmes_dataloader *data;
    /* Called before the last backward of a chunk in a step; may be NULL. */
    void (*last_backward)(void *ctx, int chunk);
    void *ctx;
};

/* The array of chunks is copied. */
int holmes_pipeline_create(const struct holmes_pipeline_attr *attr, struct holmes_pipeline **out);
void holmes_pipeline_destroy(struct holmes_pipeline *p); /* NULL is fine */

/* Bytes that a pipeline takes besides its stage: those under way between it and its neighbours, and
 * tokens. Pure; -ENOMEM when no machine could hold them. */
int holmes_pipeline_measure(const struct holmes_model *m, int batch,
                            const struct holmes_schedule_attr *plan, enum holmes_dtype t,
                            size_t *bytes);

/* All microbatches of training step `step`, forward and backward; gradients are added to the
 * stages', each microbatch's loss multiplied by loss_scale. Where kernels are queued it does not
 * wait for them. */
int holmes_pipeline_train(struct holmes_pipeline *p, uint64_t step, float loss_scale);
/* Waits for it. *loss: sum of the microbatches' mean losses, on the last stage; 0 elsewhere. */
int holmes_pipeline_take_loss(struct holmes_pipeline *p, double *loss);

/* Forward of `count` microbatches of held-out sequences: first, first + stride, ... in units of
 * microbatches, waited for. *loss as above. */
int holmes_pipeline_evaluate(struct holmes_pipeline *p, int first, int stride, int count,
                             double *loss);

#endif
