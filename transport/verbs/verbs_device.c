/* A NIC of the verbs wire: one context of the device and one protection domain. Two ports of a
 * device are two NICs and open it twice: events then reach both, and neither waits for the other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../oob.h"
#include "log.h"
#include "verbs.h"

/* Beyond, a write is cut; no message of NCCL's is as large. */
#define MAX_WRITE ((size_t)1 << 30)

#define SOFT_ROCE_VENDOR 0xffffff
#define RETRY_CNT_MAX    7

static int device_open(const char *name, struct ibv_context **out)
{
    struct ibv_device **list;
    int n = 0, rc = -ENODEV;

    errno = 0;
    list = holmes_verbs.get_device_list(&n);
    if (!list && errno != ENOSYS) /* that is a kernel without RDMA */
        return holmes_verbs_open_errno(ENODEV);
    for (int i = 0; list && i < n; i++) {
        if (strcmp(holmes_verbs.get_device_name(list[i]), name) != 0)
            continue;
        errno = 0;
        *out = holmes_verbs.open_device(list[i]);
        rc = *out ? 0 : holmes_verbs_open_errno(EIO);
        break;
    }
    if (list)
        holmes_verbs.free_device_list(list);
    /* Without a descriptor to spare the list is empty. */
    if (rc == -ENODEV) {
        errno = ENODEV;
        rc = holmes_verbs_open_errno(ENODEV);
    }
    return rc;
}

static int nic_take_device(struct wire_nic *wn)
{
    struct ibv_device_attr attr = {0};
    int rc = holmes_verbs.query_device(wn->ctx, &attr);

    if (rc != 0)
        return rc > 0 ? -rc : holmes_verbs_errno(EIO);
    wn->max_cqe = attr.max_cqe;
    wn->max_qp_wr = attr.max_qp_wr;
    wn->endless = attr.vendor_id == SOFT_ROCE_VENDOR && wn->opts.retry_cnt == RETRY_CNT_MAX;
    return 0;
}

static const char *layer_name(int link_layer)
{
    return link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "RoCE";
}

static int nic_take_port(struct wire_nic *wn)
{
    struct holmes_rdma *r = &wn->nic.rdma;
    struct ibv_port_attr port;
    int rc = holmes_verbs_query_port(wn->ctx, r->port, &port);

    if (rc != 0) {
        holmes_warn(NET, "nic %s: device %s has no port %u: %s", wn->nic.name, r->device, r->port,
                    holmes_strerror(rc));
        return rc;
    }
    if (port.state != IBV_PORT_ACTIVE) {
        holmes_warn(NET, "nic %s: port %u of %s is not active", wn->nic.name, r->port, r->device);
        return -ENETDOWN;
    }
    wn->limits.max_write = port.max_msg_sz < MAX_WRITE ? port.max_msg_sz : MAX_WRITE;
    wn->limits.inline_max = VERBS_INLINE_MAX;
    wn->limits.mtu = (uint16_t)(128u << port.active_mtu);
    wn->limits.delivers = true;
    holmes_info(NET, "nic %s: device %s port %u, %s, path MTU %u, writes of up to %zu bytes%s",
                wn->nic.name, r->device, r->port, layer_name(port.link_layer), wn->limits.mtu,
                wn->limits.max_write,
                wn->access & IBV_ACCESS_RELAXED_ORDERING ? ", relaxed ordering" : "");
    return 0;
}

static void nic_take_access(struct wire_nic *wn)
{
    wn->access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (wn->opts.relaxed_ordering != 0 && holmes_verbs.reg_mr_iova2)
        wn->access |= IBV_ACCESS_RELAXED_ORDERING;
    else if (wn->opts.relaxed_ordering == 1)
        holmes_warn(NET, "nic %s: this libibverbs is too old for NCCL_IB_PCI_RELAXED_ORDERING=1",
                    wn->nic.name);
}

static bool has_dmabuf(struct wire_nic *wn)
{
    struct wire_mr none = {0};

    return holmes_verbs_mr_reg_dmabuf(wn, NULL, 0, 0, -1, &none) != -EOPNOTSUPP;
}

static int nic_open_objects(struct wire_nic *wn)
{
    int rc = device_open(wn->nic.rdma.device, &wn->ctx);

    if (rc != 0) {
        holmes_warn(NET, "nic %s: cannot open RDMA device %s: %s", wn->nic.name,
                    wn->nic.rdma.device, holmes_strerror(rc));
        return rc;
    }
    /* In a forked child they would keep a dead parent's queue pairs alive. */
    oob_fork_guard_add(wn->ctx->cmd_fd);
    oob_fork_guard_add(wn->ctx->async_fd);
    rc = nic_take_device(wn);
    if (rc == 0)
        rc = nic_take_port(wn);
    if (rc != 0)
        return rc;
    errno = 0;
    wn->pd = holmes_verbs.alloc_pd(wn->ctx);
    rc = wn->pd ? holmes_verbs_watch(wn) : holmes_verbs_errno(ENOMEM);
    if (rc != 0)
        holmes_warn(NET, "nic %s: cannot prepare RDMA device %s: %s", wn->nic.name,
                    wn->nic.rdma.device, holmes_strerror(rc));
    else
        wn->limits.dmabuf = has_dmabuf(wn);
    return rc;
}

int holmes_verbs_nic_open(const struct holmes_nic *nic, uint16_t listen_port,
                          uint16_t listen_port_end, struct wire_nic **out)
{
    struct wire_nic *wn;
    int rc;

    (void)listen_port, (void)listen_port_end; /* queue pairs need no port */
    if (nic->rdma.port == 0)
        return -EINVAL;
    wn = calloc(1, sizeof *wn);
    if (!wn)
        return -ENOMEM;
    wn->nic = *nic;
    wn->stop_fd = -1;
    holmes_list_init(&wn->lanes);
    pthread_mutex_init(&wn->lock, NULL);
    pthread_cond_init(&wn->raised, NULL);
    holmes_verbs_options_read(&wn->opts);
    nic_take_access(wn);
    rc = nic_open_objects(wn);
    if (rc != 0) {
        holmes_verbs_nic_close(wn);
        return rc;
    }
    *out = wn;
    return 0;
}

static void warn_unless_zero(const struct wire_nic *wn, int rc, const char *what)
{
    if (rc != 0)
        holmes_warn(NET, "nic %s: %s does not close: %s", wn->nic.name, what,
                    holmes_strerror(rc > 0 ? -rc : holmes_verbs_errno(EIO)));
}

void holmes_verbs_nic_close(struct wire_nic *wn)
{
    if (!wn)
        return;
    holmes_verbs_unwatch(wn);
    holmes_verbs_mr_dereg(wn, &wn->flush_mr);
    if (wn->pd)
        warn_unless_zero(wn, holmes_verbs.dealloc_pd(wn->pd), "protection domain");
    if (wn->ctx) {
        oob_fork_guard_remove(wn->ctx->cmd_fd);
        oob_fork_guard_remove(wn->ctx->async_fd);
        warn_unless_zero(wn, holmes_verbs.close_device(wn->ctx), "device");
    }
    pthread_cond_destroy(&wn->raised);
    pthread_mutex_destroy(&wn->lock);
    free(wn);
}

void holmes_verbs_nic_limits(const struct wire_nic *wn, struct wire_limits *out)
{
    *out = wn->limits;
}

int holmes_verbs_nic_status(const struct wire_nic *wn)
{
    int fatal = atomic_load(&wn->fatal);

    if (fatal != 0)
        return fatal;
    return atomic_load(&wn->link_down) ? -ENETDOWN : 0;
}

const struct wire_ops holmes_wire_verbs = {
    .name = "verbs",
    .rdma = true,
    .load = holmes_verbs_load,
    .nic_open = holmes_verbs_nic_open,
    .nic_close = holmes_verbs_nic_close,
    .nic_limits = holmes_verbs_nic_limits,
    .nic_status = holmes_verbs_nic_status,
    .nic_progress = holmes_verbs_nic_progress,
    .mr_reg = holmes_verbs_mr_reg,
    .mr_reg_dmabuf = holmes_verbs_mr_reg_dmabuf,
    .mr_dereg = holmes_verbs_mr_dereg,
    .cq_open = holmes_verbs_cq_open,
    .cq_close = holmes_verbs_cq_close,
    .cq_poll = holmes_verbs_cq_poll,
    .lane_create = holmes_verbs_lane_create,
    .lane_connect = holmes_verbs_lane_connect,
    .lane_poll = holmes_verbs_lane_poll,
    .lane_post = holmes_verbs_lane_post,
    .lane_flush = holmes_verbs_lane_flush,
    .lane_close = holmes_verbs_lane_close,
};
