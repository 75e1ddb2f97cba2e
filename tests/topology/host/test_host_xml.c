/* hwloc XML and NCCL topology XML: what is taken from them, and what is written for NCCL. */
#include <errno.h>

#include "recorded.h"

static struct holmes_host *read_ok(const char *file)
{
    char path[512], why[1024] = "";
    struct holmes_host *h = NULL;

    snprintf(path, sizeof path, TEST_DATA "/%s", file);
    cr_assert_eq(holmes_host_read(path, &h, why, sizeof why), 0, "%s", why);
    return h;
}

static enum holmes_path distance(const struct holmes_host *h, int gpu, const char *nic)
{
    for (int i = 0; i < h->nnics; i++)
        if (strcmp(h->nics[i].name, nic) == 0)
            return h->distance[gpu * h->nnics + i];
    cr_assert(false, "no NIC %s", nic);
    return HOLMES_PATH_UNKNOWN;
}

Test(host_xml, hwloc_gives_places_guids_and_models)
{
    struct holmes_host *h = read_ok("hwloc/32em64t-2n8c2t-pci-wholeio.xml");
    const struct holmes_host_port *p = find_port(h, "mlx5_0");

    cr_expect_eq(p->seen.guid, 0x248a0703001e39feu);
    cr_expect_eq(p->seen.lid, 1);
    cr_expect_eq(p->seen.ngids, 1);
    cr_expect_str_eq(p->seen.pci_path, "0000:04:00.0");
    cr_expect_not(p->told);
    cr_expect_not(p->verdict.used);
    cr_expect_str_eq(h->gpus[2].name, "Tesla K40m");
    cr_expect_str_eq(h->gpus[3].name, "AMD Radeon R9 200 / HD 7900 Series");
    cr_expect_eq(h->cores, 16);
    cr_expect_eq(h->gpus[0].numa_node, 0);
    cr_expect_eq(distance(h, 0, "eth0"), HOLMES_PATH_SYS);
    cr_expect_eq(distance(h, 1, "eth0"), HOLMES_PATH_PHB);
    cr_expect_eq(distance(h, 2, "mlx5_0"), HOLMES_PATH_PIX);
    cr_expect(strstr(skipped_because(h, "0000:05:03.0"), "console"));
    holmes_host_destroy(h);
}

Test(host_xml, hwloc_of_the_years_before_is_read_too)
{
    struct holmes_host *h = parse_ok(
        "old.xml", "<?xml version=\"1.0\"?><!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
                   "<topology version=\"2.0\"><object type=\"Machine\" nodeset=\"0x00000001\" "
                   "cpuset=\"0xffff\"><info name=\"HostName\" value=\"n1\"/>"
                   "<object type=\"NUMANode\" os_index=\"0\" nodeset=\"0x1\" cpuset=\"0xffff,0x1\" "
                   "local_memory=\"1073741824\"/>"
                   "<object type=\"Bridge\" bridge_type=\"0-1\">"
                   "<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" "
                   "pci_type=\"0280 [15b3:1003] [15b3:0001] 00 00\">"
                   "<object type=\"OSDev\" name=\"ib0\" osdev_type=\"2\"/>"
                   "<object type=\"OSDev\" name=\"mlx4_0\" osdev_type=\"3\">"
                   "<info name=\"Port1State\" value=\"4\"/><info name=\"Port2State\" value=\"1\"/>"
                   "</object></object></object></object></topology>");

    cr_expect_str_eq(h->hostname, "n1");
    cr_expect_eq(h->nports, 2);
    cr_expect_eq(h->nnetifs, 1);
    cr_expect_eq(h->nnics, 1);
    cr_expect_str_eq(h->ports[1].seen.state_text, "DOWN");
    cr_expect_eq(h->ports[0].seen.numa_node, 0);
    cr_expect_str_eq(h->cpus[0].affinity, "0000ffff,00000001");
    cr_expect_float_eq(h->memory_gib, 1, 1e-9);
    holmes_host_destroy(h);
}

Test(host_xml, nccl_gives_links_speeds_and_devices)
{
    struct holmes_host *h = read_ok("nccl-topo/rccl-topo_8p_rome_4nics.xml");
    const struct holmes_host_port *p = find_port(h, "mlx5_1");

    cr_expect(h->gpus[0].xgmi);
    cr_expect_eq(h->gpus[0].nlinks, 3);
    cr_expect_str_eq(h->gpus[0].links[2].target, "0000:0f:00.0");
    cr_expect_eq(h->gpus[0].links[2].target_class, 0x038000);
    cr_expect_eq(h->gpus[0].sm, 120);
    cr_expect(p->verdict.used);
    cr_expect_eq(p->seen.speed_mbps, 200000);
    cr_expect_eq(p->seen.guid, 0x48b9170003a1420cu);
    cr_expect_eq(p->nic, 0);
    cr_expect_eq(find_port(h, "mlx5_3")->nic, 1);
    cr_expect_eq(distance(h, 0, "mlx5_1"), HOLMES_PATH_PXB);
    cr_expect_eq(distance(h, 0, "mlx5_7"), HOLMES_PATH_SYS);
    cr_expect_eq(h->pcis[h->gpus[0].pci].link_gts, 16);
    holmes_host_destroy(h);

    h = read_ok("nccl-topo/aws-p4d-24xl-topo.xml");
    cr_expect_eq(distance(h, 0, "0000:10:1b.0"), HOLMES_PATH_PIX);
    cr_expect_eq(distance(h, 0, "0000:20:1b.0"), HOLMES_PATH_PHB);
    cr_expect_eq(distance(h, 0, "0000:90:1b.0"), HOLMES_PATH_SYS);
    holmes_host_destroy(h);

    h = read_ok("nccl-topo/aws-g5.48xl-topo.xml");
    cr_expect_eq(h->nskipped, 9);
    cr_expect(strstr(skipped_because(h, "0000:00:16.0"), "no class"));
    holmes_host_destroy(h);
}

Test(host_xml, what_nccl_does_not_know_is_left_out_and_said)
{
    struct holmes_host *h = parse_ok(
        "t.xml", "<system version=\"1\"><odd/><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" "
                 "class=\"0x03\" link_speed=\"Unknown speed\" link_width=\"255\">"
                 "<gpu dev=\"0\" sm=\"90\"><nvlink target=\"fffffff:ffff:ff\" count=\"18\" "
                 "tclass=\"0x068000\"/><c2c bw=\"1\" count=\"2\"/></gpu></pci>"
                 "<nic><net name=\"unused\" port=\"1\"/>"
                 "<net name=\"a-name-that-is-longer-than-any-device-has\" dev=\"3\" port=\"1\"/>"
                 "</nic></cpu></system>");

    cr_expect(strstr(skipped_because(h, "<odd>, line 1"), "do not have"));
    cr_expect(strstr(skipped_because(h, "a-name-that-is-longer-than-any-device-has"), "longer"));
    cr_expect_not(find_port(h, "unused")->verdict.used);
    cr_expect_str_eq(h->gpus[0].links[0].target, "fffffff:ffff:ff");
    cr_expect_eq(h->gpus[0].links[0].count, 18);
    cr_expect_eq(h->pcis[0].link_gts, 0);
    cr_expect_eq(h->pcis[0].link_width, 0);
    holmes_host_destroy(h);
}

/* NCCL's parser: no declaration, no tabs, no text, and each attribute behind exactly one blank. */
static void expect_fit_for_nccl(const char *xml)
{
    for (const char *line = xml; *line; line = strchr(line, '\n') + 1) {
        const char *p = line + strspn(line, " "), *end = strchr(line, '\n');

        cr_assert_not_null(end, "the last line has no end");
        cr_assert_eq(*p, '<', "%.80s", line);
        cr_expect_eq(end[-1], '>', "%.80s", line);
        cr_expect_neq(p[1], '?', "%.80s", line);
        for (; p < end; p++) {
            cr_expect(*p != '\t' && *p != '&', "%.80s", line);
            if (*p == '"') { /* a value */
                const char *close = strchr(p + 1, '"');

                cr_assert(close && close < end, "%.80s", line);
                cr_expect_leq(close - p - 1, 254);
                p = close;
                cr_expect(p[1] == ' ' || p[1] == '>' || p[1] == '/', "%.80s", line);
            } else if (*p == ' ') {
                cr_expect(p[1] >= 'a' && p[1] <= 'z', "%.80s", line);
            }
        }
    }
}

Test(host_xml, what_is_written_fits_nccls_parser)
{
    static const char *const tables[] = {"ib-h100", "roce-h100"};

    for (int i = 0; i < 2; i++) {
        struct recorded r = recorded_build(tables[i], 1);
        struct holmes_host *h = discover_ok(r.root), *back;
        char *xml = written(holmes_host_nccl_xml, h);

        expect_fit_for_nccl(xml);
        cr_expect(strstr(xml, "<system version=\"1\">"));
        cr_expect(
            strstr(xml, "<net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" port=\"1\" guid=\"0x"));
        cr_expect_null(strstr(xml, " gdr="), "what sysfs does not tell NCCL is to ask the plugin");
        back = parse_ok("t.xml", xml);
        cr_expect_eq(back->ngpus, 8);
        cr_expect_eq(holmes_host_ports_used(back), 8);
        cr_expect_eq(back->nnics, h->nnics);
        cr_expect_eq(distance(back, 5, "mlx5_0"), HOLMES_PATH_SYS);
        cr_expect_eq(distance(back, 0, "mlx5_0"), HOLMES_PATH_PIX);
        holmes_host_destroy(back);
        holmes_host_destroy(h);
        free(xml);
        recorded_remove(&r);
    }
}

/* Above a <net> that is in the file NCCL fills in nothing, and refuses what is missing. */
Test(host_xml, a_machine_without_pci_information_is_written_complete)
{
    struct recorded r = recorded_unpack("gpud-h100");
    struct holmes_host *h = discover_ok(r.root), *back;
    char *xml = written(holmes_host_nccl_xml, h);

    expect_fit_for_nccl(xml);
    cr_expect(strstr(xml, "<cpu numaid=\"0\" arch=\"\" vendor=\"\" familyid=\"0\" modelid=\"0\">"),
              "%s", xml);
    back = parse_ok("t.xml", xml);
    cr_expect_eq(back->nports, 9);
    cr_expect_eq(back->nnics, 9);
    holmes_host_destroy(back);
    holmes_host_destroy(h);
    free(xml);
    recorded_remove(&r);

    h = parse_ok("h.json", "{\"holmes-host\": 1, \"interfaces\": [], \"gpus\": [{}, {\"sm\": 90}],"
                           "\"rdma_ports\": [{\"device\": \"a\\\"<\", \"port\": 1, "
                           "\"pci\": \"0000:01:00.0\"}], \"pci\": "
                           "[{\"address\": \"0000:01:00.0\"}]}");
    xml = written(holmes_host_nccl_xml, h);
    expect_fit_for_nccl(xml);
    cr_expect(strstr(xml, "<pci busid=\"0000:01:00.0\" class=\"0x060400\" link_speed=\"\" "
                          "link_width=\"0\">"),
              "%s", xml);
    cr_expect(strstr(xml, "name=\"a__\""), "%s", xml);
    back = parse_ok("t.xml", xml);
    cr_expect_eq(back->ngpus, 2);
    holmes_host_destroy(back);
    holmes_host_destroy(h);
    free(xml);
}

Test(host_xml, of_nothing_none_is_written)
{
    struct holmes_host *h =
        parse_ok("h.json", "{\"holmes-host\": 1, \"interfaces\": [], \"gpus\": [], "
                           "\"rdma_ports\": []}");
    FILE *f = fopen("/dev/null", "we");

    cr_expect_eq(holmes_host_nccl_xml(h, f), -ENODATA);
    fclose(f);
    holmes_host_destroy(h);
}
