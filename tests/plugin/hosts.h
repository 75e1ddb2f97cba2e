/* Two hosts on one machine: processes in network namespaces of their own, joined by bridges in a
 * third. Everything lives in namespaces without a name, which end with their processes. Needs root.
 */
#ifndef HOSTS_H
#define HOSTS_H

#include "nccl_side.h"

#define HOST_NICS_MAX 2

/* "10.1.0.5/24" on interface eth<i>, plugged into bridge `net`; NULL ends the list. */
struct host_nic {
    const char *addr;
    int net;
};

struct hosts_spec {
    struct host_nic nics[2][HOST_NICS_MAX]; /* of host 0 and host 1 */
    int unplugged_net; /* nothing passes this bridge from the start; -1: none */
};

/* Runs the script as rank 0 on host 0 and rank 1 on host 1, and asserts that both succeed. Skips
 * the test without root. `arg` is copied: no pointers into this process. */
void run_on_hosts(const struct hosts_spec *spec, int version, rank_script *script, const void *arg,
                  size_t arg_len);

/* From a script: from now on nothing passes between the hosts, on any net. Nobody is told: links
 * stay up. One of the ranks calls it. */
bool hosts_cut(struct rank *r);

#endif
