/* NCCL_SOCKET_IFNAME: what each form selects, and what is refused. */
#include <errno.h>

#include "netif_world.h"

/* The host of the public reports: two addresses of one bond, a container bridge, one port. */
static struct world_answer ask(const char *ifname)
{
    struct holmes_netif ifs[5];

    ifs[0] = world_netif("lo", HOLMES_NETIF_LOOPBACK, "127.0.0.1/8 ::1/128");
    ifs[1] = world_netif("docker0", HOLMES_NETIF_BRIDGE, "172.17.0.1/16");
    ifs[2] = world_netif("bond0", HOLMES_NETIF_BOND, "10.1.0.5/24");
    ifs[3] = world_netif("bond0.1098", HOLMES_NETIF_VLAN, "10.9.0.5/24");
    ifs[4] = world_netif("eno1", HOLMES_NETIF_PHYSICAL, "192.168.7.5/24");
    return world_choose(ifs, 5, (struct holmes_netif_request){.ifname = ifname});
}

static void expect(const char *ifname, const char *names)
{
    struct world_answer a = ask(ifname);

    cr_assert_eq(a.rc, 0, "%s: %s", ifname, a.why);
    cr_assert_str_eq(a.names, names, "%s gave \"%s\"", ifname, a.names);
}

static void expect_refused(const char *ifname, const char *needle)
{
    struct world_answer a = ask(ifname);
    char quoted[128];

    snprintf(quoted, sizeof quoted, "\"%s\"", ifname);
    cr_assert_eq(a.rc, -EINVAL, "\"%s\" was taken: %s", ifname, a.names);
    cr_assert(strstr(a.why, quoted), "\"%s\" does not name the value %s", a.why, quoted);
    cr_assert(strstr(a.why, needle), "\"%s\" lacks \"%s\"", a.why, needle);
    cr_assert(strstr(a.why, "lo, docker0, bond0, bond0.1098, eno1"),
              "\"%s\" does not say what exists", a.why);
}

Test(ifname_list, a_name_is_a_prefix)
{
    expect("bond0", "bond0 bond0.1098");
    expect("bond0.", "bond0.1098");
    expect("e", "eno1");
}

Test(ifname_list, equals_sign_asks_for_the_exact_name)
{
    expect("=bond0", "bond0");
    expect("=bond0,eno1", "bond0 eno1");
    expect_refused("=bond", "fits no usable interface");
}

Test(ifname_list, caret_excludes_and_never_leads_to_loopback)
{
    expect("^docker0", "bond0 bond0.1098 eno1");
    expect("^docker,bond0", "eno1");
    expect("^=bond0", "bond0.1098 eno1");
}

Test(ifname_list, exclusion_falls_back_by_class_when_nothing_else_is_left)
{
    expect("^eno1,bond0", "docker0");
    expect("^eno1,bond0,docker", "lo");
    expect_refused("^eno1,bond0,docker,lo", "leaves no usable interface");
}

Test(ifname_list, names_that_fit_nothing_do_no_harm_beside_one_that_does)
{
    expect("eno1,eth0", "eno1");
    expect(",,eno1,", "eno1");
}

Test(ifname_list, the_users_order_is_kept)
{
    expect("eno1,bond0", "eno1 bond0 bond0.1098");
}

Test(ifname_list, a_port_behind_a_name_is_ignored)
{
    expect("eno1:1", "eno1");
    expect("=bond0:8,eno1:2", "bond0 eno1");
}

Test(ifname_list, what_is_named_is_used_whatever_it_is)
{
    expect("lo", "lo");
    expect("docker0,lo", "docker0 lo");
}

Test(ifname_list, unset_and_empty_are_the_default)
{
    expect("", "bond0 bond0.1098 eno1");
    expect_refused("eth2", "fits no usable interface");
}

Test(ifname_list, refuses_a_list_without_a_name)
{
    expect_refused("=", "names no interface");
    expect_refused("^", "names no interface");
    expect_refused("^=", "names no interface");
    expect_refused(",", "names no interface");
}

Test(ifname_list, refuses_a_modifier_inside_the_list)
{
    expect_refused("^=eno1,^=bond0", "^=bond0");
    expect_refused("=^eno1", "^eno1");
}

Test(ifname_list, refuses_more_names_than_nccl_takes)
{
    expect_refused("a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "more than 16");
}

Test(ifname_list, names_a_down_interface_as_down)
{
    struct holmes_netif ifs[2];
    struct world_answer a;

    ifs[0] = world_netif("eth1", HOLMES_NETIF_PHYSICAL, "10.0.0.1/24");
    ifs[0].flags = 0;
    ifs[1] = world_netif("eth2", HOLMES_NETIF_PHYSICAL, "10.0.1.1/24");
    ifs[1].flags = IFF_UP;
    a = world_choose(ifs, 2, (struct holmes_netif_request){.ifname = "eth"});
    cr_assert_eq(a.rc, -EINVAL);
    cr_assert(strstr(a.why, "eth1 (is down), eth2 (has no carrier)"), "%s", a.why);
}
