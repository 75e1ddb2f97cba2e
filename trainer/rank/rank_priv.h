/* What the files of one rank share: its state, and the parts of its life in the order of their
 * files. Unless a comment says otherwise, each returns 0, or the exit status of a failure that has
 * been told (holmes_rank_fail). */
#ifndef HOLMES_RANK_PRIV_H
#define HOLMES_RANK_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt_run.h"
#include "comm_nccl.h"
#include "comm_net.h"
#include "jsonlog.h"
#include "progress.h"
#include "rank.h"
#include "rendezvous.h"
#include "train.h"
#include "wires.h"

#define RANK_BLAME_MS     1500   /* for news of another rank's failure to arrive */
#define HOLMES_RANK_JOIN  "join" /* the barrier at which all ranks are here */
#define RANK_JOIN_SLACK_S 10     /* others may reach a step of joining later than this rank */

/* What a signal asks for: rank_stop.c. */
struct rank_stop {
    pthread_t thread; /* that listens */
    bool listening;
    int fds[2];
    uint64_t first_ns, deadline;      /* the thread's: of the first signal; UINT64_MAX: none */
    atomic_int asked;                 /* the signal that asks to save and end; 0: none has */
    atomic_bool training;             /* there is something to save */
    atomic_bool ending;               /* the thread is about to end the process */
    _Atomic(struct holmes_rdv *) rdv; /* to tell the others; NULL: they are not there yet */
};

struct rank {
    const struct holmes_config *config;
    int rank, world;
    char (*hosts)[64], (*clusters)[64]; /* [world] */
    struct holmes_rdv_server *server;
    struct holmes_rdv *rdv;
    struct holmes_net *net; /* one of the two, when there are several ranks */
    struct holmes_nccl *nccl;
    struct holmes_group *group;
    struct holmes_links links;
    struct holmes_wires wires;
    struct holmes_dataloader *data;
    const struct holmes_kernels *kernels;
    struct holmes_trainer *trainer;
    struct holmes_ckpt_run *ckpt;
    struct holmes_resumed resumed; /* path "": the run begins */
    struct holmes_jsonlog *log;    /* rank 0 only */
    struct holmes_progress progress;
    uint64_t started_ns, step_ns; /* training began, the last step ended */
    size_t resident;              /* bytes in RAM before the trainer was set up; 0: not known */
    double loss_sum;              /* of the last steps */
    int loss_count;
    int skipped;   /* steps */
    int last_step; /* that is trained: --steps, unless a signal ends the run before */
    struct rank_stop stop;
    atomic_bool spoken;

    pthread_t ender; /* ends this rank when the job has ended; while closing_fd >= 0 */
    int closing_fd;
};

static inline int rank_join_ms(const struct rank *r)
{
    return (r->config->join_timeout_s + RANK_JOIN_SLACK_S) * 1000;
}

static inline void rank_hide_progress(void *ctx)
{
    holmes_progress_hide(ctx);
}

/* rank_fail.c */

/* Tells the launcher, or stderr; only after holmes_rank_may_speak. */
void holmes_rank_say(const struct rank *r, const char *sentence);
/* True for the first to ask: whoever comes first speaks for this process. */
bool holmes_rank_may_speak(struct rank *r);
/* The rendezvous' news, on its thread, that the job has ended; ctx: the rank. */
void holmes_rank_job_ended(void *ctx);
/* Before the rendezvous is left: nothing of that news is under way any more. */
void holmes_rank_no_more_ends(struct rank *r);
/* Says what went wrong and ends the job for all. `remote`: it may be the consequence of another
 * rank's failure, whose news is then waited for. Returns the exit status. */
int holmes_rank_fail(struct rank *r, int code, bool remote, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int holmes_rank_ckpt_fail(struct rank *r, const struct holmes_ckpt_failure *f);
/* "WHAT STEP: ..." names the communicator waited for, and who is in it. Returns the exit status. */
int holmes_rank_step_failed(struct rank *r, const char *what, int step, int rc);

/* rank_stop.c */

/* From here on SIGTERM, SIGINT and SIGUSR1 end this rank at once or, while it trains with --save,
 * set stop.asked: the ranks then agree on a last step, of which they save a checkpoint. A second
 * signal, and --stop-timeout, end it at once. Called before other threads are started. */
int holmes_rank_stop_open(struct rank *r);
/* Returns unless a signal is ending this process, whose status then is the signal's. */
void holmes_rank_stop_yield(struct rank *r);
void holmes_rank_stop_close(struct rank *r); /* before the rendezvous is left */

/* rank_join.c */
int holmes_rank_connect(struct rank *r);
int holmes_rank_gather(struct rank *r); /* all ranks are here: what fails is told to all */
int holmes_rank_meet(struct rank *r);
int holmes_rank_place(struct rank *r);

/* rank_hosts.c: with --planned-hosts, whether ranks are where the plan has them. In another cluster
 * is a failure; what may be right is warned of. Collective. */
int holmes_rank_compare_plan(struct rank *r);

/* rank_open.c */
int holmes_rank_open_network(struct rank *r);
int holmes_rank_open_kernels(struct rank *r);
int holmes_rank_open_trainer(struct rank *r);
int holmes_rank_open_checkpoints(struct rank *r);
int holmes_rank_agree_on_checkpoint(struct rank *r);
int holmes_rank_resume(struct rank *r);
int holmes_rank_open_data(struct rank *r);
int holmes_rank_write(struct rank *r, json_t *record);
int holmes_rank_open_log(struct rank *r);

/* rank_train.c */
int holmes_rank_evaluate(struct rank *r, int step, double *loss);
int holmes_rank_train(struct rank *r, double *held_out);

/* rank_end.c */
int holmes_rank_finish(struct rank *r, double held_out);

#endif
