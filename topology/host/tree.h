/* A machine's sysfs as a source of a host: where the tree is, and what it says of PCI functions,
 * GPUs and processors. */
#ifndef HOLMES_HOST_TREE_H
#define HOLMES_HOST_TREE_H

#include <limits.h>

#include "build.h"

struct tree {
    bool live;
    char base[PATH_MAX];  /* what is "/" there; "" when only the sysfs was recorded */
    char sys[PATH_MAX];   /* the sysfs; "" when only class/infiniband was recorded */
    char class[PATH_MAX]; /* then that folder */
    char real[PATH_MAX];  /* `sys` without links: what resolved paths begin with */
};

/* What kind of tree `root` is. -EINVAL with a sentence in `why`, and the errors of looking. */
int tree_find(const char *root, struct tree *out, char *why, size_t why_len);

/* Whether `name` of the class is a folder inside the tree: else it is a name without anything
 * behind it, or a link that leads out, perhaps into this machine's sysfs. */
bool tree_has(const struct tree *t, const char *class, const char *name);

/* "/sys/devices/..." of a path that was resolved inside the tree; "" for one that leads out of it.
 */
void tree_path_to_sys(const struct tree *t, char *path, size_t len);

/* Adds the PCI functions that are GPUs or NICs with the bridges above them, and the GPUs. What is a
 * display and no GPU is skipped with its reason. 0 or a negative errno. */
int tree_read_pci(const struct tree *t, struct holmes_host *h);

/* Adds the function that a resolved sysfs path ends in, where it is not there yet. */
int tree_add_function(const struct tree *t, struct holmes_host *h, const char *path);

/* Host name, NUMA nodes with their processors, memory. */
int tree_read_machine(const struct tree *t, struct holmes_host *h);

/* Addresses of a recorded machine's interfaces, from ip-addr.json where that was recorded. -EINVAL
 * with a sentence in `why` for a file that is none. */
int tree_read_addrs(const struct tree *t, struct holmes_host *h, char *why, size_t why_len);

/* Skips the devices of a class that tree_has does not have. */
int tree_skip_unread(const struct tree *t, struct holmes_host *h, const char *class);

#endif
