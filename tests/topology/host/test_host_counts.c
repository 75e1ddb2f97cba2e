/* Every recorded machine: how many NICs, RDMA ports, ports in use, interfaces and GPUs it has. */
#include "recorded.h"

struct expected {
    const char *file;
    int nics, ports, used, netifs, gpus;
};

/* NCCL's files: a NIC is a function of class 0x02 or a <net> that has none; RDMA ports are those
 * <net> whose port is not 0, in use with a dev. */
static const struct expected files[] = {
    {"hwloc/16intel64-manyVFs.xml", 18, 3, 0, 6, 0},
    {"hwloc/24em64t-2n6c2t-pci.xml", 3, 1, 0, 4, 3},
    {"hwloc/32em64t-2n8c2t-pci-wholeio.xml", 3, 1, 0, 3, 4},
    {"hwloc/96em64t-4n4d3ca2co-pci.xml", 8, 0, 0, 8, 0},
    {"hwloc/nvidiaDGX2.xml", 0, 0, 0, 0, 16},
    {"nccl-topo/aws-g5.48xl-topo.xml", 0, 0, 0, 0, 0}, /* addresses alone: nine are skipped */
    {"nccl-topo/aws-p4d-24xl-topo.xml", 4, 0, 0, 0, 8},
    {"nccl-topo/aws-p5.48xl-topo.xml", 32, 32, 32, 0, 8},
    {"nccl-topo/azure-ncv4-topo.xml", 1, 0, 0, 1, 4},
    {"nccl-topo/azure-ndv4-topo.xml", 8, 0, 0, 0, 8},
    {"nccl-topo/rccl-topo_16p1h.xml", 8, 8, 8, 0, 16},
    {"nccl-topo/rccl-topo_4p1h_1.xml", 2, 0, 0, 2, 4},
    {"nccl-topo/rccl-topo_8p1h_2.xml", 2, 0, 0, 2, 8},
    {"nccl-topo/rccl-topo_8p_rome_4nics.xml", 4, 4, 4, 0, 8},
    {"nccl-topo/rccl-topo_8p_rome_n2_1.xml", 2, 1, 1, 1, 8},
    {"nccl-topo/rccl-topo_8p_ts1_n4.xml", 2, 2, 2, 0, 8},
};

static const struct expected trees[] = {
    {"gpud-h100", 9, 9, 0, 0, 0}, /* no GID was recorded */
    {"hwloc-hpparisc-pcidomain32", 1, 0, 0, 1, 0},
    {"hwloc-xeonphi-node-mlx4-scif", 3, 1, 1, 3, 0},
};

static const struct expected tables[] = {
    {"ib-h100", 10, 9, 8, 4, 8},
    {"roce-h100", 13, 12, 8, 14, 8},
};

static void expect(const struct holmes_host *h, const struct expected *e)
{
    cr_expect_eq(h->nnics, e->nics, "%s: %d NICs", e->file, h->nnics);
    cr_expect_eq(h->nports, e->ports, "%s: %d RDMA ports", e->file, h->nports);
    cr_expect_eq(holmes_host_ports_used(h), e->used, "%s: %d ports in use", e->file,
                 holmes_host_ports_used(h));
    cr_expect_eq(h->nnetifs, e->netifs, "%s: %d interfaces", e->file, h->nnetifs);
    cr_expect_eq(h->ngpus, e->gpus, "%s: %d GPUs", e->file, h->ngpus);
}

Test(host_counts, of_every_recorded_file)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512], why[1024] = "";
        struct holmes_host *h = NULL;

        snprintf(path, sizeof path, TEST_DATA "/%s", files[i].file);
        cr_assert_eq(holmes_host_read(path, &h, why, sizeof why), 0, "%s", why);
        expect(h, &files[i]);
        holmes_host_destroy(h);
    }
}

Test(host_counts, of_every_recorded_tree)
{
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        struct recorded r = recorded_unpack(trees[i].file);
        struct holmes_host *h = discover_ok(r.root);

        expect(h, &trees[i]);
        holmes_host_destroy(h);
        recorded_remove(&r);
    }
}

Test(host_counts, of_both_kinds_of_nodes_of_the_two_clusters)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        struct recorded r = recorded_build(tables[i].file, 1);
        struct holmes_host *h = discover_ok(r.root);

        expect(h, &tables[i]);
        holmes_host_destroy(h);
        recorded_remove(&r);
    }
}

/* Reading again what was written finds the same machine, whichever form it came from. */
Test(host_counts, survive_both_writers)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512], why[1024] = "", *json, *again, *xml;
        struct holmes_host *h = NULL, *from_json, *from_xml;
        struct expected e = files[i];

        snprintf(path, sizeof path, TEST_DATA "/%s", e.file);
        cr_assert_eq(holmes_host_read(path, &h, why, sizeof why), 0, "%s", why);
        json = written(holmes_host_json, h);
        from_json = parse_ok(e.file, json);
        again = written(holmes_host_json, from_json);
        expect(from_json, &e);
        cr_expect_str_eq(json, again, "%s: another JSON the second time", e.file);
        if (e.nics + e.gpus > 0) {
            xml = written(holmes_host_nccl_xml, h);
            cr_expect_eq(strstr(xml, "<system version=\"2\">") != NULL,
                         strstr(e.file, "rccl") != NULL,
                         "%s: RCCL's version for AMD's GPUs, and NCCL's for others", e.file);
            from_xml = parse_ok(e.file, xml);
            expect(from_xml, &e);
            for (int g = 0; h->source == HOLMES_HOST_NCCL && g < h->ngpus * h->nnics; g++)
                cr_expect_eq(from_xml->distance[g], h->distance[g], "%s: distance %d", e.file, g);
            holmes_host_destroy(from_xml);
            free(xml);
        }
        holmes_host_destroy(from_json);
        holmes_host_destroy(h);
        free(json);
        free(again);
    }
}
