/* What delays and loses packets where the kernel has no netem: a process that carries IPv4 packets
 * between TUN devices, one for each rank and link. */
#ifndef HOLMES_BENCH_LINK_RELAY_H
#define HOLMES_BENCH_LINK_RELAY_H

#include "link.h"

struct holmes_relay_attr {
    int nranks, nlinks;
    const int *fds;                         /* [rank * nlinks + link], of holmes_relay_port_open */
    const struct holmes_link_shape *shapes; /* [nlinks] */
};

/* Makes link<K> in the calling thread's network. 0 or a negative errno; the interface goes with the
 * descriptor. */
int holmes_relay_port_open(int link, const struct holmes_link_shape *shape, int *fd);

/* Carries packets until it is killed. */
_Noreturn void holmes_relay_run(const struct holmes_relay_attr *attr);

#endif
