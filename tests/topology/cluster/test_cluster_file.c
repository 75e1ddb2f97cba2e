#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../support/patience.h"
#include "cluster.h"
#include "near_name.h"
#include "topology/cluster/cluster_file.h"
#include "topology/cluster/prefix.h"

#define HEAD                                                                                       \
    "holmes-cluster: 1\n"                                                                          \
    "node-types:\n"                                                                                \
    "  - name: ib\n"                                                                               \
    "    gpus: 8\n"

static struct holmes_cluster *read_ok(const char *text)
{
    struct holmes_cluster *c = NULL;
    char why[512] = "";

    cr_assert_eq(holmes_cluster_parse("c.yaml", text, strlen(text), &c, why, sizeof why), 0, "%s",
                 why);
    return c;
}

static char *written(const struct holmes_cluster *c)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert_eq(holmes_cluster_write(c, f), 0);
    fclose(f);
    return text;
}

static const char whole[] =
    "holmes-cluster: 1\n"
    "name: two clusters\n"
    "node-types:\n"
    "- name: ib\n"
    "  gpus: 8\n"
    "  gpu: H100\n"
    "  tflops: 989.4321\n"
    "  memory-gib: 80\n"
    "  intra-gbps: 3600\n"
    "  nics:\n"
    "  - {name: mlx5_0, kind: infiniband, gbps: 400, prefix: 'fe80:0:0:1', numa: 0}\n"
    "  - {name: mlx5_1, kind: infiniband, gbps: 400, fabric: left, numa: 1}\n"
    "  - {name: eth0, kind: ethernet, gbps: 25}\n"
    "- name: roce\n"
    "  gpus: 4\n"
    "  nics:\n"
    "  - {name: mlx5_0, kind: roce, gbps: 200, gids: [v1-ipv4, v2-ipv4]}\n"
    "nodes:\n"
    "- hosts: a[0001-5000]\n"
    "  type: ib\n"
    "  fabric: A\n"
    "- hosts: b[1-2],c7\n"
    "  type: roce\n"
    "  state: defective\n"
    "  why: 'ssh: no route to host'\n"
    "  slots: 2\n"
    "- hosts: d1\n"
    "  type: roce\n"
    "  state: idle\n"
    "links:\n"
    "- between: [A, B]\n"
    "  gbps: 100\n"
    "  node-gbps: 12.5\n"
    "  rtt-ms: 20.125\n"
    "- gbps: 10\n"
    "probes:\n"
    "- {from: a0001, to: 'a0002:mlx5_0', reaches: true}\n"
    "- {from: a0001, to: b1, reaches: no}\n";

Test(cluster_file, every_key_arrives)
{
    struct holmes_cluster *c = read_ok(whole);

    cr_assert_eq(c->ntypes, 2);
    cr_assert_eq(c->ngroups, 3);
    cr_assert_eq(c->nlinks, 2);
    cr_assert_eq(c->nprobes, 2);
    cr_expect_str_eq(c->name, "two clusters");

    const struct holmes_node_type *ib = &c->types[0], *roce = &c->types[1];

    cr_expect_str_eq(ib->name, "ib");
    cr_expect_str_eq(ib->gpu, "H100");
    cr_expect(ib->gpus == 8 && ib->tflops == 989.4321 && ib->memory_gib == 80 &&
              ib->intra_gbps == 3600);
    cr_assert_eq(ib->nnics, 3);
    cr_expect_str_eq(ib->nics[0].prefix, "fe80:0:0:1");
    cr_expect(ib->nics[0].rdma && ib->nics[0].link == HOLMES_LINK_INFINIBAND &&
              ib->nics[0].numa == 0 && ib->nics[0].gbps == 400 && !ib->nics[0].fabric);
    cr_expect_str_eq(ib->nics[1].fabric, "left");
    cr_expect(!ib->nics[2].rdma && ib->nics[2].link == HOLMES_LINK_UNKNOWN &&
              ib->nics[2].numa == -1);
    cr_assert_eq(roce->nnics, 1);
    cr_expect(roce->nics[0].rdma && roce->nics[0].link == HOLMES_LINK_ETHERNET);
    cr_expect_str_eq(roce->nics[0].gids, "v1-ipv4,v2-ipv4");
    cr_expect_null(roce->gpu);

    cr_expect_eq(c->groups[0].hosts.nhosts, 5000);
    cr_expect_eq(c->groups[0].hosts.nranges, 1);
    cr_expect_str_eq(c->groups[0].fabric, "A");
    cr_expect(c->groups[0].state == HOLMES_NODE_OK && c->groups[0].slots == 0);
    cr_expect(c->groups[1].type == 1 && c->groups[1].state == HOLMES_NODE_DEFECTIVE &&
              c->groups[1].slots == 2);
    cr_expect_str_eq(c->groups[1].why, "ssh: no route to host");
    cr_expect_eq(c->groups[2].state, HOLMES_NODE_IDLE);

    cr_expect_str_eq(c->links[0].from, "A");
    cr_expect_str_eq(c->links[0].to, "B");
    cr_expect(c->links[0].gbps == 100 && c->links[0].node_gbps == 12.5 &&
              c->links[0].rtt_ms == 20.125);
    cr_expect(!c->links[1].from && !c->links[1].to && c->links[1].rtt_ms == 0);
    cr_expect_str_eq(c->probes[0].to, "a0002:mlx5_0");
    cr_expect(c->probes[0].reaches && !c->probes[1].reaches);
    holmes_cluster_destroy(c);
}

Test(cluster_file, what_is_written_reads_back_equal)
{
    struct holmes_cluster *c = read_ok(whole);
    char *once = written(c);
    struct holmes_cluster *again = read_ok(once);
    char *twice = written(again);

    cr_expect_str_eq(once, twice);
    /* And the first writing kept all: no key of the text above is missing. */
    static const char *const parts[] = {"name: two clusters",
                                        "gpu: H100",
                                        "989.4321",
                                        "memory-gib: 80",
                                        "3600",
                                        "fe80:0:0:1",
                                        "numa: 1",
                                        "fabric: left",
                                        "kind: ethernet",
                                        "v1-ipv4, v2-ipv4",
                                        "a[0001-5000]",
                                        "fabric: A",
                                        "b[1-2],c7",
                                        "state: defective",
                                        "no route",
                                        "slots: 2",
                                        "state: idle",
                                        "between:",
                                        "12.5",
                                        "20.125",
                                        "a0002:mlx5_0",
                                        "reaches: false"};

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        cr_expect(strstr(once, parts[i]), "\"%s\" is not in\n%s", parts[i], once);
    cr_expect_null(strstr(once, "state: ok"));
    free(once);
    free(twice);
    holmes_cluster_destroy(c);
    holmes_cluster_destroy(again);
}

Test(cluster_file, texts_that_look_like_yaml_read_back_equal)
{
    static const char *const texts[] = {
        "a: b", "- x", "#no",      "null", "true", "12",     "it's \"so\"", "tab\tand\nline",
        "[x]",  "{y}", " blanks ", "*a",   "&b",   "ümlaut", "%",           "@",
        "?"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct holmes_cluster *c = read_ok(HEAD "nodes: [{hosts: a, type: ib, why: x}]\n");

        free(c->groups[0].why);
        c->groups[0].why = strdup(texts[i]);

        char *text = written(c);
        struct holmes_cluster *again = read_ok(text);

        cr_expect_str_eq(again->groups[0].why, texts[i], "in\n%s", text);
        free(text);
        holmes_cluster_destroy(c);
        holmes_cluster_destroy(again);
    }
}

#define NODES "nodes:\n  - hosts: a1\n    type: ib\n"

Test(cluster_file, errors_name_line_and_field)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "c.yaml: the file is empty"},
        {"# only a comment\n", "c.yaml: the file is empty"},
        {"a: [1\n", "c.yaml:2: not readable as YAML"},
        {"a: \tb: c\n", "c.yaml:1: not readable as YAML"},
        {"\xff\xfe\xff", "not readable as YAML"},
        {"- a\n", "c.yaml:1: no cluster file: the key \"holmes-cluster: 1\" is missing"},
        {"nodes: []\n", "c.yaml:1: no cluster file: the key \"holmes-cluster: 1\" is missing"},
        {"# x\nholmes-cluster: 2\nnew-key: 1\n",
         "c.yaml:2: holmes-cluster: version 2 of the format; this program reads version 1"},
        {"holmes-cluster: 1\n---\nholmes-cluster: 1\n", "c.yaml:3: a second document"},
        {"holmes-cluster: 1\n" NODES, "c.yaml:1: the key \"node-types\" is missing"},
        {HEAD, "c.yaml:1: the key \"nodes\" is missing"},
        {HEAD "nodes: []\n", "c.yaml:5: nodes: the list has 0 entries; at least 1 is needed"},
        {HEAD "nodes: a\n", "c.yaml:5: nodes: a list is expected"},
        {HEAD "nodes:\n  - a1\n", "c.yaml:6: nodes[0]: keys with values are expected"},
        {HEAD "nodes:\n  - hosts: a1\n", "c.yaml:6: nodes[0]: the key \"type\" is missing"},
        {HEAD "nodes:\n  - type: ib\n    hosts: [a1]\n",
         "c.yaml:7: nodes[0].hosts: one word or number is expected here, not a list"},
        {HEAD "nodes:\n  - type: ib\n    host: a1\n",
         "c.yaml:7: nodes[0]: there is no key \"host\"; did you mean \"hosts\"?"},
        {HEAD "nodes:\n  - type: ib\n    colour: a1\n",
         "c.yaml:7: nodes[0]: there is no key \"colour\"; there are: hosts, type, fabric"},
        {HEAD "  - name: b\n    gpus: 8\n    memory: 80\n" NODES,
         "c.yaml:7: node-types[1]: there is no key \"memory\"; did you mean \"memory-gib\"?"},
        {HEAD "nodes:\n  - hosts: a1\n    type: ib\n    hosts: a2\n",
         "c.yaml:8: nodes[0]: key \"hosts\" comes twice, first in line 6"},
        {HEAD NODES "nodes:\n", "c.yaml:8: key \"nodes\" comes twice, first in line 5"},
        {HEAD "nodes:\n  - hosts: a1\n    type: ip\n",
         "c.yaml:7: nodes[0].type: there is no node type \"ip\"; did you mean"},
        {HEAD "nodes:\n  - hosts: a1\n    type: gpu\n",
         "c.yaml:7: nodes[0].type: there is no node type \"gpu\"; there are: ib"},
        {HEAD NODES "  - type: ib\n    hosts: a[2-3],a1\n",
         "c.yaml:9: nodes[1].hosts: host a1 comes twice, first in line 6"},
        {HEAD "nodes:\n  - type: ib\n    hosts: a[1-3],a2\n",
         "c.yaml:7: nodes[0].hosts: host a2 comes twice"},
        {HEAD "nodes:\n  - type: ib\n    hosts: a[3-1]\n",
         "c.yaml:7: nodes[0].hosts: range \"3-1\" runs backwards"},
        {HEAD "nodes:\n  - type: ib\n    hosts:\n", "c.yaml:7: nodes[0].hosts: nothing is given"},
        {HEAD NODES "    state: broken\n",
         "c.yaml:8: nodes[0].state: \"broken\" is none of: ok, idle, defective"},
        {HEAD NODES "    fabric: two words\n",
         "c.yaml:8: nodes[0].fabric: \"two words\" is no id of a fabric: 1 to 31 letters, digits"},
        {HEAD NODES "    fabric: \"a\\nb\"\n", "c.yaml:8: nodes[0].fabric: \"a\nb\" is no id"},
        {HEAD "    nics:\n      - {name: e, kind: roce, fabric: '#1'}\n" NODES,
         "c.yaml:6: node-types[0].nics[0].fabric: \"#1\" is no id of a fabric"},
        {HEAD NODES "    slots: 9\n",
         "c.yaml:8: nodes[0].slots: \"9\" is no whole number from 1 to 8"},
        {HEAD NODES "    slots: 0\n", "c.yaml:8: nodes[0].slots: \"0\" is no whole number"},
        {HEAD NODES "    slots: -1\n", "c.yaml:8: nodes[0].slots: \"-1\" is no whole number"},
        {HEAD NODES "    slots: 8x\n", "c.yaml:8: nodes[0].slots: \"8x\" is no whole number"},
        {HEAD NODES "    slots: 0x4\n", "c.yaml:8: nodes[0].slots: \"0x4\" is no whole number"},
        {HEAD NODES "    why: \"a\\0b\"\n", "c.yaml:8: nodes[0].why: the text has a zero byte"},
        {HEAD "  - name: ib\n    gpus: 8\n" NODES,
         "c.yaml:5: node-types[1].name: type \"ib\" comes twice, first in line 3"},
        {HEAD "    tflops: fast\n" NODES,
         "c.yaml:5: node-types[0].tflops: \"fast\" is no number from 1e-06 to 1e+09; leave out "
         "what is unknown"},
        {HEAD "    tflops: 0\n" NODES, "c.yaml:5: node-types[0].tflops: \"0\" is no number from"},
        {HEAD "    tflops: 1e-300\n" NODES, "c.yaml:5: node-types[0].tflops: \"1e-300\" is no"},
        {HEAD "    memory-gib: 0\n" NODES, "c.yaml:5: node-types[0].memory-gib: \"0\" is no"},
        {HEAD "    intra-gbps: 0.0\n" NODES, "c.yaml:5: node-types[0].intra-gbps: \"0.0\" is no"},
        {HEAD "    nics: [{name: e, kind: roce, gbps: 0}]\n" NODES,
         "c.yaml:5: node-types[0].nics[0].gbps: \"0\" is no number"},
        {HEAD NODES "links:\n  - gbps: 0\n", "c.yaml:9: links[0].gbps: \"0\" is no number"},
        {HEAD NODES "links:\n  - node-gbps: 0\n", "c.yaml:9: links[0].node-gbps: \"0\" is no"},
        {HEAD NODES "links:\n  - rtt-ms: 0\n", "c.yaml:9: links[0].rtt-ms: \"0\" is no number"},
        {HEAD "    tflops: nan\n" NODES, "c.yaml:5: node-types[0].tflops: \"nan\" is no number"},
        {HEAD "    tflops: -1\n" NODES, "c.yaml:5: node-types[0].tflops: \"-1\" is no number"},
        {HEAD "    nics:\n      - name: e\n        kind: token-ring\n" NODES,
         "c.yaml:7: node-types[0].nics[0].kind: \"token-ring\" is none of: infiniband, roce, "
         "ethernet"},
        {HEAD "    nics:\n      - {name: e, kind: roce,\n         gbps: 400G}\n" NODES,
         "c.yaml:7: node-types[0].nics[0].gbps: \"400G\" is no number"},
        {HEAD "    nics:\n      - {name: e, kind: roce, prefix: 'fe80::'}\n" NODES,
         "c.yaml:6: node-types[0].nics[0].prefix: only InfiniBand has subnet prefixes; this NIC is "
         "\"roce\""},
        {HEAD "    nics:\n      - {name: e, kind: infiniband, prefix: fe8}\n" NODES,
         "c.yaml:6: node-types[0].nics[0].prefix: \"fe8\" is no subnet prefix"},
        {HEAD "    nics:\n      - {name: e, kind: infiniband, gids: [v2-ipv4]}\n" NODES,
         "c.yaml:6: node-types[0].nics[0].gids: only RoCE"},
        {HEAD "    nics:\n      - {name: e, kind: roce, gids: [v3]}\n" NODES,
         "c.yaml:6: node-types[0].nics[0].gids[0]: \"v3\" is none of: v1-ipv4, v1-ipv6, v2-ipv4, "
         "v2-ipv6"},
        {HEAD "    nics:\n      - {name: e, kind: roce}\n      - {name: e, kind: roce}\n" NODES,
         "c.yaml:7: node-types[0].nics[1].name: NIC e comes twice in type ib"},
        {HEAD NODES "links:\n  - gbps: 3\n    between: [A]\n",
         "c.yaml:10: links[0].between: the list has 1 entry; at least 2 are needed"},
        {HEAD NODES "links:\n  - gbps: 3\n    between: [A, B, C]\n",
         "c.yaml:10: links[0].between: the list has 3 entries; at most 2 are taken"},
        {HEAD NODES "links:\n  - rtt-ms: -3\n", "c.yaml:9: links[0].rtt-ms: \"-3\" is no number"},
        {HEAD NODES "probes:\n  - {from: a, to: b, reaches: perhaps}\n",
         "c.yaml:9: probes[0].reaches: \"perhaps\" is none of: true, false, yes, no"},
        {HEAD NODES "probes:\n  - {from: a, reaches: no}\n",
         "c.yaml:9: probes[0]: the key \"to\" is missing"},
        {HEAD NODES "? [a, b]\n: c\n", "c.yaml:8: a key is not a plain word"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_cluster *c = NULL;
        char why[512] = "";
        size_t len = strlen(rows[i].text);

        cr_expect_eq(holmes_cluster_parse("c.yaml", rows[i].text, len, &c, why, sizeof why),
                     -EINVAL, "passed:\n%s", rows[i].text);
        cr_expect_null(c);
        cr_expect_eq(strncmp(why, rows[i].says, strlen(rows[i].says)) == 0 ||
                         (rows[i].says[0] != 'c' && strstr(why, rows[i].says)),
                     1, "%s\nsays \"%s\"\nwant \"%s\"", rows[i].text, why, rows[i].says);
        holmes_cluster_destroy(c);
    }
}

/* libyaml's time grows with the square of the depth: a minute for these. */
Test(cluster_file, deep_nesting_is_refused_before_it_takes_time)
{
    enum { LEN = 200000 };
    static const char *const openings[] = {"[", "{a: ", "- "};

    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++) {
        size_t len = strlen(openings[i]);
        char *text = malloc(LEN), why[512] = "";
        struct holmes_cluster *c = NULL;

        for (size_t at = 0; at < LEN; at++)
            text[at] = openings[i][at % len];
        cr_expect_eq(holmes_cluster_parse("c.yaml", text, LEN, &c, why, sizeof why), -EINVAL);
        cr_expect_str_eq(why, "c.yaml:1: lists and groups are more than 64 deep in one another");
        free(text);
    }
}

Test(cluster_file, a_file_that_is_not_there_is_named)
{
    struct holmes_cluster *c;
    char why[512] = "";

    cr_expect_eq(holmes_cluster_read("/no/such/file", &c, why, sizeof why), -ENOENT);
    cr_expect_str_eq(why, "/no/such/file: No such file or directory");
}

Test(cluster_file, anchors_and_merged_lists_are_the_same_as_written_out)
{
    struct holmes_cluster *c =
        read_ok("holmes-cluster: 1\n"
                "node-types:\n"
                "  - {name: a, gpus: 8, nics: &nics [{name: mlx5_0, kind: roce}]}\n"
                "  - {name: b, gpus: 4, nics: *nics}\n"
                "nodes: [{hosts: x, type: a}, {hosts: y, type: b}]\n");

    cr_assert_eq(c->types[1].nnics, 1);
    cr_expect_str_eq(c->types[1].nics[0].name, "mlx5_0");
    holmes_cluster_destroy(c);
}

/* Of this process: what others do on the machine does not count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Reads ten thousand nodes, each an entry or all in ranges; the best time of three. */
static double seconds_to_read(bool written_out)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    double best = 1e9;

    fputs(HEAD "nodes:\n", f);
    if (written_out)
        for (int i = 0; i < 10000; i++)
            fprintf(f, "  - hosts: a%05d\n    type: ib\n    fabric: A\n", i);
    else
        fputs("  - hosts: a[00000-09999]\n    type: ib\n", f);
    fclose(f);
    for (int i = 0; i < 3; i++) {
        uint64_t began = cpu_ns();

        holmes_cluster_destroy(read_ok(text));

        double s = (double)(cpu_ns() - began) / 1e9;

        best = s < best ? s : best;
    }
    free(text);
    return best;
}

Test(cluster_file, ten_thousand_nodes_are_read_in_well_under_a_second)
{
    double out = seconds_to_read(true), ranges = seconds_to_read(false);

    cr_log_info("written out %.1f ms, in ranges %.2f ms", out * 1e3, ranges * 1e3);
    cr_expect_lt(out, (double)patience_ns(500) / 1e9, "%.3f s", out);
    cr_expect_lt(ranges, (double)patience_ns(50) / 1e9, "%.3f s", ranges);
}

static char *documentation(void)
{
    char *text = calloc(1, 1 << 16);
    FILE *f = fopen(TEST_DATA "/../../docs/cluster-file.md", "r");

    cr_assert(f && text);
    cr_assert_gt(fread(text, 1, (1 << 16) - 1, f), 0);
    fclose(f);
    return text;
}

Test(cluster_file, the_example_of_the_documentation_is_two_fabrics)
{
    char *doc = documentation(), *example = strstr(doc, "```yaml\n") + strlen("```yaml\n"),
         why[512];
    struct holmes_fabrics *f;

    *strstr(example, "```") = '\0';

    struct holmes_cluster *c = read_ok(example);

    cr_assert_eq(holmes_fabrics_find(c, false, &f, why, sizeof why), 0, "%s", why);
    cr_assert_eq(f->n, 2);
    cr_expect_str_eq(f->fabrics[0].name, "A");
    cr_expect_str_eq(f->fabrics[1].name, "west");
    cr_expect_eq(c->groups[2].state, HOLMES_NODE_DEFECTIVE);
    holmes_fabrics_destroy(f);
    holmes_cluster_destroy(c);
    free(doc);
}

/* Every key of the schema, as `key` in the documentation. */
static void expect_keys(const char *doc, const cyaml_schema_field_t *fields)
{
    for (const cyaml_schema_field_t *f = fields; f->key; f++) {
        char key[64];

        snprintf(key, sizeof key, "`%s`", f->key);
        cr_expect(strstr(doc, key), "%s is not documented", key);
        if (f->value.type == CYAML_SEQUENCE && f->value.sequence.entry->type == CYAML_MAPPING)
            expect_keys(doc, f->value.sequence.entry->mapping.fields);
    }
}

Test(cluster_file, every_key_is_documented)
{
    char *doc = documentation();

    expect_keys(doc, holmes_cluster_schema.mapping.fields);
    free(doc);
}

Test(cluster_file, json_reads_back_equal)
{
    struct holmes_cluster *c = read_ok(whole);
    char *json = NULL, *text = written(c);
    size_t len;
    FILE *f = open_memstream(&json, &len);

    cr_assert_eq(holmes_cluster_json(c, f), 0);
    fclose(f);

    struct holmes_cluster *again = read_ok(json);
    char *twice = written(again);

    cr_expect_str_eq(twice, text, "from\n%s", json);
    free(json);
    free(text);
    free(twice);
    holmes_cluster_destroy(c);
    holmes_cluster_destroy(again);
}

Test(prefix, forms_people_write_have_one_plain_form)
{
    static const struct {
        const char *text, *plain;
    } rows[] = {
        {"fe80::", "fe80:0:0:0"},
        {"fe80:0:0:0", "fe80:0:0:0"},
        {"FE80:0000:0000:0000", "fe80:0:0:0"},
        {"fe80000000000000", "fe80:0:0:0"},
        {"0xfe80000000000001", "fe80:0:0:1"},
        {"fec0:0:0:12::", "fec0:0:0:12"},
        {"fe80:0:0:1:0:0:0:0", "fe80:0:0:1"},
        {"", NULL},
        {"fe80", NULL},
        {"fe80:0:0", NULL},
        {"fe80::1", NULL},
        {"fe80:0:0:0:0:0:0:1", NULL},
        {"fe80:0:0:g", NULL},
        {"fe8000000000000g", NULL},
        {"0x", NULL},
        {"::ffff:10.0.0.1", NULL},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char out[HOLMES_PREFIX_MAX] = "";
        int rc = holmes_prefix_read(rows[i].text, out);

        cr_expect_eq(rc, rows[i].plain ? 0 : -EINVAL, "%s", rows[i].text);
        if (rows[i].plain)
            cr_expect_str_eq(out, rows[i].plain, "%s", rows[i].text);
    }
    cr_expect(holmes_prefix_is_default("fe80:0:0:0"));
    cr_expect(!holmes_prefix_is_default("fe80:0:0:1"));
}

Test(near_name, finds_what_was_meant_and_nothing_else)
{
    static const char *const words[] = {"name", "gpus", "memory-gib", "nics", NULL};
    static const struct {
        const char *text, *near;
    } rows[] = {
        {"gpu", "gpus"},
        {"GPUS", "gpus"},
        {"memory", "memory-gib"},
        {"memory_gib", "memory-gib"},
        {"nisc", "nics"},
        {"nam", "name"},
        {"colour", NULL},
        {"x", NULL},
        {"a-word-that-is-much-longer-than-any-of-the-known-words", NULL},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *near = holmes_near_name(rows[i].text, words);

        cr_expect(near == rows[i].near || (near && rows[i].near && !strcmp(near, rows[i].near)),
                  "%s: %s", rows[i].text, near ? near : "(none)");
    }
}
