/* The built file, and what loading it does to the process that loads it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/spawn.h"
#include "clock.h"
#include "pair.h"

TestSuite(library, .timeout = 60);

/* Runs a command and gives its lines to `each`. */
static void for_lines(const char *command, void (*each)(const char *line, void *arg), void *arg)
{
    FILE *f = popen(command, "r");
    char line[512];

    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        each(line, arg);
    }
    cr_assert_eq(pclose(f), 0, "%s", command);
}

static void check_export(const char *line, void *arg)
{
    const char *name = strrchr(line, ' ');
    int version = 0;

    cr_assert_not_null(name, "%s", line);
    cr_expect_eq(sscanf(name, " ncclNetPlugin_v%d", &version), 1, "exported: %s", line);
    cr_expect(strchr("DRBV", name[-1]), "not a data symbol: %s", line);
    if (version >= 6 && version <= 12)
        ((int *)arg)[version]++;
}

Test(library, exports_the_seven_tables_and_nothing_else)
{
    int seen[13] = {0};

    for_lines("nm -D --defined-only " HOLMES_PLUGIN, check_export, seen);
    for (int v = 6; v <= 12; v++)
        cr_expect_eq(seen[v], 1, "ncclNetPlugin_v%d: %d", v, seen[v]);
}

static void check_needed(const char *line, void *arg)
{
    static const char *const allowed[] = {
        "libc.so",  "libm.so",    "libpthread.so", "libdl.so",   "librt.so",
        "ld-linux", "libasan.so", "libubsan.so",   "libtsan.so", "libgcc_s.so"};
    const char *name = strchr(line, '[');
    bool known = false;

    if (strstr(line, "(FLAGS_1)"))
        *(bool *)arg = strstr(line, "NODELETE") != NULL;
    if (!strstr(line, "(NEEDED)"))
        return;
    cr_assert_not_null(name, "%s", line);
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        known |= strncmp(name + 1, allowed[i], strlen(allowed[i])) == 0;
    cr_expect(known, "linked: %s", line);
}

Test(library, links_no_network_and_no_gpu_library)
{
    bool nodelete = false;

    for_lines("readelf -d " HOLMES_PLUGIN, check_needed, &nodelete);
    cr_expect(nodelete, "NCCL unloads plugins; libraries below ours keep pointers into it");
}

/* libc's own mark on every disposition that was ever set, SIG_DFL included. */
#define KERNEL_SA_RESTORER 0x04000000

struct dispositions {
    struct sigaction of[65];
};

static void read_dispositions(struct dispositions *d)
{
    memset(d, 0, sizeof *d);
    for (int sig = 1; sig <= 64; sig++) {
        sigaction(sig, NULL, &d->of[sig]);
        d->of[sig].sa_flags &= ~KERNEL_SA_RESTORER;
    }
}

static void expect_unchanged(const struct dispositions *before, const char *when)
{
    struct dispositions now;

    read_dispositions(&now);
    for (int sig = 1; sig <= 64; sig++)
        cr_expect(before->of[sig].sa_handler == now.of[sig].sa_handler &&
                      before->of[sig].sa_flags == now.of[sig].sa_flags,
                  "signal %d was changed by %s", sig, when);
}

static void own_handler(int sig)
{
    (void)sig;
}

static void expect_no_disposition_changes(void)
{
    struct dispositions before;
    struct pair p;

    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, own_handler);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
    read_dispositions(&before);
    cr_assert_null(net_open(HOLMES_PLUGIN, 12, &p.api));
    expect_unchanged(&before, "loading");
    net_close(&p.api);
    pair_init(&p, 12);
    expect_unchanged(&before, "init");
    pair_connect(&p);
    pair_move(&p, 100000, 100000);
    expect_unchanged(&before, "a connection");
    pair_fini(&p);
    expect_unchanged(&before, "finalize");
}

Test(library, no_signal_disposition_changes)
{
    expect_no_disposition_changes();
}

#ifdef HOLMES_HAVE_OFI
/* Its psm provider installs handlers when it is loaded. */
Test(library, no_signal_disposition_changes_by_libfabric)
{
    setenv("HOLMES_TCP", "libfabric", 1);
    expect_no_disposition_changes();
}
#endif

/* Both ends end up in one process; a peer that goes away must not raise SIGPIPE. */
Test(library, a_dead_peer_raises_no_sigpipe)
{
    static char buf[1 << 16];
    void *request = NULL, *mr;
    uint64_t deadline = holmes_deadline_ms(5000);
    struct pair p;
    ncclResult_t rc = ncclSuccess;

    signal(SIGPIPE, SIG_DFL);
    pair_init(&p, 12);
    pair_connect(&p);
    cr_assert_eq(net_reg(&p.api, p.send, buf, sizeof buf, &mr), ncclSuccess);
    cr_assert_eq(net_close_recv(&p.api, p.recv), ncclSuccess);
    p.recv = NULL;
    while (rc == ncclSuccess && !holmes_deadline_passed(deadline))
        rc = net_isend(&p.api, p.send, buf, sizeof buf, 0, mr, &request);
    cr_expect_eq(rc, ncclRemoteError, "%d", rc);
    cr_assert_eq(net_dereg(&p.api, p.send, mr), ncclSuccess);
    pair_fini(&p);
}

static int wait_child(pid_t child, int ms)
{
    int status = -1;

    if (!WAIT_UNTIL(waitpid(child, &status, WNOHANG) == child, (uint64_t)ms)) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        cr_assert_fail("the child hangs");
    }
    return status;
}

/* Data loaders are forked after init and exit through exit(). */
Test(library, a_forked_child_leaves_its_parents_connections_alone)
{
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    pair_move(&p, 100000, 100000);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();

        cr_assert_geq(child, 0);
        if (child == 0) {
            if (i == 1)
                net_finalize(&p.api, p.ctx); /* at_exit handlers of frameworks do this */
            if (i == 2)
                net_close(&p.api);
            exit(0);
        }
        cr_expect_eq(wait_child(child, 10000), 0);
        pair_move(&p, 100000, 100000);
    }
    pair_fini(&p);
}

static int fresh_start(void)
{
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    pair_move(&p, 300000, 300000);
    pair_fini(&p);
    return 0;
}

static int fork_and_go_on(const void *arg, const int *fds)
{
    const bool *moved = arg;
    struct pair p;
    pid_t child;

    (void)fds;
    pair_init(&p, 12);
    pair_connect(&p);
    if (*moved) /* starts a thread of the transport's */
        pair_move(&p, 100000, 100000);
    child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(fresh_start());
    cr_assert_eq(wait_child(child, 30000), 0);
    pair_move(&p, 100000, 100000);
    pair_fini(&p);
    return 0;
}

Test(library, a_forked_child_may_start_on_its_own)
{
#ifdef __SANITIZE_THREAD__ /* ends children that start threads when the parent had some */
    const int cases = 1;
#else
    const int cases = 2;
#endif

    for (int i = 0; i < cases; i++) {
        const bool moved = i == 1;
        pid_t parent = spawn(fork_and_go_on, &moved, sizeof moved, NULL, 0);

        cr_assert_gt(parent, 0);
        cr_expect_eq(wait_child(parent, 40000), 0, "moved: %d", moved);
    }
}

struct leaver {
    int version;
    bool open; /* its connection, to the end */
};

static int leave(const void *arg, const int *fds)
{
    const struct leaver *l = arg;
    struct pair p;

    (void)fds;
    pair_init(&p, l->version);
    pair_connect(&p);
    pair_move(&p, 1000, 1000);
    if (!l->open)
        pair_close(&p);
    exit(0);
}

/* Before v11 nobody says goodbye. */
Test(library, exit_without_finalize_is_clean)
{
    for (int version = 8; version <= 12; version += 2) {
        for (int open = 0; open < 2; open++) {
            struct leaver l = {version, open};
            pid_t child = spawn(leave, &l, sizeof l, NULL, 0);

            cr_assert_gt(child, 0);
            cr_expect_eq(wait_child(child, 20000), 0, "v%d, %s", version,
                         open ? "connection open" : "connection closed");
        }
    }
}

/* NCCL unloads the plugin with its last communicator and loads it again with the next. */
Test(library, unloading_and_loading_again_works)
{
    for (int i = 0; i < 3; i++) {
        struct pair p;

        pair_init(&p, 11);
        pair_connect(&p);
        pair_move(&p, 200000, 200000);
        pair_fini(&p);
    }
}

/* ---- what drives TCP ---- */

static bool libfabric_is_loaded(void)
{
    bool found = false;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");

    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f))
        found = found || strstr(line, "/libfabric.so");
    fclose(f);
    return found;
}

/* A connection, and the line that both its ends write about it. */
static void expect_bytes_over(const char *wire)
{
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    pair_move(&p, 200000, 200000);
    cr_expect_eq(log_count(NCCL_LOG_INFO, wire), 2, "%s", log_text());
    cr_expect_eq(log_count(NCCL_LOG_WARN, ""), 0, "%s", log_text());
    pair_fini(&p);
}

Test(library, without_settings_libfabric_is_not_even_looked_for)
{
    unsetenv("HOLMES_TCP");
    setenv("HOLMES_LIBFABRIC", "libfabric-of-nobody.so.1", 1);
    expect_bytes_over(" tcp over ");
    cr_expect(!libfabric_is_loaded());
}

static void expect_no_start(const char *a, const char *b)
{
    struct net_api api;
    void *ctx = &api;

    setenv("HOLMES_TCP", "libfabric", 1);
    cr_assert_null(net_open(HOLMES_PLUGIN, 12, &api));
    cr_expect_eq(net_init(&api, &ctx, 1, test_logger), ncclSystemError);
    cr_expect_null(ctx);
    cr_expect_eq(log_count(NCCL_LOG_WARN, ""), 1, "one line:\n%s", log_text());
    cr_expect(log_has(NCCL_LOG_WARN, a, b), "%s", log_text());
    cr_expect_eq(net_finalize(&api, ctx), ncclSuccess);
    net_close(&api);
}

#ifdef HOLMES_HAVE_OFI

Test(library, libfabric_drives_tcp_where_the_user_wants_it)
{
    setenv("HOLMES_TCP", "libfabric", 1);
    expect_bytes_over(" tcp-libfabric over ");
    cr_expect(libfabric_is_loaded());
}

Test(library, libfabric_that_is_missing_is_one_clear_line)
{
    setenv("HOLMES_LIBFABRIC", "libfabric-of-nobody.so.1", 1);
    expect_no_start("libfabric-of-nobody.so.1 cannot be opened",
                    "install libfabric 1.17 or later (Debian: libfabric1), name one with "
                    "HOLMES_LIBFABRIC, or leave HOLMES_TCP unset");
}

Test(library, a_file_that_is_no_libfabric_is_refused_by_name)
{
    setenv("HOLMES_LIBFABRIC", HOLMES_PLUGIN, 1);
    expect_no_start(HOLMES_PLUGIN " has no ", "leave HOLMES_TCP unset");
}

#else

Test(library, a_build_without_libfabric_says_so_when_it_is_wanted)
{
    expect_no_start("HOLMES_TCP=libfabric, but this build has no such wire",
                    "leave HOLMES_TCP unset");
}

#endif
