/* A NIC of the ofi wire: fabric, domain, one event queue and one passive endpoint, shared by all
 * lanes of the NIC because descriptors are scarce. Also memory registration, which needs the
 * domain alone. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "../oob.h"
#include "log.h"
#include "ofi.h"

/* One try at one port. -EADDRINUSE may come from bind or, when two processes raced through bind
 * with SO_REUSEADDR, from listen. */
static int pep_listen(struct wire_nic *wn, uint16_t port)
{
    struct holmes_addr at = wn->nic.addrs[0];
    size_t len = sizeof wn->listen;
    struct fid_pep *pep;
    struct fi_info *info;
    int rc;

    info = holmes_ofi.dupinfo(wn->info);
    if (!info)
        return -ENOMEM;
    tcp_addr_set_port(&at, htons(port));
    memcpy(info->src_addr, &at, info->src_addrlen);
    rc = holmes_ofi_open_errno(fi_passive_ep(wn->fabric, info, &pep, wn));
    holmes_ofi.freeinfo(info);
    if (rc != 0)
        return rc;

    rc = holmes_ofi_errno(fi_pep_bind(pep, &wn->eq->fid, 0));
    if (rc == 0)
        rc = holmes_ofi_open_errno(fi_listen(pep));
    if (rc == 0)
        rc = holmes_ofi_errno(fi_getname(&pep->fid, &wn->listen, &len));
    if (rc != 0)
        fi_close(&pep->fid);
    else
        wn->pep = pep;
    return rc;
}

static int nic_listen(struct wire_nic *wn, uint16_t first, uint16_t last)
{
    int rc = pep_listen(wn, first);

    for (unsigned port = first + 1u; rc == -EADDRINUSE && port <= last; port++)
        rc = pep_listen(wn, (uint16_t)port);
    if (rc == -EADDRINUSE)
        holmes_warn(NET, "nic %s: no free port in %u-%u for incoming lanes", wn->nic.name, first,
                    last);
    else if (rc != 0)
        holmes_warn(NET, "nic %s: cannot listen for incoming lanes: %s", wn->nic.name,
                    holmes_strerror(rc));
    return rc;
}

/* A child that was forked off (a data loader) must not keep the port after our death. */
static void nic_guard_listener(struct wire_nic *wn)
{
    wn->listen_fd = holmes_ofi_listener_fd(wn);
    if (wn->listen_fd >= 0) {
        fcntl(wn->listen_fd, F_SETFD, FD_CLOEXEC);
        oob_fork_guard_add(wn->listen_fd);
    }
}

static int nic_open_objects(struct wire_nic *wn)
{
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_FD};
    int rc;

    rc = holmes_ofi_query(&wn->nic.addrs[0], &wn->info);
    if (rc == 0)
        rc = holmes_ofi_open_errno(holmes_ofi.fabric(wn->info->fabric_attr, &wn->fabric, wn));
    if (rc == 0)
        rc = holmes_ofi_open_errno(fi_domain(wn->fabric, wn->info, &wn->domain, wn));
    if (rc == 0)
        rc = holmes_ofi_open_errno(fi_eq_open(wn->fabric, &eq_attr, &wn->eq, wn));
    return rc;
}

static void nic_init(struct wire_nic *wn, const struct holmes_nic *nic)
{
    wn->nic = *nic;
    wn->listen_fd = -1;
    holmes_list_init(&wn->lanes);
    pthread_mutex_init(&wn->lock, NULL);
}

static void nic_take_limits(struct wire_nic *wn)
{
    int mode = wn->info->domain_attr->mr_mode;
    size_t max = wn->info->ep_attr->max_msg_size;

    wn->limits.max_write = max < SSIZE_MAX ? max : (size_t)SSIZE_MAX;
    wn->limits.inline_max = wn->info->tx_attr->inject_size;
    wn->virt_addr = mode & FI_MR_VIRT_ADDR;
    wn->prov_key = mode & FI_MR_PROV_KEY;
}

int holmes_ofi_nic_open(const struct holmes_nic *nic, uint16_t listen_port,
                        uint16_t listen_port_end, struct wire_nic **out)
{
    struct wire_nic *wn;
    int rc;

    if (nic->naddrs < 1 || (listen_port != 0 && listen_port_end < listen_port))
        return -EINVAL;
    wn = calloc(1, sizeof *wn);
    if (!wn)
        return -ENOMEM;
    nic_init(wn, nic);
    rc = nic_open_objects(wn);
    if (rc != 0)
        holmes_warn(NET, "nic %s: libfabric refuses to open it: %s", nic->name,
                    holmes_strerror(rc));
    else
        rc = nic_listen(wn, listen_port, listen_port_end);
    if (rc != 0) {
        holmes_ofi_nic_close(wn);
        return rc;
    }
    nic_guard_listener(wn);
    nic_take_limits(wn);
    *out = wn;
    return 0;
}

static void fid_close(struct wire_nic *wn, struct fid *fid, const char *what)
{
    int rc = holmes_ofi_errno(fi_close(fid));

    if (rc != 0)
        holmes_warn(NET, "nic %s: %s does not close: %s", wn->nic.name, what, holmes_strerror(rc));
}

/* The provider forgets connections that have not sent their request when their passive endpoint
 * closes, descriptor included. So they are made to end first. */
static void nic_drop_strangers(struct wire_nic *wn)
{
    pthread_mutex_lock(&wn->lock);
    for (int round = 0; round < 100; round++) {
        int left = holmes_ofi_sweep(wn, true);

        holmes_ofi_events(wn);
        if (left == 0)
            break;
    }
    pthread_mutex_unlock(&wn->lock);
}

void holmes_ofi_nic_close(struct wire_nic *wn)
{
    if (!wn)
        return;
    if (wn->pep) {
        if (wn->listen_fd >= 0)
            oob_fork_guard_remove(wn->listen_fd);
        nic_drop_strangers(wn);
        fid_close(wn, &wn->pep->fid, "passive endpoint");
    }
    if (wn->domain)
        fid_close(wn, &wn->domain->fid, "domain");
    if (wn->eq)
        fid_close(wn, &wn->eq->fid, "event queue");
    if (wn->fabric)
        fid_close(wn, &wn->fabric->fid, "fabric");
    if (wn->info)
        holmes_ofi.freeinfo(wn->info);
    pthread_mutex_destroy(&wn->lock);
    free(wn->strangers);
    free(wn);
}

void holmes_ofi_nic_limits(const struct wire_nic *wn, struct wire_limits *out)
{
    *out = wn->limits;
}

int holmes_ofi_mr_reg(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out)
{
    struct fid_mr *mr;
    int rc;

    if (len == 0)
        return -EINVAL;
    do {
        uint64_t key = 0;

        /* A key is a capability: it must not be guessed, and is unique in the domain. */
        if (!wn->prov_key && getrandom(&key, sizeof key, 0) != sizeof key)
            return -EIO;
        rc = fi_mr_reg(wn->domain, addr, len, FI_WRITE | FI_REMOTE_WRITE, 0, key, 0, &mr, NULL);
    } while (rc == -FI_ENOKEY && !wn->prov_key);
    if (rc != 0)
        return holmes_ofi_errno(rc);

    out->key = fi_mr_key(mr);
    out->base = wn->virt_addr ? (uint64_t)(uintptr_t)addr : 0;
    out->desc = fi_mr_desc(mr);
    out->priv = mr;
    return 0;
}

void holmes_ofi_mr_dereg(struct wire_nic *wn, struct wire_mr *mr)
{
    struct fid_mr *fm = mr->priv;

    if (!fm)
        return;
    fid_close(wn, &fm->fid, "memory registration");
    mr->priv = NULL;
}

const struct wire_ops holmes_wire_ofi = {
    .name = "tcp-libfabric",
    .load = holmes_ofi_load,
    .nic_open = holmes_ofi_nic_open,
    .nic_close = holmes_ofi_nic_close,
    .nic_limits = holmes_ofi_nic_limits,
    .nic_progress = holmes_ofi_nic_progress,
    .mr_reg = holmes_ofi_mr_reg,
    .mr_dereg = holmes_ofi_mr_dereg,
    .cq_open = holmes_ofi_cq_open,
    .cq_close = holmes_ofi_cq_close,
    .cq_poll = holmes_ofi_cq_poll,
    .lane_create = holmes_ofi_lane_create,
    .lane_connect = holmes_ofi_lane_connect,
    .lane_via = holmes_ofi_lane_via,
    .lane_poll = holmes_ofi_lane_poll,
    .lane_post = holmes_ofi_lane_post,
    .lane_close = holmes_ofi_lane_close,
};
