/* What is known of a node's RDMA before anybody is asked: the facts that the rules of the grouping
 * compare. */
#ifndef HOLMES_FABRIC_FACTS_H
#define HOLMES_FABRIC_FACTS_H

#include "cluster.h"

enum { GID_V1_IPV4 = 1, GID_V1_IPV6 = 2, GID_V2_IPV4 = 4, GID_V2_IPV6 = 8, GID_ANY = 15 };

/* Of the nodes of a group, by those of their NICs that count. Texts are the cluster's. */
struct fabric_facts {
    enum holmes_link_layer link; /* HOLMES_LINK_UNKNOWN: no RDMA */
    int nics;
    double gbps; /* of all of them; 0: unknown */
    int nids, nprefixes;
    const char **ids, **prefixes; /* different ones; prefixes without the default one */
    bool prefix_default;          /* a NIC has the default prefix */
    bool prefix_untold;           /* of a NIC nothing is told */
    int gids;                     /* RoCE: kinds that are usable; GID_ANY where not told */
    const char *left_out;         /* a NIC of another kind that does not count, or NULL */
};

enum fabric_relation { FABRIC_APART, FABRIC_SAME, FABRIC_OPEN };

/* 0 or -ENOMEM. fabric_facts_fini ends it. */
int fabric_facts_find(const struct holmes_cluster *c, const struct holmes_node_group *g,
                      struct fabric_facts *out);
void fabric_facts_fini(struct fabric_facts *f);

/* Rules 1 to 3 for nodes of two groups. */
enum fabric_relation fabric_relate(const struct fabric_facts *a, const struct fabric_facts *b);
/* The same for two nodes of one group. */
enum fabric_relation fabric_relate_inside(const struct fabric_facts *f);

/* "InfiniBand with the default subnet prefix fe80::", for a sentence about what is open. */
const char *fabric_facts_text(const struct fabric_facts *f);
/* Whether this NIC of the type counts. */
bool fabric_nic_counts(const struct holmes_cluster_nic *nic, enum holmes_link_layer link);

#endif
