/* A child process with pipes, in a process group of its own, so that what it starts ends with it.
 */
#ifndef HOLMES_TOPO_CHILD_H
#define HOLMES_TOPO_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

struct holmes_child {
    pid_t pid;        /* 0: none, or reaped */
    int in, out, err; /* our ends, non-blocking, closed on exec; -1: closed */
};

/* Starts argv[0] (searched in PATH) with `mask` as its signal mask. Without `talks` its standard
 * input is /dev/null. It gets SIGTERM should this process die. 0, or a negative errno: that of the
 * exec too, so a program that is not there is -ENOENT. */
int holmes_child_spawn(char *const *argv, bool talks, const sigset_t *mask,
                       struct holmes_child *out);
/* To the child and all it started in its group. */
void holmes_child_signal(const struct holmes_child *c, int sig);
/* Whether it has ended, without waiting. What remains of its group is killed by then, and what it
 * wrote can still be read. */
bool holmes_child_ended(const struct holmes_child *c);
/* After that: reaps it and gives its wait status. */
int holmes_child_reap(struct holmes_child *c);
void holmes_child_close(int *fd);

#endif
