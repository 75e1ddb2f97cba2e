/* gather's work: hosts, what each of them is, and the ids that the user gives them. */
#ifndef HOLMES_TOPO_GATHER_H
#define HOLMES_TOPO_GATHER_H

#include "cluster/merge.h"
#include "hostfile.h"

struct gather_options {
    const char *from, *hosts, *hostfile, *topology, *launcher, *program, *name;
    int at_once, time_limit_s;
    enum holmes_link_layer rdma_kind; /* of NICs whose source does not tell; unknown: left out */
    int nfabrics;
    const char **fabrics; /* "ID" or "ID=HOSTS" */
    bool quiet;           /* no progress */
};

/* Hosts in order; `slots` NULL: none told. */
struct gather_hosts {
    struct holmes_hostlist list;
    int *slots;
    bool slurm; /* of this allocation */
};

/* The ids of hosts, by --fabric and --topology. */
struct gather_ids;

/* -EINVAL with a sentence, -ENOMEM. *out NULL: none are given. */
int gather_ids_create(const struct gather_options *o, struct gather_ids **out, char *why,
                      size_t why_len);
/* The host's id or NULL; lives as long as `ids`, which may be NULL. */
const char *gather_ids_find(struct gather_ids *ids, const char *host);
/* An id that was given to hosts that gather did not meet, or NULL. */
const char *gather_ids_unused(const struct gather_ids *ids);
void gather_ids_destroy(struct gather_ids *ids);

/* Each adds all hosts to the merge, those that fail too. 0, -EINVAL with a sentence when nothing
 * can be gathered at all, -EINTR, -ENOMEM. */
int gather_from_folder(const struct gather_options *o, const struct gather_hosts *hosts,
                       struct gather_ids *ids, struct holmes_merge *m, char *why, size_t why_len);
int gather_from_hosts(const struct gather_options *o, const struct gather_hosts *hosts,
                      struct gather_ids *ids, struct holmes_merge *m, char *why, size_t why_len);

#endif
