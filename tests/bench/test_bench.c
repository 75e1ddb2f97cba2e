/* holmes-bench as people run it: the built program, its files, its exit codes, and nothing left
 * behind. Times are never looked at. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "tests/support/xml_check.h"

#define RUN_MS 120000
#define TEXT   65536
#define LITTLE "-b 4 -e 300K -f 50 --rounds 2 --iters 3 "

struct run {
    pid_t pid; /* leader of its own process group */
    int out_fd, err_fd;
    char out[TEXT], err[TEXT];
    size_t out_len, err_len;
    int status;
};

static char dir[64];

static void folder_make(void)
{
    snprintf(dir, sizeof dir, "/tmp/holmes-bench-test-XXXXXX");
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

TestSuite(bench, .init = folder_make, .fini = folder_remove, .timeout = 300);

/* Starts it with the words of `line`; "@" stands for the test's folder. */
static void run_start(struct run *r, const char *line)
{
    static char text[2048];
    char *argv[40] = {(char *)BENCH_EXE};
    int argc = 1, out[2], err[2];
    size_t at = 0;

    for (; *line && at + 80 < sizeof text; line++) {
        if (*line == '@')
            at += (size_t)snprintf(text + at, sizeof text - at, "%s", dir);
        else
            text[at++] = *line;
    }
    text[at] = '\0';
    for (char *arg = strtok(text, " "); arg; arg = strtok(NULL, " "))
        argv[argc++] = arg;
    memset(r, 0, sizeof *r);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(err, O_CLOEXEC), 0);
    r->pid = fork();
    if (r->pid == 0) {
        setpgid(0, 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        execv(argv[0], argv);
        _exit(99);
    }
    cr_assert_gt(r->pid, 0);
    close(out[1]);
    close(err[1]);
    r->out_fd = out[0];
    r->err_fd = err[0];
}

static void drain(int *fd, char *buf, size_t *len)
{
    ssize_t n = read(*fd, buf + *len, TEXT - 1 - *len);

    if (n > 0) {
        *len += (size_t)n;
        return;
    }
    close(*fd);
    *fd = -1;
}

/* Reads until it closes its output or `needle` is on stderr; false when the time is over. */
static bool run_read(struct run *r, const char *needle)
{
    uint64_t deadline = holmes_deadline_ms(RUN_MS);

    while ((r->out_fd >= 0 || r->err_fd >= 0) && !(needle && strstr(r->err, needle))) {
        struct pollfd p[] = {{.fd = r->out_fd, .events = POLLIN},
                             {.fd = r->err_fd, .events = POLLIN}};

        if (holmes_deadline_passed(deadline))
            return false;
        poll(p, 2, 200);
        if (p[0].revents)
            drain(&r->out_fd, r->out, &r->out_len);
        if (p[1].revents)
            drain(&r->err_fd, r->err, &r->err_len);
    }
    return true;
}

/* Its exit status; fails when any process of its group outlives it. */
static int run_end(struct run *r)
{
    uint64_t deadline;
    bool ended = run_read(r, NULL), alone = false;

    if (!ended)
        kill(-r->pid, SIGKILL);
    waitpid(r->pid, &r->status, 0);
    deadline = holmes_deadline_ms(10000);
    while (!(alone = kill(-r->pid, 0) != 0 && errno == ESRCH) && !holmes_deadline_passed(deadline))
        poll(NULL, 0, 5);
    if (!alone)
        kill(-r->pid, SIGKILL);
    cr_assert(ended, "did not end\n%s\n%s", r->out, r->err);
    cr_assert(alone, "a process was left behind\n%s", r->err);
    return WIFEXITED(r->status) ? WEXITSTATUS(r->status) : 1000 + WTERMSIG(r->status);
}

static int run(struct run *r, const char *line)
{
    run_start(r, line);
    return run_end(r);
}

/* The last line of stderr that is no progress. */
static const char *complaint(const struct run *r)
{
    const char *at = NULL;

    for (const char *p = r->err; (p = strstr(p, "holmes-bench: ")) != NULL; p++)
        at = p;
    return at ? at : "";
}

static int count(const char *text, const char *what)
{
    int n = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

static char *file_read(const char *name)
{
    static char text[1 << 18];
    char path[128];
    size_t n;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "r");
    cr_assert_not_null(f, "%s is not there", path);
    n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

static int files_in_folder(void)
{
    DIR *d = opendir(dir);
    int n = 0;

    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static const char *const collectives[] = {"all_reduce", "all_gather", "reduce_scatter", "sendrecv"};

static void expect_well(struct run *r, const char *line)
{
    int status = run(r, line);

    cr_assert_eq(status, 0, "%s: status %d\n%s", line, status, r->err);
    cr_assert(strstr(r->out, "# wrong elements: 0\n"), "%s:\n%s", line, r->out);
}

Test(bench, reference_moves_every_collective_right)
{
    static struct run r;
    char line[256];

    for (size_t c = 0; c < 4; c++) {
        for (int n = 2; n <= 4; n++) {
            if (c == 3 && n == 3)
                continue;
            snprintf(line, sizeof line,
                     "%s -n %d " LITTLE "--reference-streams 1,3 "
                     "--reference-threads 1,2,streams",
                     collectives[c], n);
            expect_well(&r, line);
            cr_assert(strstr(r.out, "poll x3/2"), "%s", r.out);
        }
    }
    expect_well(&r, "all_reduce -n 3 --type bfloat16 " LITTLE "--reference-streams 8");
}

Test(bench, plugin_moves_every_collective_right)
{
    static struct run r;
    char line[512];

    for (size_t c = 0; c < 4; c++) {
        for (int n = 2; n <= 4; n += 2) {
            snprintf(line, sizeof line, "%s -n %d -p %s " LITTLE "--no-reference --type %s",
                     collectives[c], n, HOLMES_PLUGIN, n == 2 ? "float" : "bfloat16");
            expect_well(&r, line);
            cr_assert(strstr(r.out, "# holmes: "), "%s", r.out);
        }
    }
}

Test(bench, both_ways_at_once_arrive_right)
{
    static struct run r;

    expect_well(&r, "sendrecv --both-ways -n 4 --window 3 --idle-us 20 " LITTLE
                    "--reference-streams 1,3 -p " HOLMES_PLUGIN " --json @/x.json");
    cr_assert(strstr(r.out, "# bandwidth: of each direction, both ways at once"), "%s", r.out);
    cr_assert(strstr(file_read("x.json"), "\"both_ways\": true"));
}

static double number_of(json_t *cell, const char *name)
{
    return json_number_value(json_object_get(cell, name));
}

/* Of every side, the reference with several streams too. */
Test(bench, latencies_have_percentiles_and_all_sides_a_cost)
{
    static struct run r;
    json_t *root, *results;

    expect_well(&r, "sendrecv -n 4 -b 64 -e 64K -f 1024 --rounds 2 --iters 20 "
                    "--reference-streams 1,3 -p " HOLMES_PLUGIN " --json @/x.json");
    root = json_loads(file_read("x.json"), 0, NULL);
    results = json_object_get(root, "results");
    cr_assert_eq(json_array_size(results), 2 * 2 * 5);
    for (size_t i = 0; i < json_array_size(results); i++) {
        json_t *cell = json_array_get(results, i);
        double p50 = number_of(cell, "p50_us"), p99 = number_of(cell, "p99_us");

        cr_assert_gt(number_of(cell, "cpu_s_per_gbyte"), 0, "result %zu", i);
        if (strcmp(json_string_value(json_object_get(cell, "measure")), "latency") != 0)
            continue;
        cr_assert_gt(p50, 0, "result %zu", i);
        cr_assert_geq(p99, p50, "result %zu", i);
        cr_assert_geq(number_of(cell, "max_us"), p99, "result %zu", i);
    }
    json_decref(root);
}

Test(bench, settings_reach_the_processes_of_their_side_only)
{
    static struct run r;
    json_t *root, *sides;

    setenv("BENCH_INNER", HOLMES_PLUGIN, 1);
    cr_assert_eq(run(&r, "sendrecv -b 64 -e 64 --rounds 1 --iters 3 --no-reference --json @/x.json "
                         "-p good=" BROKEN_PLUGIN " -p bad=" BROKEN_PLUGIN
                         ",HOLMES_LOG=warn,BENCH_BREAK=corrupt"),
                 1);
    cr_assert(strstr(r.out, ", with HOLMES_LOG=warn BENCH_BREAK=corrupt\n"), "%s", r.out);
    root = json_loads(file_read("x.json"), 0, NULL);
    sides = json_object_get(root, "sides");
    cr_assert_eq(json_array_size(json_object_get(json_array_get(sides, 0), "settings")), 0);
    cr_assert_eq(json_array_size(json_object_get(json_array_get(sides, 1), "settings")), 2);
    for (size_t i = 0; i < json_array_size(json_object_get(root, "results")); i++) {
        json_t *cell = json_array_get(json_object_get(root, "results"), i);
        bool bad = strcmp(json_string_value(json_object_get(cell, "side")), "bad") == 0;

        cr_assert_eq(json_integer_value(json_object_get(cell, "wrong")) > 0, bad);
    }
    json_decref(root);
}

/* What NCCL's proxy thread does; a communicator with a progress thread would not. */
Test(bench, sendrecv_calls_the_plugin_on_the_thread_of_the_rank)
{
    static struct run r;

    setenv("BENCH_INNER", HOLMES_PLUGIN, 1);
    setenv("BENCH_BREAK", "other-thread", 1);
    expect_well(&r, "sendrecv " LITTLE "--no-reference -p " BROKEN_PLUGIN);
    cr_assert_eq(run(&r, "all_reduce -e 64 --no-reference -p " BROKEN_PLUGIN), 1);
    cr_assert(strstr(complaint(&r), "died of signal 9"), "%s", r.err);
}

Test(bench, two_plugins_and_the_reference_end_in_table_and_files)
{
    static struct run r;
    char *text;
    json_t *root;

    expect_well(&r, "all_reduce -b 8 -e 8K -f 32 --rounds 3 --iters 2 --reference-streams 1-2 "
                    "-p new=" HOLMES_PLUGIN " -p old=" HOLMES_PLUGIN
                    " --csv @/x.csv --svg @/x.svg --json @/x.json");
    cr_assert(strstr(r.out, "x new"), "%s", r.out);
    cr_assert(strstr(r.out, "x TCP"), "%s", r.out);
    cr_assert(strstr(r.out, "x poll"), "%s", r.out);
    text = file_read("x.csv");
    cr_assert_eq(count(text, "\r\n"), 1 + 3 * 6, "%s", text);
    cr_assert_eq(count(text, ",new,plugin,0,3,2,"), 3, "%s", text);
    text = file_read("x.svg");
    cr_assert_null(xml_check(text), "%s", xml_check(text));
    cr_assert(strstr(text, ">old</text>"));
    root = json_loads(file_read("x.json"), 0, NULL);
    cr_assert_not_null(root);
    cr_assert_eq(json_array_size(json_object_get(root, "results")), 3 * 6);
    json_decref(root);
    cr_assert(strstr(r.err, "100%"), "no progress was shown: %s", r.err);
}

Test(bench, measures_without_check_or_reference)
{
    static struct run r;

    cr_assert_eq(run(&r, "sendrecv --no-check --no-reference -p " HOLMES_PLUGIN " " LITTLE
                         "--window 3 --csv @/x.csv"),
                 0, "%s", r.err);
    cr_assert_null(strstr(r.out, "wrong elements"), "%s", r.out);
    cr_assert(strstr(r.out, "# latency: half a round trip"), "%s", r.out);
    cr_assert(strstr(r.out, "# bandwidth: one way"), "%s", r.out);
    cr_assert_eq(count(file_read("x.csv"), "sendrecv,latency,2,float,"), 3);
    cr_assert_eq(count(file_read("x.csv"), "sendrecv,bandwidth,2,float,"), 3);
}

Test(bench, replaces_a_file_of_an_earlier_run)
{
    static struct run r;
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s/x.csv", dir);
    f = fopen(path, "w");
    for (int i = 0; i < 1000; i++)
        fputs("an old line\n", f);
    fclose(f);
    expect_well(&r, "all_reduce -e 8 --rounds 1 --iters 1 --reference-streams 1 "
                    "--reference-threads 1 --csv @/x.csv");
    cr_assert_eq(count(file_read("x.csv"), "an old line"), 0);
    cr_assert_eq(count(file_read("x.csv"), "\n"), 2);
}

Test(bench, bad_input_is_one_sentence_and_leaves_nothing)
{
    static const struct {
        const char *line;
        int status;
        const char *says[2];
    } cases[] = {
        {"", 2, {"name a collective", "all_reduce"}},
        {"gather", 2, {"\"gather\"", "all_gather"}},
        {"all_reduce -b 8x", 2, {"\"8x\"", "64K"}},
        {"all_reduce -b 2M -e 1M", 2, {"2097152", "1048576"}},
        {"all_reduce -n 1", 2, {"\"1\"", "2 to 64"}},
        {"all_reduce -n 65", 2, {"\"65\"", "2 to 64"}},
        {"all_reduce -e 1024G", 2, {"lower --max", "--ranks"}},
        {"all_reduce -e 8 --csv /nonexistent/x.csv", 2, {"/nonexistent/x.csv", "No such file"}},
        {"all_reduce -e 8 --csv @/a --svg @", 2, {"--svg", "Is a directory"}},
        {"all_reduce -e 8 --csv @/a -p @/none.so", 1, {"none", "rank "}},
        {"all_reduce -e 8 --csv @/a -p /etc/hostname", 1, {"/etc/hostname", "rank "}},
        {"all_reduce -e 8 --csv @/a -p " HOLMES_PLUGIN " --device nic99", 1, {"nic99", "holmes"}},
    };
    static struct run r;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status = run(&r, cases[i].line);

        cr_assert_eq(status, cases[i].status, "%s: status %d\n%s", cases[i].line, status, r.err);
        for (int k = 0; k < 2; k++)
            cr_assert(strstr(complaint(&r), cases[i].says[k]), "%s: \"%s\" lacks \"%s\"",
                      cases[i].line, r.err, cases[i].says[k]);
        cr_assert_eq(count(r.err, "holmes-bench: "), 1, "%s: %s", cases[i].line, r.err);
        cr_assert_eq(count(complaint(&r), "\n"), 1, "%s: %s", cases[i].line, r.err);
        cr_assert_eq(files_in_folder(), 0, "%s left a file", cases[i].line);
        cr_assert_str_empty(r.out);
    }
    cr_assert_eq(run(&r, "all_reduce --frobnicate"), 2);
    cr_assert(strstr(r.err, "--frobnicate"), "%s", r.err);
}

/* The run must end with 1 and a line about side "bad" that says `says`. A good plugin runs beside
 * it: the timeout leaves it time on a busy machine. */
static void expect_break_in(struct run *r, const char *collective, const char *how,
                            const char *says)
{
    char line[1024];
    int status;

    setenv("BENCH_INNER", HOLMES_PLUGIN, 1);
    setenv("BENCH_BREAK", how, 1);
    snprintf(line, sizeof line,
             "%s -p good=" HOLMES_PLUGIN " -p bad=" BROKEN_PLUGIN
             " -b 64 -e 8K -f 128 --rounds 2 --iters 30 --reference-streams 1 "
             "--timeout 15 --csv @/x.csv",
             collective);
    status = run(r, line);
    cr_assert_eq(status, 1, "%s: status %d\n%s\n%s", how, status, r->err, r->out);
    cr_assert(strstr(complaint(r), says), "%s: %s", how, r->err);
}

static void expect_break(struct run *r, const char *how, const char *says)
{
    expect_break_in(r, "all_reduce", how, says);
}

Test(bench, a_plugin_that_dies_or_refuses_ends_the_run_and_is_named)
{
    static struct run r;

    expect_break(&r, "die-init", "died of signal 9");
    cr_assert(strstr(complaint(&r), "bad: rank "), "%s", r.err);
    expect_break(&r, "die-later", "died of signal 9");
    cr_assert(strstr(complaint(&r), "bad: rank "), "%s", r.err);
    expect_break(&r, "refuse-init", "init");
    cr_assert(strstr(complaint(&r), "bad: rank "), "%s", r.err);
}

Test(bench, a_plugin_that_hangs_at_its_start_ends_the_run)
{
    static struct run r;

    expect_break(&r, "hang-init", "bad: rank 0: hangs");
}

Test(bench, a_plugin_that_hangs_later_ends_the_run)
{
    static struct run r;

    expect_break(&r, "hang-later", "bad: rank ");
}

Test(bench, sendrecv_with_a_plugin_that_dies_or_hangs_ends_the_run)
{
    static struct run r;

    expect_break_in(&r, "sendrecv", "die-later", "bad: rank ");
    cr_assert(strstr(complaint(&r), "died of signal 9"), "%s", r.err);
    expect_break_in(&r, "sendrecv", "hang-later", "bad: rank ");
}

Test(bench, messages_above_the_devices_maximum_are_refused)
{
    static struct run r;

    expect_break_in(&r, "sendrecv", "short", "takes messages of 4096 bytes at most: lower --max");
    cr_assert(strstr(r.out, "\n  64 "), "the size before it was measured:\n%s", r.out);
}

Test(bench, wrong_bytes_are_counted_and_end_in_failure)
{
    static struct run r;

    expect_break(&r, "corrupt", "wrong");
    cr_assert(strstr(r.out, "FAILED"), "%s", r.out);
    cr_assert(strstr(file_read("x.csv"), ",good,plugin,0,2,30,"), "%s", file_read("x.csv"));
}

static void expect_end_by_signal(const char *line)
{
    static const struct {
        int sig, status;
    } cases[] = {{SIGINT, 128 + SIGINT}, {SIGTERM, 128 + SIGTERM}, {SIGKILL, 1000 + SIGKILL}};
    static struct run r;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status;

        run_start(&r, line);
        cr_assert(run_read(&r, "checking"), "%s", r.err);
        kill(r.pid, cases[i].sig);
        status = run_end(&r);
        cr_assert_eq(status, cases[i].status, "signal %d: status %d\n%s", cases[i].sig, status,
                     r.err);
    }
}

/* On a machine with the driver of a GPU this would go further. */
Test(bench, nccl_without_a_gpu_is_refused)
{
    static struct run r;

    if (dlopen("libcuda.so.1", RTLD_LAZY))
        cr_skip_test("libcuda.so.1 is here");
    cr_assert_eq(run(&r, "all_reduce --backend nccl -e 8 --csv @/a -p " HOLMES_PLUGIN), 1);
    cr_assert(strstr(complaint(&r), "--backend nccl: the CUDA driver is not here: libcuda.so.1"),
              "%s", r.err);
    cr_assert_eq(files_in_folder(), 0);
}

Test(bench, a_signal_ends_every_process)
{
    expect_end_by_signal("all_reduce -n 3 -e 1K --rounds 1000 --csv @/x.csv");
}

/* Where this user may make none, the run says so in one line. */
static bool links_allowed(void)
{
    static struct run r;
    int status = run(&r, "sendrecv -b 8 -e 8 --rounds 1 --iters 1 --reference-streams 1 --rate 1G");

    if (status != 0) {
        cr_assert_eq(status, 1, "status %d\n%s", status, r.err);
        cr_assert(strstr(complaint(&r), "which this user may not make: run as root"), "%s", r.err);
    }
    return status == 0;
}

Test(bench, every_side_runs_over_links_of_its_own)
{
    static struct run r;
    json_t *root, *side;

    if (!links_allowed())
        cr_skip_test("this user may make no network namespaces");
    expect_well(&r, "sendrecv --both-ways -b 64K -e 64K --rounds 2 --iters 20 --rate 1G,3G "
                    "--reference-streams 2 -p " HOLMES_PLUGIN " --json @/x.json");
    cr_assert(strstr(r.out, "# link1: 3 Gbit/s each way"), "%s", r.out);
    cr_assert(strstr(r.out, "device link0"), "%s", r.out);
    root = json_loads(file_read("x.json"), 0, NULL);
    side = json_array_get(json_object_get(root, "sides"), 1);
    for (size_t k = 0; k < 2; k++)
        cr_assert_gt(json_integer_value(json_array_get(json_object_get(side, "link_bytes"), k)),
                     2 * 20 * 65536, "one stream of the reference on each link: %s", r.out);
    json_decref(root);
    expect_well(&r, "all_reduce -n 3 -b 64K -e 64K --rounds 1 --iters 3 --rate 1G --rtt 1ms "
                    "--reference-streams 1 -p " HOLMES_PLUGIN);
    cr_assert(strstr(r.out, "round trip +1 ms"), "%s", r.out);
}

/* By the interfaces' own counters: each NIC carries what its speed lets it, none of it by the
 * other. */
Test(bench, plugin_over_all_nics_leaves_by_each_in_proportion)
{
    static struct run r;
    json_t *root, *sides;
    json_int_t bytes[2][2];

    if (!links_allowed())
        cr_skip_test("this user may make no network namespaces");
    expect_well(&r,
                "sendrecv --measure bandwidth -b 1M -e 1M --rounds 1 --iters 16 --rate 100M,300M "
                "--no-reference -p one=" HOLMES_PLUGIN " -p all=" HOLMES_PLUGIN
                ",HOLMES_TCP_NICS=all --json @/x.json");
    root = json_loads(file_read("x.json"), 0, NULL);
    sides = json_object_get(root, "sides");
    for (size_t s = 0; s < 2; s++)
        for (size_t k = 0; k < 2; k++)
            bytes[s][k] = json_integer_value(
                json_array_get(json_object_get(json_array_get(sides, s), "link_bytes"), k));
    json_decref(root);
    cr_assert_leq(bytes[0][1] * 100, bytes[0][0], "one NIC is asked for, the other carries: %s",
                  r.out);
    cr_assert_geq(bytes[1][0], (16 << 20) / 10, "the slow NIC is not used: %s", r.out);
    cr_assert_geq(bytes[1][1], 2 * bytes[1][0], "the fast NIC carries less than it could: %s",
                  r.out);
}

/* --- NICs that fail in the middle ----------------------------------------------------------------
 */

/* What a NIC has carried when it fails, sent and received: more than the first size takes, less
 * than the verified pass of the second. */
#define FAIL_AT_BYTES 8000000

/* Eight messages of 4 MiB under way over two NICs. */
#define OVER_TWO_NICS                                                                              \
    "sendrecv --measure bandwidth -b 64K -e 4M -f 64 --window 8 --rounds 2 --iters 8 "             \
    "--rate 200M,200M --no-reference --link-hook sh\t@/fail --json @/x.json "                      \
    "-p all=" HOLMES_PLUGIN ",HOLMES_TCP_NICS=all"

/* A hook which from the first size on watches what a NIC carries, and then runs `how` at this rank;
 * 'b' is both. */
static void failure_write(const char *nic, char rank, const char *how)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s/fail", dir);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fprintf(f,
            "[ $BENCH_SIZE = 65536 ] || exit 0\n"
            "case %c in b | $BENCH_RANK) ;; *) exit 0 ;; esac\n"
            "look() {\n"
            "    while read -r name rx _ _ _ _ _ _ _ tx _; do\n"
            "        [ $name != %s: ] || carried=$((rx + tx))\n"
            "    done </proc/net/dev\n"
            "}\n"
            "(\n"
            "    while kill -0 $BENCH_PID && look && [ $carried -lt %d ]; do sleep 0.01; done\n"
            "    [ $carried -lt %d ] || { %s; } && : >%s/failed.$BENCH_RANK\n"
            ") >/dev/null 2>&1 &\n",
            rank, nic, FAIL_AT_BYTES, FAIL_AT_BYTES, how, dir);
    fclose(f);
}

/* The hook has done what it was told to. */
static void expect_failure(char rank)
{
    for (char r = '0'; r <= '1'; r++) {
        char path[128];
        bool failed;

        snprintf(path, sizeof path, "%s/failed.%c", dir, r);
        failed = unlink(path) == 0;
        cr_assert_eq(failed, rank == 'b' || rank == r, "the NIC of rank %c failed: %d", r, failed);
    }
}

/* Every byte is right, and what is measured afterwards goes over the other NIC. */
static void expect_survival(int nic, char rank, const char *how)
{
    static struct run r;
    json_int_t bytes[2];
    char name[8];
    json_t *root;

    snprintf(name, sizeof name, "link%d", nic);
    failure_write(name, rank, how);
    expect_well(&r, OVER_TWO_NICS);
    expect_failure(rank);
    root = json_loads(file_read("x.json"), 0, NULL);
    for (size_t k = 0; k < 2; k++)
        bytes[k] = json_integer_value(json_array_get(
            json_object_get(json_array_get(json_object_get(root, "sides"), 0), "link_bytes"), k));
    json_decref(root);
    cr_assert_geq(bytes[!nic], 32 << 20, "%s: %s", how, r.out);
    cr_assert_leq(2 * bytes[nic], bytes[!nic], "%s: the NIC goes on: %s", how, r.out);
}

Test(bench, nic_that_goes_down_takes_no_connection_along)
{
    if (!links_allowed())
        cr_skip_test("this user may make no network namespaces");
    expect_survival(1, '0', "ip link set link1 down");
    expect_survival(1, '1', "ip link set link1 down");
    expect_survival(0, '0', "ip link set link0 down"); /* the handshake's sockets are there */
    expect_survival(1, '0', "ip address flush dev link1");
}

/* A queue that takes no packet. */
Test(bench, nic_that_falls_silent_takes_no_connection_along)
{
    if (!links_allowed())
        cr_skip_test("this user may make no network namespaces");
    expect_survival(1, '0', "tc qdisc replace dev link1 root pfifo limit 0");
    expect_survival(0, 'b', "tc qdisc replace dev link0 root pfifo limit 0");
}

Test(bench, last_nic_that_fails_ends_the_run_with_a_sentence)
{
    static const char *const ways[] = {
        "ip link set link0 down && ip link set link1 down",
        "tc qdisc replace dev link0 root pfifo limit 0 && "
        "tc qdisc replace dev link1 root pfifo limit 0",
    };
    static struct run r;

    if (!links_allowed())
        cr_skip_test("this user may make no network namespaces");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        failure_write("link1", '0', ways[i]);
        cr_assert_eq(run(&r, OVER_TWO_NICS ",HOLMES_PEER_TIMEOUT=3"), 1, "%s: %s", ways[i], r.err);
        expect_failure('0');
        cr_assert(strstr(complaint(&r), "all: rank "), "%s: %s", ways[i], r.err);
        cr_assert(strstr(complaint(&r), "sendrecv of 4 MiB: Connection reset by peer"), "%s: %s",
                  ways[i], r.err);
    }
}

Test(bench, a_hook_runs_in_the_network_of_each_rank)
{
    static struct run r;

    if (!links_allowed())
        cr_skip_test("this user may make no network namespaces");
    /* run_start cuts words at blanks: tabs stay */
    expect_well(&r, "sendrecv -b 64K -e 64K --rounds 1 --iters 2 --rate 1G --reference-streams 1 "
                    "-p good=" HOLMES_PLUGIN " --link-hook "
                    "echo\t$BENCH_SIDE\t$BENCH_RANK\t$BENCH_SIZE;"
                    "ip\t-br\taddress\tshow\tlink0;"
                    "grep\tholmes-bench\t/proc/$BENCH_PID/comm");
    cr_assert(strstr(r.err, "good 0 65536\n"), "%s", r.err);
    cr_assert(strstr(r.err, "10.78.0.1/24"), "%s", r.err);
    cr_assert(strstr(r.err, "reference 1 65536\n"), "%s", r.err);
    cr_assert(strstr(r.err, "10.78.0.2/24"), "%s", r.err);
    cr_assert_eq(count(r.err, "holmes-bench\n"), 4, "%s", r.err);
    cr_assert_eq(run(&r, "sendrecv -e 8 --rate 1G --reference-streams 1 --link-hook false"), 1);
    cr_assert(strstr(complaint(&r), "reference: rank 0: --link-hook \"false\" failed"), "%s",
              r.err);
    cr_assert_eq(run(&r, "sendrecv -e 8 --rate 1G --timeout 1 --link-hook exec\tsleep\t60"), 1);
    cr_assert(strstr(complaint(&r), "did not end within --timeout"), "%s", r.err);
    cr_assert_eq(run(&r, "sendrecv -e 8 --link-hook true"), 2);
    cr_assert(strstr(complaint(&r), "there are no links"), "%s", r.err);
}

Test(bench, a_signal_ends_every_process_of_links_too)
{
    if (!links_allowed())
        cr_skip_test("this user may make no network namespaces");
    expect_end_by_signal("all_reduce -n 3 -e 1K --rounds 1000 --rate 1G --rtt 1ms --csv @/x.csv");
}

Test(bench, help_explains_the_reference_and_the_exit_codes)
{
    static struct run r;

    cr_assert_eq(run(&r, "--help"), 0);
    cr_assert(strstr(r.out, "does not include sums"), "%s", r.out);
    cr_assert(strstr(r.out, "Exit status"), "%s", r.out);
    cr_assert_eq(run(&r, "--version"), 0);
    cr_assert(strstr(r.out, "holmes-bench "), "%s", r.out);
}
