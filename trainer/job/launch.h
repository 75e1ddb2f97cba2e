/* Starts all ranks of a job on this machine and sees them to their end: one error sentence, one
 * exit status, nothing left behind. */
#ifndef HOLMES_LAUNCH_H
#define HOLMES_LAUNCH_H

#include "config.h"

enum holmes_exit {
    HOLMES_EXIT_OK = 0,
    HOLMES_EXIT_FAILED = 1,  /* this run failed */
    HOLMES_EXIT_USAGE = 2,   /* bad usage or input */
    HOLMES_EXIT_PEER = 3,    /* another rank failed; this one was well */
    HOLMES_EXIT_STOPPED = 4, /* a signal asked for it: saved before the last step, to be resumed */
};

/* A signal after the first is another one, and no copy of it, when it comes so much later. */
#define HOLMES_SIGNAL_AGAIN_NS 1000000000u

/* "SIGTERM"; of those that ranks and launcher listen to. */
const char *holmes_signal_name(int sig);

/* Serves the rendezvous, runs this program again as rank 0 to c->local - 1 with argv and what a
 * rank must know, and waits. When a rank fails, the others have seconds to end by themselves and
 * are then ended. SIGINT, SIGTERM and SIGUSR1 are passed on: with --save the ranks have
 * --stop-timeout to save and end, until a second signal. Returns the exit status. */
int holmes_launch(const struct holmes_config *c, int argc, char **argv);

/* Hosts the rendezvous of a job whose ranks are started by hand, until the job has ended. */
int holmes_serve(const struct holmes_config *c);

/* In a rank: dies with the launcher. Returns HOLMES_EXIT_OK, or HOLMES_EXIT_PEER when it is dead
 * already. */
int holmes_launch_bind_to_parent(const struct holmes_config *c);

/* Host of this process in the log: its label, else the host's name. */
void holmes_host_label(const struct holmes_config *c, int rank, char *out, size_t out_len);

#endif
