/* Reads attributes below a sysfs root given by the caller, so that recorded hosts can be read.
 * Below a root of NULL there is nothing. */
#ifndef HOLMES_SYSFS_H
#define HOLMES_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The attribute's text without its last newline. `path` is relative to `root`. -ENOENT when absent,
 * -EINVAL and the like when the kernel refuses to tell (speed of a link that is down). */
int sysfs_read(const char *root, const char *path, char *buf, size_t len);

/* A decimal or 0x attribute. -EINVAL when it is no number. */
int sysfs_read_int(const char *root, const char *path, int64_t *out);

bool sysfs_exists(const char *root, const char *path);

/* Resolves the link and cuts the result behind its last PCI function ("0000:3b:00.1"), so that a
 * virtio device gives the function it sits in. -ENOENT when no component is one. */
int sysfs_pci_path(const char *root, const char *path, char *buf, size_t len);

#endif
