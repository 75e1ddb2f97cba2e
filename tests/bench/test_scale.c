/* `holmes-bench connections` and `holmes-bench ranks` as people run them: what connections cost in
 * descriptors, threads and memory, that nothing of them stays, and what is said when something goes
 * wrong. Times are never looked at. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT 65536

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMORY_IS_OURS false /* a sanitizer's memory is not the connections' */
#else
#define MEMORY_IS_OURS true
#endif

struct run {
    int status;
    char out[TEXT], err[TEXT];
    json_t *json; /* NULL: none was written */
};

static char dir[64];

static void folder_make(void)
{
    snprintf(dir, sizeof dir, "/tmp/holmes-scale-test-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void folder_remove(void)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(dir);
}

TestSuite(scale, .init = folder_make, .fini = folder_remove, .timeout = 300);

static void read_file(const char *name, char text[TEXT])
{
    char path[128];
    size_t n = 0;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "r");
    if (f) {
        n = fread(text, 1, TEXT - 1, f);
        fclose(f);
    }
    text[n] = '\0';
}

/* `line`: a shell's words, of which "$B" is the program, "$P" the plugin and "$D" a folder. */
static void run(struct run *r, const char *line)
{
    char command[2048];
    int status = 0;
    pid_t pid;

    if (r->json)
        json_decref(r->json);
    memset(r, 0, sizeof *r);
    snprintf(command, sizeof command, "B='%s' P='%s' D='%s'; { %s; } >$D/out 2>$D/err", BENCH_EXE,
             HOLMES_PLUGIN, dir, line);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(99);
    }
    cr_assert_gt(pid, 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    r->status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    read_file("out", r->out);
    read_file("err", r->err);
    snprintf(command, sizeof command, "%s/json", dir);
    r->json = json_load_file(command, 0, NULL);
    unlink(command);
}

static void run_well(struct run *r, const char *line)
{
    run(r, line);
    cr_assert_eq(r->status, 0, "%s: status %d\n%s", line, r->status, r->err);
    cr_assert_not_null(r->json, "%s", line);
}

/* "turns/0/process/raised/descriptors" */
static double at(const struct run *r, const char *path)
{
    char copy[128], *save = NULL;
    json_t *v = r->json;

    snprintf(copy, sizeof copy, "%s", path);
    for (char *word = strtok_r(copy, "/", &save); word; word = strtok_r(NULL, "/", &save))
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(word)) : json_object_get(v, word);
    cr_assert(json_is_number(v), "%s is no number", path);
    return json_number_value(v);
}

static double more(const struct run *r, const char *end, const char *stage, const char *what)
{
    char from[96], to[96];

    snprintf(from, sizeof from, "turns/0/%s/before/%s", end, what);
    snprintf(to, sizeof to, "turns/0/%s/%s/%s", end, stage, what);
    return at(r, to) - at(r, from);
}

/* One stream each way: a connection is the handshake socket and what the wire needs. Threads are
 * those of the process, at most, however many connections it has. */
static void costs(struct run *r, const char *wire, int descriptors, int threads, double kib)
{
    char line[256];

    snprintf(line, sizeof line,
             "HOLMES_TCP=%s HOLMES_LANES=1 $B connections -p $P -c 100 --peers 4 --idle 1 "
             "--json $D/json",
             wire);
    run_well(r, line);
    cr_expect_eq(more(r, "process", "raised", "descriptors"), 100 * descriptors, "%s: %g", wire,
                 more(r, "process", "raised", "descriptors"));
    cr_expect_eq(more(r, "peers", "raised", "descriptors"), 100 * descriptors, "%s", wire);
    cr_expect_leq(more(r, "process", "used", "threads"), threads, "%s: %g", wire,
                  more(r, "process", "used", "threads"));
    cr_expect_eq(more(r, "process", "closed", "descriptors"), 0, "%s", wire);
    cr_expect_eq(at(r, "turns/0/left"), 0, "%s", wire);
    if (MEMORY_IS_OURS)
        cr_expect_leq(more(r, "process", "used", "pss_bytes") / 100 / 1024, kib, "%s: %g KiB", wire,
                      more(r, "process", "used", "pss_bytes") / 100 / 1024);
    cr_expect_lt(at(r, "turns/0/idle_cpu_s_per_s"), 0.2, "%s: not at rest", wire);
    cr_expect_gt(at(r, "turns/0/looks"), 0);
}

Test(scale, a_connection_over_sockets_costs_what_is_documented)
{
    static struct run r;

    costs(&r, "sockets", 2, 1, 80);
}

Test(scale, a_connection_over_libfabric_costs_what_is_documented)
{
    static struct run r;

    if (!HAVE_OFI)
        cr_skip("this build has no libfabric");
    costs(&r, "libfabric", 5, 0, 600);
}

Test(scale, turns_follow_each_other_in_one_process)
{
    static struct run r;

    run_well(&r, "$B connections -p $P -c 4,40,4 --peers 2 --idle 0 --json $D/json");
    cr_assert_eq(json_array_size(json_object_get(r.json, "turns")), 3);
    cr_assert_eq(at(&r, "turns/1/connections"), 40);
    cr_assert_eq(at(&r, "turns/2/left"), 0);
}

static void ranks_meet(struct run *r, const char *wire)
{
    char line[128];

    snprintf(line, sizeof line, "HOLMES_TCP=%s $B ranks -p $P -n 32 --json $D/json", wire);
    run_well(r, line);
    cr_expect_eq(at(r, "connections"), 32 + 2 * 31, "%s", wire);
    cr_expect_eq(at(r, "raised/threads") - at(r, "before/threads"), 32, "%s: only the ranks", wire);
    /* Two sockets an end at least, a listener a rank. */
    cr_expect_geq(at(r, "raised/descriptors") - at(r, "before/descriptors"), 2 * 2 * 94 + 32);
    cr_expect_eq(at(r, "after/threads"), at(r, "before/threads"), "%s", wire);
    cr_expect_eq(at(r, "left"), 0, "%s", wire);
}

Test(scale, ranks_with_a_listener_each_all_meet)
{
    static struct run r;

    ranks_meet(&r, "sockets");
    if (HAVE_OFI)
        ranks_meet(&r, "libfabric");
}

Test(scale, too_few_descriptors_are_told_before_anything_fails)
{
    static struct run r;

    run(&r, "ulimit -n 300; $B connections -p $P -c 400 --peers 2 --idle 0");
    cr_assert_eq(r.status, 1, "%d\n%s", r.status, r.err);
    cr_assert(strstr(r.err, "400 connections need about "), "%s", r.err);
    cr_assert(strstr(r.err, "may have 300: raise the hard limit (ulimit -Hn)"), "%s", r.err);
}

#define BROKEN(how) "BENCH_INNER=$P BENCH_BREAK=" how " $B "

Test(scale, what_a_plugin_does_wrong_is_told)
{
    static const struct {
        const char *line, *sentence;
    } cases[] = {
        {BROKEN("corrupt") "connections -p " BROKEN_PLUGIN " -c 8 --peers 2 --idle 0",
         "byte 0 of its message is wrong"},
        {BROKEN("corrupt") "ranks -p " BROKEN_PLUGIN " -n 3", "byte 0 of its message is wrong"},
        {BROKEN("leak") "connections -p " BROKEN_PLUGIN " -c 8 --peers 2 --idle 0",
         "descriptors or threads were left behind"},
        {BROKEN("leak") "ranks -p " BROKEN_PLUGIN " -n 3",
         "descriptors or threads were left behind"},
        {BROKEN("die-init") "connections -p " BROKEN_PLUGIN " -c 8 --peers 2 --idle 0", "died"},
        {BROKEN("fine") "ranks -p " BROKEN_PLUGIN " -n 3", NULL},
        {BROKEN("refuse-init") "ranks -p " BROKEN_PLUGIN " -n 3", "init failed"},
        {"$B connections -p /nowhere.so -c 8 --peers 2", "/nowhere.so"},
        {"$B ranks -p /nowhere.so -n 3", "/nowhere.so"},
    };
    static struct run r;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run(&r, cases[i].line);
        cr_expect_eq(r.status, cases[i].sentence != NULL, "%s: status %d\n%s", cases[i].line,
                     r.status, r.err);
        cr_expect(!cases[i].sentence || strstr(r.err, cases[i].sentence), "%s:\n%s", cases[i].line,
                  r.err);
    }
}

Test(scale, bad_usage_names_the_value)
{
    static const char *const cases[][2] = {
        {"connections -c 0", "\"0\" does not fit"},
        {"connections -c 10,,20", "give up to 8 whole numbers"},
        {"connections -c 1,2,3,4,5,6,7,8,9", "give up to 8 whole numbers"},
        {"connections -c 8", "--connections 8: fewer than --peers 16"},
        {"connections --peers many", "--peers \"many\": give a whole number from 1 to 256"},
        {"connections --idle -1", "--idle \"-1\""},
        {"connections all", "\"all\": options only"},
        {"ranks -n 1", "--ranks \"1\": give a whole number from 2 to 1024"},
        {"ranks -p ''", "no plugin is named"},
        {"ranks --json /nowhere/x", "cannot write"},
    };
    static struct run r;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[128];

        snprintf(line, sizeof line, "$B %s", cases[i][0]);
        run(&r, line);
        cr_expect_eq(r.status, 2, "%s: status %d", cases[i][0], r.status);
        cr_expect(strstr(r.err, cases[i][1]), "%s:\n%s", cases[i][0], r.err);
    }
    run(&r, "$B ranks --help && $B connections --help");
    cr_assert_eq(r.status, 0);
    cr_assert(strstr(r.out, "holmes-bench ranks [OPTION...]"), "%s", r.out);
}
