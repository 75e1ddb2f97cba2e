#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../support/patience.h"
#include "cluster.h"

/* Types that the tables below choose from. */
#define TYPES                                                                                      \
    "holmes-cluster: 1\n"                                                                          \
    "node-types:\n"                                                                                \
    "- {name: ib, gpus: 8, nics: [{name: mlx5_0, kind: infiniband, gbps: 400, prefix: 'fe80::'}]}" \
    "\n"                                                                                           \
    "- {name: ib1, gpus: 8, nics: [{name: mlx5_0, kind: infiniband, gbps: 400, prefix: "           \
    "'fec0:0:0:1'}]}\n"                                                                            \
    "- {name: ib2, gpus: 8, nics: [{name: mlx5_0, kind: infiniband, gbps: 400, prefix: "           \
    "'fec0:0:0:2'}]}\n"                                                                            \
    "- {name: ib12, gpus: 8, nics: [{name: mlx5_0, kind: infiniband, prefix: 'fec0:0:0:1'}, "      \
    "{name: mlx5_1, kind: infiniband, prefix: 'fec0:0:0:2'}]}\n"                                   \
    "- {name: untold, gpus: 8, nics: [{name: mlx5_0, kind: infiniband, gbps: 400}]}\n"             \
    "- {name: roce, gpus: 8, nics: [{name: mlx5_0, kind: roce, gbps: 200, gids: [v2-ipv4]}]}\n"    \
    "- {name: roce1, gpus: 8, nics: [{name: mlx5_0, kind: roce, gbps: 200, gids: [v1-ipv4]}]}\n"   \
    "- {name: roce12, gpus: 8, nics: [{name: mlx5_0, kind: roce, gbps: 200, gids: [v1-ipv4, "      \
    "v2-ipv4]}]}\n"                                                                                \
    "- {name: left, gpus: 8, nics: [{name: mlx5_0, kind: infiniband, fabric: left}]}\n"            \
    "- {name: both, gpus: 8, nics: [{name: mlx5_0, kind: infiniband, fabric: left}, {name: "       \
    "mlx5_1, kind: infiniband, fabric: right}]}\n"                                                 \
    "- {name: gpud, gpus: 8, nics: [{name: mlx5_0, kind: infiniband, gbps: 400, prefix: "          \
    "'fec0:0:0:1'}, {name: mlx5_1, kind: infiniband, gbps: 400, prefix: 'fec0:0:0:1'}, {name: "    \
    "mlx5_bond_0, kind: roce, gbps: 200}, {name: eth0, kind: ethernet, gbps: 25}]}\n"              \
    "- {name: eth, gpus: 8, nics: [{name: eth0, kind: ethernet, gbps: 25}]}\n"                     \
    "- {name: bare, gpus: 0}\n"

static struct holmes_cluster *cluster_of(const char *rest)
{
    struct holmes_cluster *c = NULL;
    char why[512] = "", *text = NULL;

    cr_assert_geq(asprintf(&text, TYPES "%s", rest), 0);
    cr_assert_eq(holmes_cluster_parse("c.yaml", text, strlen(text), &c, why, sizeof why), 0, "%s",
                 why);
    free(text);
    return c;
}

/* "A:a[1-2] B:b1", in the order of the groups; "-" where a group has no fabric. */
static char *grouping_text(const struct holmes_cluster *c, const struct holmes_fabrics *f)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    for (int i = 0; i < c->ngroups; i++) {
        char *hosts = holmes_hostlist_text(&c->groups[i].hosts);
        int k = f->group_fabric[i];

        fprintf(out, "%s%s:%s", i > 0 ? " " : "", k >= 0 ? f->fabrics[k].name : "-", hosts);
        free(hosts);
    }
    fclose(out);
    return text;
}

static char *notes_text(const struct holmes_fabrics *f)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    for (int i = 0; i < f->nnotes; i++)
        fprintf(out, "%s\n", f->notes[i]);
    fclose(out);
    return text;
}

struct row {
    const char *what, *rest;
    const char *groups; /* NULL: refused */
    const char *says;   /* in the refusal, or in the notes; NULL: no note at all */
    bool separate;
};

static void check_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct row *r = &rows[i];
        struct holmes_cluster *c = cluster_of(r->rest);
        struct holmes_fabrics *f = NULL;
        char why[512] = "";
        int rc = holmes_fabrics_find(c, r->separate, &f, why, sizeof why);

        if (!r->groups) {
            cr_expect_eq(rc, -EINVAL, "%s: passed", r->what);
            cr_expect_null(f);
            cr_expect(strstr(why, r->says), "%s: says \"%s\", want \"%s\"", r->what, why, r->says);
            if (f) {
                char *got = grouping_text(c, f);

                cr_expect(false, "%s: grouped as %s", r->what, got);
                free(got);
            }
        } else if (rc != 0) {
            cr_expect(false, "%s: refused: %s", r->what, why);
        } else {
            char *got = grouping_text(c, f), *notes = notes_text(f);

            cr_expect_str_eq(got, r->groups, "%s: %s, want %s", r->what, got, r->groups);
            if (r->says)
                cr_expect(strstr(notes, r->says), "%s: notes \"%s\", want \"%s\"", r->what, notes,
                          r->says);
            else
                cr_expect_str_eq(notes, "", "%s: notes \"%s\"", r->what, notes);
            free(got);
            free(notes);
        }
        holmes_fabrics_destroy(f);
        holmes_cluster_destroy(c);
    }
}

#define CHECK(...)                                                                                 \
    do {                                                                                           \
        static const struct row rows[] = {__VA_ARGS__};                                            \
        check_rows(rows, sizeof rows / sizeof rows[0]);                                            \
    } while (0)

#define PROBE(from, to, reaches) "- {from: " from ", to: " to ", reaches: " reaches "}\n"

#define FOUR    "nodes: [{hosts: 'n[0-3]', type: ib}]\n"
#define TWO_TWO "nodes: [{hosts: 'n[0-1]', type: ib}, {hosts: 'n[2-3]', type: ib}]\n"

/* Two InfiniBand pairs with the default prefix, on different switches (case C2). */
Test(fabric, pairs_that_look_alike_are_never_guessed)
{
    CHECK(
        {"nothing given, one entry", FOUR, NULL, "ambiguous: whether n[0-3] reach one another"},
        {"the remedy is told", FOUR, NULL, "\"fabric: NAME\""},
        {"the reason is told", FOUR, NULL, "default subnet prefix"},
        {"nothing given, an entry each",
         "nodes: [{hosts: n0, type: ib}, {hosts: n1, type: ib}, {hosts: n2, type: ib}, {hosts: "
         "n3, type: ib}]\n",
         NULL, "ambiguous: whether n0 and n1 share a fabric"},
        {"ids A, A, B, B",
         "nodes: [{hosts: n0, type: ib, fabric: A}, {hosts: n1, type: ib, fabric: A}, {hosts: "
         "n2, type: ib, fabric: B}, {hosts: n3, type: ib, fabric: B}]\n",
         "A:n0 A:n1 B:n2 B:n3", NULL},
        {"ids of two entries",
         "nodes: [{hosts: 'n[0-1]', type: ib, fabric: A}, {hosts: 'n[2-3]', type: ib, fabric: "
         "B}]\n",
         "A:n[0-1] B:n[2-3]", NULL},
        {"probes 0-1 and 2-3 reach, the rest not",
         FOUR "probes:\n" PROBE("n0", "n1", "yes") PROBE("n2", "n3", "yes") PROBE("n0", "n2", "no")
             PROBE("n0", "n3", "no") PROBE("n1", "n2", "no") PROBE("n1", "n3", "no"),
         "A:n[0-1] B:n[2-3]", "split into 2 parts"},
        {"one no between them is enough",
         FOUR "probes:\n" PROBE("n0", "n1", "yes") PROBE("n2", "n3", "yes") PROBE("n3", "n0", "no"),
         "A:n[0-1] B:n[2-3]", "split into 2 parts"},
        {"pairs that are interleaved",
         FOUR "probes:\n" PROBE("n0", "n2", "yes") PROBE("n1", "n3", "yes") PROBE("n0", "n1", "no"),
         "A:n0 B:n1 A:n2 B:n3", "split into 4 parts"},
        {"all reach",
         FOUR "probes:\n" PROBE("n0", "n1", "yes") PROBE("n1", "n2", "yes")
             PROBE("n2", "n3", "yes"),
         "A:n[0-3]", NULL},
        {"not transitive: 0-1 and 1-2 reach, 0-2 not",
         FOUR "probes:\n" PROBE("n0", "n1", "yes") PROBE("n1", "n2", "yes") PROBE("n0", "n2", "no")
             PROBE("n2", "n3", "yes"),
         NULL, "not transitive: n0 reaches n1 and n1 reaches n2, but n0 does not reach n2"},
        {"not transitive, over a longer way",
         FOUR "probes:\n" PROBE("n0", "n1", "yes") PROBE("n1", "n2", "yes") PROBE("n2", "n3", "yes")
             PROBE("n3", "n0", "no"),
         NULL, "not transitive: n0 and n3 are joined over other nodes, but n0 does not reach n3"},
        {"one node is not probed",
         FOUR "probes:\n" PROBE("n0", "n1", "yes") PROBE("n1", "n2", "yes"), NULL,
         "ambiguous: whether n3 and n[0-2] share a fabric"},
        {"two nodes are not probed", FOUR "probes:\n" PROBE("n0", "n1", "yes"), NULL,
         "ambiguous: whether n[0-3] reach one another"},
        {"no probe between the pairs",
         FOUR "probes:\n" PROBE("n0", "n1", "yes") PROBE("n2", "n3", "yes"), NULL,
         "ambiguous: whether n[0-1] and n[2-3] share a fabric"},
        {"yes one way, no the other",
         TWO_TWO "probes:\n" PROBE("n0", "n1", "yes") PROBE("n1", "n0", "no"), NULL,
         "contradict one another: from n0 to n1 reaches, from n1 to n0 does not"},
        {"not transitive is refused even where ambiguous is not",
         FOUR "probes:\n" PROBE("n0", "n1", "yes") PROBE("n1", "n2", "yes") PROBE("n0", "n2", "no")
             PROBE("n2", "n3", "yes"),
         NULL, "not transitive", true});
}

/* n0, n1 with eight InfiniBand ports, n2, n3 with RoCE (case C1). */
Test(fabric, infiniband_and_roce_are_two)
{
    CHECK({"ids",
           "nodes: [{hosts: 'n[0-1]', type: ib, fabric: ib-east}, {hosts: 'n[2-3]', type: "
           "roce, fabric: roce-west}]\n",
           "ib-east:n[0-1] roce-west:n[2-3]", NULL},
          {"a node each needs nothing", "nodes: [{hosts: n0, type: ib}, {hosts: n2, type: roce}]\n",
           "A:n0 B:n2", NULL},
          {"prefix and probe",
           "nodes: [{hosts: 'n[0-1]', type: ib1}, {hosts: 'n[2-3]', type: roce}]\n"
           "probes:\n" PROBE("n2", "n3", "yes"),
           "A:n[0-1] B:n[2-3]", NULL},
          {"RoCE without anything", "nodes: [{hosts: 'n[2-3]', type: roce}]\n", NULL,
           "ambiguous: whether n[2-3] reach one another over RDMA cannot be told: RoCE"},
          {"a probe cannot join them",
           "nodes: [{hosts: n0, type: ib}, {hosts: n2, type: roce}]\nprobes:\n" PROBE("n0", "n2",
                                                                                      "yes"),
           "A:n0 B:n2", "link layers"},
          {"one id on both",
           "nodes: [{hosts: n0, type: ib, fabric: A}, {hosts: n2, type: roce, fabric: A}]\n", NULL,
           "fabric \"A\" is given to n0 (InfiniBand) and to n2 (RoCE)"});
}

Test(fabric, ids_come_first)
{
    CHECK({"over prefixes",
           "nodes: [{hosts: a, type: ib1, fabric: x}, {hosts: b, type: ib2, "
           "fabric: x}, {hosts: c, type: ib1, fabric: y}]\n",
           "x:a x:b y:c", NULL},
          {"of the NICs", "nodes: [{hosts: 'a[1-2]', type: left}, {hosts: b, type: both}]\n",
           "left:a[1-2] left:b", NULL},
          {"of the entry before the NIC's",
           "nodes: [{hosts: a, type: left}, {hosts: b, type: left, fabric: mine}]\n",
           "left:a mine:b", NULL},
          {"over probes",
           "nodes: [{hosts: a, type: ib, fabric: x}, {hosts: b, type: ib, fabric: y}, {hosts: c, "
           "type: ib, fabric: x}]\nprobes:\n" PROBE("a", "b", "yes"),
           "x:a y:b x:c", "the probe from a to b says yes, but ids"},
          {"over probes that say no",
           "nodes: [{hosts: 'a[1-2]', type: ib, fabric: x}]\nprobes:\n" PROBE("a1", "a2", "no"),
           "x:a[1-2]", "the probe from a1 to a2 says no, but ids"},
          {"one without an id", "nodes: [{hosts: a, type: ib, fabric: x}, {hosts: b, type: ib}]\n",
           NULL, "ambiguous: whether a and b share a fabric"},
          {"one without an id, of the same prefix",
           "nodes: [{hosts: a, type: ib1, fabric: x}, {hosts: b, type: ib1}]\n", "x:a x:b", NULL},
          {"one without an id, of another prefix",
           "nodes: [{hosts: a, type: ib1, fabric: x}, {hosts: b, type: ib2}]\n", "x:a A:b", NULL},
          {"one without an id, of a prefix of two",
           "nodes: [{hosts: a, type: ib1, fabric: x}, {hosts: b, type: ib1, fabric: y}, {hosts: "
           "c, type: ib1}]\n",
           NULL,
           "ambiguous: c have the subnet prefix fec0:0:0:1, as have nodes of \"x\" and of "
           "\"y\""},
          {"one without an id that ties two",
           "nodes: [{hosts: a, type: ib1, fabric: x}, {hosts: b, type: ib2, fabric: y}, {hosts: "
           "c, type: ib12}]\n",
           NULL, "share subnet prefixes with \"x\" and with \"y\""},
          {"one without an id, probed to both",
           "nodes: [{hosts: a, type: ib, fabric: x}, {hosts: b, type: ib, fabric: y}, {hosts: c, "
           "type: ib}]\nprobes:\n" PROBE("c", "a", "yes") PROBE("c", "b", "yes"),
           NULL, "not transitive: they join a and b over other nodes"},
          {"letters that are ids are not given again",
           "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib2, fabric: A}, {hosts: c, type: "
           "eth}]\n",
           "B:a A:b C:c", NULL});
}

Test(fabric, prefixes_and_kinds_of_gids)
{
    CHECK(
        {"same prefix", "nodes: [{hosts: 'a[1-2]', type: ib1}, {hosts: b, type: ib1}]\n",
         "A:a[1-2] A:b", NULL},
        {"different prefixes", "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib2}]\n", "A:a B:b",
         NULL},
        {"the default and another", "nodes: [{hosts: a, type: ib}, {hosts: b, type: ib1}]\n",
         "A:a B:b", NULL},
        {"a node in two subnets ties them",
         "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib2}, {hosts: c, type: ib12}]\n",
         "A:a A:b A:c", NULL},
        {"untold", "nodes: [{hosts: a, type: untold}, {hosts: b, type: ib1}]\n", NULL,
         "ambiguous: whether a and b share"},
        {"untold, with a probe that says no",
         "nodes: [{hosts: a, type: untold}, {hosts: b, type: ib1}]\nprobes:\n" PROBE("b", "a",
                                                                                     "no"),
         "A:a B:b", NULL},
        {"a probe over a prefix",
         "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib2}]\nprobes:\n" PROBE("a", "b", "yes"),
         "A:a B:b", "the probe from a to b says yes"},
        {"prefixes joined over a third",
         "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib2}, {hosts: c, type: "
         "untold}]\nprobes:\n" PROBE("a", "c", "yes") PROBE("b", "c", "yes"),
         NULL, "not transitive: they join a and b over other nodes"},
        {"no common kind", "nodes: [{hosts: a, type: roce}, {hosts: b, type: roce1}]\n", "A:a B:b",
         NULL},
        {"a common kind", "nodes: [{hosts: a, type: roce}, {hosts: b, type: roce12}]\n", NULL,
         "ambiguous: whether a and b share"},
        {"a common kind and a probe",
         "nodes: [{hosts: a, type: roce}, {hosts: b, type: roce12}]\nprobes:\n" PROBE("a", "b",
                                                                                      "yes"),
         "A:a A:b", NULL},
        {"kinds joined over a third",
         "nodes: [{hosts: c, type: roce12}, {hosts: a, type: roce}, {hosts: b, type: "
         "roce1}]\nprobes:\n" PROBE("a", "c", "yes") PROBE("c", "b", "yes"),
         NULL, "not transitive: they join a and b over other nodes"});
}

Test(fabric, nodes_without_rdma_are_one_unless_told)
{
    CHECK(
        {"one together", "nodes: [{hosts: 'a[1-3]', type: eth}, {hosts: b, type: bare}]\n",
         "A:a[1-3] A:b", NULL},
        {"an id each",
         "nodes: [{hosts: 'a[1-3]', type: eth, fabric: x}, {hosts: b, type: eth, fabric: y}, "
         "{hosts: c, type: eth}]\n",
         "x:a[1-3] y:b A:c", NULL},
        {"beside RDMA", "nodes: [{hosts: a, type: ib1}, {hosts: b, type: eth}]\n", "A:a B:b", NULL},
        {"an id of RDMA nodes",
         "nodes: [{hosts: a, type: ib1, fabric: x}, {hosts: b, type: eth, fabric: x}]\n", NULL,
         "fabric \"x\" is given to a (InfiniBand) and to b (no RDMA)"});
}

Test(fabric, nodes_that_take_no_part_settle_and_refuse_nothing)
{
    CHECK(
        {"defective ones of the same type",
         "nodes: [{hosts: a, type: ib}, {hosts: 'b[1-9]', type: ib, state: defective}]\n",
         "A:a -:b[1-9]", NULL},
        {"idle ones that are known",
         "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib1, state: idle}]\n", "A:a A:b", NULL},
        {"with an id",
         "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib, state: idle, fabric: "
         "x}]\n",
         "A:a x:b", NULL},
        {"without RDMA",
         "nodes: [{hosts: a, type: ib1}, {hosts: b, type: bare, state: "
         "defective}]\n",
         "A:a -:b", NULL},
        {"that did not answer, beside Ethernet",
         "nodes: [{hosts: a, type: eth}, {hosts: b, type: bare, state: defective}]\n", "A:a -:b",
         NULL},
        {"part of them probed",
         "nodes: [{hosts: a, type: ib}, {hosts: 'b[1-3]', type: ib, state: idle}]\nprobes:\n" PROBE(
             "a", "b2", "yes"),
         "A:a -:b1 A:b2 -:b3", "split into 3 parts"});
}

Test(fabric, entries_are_fabrics_where_the_caller_says_so)
{
    CHECK({"two entries", TWO_TWO, "A:n[0-1] B:n[2-3]", "n[0-1] are taken as one fabric", true},
          {"kept apart is told", TWO_TWO, "A:n[0-1] B:n[2-3]",
           "n[0-1] and n[2-3] are kept apart: whether they share a fabric cannot be told", true},
          {"probes between entries still join", TWO_TWO "probes:\n" PROBE("n0", "n3", "yes"),
           "A:n[0-1] A:n[2-3]", "taken as one fabric", true},
          {"a probe inside that says no",
           TWO_TWO "probes:\n" PROBE("n0", "n1", "no") PROBE("n2", "n3", "yes"),
           "A:n0 B:n1 C:n[2-3]", "kept apart", true},
          {"a probe inside that says no, and one that is not probed",
           FOUR "probes:\n" PROBE("n0", "n1", "no"), NULL,
           "a probe says that n0 does not reach n1, and both stand in one entry", true},
          {"a prefix of two fabrics",
           "nodes: [{hosts: a, type: ib1, fabric: x}, {hosts: b, type: ib1, fabric: y}, {hosts: "
           "c, type: ib1}]\n",
           "x:a y:b A:c", "c are kept apart", true});
}

Test(fabric, probes_name_hosts_and_nics_that_exist)
{
    CHECK({"no such host", TWO_TWO "probes:\n" PROBE("n0", "n9", "yes"), NULL,
           "line 18: probe 1 (from n0 to n9): there is no host \"n9\""},
          {"no such NIC", TWO_TWO "probes:\n" PROBE("n0", "'n1:mlx5_7'", "yes"), NULL,
           "type ib has no NIC \"mlx5_7\""},
          {"any NIC that reaches is enough",
           "nodes: [{hosts: 'n[0-1]', type: both, fabric: x}, {hosts: a, type: ib}, {hosts: b, "
           "type: ib, fabric: z}]\nprobes:\n" PROBE("'a:mlx5_0'", "b", "no")
               PROBE("a", "'b:mlx5_0'", "yes") PROBE("a", "'n0:mlx5_0'", "no"),
           "x:n[0-1] z:a z:b", NULL},
          {"a NIC that does not count",
           "nodes: [{hosts: a, type: gpud}, {hosts: b, type: roce}]\nprobes:\n" PROBE(
               "'a:mlx5_bond_0'", "b", "yes"),
           "A:a B:b", "is not looked at"},
          {"a node and itself", TWO_TWO "probes:\n" PROBE("n0", "n0", "no"), NULL, "ambiguous"});
}

Test(fabric, links_name_fabrics_that_exist)
{
    CHECK({"known",
           "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib2}]\nlinks: [{between: [A, "
           "B], rtt-ms: 20}, {gbps: 10}]\n",
           "A:a B:b", NULL},
          {"unknown",
           "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib2}]\nlinks: [{between: "
           "[A, east], rtt-ms: 20}]\n",
           NULL, "line 17: link between A and east: there is no fabric \"east\"; there are: A, B"},
          {"twice",
           "nodes: [{hosts: a, type: ib1}, {hosts: b, type: ib2}]\nlinks: [{between: [A, B]}, "
           "{between: [B, A]}]\n",
           NULL, "two links between \"A\" and \"B\""},
          {"two for all", "nodes: [{hosts: a, type: ib1}]\nlinks: [{gbps: 3}, {gbps: 4}]\n", NULL,
           "two links without \"between\""},
          {"to itself", "nodes: [{hosts: a, type: ib1}]\nlinks: [{between: [A, A]}]\n", NULL,
           "a link between \"A\" and itself"});
}

Test(fabric, a_fabric_knows_its_nics_speed_and_reason)
{
    struct holmes_cluster *c = cluster_of(
        "nodes: [{hosts: a, type: gpud}, {hosts: b, type: ib1}, {hosts: e, type: eth}, {hosts: r, "
        "type: roce, fabric: west}, {hosts: x, type: bare, state: idle}]\n");
    struct holmes_fabrics *f;
    char why[512] = "";
    static const struct {
        const char *name, *reason;
        bool rdma;
        enum holmes_link_layer link;
        int nics;
        double gbps;
    } want[] = {
        {"A", "InfiniBand; one subnet prefix, fec0:0:0:1", true, HOLMES_LINK_INFINIBAND, 1, 400},
        {"B", "no RDMA, joined by Ethernet", false, HOLMES_LINK_UNKNOWN, 1, 25},
        {"west", "RoCE; told by the id \"west\"", true, HOLMES_LINK_ETHERNET, 1, 200},
    };

    cr_assert_eq(holmes_fabrics_find(c, false, &f, why, sizeof why), 0, "%s", why);
    cr_assert_eq(f->n, 3);
    for (int i = 0; i < 3; i++) {
        cr_expect_str_eq(f->fabrics[i].name, want[i].name);
        cr_expect_str_eq(f->fabrics[i].reason, want[i].reason);
        cr_expect(f->fabrics[i].rdma == want[i].rdma && f->fabrics[i].link == want[i].link &&
                      f->fabrics[i].nics == want[i].nics && f->fabrics[i].gbps == want[i].gbps,
                  "%s: %d NICs, %g Gb/s", want[i].name, f->fabrics[i].nics, f->fabrics[i].gbps);
    }

    char *notes = notes_text(f);

    cr_expect(strstr(notes, "type gpud counts by its 2 InfiniBand NICs; mlx5_bond_0 (RoCE)"), "%s",
              notes);
    free(notes);
    holmes_fabrics_destroy(f);
    holmes_cluster_destroy(c);
}

/* Of this process: what others do on the machine does not count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double seconds_to_find(const char *rest, int want_fabrics)
{
    struct holmes_cluster *c = cluster_of(rest);
    struct holmes_fabrics *f = NULL;
    char why[512] = "";
    uint64_t began = cpu_ns();
    int rc = holmes_fabrics_find(c, false, &f, why, sizeof why);
    double s = (double)(cpu_ns() - began) / 1e9;

    cr_assert_eq(rc, 0, "%s", why);
    cr_expect_eq(f->n, want_fabrics);
    holmes_fabrics_destroy(f);
    holmes_cluster_destroy(c);
    return s;
}

Test(fabric, ten_thousand_entries_and_probes_take_milliseconds)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    fputs("nodes:\n", out);
    for (int i = 0; i < 10000; i++)
        fprintf(out, "- {hosts: a%d, type: %s, fabric: f%d}\n", i, i % 2 ? "ib" : "roce", i % 20);
    fclose(out);
    cr_expect_lt(seconds_to_find(text, 20), (double)patience_ns(500) / 1e9);
    free(text);

    /* One entry, whose hosts a chain of probes joins to two fabrics. */
    out = open_memstream(&text, &len);
    fputs("nodes: [{hosts: 'a[0-9999]', type: ib}]\nprobes:\n", out);
    for (int i = 0; i + 1 < 10000; i++)
        fprintf(out, "- {from: a%d, to: a%d, reaches: %s}\n", i, i + 1, i == 4999 ? "no" : "yes");
    fclose(out);
    cr_expect_lt(seconds_to_find(text, 2), (double)patience_ns(500) / 1e9);
    free(text);
}
