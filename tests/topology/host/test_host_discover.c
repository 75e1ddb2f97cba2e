/* Looking at recorded machines: what is told of them, and that nothing of this machine gets in. */
#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include "../../unit/sysfs_tree.h"
#include "recorded.h"
#include "topology/host/pci.h"

static enum holmes_path distance(const struct holmes_host *h, int gpu, const char *nic)
{
    for (int i = 0; i < h->nnics; i++)
        if (strcmp(h->nics[i].name, nic) == 0)
            return h->distance[gpu * h->nnics + i];
    cr_assert(false, "no NIC %s", nic);
    return HOLMES_PATH_UNKNOWN;
}

Test(host_discover, tells_all_of_an_infiniband_node)
{
    struct recorded r = recorded_build("ib-h100", 2);
    struct holmes_host *h = discover_ok(r.root);
    const struct holmes_host_port *p = find_port(h, "mlx5_5");
    char buf[64];

    cr_expect_str_eq(h->hostname, "a2");
    cr_expect_eq(h->source, HOLMES_HOST_RECORDED);
    cr_expect_float_eq(h->memory_gib, 2048, 0.01);
    cr_assert_eq(h->ncpus, 2);
    cr_expect_str_eq(h->cpus[1].affinity, "ffffffff,ff000000,00000000,00000000");
    cr_expect_str_eq(h->cpus[0].vendor, "GenuineIntel");
    cr_expect_eq(h->cpus[0].model, 143);

    cr_expect(p->verdict.used && p->told);
    cr_expect_eq(p->seen.link_layer, HOLMES_LINK_INFINIBAND);
    cr_expect_eq(p->seen.speed_mbps, 400000);
    cr_expect_eq(p->seen.lid, 132);
    cr_expect_str_eq(p->seen.pci_path, "0000:49:00.0");
    cr_expect_eq(p->seen.numa_node, 0);
    cr_expect_str_eq(holmes_host_prefix(p, buf, sizeof buf), "fec0:0:0:a");
    cr_assert_eq(p->nic, 3);
    cr_expect_str_eq(h->chosen.nics[3].pci_path,
                     "/sys/devices/pci0000:45/0000:45:01.0/0000:46:00.0/0000:47:01.0/0000:49:00.0");
    p = find_port(h, "mlx5_bond_0");
    cr_expect_not(p->verdict.used);
    cr_expect(strstr(p->verdict.reason, "GID table is empty"), "%s", p->verdict.reason);
    cr_expect_null(holmes_host_prefix(p, buf, sizeof buf));

    cr_expect_str_eq(h->gpus[7].address, "0000:c8:00.0");
    cr_expect_str_eq(h->gpus[7].name, "NVIDIA H100 80GB HBM3");
    cr_expect_str_eq(h->gpus[7].vendor_name, "NVIDIA");
    cr_expect_float_eq(h->gpus[7].memory_gib, 80, 0.01);
    cr_expect_eq(h->gpus[7].numa_node, 1);
    cr_expect_eq(distance(h, 0, "mlx5_0"), HOLMES_PATH_PIX);
    cr_expect_eq(distance(h, 0, "mlx5_1"), HOLMES_PATH_NODE);
    cr_expect_eq(distance(h, 0, "mlx5_9"), HOLMES_PATH_SYS);
    cr_expect_eq(distance(h, 7, "mlx5_9"), HOLMES_PATH_PIX);

    cr_expect_eq(find_netif(h, "bond0")->seen.kind, HOLMES_NETIF_BOND);
    cr_expect(find_netif(h, "eth0")->verdict.used);
    cr_expect_eq(find_netif(h, "eth0")->seen.speed_mbps, 25000);
    cr_expect_str_eq(find_netif(h, "eth0")->seen.pci_path, "0000:69:00.0");
    cr_expect_str_eq(find_netif(h, "lo")->verdict.reason, "loopback; there is ethernet");
    cr_expect_eq(h->chosen.nshown, 8);
    cr_expect_eq(h->chosen.n, 9);
    holmes_host_destroy(h);
    recorded_remove(&r);
}

Test(host_discover, chooses_the_gids_of_a_roce_node)
{
    struct recorded r = recorded_build("roce-h100", 3);
    struct holmes_host *h = discover_ok(r.root);
    const struct holmes_host_port *p = find_port(h, "mlx5_11");
    char buf[64];

    cr_assert(p->verdict.used, "%s", p->verdict.reason);
    cr_expect_eq(h->chosen.nics[p->nic].rdma.gids[0].index, 3);
    cr_expect_str_eq(h->chosen.nics[p->nic].ifname, "rail7");
    cr_expect_str_eq(p->netdev, "rail7");
    cr_expect_str_eq(holmes_host_gid_kinds(h, p, buf, sizeof buf), "v2-ipv4,v1-ipv4");
    cr_expect_str_eq(holmes_host_gid_kinds(h, find_port(h, "mlx5_1"), buf, sizeof buf), "");
    holmes_host_destroy(h);
    recorded_remove(&r);
}

/* NIC by NIC what the plugin's own entry finds in the same tree. */
Test(host_discover, chooses_what_the_plugin_chooses)
{
    static const char *const settings[] = {NULL, "^mlx5_0", "=mlx5_8", "mlx5_1,mlx5_9:1"};
    struct recorded r = recorded_build("ib-h100", 1);
    char sys[200];

    snprintf(sys, sizeof sys, "%s/sys", r.root);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct holmes_nics plugin;
        struct holmes_host *h = NULL;
        char why[1024] = "";

        if (settings[i])
            setenv("NCCL_IB_HCA", settings[i], 1);
        cr_assert_eq(holmes_nics_discover(sys, NULL, NULL, &plugin), 0);
        cr_assert_eq(holmes_host_discover(r.root, NULL, &h, why, sizeof why), 0, "%s", why);
        cr_expect_eq(h->chosen.nshown, plugin.nshown, "%s", settings[i]);
        for (int k = 0; k < plugin.nshown; k++) {
            cr_expect_str_eq(h->chosen.nics[k].name, plugin.nics[k].name);
            cr_expect_eq(h->chosen.nics[k].rdma.guid, plugin.nics[k].rdma.guid);
            cr_expect_arr_eq(&h->chosen.nics[k].rdma.gids, &plugin.nics[k].rdma.gids,
                             sizeof plugin.nics[k].rdma.gids);
        }
        holmes_host_destroy(h);
    }
    recorded_remove(&r);
}

/* By the recorded machine's name, not by that of the machine that the test runs on. */
Test(host_discover, finds_a_recorded_machine_in_the_file_of_fabric_ids)
{
    struct recorded r = recorded_build("roce-h100", 1);
    char file[200], fabric[210], own[HOST_NAME_MAX + 1] = "", why[1024] = "";
    struct holmes_host_request req = {.rdma = HOLMES_RDMA_NOTHING_ASKED};
    struct holmes_host *h = NULL;
    FILE *f;

    snprintf(file, sizeof file, "%s/fabrics", r.root);
    snprintf(fabric, sizeof fabric, "@%s", file);
    req.rdma.fabric = fabric;
    gethostname(own, sizeof own - 1);
    f = fopen(file, "w");
    cr_assert_not_null(f);
    fprintf(f, "b[1-2] west\n%s east\n", own);
    fclose(f);
    cr_assert_eq(holmes_host_discover(r.root, &req, &h, why, sizeof why), 0, "%s", why);
    cr_assert_gt(h->chosen.nshown, 0);
    cr_expect_str_eq(h->chosen.nics[0].rdma.fabric, "west");
    holmes_host_destroy(h);
    recorded_remove(&r);
}

Test(host_discover, refuses_variables_that_cannot_be_met)
{
    static const struct {
        struct holmes_host_request req;
        const char *why;
    } cases[] = {
        {{.rdma = {.gid_index = -1, .roce_version = 2, .hca = "mlx5_77"}}, "mlx5_77"},
        {{.rdma = {.gid_index = 9, .roce_version = 2}}, "NCCL_IB_GID_INDEX=9"},
        {{.rdma = HOLMES_RDMA_NOTHING_ASKED, .netif = {.ifname = "=eth7"}}, "=eth7"},
    };
    struct recorded r = recorded_build("roce-h100", 1);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_host *h = NULL;
        char why[1024] = "";

        cr_expect_eq(holmes_host_discover(r.root, &cases[i].req, &h, why, sizeof why), -EINVAL);
        cr_expect_null(h);
        cr_expect(strstr(why, cases[i].why), "%s", why);
    }
    recorded_remove(&r);
}

Test(host_discover, takes_the_sysfs_itself_or_a_copy_of_the_class)
{
    struct recorded r = recorded_build("ib-h100", 1);
    char path[300], moved[200];
    struct holmes_host *h;

    snprintf(path, sizeof path, "%s/sys", r.root);
    h = discover_ok(path);
    cr_expect_str_eq(h->hostname, "a1", "what lies beside it counts too");
    cr_expect_eq(holmes_host_ports_used(h), 8);
    holmes_host_destroy(h);

    snprintf(moved, sizeof moved, "%s/elsewhere", r.dir);
    cr_assert_eq(rename(path, moved), 0);
    h = discover_ok(moved);
    cr_expect_str_eq(h->hostname, "");
    cr_expect_eq(holmes_host_ports_used(h), 8);
    cr_expect_eq(h->ngpus, 8);
    cr_expect(strstr(find_netif(h, "eth0")->verdict.reason, "addresses are not recorded"), "%s",
              find_netif(h, "eth0")->verdict.reason);
    holmes_host_destroy(h);

    snprintf(path, sizeof path, "%s/class/infiniband", moved);
    h = discover_ok(path);
    cr_expect_eq(h->nports, 9);
    cr_expect_eq(h->nnetifs, 0);
    cr_expect_eq(h->ngpus, 0);
    holmes_host_destroy(h);
    recorded_remove(&r);
}

Test(host_discover, shows_nothing_of_this_machine_in_another_ones_tree)
{
    struct recorded r = recorded_unpack("hwloc-xeonphi-node-mlx4-scif");
    struct holmes_host *h = discover_ok(r.root);

    cr_expect_str_eq(h->hostname, "");
    cr_expect_eq(h->cores, 0);
    cr_expect_eq(h->ncpus, 0);
    for (int i = 0; i < h->nnetifs; i++) {
        cr_expect_eq(h->netifs[i].seen.naddrs, 0);
        cr_expect_not(h->netifs[i].addrs_told);
        cr_expect_not(h->netifs[i].verdict.used);
    }
    cr_expect(strstr(find_netif(h, "eth0")->verdict.reason, "not recorded"));
    cr_expect_str_eq(find_netif(h, "eth1")->verdict.reason, "is down");
    cr_expect(strstr(skipped_because(h, "scif0"), "name only"));
    cr_expect(strstr(skipped_because(h, "0000:83:00.0"), "coprocessor of Intel"));
    cr_expect(strstr(skipped_because(h, "0000:05:00.0"), "console"));
    cr_expect_eq(find_port(h, "mlx4_0")->seen.numa_node, 1);
    holmes_host_destroy(h);
    recorded_remove(&r);
}

/* As the kernel makes "running" of the state: unknown counts as up. */
Test(host_discover, makes_of_recorded_states_what_the_kernel_would)
{
    static const struct {
        const char *name, *flags, *operstate, *carrier, *reason;
    } cases[] = {
        {"a0", "0x1003", "up", NULL, "its addresses are not recorded"},
        {"a1", "0x1003", "unknown", NULL, "its addresses are not recorded"},
        {"a2", "0x1003", "lowerlayerdown", "1", "has no carrier"},
        {"a3", "0x1003", NULL, "1", "its addresses are not recorded"},
        {"a4", "0x1003", NULL, "0", "has no carrier"},
        {"a5", "0x1002", "up", "1", "is down"},
        {"a6", NULL, "up", "1", "its state is not recorded"},
    };
    struct sysfs_tree t;
    struct holmes_host *h;

    tree_init(&t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tree_write(&t, "1", "sys/class/net/%s/type", cases[i].name);
        if (cases[i].flags)
            tree_write(&t, cases[i].flags, "sys/class/net/%s/flags", cases[i].name);
        if (cases[i].operstate)
            tree_write(&t, cases[i].operstate, "sys/class/net/%s/operstate", cases[i].name);
        if (cases[i].carrier)
            tree_write(&t, cases[i].carrier, "sys/class/net/%s/carrier", cases[i].name);
    }
    h = discover_ok(t.root);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(find_netif(h, cases[i].name)->verdict.reason, cases[i].reason, "%s",
                         cases[i].name);
    holmes_host_destroy(h);
    tree_fini(&t);
}

Test(host_discover, follows_no_link_out_of_the_tree)
{
    struct recorded r = recorded_build("ib-h100", 1);
    char from[300];
    struct holmes_host *h;

    snprintf(from, sizeof from, "%s/sys/class/net/lo2", r.root);
    cr_assert_eq(symlink("/sys/class/net/lo", from), 0);
    run_command("mkfifo %s/sys/class/net/lo/speed", r.root);
    h = discover_ok(r.root);
    cr_expect_eq(h->nnetifs, 4);
    cr_expect(strstr(skipped_because(h, "lo2"), "leads out"));
    cr_expect_eq(find_netif(h, "lo")->seen.speed_mbps, 0, "and waits for nobody");
    holmes_host_destroy(h);
    recorded_remove(&r);
}

static void write_function(const struct sysfs_tree *t, const char *address, const char *class,
                           const char *vendor)
{
    char path[128], target[128];

    tree_write(t, class, "sys/devices/pci0000:00/%s/class", address);
    tree_write(t, vendor, "sys/devices/pci0000:00/%s/vendor", address);
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s", address);
    snprintf(target, sizeof target, "../../../devices/pci0000:00/%s", address);
    tree_link(t, target, path);
}

Test(host_discover, says_what_it_cannot_read)
{
    struct sysfs_tree t;
    struct holmes_host *h;

    tree_init(&t);
    write_function(&t, "0000:00:01.0", "0x020000", "0x8086");
    write_function(&t, "0000:00:02.0", "no class", "0x8086");
    tree_link(&t, "../../../devices/gone", "sys/bus/pci/devices/0000:00:03.0");
    tree_link(&t, "/tmp", "sys/bus/pci/devices/0000:00:04.0");
    tree_link(&t, "../../../devices/pci0000:00/0000:00:01.0", "sys/bus/pci/devices/odd");
    h = discover_ok(t.root);
    cr_expect_eq(h->nnics, 1);
    cr_expect_str_eq(h->nics[0].name, "0000:00:01.0");
    cr_expect(strstr(skipped_because(h, "0000:00:02.0"), "class cannot be read"));
    cr_expect(strstr(skipped_because(h, "0000:00:03.0"), "not recorded"));
    cr_expect(strstr(skipped_because(h, "0000:00:04.0"), "not recorded"), "a link out of the tree");
    cr_expect(strstr(skipped_because(h, "odd"), "no PCI address"));
    holmes_host_destroy(h);

    tree_write(&t, "[\n{]", "ip-addr.json");
    {
        char why[512] = "";

        cr_expect_eq(holmes_host_discover(t.root, &nothing_asked, &h, why, sizeof why), -EINVAL);
        cr_expect(strstr(why, "ip-addr.json:2"), "%s", why);
    }
    tree_fini(&t);
}

static struct sysfs_tree sys_of(const struct sysfs_tree *t)
{
    struct sysfs_tree sys;

    cr_assert_lt((size_t)snprintf(sys.root, sizeof sys.root, "%.40s/sys", t->root),
                 sizeof sys.root);
    mkdir(sys.root, 0755); /* which may be there */
    return sys;
}

static void write_port(const struct sysfs_tree *t, const char *device, const char *node_type,
                       const char *link_layer)
{
    const struct tree_rdma_port port = {device, "4: ACTIVE", "5: LinkUp", link_layer,
                                        "100 Gb/sec (4X EDR)"};
    struct sysfs_tree sys;

    sys = sys_of(t);
    tree_port(&sys, &port, 1);
    tree_write(&sys, node_type, "class/infiniband/%s/node_type", device);
}

static int only_vf3_opens(void *arg, const char *device, int port)
{
    (void)arg;
    (void)port;
    return strcmp(device, "vf3") == 0 || strncmp(device, "vf", 2) != 0 ? 0 : -EPERM;
}

/* Soft iWARP on the loopback and on a guests' bridge, RoCE on that bridge, EFA, and eight virtual
 * functions of which one opens. */
Test(host_discover, uses_no_odd_device)
{
    struct holmes_host_request req = {.rdma = HOLMES_RDMA_NOTHING_ASKED};
    struct sysfs_tree t, sys;
    struct holmes_host *h = NULL;
    char why[512] = "";
    static const struct {
        const char *device, *reason;
    } odd[] = {
        {"siw_lo", "iWARP"},
        {"siw_docker0", "iWARP"},
        {"rxe_docker0", "leads to no other host"},
        {"efa_0", "link layer"},
    };

    tree_init(&t);
    sys = sys_of(&t);
    write_port(&t, "siw_lo", "4: RNIC", "Ethernet");
    write_port(&t, "siw_docker0", "4: RNIC", "Ethernet");
    write_port(&t, "rxe_docker0", "1: CA", "Ethernet");
    tree_gid(&sys, "rxe_docker0", 0, "0000:0000:0000:0000:0000:ffff:ac11:0001", "RoCE v2",
             "docker0");
    write_port(&t, "efa_0", "7: unspecified", "Unspecified");
    tree_gid(&sys, "efa_0", 0, "fe80:0000:0000:0000:0000:0000:0000:0001", NULL, NULL);
    for (int i = 0; i < 8; i++) {
        char device[8], gid[48];

        snprintf(device, sizeof device, "vf%d", i);
        snprintf(gid, sizeof gid, "fe80:0000:0000:0000:0000:0000:0000:01%02x", i);
        write_port(&t, device, "1: CA", "InfiniBand");
        tree_gid(&sys, device, 0, gid, NULL, NULL);
    }
    req.rdma.open_error = only_vf3_opens;
    cr_assert_eq(holmes_host_discover(t.root, &req, &h, why, sizeof why), 0, "%s", why);
    cr_expect_eq(h->nports, 12);
    cr_expect_eq(holmes_host_ports_used(h), 1);
    cr_expect(find_port(h, "vf3")->verdict.used);
    cr_expect(strstr(find_port(h, "vf4")->verdict.reason, "cannot be opened"), "%s",
              find_port(h, "vf4")->verdict.reason);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        cr_expect(strstr(find_port(h, odd[i].device)->verdict.reason, odd[i].reason), "%s: %s",
                  odd[i].device, find_port(h, odd[i].device)->verdict.reason);
    holmes_host_destroy(h);
    tree_fini(&t);
}

/* InfiniBand adapters come under several classes. */
Test(host_discover, knows_gpus_and_nics_by_their_class)
{
    static const struct {
        uint32_t class;
        uint16_t vendor;
        const char *driver;
        enum pci_gpu gpu;
        bool nic;
    } cases[] = {
        {0x020000, 0x8086, NULL, PCI_NO_DISPLAY, true},
        {0x020700, 0x15b3, NULL, PCI_NO_DISPLAY, true},
        {0x028000, 0x15b3, NULL, PCI_NO_DISPLAY, true},
        {0x0c0600, 0x15b3, NULL, PCI_NO_DISPLAY, true},
        {0x0c0300, 0x8086, NULL, PCI_NO_DISPLAY, false},
        {0x060400, 0x8086, NULL, PCI_NO_DISPLAY, false},
        {0x030200, 0x10de, NULL, PCI_GPU, false},
        {0x030000, 0x10de, NULL, PCI_GPU, false},
        {0x038000, 0x1002, NULL, PCI_GPU, false},
        {0x120000, 0x1002, NULL, PCI_GPU, false},
        {0x120000, 0x1da3, NULL, PCI_GPU, false},
        {0x030000, 0x1002, NULL, PCI_CONSOLE, false},
        {0x030000, 0x1002, "amdgpu", PCI_GPU, false},
        {0x030000, 0x1a03, "ast", PCI_CONSOLE, false},
        {0x030000, 0x8086, "i915", PCI_CONSOLE, false},
        {0x038000, 0x8086, "xe", PCI_GPU, false},
        {0x0b4000, 0x8086, NULL, PCI_COPROCESSOR, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(pci_gpu(cases[i].class, cases[i].vendor, cases[i].driver), cases[i].gpu,
                     "%06x of %04x", cases[i].class, cases[i].vendor);
        cr_expect_eq(pci_is_nic(cases[i].class), cases[i].nic, "%06x", cases[i].class);
    }
}

Test(host_discover, reads_pci_addresses_in_all_their_forms)
{
    static const struct {
        const char *text, *address;
    } cases[] = {
        {"0000:3b:00.0", "0000:3b:00.0"},
        {"0000:3B:00.1", "0000:3b:00.1"},
        {"3b:00.0", "0000:3b:00.0"},
        {"10000:01:1f.7", "10000:01:1f.7"},
        {"0000:3b:00", NULL},
        {"", NULL},
        {"0000:3b:00.00", NULL},
        {"000:3b:00.0", NULL},
        {"123456789:3b:00.0", NULL},
        {"fffffff:ffff:ff", NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[HOLMES_PCI_MAX] = "";

        cr_expect_eq(pci_address(cases[i].text, out), cases[i].address != NULL, "%s",
                     cases[i].text);
        if (cases[i].address)
            cr_expect_str_eq(out, cases[i].address);
    }
}

Test(host_discover, this_machine_has_its_interfaces)
{
    struct holmes_host *h = NULL;
    char why[1024] = "";

    cr_assert_eq(holmes_host_discover("/", &nothing_asked, &h, why, sizeof why), 0, "%s", why);
    cr_expect_eq(h->source, HOLMES_HOST_LIVE);
    cr_expect_gt(h->cores, 0);
    /* also where a hypervisor has taken back a part of the NUMA nodes */
    cr_expect_geq(h->memory_gib,
                  (double)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) * 0.99 / (1 << 30));
    cr_expect(find_netif(h, "lo")->addrs_told);
    holmes_host_destroy(h);
}
