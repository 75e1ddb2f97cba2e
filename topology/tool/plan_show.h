/* A plan as tables for people. */
#ifndef HOLMES_TOPO_PLAN_SHOW_H
#define HOLMES_TOPO_PLAN_SHOW_H

#include <stdbool.h>
#include <stdio.h>

#include "plan.h"

/* `explain` adds the notes of fabrics and plan that are no warnings. 0, -ENOMEM or -EIO. */
int topo_plan_show(const struct holmes_plan_doc *doc, bool explain, FILE *out);

#endif
