/* What a plan leaves idle, and why. */
#ifndef HOLMES_IDLE_H
#define HOLMES_IDLE_H

#include "world.h"

/* One entry per run of hosts of a group that are idle for the same reason, in order of the file.
 * The caller frees *out and the reasons, also after an error. 0 or -ENOMEM. */
int holmes_idle_find(const struct holmes_plan *p, const struct holmes_world *w,
                     struct holmes_plan_idle **out, int *n);

#endif
