/* Which interface the kernel really uses. A bound source address does not choose the NIC: with two
 * NICs in one subnet, all bytes leave by the first unless policy routing says otherwise. */
#ifndef HOLMES_ROUTE_H
#define HOLMES_ROUTE_H

#include "nic.h"

struct device;

/* Asks the kernel for the route from `source` to `peer` (RTM_GETROUTE). 0 and the index of the
 * interface, or a negative errno. Does not wait for the network. */
int route_lookup(const struct holmes_addr *source, const struct holmes_addr *peer, int *ifindex);

/* Warns once per NIC when traffic from its address leaves by another interface, with the `ip`
 * commands that would change it. */
void route_check(struct device *dev, const struct holmes_addr *source,
                 const struct holmes_addr *peer);

#endif
