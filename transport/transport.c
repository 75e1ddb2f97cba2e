/* The public calls: check arguments, take locks in order, dispatch to listener, connection and
 * request. */
#include "transport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "clock.h"
#include "conn.h"
#include "context.h"
#include "env.h"
#include "log.h"

#define PROBE_PATIENCE_MS 2000 /* beyond the probe itself */

/* ---- devices ---- */

/* With HOLMES_ADVERTISE the host is reached under addresses that it does not have itself: lanes are
 * then taken on all, and dialled where the handshake got through. */
static struct holmes_nic nic_as_opened(const struct device *d)
{
    const char *advertise = holmes_env_string(HOLMES_ENV_ADVERTISE);
    struct holmes_nic nic = d->nic;

    if (!advertise || !advertise[0])
        return nic;
    if (nic.naddrs < HOLMES_NIC_ADDRS_MAX)
        nic.naddrs++;
    memmove(&nic.addrs[1], &nic.addrs[0], (size_t)(nic.naddrs - 1) * sizeof nic.addrs[0]);
    if (nic.addrs[0].sa.sa_family == AF_INET)
        nic.addrs[0].in.sin_addr.s_addr = htonl(INADDR_ANY);
    else
        nic.addrs[0].in6.sin6_addr = in6addr_any;
    return nic;
}

static const struct wire_ops *wire_of(const struct device *d)
{
    return device_is_rdma(d) ? d->t->rdma : d->t->tcp;
}

static void explain_open(const struct device *d, const struct wire_ops *ops, int rc)
{
    if (rc == -EADDRINUSE && d->t->port_low > 0)
        holmes_warn(NET, "nic %s: no free port for lanes in HOLMES_PORT_RANGE=%u-%u: widen it",
                    d->nic.name, d->t->port_low, d->t->port_high);
    else
        holmes_warn(NET, "nic %s: cannot open wire %s: %s", d->nic.name, ops->name,
                    holmes_strerror(rc));
}

static int physical_open(struct device *d)
{
    struct holmes_nic nic = nic_as_opened(d);
    const struct wire_ops *ops = wire_of(d);
    int rc;

    if (!ops)
        return -ELIBACC;
    rc = ops->nic_open(&nic, d->t->port_low, d->t->port_high, &d->wn);
    if (rc != 0) {
        if (rc != d->open_error) /* every connection tries again: once is enough to say so */
            explain_open(d, ops, rc);
        d->open_error = rc;
        return rc;
    }
    ops->nic_limits(d->wn, &d->limits);
    if (device_is_rdma(d))
        port_counters_read("/sys", d->nic.rdma.device, d->nic.rdma.port, &d->counted);
    d->ops = ops;
    return 0;
}

/* The ports of a fused NIC; one is enough. */
static int members_open(struct device *d)
{
    int first_error = 0, nopen = 0;

    for (int i = 0; i < d->nmembers; i++) {
        int rc = device_open(d->members[i]);

        nopen += rc == 0;
        if (first_error == 0)
            first_error = rc;
    }
    return nopen > 0 ? 0 : first_error;
}

int device_open(struct device *d)
{
    int rc = 0;

    pthread_mutex_lock(&d->open_lock);
    if (!atomic_load(&d->opened)) {
        rc = d->members[0] == d ? physical_open(d) : members_open(d);
        if (rc == 0) {
            mr_cache_init(&d->mrs);
            d->mrs.nrails = d->nmembers;
            for (int i = 0; i < d->nmembers; i++)
                d->mrs.rails[i] =
                    (struct mr_rail){.ops = d->members[i]->ops, .wn = d->members[i]->wn};
            atomic_store(&d->opened, true);
        }
    }
    pthread_mutex_unlock(&d->open_lock);
    return rc;
}

static void registrations_close(struct device *d)
{
    if (atomic_load(&d->opened))
        mr_cache_fini(&d->mrs);
}

static void device_close(struct device *d)
{
    if (d->ops)
        d->ops->nic_close(d->wn);
    pthread_mutex_destroy(&d->open_lock);
}

void device_progress(struct device *d, uint64_t now_ns, uint64_t interval_ns)
{
    uint64_t due = atomic_load_explicit(&d->next_progress_ns, memory_order_relaxed);

    if (now_ns >= due &&
        atomic_compare_exchange_strong(&d->next_progress_ns, &due, now_ns + interval_ns))
        d->ops->nic_progress(d->wn);
}

static bool owns_addr(const struct device *d, const struct holmes_addr *addr)
{
    size_t len = addr->sa.sa_family == AF_INET ? 4 : 16;

    for (int a = 0; a < d->nic.naddrs; a++) {
        const struct holmes_addr *own = &d->nic.addrs[a];
        const void *x =
            len == 4 ? (const void *)&own->in.sin_addr : (const void *)&own->in6.sin6_addr;
        const void *y =
            len == 4 ? (const void *)&addr->in.sin_addr : (const void *)&addr->in6.sin6_addr;

        if (own->sa.sa_family == addr->sa.sa_family && memcmp(x, y, len) == 0)
            return true;
    }
    return false;
}

struct device *device_for_tcp(struct holmes_transport *t, const struct holmes_addr *addr)
{
    struct device *first = NULL;

    for (int i = 0; i < t->ndevices; i++) {
        struct device *d = t->devices[i];

        if (device_is_rdma(d))
            continue;
        if (owns_addr(d, addr))
            return d;
        if (!first)
            first = d;
    }
    return first;
}

unsigned device_gpu_memory(const struct device *d)
{
    unsigned memory = device_is_rdma(d) ? HOLMES_MEMORY_CUDA | HOLMES_MEMORY_DMABUF : 0;

    for (int i = 0; i < d->nmembers; i++) {
        if (!device_has_port(d, i))
            continue;
        if (!d->members[i]->nic.rdma.cuda)
            memory &= ~HOLMES_MEMORY_CUDA;
        if (!d->members[i]->limits.dmabuf)
            memory &= ~HOLMES_MEMORY_DMABUF;
    }
    return memory;
}

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

/* tcp must be there unless the user wants RDMA only: it is what reaches everywhere. RDMA may be
 * missing: that is one line, where there is a port that could have used it. */
static int open_wires(struct holmes_transport *t)
{
    bool only_rdma = strcmp(holmes_env_string(HOLMES_ENV_WIRE), "verbs") == 0, has_port = false;
    char why[256] = "this build has no wire";
    int tcp_error = -ELIBACC, rc;

    for (int i = 0; i < t->ndevices; i++)
        has_port = has_port || device_is_rdma(t->devices[i]);
    snprintf(t->no_rdma, sizeof t->no_rdma, "this build has no RDMA wire");
    for (const struct wire_ops *const *w = holmes_wires(); *w; w++) {
        const struct wire_ops **place = (*w)->rdma ? &t->rdma : &t->tcp;

        if (*place || ((*w)->rdma && !has_port))
            continue;
        rc = (*w)->load(why, sizeof why);
        if (rc == 0)
            *place = *w;
        else if (!(*w)->rdma)
            tcp_error = rc;
        if (rc != 0 && (*w)->rdma) {
            holmes_warn(INIT, "%s", why);
            snprintf(t->no_rdma, sizeof t->no_rdma, "%.90s", why);
        }
    }
    if (t->tcp || (only_rdma && t->rdma))
        return 0;
    holmes_warn(INIT, "%s", why);
    return tcp_error;
}

/* One address in all: listen on nothing else. Several: the peer may come over any. */
static const struct holmes_addr *only_addr(const struct holmes_transport *t)
{
    if (t->ndevices != 1 || t->devices[0]->nic.naddrs != 1 ||
        holmes_env_string(HOLMES_ENV_ADVERTISE))
        return NULL;
    return &t->devices[0]->nic.addrs[0];
}

static struct device *device_new(struct holmes_transport *t, const struct holmes_nic *nic)
{
    struct device *d = t->ndevices < HOLMES_MAX_DEVICES ? calloc(1, sizeof *d) : NULL;

    if (!d)
        return NULL;
    d->t = t;
    d->nic = *nic;
    d->nmembers = 1;
    d->members[0] = d;
    pthread_mutex_init(&d->open_lock, NULL);
    return d;
}

/* From here on others see it. */
static void device_publish(struct holmes_transport *t, struct device *d)
{
    t->devices[t->ndevices] = d;
    atomic_fetch_add(&t->ndevices, 1);
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
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->probes_lock, NULL);
    t->probes.patience_ns =
        ((uint64_t)holmes_env_int(HOLMES_ENV_PROBE_MS) + PROBE_PATIENCE_MS) * 1000000;
    holmes_list_init(&t->owners);
    holmes_list_init(&t->listens);
    holmes_list_init(&t->conns);
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

static void listen_free(struct holmes_listen *l)
{
    holmes_list_remove(&l->link);
    listener_forget(&l->t->listener, l);
    holmes_list_each(a, tmp, &l->arrivals, struct arrival, link) arrival_free(a);
    free(l);
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

    if (!t)
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
        registrations_close(t->devices[i]);
    for (int i = t->ndevices - 1; i >= 0; i--) {
        device_close(t->devices[i]);
        free(t->devices[i]);
    }
    stats_fini(&t->stats);
    holmes_list_each(o, tmp3, &t->owners, struct owner, link) free(o);
    pthread_mutex_destroy(&t->probes_lock);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void holmes_transport_reap(struct holmes_transport *t, const void *owner)
{
    struct holmes_conn *found;

    pthread_mutex_lock(&t->lock);
    forget_owner(t, owner);
    pthread_mutex_unlock(&t->lock);
    do {
        found = NULL;
        pthread_mutex_lock(&t->lock);
        holmes_list_each(l, tmp, &t->listens, struct holmes_listen, link)
        {
            if (l->owner == owner)
                listen_free(l); /* its half-made connection is in the list below */
        }
        holmes_list_each(c, tmp2, &t->conns, struct holmes_conn, link)
        {
            if (c->owner == owner && !c->taken && !found)
                found = c;
        }
        pthread_mutex_unlock(&t->lock);
        conn_destroy(found);
    } while (found);
}

int holmes_transport_fuse(struct holmes_transport *t, const struct holmes_nic *nic,
                          const int *members, int n, int *out)
{
    struct device *d = NULL;
    bool valid = n >= 2 && n <= HOLMES_MAX_RAILS;

    for (int i = 0; valid && i < n; i++)
        valid = members[i] >= 0 && members[i] < t->ndevices &&
                device_is_rdma(t->devices[members[i]]) && t->devices[members[i]]->nmembers == 1;
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

/* ---- listen ---- */

/* HOLMES_ADVERTISE: addresses with the listener's own port. */
static int advertised_addrs(const char *list, uint16_t port, struct proto_handle *h)
{
    char copy[512], *save = NULL;
    int n = 0;

    snprintf(copy, sizeof copy, "%s", list);
    for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        struct sockaddr_in in = {.sin_family = AF_INET};
        struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
        const struct sockaddr *sa = NULL;

        if (inet_pton(AF_INET, one, &in.sin_addr) == 1)
            sa = (const struct sockaddr *)&in;
        else if (inet_pton(AF_INET6, one, &in6.sin6_addr) == 1)
            sa = (const struct sockaddr *)&in6;
        if (!sa || n == PROTO_ADDRS) {
            holmes_warn(NET,
                        "HOLMES_ADVERTISE=\"%s\": %s \"%s\"; one to three IP addresses are "
                        "right",
                        list, sa ? "too many addresses at" : "not an IP address:", one);
            return -EINVAL;
        }
        proto_addr_encode(sa, port, &h->addrs[n++]);
    }
    if (n == 0)
        holmes_warn(NET,
                    "HOLMES_ADVERTISE=\"%s\" has no address; one to three IP addresses are right",
                    list);
    return n > 0 ? 0 : -EINVAL;
}

static bool handle_has(const struct proto_handle *h, int n, const struct proto_addr *a)
{
    for (int i = 0; i < n; i++) {
        if (memcmp(&h->addrs[i], a, sizeof *a) == 0)
            return true;
    }
    return false;
}

static void device_addrs(const struct device *d, uint16_t port, struct proto_handle *h, int *n)
{
    for (int i = 0; i < d->nic.naddrs && *n < PROTO_ADDRS; i++) {
        const struct holmes_addr *a = &d->nic.addrs[i];
        struct proto_addr coded;

        /* A link-local address means nothing without the peer's own interface. */
        if (a->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a->in6.sin6_addr))
            continue;
        proto_addr_encode(&a->sa, port, &coded);
        if (!handle_has(h, *n, &coded))
            h->addrs[(*n)++] = coded;
    }
}

/* Whether an Ethernet device is the interface of an RDMA port: reached inside a cluster, often only
 * there. */
static bool is_rail(const struct holmes_transport *t, const struct device *d)
{
    for (int i = 0; i < t->ndevices; i++) {
        if (device_is_rdma(t->devices[i]) && strcmp(t->devices[i]->nic.ifname, d->nic.ifname) == 0)
            return true;
    }
    return false;
}

/* The wanted NIC first, then those that lead out of the cluster, then the rest. */
static void transport_addrs(const struct holmes_listen *l, struct proto_handle *h, int *n)
{
    struct holmes_transport *t = l->t;

    device_addrs(l->dev, t->listener.port, h, n);
    for (int rails = 0; rails < 2; rails++) {
        for (int i = 0; i < t->ndevices; i++) {
            struct device *d = t->devices[i];

            if (!device_is_rdma(d) && is_rail(t, d) == rails)
                device_addrs(d, t->listener.port, h, n);
        }
    }
}

static int handle_fill(const struct holmes_listen *l, struct proto_handle *h)
{
    const char *advertise = holmes_env_string(HOLMES_ENV_ADVERTISE);
    struct holmes_transport *t = l->t;
    int n = 0, rc = 0;

    memset(h, 0, sizeof *h);
    memcpy(h->token, l->token, sizeof h->token);
    if (advertise && advertise[0]) {
        rc = advertised_addrs(advertise, t->listener.port, h);
    } else {
        transport_addrs(l, h, &n);
        if (n == 0) {
            holmes_warn(NET, "nic %s has no address that a peer could dial", l->dev->nic.name);
            rc = -EADDRNOTAVAIL;
        }
    }
    proto_handle_seal(h);
    return rc;
}

int holmes_listen(struct holmes_transport *t, const void *owner, int nic, void *handle,
                  struct holmes_listen **out)
{
    struct proto_handle h;
    struct holmes_listen *l;
    int rc;

    if (nic < 0 || nic >= t->ndevices)
        return -EINVAL;
    l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->t = t;
    l->owner = owner;
    l->dev = t->devices[nic];
    holmes_list_init(&l->link);
    holmes_list_init(&l->arrivals);
    rc = getrandom(l->token, sizeof l->token, 0) == sizeof l->token ? 0 : -EIO;
    l->id = proto_listen_id(l->token);
    /* An RDMA port that cannot be opened is the handshake's affair: tcp may do. */
    if (rc == 0 && !device_is_rdma(l->dev))
        rc = device_open(l->dev);
    if (rc == 0)
        rc = handle_fill(l, &h);
    if (rc != 0) {
        free(l);
        return rc;
    }
    pthread_mutex_lock(&t->lock);
    holmes_list_append(&t->listens, &l->link);
    pthread_mutex_unlock(&t->lock);
    memcpy(handle, &h, sizeof h);
    *out = l;
    return 0;
}

void holmes_listen_close(struct holmes_listen *l)
{
    struct holmes_transport *t;
    struct holmes_conn *half;

    if (!l)
        return;
    t = l->t;
    half = l->accepting;
    pthread_mutex_lock(&t->lock);
    listen_free(l);
    pthread_mutex_unlock(&t->lock);
    conn_destroy(half);
}

/* ---- connect and accept ---- */

/* What our own connect keeps in the handle between calls: foreign until it names a connection of
 * this transport, of the same owner and NIC, to the handle's listen. */
struct connect_state {
    uint64_t id;
    uint64_t reserved;
};
_Static_assert(sizeof(struct connect_state) == sizeof(((struct proto_handle *)0)->state), "fits");

static struct holmes_conn *connecting(const struct device *dev, const void *owner,
                                      const struct proto_handle *h, uint64_t id)
{
    uint64_t listen_id = proto_listen_id(h->token);
    struct holmes_transport *t = dev->t;
    struct holmes_conn *found = NULL;

    pthread_mutex_lock(&t->lock);
    holmes_list_each(c, tmp, &t->conns, struct holmes_conn, link)
    {
        if (c->id == id && c->sending && !c->taken && c->listen_id == listen_id &&
            c->owner == owner && c->wanted == dev)
            found = c;
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

static void conn_take(struct holmes_conn *c)
{
    pthread_mutex_lock(&c->t->lock);
    c->taken = true;
    pthread_mutex_unlock(&c->t->lock);
}

int holmes_connect(struct holmes_transport *t, const void *owner, int nic, void *handle,
                   struct holmes_conn **out)
{
    struct proto_handle h;
    struct connect_state state;
    struct holmes_conn *c = NULL;
    char why[256];
    int rc;

    *out = NULL;
    if (nic < 0 || nic >= t->ndevices)
        return -EINVAL;
    memcpy(&h, handle, sizeof h);
    memcpy(&state, h.state, sizeof state);
    if (state.id != 0)
        c = connecting(t->devices[nic], owner, &h, state.id);
    if (!c) {
        rc = proto_handle_check(&h, why, sizeof why);
        if (rc != 0) {
            holmes_warn(NET, "%s", why);
            return rc;
        }
        rc = conn_create_sender(t->devices[nic], owner, &h, &c);
        if (rc != 0)
            return rc;
        state.id = c->id;
    }
    rc = conn_progress(c);
    if (rc == 0) {
        conn_take(c);
        *out = c;
    } else if (rc != -EAGAIN) {
        conn_destroy(c);
    }
    if (rc != -EAGAIN)
        state.id = 0;
    memcpy(h.state, &state, sizeof state);
    memcpy(handle, &h, sizeof h);
    return rc;
}

static int next_arrival(struct holmes_listen *l, struct arrival **out)
{
    struct holmes_transport *t = l->t;
    int rc;

    /* Strangers on the lanes' ports are dropped while somebody looks. */
    for (int i = 0; i < t->ndevices; i++) {
        if (t->devices[i]->members[0] == t->devices[i] && atomic_load(&t->devices[i]->opened))
            device_progress(t->devices[i], holmes_now_ns(), 1000000);
    }
    pthread_mutex_lock(&t->lock);
    rc = listener_progress(t);
    if (rc == -EMFILE || rc == -ENFILE)
        conn_explain_descriptors();
    if (!holmes_list_empty(&l->arrivals)) {
        *out = holmes_list_entry(l->arrivals.next, struct arrival, link);
        holmes_list_remove(&(*out)->link);
        rc = 0;
    } else if (rc == 0) {
        rc = -EAGAIN;
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int holmes_accept(struct holmes_listen *l, struct holmes_conn **out)
{
    struct arrival *a;
    int rc;

    *out = NULL;
    if (l->deadline_ns == 0)
        l->deadline_ns =
            holmes_deadline_ms((uint64_t)holmes_env_int(HOLMES_ENV_ACCEPT_TIMEOUT) * 1000);
    if (!l->accepting) {
        rc = next_arrival(l, &a);
        if (rc == -EAGAIN && holmes_deadline_passed(l->deadline_ns)) {
            holmes_warn(NET, "nic %s: no peer came within HOLMES_ACCEPT_TIMEOUT=%lld s",
                        l->dev->nic.name, (long long)holmes_env_int(HOLMES_ENV_ACCEPT_TIMEOUT));
            rc = -ETIMEDOUT;
        }
        if (rc != 0)
            return rc;
        rc = conn_create_receiver(l->dev, l->owner, a, &l->accepting);
        arrival_free(a);
        if (rc != 0)
            return rc;
    }
    rc = conn_progress(l->accepting);
    if (rc == -EAGAIN)
        return rc;
    if (rc == 0) {
        conn_take(l->accepting);
        *out = l->accepting;
    } else {
        conn_destroy(l->accepting);
    }
    l->accepting = NULL;
    return rc;
}

void holmes_conn_close(struct holmes_conn *c)
{
    struct holmes_conn_stats stats;

    if (!c)
        return;
    holmes_conn_get_stats(c, &stats);
    pthread_mutex_lock(&c->t->lock);
    if (c->taken)
        stats_add(&c->t->stats, &stats);
    pthread_mutex_unlock(&c->t->lock);
    conn_destroy(c);
}

void holmes_conn_get_stats(struct holmes_conn *c, struct holmes_conn_stats *out)
{
    pthread_mutex_lock(&c->lock);
    conn_snapshot(c, out);
    pthread_mutex_unlock(&c->lock);
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
    if (!mr)
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

static int conn_push(struct holmes_conn *c)
{
    int rc = request_push(c);

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
    rc = conn_drive(c);
    if (rc == 0) {
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
    rc = conn_drive(c);
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
    int rc;

    *done = false;
    pthread_mutex_lock(&c->lock);
    rc = conn_drive(c);
    if (rc == 0)
        rc = conn_push(c);
    if (request_is_done(r)) {
        for (int i = 0; lens && i < r->n; i++)
            lens[i] = r->msg[i].len;
        if (r->kind == REQUEST_SEND) {
            c->q.messages++;
            c->q.bytes += r->msg[0].len;
        }
        request_release(r);
        *done = true;
        rc = 0;
    } else if (rc != 0) {
        request_release(r);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}
