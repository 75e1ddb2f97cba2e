/* What an RDMA port counts below us: packets, and whatever went wrong and was repaired (on RDMA the
 * adapter retries, not we). Names are the driver's own: class/infiniband/DEV/ports/N/hw_counters.
 */
#ifndef HOLMES_PORT_COUNTERS_H
#define HOLMES_PORT_COUNTERS_H

#include <stdint.h>

#define PORT_COUNTERS_MAX 64

struct port_counters {
    int n;
    struct {
        char name[40];
        uint64_t value;
    } counters[PORT_COUNTERS_MAX];
};

/* Reads below `sysfs_root`; n is 0 where the driver counts nothing. */
void port_counters_read(const char *sysfs_root, const char *device, int port,
                        struct port_counters *out);
/* What was counted since `before`, in place. */
void port_counters_since(struct port_counters *now, const struct port_counters *before);

#endif
