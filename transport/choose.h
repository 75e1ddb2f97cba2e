/* Whether two RDMA ports share a fabric, as far as their descriptions tell. Pure: both ends, and a
 * planner that only has the descriptions, come to the same answer.
 *
 *     1. the user said so (HOLMES_FABRIC on both ends)
 *     2. link layers, a usable GID at all
 *     3. InfiniBand: the subnet prefix. RoCE: a common version and address family
 *     4. unknown: to be settled by a probe
 */
#ifndef HOLMES_CHOOSE_H
#define HOLMES_CHOOSE_H

#include "proto.h"

#define CHOOSE_REASON_MAX 128

enum choose_answer { CHOOSE_APART, CHOOSE_SHARED, CHOOSE_UNKNOWN };

struct choose_pair {
    enum choose_answer answer;
    uint8_t dial_gid, accept_gid; /* index in the GID table of each port; unless APART */
    uint16_t mtu;                 /* the smaller of both; 0 when one does not say */
    bool link_local;              /* only link-local GIDs are common: works within one switch */
    char reason[CHOOSE_REASON_MAX];
};

void choose_pair(const struct proto_port *dial, const struct proto_port *accept,
                 struct choose_pair *out);

/* What HOLMES_WIRE of both ends says. 0 with the policy in force and, unless that is AUTO, the
 * reason; -EPROTONOSUPPORT when one end insists on verbs and the other on tcp. */
int choose_policy(enum proto_policy dial, const char *dial_host, enum proto_policy accept,
                  const char *accept_host, enum proto_policy *out, char reason[CHOOSE_REASON_MAX]);

/* Ports of the two ends, taken in turns until each had its turn: rail `i` of the returned number
 * joins dial port ports[i].dial and accept port ports[i].accept. 0 when one end has none. */
struct choose_ports {
    uint8_t dial, accept;
};
int choose_rails(int ndial, int naccept, struct choose_ports ports[HOLMES_MAX_RAILS]);

#endif
