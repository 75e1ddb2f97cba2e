/* A wire that fails on cue: wraps any wire_ops behind the same table. For tests only; no shipped
 * library contains it.
 *
 * The test holds a struct fault_plan and may change it at any time between calls; fields count
 * down as they take effect. One plan is in force per process (the ops carry no context). Counters
 * are not atomic: use the plan from the thread that drives the lanes.
 */
#ifndef HOLMES_FAULT_DRIVER_H
#define HOLMES_FAULT_DRIVER_H

#include <stdbool.h>

#include "transport/driver.h"

struct fault_plan {
    int load_error;     /* negative errno: load fails with it, and a sentence */
    int nic_open_error; /* likewise */
    int mr_reg_error;
    int cq_open_error;

    int fail_post;       /* n > 0: the nth post from now returns fail_post_error */
    int fail_post_error; /* negative errno; the lane stays as it is */
    int eagain_posts;    /* this many posts return -EAGAIN first */
    int delay_polls;     /* every event is withheld for this many polls of its cq */
    int drop_lane_post;  /* n > 0: the nth post from now is taken, then its lane ends as if the peer
                            had reset it: its outstanding writes are reported as WIRE_ERROR */

    /* What came through, for the test to look at. */
    int posts, polls, dropped_lanes, mr_regs;
    int inlines;                /* of the posts */
    size_t inlined, referenced; /* bytes copied at the post; bytes sent from where they lay */
    const void *first, *end;    /* of the memory that those lay in */
};

/* Puts `plan` in force in front of `under` and returns the table. Both must outlive all objects
 * made through it. */
const struct wire_ops *fault_driver(const struct wire_ops *under, struct fault_plan *plan);

/* Ends a lane made through the driver at once, as drop_lane_post does. */
void fault_driver_drop(struct wire_lane *lane);

#endif
