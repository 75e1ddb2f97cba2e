/* Settings of an interface that the ip command may be too old for. */
#ifndef HOLMES_BENCH_LINK_DEVICE_H
#define HOLMES_BENCH_LINK_DEVICE_H

#include <stdint.h>

/* Super-packets of TCP on this interface of the calling thread's network have up to so many bytes,
 * where the kernel hands them over whole. 0, or the kernel's negative errno: it has no such
 * interface, or knows none of that size. */
int holmes_device_super_packets(const char *ifname, uint32_t bytes);

#endif
