/* The checkpoints of one rank of a run: what it goes on from, and what it saves. */
#ifndef HOLMES_CKPT_RUN_H
#define HOLMES_CKPT_RUN_H

#include "ckpt_state.h"
#include "rendezvous.h"

struct holmes_ckpt_run;

/* Why something failed, as an exit status of launch.h and a sentence; `remote`: it may be the
 * consequence of another rank's failure. */
struct holmes_ckpt_failure {
    int code;
    bool remote;
    char why[1500];
};

/* On rank 0: takes the lock of --save, finds what --resume means, and whether this run can go on
 * from it; nobody else is asked. On other ranks this comes with holmes_ckpt_run_agree. 0, or the
 * exit status in *f. */
int holmes_ckpt_run_open(const struct holmes_config *c, int rank, int world,
                         struct holmes_ckpt_run **out, struct holmes_ckpt_failure *f);
void holmes_ckpt_run_close(struct holmes_ckpt_run *r); /* NULL is fine */

/* Collective over the job, `rdv` NULL for one rank and to be kept open: all go on from what rank 0
 * found. */
int holmes_ckpt_run_agree(struct holmes_ckpt_run *r, struct holmes_rdv *rdv,
                          struct holmes_ckpt_failure *f);
/* The step that the run goes on after, 0: it begins; valid once agreed. */
int holmes_ckpt_run_step(const struct holmes_ckpt_run *r);

struct holmes_resumed {
    char path[HOLMES_CKPT_PATH_MAX + 64];
    int step;
    uint64_t bytes; /* read by this rank */
    double seconds;
    json_t *changes; /* see holmes_ckpt_fits; until the run is closed, NULL on ranks but 0 */
};

/* Sets the trainer's state, where the run goes on from something; else path is empty. */
int holmes_ckpt_run_load(struct holmes_ckpt_run *r, struct holmes_trainer *t,
                         struct holmes_resumed *out, struct holmes_ckpt_failure *f);

/* Whether a checkpoint is due after `step`, which may be the last one that is trained. */
bool holmes_ckpt_run_due(const struct holmes_ckpt_run *r, int step, bool last);
/* Collective. */
int holmes_ckpt_run_save(struct holmes_ckpt_run *r, const struct holmes_trainer *t,
                         const struct holmes_links *links, int step, struct holmes_saved *out,
                         struct holmes_ckpt_failure *f);

#endif
