/* Starts this program again for every rank, tells it in the environment what to be, and collects
 * how the ranks ended. Not a plain fork, because the thread sanitizer does not survive one in
 * Criterion's processes, which have threads. */
#include "ranks.h"

#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "clock.h"

extern void __lsan_do_leak_check(void) __attribute__((weak));

#define SECRET "ranks of a test"
#define SPEC   "TEST_RANK" /* set in a rank: what it is */

const char *holmes_test_plugin(void)
{
    const char *path = getenv("TEST_NET_PLUGIN");

    return path ? path : "holmes";
}

void holmes_test_wait(struct holmes_comm *c, struct holmes_op *op, int want)
{
    int rc = c->ops->wait(op, -1);

    EXPECT(rc == want, "rank %d: ended with %d, expected %d", c->rank, rc, want);
}

static void rank_open(const struct ranks *r, struct rank *me)
{
    struct holmes_net_attr attr = {
        .plugin = r->plugin,
        .connect_timeout_s = 20,
        .op_timeout_s = r->op_timeout_s ? r->op_timeout_s : 30,
    };
    char why[512];
    int ranks[16], rc = holmes_net_open(&attr, &me->net, why, sizeof why);

    EXPECT(rc == 0, "%d: %s", rc, why);
    for (int i = 0; i < r->size; i++)
        ranks[i] = i;
    rc = holmes_comm_net_create(me->net, me->rdv, "all", "world", ranks, r->size, me->rank,
                                &me->all);
    EXPECT(rc == 0, "%d", rc);
}

static void rank_run(const struct ranks *r, int rank, uint16_t port)
{
    struct rank me = {.rank = rank, .size = r->size};
    int rc = holmes_rdv_connect("127.0.0.1", port, SECRET, rank, r->size, 20000, &me.rdv);

    EXPECT(rc == 0, "%d: %s", rc, holmes_rdv_reason(NULL));
    if (r->plugin)
        rank_open(r, &me);
    r->body(&me);
    if (me.all)
        me.all->ops->destroy(me.all);
    holmes_net_close(me.net);
    holmes_rdv_leave(me.rdv);
    if (__lsan_do_leak_check)
        __lsan_do_leak_check();
    _exit(0);
}

/* A body is told to the other process by its distance from a function of this file. */
static char *anchor(void)
{
    return (char *)(uintptr_t)&holmes_test_ranks_run;
}

/* In a process that is to be a rank, before Criterion's main. */
__attribute__((constructor)) static void rank_start(void)
{
    const char *spec = getenv(SPEC);
    struct ranks r = {0};
    char plugin[512];
    ptrdiff_t body;
    unsigned int port;
    int rank;

    if (!spec)
        return;
    EXPECT(sscanf(spec, "%d %d %d %u %td %511s", &rank, &r.size, &r.op_timeout_s, &port, &body,
                  plugin) == 6);
    r.plugin = strcmp(plugin, "-") ? plugin : NULL;
    r.body = (void (*)(struct rank *))(uintptr_t)(anchor() + body);
    rank_run(&r, rank, (uint16_t)port);
}

static pid_t rank_spawn(const struct ranks *r, int rank, uint16_t port)
{
    char spec[600], *argv[] = {(char *)"rank", NULL};
    pid_t pid;

    snprintf(spec, sizeof spec, "%d %d %d %u %td %s", rank, r->size, r->op_timeout_s, port,
             (char *)(uintptr_t)r->body - anchor(), r->plugin ? r->plugin : "-");
    setenv(SPEC, spec, 1);
    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ) != 0)
        pid = -1;
    unsetenv(SPEC);
    return pid;
}

static bool ended_well(const struct ranks *r, int rank, int status)
{
    if (r->dies[rank] && WIFSIGNALED(status))
        return true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !r->dies[rank])
        return true;
    fprintf(stderr, "rank %d of %d ended with status 0x%x\n", rank, r->size, status);
    return false;
}

static bool ranks_collect(const struct ranks *r, const pid_t *pids, int n, int limit_s)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)limit_s * 1000);
    bool well = true;

    for (int i = 0; i < n; i++) {
        int status = 0;
        pid_t got;

        while ((got = waitpid(pids[i], &status, WNOHANG)) == 0 && !holmes_deadline_passed(deadline))
            usleep(2000);
        if (got == 0) {
            fprintf(stderr, "rank %d of %d did not end within %d s\n", i, r->size, limit_s);
            kill(pids[i], SIGKILL);
            waitpid(pids[i], &status, 0);
            well = false;
        } else {
            well &= ended_well(r, i, status);
        }
    }
    return well;
}

bool holmes_test_ranks_run(const struct ranks *r, int limit_s)
{
    struct holmes_rdv_server *server = NULL;
    pid_t pids[16];
    bool well = holmes_rdv_serve("127.0.0.1", 0, SECRET, r->size, &server) == 0;
    int started = 0;

    while (well && started < r->size) {
        pids[started] = rank_spawn(r, started, holmes_rdv_port(server));
        well = pids[started] > 0;
        started += well;
    }
    well &= ranks_collect(r, pids, started, limit_s);
    holmes_rdv_stop(server);
    return well;
}
