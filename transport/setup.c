/* From a listen's handle to two connected ends. */
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
#include "transport.h"

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

bool holmes_listen_close(struct holmes_listen *l)
{
    struct holmes_transport *t;
    struct holmes_conn *half;

    if (!l || transport_none_is_ours() || transport_is_inherited(l->t))
        return false;
    t = l->t;
    half = l->accepting;
    pthread_mutex_lock(&t->lock);
    listen_free(l);
    pthread_mutex_unlock(&t->lock);
    conn_destroy(half);
    return true;
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
    holmes_list_each(c, tmp, &t->connecting[id % CONNECTING_BUCKETS], struct holmes_conn,
                     in_connecting)
    {
        if (c->id == id && c->listen_id == listen_id && c->owner == owner && c->wanted == dev)
            found = c;
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

static void conn_take(struct holmes_conn *c)
{
    pthread_mutex_lock(&c->t->lock);
    c->taken = true;
    holmes_list_remove(&c->in_connecting);
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

/* A process may close connections for as long as it lives: their counters are kept for the file
 * that the user asked for, and not without. */
static bool stats_wanted(void)
{
    const char *path = holmes_env_string(HOLMES_ENV_STATS);

    return path && path[0];
}

bool holmes_conn_close(struct holmes_conn *c)
{
    struct holmes_conn_stats stats;

    if (!c || transport_none_is_ours() || transport_is_inherited(c->t))
        return false;
    holmes_conn_get_stats(c, &stats);
    pthread_mutex_lock(&c->t->lock);
    if (c->taken && stats_wanted())
        stats_add(&c->t->stats, &stats);
    pthread_mutex_unlock(&c->t->lock);
    conn_destroy(c);
    return true;
}

void holmes_conn_get_stats(struct holmes_conn *c, struct holmes_conn_stats *out)
{
    pthread_mutex_lock(&c->lock);
    conn_snapshot(c, out);
    pthread_mutex_unlock(&c->lock);
}
