/* The plain fields of a plan document's structs, for reading and writing alike. */
#ifndef HOLMES_PLAN_FIELDS_H
#define HOLMES_PLAN_FIELDS_H

#include "json_fields.h"

#define HOLMES_PLAN_DOC_VERSION 1
#define HOLMES_PLAN_GPUS_MAX    1024 /* of a node */

extern const struct holmes_json_field holmes_type_fields[], holmes_nic_fields[],
    holmes_group_fields[], holmes_link_fields[], holmes_fabric_fields[], holmes_gpt_fields[],
    holmes_request_fields[], holmes_plan_fields[], holmes_stage_fields[], holmes_edge_fields[],
    holmes_idle_fields[], holmes_cost_fields[];

#endif
