/* Namespaces, bridges and the cable between. The test's process holds the bridges and stays outside
 * of the traffic; the hosts are its children. */
#include "hosts.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/spawn.h"
#include "clock.h"
#include "pair.h"

static int wire_cutter = -1; /* in a host: asks the test's process to cut */

static bool shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static bool shell(const char *fmt, ...)
{
    char command[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    return system(command) == 0;
}

bool hosts_cut(struct rank *r)
{
    char c = 'c';

    RANK_CHECK(write(wire_cutter, &c, 1) == 1 && read(wire_cutter, &c, 1) == 1, "nobody cuts");
    return true;
}

static bool enter_namespace(void)
{
    return unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("sysfs", "/sys", "sysfs", 0, NULL) == 0;
}

/* The kernel notices a carrier up to a second after the link came up. */
static bool links_are_up(void)
{
    bool up = true;

    for (int i = 0; i < HOST_NICS_MAX; i++) {
        char path[64], state[16] = "";
        FILE *f;

        snprintf(path, sizeof path, "/sys/class/net/eth%d/operstate", i);
        f = fopen(path, "r");
        if (!f)
            continue; /* this host has fewer */
        up &= fscanf(f, "%15s", state) == 1 && strcmp(state, "up") == 0;
        fclose(f);
    }
    return up;
}

struct host_order {
    intptr_t script;
    int host, version;
    char arg[256];
};

static int host_entry(const void *order, const int *fds)
{
    static struct rank rank;
    struct host_order o;
    char c = 'r';

    memcpy(&o, order, sizeof o);
    if (!enter_namespace() || !shell("ip link set lo up") || write(fds[0], &c, 1) != 1 ||
        read(fds[0], &c, 1) != 1 || !WAIT_UNTIL(links_are_up(), 10000))
        return 2;
    wire_cutter = fds[0];
    rank_setup(&rank, HOLMES_PLUGIN, o.version, o.host, fds[1], o.arg);
    if (((rank_script *)spawn_function(o.script))(&rank))
        return 0;
    fprintf(stderr, "%s\n%s", rank.failure, log_text());
    return 1;
}

static bool plug(int host, int i, pid_t pid, const struct host_nic *nic)
{
    return shell("ip link add p%d%d type veth peer name eth%d netns %d", host, i, i, (int)pid) &&
           shell("ip link set p%d%d up master net%d", host, i, nic->net) &&
           shell("nsenter -t %d -n ip addr add %s dev eth%d%s", (int)pid, nic->addr, i,
                 strchr(nic->addr, ':') ? " nodad" : "") &&
           shell("nsenter -t %d -n ip link set eth%d up", (int)pid, i);
}

static bool add_bridge(int net)
{
    return shell("ip link add net%d type bridge", net) && shell("ip link set net%d up", net);
}

static bool unplug(const struct hosts_spec *spec, int net)
{
    bool ok = true;

    for (int host = 0; host < 2; host++) {
        for (int i = 0; i < HOST_NICS_MAX && spec->nics[host][i].addr; i++) {
            if (net < 0 || spec->nics[host][i].net == net)
                ok &= shell("ip link set p%d%d nomaster", host, i);
        }
    }
    return ok;
}

/* Serves cuts until the host's end of the socket closes. */
static void serve(const struct hosts_spec *spec, int control[2])
{
    for (int host = 0; host < 2; host++) {
        char c;

        while (read(control[host], &c, 1) == 1) {
            cr_assert(unplug(spec, -1));
            cr_assert_eq(write(control[host], &c, 1), 1);
        }
    }
}

void run_on_hosts(const struct hosts_spec *spec, int version, rank_script *script, const void *arg,
                  size_t arg_len)
{
    struct host_order o = {.script = spawn_number((void (*)(void))script), .version = version};
    int boot[2], control[2];
    pid_t pids[2];
    char c;

    if (geteuid() != 0)
        cr_skip("network namespaces need root");
    cr_assert_leq(arg_len, sizeof o.arg);
    if (arg_len > 0)
        memcpy(o.arg, arg, arg_len);
    cr_assert(enter_namespace());
    cr_assert(add_bridge(0) && add_bridge(1));
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, boot), 0);
    for (int host = 0; host < 2; host++) {
        int pair[2];

        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        control[host] = pair[0];
        o.host = host;
        pids[host] = spawn(host_entry, &o, sizeof o, (const int[]){pair[1], boot[host]}, 2);
        cr_assert_gt(pids[host], 0);
        close(pair[1]);
        cr_assert_eq(read(control[host], &c, 1), 1);
    }
    close(boot[0]);
    close(boot[1]);
    for (int host = 0; host < 2; host++) {
        for (int i = 0; i < HOST_NICS_MAX && spec->nics[host][i].addr; i++)
            cr_assert(plug(host, i, pids[host], &spec->nics[host][i]));
    }
    if (spec->unplugged_net >= 0)
        cr_assert(unplug(spec, spec->unplugged_net));
    for (int host = 0; host < 2; host++)
        cr_assert_eq(write(control[host], &c, 1), 1);
    serve(spec, control);
    for (int host = 0; host < 2; host++) {
        int status;

        cr_assert_eq(waitpid(pids[host], &status, 0), pids[host]);
        cr_expect_eq(status, 0, "host %d ended with status 0x%x", host, status);
    }
}
