/* The collector of RDMA ports, on trees like those of real hosts, and both discoveries together. */
#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "log.h"
#include "rdma_world.h"
#include "sysfs_tree.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

#define ZERO_GID "0000:0000:0000:0000:0000:0000:0000:0000"

static struct holmes_rdma_port_seen *collect(const struct sysfs_tree *t, int want)
{
    struct holmes_rdma_port_seen *ports;
    int n = -1;

    cr_assert_eq(holmes_rdma_collect(t->root, &ports, &n), 0);
    cr_assert_eq(n, want, "%d ports", n);
    cr_assert(n == 0 || ports);
    return ports;
}

/* Eight InfiniBand ports and a bond of two Ethernet ones, as a host with H100 GPUs shows them. */
static const struct tree_rdma_port h100[] = {
    {"mlx5_0", "4: ACTIVE", "5: LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)"},
    {"mlx5_1", "4: ACTIVE", "5: LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)"},
    {"mlx5_4", "4: ACTIVE", "5: LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)"},
    {"mlx5_5", "4: ACTIVE", "5: LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)"},
    {"mlx5_10", "4: ACTIVE", "5: LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)"},
    {"mlx5_7", "1: DOWN", "3: Disabled", "InfiniBand", "10 Gb/sec (4X SDR)"},
    {"mlx5_8", "4: ACTIVE", "5: LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)"},
    {"mlx5_9", "4: ACTIVE", "5: LinkUp", "InfiniBand", "400 Gb/sec (4X NDR)"},
    {"mlx5_bond_0", "4: ACTIVE", "5: LinkUp", "Ethernet", "200 Gb/sec (2X NDR)"},
};

Test(rdma_collect, a_host_with_infiniband_and_a_bond)
{
    static const char *const order[] = {"mlx5_0", "mlx5_1", "mlx5_4",  "mlx5_5",     "mlx5_7",
                                        "mlx5_8", "mlx5_9", "mlx5_10", "mlx5_bond_0"};
    static struct rdma_answer a;
    struct holmes_rdma_port_seen *ports;
    struct sysfs_tree t;

    tree_init(&t);
    for (int i = 0; i < COUNT(h100); i++) {
        tree_port(&t, &h100[i], 1);
        if (i < 8)
            tree_gid(&t, h100[i].device, 0, "fe80:0000:0000:0000:a088:c203:00e3:142a", NULL, NULL);
        tree_write(&t, "0x2d", "class/infiniband/%s/ports/1/lid", h100[i].device);
    }
    tree_gid(&t, "mlx5_bond_0", 0, "fe80:0000:0000:0000:a288:c2ff:fee3:142a", "IB/RoCE v1",
             "bond0");
    tree_gid(&t, "mlx5_bond_0", 1, "fe80:0000:0000:0000:a288:c2ff:fee3:142a", "RoCE v2", "bond0");
    tree_gid(&t, "mlx5_bond_0", 2, ZERO_GID, NULL, NULL);
    tree_gid(&t, "mlx5_bond_0", 3, "0000:0000:0000:0000:0000:ffff:0a02:0003", "RoCE v2", "bond0");
    ports = collect(&t, COUNT(h100));
    for (int i = 0; i < COUNT(order); i++)
        cr_expect_str_eq(ports[i].device, order[i]);
    cr_expect_eq(ports[0].link_layer, HOLMES_LINK_INFINIBAND);
    cr_expect_eq(ports[0].speed_mbps, 400000);
    cr_expect_eq(ports[0].lid, 45);
    cr_expect_eq(ports[8].lid, 0, "Ethernet has none");
    cr_expect_eq(ports[8].speed_mbps, 200000);
    cr_expect_eq(ports[8].ngids, 3);
    cr_expect_eq(ports[8].gids[2].index, 3);
    cr_expect_eq(ports[8].gids[2].type, HOLMES_GID_ROCE_V2);
    cr_expect_str_eq(ports[8].gids[2].ndev, "bond0");
    cr_expect_eq(ports[8].gids[0].type, HOLMES_GID_ROCE_V1);
    cr_expect(!ports[0].peer_memory);

    world_rdma(ports, COUNT(h100), rdma_nothing_asked, &a);
    cr_expect_str_eq(a.names, "mlx5_0 mlx5_1 mlx5_4 mlx5_5 mlx5_8 mlx5_9 mlx5_10 mlx5_bond_0");
    rdma_expect_reason(&a, 4, "port is not active (DOWN, Disabled)");
    cr_expect_eq(a.nics[7].rdma.gids[0].index, 3);
    free(ports);
    tree_fini(&t);
}

/* An older adapter's tree: a device link, a GUID for the system beside the node's, no GID types. */
Test(rdma_collect, what_stands_at_the_device)
{
    const struct tree_rdma_port port = {"mlx4_0", "4: ACTIVE", "5: LinkUp", "InfiniBand",
                                        "56 Gb/sec (4X FDR)"};
    const char *function = "devices/pci0000:80/0000:80:02.2/0000:82:00.0";
    struct holmes_rdma_port_seen *ports;
    struct sysfs_tree t;
    char want[256];

    tree_init(&t);
    tree_write(&t, "1", "%s/numa_node", function);
    tree_port(&t, &port, 1);
    tree_port(&t, &port, 2);
    tree_link(&t, "../../../devices/pci0000:80/0000:80:02.2/0000:82:00.0",
              "class/infiniband/mlx4_0/device");
    tree_write(&t, "1: CA", "class/infiniband/mlx4_0/node_type");
    tree_write(&t, "0002:c903:00f9:bfa0", "class/infiniband/mlx4_0/node_guid");
    tree_write(&t, "0002:c903:00f9:bfa3", "class/infiniband/mlx4_0/sys_image_guid");
    tree_write(&t, "0x3a4", "class/infiniband/mlx4_0/ports/1/lid");
    tree_gid(&t, "mlx4_0", 0, "fe80:0000:0000:0000:0002:c903:00f9:bfa1", NULL, NULL);
    tree_write(&t, "1.0", "module/nvidia_peermem/version");
    ports = collect(&t, 2);
    snprintf(want, sizeof want, "%s/%s", t.root, function);
    cr_expect_str_eq(ports[0].pci_path, want);
    cr_expect_eq(ports[0].numa_node, 1);
    cr_expect_eq(ports[0].node_type, 1);
    cr_expect_eq(ports[0].guid, 0x0002c90300f9bfa3);
    cr_expect_eq(ports[0].lid, 0x3a4);
    cr_expect_eq(ports[0].speed_mbps, 56000);
    cr_expect_eq(ports[0].gids[0].type, HOLMES_GID_INFINIBAND);
    cr_expect(ports[0].peer_memory);
    cr_expect_eq(ports[1].port, 2);
    cr_expect_eq(ports[1].ngids, 0);
    free(ports);
    tree_write(&t, "0000:0000:0000:0000", "class/infiniband/mlx4_0/sys_image_guid");
    ports = collect(&t, 2);
    cr_expect_eq(ports[0].guid, 0x0002c90300f9bfa0, "the node's");
    free(ports);
    tree_fini(&t);
}

Test(rdma_collect, rates_are_read_whatever_their_form)
{
    static const struct {
        const char *rate;
        uint32_t mbps;
    } rows[] = {
        {"2.5 Gb/sec (1X SDR)", 2500},
        {"100 Gb/sec (4X EDR)", 100000},
        {"1600 Gb/sec (8X XDR)", 1600000},
        {"14.0625 Gb/sec (1X FDR)", 14062},
        {"", 0},
        {"fast", 0},
        {"-5 Gb/sec", 0},
        {"99999999999 Gb/sec", 0},
        {"40", 0},
    };
    struct tree_rdma_port port = {"mlx5_0", "4: ACTIVE", "5: LinkUp", "InfiniBand", NULL};
    struct holmes_rdma_port_seen *ports;
    struct sysfs_tree t;

    tree_init(&t);
    for (int i = 0; i < COUNT(rows); i++) {
        port.rate = rows[i].rate;
        tree_port(&t, &port, i + 1);
    }
    ports = collect(&t, COUNT(rows));
    for (int i = 0; i < COUNT(rows); i++)
        cr_expect_eq(ports[i].speed_mbps, rows[i].mbps, "\"%s\": %u", rows[i].rate,
                     ports[i].speed_mbps);
    free(ports);
    tree_fini(&t);
}

/* What the kernel has never written, and what goes away while it is read. */
Test(rdma_collect, odd_trees_do_no_harm)
{
    const struct tree_rdma_port odd = {"odd0", "up", "", "Unknown", "Gb/sec"};
    const struct tree_rdma_port good = {"good0", "4: ACTIVE", "5: LinkUp", "Ethernet",
                                        "25 Gb/sec (1X EDR)"};
    struct holmes_rdma_port_seen *ports;
    struct sysfs_tree t;
    char path[128];

    tree_init(&t);
    tree_port(&t, &odd, 1);
    tree_port(&t, &good, 1);
    tree_gid(&t, "odd0", 0, "fe80", "RoCE v2", NULL);
    tree_gid(&t, "good0", 0, "fe80:0:0:0:0:0:0:1", "RoCE v2", "eth0");
    tree_gid(&t, "good0", 1, "0000:0000:0000:0000:0000:ffff:0a02:0003:", "RoCE v2", "eth0");
    tree_gid(&t, "good0", 2, "0000:0000:0000:0000:0000:ffff:0a02:0003", "RoCE v7", NULL);
    tree_gid(&t, "good0", 3, "0000:0000:0000:0000:0000:ffff:0a02:0004", "RoCE v1",
             "an_interface_with_far_too_long_a_name");
    tree_gid(&t, "good0", 5, "0000:0000:0000:0000:0000:ffff:0a02:0005", "RoCE v2", NULL);
    tree_write(&t, "x", "class/infiniband/no_ports/node_type");
    tree_write(&t, "zz", "class/infiniband/odd0/sys_image_guid");
    snprintf(path, sizeof path, "class/infiniband/%064d/node_type", 0);
    tree_write(&t, "x", "%s", path);
    ports = collect(&t, 2);
    cr_expect_str_eq(ports[0].device, "good0");
    cr_assert_eq(ports[0].ngids, 2, "behind the hole nothing is looked for");
    cr_expect_eq(ports[0].gids[0].index, 2);
    cr_expect_eq(ports[0].gids[0].type, -1);
    cr_expect_eq(ports[0].gids[1].type, HOLMES_GID_ROCE_V1);
    cr_expect_eq(ports[1].link_layer, HOLMES_LINK_UNKNOWN);
    cr_expect_eq(ports[1].state, 0);
    cr_expect_eq(ports[1].guid, 0);
    cr_expect_str_eq(ports[1].pci_path, "");
    free(ports);
    tree_fini(&t);
}

Test(rdma_collect, a_table_is_read_up_to_its_bound)
{
    const struct tree_rdma_port port = {"mlx5_0", "4: ACTIVE", "5: LinkUp", "Ethernet",
                                        "25 Gb/sec (1X EDR)"};
    struct holmes_rdma_port_seen *ports;
    struct sysfs_tree t;

    tree_init(&t);
    tree_port(&t, &port, 1);
    for (int i = 0; i < HOLMES_GIDS_SEEN_MAX + 3; i++) {
        char gid[64];

        snprintf(gid, sizeof gid, "0000:0000:0000:0000:0000:ffff:0a02:%04x", i + 1);
        tree_gid(&t, "mlx5_0", i, gid, "RoCE v2", NULL);
    }
    ports = collect(&t, 1);
    cr_expect_eq(ports[0].ngids, HOLMES_GIDS_SEEN_MAX);
    cr_expect_eq(ports[0].gids[HOLMES_GIDS_SEEN_MAX - 1].index, 255);
    free(ports);
    tree_fini(&t);
}

Test(rdma_collect, a_host_without_rdma_is_no_error)
{
    struct holmes_rdma_port_seen *ports;
    struct sysfs_tree t;
    int n = -1;

    tree_init(&t);
    ports = collect(&t, 0);
    cr_expect_null(ports);
    tree_fini(&t);
    cr_assert_eq(holmes_rdma_collect("/nonexistent", &ports, &n), 0);
    cr_expect_eq(n, 0);
}

/* ---- both discoveries ---- */

/* A namespace with one interface, and a tree beside it in which a RoCE port runs over that. */
static void enter_world(struct sysfs_tree *t, const char *addr_gid)
{
    const struct tree_rdma_port port = {"mlx5_0", "4: ACTIVE", "5: LinkUp", "Ethernet",
                                        "25 Gb/sec (1X EDR)"};

    if (geteuid() != 0)
        cr_skip("network namespaces need root");
    cr_assert_eq(unshare(CLONE_NEWNET), 0);
    cr_assert_eq(system("ip link set lo up && ip link add va type veth peer name vb && "
                        "ip link set va up && ip link set vb up && "
                        "ip addr add 10.77.1.1/24 dev va && ip addr add 10.77.2.1/24 dev vb"),
                 0);
    tree_init(t);
    tree_port(t, &port, 1);
    tree_gid(t, "mlx5_0", 0, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", "va");
    tree_gid(t, "mlx5_0", 1, addr_gid, "RoCE v2", "va");
}

Test(rdma_discover, rdma_ports_are_shown_and_ethernet_stays_behind_them)
{
    struct holmes_nics found;
    struct sysfs_tree t;

    enter_world(&t, "0000:0000:0000:0000:0000:ffff:0a4d:0101");
    cr_assert_eq(holmes_nics_discover(t.root, NULL, NULL, &found), 0);
    cr_assert_eq(found.n, 3);
    cr_expect_eq(found.nshown, 1);
    cr_expect_str_eq(found.nics[0].name, "mlx5_0");
    cr_expect_eq(found.nics[0].rdma.port, 1);
    cr_expect_str_eq(found.nics[0].ifname, "va");
    cr_assert_geq(found.nics[0].naddrs, 1);
    cr_expect_eq(found.nics[0].addrs[0].in.sin_addr.s_addr, htonl(0x0a4d0101));
    cr_expect_eq(found.nics[1].rdma.port, 0);
    cr_expect_eq(found.nics[2].rdma.port, 0);
    tree_fini(&t);
}

/* The same tree seen from a namespace that has another host's name for its interface. */
Test(rdma_discover, a_foreign_port_gets_no_address_of_ours)
{
    struct holmes_nics found;
    struct sysfs_tree t;

    enter_world(&t, "0000:0000:0000:0000:0000:ffff:0a4d:0909");
    cr_assert_eq(holmes_nics_discover(t.root, NULL, NULL, &found), 0);
    cr_assert_eq(found.n, 3);
    cr_expect_str_eq(found.nics[0].name, "mlx5_0");
    cr_expect_str_eq(found.nics[0].ifname, "");
    cr_expect_eq(found.nics[0].naddrs, 0);
    tree_fini(&t);
}

static int refuse_all(void *arg, const char *device, int port)
{
    ++*(int *)arg;
    cr_expect_str_eq(device, "mlx5_0");
    cr_expect_eq(port, 1);
    return -ENODEV;
}

Test(rdma_discover, without_a_usable_port_ethernet_is_shown)
{
    struct holmes_nics found;
    struct sysfs_tree t;
    int asked = 0;

    enter_world(&t, "0000:0000:0000:0000:0000:ffff:0a4d:0101");
    cr_assert_eq(holmes_nics_discover(t.root, refuse_all, &asked, &found), 0);
    cr_expect_eq(asked, 1);
    cr_expect_eq(found.n, 2);
    cr_expect_eq(found.nshown, 2);
    cr_expect_eq(found.nics[0].rdma.port, 0);
    setenv("NCCL_IB_DISABLE", "1", 1);
    cr_assert_eq(holmes_nics_discover(t.root, refuse_all, &asked, &found), 0);
    cr_expect_eq(asked, 1, "nothing was asked");
    cr_expect_eq(found.nshown, 2);
    tree_fini(&t);
}

struct captured {
    int warnings;
    char last[512]; /* warning */
    char all[4096];
};

static void capture(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                    const char *file, int line, const char *func, const char *msg)
{
    struct captured *c = ctx;
    size_t len = strlen(c->all);

    (void)subsys, (void)file, (void)line, (void)func;
    snprintf(c->all + len, sizeof c->all - len, "%s\n", msg);
    if (level != HOLMES_LOG_WARN)
        return;
    c->warnings++;
    snprintf(c->last, sizeof c->last, "%s", msg);
}

Test(rdma_discover, a_host_without_rdma_is_silent_unless_something_was_named)
{
    static struct captured log;
    struct holmes_nics found;
    struct sysfs_tree t;

    enter_world(&t, "0000:0000:0000:0000:0000:ffff:0a4d:0101");
    tree_fini(&t);
    tree_init(&t);
    holmes_log_set_sink(capture, &log, HOLMES_LOG_INFO);
    cr_assert_eq(holmes_nics_discover(t.root, refuse_all, NULL, &found), 0);
    cr_expect_eq(found.nshown, 2);
    cr_expect_eq(log.warnings, 0, "%s", log.last);
    cr_expect(!strstr(log.all, "rdma"), "%s", log.all);
    setenv("NCCL_IB_HCA", "mlx5_0", 1);
    cr_assert_eq(holmes_nics_discover(t.root, refuse_all, NULL, &found), 0);
    cr_expect_eq(log.warnings, 1);
    cr_expect_str_eq(log.last, "NCCL_IB_HCA=\"mlx5_0\": this host has no RDMA device");
    setenv("NCCL_IB_DISABLE", "1", 1);
    cr_assert_eq(holmes_nics_discover(t.root, refuse_all, NULL, &found), 0);
    cr_expect_eq(log.warnings, 1);
    cr_expect(strstr(log.all, "NCCL_IB_DISABLE is set: no RDMA port is used"), "%s", log.all);
    tree_fini(&t);
}

Test(rdma_discover, every_port_is_told_of)
{
    static struct captured log;
    struct holmes_nics found;
    struct sysfs_tree t;
    int asked = 0;

    enter_world(&t, "0000:0000:0000:0000:0000:ffff:0a4d:0101");
    holmes_log_set_sink(capture, &log, HOLMES_LOG_INFO);
    cr_assert_eq(holmes_nics_discover(t.root, NULL, NULL, &found), 0);
    cr_expect(strstr(log.all, "rdma mlx5_0 port 1 used: RoCE v2, 25000 Mbit/s, GID 1 "
                              "::ffff:10.77.1.1 on va\n"),
              "%s", log.all);
    cr_expect_eq(log.warnings, 0, "%s", log.last);
    setenv("NCCL_IB_HCA", "mlx5_0", 1);
    cr_assert_eq(holmes_nics_discover(t.root, refuse_all, &asked, &found), 0);
    cr_expect(strstr(log.all, "rdma mlx5_0 port 1 not used: cannot be opened: No such device\n"),
              "%s", log.all);
    cr_expect_str_eq(log.last, "NCCL_IB_HCA=\"mlx5_0\": no port of it can be used");
    tree_fini(&t);
}

Test(rdma_discover, obeys_the_environment)
{
    struct holmes_nics found;
    struct sysfs_tree t;

    enter_world(&t, "0000:0000:0000:0000:0000:ffff:0a4d:0101");
    setenv("NCCL_IB_HCA", "mlx5_9", 1);
    cr_expect_eq(holmes_nics_discover(t.root, NULL, NULL, &found), -EINVAL);
    setenv("NCCL_IB_HCA", "=mlx5_0:1", 1);
    setenv("HOLMES_FABRIC", "mlx5_0=blue", 1);
    setenv("NCCL_IB_GID_INDEX", "0", 1);
    cr_assert_eq(holmes_nics_discover(t.root, NULL, NULL, &found), 0);
    cr_expect_str_eq(found.nics[0].rdma.fabric, "blue");
    cr_expect_eq(found.nics[0].rdma.ngids, 1);
    cr_expect_eq(found.nics[0].rdma.gids[0].index, 0);
    setenv("NCCL_IB_GID_INDEX", "2", 1);
    cr_expect_eq(holmes_nics_discover(t.root, NULL, NULL, &found), -EINVAL);
    tree_fini(&t);
}
