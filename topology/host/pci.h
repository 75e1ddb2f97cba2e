/* PCI functions: addresses, what a function is, and how far two of them are apart. Pure. */
#ifndef HOLMES_HOST_PCI_H
#define HOLMES_HOST_PCI_H

#include "host.h"

#define PCI_CLASS_BRIDGE   0x060400u
#define PCI_CLASS_NVSWITCH 0x068000u

/* "3b:00.0" and "0000:3B:00.0" as "0000:3b:00.0" into `out`. False when it is no address. */
bool pci_address(const char *text, char out[HOLMES_PCI_MAX]);

/* The address at the end of a sysfs path, "" when it ends in none. */
void pci_address_of_path(const char *path, char out[HOLMES_PCI_MAX]);

/* "0x020700" or "0207" (hwloc: two bytes): the 24 bits. False when it is no class. */
bool pci_class(const char *text, uint32_t *out);

const char *pci_vendor_name(uint16_t vendor); /* of those who make GPUs; "" */

bool pci_is_nic(uint32_t class);

enum pci_gpu { PCI_NO_DISPLAY, PCI_GPU, PCI_CONSOLE, PCI_COPROCESSOR };

/* Whether a function computes. Server boards have a display function for their console, of vendors
 * that make GPUs too: `driver` ("amdgpu", NULL where it is not told) decides for AMD's. */
enum pci_gpu pci_gpu(uint32_t class, uint16_t vendor, const char *driver);

/* Skips a display or coprocessor that is no GPU, with the reason; nothing for other functions. */
int gpu_skip(struct holmes_host *h, const char *address, enum pci_gpu kind, uint16_t vendor);

/* Models carry their memory in their name ("NVIDIA H100 80GB HBM3"): takes it where nothing else
 * told it. */
void gpu_memory_of_name(struct holmes_host_gpu *g);

/* Between two entries of the host's list; -1 for a device without PCI, whose NUMA node alone may
 * then tell. */
enum holmes_path pci_distance(const struct holmes_host *h, int a, int b, int numa_a, int numa_b);

#endif
