/* Words of the host's JSON, for both directions. */
#ifndef HOLMES_HOST_JSON_H
#define HOLMES_HOST_JSON_H

#include "host.h"

extern const char *const host_link_layers[3]; /* by enum holmes_link_layer; "": unknown */
extern const char *const host_gid_types[3];   /* by enum holmes_gid_type */

#endif
