/* Machines made into a cluster: equal ones become a node type, consecutive hosts of one type a
 * range, and what differs is told. */
#ifndef HOLMES_MERGE_H
#define HOLMES_MERGE_H

#include "cluster.h"
#include "host.h"

struct holmes_merge;

/* `untold_link`: of RDMA NICs whose source does not tell theirs; HOLMES_LINK_UNKNOWN leaves them
 * out, with a note. 0 or -ENOMEM. */
int holmes_merge_create(enum holmes_link_layer untold_link, struct holmes_merge **out);
/* A host, in the order of the cluster; `slots` 0: all its GPUs; `fabric` an id given from outside,
 * or NULL: what the machine's own settings say (HOLMES_FABRIC). `h` is not kept. 0, -ENOMEM, or
 * -EINVAL for a name that no host can have. */
int holmes_merge_add(struct holmes_merge *m, const char *name, const struct holmes_host *h,
                     int slots, const char *fabric);
/* A host about which nothing was learnt, and why: it stands in the cluster as defective. */
int holmes_merge_fail(struct holmes_merge *m, const char *name, const char *why);

struct holmes_merge_report {
    int hosts, failed;
    int nnotes;
    char **notes; /* sentences for people: who differs and in what, what is a data sheet's word */
};

/* The cluster, which the caller destroys, and the report. `name` may be NULL. 0 or -ENOMEM. The
 * merge may only be destroyed then. */
int holmes_merge_finish(struct holmes_merge *m, const char *name, struct holmes_cluster **out,
                        struct holmes_merge_report *report);
void holmes_merge_report_fini(struct holmes_merge_report *r);
void holmes_merge_destroy(struct holmes_merge *m);

#endif
