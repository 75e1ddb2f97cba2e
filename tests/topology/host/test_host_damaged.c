/* Files that are damaged, or not what they should be: refused, with the line and what is wrong. */
#include <errno.h>

#include "recorded.h"

static const char json_head[] = "{\"holmes-host\": 1, \"interfaces\": [], \"gpus\": [],\n";

static const struct {
    const char *claim, *text, *why[3];
} damaged[] = {
    {"empty", "", {"f:1:", "is empty"}},
    {"no known form", "hello", {"f:1:", "neither XML nor JSON"}},
    {"cut short", "<system version=\"1\">\n<cpu numaid=\"0\">\n<pci busid=\"0000:0", {"f:3:"}},
    {"wrong root element", "\n\n<html></html>", {"f:3:", "<html>", "<system>"}},
    {"wrong version", "<system version=\"7\"/>", {"f:1:", "version=\"7\"", "1 to 2"}},
    {"no version",
     "<system><cpu numaid=\"0\"/></system>",
     {"f:1:", "<system>", "version is missing"}},
    {"no cpu", "<system version=\"1\">\n</system>", {"f:1:", "<system>", "no <cpu>"}},
    {"cpu without number",
     "<system version=\"1\">\n<cpu/></system>",
     {"f:2:", "numaid is missing"}},
    {"bad affinity",
     "<system version=\"1\"><cpu numaid=\"0\" affinity=\"0-3\"/></system>",
     {"affinity=\"0-3\"", "hexadecimal"}},
    {"bad bus id",
     "<system version=\"1\">\n <cpu numaid=\"0\">\n  <pci busid=\"00:zz.0\"/>\n </cpu></system>",
     {"f:3:", "<pci busid=\"00:zz.0\">", "0000:3b:00.0"}},
    {"bus id twice",
     "<system version=\"1\"><cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\"/>\n"
     "<pci busid=\"0000:01:00.0\"/></cpu></system>",
     {"f:3:", "comes twice"}},
    {"bad class",
     "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"nic\"/>"
     "</cpu></system>",
     {"class=\"nic\"", "0x020700"}},
    {"bad speed",
     "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" link_speed=\"fast\"/>"
     "</cpu></system>",
     {"link_speed=\"fast\"", "16.0 GT/s"}},
    {"net without name",
     "<system version=\"1\"><cpu numaid=\"0\">\n<nic>\n<net dev=\"0\"/></nic></cpu></system>",
     {"f:3:", "<net>", "name is missing"}},
    {"net with a bad port",
     "<system version=\"1\"><cpu numaid=\"0\"><nic><net name=\"a\" port=\"900\"/></nic>"
     "</cpu></system>",
     {"port=\"900\"", "0 to 255"}},
    {"link without target",
     "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\"><gpu>\n"
     "<nvlink count=\"1\"/></gpu></pci></cpu></system>",
     {"f:2:", "<nvlink>", "target is missing"}},
    {"entities",
     "<!DOCTYPE system [<!ENTITY a \"b\">]>\n<system version=\"1\"/>",
     {"f:", "entities"}},
    {"hwloc of another age", "<topology version=\"9.0\"/>", {"version=\"9.0\"", "1 to 3"}},
    {"hwloc that holds nothing", "<topology version=\"2.0\"/>", {"f:1:", "holds no"}},
    {"hwloc with a bad function",
     "<topology version=\"2.0\">\n<object type=\"Machine\">\n"
     "<object type=\"PCIDev\" pci_busid=\"x\"/></object></topology>",
     {"f:3:", "pci_busid=\"x\"", "0000:3b:00.0"}},
    {"hwloc with bad ids",
     "<topology version=\"2.0\"><object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" "
     "pci_type=\"nic\"/></topology>",
     {"pci_type=\"nic\"", "0207 ["}},
    {"hwloc with a sign in its ids",
     "<topology version=\"2.0\"><object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" "
     "pci_type=\"-207 [15b3:1013] [15b3:0013] 00 00\"/></topology>",
     {"pci_type=\"-207", "0207 ["}},
    {"hwloc object without type", "<topology>\n<object/></topology>", {"f:2:", "type is missing"}},
    {"JSON cut short", "{\n\"holmes-host\": 1,\n", {"f:3:"}},
    {"JSON of something else", "{\"a\": 1}", {"holmes-host", "version is missing"}},
    {"JSON of another version", "{\"holmes-host\": 2}", {"holmes-host", "version 2", "reads 1"}},
    {"JSON that is no host", "{\"holmes-host\": 1}", {"rdma_ports", "is missing"}},
    {"JSON with a key twice", "{\"holmes-host\": 1,\n\"holmes-host\": 1}", {"f:2:", "duplicate"}},
    {"JSON port without device",
     "*\"rdma_ports\": [{\"port\": 1}]}",
     {"rdma_ports[0].device", "is missing"}},
    {"JSON port that is a string", "*\"rdma_ports\": [\"a\"]}", {"rdma_ports[0]", "an object"}},
    {"JSON GID",
     "*\"rdma_ports\": [{\"device\": \"a\", \"port\": 1, \"gids\": [{\"gid\": \"zz\"}]}]}",
     {"rdma_ports[0].gids[0].gid", "\"zz\""}},
    {"JSON link layer",
     "*\"rdma_ports\": [{\"device\": \"a\", \"port\": 1, \"link_layer\": \"ib\"}]}",
     {"rdma_ports[0].link_layer", "\"ib\"", "InfiniBand, Ethernet"}},
    {"JSON parent that comes later",
     "*\"rdma_ports\": [], \"pci\": [{\"address\": \"0000:01:00.0\", \"parent\": "
     "\"0000:00:00.0\"}]}",
     {"pci[0].parent", "does not come before"}},
    {"JSON NIC that no port is",
     "*\"rdma_ports\": [], \"chosen\": [{\"name\": \"a\", \"device\": \"a\", \"port\": 1}]}",
     {"chosen[0].name", "no port or interface in use"}},
};

Test(host_damaged, is_refused_with_line_and_reason)
{
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        char text[1024], why[1024] = "";
        struct holmes_host *h = NULL;
        const char *t = damaged[i].text;

        snprintf(text, sizeof text, "%s%s", *t == '*' ? json_head : "", *t == '*' ? t + 1 : t);
        cr_expect_eq(holmes_host_parse("f", text, strlen(text), &h, why, sizeof why), -EINVAL,
                     "%s was taken", damaged[i].claim);
        cr_expect_null(h, "%s", damaged[i].claim);
        for (int k = 0; k < 3 && damaged[i].why[k]; k++)
            cr_expect(strstr(why, damaged[i].why[k]), "%s: \"%s\" does not say %s",
                      damaged[i].claim, why, damaged[i].why[k]);
    }
}

static char *repeat(char *at, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++, at += strlen(text))
        memcpy(at, text, strlen(text));
    return at;
}

/* 10 MB of elements, one in the other, and well-formed. */
static void refuse_nested(const char *head, const char *open, const char *close, const char *tail)
{
    size_t n = 10000000 / (strlen(open) + strlen(close));
    char *text = malloc(strlen(head) + n * (strlen(open) + strlen(close)) + strlen(tail)), *end;
    char why[1024] = "";
    struct holmes_host *h = NULL;

    cr_assert_not_null(text);
    end = repeat(repeat(repeat(repeat(text, head, 1), open, n), close, n), tail, 1);
    cr_expect_eq(holmes_host_parse("f", text, (size_t)(end - text), &h, why, sizeof why), -EINVAL);
    cr_expect_null(h);
    cr_expect_eq(strncmp(why, "f:1:", 4), 0, "%s", why);
    cr_expect(strstr(why, "depth"), "%s", why);
    free(text);
}

Test(host_damaged, ten_megabytes_of_nesting_are_refused)
{
    refuse_nested("<system version=\"1\"><cpu numaid=\"0\">", "<pci busid=\"0000:01:00.0\">",
                  "</pci>", "</cpu></system>");
    refuse_nested("<topology version=\"2.0\">", "<object type=\"Group\">", "</object>",
                  "</topology>");
    refuse_nested("{\"holmes-host\": ", "[", "]", "}");
}

Test(host_damaged, every_prefix_of_a_file_is_refused_or_read)
{
    static const char *const files[] = {"nccl-topo/rccl-topo_4p1h_1.xml",
                                        "hwloc/24em64t-2n6c2t-pci.xml"};

    for (int i = 0; i < 2; i++) {
        static char text[1 << 16];
        char path[512];
        size_t len;
        FILE *f;

        snprintf(path, sizeof path, TEST_DATA "/%s", files[i]);
        f = fopen(path, "re");
        cr_assert_not_null(f, "%s", path);
        len = fread(text, 1, sizeof text, f);
        fclose(f);
        for (size_t n = 0; n + 16 < len; n += 97) {
            char why[1024] = "", *exact = malloc(n + 1);
            struct holmes_host *h = NULL;

            memcpy(exact, text, n);
            cr_expect_eq(holmes_host_parse("f", exact, n, &h, why, sizeof why), -EINVAL,
                         "%s: the first %zu bytes were taken", files[i], n);
            cr_expect_eq(strncmp(why, "f:", 2), 0, "%s", why);
            free(exact);
        }
    }
}

Test(host_damaged, a_file_that_is_not_there_is_named)
{
    char why[1024] = "";
    struct holmes_host *h = NULL;

    cr_expect_eq(holmes_host_read("/no/such/file", &h, why, sizeof why), -ENOENT);
    cr_expect(strstr(why, "/no/such/file"), "%s", why);
    cr_expect_eq(holmes_host_read("/tmp", &h, why, sizeof why), -EISDIR, "%s", why);
}

Test(host_damaged, a_folder_that_is_no_machine_is_refused)
{
    struct recorded r = recorded_dir();
    char why[1024] = "";
    struct holmes_host *h = NULL;

    cr_expect_eq(holmes_host_discover(r.dir, &nothing_asked, &h, why, sizeof why), -EINVAL);
    cr_expect(strstr(why, r.dir) && strstr(why, "sys/"), "%s", why);
    cr_expect_eq(holmes_host_discover("/no/such/dir", &nothing_asked, &h, why, sizeof why),
                 -ENOENT);
    cr_expect_null(h);
    recorded_remove(&r);
}
