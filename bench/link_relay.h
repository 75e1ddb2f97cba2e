/* What delays and loses packets where the kernel has no netem: a process that carries IPv4 packets
 * between TUN devices, one for each rank and link. */
#ifndef HOLMES_BENCH_LINK_RELAY_H
#define HOLMES_BENCH_LINK_RELAY_H

#include "link.h"

struct holmes_relay_attr {
    int nranks, nlinks;
    const int *fds;                         /* [rank * nlinks + link], of holmes_relay_port_open */
    const struct holmes_link_shape *shapes; /* [nlinks] */
    int orders_fd;                          /* non-blocking: lines of holmes_relay_order_parse */
};

/* The loss of one stream in one direction, instead of its link's. */
struct holmes_relay_order {
    int rank; /* that sends */
    uint16_t port, peer_port;
    uint64_t loss_ppm;
};
/* "RANK PORT PEER-PORT LOSS", as "0 40001 5000 1%": 0 or -EINVAL. Pure. */
int holmes_relay_order_parse(const char *line, struct holmes_relay_order *out);

/* Makes link<K> in the calling thread's network. 0 or a negative errno; the interface goes with the
 * descriptor. */
int holmes_relay_port_open(int link, const struct holmes_link_shape *shape, int *fd);

/* Carries packets until it is killed. */
_Noreturn void holmes_relay_run(const struct holmes_relay_attr *attr);

#endif
