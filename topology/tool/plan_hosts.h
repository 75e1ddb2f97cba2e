/* A cluster of nothing but a hostfile. */
#ifndef HOLMES_TOPO_PLAN_HOSTS_H
#define HOLMES_TOPO_PLAN_HOSTS_H

#include "cluster.h"

/* One cluster of the hosts of `path`, with as many GPUs as each has slots; where slots are not
 * told, `gpus_per_node` (0: not told either, which is an error). Nothing is known of speeds and
 * NICs. 0, or a negative errno with a sentence. The caller destroys *out. */
int topo_plan_hosts(const char *path, int gpus_per_node, struct holmes_cluster **out, char *why,
                    size_t why_len);

#endif
