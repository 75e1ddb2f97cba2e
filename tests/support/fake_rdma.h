/* A wire that looks like verbs and runs over tcp: for tests of the choice of the wire
 * and of several rails where there is no RDMA. For tests only.
 *
 * It serves NICs with an RDMA port; their first address must be one of this host. Keys have 32 bits
 * as those of RDMA do. One plan is in force per process.
 */
#ifndef HOLMES_FAKE_RDMA_H
#define HOLMES_FAKE_RDMA_H

#include <stdatomic.h>
#include <stdbool.h>

#include "transport/driver.h"

struct fake_rdma_plan {
    int load_error;                 /* negative errno */
    const char *broken;             /* device name that cannot be opened */
    int lane_error;                 /* creating a lane that is no probe fails with it */
    int probe_error;                /* creating one that is */
    enum wire_role lane_error_role; /* on this end, both */
    bool deaf;                      /* nothing that a probe posts arrives */
    uint16_t path_mtu;              /* a probe with a larger MTU is deaf; 0: no limit */
    int status;                     /* of every port: -EIO lost, -ENETDOWN */
    bool gpu;                       /* takes dma-bufs */

    /* What happened. */
    atomic_int probes, lanes, flushes;
};

/* Puts the plan in force and makes this wire the first of the process, with ofi behind it. */
void fake_rdma_use(struct fake_rdma_plan *plan);

/* An RDMA port on the loopback interface with one RoCE v2 GID. */
struct holmes_nic fake_rdma_nic(const char *device, const char *ip);

#endif
