/* The cluster file as it stands: one struct for each mapping, and the libcyaml schema that loads
 * and saves them. Numbers are kept as text: libcyaml prints six digits of them and reads 010 as 8.
 */
#ifndef HOLMES_CLUSTER_FILE_H
#define HOLMES_CLUSTER_FILE_H

#include <cyaml/cyaml.h>

enum file_kind { FILE_INFINIBAND, FILE_ROCE, FILE_ETHERNET };

struct file_nic {
    char *name;
    enum file_kind kind;
    char *gbps, *prefix, *fabric, *numa;
    int *gids; /* bits of enum file_gids */
    unsigned ngids;
};

enum file_gids {
    FILE_GID_V1_IPV4 = 1,
    FILE_GID_V1_IPV6 = 2,
    FILE_GID_V2_IPV4 = 4,
    FILE_GID_V2_IPV6 = 8
};

struct file_type {
    char *name, *gpus, *gpu, *tflops, *memory_gib, *intra_gbps;
    struct file_nic *nics;
    unsigned nnics;
};

struct file_nodes {
    char *hosts, *type, *fabric, *why, *slots;
    int *state; /* enum holmes_node_state */
};

struct file_link {
    char **between;
    unsigned nbetween;
    char *gbps, *node_gbps, *rtt_ms;
};

struct file_probe {
    char *from, *to;
    int reaches;
};

struct file_cluster {
    char *version, *name;
    struct file_type *types;
    unsigned ntypes;
    struct file_nodes *nodes;
    unsigned nnodes;
    struct file_link *links;
    unsigned nlinks;
    struct file_probe *probes;
    unsigned nprobes;
};

extern const cyaml_schema_value_t holmes_cluster_schema;
extern const cyaml_strval_t holmes_cluster_gids[4];

#endif
