/* Which hosts a verb is to reach: what the user named, or the allocation that this runs in. */
#ifndef HOLMES_TOPO_HOSTS_H
#define HOLMES_TOPO_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#include "hostlist.h"

/* `list` is text like a[01-04],b7, `file` a hostfile (hostfile.h; its slots are not looked at).
 * Where both are NULL, SLURM_JOB_NODELIST is read, and *slurm set. -EINVAL or what opening the file
 * said, with a sentence that names the file and line, or says what to give; -ENOMEM. */
int holmes_hosts_choose(const char *list, const char *file, struct holmes_hostlist *out,
                        bool *slurm, char *why, size_t why_len);

/* The program to start on other hosts: `named`, or where that is NULL this one, whose path goes
 * into `buf`. */
const char *holmes_own_program(const char *named, char *buf, size_t len);

#endif
