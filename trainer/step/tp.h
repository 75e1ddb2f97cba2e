/* The tensor group of a rank: what a stage needs of it, over the links. */
#ifndef HOLMES_TP_H
#define HOLMES_TP_H

#include "links.h"
#include "stage.h"

struct holmes_tp {
    struct holmes_links *links;
    struct holmes_op *op; /* lives as long as an operation that is never waited for */
    struct holmes_stage_group group;
};

/* Fills *t; the links and *t must outlive the stages that are given its group. Returns the group,
 * NULL where no tensor group shares the stage. */
const struct holmes_stage_group *holmes_tp_init(struct holmes_tp *t, struct holmes_links *links);

#endif
