/* Which entries of a RoCE port's GID table are worth using, and in which order. Pure. */
#ifndef HOLMES_GID_H
#define HOLMES_GID_H

#include <stdbool.h>
#include <stddef.h>

#include "topology.h"

/* What NCCL's variables ask for. */
struct gid_wish {
    int64_t index; /* that one only; below 0: the best */
    int version;   /* of RoCE: 1 or 2 */
    int family;    /* AF_INET, AF_INET6 */
    bool has_range;
    struct holmes_addr range; /* with its prefix length */
};

struct gid_choice {
    int n;
    struct holmes_gid gids[HOLMES_GIDS_MAX]; /* best first, none twice */
    char ndev[16];                           /* of the best one */
    bool link_local;                         /* its v2 GIDs are link-local ones */
};

/* The GID variables of the request. As in NCCL a family that is no family and a range without a
 * length count as unset; `why` then says so although the answer is 0. -EINVAL with a sentence in
 * `why`: a range that is none. */
int gid_wish_parse(const struct holmes_rdma_request *req, struct gid_wish *out, char *why,
                   size_t why_len);

/* Order: RoCE v2 with an IPv4 address that has a route; v2 with a global IPv6 address; v1 with an
 * IPv4 address; v2 link-local, and this only where no better v2 is. Where some are in the wanted
 * range, or of IPv6 or v1 when that is wanted, the others are left out; and so are those of other
 * namespaces' interfaces where some are of ours. 0, -ENOENT when nothing is usable. */
int gid_choose(const struct holmes_rdma_port_seen *port, const struct gid_wish *wish,
               const struct holmes_netif *ifs, int nifs, struct gid_choice *out);

/* Whether this namespace has the port's interface of that name, and not only one that is called the
 * same: then it has the address of a GID. */
bool gid_netdev_is_ours(const struct holmes_rdma_port_seen *port, const char *ndev,
                        const struct holmes_netif *ifs, int nifs);

/* "::ffff:10.2.0.2" into `buf`, which it returns. */
const char *gid_text(const uint8_t bytes[16], char *buf, size_t len);

#endif
