#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "topology/tool/check.h"

/* Two RoCE fabrics of two nodes each, with eight 200 Gb/s ports and one 25 Gb/s Ethernet NIC, and a
 * link of 10 Gb/s and 20 ms between them. */
static struct holmes_cluster_nic nics[] = {{.name = "mlx5_0", .rdma = true, .gbps = 200},
                                           {.name = "eno1", .gbps = 25}};
static struct holmes_node_type type = {.name = "t", .gpus = 8, .nnics = 2, .nics = nics};
static struct holmes_node_group groups[] = {{.type = 0}, {.type = 0}};
static struct holmes_cluster_link links[] = {
    {.from = "B", .to = "A", .gbps = 10, .node_gbps = 0, .rtt_ms = 20}};
static struct holmes_cluster cluster = {
    .ntypes = 1, .types = &type, .ngroups = 2, .groups = groups, .nlinks = 1, .links = links};
static struct holmes_fabric fabric[] = {{.name = "A", .rdma = true, .nics = 8, .gbps = 1600},
                                        {.name = "B", .rdma = true, .nics = 8, .gbps = 1600}};
static int group_fabric[] = {0, 1};
static struct holmes_fabrics fabrics = {.n = 2, .fabrics = fabric, .group_fabric = group_fabric};
static struct holmes_plan_node nodes[] = {{.group = 0}, {.group = 0}, {.group = 1}, {.group = 1}};
static struct holmes_plan plan = {.nnodes = 4, .nodes = nodes};
static const struct holmes_plan_doc doc = {.cluster = &cluster, .fabrics = &fabrics, .plan = &plan};

static const char *const names[] = {"a0", "a1", "b0", "b1"};

/* All as the plan has it. Three rounds; two of them have two pairs across. */
static struct holmes_check_run *good_run(void)
{
    struct holmes_schedule s;
    struct holmes_check_run *run;

    cr_assert_eq(holmes_schedule_all(4, &s), 0);
    cr_assert_eq(holmes_check_run_create(names, 4, &s, &run), 0);
    holmes_schedule_fini(&s);
    for (int i = 0; i < 4; i++) {
        run->nodes[i].state = HOLMES_CHECK_THERE;
        run->nodes[i].successes = 3;
    }
    for (int i = 0; i < run->npairs; i++) {
        struct holmes_check_result *p = &run->pairs[i];
        bool across = p->a < 2 && p->b >= 2;

        p->state = HOLMES_CHECK_MEASURED;
        strcpy(p->wire, across ? "tcp" : "verbs");
        strcpy(p->reason, across ? "HOLMES_FABRIC differs (A, B)" : "same HOLMES_FABRIC");
        strcpy(p->local, "eno1 10.0.0.1");
        p->gbps[0] = p->gbps[1] = across ? 5.1 : 190;
        p->rtt_us = across ? 20100 : 5;
    }
    return run;
}

static struct holmes_check_result *pair(struct holmes_check_run *run, int a, int b)
{
    for (int i = 0; i < run->npairs; i++)
        if (run->pairs[i].a == a && run->pairs[i].b == b)
            return &run->pairs[i];
    cr_assert_fail("no pair");
    return NULL;
}

static struct holmes_check_finding *judge(const struct holmes_check_run *run, bool with_plan,
                                          double min_gbps, int *n)
{
    struct holmes_check_limits limits = {
        .doc = with_plan ? &doc : NULL, .share = 0.5, .min_gbps = min_gbps};
    struct holmes_check_finding *found = NULL;

    cr_assert_eq(holmes_check_judge(run, &limits, &found, n), 0);
    return found;
}

static void one_finding(const struct holmes_check_run *run, bool with_plan, double min_gbps,
                        const char *says)
{
    int n;
    struct holmes_check_finding *f = judge(run, with_plan, min_gbps, &n);

    cr_assert_eq(n, 1, "%d findings, first: %s", n, n ? f[0].what : "");
    cr_assert(strstr(f[0].what, says), "\"%s\" lacks \"%s\"", f[0].what, says);
    cr_assert(f[0].remedy[0], "no remedy for %s", f[0].what);
    free(f);
}

Test(check_judge, expects_what_the_plan_has_between_two_nodes)
{
    struct holmes_check_expect e;

    holmes_check_expect(&doc, 0, 1, &e);
    cr_assert(e.rdma && e.gbps == 200 && e.link_gbps == 0, "one of eight ports");
    cr_assert_str_eq(e.what, "fabric A");
    holmes_check_expect(&doc, 3, 0, &e);
    cr_assert(!e.rdma && e.gbps == 25 && e.link_gbps == 10 && e.rtt_ms == 20);
    cr_assert_str_eq(e.what, "the link between fabrics A and B");
    links[0].node_gbps = 5;
    holmes_check_expect(&doc, 1, 2, &e);
    cr_assert_eq(e.gbps, 5, "the file says what a node gets");
    links[0].from = "C";
    holmes_check_expect(&doc, 1, 2, &e);
    cr_assert(e.gbps == 25 && e.link_gbps == 0 && e.rtt_ms == 0, "no link of these fabrics");
    links[0].from = links[0].to = NULL;
    holmes_check_expect(&doc, 1, 2, &e);
    cr_assert(e.gbps == 5 && e.link_gbps == 10, "a link of any");
    group_fabric[1] = -1;
    holmes_check_expect(&doc, 1, 2, &e);
    cr_assert(e.gbps == 0 && !e.rdma);
}

Test(check_judge, a_run_that_is_as_planned_has_no_finding)
{
    struct holmes_check_run *run = good_run();
    int n;

    free(judge(run, true, 0, &n));
    cr_assert_eq(n, 0);
    free(judge(run, false, 4, &n));
    cr_assert_eq(n, 0);
    holmes_check_run_destroy(run);
}

Test(check_judge, each_shortfall_is_told_with_its_hosts)
{
    struct holmes_check_run *run = good_run();
    struct holmes_check_result *p;

    p = pair(run, 0, 1);
    strcpy(p->wire, "tcp");
    strcpy(p->reason, "link layers differ (InfiniBand, RoCE)");
    one_finding(run, true, 0, "a0 to a1: tcp in the place of RDMA on fabric A: link layers differ");
    strcpy(p->wire, "verbs");
    p->gbps[1] = 99;
    one_finding(run, true, 0, "a1 to a0: 99 Gb/s over verbs, where the plan counts on 200");
    p->gbps[1] = 190;
    p = pair(run, 1, 2);
    p->rtt_us = 41000;
    one_finding(run, true, 0, "a1 to b0: round trip 41 ms where the plan counts on 20");
    p->rtt_us = 20000;
    p->gbps[0] = 2.4; /* half of its share of 10 would be 2.5 */
    one_finding(run, true, 0,
                "a1 to b0: 2.4 Gb/s over tcp, where the plan counts on 10 on the link "
                "between fabrics A and B, shared by 2 pairs here");
    one_finding(run, false, 2.5, "below --min-gbps 2.5");
    p->gbps[0] = 5.1;
    p->alone = true; /* now that is too little */
    p->gbps[1] = 4.8;
    one_finding(run, true, 0, "b0 to a1: 4.8 Gb/s over tcp, alone, where the plan counts on 10");
    p->gbps[1] = 5.1;
    p->state = HOLMES_CHECK_BROKEN;
    strcpy(p->why, "b0: no connection: Connection refused");
    one_finding(run, true, 0, "a1 and b0: b0: no connection: Connection refused");
    p->state = HOLMES_CHECK_WAITING;
    one_finding(run, true, 0, "1 of 6 pairs were not measured: the time was up");
    p->state = HOLMES_CHECK_SKIPPED;
    run->nodes[2].state = HOLMES_CHECK_SILENT;
    strcpy(run->nodes[2].why, "no answer within 20.0 s");
    one_finding(run, true, 0, "b0 hangs: no answer within 20.0 s");
    holmes_check_run_destroy(run);
}

Test(check_judge, every_state_of_a_node_has_a_sentence_and_a_remedy)
{
    struct holmes_check_run *run = good_run();

    for (int s = HOLMES_CHECK_UNREACHED; s <= HOLMES_CHECK_CUT_OFF; s++) {
        run->nodes[1].state = (enum holmes_check_node_state)s;
        strcpy(run->nodes[1].why, "because\033");
        one_finding(run, false, 0, "because?");
    }
    holmes_check_run_destroy(run);
}

Test(check_judge, a_host_with_loopback_alone_is_told)
{
    struct holmes_check_run *run = good_run();
    struct holmes_check_nic lo = {.name = "lo"};
    int n;

    run->nodes[3].nics = malloc(sizeof lo);
    run->nodes[3].nics[0] = lo;
    run->nodes[3].nnics = 1;
    run->nodes[3].failures = 1;
    free(judge(run, false, 0, &n));
    cr_assert_eq(n, 0);
    run->nodes[3].successes = 0;
    one_finding(run, false, 0, "b1 has no network that can be used but lo");
    holmes_check_run_destroy(run);
}

Test(check_judge, findings_of_one_cause_are_not_all_shown)
{
    struct holmes_check_run *run = good_run();
    struct holmes_check_groups g = {0};
    struct holmes_check_finding *f;
    char *text;
    size_t len;
    FILE *out;
    int n;

    run->nodes[3].state = HOLMES_CHECK_SILENT;
    f = judge(run, false, 6, &n); /* across, each way */
    cr_assert_eq(n, 1 + 8);
    out = open_memstream(&text, &len);
    holmes_check_print(run, &g, f, n, out);
    fclose(out);
    cr_assert(strstr(text, "* b1 hangs") && strstr(text, "* and 4 more like these"), "%s", text);
    cr_assert(strstr(text, "9 things are not as they should be"), "%s", text);
    free(text);
    free(f);
    holmes_check_run_destroy(run);
}

static void groups_are(const struct holmes_check_run *run, int n, int a0, int a1, int b0, int b1)
{
    struct holmes_check_groups g;

    cr_assert_eq(holmes_check_groups(run, &g), 0);
    cr_assert_eq(g.n, n, "%d groups", g.n);
    if (n > 0)
        cr_assert(g.group[0] == a0 && g.group[1] == a1 && g.group[2] == b0 && g.group[3] == b1,
                  "%d %d %d %d", g.group[0], g.group[1], g.group[2], g.group[3]);
    holmes_check_groups_fini(&g);
}

Test(check_judge, slow_links_part_the_hosts_into_groups)
{
    struct holmes_check_run *run = good_run();

    groups_are(run, 2, 0, 0, 1, 1);
    run->nodes[1].successes = 0;
    for (int i = 0; i < run->npairs; i++)
        if (run->pairs[i].a == 1 || run->pairs[i].b == 1)
            run->pairs[i].state = HOLMES_CHECK_SKIPPED;
    groups_are(run, 2, 0, -1, 1, 1);
    holmes_check_run_destroy(run);

    run = good_run();
    for (int i = 0; i < run->npairs; i++) /* one slow host */
        run->pairs[i].gbps[0] = run->pairs[i].gbps[1] = run->pairs[i].b == 3 ? 1 : 9 + i;
    groups_are(run, 2, 0, 0, 0, 1);
    for (int i = 0; i < run->npairs; i++) { /* unequal parts of the slow link, a busy pair b0-b1 */
        struct holmes_check_result *p = &run->pairs[i];
        bool across = p->a < 2 && p->b >= 2;

        p->gbps[0] = p->gbps[1] = across ? (i % 2 ? 0.02 : 0.15) : p->a == 0 ? 6 : 0.7;
    }
    groups_are(run, 2, 0, 0, 1, 1);
    for (int i = 0; i < run->npairs; i++) /* one slow pair parts nobody */
        run->pairs[i].gbps[0] = run->pairs[i].gbps[1] = i == 2 ? 1 : 9;
    groups_are(run, 0, 0, 0, 0, 0);
    for (int i = 0; i < run->npairs; i++) /* no gap */
        run->pairs[i].gbps[0] = run->pairs[i].gbps[1] = 5 + 2 * i;
    groups_are(run, 0, 0, 0, 0, 0);
    for (int i = 0; i < run->npairs; i++)
        run->pairs[i].gbps[0] = run->pairs[i].gbps[1] = 0;
    groups_are(run, 0, 0, 0, 0, 0);
    holmes_check_run_destroy(run);
}

static char *printed(const struct holmes_check_run *run, bool json)
{
    struct holmes_check_groups g;
    struct holmes_check_finding *f;
    char *text;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    int n;

    f = judge(run, true, 0, &n);
    cr_assert_eq(holmes_check_groups(run, &g), 0);
    if (json)
        cr_assert_eq(holmes_check_print_json(run, &g, f, n, out), 0);
    else
        holmes_check_print(run, &g, f, n, out);
    fclose(out);
    free(f);
    holmes_check_groups_fini(&g);
    return text;
}

Test(check_judge, table_has_each_way_in_its_cell)
{
    struct holmes_check_run *run = good_run();
    char *text;

    pair(run, 0, 1)->gbps[1] = 42;
    pair(run, 0, 3)->state = HOLMES_CHECK_BROKEN;
    text = printed(run, false);
    cr_assert(strstr(text, "a0                -  verbs 190   tcp 5.10     broken\n"), "%s", text);
    cr_assert(strstr(text, "a1         verbs 42          -   tcp 5.10   tcp 5.10\n"), "%s", text);
    cr_assert(strstr(text, "between {a0, a1} and {b0, b1}: 5.1 Gb/s forth"), "%s", text);
    cr_assert(strstr(text, "5 of 6 pairs of 4 hosts measured"), "%s", text);
    free(text);
    holmes_check_run_destroy(run);
}

Test(check_judge, json_has_everything)
{
    struct holmes_check_run *run = good_run();
    json_t *o, *p;
    char *text;

    pair(run, 2, 3)->gbps[0] = 12.5;
    strcpy(run->nodes[0].why, "");
    text = printed(run, true);
    o = json_loads(text, 0, NULL);
    cr_assert_not_null(o, "%s", text);
    cr_assert(json_is_false(json_object_get(o, "ok")));
    cr_assert_eq(json_array_size(json_object_get(o, "nodes")), 4);
    cr_assert_eq(json_array_size(json_object_get(o, "pairs")), 6);
    cr_assert_eq(json_array_size(json_object_get(o, "groups")), 3);
    cr_assert_eq(json_array_size(json_object_get(o, "findings")), 1);
    for (size_t i = 0; i < 6; i++) {
        p = json_array_get(json_object_get(o, "pairs"), i);
        if (strcmp(json_string_value(json_object_get(p, "a")), "b0") == 0)
            cr_assert_eq(json_real_value(json_object_get(p, "gbps_forth")), 12.5);
    }
    json_decref(o);
    free(text);
    holmes_check_run_destroy(run);
}

/* 64 nodes: a line for each wire, not a matrix. */
Test(check_judge, many_hosts_are_summed_up)
{
    char text_names[64][8];
    const char *many[64];
    struct holmes_check_run *run;
    struct holmes_schedule s;
    struct holmes_check_groups g;
    char *text;
    size_t len;
    FILE *out;

    for (int i = 0; i < 64; i++) {
        snprintf(text_names[i], 8, "n%d", i);
        many[i] = text_names[i];
    }
    cr_assert_eq(holmes_schedule_all(64, &s), 0);
    cr_assert_eq(holmes_check_run_create(many, 64, &s, &run), 0);
    for (int i = 0; i < run->npairs; i++) {
        run->pairs[i].state = HOLMES_CHECK_MEASURED;
        strcpy(run->pairs[i].wire, i % 2 ? "tcp" : "verbs");
        run->pairs[i].gbps[0] = run->pairs[i].gbps[1] = 10 + i % 3;
        run->pairs[i].rtt_us = 7;
    }
    cr_assert_eq(holmes_check_groups(run, &g), 0);
    out = open_memstream(&text, &len);
    holmes_check_print(run, &g, NULL, 0, out);
    fclose(out);
    cr_assert(strstr(text, "verbs   1008     10      11    12"), "%s", text);
    cr_assert(strstr(text, "nothing falls short"), "%s", text);
    cr_assert_lt(len, 2000);
    free(text);
    holmes_check_groups_fini(&g);
    holmes_check_run_destroy(run);
    holmes_schedule_fini(&s);
}
