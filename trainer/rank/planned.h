/* Where a rank runs, beside where the plan has it: --planned-hosts. Names of one host differ, since
 * some are short and some have a domain, a container has a name of its own, and a plan may have
 * addresses. */
#ifndef HOLMES_PLANNED_H
#define HOLMES_PLANNED_H

#include <stdbool.h>
#include <stddef.h>

#define HOLMES_PLANNED_NAMES 3

/* What a host is called. */
struct holmes_planned_names {
    char name[HOLMES_PLANNED_NAMES][256];
    int n;
};

enum holmes_planned {
    HOLMES_PLANNED_HERE,      /* on its host; also where the plan says "localhost" */
    HOLMES_PLANNED_ELSEWHERE, /* on a host that the plan has for other ranks */
    HOLMES_PLANNED_UNKNOWN,   /* on a host whose names the plan does not have */
};

/* This host's names: what it calls itself, Slurm's name for it, and `label` (NULL: none). */
void holmes_planned_names(const char *label, struct holmes_planned_names *out);

/* Whether the two can be one host: without regard to case, and one may lack the other's domain. */
bool holmes_planned_same(const char *a, const char *b);

/* `planned`: one host for all, or one for each of `world` ranks. *owner: of the ranks that the plan
 * has on this host the first; -1: none. */
enum holmes_planned holmes_planned_judge(const char *planned, int rank, int world,
                                         const struct holmes_planned_names *names, int *owner);

#endif
