/* The collector, against interfaces made in a network namespace of this test's own. */
#include <criterion/criterion.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "topology.h"
#include "topology/sysfs.h"

static void run(const char *command)
{
    cr_assert_eq(system(command), 0, "%s", command);
}

/* A namespace with its own /sys, so that sysfs shows the interfaces in it. */
static void enter_namespace(void)
{
    if (geteuid() != 0)
        cr_skip("network namespaces need root");
    cr_assert_eq(unshare(CLONE_NEWNET | CLONE_NEWNS), 0);
    cr_assert_eq(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    cr_assert_eq(mount("sysfs", "/sys", "sysfs", 0, NULL), 0);
}

static const struct holmes_netif *find(const struct holmes_netif *ifs, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(ifs[i].name, name) == 0)
            return &ifs[i];
    }
    cr_assert_fail("no interface %s", name);
    return NULL;
}

Test(ifname_collect, tells_kinds_flags_and_addresses)
{
    struct holmes_netif *ifs;
    const struct holmes_netif *nif;
    int n;

    enter_namespace();
    run("ip link set lo up && ip link add va type veth peer name vb && ip link set va up && "
        "ip link set vb up && ip addr add 10.77.1.1/24 dev va && "
        "ip addr add 10.77.2.1/28 dev va label va:1 && ip -6 addr add fd77::1/64 dev va nodad && "
        "ip tuntap add tu0 mode tun && ip link add b0 type bridge");
    cr_assert_eq(holmes_netif_collect("/sys", &ifs, &n), 0);

    nif = find(ifs, n, "lo");
    cr_assert_eq(nif->kind, HOLMES_NETIF_LOOPBACK);
    nif = find(ifs, n, "va");
    cr_assert_eq(nif->kind, HOLMES_NETIF_VETH);
    cr_assert(nif->flags & IFF_RUNNING);
    cr_assert_eq(nif->arp_type, ARPHRD_ETHER);
    cr_assert_eq(nif->speed_mbps, 10000, "speed of a veth is %u", nif->speed_mbps);
    cr_assert_str_eq(nif->pci_path, "");
    cr_assert_geq(nif->naddrs, 3, "a label is an interface of its own");
    cr_assert_eq(nif->addrs[0].prefix_len, 24);
    cr_assert_eq(nif->addrs[1].prefix_len, 28);
    nif = find(ifs, n, "tu0");
    cr_assert_eq(nif->kind, HOLMES_NETIF_TUNNEL);
    cr_assert(!(nif->flags & IFF_UP));
    nif = find(ifs, n, "b0");
    cr_assert_eq(nif->kind, HOLMES_NETIF_BRIDGE);
    cr_assert(!nif->uplink, "a bridge without a physical port");
    cr_assert_eq(nif->naddrs, 0);
    free(ifs);
}

Test(ifname_collect, a_sys_of_another_namespace_is_not_believed)
{
    struct holmes_netif *ifs;
    int n;

    if (geteuid() != 0)
        cr_skip("network namespaces need root");
    /* /sys stays the old namespace's. The new eth0 gets an index that is not the old one's. */
    cr_assert_eq(unshare(CLONE_NEWNET), 0);
    run("ip link add eth0 index 4711 type veth peer name peer0");
    cr_assert_eq(holmes_netif_collect("/sys", &ifs, &n), 0);
    cr_assert_eq(find(ifs, n, "eth0")->kind, HOLMES_NETIF_OTHER);
    free(ifs);
}

Test(ifname_collect, discovery_obeys_the_environment)
{
    struct holmes_nics found;

    enter_namespace();
    run("ip link set lo up && ip link add va type veth peer name vb && ip link set va up && "
        "ip link set vb up && ip addr add 10.77.1.1/24 dev va && ip addr add 10.77.2.1/24 dev vb");
    unsetenv("NCCL_SOCKET_IFNAME");
    cr_assert_eq(holmes_nics_discover("/sys", NULL, NULL, &found), 0);
    cr_assert_eq(found.n, 2);
    cr_assert_eq(found.nshown, 2);
    setenv("NCCL_SOCKET_IFNAME", "=vb", 1);
    cr_assert_eq(holmes_nics_discover("/sys", NULL, NULL, &found), 0);
    cr_assert_eq(found.n, 1);
    cr_assert_str_eq(found.nics[0].name, "vb");
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    cr_assert_eq(holmes_nics_discover("/sys", NULL, NULL, &found), 0);
    cr_assert_str_eq(found.nics[0].name, "lo");
    cr_assert_eq(found.nics[0].addrs[0].in.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
}

/* A recorded tree: an adapter behind virtio. */
Test(ifname_collect, finds_the_pci_function_below_a_device)
{
    char root[] = "/tmp/holmes-sysfs-XXXXXX", command[512], pci[256], want[256];
    int64_t v;

    cr_assert_not_null(mkdtemp(root));
    snprintf(command, sizeof command,
             "cd %s && mkdir -p devices/pci0000:00/0000:00:04.0/virtio1/net/eth0 class/net && "
             "ln -s ../../devices/pci0000:00/0000:00:04.0/virtio1/net/eth0 class/net/eth0 && "
             "ln -s ../../../virtio1 devices/pci0000:00/0000:00:04.0/virtio1/net/eth0/device && "
             "echo -1 > class/net/eth0/speed && echo x > class/net/eth0/mtu",
             root);
    run(command);
    cr_assert_eq(sysfs_pci_path(root, "class/net/eth0/device", pci, sizeof pci), 0);
    snprintf(want, sizeof want, "%s/devices/pci0000:00/0000:00:04.0", root);
    cr_assert_str_eq(pci, want);
    cr_assert_eq(sysfs_read_int(root, "class/net/eth0/speed", &v), 0);
    cr_assert_eq(v, -1);
    cr_assert_neq(sysfs_read_int(root, "class/net/eth0/mtu", &v), 0);
    cr_assert_neq(sysfs_read_int(root, "class/net/eth0/absent", &v), 0);
    cr_assert_neq(sysfs_pci_path(root, "class/net", pci, sizeof pci), 0);
    snprintf(command, sizeof command, "rm -r %s", root);
    run(command);
}
