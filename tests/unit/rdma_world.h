/* RDMA ports for the tests of their choice. */
#ifndef RDMA_WORLD_H
#define RDMA_WORLD_H

#include "netif_world.h"

#define WORLD_PORTS_MAX 40

static const struct holmes_rdma_request rdma_nothing_asked = HOLMES_RDMA_NOTHING_ASKED;

/* "fe80::1 v1, - , ::ffff:10.2.0.2 v2 eth1": an entry for each index, "-" for one that is zero or
 * cannot be read; v1, v2, or ? for a type that is not told; last the interface, if any. */
static inline void world_gids(struct holmes_rdma_port_seen *p, const char *table)
{
    char copy[4096], *save = NULL;
    int index = 0;

    cr_assert_lt(snprintf(copy, sizeof copy, "%s", table), (int)sizeof copy);
    for (char *e = strtok_r(copy, ",", &save); e; e = strtok_r(NULL, ",", &save), index++) {
        struct holmes_gid_seen *g = &p->gids[p->ngids];
        char addr[64], type[8] = "", ndev[16] = "";

        cr_assert_geq(sscanf(e, " %63s %7s %15s", addr, type, ndev), 1, "\"%s\"", e);
        if (strcmp(addr, "-") == 0)
            continue;
        cr_assert_eq(inet_pton(AF_INET6, addr, g->bytes), 1, "%s", addr);
        g->index = (uint8_t)index;
        g->type = p->link_layer == HOLMES_LINK_INFINIBAND ? HOLMES_GID_INFINIBAND
                  : strcmp(type, "v1") == 0               ? HOLMES_GID_ROCE_V1
                  : strcmp(type, "v2") == 0               ? HOLMES_GID_ROCE_V2
                                                          : -1;
        snprintf(g->ndev, sizeof g->ndev, "%s", ndev);
        p->ngids++;
    }
}

/* An active port of an adapter with its own PCI function. */
static inline void world_port(struct holmes_rdma_port_seen *p, const char *device, int port,
                              enum holmes_link_layer layer, const char *gids)
{
    *p = (struct holmes_rdma_port_seen){
        .port = (uint8_t)port,
        .node_type = 1,
        .state = 4,
        .link_layer = layer,
        .speed_mbps = 100000,
        .numa_node = -1,
    };
    snprintf(p->device, sizeof p->device, "%s", device);
    snprintf(p->state_text, sizeof p->state_text, "ACTIVE, LinkUp");
    world_gids(p, gids);
}

struct rdma_answer {
    int rc;
    int nnics;
    struct holmes_nic nics[HOLMES_RDMA_PORTS_MAX];
    struct holmes_rdma_verdict verdicts[WORLD_PORTS_MAX];
    char why[1024];
    char names[512]; /* of the NICs in order, separated by spaces */
};

/* With interfaces, of which the chooser's own choice is in use. */
static inline void world_rdma_over(const struct holmes_rdma_port_seen *ports, int n,
                                   struct holmes_rdma_request req, const struct holmes_netif *ifs,
                                   int nifs, struct rdma_answer *a)
{
    struct world_answer ethernet = {0};

    if (nifs > 0)
        ethernet = world_choose(ifs, nifs, (struct holmes_netif_request){0});
    cr_assert_eq(ethernet.rc, 0, "%s", ethernet.why);
    memset(a, 0, sizeof *a);
    a->rc = holmes_rdma_choose(ports, n, &req, ifs, nifs, ethernet.nics, ethernet.nnics,
                               a->verdicts, a->nics, &a->nnics, a->why, sizeof a->why);
    for (int i = 0; a->rc == 0 && i < a->nnics; i++) {
        size_t len = strlen(a->names);

        snprintf(a->names + len, sizeof a->names - len, "%s%s", i > 0 ? " " : "", a->nics[i].name);
    }
}

static inline void world_rdma(const struct holmes_rdma_port_seen *ports, int n,
                              struct holmes_rdma_request req, struct rdma_answer *a)
{
    world_rdma_over(ports, n, req, NULL, 0, a);
}

static inline void rdma_expect_reason(const struct rdma_answer *a, int i, const char *needle)
{
    cr_expect(!a->verdicts[i].used, "port %d is used: %s", i, a->verdicts[i].reason);
    cr_expect(strstr(a->verdicts[i].reason, needle), "port %d: \"%s\" lacks \"%s\"", i,
              a->verdicts[i].reason, needle);
}

#endif
