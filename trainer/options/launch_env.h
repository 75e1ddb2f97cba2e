/* Which rank of how many this process is, as launchers tell the processes they start: torchrun,
 * Open MPI's mpirun, srun, and Hydra's mpiexec (MPICH, Intel MPI). Pure: the environment is a
 * function. */
#ifndef HOLMES_LAUNCH_ENV_H
#define HOLMES_LAUNCH_ENV_H

#include "config.h"

struct holmes_launch_env {
    const char *(*get)(void *ctx, const char *name); /* NULL: not set */
    void *ctx;
};

struct holmes_launch_place {
    const char *launcher; /* NULL: started by none, or alone */
    const char *how;      /* the variable that tells the number of ranks */
    int rank, world;
    int local_world; /* ranks on this host; 0: not told */
    char host[256];  /* where rank 0 runs; "": not told */
    int port;        /* that all ranks come to by themselves; 0: none */
};

/* What the environment says; -EINVAL with a sentence where variables are missing, are no numbers or
 * contradict each other. */
int holmes_launch_env_read(const struct holmes_launch_env *env, struct holmes_launch_place *out,
                           char *why, size_t why_len);
/* Makes the configuration that of the rank: number, world, rendezvous, and that rank 0 serves it.
 * -EINVAL with a sentence where options contradict the environment, or where nobody tells the
 * rendezvous. Does nothing for ranks of --local and where there is no launcher. */
int holmes_launch_env_apply(const struct holmes_launch_place *p, struct holmes_config *c, char *why,
                            size_t why_len);

#endif
