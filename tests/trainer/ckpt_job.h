/* A small training job whose ranks are threads, which saves into a folder and goes on from one
 * through the same calls as holmes-train. */
#ifndef HOLMES_TEST_CKPT_JOB_H
#define HOLMES_TEST_CKPT_JOB_H

#include "ckpt_state.h"
#include "gpt2.h"

#define CKPT_JOB_STEPS 16
#define CKPT_JOB_RANKS 8

struct ckpt_split {
    int stages, replicas, tensors, chunks;
    bool no_overlap, recompute;
};

struct ckpt_job {
    struct ckpt_split split;
    bool tied;
    int channels;       /* 0: 24, which replicas share without a rest */
    int first, last;    /* steps to train; last < first: none */
    const char *text;   /* to train on */
    const char *save;   /* folder, or NULL */
    int save_at, keep;  /* after this step */
    const char *resume; /* a checkpoint, or NULL */
    const char *init;   /* a GPT-2 to begin with, or NULL */
    int fail_rank;      /* at this barrier of saving, this rank dies */
    const char *fail_at;
    const struct holmes_kernels *kernels; /* NULL: ref */
    void (*touch)(bool open);             /* see thread_hub_touch; may be NULL */
    bool measure, evaluate;               /* overlap before the first step; after the last */
    /* In place of the hub's communicators; ctx comes from enter, in the rank's thread. */
    holmes_comm_factory factory;
    void *(*enter)(int rank, int world);
    void (*leave)(void *ctx);
    void (*before_step)(int rank, int step), (*after_step)(int rank, int step); /* may be NULL */
    int poison_at; /* before this step rank 0's last weight becomes NaN */
    /* At the end, settled, on each rank's thread; may be NULL. */
    void (*look)(struct ckpt_job *job, int rank, const struct holmes_trainer *t);

    struct holmes_step_result steps[CKPT_JOB_STEPS + 1]; /* by step, from 1; of rank 0 */
    double held_out;                                     /* of rank 0 */
    int rc[CKPT_JOB_RANKS];
    char why[CKPT_JOB_RANKS][600]; /* of ranks that failed */
};

/* Runs it to the end; the caller looks at rc. */
void ckpt_job_run(struct ckpt_job *job);
/* The same, and every rank must succeed. */
void ckpt_job_ok(struct ckpt_job *job);
int ckpt_job_world(const struct ckpt_job *job);
struct holmes_config ckpt_job_config(const struct ckpt_job *job);

/* For a team of which one rank alone runs. */
int ckpt_job_no_barrier(void *ctx, const char *name);

/* Writes a text to train on. */
void ckpt_job_text(const char *path);

/* Every element of one part of two checkpoints is the same, bit for bit. */
void ckpt_job_same_part(const char *a, const char *b, enum holmes_part part);
/* Every element of every part of two checkpoints is the same, bit for bit. */
void ckpt_job_same_state(const char *a, const char *b);

#endif
