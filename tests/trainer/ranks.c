/* Forks ranks, gives them the rendezvous' port over a pipe, and collects how they ended. */
#include "ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "clock.h"

extern void __lsan_do_leak_check(void) __attribute__((weak));

#define SECRET "ranks of a test"

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

static void rank_main(const struct ranks *r, int rank, int port_pipe)
{
    struct rank me = {.rank = rank, .size = r->size};
    uint16_t port;
    int rc;

    EXPECT(read(port_pipe, &port, sizeof port) == sizeof port);
    close(port_pipe);
    rc = holmes_rdv_connect("127.0.0.1", port, SECRET, rank, r->size, 20000, &me.rdv);
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

static bool ended_well(const struct ranks *r, int rank, int status)
{
    if (r->dies[rank] && WIFSIGNALED(status))
        return true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !r->dies[rank])
        return true;
    fprintf(stderr, "rank %d of %d ended with status 0x%x\n", rank, r->size, status);
    return false;
}

static bool ranks_collect(const struct ranks *r, const pid_t *pids, int limit_s)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)limit_s * 1000);
    bool well = true;

    for (int i = 0; i < r->size; i++) {
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
    uint16_t port;
    int fds[2];
    bool well = pipe(fds) == 0;

    fflush(NULL);
    for (int i = 0; i < r->size && well; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            close(fds[1]);
            rank_main(r, i, fds[0]);
        }
        well = pids[i] > 0;
    }
    close(fds[0]);
    if (well && holmes_rdv_serve("127.0.0.1", 0, SECRET, r->size, &server) == 0) {
        port = holmes_rdv_port(server);
        for (int i = 0; i < r->size; i++)
            well &= write(fds[1], &port, sizeof port) == sizeof port;
    }
    close(fds[1]);
    well &= server != NULL;
    well &= ranks_collect(r, pids, limit_s);
    holmes_rdv_stop(server);
    return well;
}
