/* The memory of every rank, as its configuration lets expect, and as the system counts it. What is
 * predicted is added up from the functions that lay memory out, not from copies of them. */
#ifndef HOLMES_MEMORY_H
#define HOLMES_MEMORY_H

#include <stdio.h>

#include "config.h"
#include "group.h"
#include "kernels.h"

/* Bytes. */
struct holmes_memory {
    size_t parameters, gradients, optimizer;
    size_t activations;   /* kept between forward and backward, and scratch */
    size_t pipeline;      /* microbatches between this stage and its neighbours */
    size_t communication; /* sums under way; without what the plugin takes */
};

size_t holmes_memory_total(const struct holmes_memory *m);

/* What the rank at `place` will take, beyond what a process takes that has joined the job and has a
 * message behind it on each of its communicators. 0,
 * -EINVAL for a configuration that was not checked, -ENOMEM when no machine could hold it. */
int holmes_memory_predict(const struct holmes_config *c, const struct holmes_group *g,
                          struct holmes_place place, const struct holmes_kernels *k,
                          struct holmes_memory *out);

/* `holmes-train --dry-run`: what would run and the memory of every rank, as a table on `out`. 0, or
 * a negative errno with a sentence. */
int holmes_memory_print(const struct holmes_config *c, FILE *out, char *why, size_t why_len);

/* Memory of this process that is in RAM, now and at most so far, without pages of files (programs,
 * libraries, data), which the kernel may drop. -errno when /proc does not tell. */
int holmes_memory_resident(size_t *now, size_t *peak);
/* The most so far counts from now on, where the kernel lets it. */
void holmes_memory_forget_peak(void);

#endif
