/* The life of one rank process, from joining the job to its last record in the log. */
#ifndef HOLMES_RANK_H
#define HOLMES_RANK_H

#include "config.h"

/* Runs what holmes_config_check found well. Returns an exit status of launch.h after at most one
 * sentence on stderr (or to the launcher). May end the process at once when communication fails:
 * buffers then still belong to the progress thread. */
int holmes_rank_run(const struct holmes_config *c);

/* In place of it, for a rank that was told what is wrong (`why`): says so and, since the others
 * would wait for it, joins them for a moment to tell them. Its place and the secret are right.
 * Returns HOLMES_EXIT_USAGE. */
int holmes_rank_refuse(const struct holmes_config *c, const char *why);

#endif
