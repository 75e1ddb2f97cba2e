/* Making a host: used by everything that reads one. Private to topology/host. */
#ifndef HOLMES_HOST_BUILD_H
#define HOLMES_HOST_BUILD_H

#include "host.h"

/* What is above is no memory of a machine, or of a GPU: a damaged file's. */
#define HOST_MEMORY_MAX 1e9 /* GiB */
#define GPU_MEMORY_MAX  (1 << 20)

/* An empty host; NULL: no memory. */
struct holmes_host *host_new(enum holmes_host_source source);

/* A new, zeroed entry at the end of the list, with the indices and numbers that may be unknown set
 * to -1; NULL: no memory. It is valid until the next one is added. */
struct holmes_host_cpu *host_add_cpu(struct holmes_host *h);
struct holmes_host_pci *host_add_pci(struct holmes_host *h, const char *address);
struct holmes_host_port *host_add_port(struct holmes_host *h);
struct holmes_host_netif *host_add_netif(struct holmes_host *h);
struct holmes_host_gpu *host_add_gpu(struct holmes_host *h);
struct holmes_host_nic *host_add_nic(struct holmes_host *h);

/* 0 or -ENOMEM. */
int host_skip(struct holmes_host *h, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int host_note(struct holmes_host *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int host_find_pci(const struct holmes_host *h, const char *address); /* index or -1 */

/* Once ports, interfaces, GPUs and PCI functions are there: makes the NICs and the distances. 0 or
 * -ENOMEM. */
int host_finish(struct holmes_host *h);

/* The distances alone, over the NICs that are there. */
int host_measure(struct holmes_host *h);

#endif
