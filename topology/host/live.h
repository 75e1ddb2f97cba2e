/* What hwloc knows of this machine. */
#ifndef HOLMES_HOST_LIVE_H
#define HOLMES_HOST_LIVE_H

#include "build.h"

/* Corrects the place of PCI functions (host bridge, NUMA node) by hwloc's tree, which knows the
 * quirks of boards, and adds what it tells of processors and GPUs. 0 or -ENOMEM; a machine that
 * hwloc cannot read stays as sysfs shows it. */
int host_live_place(struct holmes_host *h);

#endif
