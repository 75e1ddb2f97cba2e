/* Both ends of the conversation with a peer process; see peer.h. */
#include "peer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

#define PAUSE_NS 200000 /* the cores belong to the process under measure */
#define ANSWER_S 10     /* an answer may take this much longer than what was ordered */
#define GOING_MS 10000

struct order {
    uint32_t what, n;
};

struct answer {
    int32_t rc;
    char why[256];
    struct holmes_scale_usage usage;
};

int holmes_scale_write(int fd, const void *buf, size_t len)
{
    for (const char *p = buf; len > 0;) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -EPIPE;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int holmes_scale_read(int fd, void *buf, size_t len)
{
    for (char *p = buf; len > 0;) {
        ssize_t n = recv(fd, p, len, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -EPIPE;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

/* ---- the peer ---- */

struct peer {
    const struct holmes_scale_options *o;
    int fd;
    struct holmes_plugin *plugin;
    void *ctx;
    struct holmes_scale_set set;
};

static int peer_load(struct peer *p)
{
    char why[256] = "";
    int rc = holmes_plugin_open(p->o->plugin, &p->plugin, why, sizeof why);

    if (rc == 0)
        rc = holmes_plugin_init(p->plugin, 1, &p->ctx);
    if (rc != 0)
        snprintf(p->set.why, sizeof p->set.why, "cannot load the plugin: %.200s", why);
    return rc;
}

static int peer_make(struct peer *p, uint32_t n)
{
    int rc;

    holmes_scale_set_destroy(&p->set);
    rc = holmes_scale_set_create(p->plugin, p->ctx, (int)n, &p->set);
    if (rc != 0)
        return rc;
    p->set.pause_ns = PAUSE_NS;
    p->set.timeout_ns = p->o->timeout_s * 1000000000ll;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct holmes_scale_role role;

        rc = holmes_scale_read(p->fd, &role, sizeof role);
        p->set.ends[i].number = role.number;
        p->set.ends[i].sends = role.sends != 0;
    }
    return rc;
}

/* The socket is read first and written then, as its other end does it the other way round. */
static int peer_handles(struct peer *p)
{
    int rc = 0, listening;

    for (int i = 0; rc == 0 && i < p->set.n; i++) {
        struct holmes_scale_end *e = &p->set.ends[i];

        if (e->sends)
            rc = holmes_scale_read(p->fd, e->handle, sizeof e->handle);
    }
    if (rc != 0)
        return rc;
    listening = holmes_scale_set_listen(&p->set);
    for (int i = 0; rc == 0 && i < p->set.n; i++) {
        struct holmes_scale_end *e = &p->set.ends[i];

        if (!e->sends)
            rc = holmes_scale_write(p->fd, e->handle, sizeof e->handle);
    }
    return rc != 0 ? rc : listening;
}

static int peer_exchange(struct peer *p)
{
    int rc = holmes_scale_set_post(&p->set);

    return rc != 0 ? rc : holmes_scale_set_exchange(&p->set);
}

static int peer_obey(struct peer *p, const struct order *order)
{
    switch ((enum holmes_scale_order)order->what) {
    case HOLMES_SCALE_LOAD:
        return peer_load(p);
    case HOLMES_SCALE_MAKE:
        return peer_make(p, order->n);
    case HOLMES_SCALE_HANDLES:
        return peer_handles(p);
    case HOLMES_SCALE_RAISE:
        return holmes_scale_set_raise(&p->set);
    case HOLMES_SCALE_EXCHANGE:
        return peer_exchange(p);
    case HOLMES_SCALE_CLOSE:
        holmes_scale_set_close(&p->set);
        return 0;
    case HOLMES_SCALE_LOOK:
        return 0;
    }
    return -EINVAL;
}

static void peer_life(const struct holmes_scale_options *o, int fd)
{
    struct peer p = {.o = o, .fd = fd};
    struct order order;

    while (holmes_scale_read(fd, &order, sizeof order) == 0) {
        struct answer answer = {.rc = peer_obey(&p, &order)};

        memcpy(answer.why, p.set.why, sizeof answer.why);
        holmes_scale_usage_now(&answer.usage);
        if (holmes_scale_write(fd, &answer, sizeof answer) != 0)
            break;
    }
    holmes_scale_set_destroy(&p.set);
    if (p.plugin) {
        holmes_plugin_fini(p.plugin, p.ctx);
        holmes_plugin_close(p.plugin);
    }
}

/* ---- who gives the orders ---- */

int holmes_scale_peer_start(const struct holmes_scale_options *o, struct holmes_scale_peer *out)
{
    struct timeval limit = {.tv_sec = o->timeout_s + ANSWER_S};
    pid_t parent = getpid();
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return -errno;
    out->pid = fork();
    if (out->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        if (getppid() == parent)
            peer_life(o, fds[1]);
        _exit(0);
    }
    close(fds[1]);
    out->fd = fds[0];
    if (out->pid < 0) {
        int rc = -errno;

        close(fds[0]);
        out->fd = -1;
        return rc;
    }
    setsockopt(out->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return 0;
}

void holmes_scale_peer_stop(struct holmes_scale_peer *p)
{
    uint64_t deadline = holmes_deadline_ms(GOING_MS);
    struct timespec pause = {.tv_nsec = 1000000};

    if (p->pid <= 0)
        return;
    shutdown(p->fd, SHUT_RDWR); /* peers that were started later hold it too */
    close(p->fd);
    while (waitpid(p->pid, NULL, WNOHANG) == 0) {
        if (holmes_deadline_passed(deadline))
            kill(p->pid, SIGKILL);
        nanosleep(&pause, NULL);
    }
    p->pid = 0;
}

int holmes_scale_peer_tell(struct holmes_scale_peer *p, enum holmes_scale_order what, uint32_t n)
{
    struct order order = {what, n};

    return holmes_scale_write(p->fd, &order, sizeof order);
}

int holmes_scale_peer_answer(struct holmes_scale_peer *p, struct holmes_scale_usage *usage,
                             char *why, size_t why_len)
{
    struct answer answer;

    if (holmes_scale_read(p->fd, &answer, sizeof answer) != 0) {
        snprintf(why, why_len, "peer process %d died or hung", (int)p->pid);
        return -EPIPE;
    }
    if (answer.rc != 0)
        snprintf(why, why_len, "peer process %d: %.*s", (int)p->pid, (int)sizeof answer.why,
                 answer.why);
    if (usage)
        *usage = answer.usage;
    return answer.rc;
}
