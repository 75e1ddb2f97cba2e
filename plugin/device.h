/* What NCCL is shown for a NIC. */
#ifndef HOLMES_PLUGIN_DEVICE_H
#define HOLMES_PLUGIN_DEVICE_H

#include <stdint.h>

#include "nic.h"
#include "transport.h"

struct holmes_plugin_device {
    const char *name;     /* unique; as pci_path, lives as long as the process */
    const char *pci_path; /* NULL when the NIC is no PCI function */
    uint64_t guid;        /* equal for RDMA ports of one adapter, and for other NICs that end in one
                             PCI function */
    int port;             /* 0 for other NICs. No two devices of one guid have the same: NCCL would
                             take them for one port and share its bandwidth out */
    int memory;           /* HOLMES_MEMORY_* of transport.h; the values are NCCL's */
    int speed_mbps;       /* a guess where the kernel does not know */
    int nmembers;         /* devices of which it is made: 1, itself; more for a fused one */
    int members[HOLMES_MAX_RAILS];
};

/* Describes the NIC, to be device `n`, beside the `n` devices described before it. `memory` is what
 * the transport takes on it. -ENOMEM. Not for several threads at once. */
int holmes_plugin_describe(const struct holmes_nic *nic, int memory,
                           const struct holmes_plugin_device *others, int n,
                           struct holmes_plugin_device *out);

#endif
