#include "fake_rdma.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test_nics.h"

#define KEYS_MAX 4096

static const struct wire_ops *under;
static struct fake_rdma_plan *plan;

/* The key behind each of ours; 0 is free, as no true key. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool used;
    uint64_t key;
} keys[KEYS_MAX];

/* Flushes that no poll has reported. */
#define FLUSHES_MAX 64
static struct {
    struct wire_cq *cq;
    void *context;
} flushes[FLUSHES_MAX];

struct wire_lane {
    void *under;
    struct wire_cq *cq;
    bool deaf;
};

static int fake_load(char *why, size_t why_len)
{
    if (plan->load_error == 0)
        return under->load(why, why_len);
    snprintf(why, why_len, "libfake.so not found, RDMA off");
    return plan->load_error;
}

static int fake_nic_open(const struct holmes_nic *nic, uint16_t port, uint16_t port_end,
                         struct wire_nic **out)
{
    if (plan->broken && strcmp(plan->broken, nic->rdma.device) == 0)
        return -EACCES;
    return under->nic_open(nic, port, port_end, out);
}

static void fake_nic_close(struct wire_nic *wn)
{
    under->nic_close(wn);
}

static void fake_nic_limits(const struct wire_nic *wn, struct wire_limits *out)
{
    under->nic_limits(wn, out);
    out->mtu = 4096;
    out->dmabuf = plan->gpu;
}

static int fake_nic_status(const struct wire_nic *wn)
{
    (void)wn;
    return plan->status;
}

static void fake_nic_progress(struct wire_nic *wn)
{
    under->nic_progress(wn);
}

static int fake_mr_reg(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out)
{
    int rc = under->mr_reg(wn, addr, len, out), i = 1;

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&lock);
    while (i < KEYS_MAX && keys[i].used)
        i++;
    if (i == KEYS_MAX)
        abort(); /* a test leaks registrations */
    keys[i].used = true;
    keys[i].key = out->key;
    out->key = (uint64_t)i;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int fake_mr_reg_dmabuf(struct wire_nic *wn, void *addr, size_t len, uint64_t offset, int fd,
                              struct wire_mr *out)
{
    (void)offset, (void)fd;
    return plan->gpu ? fake_mr_reg(wn, addr, len, out) : -EOPNOTSUPP;
}

static void fake_mr_dereg(struct wire_nic *wn, struct wire_mr *mr)
{
    pthread_mutex_lock(&lock);
    keys[mr->key].used = false;
    mr->key = keys[mr->key].key;
    pthread_mutex_unlock(&lock);
    under->mr_dereg(wn, mr);
}

static int fake_cq_open(struct wire_nic *wn, struct wire_cq **out)
{
    return under->cq_open(wn, out);
}

static void fake_cq_close(struct wire_cq *cq)
{
    under->cq_close(cq);
}

static int fake_cq_poll(struct wire_cq *cq, struct wire_event *events, int max)
{
    int n = under->cq_poll(cq, events, max);

    pthread_mutex_lock(&lock);
    for (int i = 0; n >= 0 && n < max && i < FLUSHES_MAX; i++) {
        if (flushes[i].cq != cq)
            continue;
        events[n++] = (struct wire_event){.type = WIRE_WRITE_DONE, .context = flushes[i].context};
        flushes[i].cq = NULL;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int fake_lane_create(struct wire_nic *wn, struct wire_cq *cq, enum wire_role role,
                            const struct wire_lane_params *params, void *blob, size_t *blob_len,
                            struct wire_lane **out)
{
    struct wire_lane *lane = calloc(1, sizeof *lane), *inner;
    int error = params->probe ? plan->probe_error : plan->lane_error;
    int rc = plan->lane_error_role == role ? error : 0;

    if (!lane)
        return -ENOMEM;
    if (rc == 0)
        rc = under->lane_create(wn, cq, role, params, blob, blob_len, &inner);
    if (rc != 0) {
        free(lane);
        return rc;
    }
    lane->under = inner;
    lane->cq = cq;
    if (params->probe)
        plan->probes++;
    else
        plan->lanes++;
    lane->deaf =
        params->probe && (plan->deaf || (plan->path_mtu > 0 && params->mtu > plan->path_mtu));
    *out = lane;
    return 0;
}

static int fake_lane_connect(struct wire_lane *lane, const void *blob, size_t blob_len)
{
    return under->lane_connect(lane->under, blob, blob_len);
}

static int fake_lane_poll(struct wire_lane *lane)
{
    return under->lane_poll(lane->under);
}

static int fake_lane_post(struct wire_lane *lane, const struct wire_write *w)
{
    struct wire_write inner = *w;

    if (lane->deaf)
        return 0;
    pthread_mutex_lock(&lock);
    inner.remote_key = w->remote_key < KEYS_MAX ? keys[w->remote_key].key : 0;
    pthread_mutex_unlock(&lock);
    return under->lane_post(lane->under, &inner);
}

/* Reads nothing, but is counted and reported by the next poll. */
static int fake_lane_flush(struct wire_lane *lane, const void *buf, const struct wire_mr *mr,
                           void *context)
{
    int i = 0;

    (void)buf, (void)mr;
    plan->flushes++;
    pthread_mutex_lock(&lock);
    while (i < FLUSHES_MAX && flushes[i].cq)
        i++;
    if (i < FLUSHES_MAX) {
        flushes[i].cq = lane->cq;
        flushes[i].context = context;
    }
    pthread_mutex_unlock(&lock);
    return i < FLUSHES_MAX ? 0 : -EAGAIN;
}

static void fake_lane_close(struct wire_lane *lane)
{
    if (!lane)
        return;
    under->lane_close(lane->under);
    free(lane);
}

static bool fake_cq_push(struct wire_cq *cq)
{
    return under->cq_push ? under->cq_push(cq) : true;
}

static bool fake_cq_awaited(const struct wire_cq *cq)
{
    return under->cq_awaited && under->cq_awaited(cq);
}

static const struct wire_ops fake_ops = {
    .name = "verbs",
    .rdma = true,
    .load = fake_load,
    .nic_open = fake_nic_open,
    .nic_close = fake_nic_close,
    .nic_limits = fake_nic_limits,
    .nic_status = fake_nic_status,
    .nic_progress = fake_nic_progress,
    .mr_reg = fake_mr_reg,
    .mr_reg_dmabuf = fake_mr_reg_dmabuf,
    .mr_dereg = fake_mr_dereg,
    .cq_open = fake_cq_open,
    .cq_close = fake_cq_close,
    .cq_poll = fake_cq_poll,
    .cq_push = fake_cq_push,
    .cq_awaited = fake_cq_awaited,
    .lane_create = fake_lane_create,
    .lane_connect = fake_lane_connect,
    .lane_poll = fake_lane_poll,
    .lane_post = fake_lane_post,
    .lane_flush = fake_lane_flush,
    .lane_close = fake_lane_close,
};

void fake_rdma_use(struct fake_rdma_plan *p)
{
    static const struct wire_ops *wires[] = {&fake_ops, NULL, NULL};

    wires[1] = under = test_tcp_wire();
    plan = p;
    holmes_wires_override(wires);
}

struct holmes_nic fake_rdma_nic(const char *device, const char *ip)
{
    struct holmes_nic nic = test_loopback_nic(ip);
    struct holmes_gid *g = &nic.rdma.gids[0];

    snprintf(nic.name, sizeof nic.name, "%s", device);
    snprintf(nic.rdma.device, sizeof nic.rdma.device, "%s", device);
    nic.rdma.port = 1;
    nic.rdma.link_layer = HOLMES_LINK_ETHERNET;
    nic.rdma.ngids = 1;
    g->type = HOLMES_GID_ROCE_V2;
    g->index = 3;
    g->bytes[10] = g->bytes[11] = 0xff;
    g->bytes[12] = 10; /* like that of a network card, not of the loopback below */
    g->bytes[15] = (uint8_t)(ntohl(nic.addrs[0].in.sin_addr.s_addr) & 0xff);
    return nic;
}
