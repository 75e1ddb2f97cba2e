/* From what sysfs shows on the hosts of two clusters to who can reach whom: the ports as public
 * reports of such hosts have them, read, chosen and joined in pairs. */
#include "rdma_world.h"
#include "sysfs_tree.h"
#include "transport/choose.h"

#define HOSTS     4
#define PORTS_MAX 12

struct host {
    struct rdma_answer answer;
    struct proto_port ports[PORTS_MAX]; /* as a peer is told of them */
};

static struct host hosts[HOSTS];

static void tell_port(const struct holmes_nic *nic, struct proto_port *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", nic->rdma.device);
    snprintf(out->fabric, sizeof out->fabric, "%s", nic->rdma.fabric);
    out->lid = nic->rdma.lid;
    out->link_layer = nic->rdma.link_layer;
    out->port = nic->rdma.port;
    out->ngids = (uint8_t)nic->rdma.ngids;
    for (int i = 0; i < nic->rdma.ngids; i++) {
        memcpy(out->gids[i].bytes, nic->rdma.gids[i].bytes, sizeof out->gids[i].bytes);
        out->gids[i].index = nic->rdma.gids[i].index;
        out->gids[i].type = nic->rdma.gids[i].type;
    }
}

static void discover(struct sysfs_tree *t, const char *fabric, struct host *h)
{
    struct holmes_rdma_request req = HOLMES_RDMA_NOTHING_ASKED;
    struct holmes_rdma_port_seen *ports = NULL;
    int n = 0;

    req.fabric = fabric;
    cr_assert_eq(holmes_rdma_collect(t->root, &ports, &n), 0);
    world_rdma(ports, n, req, &h->answer);
    cr_assert_eq(h->answer.rc, 0, "%s", h->answer.why);
    cr_assert_leq(h->answer.nnics, PORTS_MAX);
    for (int i = 0; i < h->answer.nnics; i++)
        tell_port(&h->answer.nics[i], &h->ports[i]);
    free(ports);
    tree_fini(t);
}

/* Eight InfiniBand ports, all with the prefix of their subnet. */
static void infiniband_host(struct host *h, const char *prefix, int number, const char *fabric)
{
    struct sysfs_tree t;

    tree_init(&t);
    for (int i = 0; i < 8; i++) {
        char device[16], gid[64], lid[16];
        const struct tree_rdma_port port = {device, "4: ACTIVE", "5: LinkUp", "InfiniBand",
                                            "400 Gb/sec (4X NDR)"};

        snprintf(device, sizeof device, "mlx5_%d", i);
        snprintf(gid, sizeof gid, "%s:a088:c203:00e3:%04x", prefix, 0x1000 * number + i);
        snprintf(lid, sizeof lid, "0x%x", 16 * number + i);
        tree_port(&t, &port, 1);
        tree_gid(&t, device, 0, gid, NULL, NULL);
        tree_write(&t, lid, "class/infiniband/%s/ports/1/lid", device);
        tree_write(&t, "0x1", "class/infiniband/%s/ports/1/sm_lid", device);
    }
    discover(&t, fabric, h);
}

/* Eight ports of 400 Gbit/s in a network each, and four more of 100 Gbit/s that have no address. */
static void roce_host(struct host *h, int number)
{
    static const int fast[] = {0, 3, 4, 5, 6, 9, 10, 11};
    struct sysfs_tree t;

    tree_init(&t);
    for (int i = 0; i < 12; i++) {
        char device[16], gid[64];
        struct tree_rdma_port port = {device, "4: ACTIVE", "5: LinkUp", "Ethernet",
                                      "100 Gb/sec (4X EDR)"};
        const char *link_local = "fe80:0000:0000:0000:a288:c2ff:fee3:142a";

        snprintf(device, sizeof device, "mlx5_%d", i);
        for (int k = 0; k < 8; k++) {
            if (fast[k] != i)
                continue;
            port.rate = "400 Gb/sec (4X NDR)";
            snprintf(gid, sizeof gid, "0000:0000:0000:0000:0000:ffff:0a02:%02x%02x", k, number);
            tree_gid(&t, device, 2, gid, "IB/RoCE v1", NULL);
            tree_gid(&t, device, 3, gid, "RoCE v2", NULL);
        }
        tree_port(&t, &port, 1);
        if (port.rate[0] == '4') {
            tree_gid(&t, device, 0, link_local, "IB/RoCE v1", NULL);
            tree_gid(&t, device, 1, link_local, "RoCE v2", NULL);
        } else {
            tree_gid(&t, device, 0, "0000:0000:0000:0000:0000:0000:0000:0000", NULL, NULL);
        }
    }
    discover(&t, NULL, h);
}

/* All ports of a host against all of another. */
static void expect(int a, int b, enum choose_answer answer)
{
    for (int i = 0; i < hosts[a].answer.nnics; i++) {
        for (int k = 0; k < hosts[b].answer.nnics; k++) {
            struct choose_pair p;

            choose_pair(&hosts[a].ports[i], &hosts[b].ports[k], &p);
            cr_assert_eq(p.answer, answer, "host %d port %s and host %d port %s: %s", a,
                         hosts[a].ports[i].name, b, hosts[b].ports[k].name, p.reason);
        }
    }
}

Test(clusters, infiniband_and_roce_clusters_reach_within_and_not_between)
{
    infiniband_host(&hosts[0], "fec0:0000:0000:000a", 1, NULL);
    infiniband_host(&hosts[1], "fec0:0000:0000:000a", 2, NULL);
    roce_host(&hosts[2], 2);
    roce_host(&hosts[3], 3);
    for (int a = 0; a < HOSTS; a++) {
        cr_assert_eq(hosts[a].answer.nnics, 8, "host %d: %s", a, hosts[a].answer.names);
        for (int b = 0; b < HOSTS; b++) {
            if (a / 2 != b / 2)
                expect(a, b, CHOOSE_APART);
            else
                expect(a, b, a < 2 ? CHOOSE_SHARED : CHOOSE_UNKNOWN);
        }
    }
    cr_expect_str_eq(hosts[2].answer.names,
                     "mlx5_0 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_9 mlx5_10 mlx5_11");
    cr_expect_eq(hosts[2].ports[0].gids[0].index, 3);
}

/* All subnet managers say lid 1 and all prefixes are the default one. */
Test(clusters, default_prefixes_are_told_apart_by_the_user_only)
{
    for (int i = 0; i < HOSTS; i++)
        infiniband_host(&hosts[i], "fe80:0000:0000:0000", i + 1, NULL);
    for (int a = 0; a < HOSTS; a++) {
        for (int b = 0; b < HOSTS; b++)
            expect(a, b, CHOOSE_UNKNOWN);
    }
    for (int i = 0; i < HOSTS; i++)
        infiniband_host(&hosts[i], "fe80:0000:0000:0000", i + 1, i < 2 ? "A" : "B");
    for (int a = 0; a < HOSTS; a++) {
        for (int b = 0; b < HOSTS; b++)
            expect(a, b, a / 2 == b / 2 ? CHOOSE_SHARED : CHOOSE_APART);
    }
}
