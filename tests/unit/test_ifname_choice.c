/* Which interfaces are used when nobody names any, and in which order. */
#include <errno.h>

#include "netif_world.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
static const struct holmes_netif_request nothing_asked;

static void expect_reason(const struct world_answer *a, int i, const char *needle)
{
    cr_assert(!a->verdicts[i].used);
    cr_assert(strstr(a->verdicts[i].reason, needle), "interface %d: \"%s\" lacks \"%s\"", i,
              a->verdicts[i].reason, needle);
}

Test(ifname_choice, a_cable_beats_everything_virtual)
{
    struct holmes_netif ifs[] = {
        world_netif("lo", HOLMES_NETIF_LOOPBACK, "127.0.0.1/8"),
        world_netif("docker0", HOLMES_NETIF_BRIDGE, "172.17.0.1/16"),
        world_netif("br-3b50", HOLMES_NETIF_BRIDGE, "172.18.0.1/16"),
        world_netif("virbr0", HOLMES_NETIF_BRIDGE, "192.168.122.1/24"),
        world_netif("veth3f2a", HOLMES_NETIF_VETH, "169.254.3.4/16"),
        world_netif("vnet0", HOLMES_NETIF_TUNNEL, "fe80::1/64"),
        world_netif("tailscale0", HOLMES_NETIF_TUNNEL, "100.101.102.103/32"),
        world_netif("wlp2s0", HOLMES_NETIF_WIRELESS, "192.168.1.7/24"),
        world_netif("enp28s0", HOLMES_NETIF_PHYSICAL, "10.0.0.5/24"),
    };
    struct world_answer a = world_choose(ifs, COUNT(ifs), nothing_asked);

    cr_assert_str_eq(a.names, "enp28s0");
    expect_reason(&a, 0, "loopback; there is ethernet");
    expect_reason(&a, 1, "guests");
    expect_reason(&a, 4, "link-local");
    expect_reason(&a, 6, "tunnel");
    expect_reason(&a, 7, "wireless");
}

/* Removing the best of a list shows the next: each class is used only where no better one is. */
Test(ifname_choice, classes_follow_one_another)
{
    struct holmes_netif ifs[] = {
        world_netif("bond1", HOLMES_NETIF_BOND, "10.0.0.5/24"),
        world_netif("eth0", HOLMES_NETIF_VETH, "10.244.0.9/24"),
        world_netif("wlp2s0", HOLMES_NETIF_WIRELESS, "192.168.1.7/24"),
        world_netif("ib0", HOLMES_NETIF_IPOIB, "10.11.0.5/24"),
        world_netif("wg0", HOLMES_NETIF_TUNNEL, "100.64.0.9/32"),
        world_netif("docker0", HOLMES_NETIF_BRIDGE, "172.17.0.1/16"),
        world_netif("usb0", HOLMES_NETIF_PHYSICAL, "169.254.3.1/16"),
        world_netif("lo", HOLMES_NETIF_LOOPBACK, "127.0.0.1/8"),
    };

    for (int i = 0; i < COUNT(ifs); i++) {
        struct world_answer a = world_choose(ifs + i, COUNT(ifs) - i, nothing_asked);

        cr_assert_str_eq(a.names, ifs[i].name, "without the %d best: %s", i, a.names);
    }
}

Test(ifname_choice, link_local_is_no_address_for_a_peer)
{
    struct holmes_netif ifs[] = {
        world_netif("pod-id-link0", HOLMES_NETIF_PHYSICAL, "169.254.170.23/32"),
        world_netif("enp73s0", HOLMES_NETIF_PHYSICAL, "10.1.216.156/20"),
    };
    struct world_answer a = world_choose(ifs, COUNT(ifs), nothing_asked);

    cr_assert_str_eq(a.names, "enp73s0");
}

Test(ifname_choice, ip_over_infiniband_yields_to_ethernet)
{
    struct holmes_netif ifs[] = {
        world_netif("ib0", HOLMES_NETIF_IPOIB, "10.11.0.5/24"),
        world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.0.0.5/24"),
    };
    struct world_answer a = world_choose(ifs, COUNT(ifs), nothing_asked);

    cr_assert_str_eq(a.names, "eth0");
    expect_reason(&a, 0, "InfiniBand");
}

Test(ifname_choice, a_bridge_over_a_port_is_the_hosts_own)
{
    struct holmes_netif ifs[] = {
        world_netif("eno1", HOLMES_NETIF_PHYSICAL, ""),
        world_netif("vmbr0", HOLMES_NETIF_BRIDGE, "10.0.0.5/24"),
        world_netif("vmbr1", HOLMES_NETIF_BRIDGE, "10.77.0.1/24"),
    };
    struct world_answer a;

    ifs[1].uplink = true;
    a = world_choose(ifs, COUNT(ifs), nothing_asked);
    cr_assert_str_eq(a.names, "vmbr0");
    expect_reason(&a, 0, "no address");
}

Test(ifname_choice, several_ports_are_all_used)
{
    struct holmes_netif ifs[] = {
        world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.1.0.5/24"),
        world_netif("eth1", HOLMES_NETIF_PHYSICAL, "10.9.0.5/24"),
    };
    struct world_answer a = world_choose(ifs, COUNT(ifs), nothing_asked);

    cr_assert_str_eq(a.names, "eth0 eth1");
}

Test(ifname_choice, comm_id_points_at_its_interface)
{
    struct holmes_netif ifs[] = {
        world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.1.0.5/24"),
        world_netif("eth1", HOLMES_NETIF_PHYSICAL, "10.9.0.5/20 fd00:9::5/64"),
        world_netif("tailscale0", HOLMES_NETIF_TUNNEL, "100.101.0.5/16"),
        world_netif("lo", HOLMES_NETIF_LOOPBACK, "127.0.0.1/8"),
    };
    static const char *const ids[][2] = {
        {"10.9.15.6:4000", "eth1 eth0"},   {"10.9.16.6:4000", "eth0 eth1"},
        {"[fd00:9::7]:4000", "eth1 eth0"}, {"100.101.0.9:4000", "tailscale0 eth0 eth1"},
        {"127.0.0.1:4000", "eth0 eth1"},   {"master.example:4000", "eth0 eth1"},
    };

    for (int i = 0; i < COUNT(ids); i++) {
        struct world_answer a =
            world_choose(ifs, COUNT(ifs), (struct holmes_netif_request){.comm_id = ids[i][0]});

        cr_assert_str_eq(a.names, ids[i][1], "%s gave \"%s\"", ids[i][0], a.names);
    }
}

Test(ifname_choice, addresses_come_best_first)
{
    struct holmes_netif ifs[] = {
        world_netif("eth0", HOLMES_NETIF_PHYSICAL,
                    "169.254.9.9/16 fe80::5/64 fd00::5/64 10.1.0.5/24 10.2.0.5/24"),
    };
    struct world_answer a = world_choose(ifs, COUNT(ifs), nothing_asked);
    char text[64];

    cr_assert_eq(a.nics[0].naddrs, 3, "link-local ones beside routable ones");
    cr_assert_str_eq(holmes_addr_text(&a.nics[0].addrs[0], text, sizeof text), "10.1.0.5");
    cr_assert_str_eq(holmes_addr_text(&a.nics[0].addrs[1], text, sizeof text), "10.2.0.5");
    cr_assert_str_eq(holmes_addr_text(&a.nics[0].addrs[2], text, sizeof text), "fd00::5");
    cr_assert_eq(a.nics[0].addrs[0].prefix_len, 24);
}

Test(ifname_choice, family_filters_addresses_and_interfaces)
{
    struct holmes_netif ifs[] = {
        world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.1.0.5/24 fd00::5/64"),
        world_netif("eth1", HOLMES_NETIF_PHYSICAL, "10.9.0.5/24"),
        world_netif("lo", HOLMES_NETIF_LOOPBACK, "127.0.0.1/8 ::1/128"),
    };
    struct world_answer a;
    char text[64];

    a = world_choose(ifs, COUNT(ifs), (struct holmes_netif_request){.family = "AF_INET6"});
    cr_assert_str_eq(a.names, "eth0");
    cr_assert_eq(a.nics[0].naddrs, 1);
    cr_assert_str_eq(holmes_addr_text(&a.nics[0].addrs[0], text, sizeof text), "fd00::5");
    expect_reason(&a, 1, "no IPv6 address");
    expect_reason(&a, 2, "no IPv6 address");
    a = world_choose(ifs, COUNT(ifs), (struct holmes_netif_request){.family = "inet6"});
    cr_assert_str_eq(a.names, "eth0 eth1", "NCCL ignores other words");
    a = world_choose(ifs + 1, 2, (struct holmes_netif_request){.family = "AF_INET6"});
    cr_assert_eq(a.rc, -ENODEV);
    cr_assert(strstr(a.why, "AF_INET6"), "%s", a.why);
    cr_assert(strstr(a.why, "eth1 (has no IPv6 address)"), "%s", a.why);
}

Test(ifname_choice, a_host_without_any_interface_says_so)
{
    struct world_answer a = world_choose(NULL, 0, nothing_asked);

    cr_assert_eq(a.rc, -ENODEV);
    cr_assert(strstr(a.why, "none"), "%s", a.why);
}

Test(ifname_choice, at_most_sixteen_are_used)
{
    struct holmes_netif ifs[20];
    struct world_answer a;

    for (int i = 0; i < 20; i++) {
        char name[16], addr[32];

        snprintf(name, sizeof name, "eth%d", i);
        snprintf(addr, sizeof addr, "10.%d.0.5/24", i);
        ifs[i] = world_netif(name, HOLMES_NETIF_PHYSICAL, addr);
    }
    a = world_choose(ifs, 20, nothing_asked);
    cr_assert_eq(a.nnics, HOLMES_NETIFS_MAX);
    expect_reason(&a, 16, "more than 16");
}
