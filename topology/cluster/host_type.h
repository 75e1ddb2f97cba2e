/* The node type that one machine is of. */
#ifndef HOLMES_HOST_TYPE_H
#define HOLMES_HOST_TYPE_H

#include "cluster.h"
#include "host.h"

/* What a machine is besides its type. */
struct holmes_host_sides {
    char *fabric;    /* the id that all its RDMA NICs have (HOLMES_FABRIC), or NULL */
    int nuntold;     /* RDMA NICs left out, since nothing tells their link layer */
    char untold[64]; /* the first of them */
};

/* `name` of the type is NULL. `link` is that of RDMA NICs whose source does not tell it (NCCL's
 * XML); HOLMES_LINK_UNKNOWN leaves those out. NICs do not have the id that is in `sides`
 * themselves. Both are the caller's. 0 or -ENOMEM. */
int holmes_host_type(const struct holmes_host *h, enum holmes_link_layer link,
                     struct holmes_node_type *out, struct holmes_host_sides *sides);
void holmes_node_type_fini(struct holmes_node_type *t);

/* All but the name as one text: equal texts, equal types. The caller frees it. NULL: no memory. */
char *holmes_node_type_key(const struct holmes_node_type *t);
/* In what `t` is not as `usual`, "7 GPUs in place of 8, no mlx5_3", into `buf`, which it returns.
 */
const char *holmes_node_type_difference(const struct holmes_node_type *t,
                                        const struct holmes_node_type *usual, char *buf,
                                        size_t len);
/* A short name by what it has: "8gpu-8ib400", "cpu-2eth25"; into `buf`, which it returns. */
const char *holmes_node_type_name(const struct holmes_node_type *t, char *buf, size_t len);

#endif
