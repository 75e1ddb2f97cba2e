/* The thread that reads a device's asynchronous events. Most are only worth a line: a reliable
 * connection outlives a port that is down for less than its retries. What ends a queue pair or the
 * device ends the lanes, unless NCCL_IB_RETURN_ASYNC_EVENTS=0. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "log.h"
#include "verbs.h"

static void on_port(struct wire_nic *wn, const struct ibv_async_event *e)
{
    const char *name = wn->nic.name;

    if (e->element.port_num != wn->nic.rdma.port)
        return;
    switch (e->event_type) {
    case IBV_EVENT_PORT_ERR:
        atomic_store(&wn->link_lost, true);
        atomic_store(&wn->link_down, true);
        holmes_warn(NET, "nic %s: port down: transfers wait for it until their retries are used up",
                    name);
        break;
    case IBV_EVENT_PORT_ACTIVE:
        atomic_store(&wn->link_down, false);
        holmes_warn(NET, "nic %s: port up", name);
        break;
    case IBV_EVENT_GID_CHANGE:
        holmes_info(NET, "nic %s: GID table changed: connections keep the GID that they have",
                    name);
        break;
    case IBV_EVENT_LID_CHANGE:
        holmes_warn(NET, "nic %s: LID changed: peers still send to the old one", name);
        break;
    default:
        holmes_info(NET, "nic %s: %s", name, holmes_verbs.event_type_str(e->event_type));
    }
}

/* Ends the lanes that `fits` picks; all with `fits` NULL. */
static void lanes_end(struct wire_nic *wn, bool (*fits)(const struct wire_lane *, const void *),
                      const void *arg)
{
    pthread_mutex_lock(&wn->lock);
    holmes_list_each(lane, tmp, &wn->lanes, struct wire_lane, node)
    {
        if (!fits || fits(lane, arg))
            holmes_verbs_lane_fail(lane, -EIO);
    }
    pthread_mutex_unlock(&wn->lock);
}

static bool lane_has_qp(const struct wire_lane *lane, const void *qp)
{
    return lane->qp == qp || lane->flush_qp == qp;
}

static bool lane_has_cq(const struct wire_lane *lane, const void *cq)
{
    return lane->cq->cq == cq;
}

static void on_event(struct wire_nic *wn, const struct ibv_async_event *e)
{
    const char *text = holmes_verbs.event_type_str(e->event_type);
    bool ends = wn->opts.async_errors;

    switch (e->event_type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
        on_port(wn, e);
        break;
    case IBV_EVENT_DEVICE_FATAL:
        holmes_warn(NET, "nic %s: %s%s", wn->nic.name, text, ends ? ": its connections end" : "");
        if (!ends)
            break;
        atomic_store(&wn->fatal, -EIO);
        lanes_end(wn, NULL, NULL);
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
        holmes_warn(NET, "nic %s qp 0x%x: %s", wn->nic.name, e->element.qp->qp_num, text);
        if (ends)
            lanes_end(wn, lane_has_qp, e->element.qp);
        break;
    case IBV_EVENT_CQ_ERR:
        holmes_warn(NET, "nic %s: %s", wn->nic.name, text);
        if (ends)
            lanes_end(wn, lane_has_cq, e->element.cq);
        break;
    default:
        holmes_trace(NET, "nic %s: %s", wn->nic.name, text);
    }
}

static void *watcher_main(void *arg)
{
    struct wire_nic *wn = arg;
    struct pollfd fds[2] = {{.fd = wn->ctx->async_fd, .events = POLLIN},
                            {.fd = wn->stop_fd, .events = POLLIN}};

    for (;;) {
        struct ibv_async_event event;

        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (fds[1].revents != 0)
            return NULL;
        if (fds[0].revents & (POLLERR | POLLNVAL | POLLHUP))
            fds[0].fd = -1; /* the device went away: nothing more comes */
        if (!(fds[0].revents & POLLIN) || holmes_verbs.get_async_event(wn->ctx, &event) != 0)
            continue;
        on_event(wn, &event);
        holmes_verbs.ack_async_event(&event);
    }
}

int holmes_verbs_watch(struct wire_nic *wn)
{
    int flags = fcntl(wn->ctx->async_fd, F_GETFL), rc;
    sigset_t all, before;

    if (flags < 0 || fcntl(wn->ctx->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return -errno;
    wn->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (wn->stop_fd < 0)
        return -errno;
    sigfillset(&all); /* the host program's handlers run on its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = -pthread_create(&wn->watcher, NULL, watcher_main, wn);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    wn->watched_by = rc == 0 ? getpid() : 0;
    return rc;
}

void holmes_verbs_unwatch(struct wire_nic *wn)
{
    if (wn->watched_by == getpid()) { /* a forked child has no such thread */
        eventfd_write(wn->stop_fd, 1);
        pthread_join(wn->watcher, NULL);
    }
    wn->watched_by = 0;
    if (wn->stop_fd >= 0)
        close(wn->stop_fd);
    wn->stop_fd = -1;
}
