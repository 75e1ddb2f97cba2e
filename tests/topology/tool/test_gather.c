/* gather as a program: recorded machines, commands on hosts, what it writes and what it says. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "../host/recorded.h"
#include "cluster.h"

static struct recorded answers; /* a1.json, a2.json, b1.json, b2.json */

/* One InfiniBand and one RoCE machine, twice each: equal machines answer alike. */
static void record(void)
{
    struct recorded ib = recorded_build("ib-h100", 1), roce = recorded_build("roce-h100", 1);

    answers = recorded_dir();
    run_command("cd %s && %s discover --sysfs-root %s --json > a1.json && cp a1.json a2.json && %s "
                "discover --sysfs-root %s --json > b1.json && cp b1.json b2.json",
                answers.dir, HOLMES_TOPO, ib.root, HOLMES_TOPO, roce.root);
    recorded_remove(&ib);
    recorded_remove(&roce);
}

static void forget(void)
{
    recorded_remove(&answers);
}

TestSuite(gather, .init = record, .fini = forget);

/* Runs `gather ARGS` in the folder of the answers; its standard output and error in one string
 * each. Returns the exit status. */
static int gather(const char *args, char **out, char **err)
{
    char command[1024], path[128];
    int status;

    snprintf(command, sizeof command, "cd %s && %s gather %s > out.txt 2> err.txt", answers.dir,
             HOLMES_TOPO, args);
    status = system(command);
    cr_assert(WIFEXITED(status), "%s", command);
    for (int i = 0; i < 2; i++) {
        char *text = calloc(1, 1 << 20);
        FILE *f;

        snprintf(path, sizeof path, "%s/%s", answers.dir, i == 0 ? "out.txt" : "err.txt");
        f = fopen(path, "r");
        cr_assert_not_null(f);
        text[fread(text, 1, (1 << 20) - 1, f)] = '\0';
        fclose(f);
        *(i == 0 ? out : err) = text;
    }
    return WEXITSTATUS(status);
}

static void expect_in(const char *args, const char *text, const char *part)
{
    cr_expect(strstr(text, part), "gather %s: \"%s\" is not in\n%s", args, part, text);
}

/* Expects a status and a part of the output, of the errors; NULL: nothing is asked of it. */
static void expect(const char *args, int status, const char *says, const char *complains)
{
    char *out, *err;
    int got = gather(args, &out, &err);

    cr_expect_eq(got, status, "gather %s: exit status %d, want %d\n%s", args, got, status, err);
    if (says)
        expect_in(args, out, says);
    if (complains)
        expect_in(args, err, complains);
    free(out);
    free(err);
}

/* Every host answers with its file, whatever command it is given. */
#define CAT "--launcher \"sh -c 'exec cat {host}.json' sh\" "

Test(gather, two_clusters_of_recorded_nodes_are_two_fabrics)
{
    static const char *const ways[] = {
        "--from . --fabric 'west=b[1-2]'",
        "--hosts 'a[1-2],b[1-2]' " CAT "--fabric 'west=b[1-2]'",
        "--hosts 'a[1-2],b[1-2]' --json " CAT "--fabric 'west=b[1-2]'",
    };

    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct holmes_cluster *c = NULL;
        struct holmes_fabrics *f = NULL;
        char *out, *err, why[512] = "";

        cr_assert_eq(gather(ways[i], &out, &err), 0, "%s", err);
        cr_assert_eq(holmes_cluster_parse("out", out, strlen(out), &c, why, sizeof why), 0, "%s",
                     why);
        cr_assert_eq(holmes_fabrics_find(c, false, &f, why, sizeof why), 0, "%s", why);
        cr_assert_eq(f->n, 2);
        cr_expect_eq(f->fabrics[0].link, HOLMES_LINK_INFINIBAND);
        cr_expect_eq(f->fabrics[0].nics, 8);
        cr_expect_eq(f->fabrics[0].gbps, 3200);
        cr_expect_str_eq(f->fabrics[1].name, "west");
        cr_expect_eq(f->fabrics[1].link, HOLMES_LINK_ETHERNET);
        cr_assert_eq(c->ngroups, 2);
        cr_expect_eq(c->groups[0].hosts.nhosts, 2);
        cr_expect_eq(c->groups[1].hosts.nhosts, 2);
        expect_in(ways[i], err, "fabric west: RoCE; told by the id \"west\"");
        holmes_fabrics_destroy(f);
        holmes_cluster_destroy(c);
        free(out);
        free(err);
    }
}

Test(gather, says_what_is_not_settled)
{
    expect("--from .", 0, "- hosts: b[1-2]", "fabrics are not settled: ambiguous: whether b[1-2]");
}

Test(gather, a_host_that_fails_is_kept_with_the_reason)
{
    run_command("echo '{\"holmes-host\":' > %s/c1.json", answers.dir);
    expect("--hosts a1,x9,c1,b1 " CAT, 0,
           "- hosts: x9\n  type: unknown\n  state: defective\n  why: ",
           "x9 is listed as defective: "
           "exit status 1: cat: "
           "x9.json: No such file");
    expect("--hosts a1,x9,c1,b1 " CAT, 0,
           "- hosts: c1\n  type: unknown\n  state: defective\n  why: ",
           "c1 is listed as defective: its answer:");
    expect("--hosts a1,x9,c1,b1 " CAT, 0, NULL, "2 of 4 hosts did not answer");
    expect("--from . --hosts a[1-3]", 0,
           "- hosts: a3\n  type: unknown\n  state: defective\n  why: no "
           "file a3.json in .\n",
           "1 of 3 hosts did not answer");
    expect("--hosts x[1-2] " CAT, 1, "- hosts: x1\n", "2 of 2 hosts did not answer");
}

Test(gather, reads_hostfiles_and_slurms_allocation)
{
    run_command("printf 'a2 slots=4\\na1\\n' > %s/hosts", answers.dir);
    expect("--hostfile hosts --from .", 0,
           "- hosts: a2\n  type: 8gpu-8ib400\n  slots: 4\n- hosts: a1\n  type: 8gpu-8ib400\n",
           NULL);
    run_command("printf 'a2\\na2\\n' > %s/twice", answers.dir);
    expect("--hostfile twice --from .", 2, NULL, "twice:2: host a2 comes twice, first in line 1");
    cr_assert_eq(setenv("SLURM_JOB_NODELIST", "b[1-2],a1", 1), 0);
    expect(CAT, 0, "- hosts: b[1-2]\n  type: 8gpu-8roce400\n- hosts: a1\n", NULL);
    cr_assert_eq(setenv("SLURM_JOB_NODELIST", "b[1-", 1), 0);
    expect(CAT, 2, NULL, "SLURM_JOB_NODELIST");
    unsetenv("SLURM_JOB_NODELIST");
    expect(CAT, 2, NULL, "no hosts: give --hosts");
}

Test(gather, a_switch_tree_tells_fabrics)
{
    run_command("printf 'SwitchName=east Nodes=a[1-2]\\nSwitchName=west Nodes=b[1-2]\\n' > "
                "%s/topology.conf",
                answers.dir);
    expect("--from . --topology topology.conf", 0,
           "- hosts: a[1-2]\n  type: 8gpu-8ib400\n  fabric: east\n- hosts: b[1-2]\n  type: "
           "8gpu-8roce400\n  fabric: west\n",
           "fabric east: InfiniBand; told by the id \"east\"");
    expect("--from . --topology topology.conf --fabric own=b1", 0,
           "- hosts: b1\n  type: "
           "8gpu-8roce400\n  fabric: own\n",
           NULL);
    run_command("printf 'SwitchName=a-name-that-is-one-letter-too-long Nodes=b1\\n' > "
                "%s/topology.conf",
                answers.dir);
    expect("--from . --topology topology.conf", 2, NULL, "too long for a fabric's id");
    run_command("printf 'SwitchName=east\\n' > %s/topology.conf", answers.dir);
    expect("--from . --topology topology.conf", 2, NULL, "topology.conf:1: switch \"east\" needs");
}

Test(gather, what_check_found_settles_fabrics)
{
    run_command(
        "printf '{\"version\": 1, \"pairs\": [{\"a\": \"b1\", \"b\": \"b2\", \"state\": "
        "\"ok\", \"wire\": \"verbs\", \"reason\": \"RoCE: probe passed\"}]}' > %s/check.out",
        answers.dir);
    expect("--from . --probes check.out", 0, "probes:\n- {from: b1, to: b2, reaches: true}\n",
           "fabric B: RoCE; joined by probes");
    run_command("printf '{\"version\": 1, \"pairs\": [{\"a\": \"b1\", \"b\": \"b2\", \"state\": "
                "\"ok\", \"wire\": \"tcp\", \"reason\": \"no RDMA path (RoCE)\"}]}' > %s/check.out",
                answers.dir);
    expect("--from . --probes check.out", 0, "- {from: b1, to: b2, reaches: false}\n",
           "b[1-2] were split into 2 parts");
    run_command("echo '{\"version\": 2}' > %s/check.out", answers.dir);
    expect("--from . --probes check.out", 2, NULL,
           "check.out: not what `holmes-topo check --json`");
}

Test(gather, what_is_written_is_whole_or_not_there)
{
    expect("--from . -o cluster.yaml --name 'my cluster'", 0, "", NULL);
    run_command("grep -q '^name: my cluster$' %s/cluster.yaml", answers.dir);
    expect("--from . -o none/cluster.yaml", 1, "", "none/cluster.yaml");
    expect("--from . --quiet -o again.yaml", 0, "", NULL);
    run_command("test ! -s %s/err.txt", answers.dir);
}

Test(gather, refuses_what_cannot_be_meant)
{
    static const struct {
        const char *args, *complains;
    } rows[] = {
        {"--hosts a1 --hostfile x", "--hosts and --hostfile: give one of them"},
        {"--from . --launcher 'x {host}'", "--from asks no host"},
        {"--from /no/such", "/no/such: No such file or directory"},
        {"--from /proc/self/fd", "no file NAME.json in it"},
        {"--hosts 'a[2-1]'", "range \"2-1\" runs backwards"},
        {"--hosts a1 --launcher 'ssh host'", "it has no {host}"},
        {"--hosts a1 --at-once 0", "--at-once: \"0\" is no whole number from 1 to 4096"},
        {"--hosts a1 --time-limit 1h", "--time-limit: \"1h\" is no whole number from 1 to 3600"},
        {"--from . --fabric a-name-that-is-one-letter-too-long=b1",
         "--fabric \"a-name-that-is-one-letter-too-long=b1\": an id is letters"},
        {"--from . --fabric =a1", "--fabric \"=a1\": an id is letters"},
        {"--from . --fabric A=a1 --fabric B=a[1-2]",
         "--fabric \"B=a[1-2]\": host a1 is told twice"},
        {"--from . --fabric A --fabric B", "--fabric B: all hosts are \"A\" already"},
        {"--from . --fabric A=z1", "--fabric A: none of its hosts was met"},
        {"--from . --fabric 'A=z['", "lacks its ']'"},
        {"--from . --rdma-kind ethernet", "--rdma-kind: \"ethernet\" is neither"},
        {"--from . extra", "\"extra\": gather takes options only"},
        {"--from . --topology /no/such", "/no/such: No such file or directory"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect(rows[i].args, 2, NULL, rows[i].complains);
}
