/* Starts all ranks of a job on this machine and sees them to their end: one error sentence, one
 * exit status, nothing left behind. */
#ifndef HOLMES_LAUNCH_H
#define HOLMES_LAUNCH_H

#include "config.h"

enum holmes_exit {
    HOLMES_EXIT_OK = 0,
    HOLMES_EXIT_FAILED = 1, /* this run failed */
    HOLMES_EXIT_USAGE = 2,  /* bad usage or input */
    HOLMES_EXIT_PEER = 3,   /* another rank failed; this one was well */
};

/* Serves the rendezvous, runs this program again as rank 0 to c->local - 1 with argv and what a
 * rank must know, and waits. When a rank fails, the others have seconds to end by themselves and
 * are then ended. SIGINT and SIGTERM end all ranks. Returns the exit status. */
int holmes_launch(const struct holmes_config *c, int argc, char **argv);

/* Hosts the rendezvous of a job whose ranks are started by hand, until the job has ended. */
int holmes_serve(const struct holmes_config *c);

/* In a rank: dies with the launcher. Returns HOLMES_EXIT_OK, or HOLMES_EXIT_PEER when it is dead
 * already. */
int holmes_launch_bind_to_parent(const struct holmes_config *c);

/* Host of this process in the log: its label, else the host's name. */
void holmes_host_label(const struct holmes_config *c, int rank, char *out, size_t out_len);

#endif
