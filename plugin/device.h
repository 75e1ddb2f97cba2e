/* What NCCL is shown for a NIC. */
#ifndef HOLMES_PLUGIN_DEVICE_H
#define HOLMES_PLUGIN_DEVICE_H

#include <stdint.h>

#include "nic.h"

/* Memory that a device takes; the values are NCCL's. */
enum {
    HOLMES_MEMORY_HOST = 1,
    HOLMES_MEMORY_CUDA = 2,
    HOLMES_MEMORY_DMABUF = 4,
};

struct holmes_plugin_device {
    const char *name;     /* unique; as pci_path, lives as long as the process */
    const char *pci_path; /* NULL when the NIC is no PCI function */
    uint64_t guid;        /* equal for RDMA ports of one adapter, and for other NICs that end in one
                             PCI function */
    int port;             /* 0 for other NICs. No two devices of one guid have the same: NCCL would
                             take them for one port and share its bandwidth out */
    int memory;           /* HOLMES_MEMORY_* */
    int speed_mbps;       /* a guess where the kernel does not know */
};

/* Describes the NIC beside the `n` devices described before it. `memory` is what the transport
 * takes on it; GPU memory by address stays out where the kernel cannot register it. -ENOMEM. Not
 * for several threads at once. */
int holmes_plugin_describe(const struct holmes_nic *nic, int memory,
                           const struct holmes_plugin_device *others, int n,
                           struct holmes_plugin_device *out);

#endif
