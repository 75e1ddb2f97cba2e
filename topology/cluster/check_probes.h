/* What the preflight found, as probes of a cluster. */
#ifndef HOLMES_CHECK_PROBES_H
#define HOLMES_CHECK_PROBES_H

#include "cluster.h"

/* Reads what `holmes-topo check --json` wrote and adds to `c`, for each of its pairs whose hosts
 * both are in `c`: where the wire was verbs, a probe that reaches; where RDMA was tried in vain,
 * one that does not. Pairs that ids, link layers or the lack of RDMA sent over tcp say nothing.
 * `name` stands for the file in messages. *added: how many. 0; -EINVAL with a sentence, -ENOMEM;
 * `c` may then have some of them. */
int holmes_check_probes_parse(const char *name, const void *data, size_t len,
                              struct holmes_cluster *c, int *added, char *why, size_t why_len);
int holmes_check_probes_read(const char *path, struct holmes_cluster *c, int *added, char *why,
                             size_t why_len);

#endif
