/* A NIC of the wire of plain sockets: the socket on which its lanes' streams arrive, and its lists.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../oob.h"
#include "log.h"
#include "sock_ops.h"

#define BACKLOG 4096

static int load(char *why, size_t why_len)
{
    (void)why;
    (void)why_len;
    return 0;
}

static int listen_at(struct wire_nic *wn, uint16_t port)
{
    struct holmes_addr at = wn->nic.addrs[0];
    socklen_t len = sizeof wn->listen.in6;
    int fd, on = 1, rc = 0;

    tcp_addr_set_port(&at, htons(port));
    fd = socket(at.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    /* The next job may use the port while streams of the last one linger. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &at.sa, holmes_addr_len(&at)) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, &wn->listen.sa, &len) != 0)
        rc = -errno;
    if (rc != 0) {
        close(fd);
        return rc;
    }
    wn->listen_fd = fd;
    oob_fork_guard_add(fd);
    return 0;
}

/* Threads that poll hold it for reading most of the time, together: who registers memory would wait
 * for ever if they went first. Nobody takes it twice. */
static void mrs_lock_init(pthread_rwlock_t *lock)
{
    pthread_rwlockattr_t attr;

    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(lock, &attr);
    pthread_rwlockattr_destroy(&attr);
}

static int nic_open(const struct holmes_nic *nic, uint16_t listen_port, uint16_t listen_port_end,
                    struct wire_nic **out)
{
    struct wire_nic *wn;
    int rc = -EADDRINUSE;

    if (nic->naddrs < 1 || (listen_port != 0 && listen_port_end < listen_port))
        return -EINVAL;
    wn = calloc(1, sizeof *wn);
    if (!wn)
        return -ENOMEM;
    wn->nic = *nic;
    wn->listen_fd = -1;
    holmes_list_init(&wn->gates);
    holmes_list_init(&wn->dialing);
    pthread_mutex_init(&wn->lock, NULL);
    mrs_lock_init(&wn->mrs_lock);
    for (unsigned port = listen_port; rc == -EADDRINUSE && port <= listen_port_end; port++)
        rc = listen_at(wn, (uint16_t)port);
    if (rc == -EADDRINUSE)
        holmes_warn(NET, "nic %s: no free port in %u-%u for incoming lanes", nic->name, listen_port,
                    listen_port_end);
    else if (rc != 0)
        holmes_warn(NET, "nic %s: cannot listen for incoming lanes: %s", nic->name,
                    holmes_strerror(rc));
    if (rc != 0) {
        holmes_wire_sock.nic_close(wn);
        return rc;
    }
    *out = wn;
    return 0;
}

static void nic_close(struct wire_nic *wn)
{
    if (!wn)
        return;
    holmes_sock_strangers_close(wn);
    if (wn->listen_fd >= 0) {
        oob_fork_guard_remove(wn->listen_fd);
        close(wn->listen_fd);
    }
    pthread_rwlock_destroy(&wn->mrs_lock);
    pthread_mutex_destroy(&wn->lock);
    free(wn->mrs);
    free(wn->strangers);
    free(wn);
}

static void nic_limits(const struct wire_nic *wn, struct wire_limits *out)
{
    (void)wn;
    *out = (struct wire_limits){
        .max_write = SOCK_MAX_WRITE, .inline_max = SOCK_INLINE_MAX, .delivers = true};
}

const struct wire_ops holmes_wire_sock = {
    .name = "tcp",
    .bundles = true,
    .load = load,
    .nic_open = nic_open,
    .nic_close = nic_close,
    .nic_limits = nic_limits,
    .nic_progress = holmes_sock_nic_progress,
    .mr_reg = holmes_sock_mr_reg,
    .mr_dereg = holmes_sock_mr_dereg,
    .cq_open = holmes_sock_cq_open,
    .cq_close = holmes_sock_cq_close,
    .cq_poll = holmes_sock_cq_poll,
    .cq_push = holmes_sock_cq_push,
    .cq_awaited = holmes_sock_cq_awaited,
    .lane_create = holmes_sock_lane_create,
    .lane_connect = holmes_sock_lane_connect,
    .lane_via = holmes_sock_lane_via,
    .lane_poll = holmes_sock_lane_poll,
    .lane_streams = holmes_sock_lane_streams,
    .lane_post = holmes_sock_lane_post,
    .lane_linger = holmes_sock_lane_linger,
    .lane_settled = holmes_sock_lane_settled,
    .lane_close = holmes_sock_lane_close,
};
