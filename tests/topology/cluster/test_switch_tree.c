#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostfile.h"

/* "top=a[1-4],b1 other=c1": the nodes below each top, tops in the order of the file. */
static char *tops_text(const struct holmes_switch_tree *t)
{
    char *text = NULL, name[HOLMES_HOST_NAME_MAX];
    size_t len;
    FILE *f = open_memstream(&text, &len);

    for (int i = 0; i < t->n; i++) {
        struct holmes_hostlist below = {0};

        if (t->switches[i].top != i)
            continue;
        for (int s = 0; s < t->n; s++)
            for (int k = 0; k < t->switches[s].nodes.nhosts && t->switches[s].top == i; k++)
                holmes_hostlist_append(
                    &below, holmes_hostlist_name(&t->switches[s].nodes, k, name, sizeof name));

        char *list = holmes_hostlist_text(&below);

        fprintf(f, "%s%s=%s", ftell(f) > 0 ? " " : "", t->switches[i].name, list);
        free(list);
        holmes_hostlist_fini(&below);
    }
    fclose(f);
    return text;
}

Test(switch_tree, nodes_hang_below_their_top)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"SwitchName=s1 Nodes=a[1-4]\n", "s1=a[1-4]"},
        {"SwitchName=s1 Nodes=a[1-2]\nSwitchName=s2 Nodes=a[3-4]\nSwitchName=top Switches=s[1-2]\n",
         "top=a[1-4]"},
        {"SwitchName=s1 Nodes=a1\nSwitchName=s2 Nodes=b1", "s1=a1 s2=b1"},
        {"switchname=s1 nodes=a1 linkspeed=100 # fast\n", "s1=a1"},
        {"SwitchName=s1 \\\n  Nodes=a1,\\\n", NULL},
        {"SwitchName=s1 \\\n  Nodes=a[1-3]\nSwitchName=s2 Nodes=b1\n", "s1=a[1-3] s2=b1"},
        {"# SwitchName=x Nodes=y \\\nSwitchName=s1 Nodes=a1\n", "s1=a1"},
        {"SwitchName=t Switches=m\nSwitchName=m Switches=l\nSwitchName=l Nodes=a1\r\n", "t=a1"},
        {"BlockName=b1 Nodes=a[1-2]\nBlockName=b2 Nodes=a[3-4]\nBlockSizes=2,4\n",
         "b1=a[1-2] b2=a[3-4]"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_switch_tree t;
        char why[300] = "";
        int rc =
            holmes_switch_tree_parse("t", rows[i].text, strlen(rows[i].text), &t, why, sizeof why);

        if (!rows[i].want) {
            cr_expect_eq(rc, -EINVAL);
            continue;
        }
        cr_assert_eq(rc, 0, "%s: %s", rows[i].text, why);

        char *got = tops_text(&t);

        cr_expect_str_eq(got, rows[i].want, "%s: %s", rows[i].text, got);
        cr_expect_eq(t.blocks, strstr(rows[i].text, "Block") != NULL);
        free(got);
        holmes_switch_tree_fini(&t);
    }
}

Test(switch_tree, three_levels_of_a_real_file)
{
    struct holmes_switch_tree t;
    struct holmes_hostlist hosts;
    char why[300] = "";

    cr_assert_eq(
        holmes_switch_tree_read(TEST_DATA "/fabric/slurm-topology-tree.conf", &t, why, sizeof why),
        0, "%s", why);
    cr_expect_eq(t.n, 19);
    cr_expect_str_eq(t.switches[0].name, "switch.3.1");
    cr_expect_eq(t.switches[0].parent, -1);
    for (int i = 0; i < t.n; i++)
        cr_expect_eq(t.switches[i].top, 0, "%s", t.switches[i].name);
    /* switch.1.4, the fourth leaf, is below switch.2.2 in line 6. */
    cr_expect_str_eq(t.switches[10].name, "switch.1.4");
    cr_expect_eq(t.switches[t.switches[10].parent].line, 6);
    cr_assert_eq(holmes_switch_tree_hosts(&t, &hosts), 0);
    cr_expect_eq(hosts.nhosts, 96);
    cr_expect_geq(holmes_hostlist_find(&hosts, "srv6208"), 0);
    cr_expect_eq(holmes_hostlist_find(&hosts, "srv6209"), -1);
    holmes_hostlist_fini(&hosts);
    holmes_switch_tree_fini(&t);
}

Test(switch_tree, refuses_what_is_none_with_line_and_field)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "t: no switch in the file"},
        {"# SwitchName=s1 Nodes=a1\n", "t: no switch in the file"},
        {"SwitchName=s1\n", "t:1: switch \"s1\" needs either Switches or Nodes"},
        {"SwitchName=s1 Nodes=a1 Switches=s2\n",
         "t:1: switch \"s1\" needs either Switches or Nodes, "
         "not both"},
        {"Nodes=a1\n", "t:1: SwitchName: missing"},
        {"\nSwitchName=s1 Node=a1\n", "t:2: there is no key \"Node\"; did you mean Nodes"},
        {"SwitchName=s1 Speed=a1\n", "t:1: there is no key \"Speed\"; there are: SwitchName"},
        {"SwitchName=s1 Nodes\n", "t:1: \"Nodes\" is not understood: KEY=VALUE"},
        {"SwitchName=s1 Nodes=\n", "t:1: Nodes: nothing is given"},
        {"SwitchName=s1 Nodes=a1 Nodes=a2\n", "t:1: Nodes: told twice in one line"},
        {"SwitchName=s1 Nodes=ALL\n", "t:1: Nodes: ALL names no hosts"},
        {"SwitchName=s1 Nodes=a[2-1]\n", "t:1: Nodes: range \"2-1\" runs backwards"},
        {"SwitchName=s[1-2] Nodes=a1\n", "t:1: SwitchName: \"s[1-2]\" is no name"},
        {"SwitchName=s1 Nodes=a1\nSwitchName=s1 Nodes=a2\n",
         "t:2: switch \"s1\" comes twice, first in line 1"},
        {"SwitchName=s1 Nodes=a1\nSwitchName=s2 Nodes=a[1-2]\n",
         "t:2: Nodes: node a1 is below \"s1\" already (line 1)"},
        {"SwitchName=s1 Switches=s2\n", "t:1: Switches: no line defines switch \"s2\""},
        {"SwitchName=t Switches=s\nSwitchName=u Switches=s\nSwitchName=s Nodes=a\n",
         "t:2: Switches: switch \"s\" is below \"t\" already (line 1)"},
        {"SwitchName=s Switches=s\n", "t:1: switch \"s\" is below itself"},
        {"SwitchName=a Nodes=n\nSwitchName=s Switches=u\nSwitchName=u Switches=s\n",
         "t:2: switch \"s\" is below itself"},
        {"SwitchName=s \\\n\\\nSwitches=u\n", "t:1: Switches: no line defines switch \"u\""},
        {"BlockName=b Switches=u\n", "t:1: Switches: a block has nodes only"},
        {"BlockName=b Nodes=n\nSwitchName=s Nodes=m\n",
         "t:2: SwitchName: a file has either switches or blocks"},
        {"BlockName=b SwitchName=s Nodes=n\n", "t:1: BlockName: not together with SwitchName"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct holmes_switch_tree t;
        char why[300] = "";

        cr_expect_eq(
            holmes_switch_tree_parse("t", rows[i].text, strlen(rows[i].text), &t, why, sizeof why),
            -EINVAL, "passed: %s", rows[i].text);
        cr_expect_eq(strncmp(why, rows[i].says, strlen(rows[i].says)), 0,
                     "%s: says \"%s\", want \"%s\"", rows[i].text, why, rows[i].says);
    }
}
