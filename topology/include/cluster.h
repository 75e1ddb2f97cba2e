/* The machines of a job as one file describes them: node types, host ranges, fabrics, and the links
 * between fabrics. What `holmes-topo gather` writes, people write by hand, and the plan is made of.
 *
 * Hosts are kept as ranges of a group, so that ten thousand equal nodes cost as much as one. A
 * cluster is a plain value: nothing here reads the network or the environment.
 */
#ifndef HOLMES_CLUSTER_H
#define HOLMES_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "hostlist.h"
#include "nic.h"

#define HOLMES_CLUSTER_VERSION 1

/* A NIC that every node of a type has, as far as the grouping needs it. */
struct holmes_cluster_nic {
    char *name;                  /* "mlx5_0", "mlx5_0:2", "eth0" */
    enum holmes_link_layer link; /* of an RDMA port; HOLMES_LINK_UNKNOWN: no RDMA */
    bool rdma;
    double gbps;  /* gigabits per second, each way; 0: unknown */
    char *prefix; /* InfiniBand subnet prefix, "fe80:0:0:0" form of the first 64 bits; NULL: not
                     told */
    char *gids;   /* RoCE: "v2-ipv4,v2-ipv6,v1-ipv4" kinds of usable GIDs; NULL: not told */
    char *fabric; /* id that the user gave this NIC; NULL: none */
    int numa;     /* -1: unknown */
};

struct holmes_node_type {
    char *name;
    int gpus;          /* 0 or more */
    char *gpu;         /* model, for people; NULL: not told */
    double tflops;     /* per GPU, peak or measured, dense bf16; 0: unknown */
    double memory_gib; /* per GPU; 0: unknown, then not checked */
    double intra_gbps; /* per GPU inside the node, each way (NVLink, xGMI, PCIe); 0: unknown */
    int nnics;
    struct holmes_cluster_nic *nics;
};

enum holmes_node_state { HOLMES_NODE_OK, HOLMES_NODE_IDLE, HOLMES_NODE_DEFECTIVE };

/* Hosts that are the same to the plan, in the order of the file. */
struct holmes_node_group {
    struct holmes_hostlist hosts;
    int type;     /* index into types */
    char *fabric; /* id that the user gave all RDMA NICs of these nodes; NULL: none */
    enum holmes_node_state state; /* only OK nodes are planned with */
    char *why;                    /* of a state that is not OK, for people; NULL: not told */
    int slots;                    /* GPUs to use at most; 0: all of the type */
};

/* What joins two fabrics (or all, where `from` and `to` are NULL). */
struct holmes_cluster_link {
    char *from, *to;  /* fabric names; NULL: any */
    double gbps;      /* of the whole link, each way; 0: only the nodes' own NICs limit it */
    double node_gbps; /* of one node on it, each way; 0: the node's fastest Ethernet NIC */
    double rtt_ms;    /* round trip; 0: unknown, taken as 0.1 */
    int line;         /* of the file, for messages; 0: of none */
};

/* Whether RDMA reached from one NIC to another: "host:nic"; without ":nic" any of the host's. */
struct holmes_cluster_probe {
    char *from, *to;
    bool reaches;
    int line; /* of the file, for messages; 0: of none */
};

/* Every host comes once, every group's type exists, type names differ; whoever builds one by hand
 * keeps that. */
struct holmes_cluster {
    char *name; /* NULL: none */
    int ntypes;
    struct holmes_node_type *types;
    int ngroups;
    struct holmes_node_group *groups;
    int nlinks;
    struct holmes_cluster_link *links;
    int nprobes;
    struct holmes_cluster_probe *probes;
};

/* Reads a cluster file (YAML; docs/cluster-file.md), of "-" standard input. On failure *out is
 * untouched and `why` has a sentence with file, line and field. -EINVAL, -ENOENT and other errors
 * of opening, -ENOMEM. The caller destroys *out. */
int holmes_cluster_read(const char *path, struct holmes_cluster **out, char *why, size_t why_len);
/* The same from memory; `name` stands for the file in messages. */
int holmes_cluster_parse(const char *name, const void *data, size_t len,
                         struct holmes_cluster **out, char *why, size_t why_len);
/* Writes what holmes_cluster_read reads: reading it back gives an equal cluster. 0 or a negative
 * errno. */
int holmes_cluster_write(const struct holmes_cluster *c, FILE *out);
/* The same as JSON, which holmes_cluster_read reads as well. */
int holmes_cluster_json(const struct holmes_cluster *c, FILE *out);
void holmes_cluster_destroy(struct holmes_cluster *c);

/* --- fabrics --------------------------------------------------------------------------------- */

/* Nodes whose RDMA NICs reach one another; or nodes that have none and are joined by Ethernet. */
struct holmes_fabric {
    char *name; /* the user's id, else "A", "B", ... (no id of the file) in file order */
    bool rdma;
    enum holmes_link_layer link; /* HOLMES_LINK_UNKNOWN: no RDMA */
    int nics;     /* that count, per node: RDMA, or Ethernet (least of its OK nodes) */
    double gbps;  /* of those of a node together, each way (least of its OK nodes); 0: unknown */
    char *reason; /* what decided it, a sentence for people */
};

/* A cluster with its fabrics settled: each group in one fabric. */
struct holmes_fabrics {
    int n;
    struct holmes_fabric *fabrics;
    int *group_fabric; /* [ngroups of the cluster]: index into fabrics. -1 only where no node that
                          is OK shares the fabric and no id names it */
    int nnotes;
    char **notes; /* sentences for people: what was assumed, what was split and why */
};

/* Groups the nodes by the rules of the wire choice, in this order, and splits groups of `c` (and
 * changes nothing else of it) so that each lies in one fabric:
 *
 * 1. Ids (of the entry, else of the NIC): equal ones share, different ones never do.
 * 2. InfiniBand and RoCE do not share.
 * 3. InfiniBand: the same subnet prefix other than the default fe80:: shares, different prefixes do
 *    not. RoCE: without a common kind of GID they do not share.
 * 4. What is still open is settled by probes: one that says yes joins two hosts, one that says no
 *    parts what they are joined to. Hosts of one entry are no exception: standing in one line is no
 *    proof, unless the caller says so with `separate_ambiguous`.
 *
 * A node with several kinds of RDMA NICs counts by those that together are fastest; a note names
 * the others. Nodes without RDMA: those with an id are one fabric per id, all others one together,
 * since TCP is taken to reach everywhere.
 *
 * What remains open between nodes that are OK is refused with -EINVAL and a sentence in `why` that
 * says which nodes, and what would settle it. `separate_ambiguous` takes every entry of the file as
 * joined in itself and apart from the others, with a note, in place of the refusal. Refused in any
 * case: probes that are not transitive or contradict one another, an id on both InfiniBand and
 * RoCE, and a link or probe that names what does not exist. Near linear in groups and probes. */
int holmes_fabrics_find(struct holmes_cluster *c, bool separate_ambiguous,
                        struct holmes_fabrics **out, char *why, size_t why_len);
void holmes_fabrics_destroy(struct holmes_fabrics *f);

#endif
