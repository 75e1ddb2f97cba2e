/* What a process holds and has used, as its kernel sees it. */
#ifndef HOLMES_SCALE_USAGE_H
#define HOLMES_SCALE_USAGE_H

#include <stdint.h>

struct holmes_scale_usage {
    int64_t fds, threads;
    int64_t rss, pss; /* bytes; pss counts a page shared by n processes as an nth */
    int64_t cpu_ns;   /* user and system, all threads, since the process began */
    int64_t switches; /* of context, likewise */
};

/* Of this process. Memory that was freed is given back to the kernel first, so that it does not
 * count. */
void holmes_scale_usage_now(struct holmes_scale_usage *out);

/* CPU time alone: cheap. */
int64_t holmes_scale_cpu_ns(void);

/* Raises the soft limit of descriptors to the hard one; returns what is now allowed. */
int64_t holmes_scale_nofile_raise(void);
/* The limit, when all its descriptors are taken; else 0. */
int64_t holmes_scale_nofile_missing(void);

#endif
