/* Between the cluster file as it stands and a cluster. */
#ifndef HOLMES_CLUSTER_YAML_H
#define HOLMES_CLUSTER_YAML_H

#include "cluster.h"
#include "cluster/cluster_file.h"
#include "yaml_doc.h"

/* Takes strings out of `file`, which may be freed as before. Errors as holmes_cluster_parse. */
int holmes_cluster_from_file(const struct holmes_yaml_doc *doc, struct file_cluster *file,
                             struct holmes_cluster **out, char *why, size_t why_len);
/* 0 or -ENOMEM; holmes_cluster_file_free ends it. The cluster must live as long. */
int holmes_cluster_to_file(const struct holmes_cluster *c, struct file_cluster **out);
void holmes_cluster_file_free(struct file_cluster *file);

#endif
