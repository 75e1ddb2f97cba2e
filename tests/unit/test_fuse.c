/* The description of a device made of several. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "topology.h"

static struct holmes_nic member(const char *name, enum holmes_link_layer layer, uint32_t speed)
{
    struct holmes_nic nic = {.speed_mbps = speed, .numa_node = 1};

    snprintf(nic.name, sizeof nic.name, "%s", name);
    snprintf(nic.pci_path, sizeof nic.pci_path, "/sys/%s", name);
    snprintf(nic.rdma.device, sizeof nic.rdma.device, "%s", name);
    nic.rdma.port = layer == HOLMES_LINK_UNKNOWN ? 0 : 1;
    nic.rdma.link_layer = (uint8_t)layer;
    return nic;
}

static int fuse(const struct holmes_nic *nics, int n, struct holmes_nic *out, char *why)
{
    const struct holmes_nic *members[8];

    for (int i = 0; i < n; i++)
        members[i] = &nics[i];
    why[0] = '\0';
    return holmes_nics_fuse(members, n, out, why, 256);
}

Test(fuse, names_are_joined_and_speeds_added)
{
    struct holmes_nic nics[] = {
        member("mlx5_0", HOLMES_LINK_ETHERNET, 100000),
        member("mlx5_1", HOLMES_LINK_ETHERNET, 25000),
        member("mlx4_0:1", HOLMES_LINK_ETHERNET, 0),
        member("mlx4_0:2", HOLMES_LINK_ETHERNET, 40000),
    };
    struct holmes_nic out;
    char why[256];

    cr_assert_eq(fuse(nics, 4, &out, why), 0, "%s", why);
    cr_expect_str_eq(out.name, "mlx5_0+mlx5_1+mlx4_0:1+mlx4_0:2");
    cr_expect_eq(out.speed_mbps, 165000);
    cr_expect_str_eq(out.pci_path, "/sys/mlx5_0");
    cr_expect_str_eq(out.rdma.device, "mlx5_0");
    cr_expect_eq(out.numa_node, 1);
    cr_assert_eq(fuse(nics, 2, &out, why), 0, "%s", why);
    cr_expect_str_eq(out.name, "mlx5_0+mlx5_1");
}

Test(fuse, ethernet_nics_make_one_too)
{
    struct holmes_nic nics[] = {member("eth0", HOLMES_LINK_UNKNOWN, 1000),
                                member("eth1", HOLMES_LINK_UNKNOWN, 3000)};
    struct holmes_nic out;
    char why[256];

    cr_assert_eq(fuse(nics, 2, &out, why), 0, "%s", why);
    cr_expect_str_eq(out.name, "eth0+eth1");
    cr_expect_eq(out.speed_mbps, 4000);
    cr_expect_eq(out.rdma.port, 0);
}

static void expect_refused(const struct holmes_nic *nics, int n, const char *needle)
{
    struct holmes_nic out = {.speed_mbps = 77};
    char why[256];

    cr_expect_eq(fuse(nics, n, &out, why), -EINVAL, "%s was fused", needle);
    cr_expect(strstr(why, needle), "\"%s\" lacks \"%s\"", why, needle);
    cr_expect_eq(out.speed_mbps, 77, "something was written");
}

Test(fuse, members_that_cannot_be_one_are_refused)
{
    struct holmes_nic ib = member("mlx5_0", HOLMES_LINK_INFINIBAND, 1);
    struct holmes_nic roce = member("mlx5_1", HOLMES_LINK_ETHERNET, 1);
    struct holmes_nic eth = member("eth0", HOLMES_LINK_UNKNOWN, 1);
    struct holmes_nic ib2 = member("mlx5_2", HOLMES_LINK_INFINIBAND, 1);

    expect_refused((struct holmes_nic[]){ib, eth}, 2, "one of mlx5_0 and eth0 is an RDMA port");
    expect_refused((struct holmes_nic[]){eth, ib}, 2, "one of eth0 and mlx5_0 is an RDMA port");
    expect_refused((struct holmes_nic[]){eth, eth}, 2, "eth0 is there twice");
    expect_refused((struct holmes_nic[]){ib, roce}, 2, "mlx5_0 is InfiniBand and mlx5_1 is RoCE");
    expect_refused((struct holmes_nic[]){ib, ib2, ib}, 3, "mlx5_0 is there twice");
    expect_refused(&ib, 1, "2 to 4 devices are fused, not 1");
    expect_refused(&ib, 0, "not 0");
    expect_refused((struct holmes_nic[]){ib, ib2, ib, ib, ib}, 5, "not 5");
    expect_refused(&ib, -1, "not -1");
}

Test(fuse, a_name_that_does_not_fit_is_refused)
{
    struct holmes_nic nics[] = {
        member("a_device_with_a_long_name_0:100", HOLMES_LINK_ETHERNET, 1),
        member("a_device_with_a_long_name_1:100", HOLMES_LINK_ETHERNET, 1),
        member("b", HOLMES_LINK_ETHERNET, 1),
    };
    struct holmes_nic out;
    char why[256];

    cr_assert_eq(fuse(nics, 2, &out, why), 0, "63 characters fit: %s", why);
    cr_expect_eq(strlen(out.name), HOLMES_NIC_NAME_MAX - 1);
    expect_refused(nics, 3, "longer than 63 characters");
}
