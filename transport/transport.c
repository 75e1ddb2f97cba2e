/* The public calls on a transport and on a raised connection: check arguments, take locks in order,
 * dispatch. Set-up is in setup.c. */
#include "transport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "conn.h"
#include "context.h"
#include "env.h"
#include "log.h"

#define PROBE_PATIENCE_MS 2000 /* beyond the probe itself */

/* ---- owners ---- */

struct owner {
    struct holmes_list link;
    const void *owner;
    struct owner_facts facts;
};

struct owner_facts owner_facts(struct holmes_transport *t, const void *owner)
{
    struct owner_facts facts = {.traffic_class = -1};

    pthread_mutex_lock(&t->lock);
    holmes_list_each(o, tmp, &t->owners, struct owner, link)
    {
        if (o->owner == owner)
            facts = o->facts;
    }
    pthread_mutex_unlock(&t->lock);
    return facts;
}

int holmes_transport_set_owner(struct holmes_transport *t, const void *owner, uint64_t communicator,
                               int traffic_class)
{
    struct owner *o = malloc(sizeof *o);

    if (!o)
        return -ENOMEM;
    o->owner = owner;
    o->facts = (struct owner_facts){communicator, traffic_class};
    pthread_mutex_lock(&t->lock);
    holmes_list_append(&t->owners, &o->link);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

/* Lock held. */
static void forget_owner(struct holmes_transport *t, const void *owner)
{
    holmes_list_each(o, tmp, &t->owners, struct owner, link)
    {
        if (o->owner == owner) {
            holmes_list_remove(&o->link);
            free(o);
        }
    }
}

/* ---- the transport ---- */

static void open_rdma(struct holmes_transport *t, const struct wire_ops *ops)
{
    char why[512];

    if (ops->load(why, sizeof why) == 0) {
        t->rdma = ops;
        return;
    }
    holmes_warn(INIT, "%s", why);
    snprintf(t->no_rdma, sizeof t->no_rdma, "%.90s", why);
}

/* tcp must be there unless the user wants RDMA only: it is what reaches everywhere. RDMA may be
 * missing: that is one line, where there is a port that could have used it. */
static int open_wires(struct holmes_transport *t)
{
    bool only_rdma = strcmp(holmes_env_string(HOLMES_ENV_WIRE), "verbs") == 0, has_port = false;
    int rc = -ELIBACC;
    char why[512];

    for (int i = 0; i < t->ndevices; i++)
        has_port = has_port || device_is_rdma(t->devices[i]);
    snprintf(t->no_rdma, sizeof t->no_rdma, "this build has no RDMA wire");
    snprintf(
        why, sizeof why,
        "HOLMES_TCP=%s, but this build has no such wire: leave HOLMES_TCP unset, or build with "
        "libfabric's headers (Debian: libfabric-dev)",
        holmes_env_string(HOLMES_ENV_TCP));
    for (const struct wire_ops *const *w = holmes_wires(); *w; w++) {
        if ((*w)->rdma) {
            if (has_port && !t->rdma)
                open_rdma(t, *w);
        } else if (!t->tcp) {
            rc = (*w)->load(why, sizeof why);
            t->tcp = rc == 0 ? *w : NULL;
        }
    }
    if (t->tcp || (only_rdma && t->rdma))
        return 0;
    holmes_warn(INIT, "%s", why);
    return rc;
}

/* One address in all: listen on nothing else. Several: the peer may come over any. */
static const struct holmes_addr *only_addr(const struct holmes_transport *t)
{
    if (t->ndevices != 1 || t->devices[0]->nic.naddrs != 1 ||
        holmes_env_string(HOLMES_ENV_ADVERTISE))
        return NULL;
    return &t->devices[0]->nic.addrs[0];
}

static atomic_int last_maker; /* pid */

bool transport_none_is_ours(void)
{
    return atomic_load(&last_maker) != getpid();
}

int holmes_transport_create(const struct holmes_nic *nics, int nnics, struct holmes_transport **out)
{
    struct holmes_transport *t;
    char why[256];
    int rc = -ENOMEM;

    if (nnics < 1)
        return -EINVAL;
    if (holmes_env_check(why, sizeof why) != 0) {
        holmes_warn(INIT, "%s", why);
        return -EINVAL;
    }
    t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->pid = getpid();
    atomic_store(&last_maker, t->pid);
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->probes_lock, NULL);
    t->probes.patience_ns =
        ((uint64_t)holmes_env_int(HOLMES_ENV_PROBE_MS) + PROBE_PATIENCE_MS) * 1000000;
    held_init(&t->held, (uint64_t)holmes_env_int(HOLMES_ENV_HOLD_US) * 1000);
    holmes_list_init(&t->owners);
    holmes_list_init(&t->listens);
    holmes_list_init(&t->conns);
    for (int i = 0; i < CONNECTING_BUCKETS; i++)
        holmes_list_init(&t->connecting[i]);
    t->listener.fd = -1;
    atomic_store(&t->next_id, 1);
    for (int i = 0; i < nnics; i++) {
        struct device *d = device_new(t, &nics[i]);

        if (!d)
            goto fail;
        device_publish(t, d);
    }
    t->warn_stall_ns = (uint64_t)holmes_env_int(HOLMES_ENV_WARN_STALL) * 1000000000ull;
    holmes_env_range(HOLMES_ENV_PORT_RANGE, &t->port_low, &t->port_high);
    rc = device_check_tcp_nics(t);
    if (rc == 0)
        rc = open_wires(t);
    if (rc == 0)
        rc = listener_open(&t->listener, only_addr(t), t->port_low, t->port_high);
    if (rc == 0) {
        *out = t;
        return 0;
    }
fail:
    holmes_transport_destroy(t);
    return rc;
}

static void write_stats(const struct holmes_transport *t, const char *path)
{
    struct stats_port *ports = calloc(HOLMES_MAX_DEVICES, sizeof *ports);
    int n = 0;

    for (int i = 0; ports && i < t->ndevices; i++) {
        const struct device *d = t->devices[i];

        if (!device_is_rdma(d) || !d->ops)
            continue;
        ports[n].name = d->nic.name;
        port_counters_read("/sys", d->nic.rdma.device, d->nic.rdma.port, &ports[n].counters);
        port_counters_since(&ports[n++].counters, &d->counted);
    }
    stats_write(&t->stats, ports, n, path);
    free(ports);
}

void holmes_transport_destroy(struct holmes_transport *t)
{
    char stats_path[1024];
    int stats_rc;

    if (!t || transport_none_is_ours() || transport_is_inherited(t))
        return;
    stats_rc = holmes_env_path(HOLMES_ENV_STATS, stats_path, sizeof stats_path);
    pthread_mutex_lock(&t->lock);
    holmes_list_each(l, tmp, &t->listens, struct holmes_listen, link) listen_free(l);
    pthread_mutex_unlock(&t->lock);
    holmes_list_each(c, tmp2, &t->conns, struct holmes_conn, link) holmes_conn_close(c);
    listener_close(&t->listener);
    if (stats_rc == 0 && (t->tcp || t->rdma))
        write_stats(t, stats_path);
    else if (stats_rc != 0 && stats_rc != -ENOENT)
        holmes_warn(NET, "cannot write HOLMES_STATS: %s", holmes_strerror(stats_rc));
    for (int i = 0; i < t->ndevices; i++)
        device_close_registrations(t->devices[i]);
    for (int i = t->ndevices - 1; i >= 0; i--) {
        device_close(t->devices[i]);
        free(t->devices[i]);
    }
    held_fini(&t->held);
    stats_fini(&t->stats);
    holmes_list_each(o, tmp3, &t->owners, struct owner, link) free(o);
    pthread_mutex_destroy(&t->probes_lock);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

#define SWEEP_LOOKS 4 /* libfabric takes a stream with one, reads its request with the next */

/* Streams of lanes that were just closed end now, not when somebody connects again. */
static void devices_sweep(struct holmes_transport *t)
{
    for (int i = 0; i < t->ndevices; i++) {
        struct device *d = t->devices[i];

        for (int n = 0; n < SWEEP_LOOKS && d->members[0] == d && atomic_load(&d->opened); n++)
            d->ops->nic_progress(d->wn);
    }
}

int holmes_transport_reap(struct holmes_transport *t, const void *owner)
{
    struct holmes_conn *found;
    int listens = 0;

    pthread_mutex_lock(&t->lock);
    forget_owner(t, owner);
    /* Who dialled one of these listens is known by now, and goes with it. */
    t->listener.next_ns = 0;
    listener_progress(t);
    pthread_mutex_unlock(&t->lock);
    do {
        found = NULL;
        pthread_mutex_lock(&t->lock);
        holmes_list_each(l, tmp, &t->listens, struct holmes_listen, link)
        {
            if (l->owner != owner)
                continue;
            listen_free(l); /* its half-made connection is in the list below */
            listens++;
        }
        holmes_list_each(c, tmp2, &t->conns, struct holmes_conn, link)
        {
            if (c->owner == owner && !c->taken && !found)
                found = c;
        }
        pthread_mutex_unlock(&t->lock);
        conn_destroy(found);
    } while (found);
    devices_sweep(t);
    return listens;
}

int holmes_transport_fuse(struct holmes_transport *t, const struct holmes_nic *nic,
                          const int *members, int n, int *out)
{
    struct device *d = NULL;
    bool valid = n >= 2 && n <= HOLMES_MAX_RAILS;

    for (int i = 0; valid && i < n; i++)
        valid = members[i] >= 0 && members[i] < t->ndevices &&
                device_is_rdma(t->devices[members[i]]) == device_is_rdma(t->devices[members[0]]) &&
                t->devices[members[i]]->nmembers == 1;
    if (valid && !device_is_rdma(t->devices[members[0]]))
        valid = t->tcp && t->tcp->bundles;
    if (!valid)
        return -EINVAL;
    pthread_mutex_lock(&t->lock);
    d = device_new(t, nic);
    if (d) {
        d->nmembers = n;
        for (int i = 0; i < n; i++)
            d->members[i] = t->devices[members[i]];
        *out = t->ndevices;
        device_publish(t, d);
    }
    pthread_mutex_unlock(&t->lock);
    return d ? 0 : -ENOMEM;
}

unsigned holmes_transport_memory(struct holmes_transport *t, int i)
{
    struct device *d = t->devices[i];

    return HOLMES_MEMORY_HOST |
           (device_is_rdma(d) && device_open(d) == 0 ? device_gpu_memory(d) : 0);
}

int holmes_nic_check(const struct holmes_nic *nic)
{
    char why[256];

    for (const struct wire_ops *const *w = holmes_wires(); *w; w++) {
        struct wire_nic *wn;
        int rc;

        if ((*w)->rdma != (nic->rdma.port != 0))
            continue;
        rc = (*w)->load(why, sizeof why);
        if (rc == 0)
            rc = (*w)->nic_open(nic, 0, 0, &wn);
        if (rc == 0)
            (*w)->nic_close(wn);
        return rc;
    }
    return -ELIBACC;
}

int holmes_transport_nics(const struct holmes_transport *t)
{
    return t->ndevices;
}

const struct holmes_nic *holmes_transport_nic(const struct holmes_transport *t, int i)
{
    return i >= 0 && i < t->ndevices ? &t->devices[i]->nic : NULL;
}

/* ---- memory ---- */

int holmes_mr_reg(struct holmes_conn *c, void *addr, size_t len, struct holmes_mr **out)
{
    const struct mr_range range = {.kind = MR_HOST, .addr = addr, .len = len};

    return mr_cache_get(&c->dev->mrs, &range, out);
}

/* GPU memory where the wire cannot reach it: the first registration makes the way through the host,
 * on the thread and in the CUDA context that the caller set up for it. */
static int reg_gpu(struct holmes_conn *c, const struct mr_range *range, struct holmes_mr **out)
{
    int rc = 0;

    if (range->len == 0)
        return -EINVAL;
    pthread_mutex_lock(&c->lock);
    if (!device_is_rdma(c->dev) && !c->stage)
        rc = c->error != 0 ? c->error : stage_create(c->dev, &c->stage);
    pthread_mutex_unlock(&c->lock);
    return rc != 0 ? rc : mr_cache_get(&c->dev->mrs, range, out);
}

int holmes_mr_reg_cuda(struct holmes_conn *c, void *addr, size_t len, struct holmes_mr **out)
{
    const struct mr_range range = {.kind = MR_CUDA, .addr = addr, .len = len};

    return reg_gpu(c, &range, out);
}

int holmes_mr_reg_dmabuf(struct holmes_conn *c, void *addr, size_t len, uint64_t offset, int fd,
                         struct holmes_mr **out)
{
    const struct mr_range range = {
        .kind = MR_DMABUF, .addr = addr, .len = len, .offset = offset, .fd = fd};

    return reg_gpu(c, &range, out);
}

int holmes_mr_dereg(struct holmes_conn *c, struct holmes_mr *mr)
{
    if (!mr || transport_none_is_ours() || transport_is_inherited(c->t))
        return 0;
    pthread_mutex_lock(&c->lock);
    if (request_uses(c, mr))
        conn_fail(c, -ECANCELED);
    pthread_mutex_unlock(&c->lock);
    mr_cache_put(&c->dev->mrs, mr);
    return 0;
}

/* ---- data ---- */

/* Lock held: brings the connection up to date before something is asked of it. */
static int conn_drive(struct holmes_conn *c)
{
    int rc = conn_watch(c);

    if (rc == 0) {
        rc = request_poll(c);
        if (rc != 0)
            rc = conn_wire_error(c, rc);
    }
    return rc;
}

/* One of several streams may die with what it was given, and somebody has to notice. */
static bool may_be_lost(const struct holmes_conn *c)
{
    return c->ops->lane_settled && c->nstreams > 1;
}

/* What is left goes out with later calls; should there be none, without them. */
static int conn_push(struct holmes_conn *c)
{
    bool sent;
    int rc = request_push(c, true, &sent);

    if (rc == 0 && c->ops->cq_push && (!sent || may_be_lost(c)))
        held_add(&c->t->held, c);
    return rc != 0 ? conn_wire_error(c, rc) : 0;
}

/* Whether [buf, buf+len) can go through the registration on this connection. */
static bool covers(const struct holmes_conn *c, const struct holmes_mr *mr, const void *buf,
                   size_t len)
{
    return len == 0 || (mr && mr_covers(mr, buf, len) && (!mr->staged || c->stage));
}

int holmes_isend(struct holmes_conn *c, const void *buf, size_t len, int tag, struct holmes_mr *mr,
                 struct holmes_request **out)
{
    int rc;

    *out = NULL;
    if (!c->sending || !covers(c, mr, buf, len)) {
        holmes_warn(NET, "conn %llu: send of %zu bytes at %p: %s", (unsigned long long)c->id, len,
                    buf, c->sending ? "not inside its registration" : "this end receives");
        return -EINVAL;
    }
    pthread_mutex_lock(&c->lock);
    /* To look costs as much as a small message. */
    rc = len > c->q.eager_max ? conn_drive(c) : conn_watch(c);
    if (rc == 0) {
        rc = request_send(c, buf, len, tag, mr, out);
        if (rc == -EAGAIN && len <= c->q.eager_max && (rc = conn_drive(c)) == 0)
            rc = request_send(c, buf, len, tag, mr, out);
        if (rc != 0 && rc != -EAGAIN)
            conn_fail(c, rc);
        if (rc == 0 && conn_push(c) != 0) {
            request_release(*out);
            *out = NULL;
            rc = c->error;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int post_recv(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                     const int *tags, struct holmes_mr *const *mrs, bool polled,
                     struct holmes_request **out)
{
    int rc;

    *out = NULL;
    if (c->sending || n < 1 || n > HOLMES_MAX_GROUP)
        return -EINVAL;
    for (int i = 0; i < n; i++) {
        if (!covers(c, mrs[i], bufs[i], lens[i])) {
            holmes_warn(NET, "conn %llu: receive of %zu bytes at %p: not inside its registration",
                        (unsigned long long)c->id, lens[i], bufs[i]);
            return -EINVAL;
        }
    }
    pthread_mutex_lock(&c->lock);
    rc = conn_watch(c); /* what has come is for test to find */
    if (rc == 0)
        rc = request_recv(c, n, bufs, lens, tags, mrs, polled, out);
    if (rc == 0 && conn_push(c) != 0) {
        request_release(*out);
        *out = NULL;
        rc = c->error;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int holmes_irecv(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                 const int *tags, struct holmes_mr *const *mrs, struct holmes_request **out)
{
    return post_recv(c, n, bufs, lens, tags, mrs, false, out);
}

int holmes_irecv_polled(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                        const int *tags, struct holmes_mr *const *mrs, struct holmes_request **out)
{
    return post_recv(c, n, bufs, lens, tags, mrs, true, out);
}

int holmes_iflush(struct holmes_conn *c, int n, void *const *bufs, const size_t *lens,
                  struct holmes_mr *const *mrs, struct holmes_request **out)
{
    int last = -1, rc;

    *out = NULL;
    if (c->sending || n < 1 || n > HOLMES_MAX_GROUP)
        return -EINVAL;
    /* A read of the last bytes pushes all before them. */
    for (int i = 0; i < n; i++) {
        if (lens[i] > 0 && mrs[i] && mrs[i]->kind != MR_HOST && !mrs[i]->staged)
            last = i;
    }
    if (last < 0 || !c->ops->lane_flush || holmes_env_int(HOLMES_ENV_NCCL_GDR_FLUSH_DISABLE))
        return 0;
    if (!mr_covers(mrs[last], bufs[last], lens[last]))
        return -EINVAL;
    pthread_mutex_lock(&c->lock);
    rc = conn_drive(c);
    if (rc == 0)
        rc = request_flush(c, bufs[last], mrs[last], out);
    if (rc != 0 && rc != -EAGAIN)
        rc = conn_wire_error(c, rc) != 0 ? c->error : -EAGAIN;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int holmes_test(struct holmes_request *r, bool *done, size_t *lens)
{
    struct holmes_conn *c = r->conn;
    int rc = 0;

    *done = false;
    pthread_mutex_lock(&c->lock);
    if (!request_is_done(r)) {
        rc = conn_drive(c);
        if (rc == 0)
            rc = conn_push(c);
    }
    if (request_is_done(r)) {
        for (int i = 0; lens && i < r->n; i++)
            lens[i] = r->msg[i].len;
        if (r->kind == REQUEST_SEND) {
            c->q.messages++;
            c->q.bytes += r->msg[0].len;
        }
        request_release(r);
        /* The caller may not look again, but should streams die the peer must still be told. */
        if (c->nstreams > 1 && c->q.outstanding == 0 && c->ops->lane_settled)
            held_add(&c->t->held, c);
        *done = true;
        rc = 0;
    } else if (rc != 0) {
        request_release(r);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}
