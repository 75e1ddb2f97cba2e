/* Lists of hosts as people have them: hostfiles of launchers, and Slurm's topology.conf. */
#ifndef HOLMES_HOSTFILE_H
#define HOLMES_HOSTFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "hostlist.h"

#define HOLMES_SLOTS_MAX 1024 /* of a host */

/* Hosts in the order of the file, and how many processes each takes. */
struct holmes_hostfile {
    struct holmes_hostlist hosts;
    int *slots; /* [hosts.nhosts]; 0: not told */
};

/* One host or several a line, of the forms
 *
 *     host
 *     host slots=8 max-slots=8          Open MPI, DeepSpeed
 *     host:8                            MPICH
 *     host:8,host:8
 *     host[01-16] slots=8
 *
 * with comments (#) and blank lines. A host comes once; slots are 1 to HOLMES_SLOTS_MAX; an empty
 * file is an error. `path` "-" is standard input. On failure *out is untouched and `why` names
 * file, line and field: -EINVAL, -ENOMEM, errors of opening. */
int holmes_hostfile_read(const char *path, struct holmes_hostfile *out, char *why, size_t why_len);
int holmes_hostfile_parse(const char *name, const char *data, size_t len,
                          struct holmes_hostfile *out, char *why, size_t why_len);
void holmes_hostfile_fini(struct holmes_hostfile *h);

/* --- Slurm's topology.conf ------------------------------------------------------------------- */

struct holmes_switch {
    char *name;
    int parent;                   /* index; -1: a tree's top */
    int top;                      /* the top above it, itself where it is one */
    struct holmes_hostlist nodes; /* right below it */
    int line;
};

struct holmes_switch_tree {
    int n;
    struct holmes_switch *switches; /* in the order of the file */
    bool blocks; /* BlockName lines: nodes of a block are close, all blocks are one network */
};

/* SwitchName lines with Switches= or Nodes=, or BlockName lines with Nodes=; keys in any case,
 * comments, lines continued by a backslash; LinkSpeed and BlockSizes are passed over. A switch has
 * one parent, a node stands below one switch, every switch that is named has its line. Errors as
 * above. */
int holmes_switch_tree_read(const char *path, struct holmes_switch_tree *out, char *why,
                            size_t why_len);
int holmes_switch_tree_parse(const char *name, const char *data, size_t len,
                             struct holmes_switch_tree *out, char *why, size_t why_len);
/* All nodes, in the order of the file, into an empty list. 0 or -ENOMEM. */
int holmes_switch_tree_hosts(const struct holmes_switch_tree *t, struct holmes_hostlist *out);
void holmes_switch_tree_fini(struct holmes_switch_tree *t);

#endif
