/* What sysfs tells of an interface. */
#ifndef HOLMES_NETIF_FACTS_H
#define HOLMES_NETIF_FACTS_H

#include "topology.h"

/* Fills kind, uplink, speed, PCI path and NUMA node from name, flags and ARP type, which are there.
 * Below a root of NULL there is nothing to tell. */
void netif_read_facts(const char *root, struct holmes_netif *nif);

#endif
