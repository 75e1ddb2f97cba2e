/* The rank processes of one side, from the parent's point of view: forked early, commanded
 * together, watched, and never left behind. Not thread safe.
 *
 * A team fails once: the sentence in holmes_team_why names the side, the rank and what happened,
 * and every later call returns the same error.
 */
#ifndef HOLMES_BENCH_TEAM_H
#define HOLMES_BENCH_TEAM_H

#include <signal.h>

#include "rank.h"

struct holmes_team;

struct holmes_team_attr {
    const char *label;           /* of the side, for messages */
    const char *const *settings; /* "NAME=value": of the rank processes' environment only */
    int nsettings;
    struct holmes_rank_attr
        rank;                    /* what all ranks are told; the team adds what is each one's own */
    volatile sig_atomic_t *stop; /* set by a signal handler: calls return -EINTR */
};

/* Forks the ranks. Call before the process has threads, and for all teams before the first call.
 * `attr`'s strings must outlive the team. On failure *why is a sentence. */
int holmes_team_fork(const struct holmes_team_attr *attr, struct holmes_team **out, char *why,
                     size_t why_len);
/* Kills what is left and reaps it; NULL is fine. */
void holmes_team_destroy(struct holmes_team *t);

/* Meets: for a plugin this also serves the rendezvous. */
int holmes_team_join(struct holmes_team *t);
/* Gives the command to every rank and waits for all. `replies` (nranks of them) may be NULL. */
int holmes_team_call(struct holmes_team *t, const struct holmes_bench_command *cmd,
                     struct holmes_bench_reply *replies);
/* Orderly end of the processes, which must exit with 0. */
int holmes_team_leave(struct holmes_team *t);

/* After a RUN of LATENCY: what an even rank recorded of each message. */
const float *holmes_team_message_us(const struct holmes_team *t, int rank);

pid_t holmes_team_pid(const struct holmes_team *t, int rank);
const char *holmes_team_why(const struct holmes_team *t);
/* What rank 0 said it opened; "" before the join. */
const char *holmes_team_about(const struct holmes_team *t);

#endif
