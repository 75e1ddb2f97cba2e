/* holmes-topo check-agent: what check starts on every node. It opens the NICs as the plugin does,
 * says hello, and then does what the lines of its standard input say, one at a time, until that
 * ends. Each command has its limit, so the agent always answers; and when nobody has asked anything
 * for a while it goes. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "env.h"
#include "log.h"
#include "tool/check_link.h"
#include "tool/check_msg.h"
#include "tool/verbs.h"
#include "topology.h"

#define IDLE_MS      300000
#define COMMAND_MAX  1024
#define LIMIT_MS_MAX 600000

_Static_assert(HOLMES_CHECK_HANDLE == HOLMES_HANDLE_SIZE, "the same handle");

struct agent {
    struct holmes_transport *t;
    int nshown;
    struct holmes_check_link *link;
    int pair; /* of the link */
};

/* --- reasons: the last warning says more than an errno ---------------------------------------- */

static char last_warning[HOLMES_CHECK_REASON_MAX];

static void keep_warning(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                         const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)subsys, (void)file, (void)line, (void)func;
    if (level == HOLMES_LOG_WARN)
        snprintf(last_warning, sizeof last_warning, "%s", msg);
}

static int answer(struct holmes_check_msg *m)
{
    return holmes_check_msg_write(m, stdout);
}

static int answer_failure(int pair, const char *what, int rc)
{
    struct holmes_check_msg m = {.kind = HOLMES_CHECK_FAILED, .pair = pair};

    if (last_warning[0])
        snprintf(m.reason, sizeof m.reason, "%s: %.200s", what, last_warning);
    else
        snprintf(m.reason, sizeof m.reason, "%s: %s", what, holmes_strerror(rc));
    return answer(&m);
}

/* --- NICs, as plugin/net.c opens them --------------------------------------------------------- */

static int port_open_error(void *arg, const char *device, int port)
{
    struct holmes_nic nic = {.rdma.port = (uint8_t)port};
    int rc;

    (void)arg;
    snprintf(nic.name, sizeof nic.name, "%s", device);
    snprintf(nic.rdma.device, sizeof nic.rdma.device, "%s", device);
    rc = holmes_nic_check(&nic);
    return rc == -ELIBACC ? 0 : rc;
}

static int agent_open(struct agent *a)
{
    struct holmes_check_msg hello = {
        .kind = HOLMES_CHECK_HELLO, .pair = -1, .version = HOLMES_VERSION};
    struct holmes_nics *found = calloc(1, sizeof *found);
    int rc = found ? 0 : -ENOMEM;

    if (rc == 0)
        rc = holmes_env_check(last_warning, sizeof last_warning);
    if (rc == 0)
        rc = holmes_nics_discover("/sys", port_open_error, NULL, found);
    if (rc == 0)
        rc = holmes_transport_create(found->nics, found->n, &a->t);
    if (rc != 0) {
        answer_failure(-1, "cannot start", rc);
        free(found);
        return rc;
    }
    a->nshown = found->nshown;
    hello.nnics = found->nshown;
    for (int i = 0; i < found->nshown; i++) {
        const struct holmes_nic *nic = &found->nics[i];

        snprintf(hello.nics[i].name, sizeof hello.nics[i].name, "%s", nic->name);
        hello.nics[i].gbps = nic->speed_mbps / 1000.0;
        hello.nics[i].rdma = nic->rdma.port != 0;
    }
    free(found);
    return answer(&hello);
}

/* --- commands --------------------------------------------------------------------------------- */

static void agent_drop(struct agent *a)
{
    holmes_check_link_destroy(a->link);
    a->link = NULL;
    a->pair = -1;
}

static int do_listen(struct agent *a, const struct holmes_check_command *c)
{
    struct holmes_check_msg m = {.kind = HOLMES_CHECK_HANDLE_IS, .pair = c->pair};
    int rc;

    agent_drop(a);
    rc = holmes_check_link_create(a->t, c->nic % a->nshown, m.handle, &a->link);
    if (rc != 0)
        return answer_failure(c->pair, "cannot listen", rc);
    a->pair = c->pair;
    return answer(&m);
}

static int do_connect(struct agent *a, const struct holmes_check_command *c, uint64_t deadline_ns)
{
    struct holmes_check_msg m = {.kind = HOLMES_CHECK_UP, .pair = c->pair};
    struct holmes_conn_stats stats;
    int rc = holmes_check_link_connect(a->link, c->handle, deadline_ns);

    if (rc != 0)
        return answer_failure(c->pair, "no connection", rc);
    holmes_check_link_stats(a->link, &stats);
    snprintf(m.wire, sizeof m.wire, "%s", stats.wire);
    snprintf(m.reason, sizeof m.reason, "%s", stats.reason);
    snprintf(m.local, sizeof m.local, "%s", stats.local);
    snprintf(m.peer, sizeof m.peer, "%s", stats.peer);
    return answer(&m);
}

static int do_measure(struct agent *a, const struct holmes_check_command *c, uint64_t deadline_ns)
{
    struct holmes_check_msg m = {.kind = HOLMES_CHECK_DONE, .pair = c->pair};
    uint64_t now = holmes_now_ns(), rtt_ns = 0;
    int rc;

    switch (c->verb) {
    case HOLMES_CHECK_PING:
        m.kind = HOLMES_CHECK_RTT;
        rc = holmes_check_link_ping(a->link, now + (deadline_ns - now) / 8, deadline_ns, &rtt_ns);
        m.rtt_us = (double)rtt_ns / 1e3;
        break;
    case HOLMES_CHECK_PONG:
        rc = holmes_check_link_pong(a->link, deadline_ns);
        break;
    case HOLMES_CHECK_SEND:
        m.kind = HOLMES_CHECK_RATE;
        rc = holmes_check_link_send(a->link, (uint64_t)c->run_ms * 1000000, deadline_ns, &m.gbps);
        break;
    default:
        rc = holmes_check_link_recv(a->link, deadline_ns);
        break;
    }
    return rc == 0 ? answer(&m) : answer_failure(c->pair, "the connection failed", rc);
}

static int agent_do(struct agent *a, const struct holmes_check_command *c)
{
    int limit_ms = c->limit_ms < LIMIT_MS_MAX ? c->limit_ms : LIMIT_MS_MAX;
    uint64_t deadline_ns = holmes_deadline_ms((uint64_t)limit_ms);

    last_warning[0] = '\0';
    if (c->verb == HOLMES_CHECK_DROP) {
        agent_drop(a);
        return 0;
    }
    if (c->verb == HOLMES_CHECK_LISTEN)
        return do_listen(a, c);
    if (!a->link || a->pair != c->pair)
        return answer_failure(c->pair, "there is no such pair", -EINVAL);
    return c->verb == HOLMES_CHECK_CONNECT ? do_connect(a, c, deadline_ns)
                                           : do_measure(a, c, deadline_ns);
}

/* --- standard input --------------------------------------------------------------------------- */

/* A line without its newline; -EPIPE at the end, -ETIMEDOUT when nothing came, -EMSGSIZE. */
static int read_line(char line[COMMAND_MAX])
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    size_t len = 0;

    for (;;) {
        int ready = poll(&in, 1, IDLE_MS);

        if (ready == 0)
            return -ETIMEDOUT;
        if (ready < 0 && errno != EINTR)
            return -errno;
        if (ready < 0)
            continue;
        /* One byte at a time: commands are few. */
        if (read(STDIN_FILENO, line + len, 1) != 1)
            return -EPIPE;
        if (line[len] == '\n') {
            line[len] = '\0';
            return 0;
        }
        if (++len == COMMAND_MAX)
            return -EMSGSIZE;
    }
}

int topo_check_agent(int argc, char **argv)
{
    struct agent a = {.pair = -1};
    char line[COMMAND_MAX];
    int rc;

    (void)argv;
    if (argc > 1) {
        fputs("holmes-topo check-agent: started by holmes-topo check on each node; takes no "
              "arguments\n",
              stderr);
        return TOPO_USAGE;
    }
    holmes_log_set_sink(keep_warning, NULL, HOLMES_LOG_WARN);
    rc = agent_open(&a);
    while (rc == 0 && (rc = read_line(line)) == 0) {
        struct holmes_check_command c;

        if (holmes_check_command_parse(line, &c) == 0)
            rc = agent_do(&a, &c);
        else
            rc = answer_failure(-1, "not a command", -EINVAL);
    }
    agent_drop(&a);
    holmes_transport_destroy(a.t);
    return rc == -EPIPE ? TOPO_OK : TOPO_FAILED;
}
