/* What overlap gains on this job: steps with it, without it and without communication, in turns. */
#ifndef HOLMES_MEASURE_H
#define HOLMES_MEASURE_H

#include <jansson.h>
#include <stdio.h>

#include "train.h"

enum holmes_measure_mode { HOLMES_MEASURE_ON, HOLMES_MEASURE_OFF, HOLMES_MEASURE_NONE };
#define HOLMES_MEASURE_MODES 3

struct holmes_spread {
    double median, min, max;
};

struct holmes_measure {
    int rounds, steps; /* of each mode: rounds, timed steps in each */
    struct holmes_spread step_ms[HOLMES_MEASURE_MODES]; /* of the slowest rank */
    /* 1 - (on - none) / (off - none), round by round; NaN where communication took less than a
     * hundredth of the step, so that there was nothing to hide. */
    struct holmes_spread hidden;
};

/* Before training: weights and moments are what they were when it returns. Each round runs each
 * mode for one step that is not timed and `steps` that are. Collective; the same result on every
 * rank. `overlap`: what training is to go on with. */
int holmes_measure_overlap(struct holmes_trainer *t, struct holmes_links *links, int rounds,
                           bool overlap, struct holmes_measure *out);

int holmes_measure_print(const struct holmes_measure *m, FILE *out);
json_t *holmes_measure_record(const struct holmes_measure *m); /* NULL: no memory */

#endif
