/* Whether a plan that was read agrees with itself. */
#ifndef HOLMES_PLAN_CHECK_H
#define HOLMES_PLAN_CHECK_H

#include "json_fields.h"
#include "plan.h"

/* All references (groups, hosts, types, fabrics, stages) are in bounds already. -EINVAL with the
 * contradiction in the reader's `why`, -ENOMEM. */
int holmes_plan_check(const struct holmes_plan_doc *doc, struct holmes_json_reader *r);

#endif
