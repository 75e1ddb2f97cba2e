/* The trace of a job: recorders of all ranks started at one moment, and their events collected into
 * one file by rank 0. */
#ifndef HOLMES_TRACE_JOB_H
#define HOLMES_TRACE_JOB_H

#include "group.h"
#include "links.h"
#include "rendezvous.h"

struct holmes_trace_job {
    const char *path; /* NULL: no trace, and both calls do nothing */
    struct holmes_links *links;
    const struct holmes_group *group;
    const char (*hosts)[64]; /* [group->world] */
    struct holmes_rdv *rdv;  /* NULL for a job of one */
    int rank, timeout_ms;
};

/* Collective, with nothing under way. Rank 0 creates or empties the file. 0, or a negative errno
 * with a sentence in `why`. */
int holmes_trace_job_begin(const struct holmes_trace_job *j, char *why, size_t why_len);
/* Collective. Stops the recorders; rank 0 writes the file and says on stdout what is in it. */
int holmes_trace_job_end(const struct holmes_trace_job *j, char *why, size_t why_len);

#endif
