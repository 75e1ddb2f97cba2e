/* Which RDMA ports are used, what is told of them, and why the others are not. */
#include <errno.h>

#include "rdma_world.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define IB       HOLMES_LINK_INFINIBAND
#define ETH      HOLMES_LINK_ETHERNET

static struct holmes_rdma_port_seen ports[WORLD_PORTS_MAX];
static struct rdma_answer answer;

static const struct rdma_answer *choose(int n)
{
    world_rdma(ports, n, rdma_nothing_asked, &answer);
    cr_assert_eq(answer.rc, 0, "%s", answer.why);
    return &answer;
}

static void at(struct holmes_rdma_port_seen *p, const char *pci)
{
    snprintf(p->pci_path, sizeof p->pci_path, "/sys/devices/pci0000:00/%s", pci);
}

Test(rdma_choice, eight_infiniband_ports)
{
    for (int i = 0; i < 8; i++) {
        char name[16];

        snprintf(name, sizeof name, "mlx5_%d", i);
        world_port(&ports[i], name, 1, IB, "fec0:0:0:1::17");
        ports[i].lid = (uint16_t)(40 + i);
        ports[i].guid = 0xa088c20300e3142a + (uint64_t)i;
        ports[i].speed_mbps = 400000;
    }
    choose(8);
    cr_assert_str_eq(answer.names, "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7");
    for (int i = 0; i < 8; i++) {
        const struct holmes_nic *nic = &answer.nics[i];

        cr_expect_eq(nic->rdma.port, 1);
        cr_expect_eq(nic->rdma.link_layer, IB);
        cr_expect_eq(nic->rdma.lid, 40 + i);
        cr_expect_eq(nic->rdma.guid, ports[i].guid);
        cr_expect_eq(nic->rdma.ngids, 1);
        cr_expect_eq(nic->rdma.gids[0].type, HOLMES_GID_INFINIBAND);
        cr_expect_arr_eq(nic->rdma.gids[0].bytes, ports[i].gids[0].bytes, 16);
        cr_expect_eq(nic->rdma.mtu, 0, "left to who opens the port");
        cr_expect_str_eq(nic->rdma.fabric, "");
        cr_expect_eq(nic->speed_mbps, 400000);
        cr_expect_eq(nic->naddrs, 0);
        cr_expect_str_eq(nic->ifname, "");
    }
    cr_expect_str_eq(answer.verdicts[3].reason,
                     "InfiniBand, 400000 Mbit/s, lid 43, GID 0 fec0:0:0:1::17");
}

/* Two hosts of two fabrics show the same prefix: nothing in what is found may tell them apart or
 * make them one; only the user's id does. */
Test(rdma_choice, fabrics_that_look_alike_stay_alike)
{
    struct holmes_rdma_request req = rdma_nothing_asked;
    static struct rdma_answer b;

    world_port(&ports[0], "mlx5_0", 1, IB, "fe80::1");
    world_port(&ports[1], "mlx5_0", 1, IB, "fe80::2");
    world_rdma(&ports[0], 1, req, &answer);
    world_rdma(&ports[1], 1, req, &b);
    cr_expect_arr_eq(answer.nics[0].rdma.gids[0].bytes, b.nics[0].rdma.gids[0].bytes, 8);
    cr_expect_str_eq(answer.nics[0].rdma.fabric, "");
    req.fabric = "A";
    world_rdma(&ports[0], 1, req, &answer);
    cr_expect_str_eq(answer.nics[0].rdma.fabric, "A");
}

Test(rdma_choice, roce_port_has_the_addresses_of_its_interface)
{
    struct holmes_netif ifs[] = {
        world_netif("eth0", HOLMES_NETIF_PHYSICAL, "192.168.1.5/24"),
        world_netif("eth1", HOLMES_NETIF_PHYSICAL, "10.2.0.2/24 fd00::2/64"),
        world_netif("eth2", HOLMES_NETIF_PHYSICAL, "10.3.0.2/24"),
    };

    ifs[2].flags = 0;
    world_port(
        &ports[0], "mlx5_0", 1, ETH,
        "fe80::2 v1 eth1, fe80::2 v2 eth1, ::ffff:10.2.0.2 v1 eth1, ::ffff:10.2.0.2 v2 eth1");
    world_port(&ports[1], "mlx5_1", 1, ETH, "::ffff:10.3.0.2 v2 eth2");
    world_rdma_over(ports, 2, rdma_nothing_asked, ifs, COUNT(ifs), &answer);
    cr_assert_str_eq(answer.names, "mlx5_0 mlx5_1");
    cr_expect_str_eq(answer.nics[0].ifname, "eth1");
    cr_assert_eq(answer.nics[0].naddrs, 2);
    cr_expect_eq(answer.nics[0].addrs[0].in.sin_addr.s_addr, htonl(0x0a020002));
    cr_expect_str_eq(answer.verdicts[0].reason,
                     "RoCE v2, 100000 Mbit/s, GID 3 ::ffff:10.2.0.2 on eth1");
    cr_expect_str_eq(answer.nics[1].ifname, "eth2");
    cr_expect_eq(answer.nics[1].naddrs, 0, "the interface is down");
}

/* IP over InfiniBand has nothing to do with the port below it. */
Test(rdma_choice, ipoib_does_not_matter)
{
    struct holmes_netif ifs[] = {
        world_netif("eth0", HOLMES_NETIF_PHYSICAL, "192.168.1.5/24"),
        world_netif("ib0", HOLMES_NETIF_IPOIB, "10.11.0.5/24"),
    };

    ifs[1].flags = 0;
    world_port(&ports[0], "mlx5_0", 1, IB, "fe80::1  ib0");
    world_rdma_over(ports, 1, rdma_nothing_asked, ifs, COUNT(ifs), &answer);
    cr_assert_str_eq(answer.names, "mlx5_0");
    cr_expect_eq(answer.nics[0].naddrs, 0);
}

/* ---- odd devices ---- */

Test(rdma_choice, soft_iwarp_is_no_roce)
{
    struct holmes_netif ifs[] = {
        world_netif("lo", HOLMES_NETIF_LOOPBACK, "127.0.0.1/8"),
        world_netif("docker0", HOLMES_NETIF_BRIDGE, "172.17.0.1/16"),
        world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.0.0.5/24"),
    };

    /* By its node type; by its GIDs, where the tree does not have one: none; a MAC address. */
    world_port(&ports[0], "siw_lo", 1, ETH, "- , -");
    world_port(&ports[1], "siw_docker0", 1, ETH, "242:ac11:1:: v1 docker0");
    world_port(&ports[2], "siw_eth0", 1, ETH, "5254:12:3456:: ?");
    world_port(&ports[3], "siw_eth1", 1, ETH, "::ffff:10.0.0.5 v2 eth0");
    for (int i = 0; i < 3; i++)
        ports[i].node_type = 0;
    ports[3].node_type = 4;
    world_rdma_over(ports, 4, rdma_nothing_asked, ifs, COUNT(ifs), &answer);
    cr_assert_eq(answer.rc, 0);
    cr_expect_str_eq(answer.names, "");
    rdma_expect_reason(&answer, 0, "its GID table is empty");
    rdma_expect_reason(&answer, 1, "no GID is an address");
    rdma_expect_reason(&answer, 2, "not RoCE");
    rdma_expect_reason(&answer, 3, "iWARP, not RoCE");
}

Test(rdma_choice, an_interface_that_leads_nowhere_carries_no_port)
{
    struct holmes_netif ifs[] = {
        world_netif("docker0", HOLMES_NETIF_BRIDGE, "172.17.0.1/16"),
        world_netif("lo", HOLMES_NETIF_LOOPBACK, "10.99.0.1/32"),
        world_netif("vmbr0", HOLMES_NETIF_BRIDGE, "10.0.0.5/24"),
        world_netif("va", HOLMES_NETIF_VETH, "10.5.0.1/24"),
    };
    struct holmes_rdma_request req = rdma_nothing_asked;

    ifs[2].uplink = true;
    world_port(&ports[0], "rxe0", 1, ETH, "::ffff:172.17.0.1 v2 docker0");
    world_port(&ports[1], "rxe1", 1, ETH, "::ffff:10.99.0.1 v2 lo");
    world_port(&ports[2], "rxe2", 1, ETH, "::ffff:10.0.0.5 v2 vmbr0");
    world_port(&ports[3], "rxe3", 1, ETH, "::ffff:10.5.0.1 v2 va");
    world_port(&ports[4], "rxe4", 1, ETH, "::ffff:172.18.0.1 v2 br-3b50");
    world_rdma_over(ports, 5, req, ifs, COUNT(ifs), &answer);
    cr_expect_str_eq(answer.names, "rxe2 rxe3");
    rdma_expect_reason(&answer, 0, "docker0 leads to no other host");
    rdma_expect_reason(&answer, 1, "lo leads to no other host");
    rdma_expect_reason(&answer, 4, "br-3b50 leads to no other host");
    req.hca = "rxe0";
    world_rdma_over(ports, 5, req, ifs, COUNT(ifs), &answer);
    cr_expect_str_eq(answer.names, "rxe0", "what is named is used");
}

Test(rdma_choice, an_unknown_link_layer_is_left_alone)
{
    world_port(&ports[0], "rdmap0s6", 1, HOLMES_LINK_UNKNOWN, "fe80::1 ?");
    world_port(&ports[1], "usnic_0", 1, ETH, "fe80::1 v1");
    world_port(&ports[2], "mlx5_0", 1, IB, "fe80::1");
    ports[0].node_type = 7;
    ports[1].node_type = 5;
    choose(3);
    cr_expect_str_eq(answer.names, "mlx5_0");
    rdma_expect_reason(&answer, 0, "neither InfiniBand nor Ethernet");
    rdma_expect_reason(&answer, 1, "neither an InfiniBand nor a RoCE adapter");
}

Test(rdma_choice, only_active_ports_are_used)
{
    static const int states[] = {0, 1, 2, 3, 5};

    for (int i = 0; i < COUNT(states); i++) {
        world_port(&ports[i], "mlx4_0", i + 1, IB, "fe80::1");
        ports[i].state = states[i];
    }
    ports[0].state_text[0] = '\0';
    choose(COUNT(states));
    cr_expect_str_eq(answer.names, "");
    rdma_expect_reason(&answer, 0, "port is not active (no state)");
    rdma_expect_reason(&answer, 4, "port is not active (");
}

struct opener {
    const char *good; /* device */
    int port;
    int asked;
};

static int opens(void *arg, const char *device, int port)
{
    struct opener *o = arg;

    o->asked++;
    return strcmp(device, o->good) == 0 && port == o->port ? 0 : -EPERM;
}

Test(rdma_choice, of_eight_functions_the_one_that_opens_is_used)
{
    struct opener opener = {.good = "mlx5_4", .port = 1};
    struct holmes_rdma_request req = rdma_nothing_asked;

    for (int i = 0; i < 8; i++) {
        char name[16];

        snprintf(name, sizeof name, "mlx5_%d", i);
        world_port(&ports[i], name, 1, IB, "fe80::1");
    }
    world_port(&ports[8], "mlx5_8", 1, IB, "fe80::1");
    ports[8].state = 1;
    req.open_error = opens;
    req.arg = &opener;
    world_rdma(ports, 9, req, &answer);
    cr_expect_str_eq(answer.names, "mlx5_4");
    rdma_expect_reason(&answer, 0, "cannot be opened: Operation not permitted");
    rdma_expect_reason(&answer, 7, "cannot be opened: Operation not permitted");
    rdma_expect_reason(&answer, 8, "not active");
    cr_expect_eq(opener.asked, 8, "a port that is not wanted was opened");
}

Test(rdma_choice, one_port_of_a_device_may_open_and_the_other_not)
{
    struct opener opener = {.good = "mlx4_0", .port = 2};
    struct holmes_rdma_request req = rdma_nothing_asked;

    world_port(&ports[0], "mlx4_0", 1, IB, "fe80::1");
    world_port(&ports[1], "mlx4_0", 2, IB, "fe80::2");
    req.open_error = opens;
    req.arg = &opener;
    world_rdma(ports, 2, req, &answer);
    cr_expect_str_eq(answer.names, "mlx4_0");
    cr_expect_eq(answer.nics[0].rdma.port, 2);
    cr_expect_eq(opener.asked, 2);
    rdma_expect_reason(&answer, 0, "cannot be opened");
}

/* ---- order, names, places ---- */

Test(rdma_choice, ports_come_in_the_order_of_their_pci_functions)
{
    static const struct {
        const char *device, *pci;
    } rows[] = {
        {"mlx5_0", "0000:c8:00.0"},
        {"mlx5_1", "0000:1b:00.1"},
        {"mlx5_2", "0000:1b:00.0"},
        {"mlx5_3", "10000:01:00.0"},
        {"mlx5_4", ""},
        {"mlx5_5", "0000:0a:1f.7"},
        {"mlx5_10", "0001:00:00.0"},
        {"mlx5_11", ""},
    };

    for (int i = 0; i < COUNT(rows); i++) {
        world_port(&ports[i], rows[i].device, 1, IB, "fe80::1");
        if (*rows[i].pci)
            at(&ports[i], rows[i].pci);
    }
    choose(COUNT(rows));
    cr_expect_str_eq(answer.names, "mlx5_5 mlx5_2 mlx5_1 mlx5_0 mlx5_10 mlx5_3 mlx5_4 mlx5_11");
}

Test(rdma_choice, the_port_is_in_the_name_where_several_are_used)
{
    world_port(&ports[0], "mlx4_0", 1, IB, "fe80::1");
    world_port(&ports[1], "mlx4_0", 2, ETH, "::ffff:10.0.0.5 v2");
    world_port(&ports[2], "mlx4_1", 1, IB, "fe80::1");
    world_port(&ports[3], "mlx4_1", 2, IB, "fe80::1");
    ports[2].state = 1;
    choose(4);
    cr_expect_str_eq(answer.names, "mlx4_0:1 mlx4_0:2 mlx4_1");
    cr_expect_str_eq(answer.nics[2].rdma.device, "mlx4_1");
    cr_expect_eq(answer.nics[2].rdma.port, 2);
}

Test(rdma_choice, pci_paths_are_merged_as_nccl_merges_them)
{
    struct holmes_rdma_request req = rdma_nothing_asked;

    world_port(&ports[0], "mlx5_0", 1, IB, "fe80::1");
    world_port(&ports[1], "mlx5_1", 1, IB, "fe80::2");
    at(&ports[0], "0000:3b:00.1");
    at(&ports[1], "0000:3b:02.3");
    choose(2);
    cr_expect_str_eq(answer.nics[0].pci_path, "/sys/devices/pci0000:00/0000:3b:00.0");
    cr_expect_str_eq(answer.nics[1].pci_path, "/sys/devices/pci0000:00/0000:3b:00.0");
    req.keep_vfs = true;
    world_rdma(ports, 2, req, &answer);
    cr_expect_str_eq(answer.nics[0].pci_path, "/sys/devices/pci0000:00/0000:3b:00.0");
    cr_expect_str_eq(answer.nics[1].pci_path, "/sys/devices/pci0000:00/0000:3b:02.0");
}

/* Software devices have no function of their own; the interface below them may have one. */
Test(rdma_choice, a_software_device_is_where_its_interface_is)
{
    struct holmes_netif ifs[] = {world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.0.0.5/24")};

    snprintf(ifs[0].pci_path, sizeof ifs[0].pci_path, "/sys/devices/pci0000:00/0000:00:04.0");
    ifs[0].numa_node = 1;
    world_port(&ports[0], "rxe0", 1, ETH, "fe80::5 v2 eth0, ::ffff:10.0.0.5 v2 eth0");
    world_rdma_over(ports, 1, rdma_nothing_asked, ifs, 1, &answer);
    cr_assert_str_eq(answer.names, "rxe0");
    cr_expect_str_eq(answer.nics[0].pci_path, "/sys/devices/pci0000:00/0000:00:04.0");
    cr_expect_eq(answer.nics[0].numa_node, 1);
}

Test(rdma_choice, thirty_two_ports_are_enough)
{
    for (int i = 0; i < 35; i++) {
        char name[16];

        snprintf(name, sizeof name, "mlx5_%d", i);
        world_port(&ports[i], name, 1, IB, "fe80::1");
    }
    choose(35);
    cr_expect_eq(answer.nnics, HOLMES_RDMA_PORTS_MAX);
    rdma_expect_reason(&answer, 34, "more than 32 ports");
}

Test(rdma_choice, gpu_memory_goes_by_the_hosts_peer_memory)
{
    world_port(&ports[0], "mlx5_0", 1, IB, "fe80::1");
    choose(1);
    cr_expect(!answer.nics[0].rdma.cuda);
    ports[0].peer_memory = true;
    choose(1);
    cr_expect(answer.nics[0].rdma.cuda);
}
