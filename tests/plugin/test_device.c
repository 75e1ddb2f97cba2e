/* What NCCL is shown for a NIC. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "plugin/device.h"

static struct holmes_nic rdma_nic(const char *name, const char *pci, uint64_t guid, int port)
{
    struct holmes_nic nic = {.speed_mbps = 400000, .numa_node = -1};

    snprintf(nic.name, sizeof nic.name, "%s", name);
    snprintf(nic.pci_path, sizeof nic.pci_path, "%s", pci);
    nic.rdma.guid = guid;
    nic.rdma.port = (uint8_t)port;
    return nic;
}

static void describe_all(const struct holmes_nic *nics, int n, struct holmes_plugin_device *out)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(holmes_plugin_describe(&nics[i], HOLMES_MEMORY_HOST, out, i, &out[i]), 0);
}

Test(device, an_rdma_port_has_its_adapters_guid)
{
    struct holmes_nic nic = rdma_nic("mlx5_0", "/sys/x/0000:3b:00.0", 0xe8ebd303003307da, 1);
    struct holmes_plugin_device d = {0};

    describe_all(&nic, 1, &d);
    cr_expect_str_eq(d.name, "mlx5_0");
    cr_expect_str_eq(d.pci_path, "/sys/x/0000:3b:00.0");
    cr_expect_eq(d.guid, 0xe8ebd303003307da);
    cr_expect_eq(d.port, 1);
    cr_expect_eq(d.speed_mbps, 400000);
}

/* Dual-port adapters, one with a device for each port, one with both ports in a device, and both
 * kinds at once: bandwidth is shared out by guid and port. */
Test(device, ports_of_one_adapter_never_look_like_one_port)
{
    struct holmes_nic nics[] = {
        rdma_nic("mlx5_0", "/sys/x/0000:3b:00.0", 7, 1),
        rdma_nic("mlx5_1", "", 7, 1),
        rdma_nic("mlx4_0:1", "", 8, 1),
        rdma_nic("mlx4_0:2", "", 8, 2),
        rdma_nic("mlx4_1:1", "", 8, 1),
        rdma_nic("mlx4_1:2", "", 8, 2),
        rdma_nic("mlx5_9", "", 9, 1),
    };
    static const int ports[] = {1, 2, 1, 2, 3, 4, 1};
    struct holmes_plugin_device d[7] = {0};

    describe_all(nics, 7, d);
    for (int i = 0; i < 7; i++) {
        cr_expect_eq(d[i].port, ports[i], "%s shows port %d", d[i].name, d[i].port);
        cr_expect_eq(d[i].guid, nics[i].rdma.guid);
    }
}

Test(device, ethernet_nics_are_told_apart_by_their_place)
{
    struct holmes_nic nics[] = {
        rdma_nic("eth0", "/sys/x/0000:3b:00.0", 0, 0),
        rdma_nic("eth0.7", "/sys/x/0000:3b:00.0", 0, 0),
        rdma_nic("br0", "", 0, 0),
    };
    struct holmes_plugin_device d[3] = {0};

    nics[2].speed_mbps = 0;
    describe_all(nics, 3, d);
    cr_expect_eq(d[0].guid, d[1].guid, "a VLAN ends in its interface's adapter");
    cr_expect_neq(d[0].guid, d[2].guid);
    cr_expect_null(d[2].pci_path);
    cr_expect_eq(d[2].speed_mbps, 10000, "NCCL's guess");
    for (int i = 0; i < 3; i++)
        cr_expect_eq(d[i].port, 0);
}

Test(device, texts_are_kept_once)
{
    struct holmes_nic nic = rdma_nic("mlx5_0", "/sys/x/0000:3b:00.0", 7, 1);
    struct holmes_plugin_device a = {0}, b = {0};

    describe_all(&nic, 1, &a);
    describe_all(&nic, 1, &b);
    cr_expect_eq(a.name, b.name);
    cr_expect_eq(a.pci_path, b.pci_path);
}
