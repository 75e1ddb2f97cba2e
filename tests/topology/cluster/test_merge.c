#include "topology/cluster/merge.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../host/recorded.h"
#include "topology/cluster/gpu_spec.h"

/* A recorded machine as it is discovered without any variable of this test's environment. */
static struct holmes_host *machine(const char *table, int number)
{
    static const struct holmes_host_request nothing = {.rdma = HOLMES_RDMA_NOTHING_ASKED};
    struct recorded r = recorded_build(table, number);
    struct holmes_host *h = NULL;
    char why[512] = "";

    cr_assert_eq(holmes_host_discover(r.root, &nothing, &h, why, sizeof why), 0, "%s", why);
    recorded_remove(&r);
    return h;
}

static struct holmes_host *copy_of(const struct holmes_host *h)
{
    struct holmes_host *copy = NULL;
    char *text = NULL, why[512] = "";
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert_eq(holmes_host_json(h, f), 0);
    fclose(f);
    cr_assert_eq(holmes_host_parse_json("copy", text, len, &copy, why, sizeof why), 0, "%s", why);
    free(text);
    return copy;
}

static struct holmes_merge *merge_new(void)
{
    struct holmes_merge *m;

    cr_assert_eq(holmes_merge_create(HOLMES_LINK_UNKNOWN, &m), 0);
    return m;
}

/* Ends the merge; its cluster as text, its notes behind. */
static char *merged(struct holmes_merge *m, struct holmes_cluster **c)
{
    struct holmes_merge_report report;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert_eq(holmes_merge_finish(m, NULL, c, &report), 0);
    cr_assert_eq(holmes_cluster_write(*c, f), 0);
    for (int i = 0; i < report.nnotes; i++)
        fprintf(f, "# %s\n", report.notes[i]);
    fclose(f);
    holmes_merge_report_fini(&report);
    holmes_merge_destroy(m);
    return text;
}

static void expect_in(const char *text, const char *part)
{
    cr_expect(strstr(text, part), "\"%s\" is not in\n%s", part, text);
}

Test(merge, equal_machines_are_one_type_and_a_range)
{
    struct holmes_merge *m = merge_new();
    struct holmes_cluster *c;
    char name[16];

    for (int i = 1; i <= 2; i++) { /* addresses and GUIDs of their own */
        struct holmes_host *h = machine("ib-h100", i);

        snprintf(name, sizeof name, "a%d", i);
        cr_assert_eq(holmes_merge_add(m, name, h, 0, NULL), 0);
        holmes_host_destroy(h);
    }

    struct holmes_host *roce = machine("roce-h100", 1);

    cr_assert_eq(holmes_merge_add(m, "b1", roce, 0, "west"), 0);
    cr_assert_eq(holmes_merge_add(m, "b2", roce, 0, "west"), 0);
    holmes_host_destroy(roce);

    char *text = merged(m, &c);

    cr_assert_eq(c->ntypes, 2, "%s", text);
    cr_assert_eq(c->ngroups, 2, "%s", text);
    expect_in(text, "- hosts: a[1-2]\n  type: 8gpu-8ib400\n");
    expect_in(text, "- hosts: b[1-2]\n  type: 8gpu-8roce400\n  fabric: west\n");
    cr_expect_eq(c->types[0].gpus, 8);
    cr_expect_str_eq(c->types[0].gpu, "NVIDIA H100 80GB HBM3");
    cr_expect_eq(c->types[0].tflops, 989);
    cr_expect_eq(c->types[0].memory_gib, 80);
    cr_expect_eq(c->types[0].nnics, 9); /* eight ports and eth0 */
    cr_expect_eq(c->types[0].nics[0].link, HOLMES_LINK_INFINIBAND);
    cr_expect_str_eq(c->types[0].nics[0].prefix, "fec0:0:0:a");
    cr_expect_eq(c->types[1].nnics, 9); /* their interfaces are not listed again */
    cr_expect_str_eq(c->types[1].nics[0].gids, "v1-ipv4,v2-ipv4");
    cr_expect_eq(c->types[1].nics[0].link, HOLMES_LINK_ETHERNET);
    expect_in(text, "989 TFLOPS are the data sheet's peak of NVIDIA H100 80GB HBM3");
    cr_expect_eq(c->types[0].intra_gbps, 3600); /* sysfs tells nothing of NVLink */
    expect_in(text, "3600 Gb/s between its GPUs are the data sheet's NVLink of NVIDIA H100");
    cr_expect_null(strstr(text, "differ"), "%s", text);
    free(text);
    holmes_cluster_destroy(c);
}

Test(merge, the_order_of_the_hosts_is_kept)
{
    struct holmes_merge *m = merge_new();
    struct holmes_cluster *c;
    struct holmes_host *ib = machine("ib-h100", 1), *roce = machine("roce-h100", 1);

    holmes_merge_add(m, "n1", ib, 0, NULL);
    holmes_merge_add(m, "n2", roce, 0, NULL);
    holmes_merge_add(m, "n3", ib, 0, NULL);
    holmes_merge_add(m, "n4", roce, 0, NULL);

    char *text = merged(m, &c);

    cr_assert_eq(c->ngroups, 4, "%s", text);
    cr_expect_eq(c->ntypes, 2);
    cr_expect_eq(c->groups[2].type, 0);
    free(text);
    holmes_cluster_destroy(c);
    holmes_host_destroy(ib);
    holmes_host_destroy(roce);
}

static void drop_port(struct holmes_host *h)
{
    const struct holmes_nic *gone = &h->chosen.nics[3];

    for (int i = 0; i < h->nports; i++)
        if (h->ports[i].nic == 3) {
            cr_assert_str_eq(h->ports[i].seen.device, gone->rdma.device);
            h->ports[i].verdict.used = false;
            h->ports[i].nic = -1;
            snprintf(h->ports[i].verdict.reason, sizeof h->ports[i].verdict.reason,
                     "port is DOWN, Polling");
        } else if (h->ports[i].nic > 3) {
            h->ports[i].nic--;
        }
    memmove(&h->chosen.nics[3], &h->chosen.nics[4],
            (size_t)(h->chosen.n - 4) * sizeof h->chosen.nics[0]);
    h->chosen.n--;
}

static void drop_gpu(struct holmes_host *h)
{
    h->ngpus--;
}

static void slow_port(struct holmes_host *h)
{
    h->chosen.nics[0].speed_mbps = 200000;
}

static void other_prefix(struct holmes_host *h)
{
    for (int i = 0; i < h->nports; i++)
        h->ports[i].seen.gids[0].bytes[7] = 0xb;
}

static void other_node(struct holmes_host *h)
{
    h->chosen.nics[1].numa_node = 1;
}

static void own_fabric(struct holmes_host *h)
{
    strcpy(h->chosen.nics[0].rdma.fabric, "left");
}

Test(merge, machines_that_differ_are_named_with_the_difference)
{
    static const struct {
        void (*change)(struct holmes_host *h);
        const char *says;
    } rows[] = {
        {drop_port, "a3 (8gpu-7ib400) differs from a[1-2] (8gpu-8ib400): no mlx5_5\n# type "
                    "8gpu-7ib400: mlx5_5:1: port is DOWN, Polling\n"},
        {drop_gpu, "a3 (7gpu-8ib400) differs from a[1-2] (8gpu-8ib400): 7 GPUs, not 8\n"},
        {slow_port, "a3 (8gpu-8ib400-2) differs from a[1-2] (8gpu-8ib400): mlx5_0 at 200 Gb/s, not "
                    "400\n"},
        {other_prefix, "mlx5_0 has prefix fec0:0:0:b, not fec0:0:0:a, mlx5_1 has prefix"},
        {other_node, "mlx5_1 on NUMA node 1, not 0\n"},
        {own_fabric, "mlx5_0 has fabric left, not (none)\n"},
    };

    struct holmes_host *usual = machine("ib-h100", 1);

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_merge *m = merge_new();
        struct holmes_cluster *c;
        struct holmes_host *h = copy_of(usual);

        holmes_merge_add(m, "a1", h, 0, NULL);
        holmes_merge_add(m, "a2", h, 0, NULL);
        rows[i].change(h);
        holmes_merge_add(m, "a3", h, 0, NULL);

        char *text = merged(m, &c);

        cr_expect_eq(c->ntypes, 2);
        expect_in(text, rows[i].says);
        free(text);
        holmes_cluster_destroy(c);
        holmes_host_destroy(h);
    }
    holmes_host_destroy(usual);
}

Test(merge, one_id_on_all_ports_is_the_nodes)
{
    struct holmes_merge *m = merge_new();
    struct holmes_cluster *c;
    struct holmes_host *h = machine("ib-h100", 1);

    holmes_merge_add(m, "a1", h, 0, NULL);
    for (int i = 0; i < h->chosen.n; i++)
        if (h->chosen.nics[i].rdma.port > 0)
            strcpy(h->chosen.nics[i].rdma.fabric, "east");
    holmes_merge_add(m, "a2", h, 0, NULL);
    holmes_merge_add(m, "a3", h, 0, "west"); /* the user's word counts more */

    char *text = merged(m, &c);

    cr_assert_eq(c->ntypes, 1, "%s", text);
    cr_assert_eq(c->ngroups, 3, "%s", text);
    cr_expect_null(c->groups[0].fabric);
    cr_expect_str_eq(c->groups[1].fabric, "east");
    cr_expect_str_eq(c->groups[2].fabric, "west");
    free(text);
    holmes_cluster_destroy(c);
    holmes_host_destroy(h);
}

Test(merge, a_link_layer_that_is_not_told_is_not_guessed)
{
    static const struct {
        enum holmes_link_layer link;
        int nics;
        bool rdma, noted;
    } rows[] = {
        {HOLMES_LINK_UNKNOWN, 0, false, true},
        {HOLMES_LINK_INFINIBAND, 4, true, false},
        {HOLMES_LINK_ETHERNET, 4, true, false},
    };
    struct holmes_host *h;
    char why[512] = "";

    cr_assert_eq(
        holmes_host_read(TEST_DATA "/nccl-topo/rccl-topo_8p_rome_4nics.xml", &h, why, sizeof why),
        0, "%s", why);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_merge *m;
        struct holmes_cluster *c;

        cr_assert_eq(holmes_merge_create(rows[i].link, &m), 0);
        cr_assert_eq(holmes_merge_add(m, "a1", h, 0, NULL), 0);

        char *text = merged(m, &c);

        cr_assert_eq(c->types[0].nnics, rows[i].nics, "%s", text);
        for (int k = 0; k < c->types[0].nnics; k++)
            cr_expect(c->types[0].nics[k].rdma && c->types[0].nics[k].link == rows[i].link);
        cr_expect_eq(strstr(text, "mlx5_1 and others are left out: whether RDMA") != NULL,
                     rows[i].noted, "%s", text);
        free(text);
        holmes_cluster_destroy(c);
    }
    holmes_host_destroy(h);
}

Test(merge, slots_part_groups_and_hosts_that_fail_stay)
{
    struct holmes_merge *m = merge_new();
    struct holmes_cluster *c;
    struct holmes_host *h = machine("ib-h100", 1);

    cr_expect_eq(holmes_merge_add(m, "a b", h, 0, NULL), -EINVAL);
    holmes_merge_add(m, "a1", h, 8, NULL);
    holmes_merge_add(m, "a2", h, 0, NULL);
    holmes_merge_add(m, "a3", h, 4, NULL);
    holmes_merge_fail(m, "a4", "no route to host");
    holmes_merge_fail(m, "a5", "no route to host");
    holmes_merge_fail(m, "a6", "exit status 127");
    holmes_merge_add(m, "a7", h, 16, NULL);

    char *text = merged(m, &c);

    cr_assert_eq(c->ngroups, 5, "%s", text);
    expect_in(text, "- hosts: a[1-2]\n  type: 8gpu-8ib400\n- hosts: a3\n  type: 8gpu-8ib400\n  "
                    "slots: 4\n");
    expect_in(text, "- hosts: a[4-5]\n  type: unknown\n  state: defective\n  why: no route to "
                    "host\n- hosts: a6\n");
    expect_in(text, "a6 is listed as defective: exit status 127");
    expect_in(text, "a7 has 8 GPUs; the 16 slots that were told are not used");
    cr_expect_eq(c->groups[4].slots, 0);
    free(text);
    holmes_cluster_destroy(c);
    holmes_host_destroy(h);
}

Test(merge, ten_thousand_machines_are_one_type_and_one_range)
{
    struct holmes_merge *m = merge_new();
    struct holmes_cluster *c;
    struct holmes_host *h = machine("ib-h100", 1);
    char name[32];

    for (int i = 0; i < 10000; i++) {
        snprintf(name, sizeof name, "node%05d", i);
        cr_assert_eq(holmes_merge_add(m, name, h, 0, NULL), 0);
    }

    char *text = merged(m, &c);

    cr_expect_eq(c->ngroups, 1);
    cr_expect_eq(c->groups[0].hosts.nranges, 1);
    free(text);
    holmes_cluster_destroy(c);
    holmes_host_destroy(h);
}

Test(merge, thousands_of_machines_that_all_differ_have_names_of_their_own)
{
    struct holmes_merge *m = merge_new();
    struct holmes_cluster *c;
    struct holmes_host *h = machine("ib-h100", 1);
    char name[32];

    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "node%05d", i);
        h->gpus[0].memory_gib = 40 + i / 1000.0;
        cr_assert_eq(holmes_merge_add(m, name, h, 0, NULL), 0);
    }

    char *text = merged(m, &c); /* whose reader refuses a name that comes twice */
    struct holmes_cluster *again;
    char why[512] = "";

    cr_assert_eq(c->ntypes, 3000);
    cr_expect_str_eq(c->types[0].name, "8gpu-8ib400");
    cr_expect_str_eq(c->types[2999].name, "8gpu-8ib400-3000");
    cr_assert_eq(holmes_cluster_parse("c", text, strlen(text), &again, why, sizeof why), 0, "%s",
                 why);
    free(text);
    holmes_cluster_destroy(again);
    holmes_cluster_destroy(c);
    holmes_host_destroy(h);
}

Test(gpu_spec, knows_models_by_whole_words)
{
    static const struct {
        const char *model;
        double tflops, nvlink_gbps;
    } rows[] = {
        {"NVIDIA H100 80GB HBM3", 989, 3600},
        {"NVIDIA H100 PCIe", 756, 0},
        {"NVIDIA H200", 989, 3600},
        {"NVIDIA A100-SXM4-80GB", 312, 2400},
        {"NVIDIA A100 80GB PCIe", 312, 0},
        {"NVIDIA A800-SXM4-80GB", 312, 1600},
        {"NVIDIA A10", 125, 0},
        {"NVIDIA RTX A1000", 0, 0},
        {"Tesla V100-SXM2-32GB", 125, 1200},
        {"Tesla V100-PCIE-16GB", 112, 0},
        {"NVIDIA GH200 480GB", 989, 0},
        {"AMD Instinct MI300X", 1307, 0},
        {"NVIDIA L4", 121, 0},
        {"NVIDIA L40S", 362, 0},
        {"", 0, 0},
        {"Quadro", 0, 0},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double nvlink = holmes_gpu_spec_nvlink_gbps(rows[i].model);

        cr_expect_eq(holmes_gpu_spec_tflops(rows[i].model), rows[i].tflops, "%s: %g", rows[i].model,
                     holmes_gpu_spec_tflops(rows[i].model));
        cr_expect_eq(nvlink, rows[i].nvlink_gbps, "%s: %g", rows[i].model, nvlink);
    }
}
