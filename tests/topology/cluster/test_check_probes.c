#include "topology/cluster/check_probes.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct holmes_cluster *four_hosts(void)
{
    static const char text[] = "holmes-cluster: 1\nnode-types: [{name: t, gpus: 1}]\n"
                               "nodes: [{hosts: 'a[0-3]', type: t}]\n";
    struct holmes_cluster *c = NULL;
    char why[256] = "";

    cr_assert_eq(holmes_cluster_parse("c", text, strlen(text), &c, why, sizeof why), 0, "%s", why);
    return c;
}

#define PAIR(a, b, rest)   "{\"a\": \"" a "\", \"b\": \"" b "\", " rest "}"
#define WIRE(wire, reason) "\"state\": \"ok\", \"wire\": \"" wire "\", \"reason\": \"" reason "\""

Test(check_probes, pairs_where_rdma_was_tried_become_probes)
{
    static const struct {
        const char *pair, *probe; /* NULL: the pair says nothing */
    } rows[] = {
        {PAIR("a0", "a1", WIRE("verbs", "probe passed")), "a0 a1 yes"},
        {PAIR("a0", "a1", WIRE("verbs", "same HOLMES_FABRIC x")), "a0 a1 yes"},
        {PAIR("a2", "a3", WIRE("tcp", "no RDMA path (RoCE v2 IPv4)")), "a2 a3 no"},
        {PAIR("a2", "a3", WIRE("tcp", "link layers differ (InfiniBand, RoCE)")), NULL},
        {PAIR("a2", "a3", WIRE("tcp", "a2 has no RDMA port")), NULL},
        {PAIR("a2", "z", WIRE("verbs", "probe passed")), NULL},
        {PAIR("a2", "a3", "\"state\": \"broken\", \"why\": \"timed out\""), NULL},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_cluster *c = four_hosts();
        char text[512], why[256] = "", got[100] = "";
        int added = -1;

        snprintf(text, sizeof text, "{\"version\": 1, \"pairs\": [%s]}", rows[i].pair);
        cr_assert_eq(holmes_check_probes_parse("f", text, strlen(text), c, &added, why, sizeof why),
                     0, "%s: %s", text, why);
        cr_expect_eq(added, rows[i].probe != NULL, "%s", text);
        cr_assert_eq(c->nprobes, added);
        if (added == 1)
            snprintf(got, sizeof got, "%s %s %s", c->probes[0].from, c->probes[0].to,
                     c->probes[0].reaches ? "yes" : "no");
        cr_expect_str_eq(got, rows[i].probe ? rows[i].probe : "");
        holmes_cluster_destroy(c);
    }
}

Test(check_probes, refuses_what_check_did_not_write)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "f:1: not readable as JSON"},
        {"{\n\"a\"", "f:2: not readable as JSON"},
        {"[]", "f: not what `holmes-topo check --json` writes"},
        {"{\"version\": 2, \"pairs\": []}", "f: not what"},
        {"{\"version\": 1}", "f: not what"},
        {"{\"version\": 1, \"pairs\": [7]}", "f: pairs[0].a: a text is missing"},
        {"{\"version\": 1, \"pairs\": [" PAIR("a0", "a1", "\"state\": \"ok\"") "]}",
         "f: pairs[0].wire: a text is missing"},
        {"{\"version\": 1, \"pairs\": [" PAIR("a0", "a1", "\"x\": 1") "]}",
         "f: pairs[0].state: a text is missing"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_cluster *c = four_hosts();
        char why[256] = "";
        int added;

        cr_expect_eq(holmes_check_probes_parse("f", rows[i].text, strlen(rows[i].text), c, &added,
                                               why, sizeof why),
                     -EINVAL, "%s", rows[i].text);
        cr_expect_eq(strncmp(why, rows[i].says, strlen(rows[i].says)), 0, "%s: %s", rows[i].text,
                     why);
        holmes_cluster_destroy(c);
    }
}
