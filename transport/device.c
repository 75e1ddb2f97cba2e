/* A NIC of the transport, or several ports fused into one: opened at first use with the wire that
 * serves it. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "context.h"
#include "env.h"
#include "log.h"

#define PAUSE_MAX_NS 1000000 /* between two looks at the connections that rise */

struct device *device_new(struct holmes_transport *t, const struct holmes_nic *nic)
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
void device_publish(struct holmes_transport *t, struct device *d)
{
    t->devices[t->ndevices] = d;
    atomic_fetch_add(&t->ndevices, 1);
}

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

void device_close_registrations(struct device *d)
{
    if (atomic_load(&d->opened))
        mr_cache_fini(&d->mrs);
}

void device_close(struct device *d)
{
    if (d->ops)
        d->ops->nic_close(d->wn);
    pthread_mutex_destroy(&d->open_lock);
}

void device_progress(struct device *d, uint64_t now_ns, uint64_t interval_ns)
{
    uint64_t due = atomic_load_explicit(&d->next_progress_ns, memory_order_relaxed), next;

    if (now_ns < due ||
        !atomic_compare_exchange_strong(&d->next_progress_ns, &due, now_ns + interval_ns))
        return;
    d->ops->nic_progress(d->wn);
    next = holmes_half_time(now_ns, PAUSE_MAX_NS);
    if (next > now_ns + interval_ns)
        atomic_store_explicit(&d->next_progress_ns, next, memory_order_relaxed);
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

/* Whether the list, of names with commas between, has the name. */
static bool list_has(const char *list, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, len) == 0 && (at[len] == ',' || at[len] == '\0'))
            return true;
    }
    return false;
}

static bool is_ethernet(const struct device *d)
{
    return !device_is_rdma(d) && d->nmembers == 1;
}

static bool belongs(const struct device *other, const struct device *wanted, const char *list)
{
    if (!device_is_rdma(wanted) && wanted->nmembers > 1) {
        for (int i = 0; i < wanted->nmembers; i++)
            if (wanted->members[i] == other)
                return true;
        return false;
    }
    return list && (strcmp(list, "all") == 0 || list_has(list, other->nic.name));
}

int device_bundle(struct device *d, const struct device *wanted,
                  struct device *out[HOLMES_BUNDLE_MAX])
{
    const char *list = holmes_env_string(HOLMES_ENV_TCP_NICS);
    struct holmes_transport *t = d->t;
    int n = 0, ndevices = t->ndevices;

    out[n++] = d;
    for (int i = 0; i < ndevices && t->tcp && t->tcp->bundles && n < HOLMES_BUNDLE_MAX; i++) {
        struct device *other = t->devices[i];

        if (other != d && is_ethernet(other) && belongs(other, wanted, list) &&
            device_open(other) == 0)
            out[n++] = other;
    }
    return n;
}

int device_check_tcp_nics(const struct holmes_transport *t)
{
    const char *list = holmes_env_string(HOLMES_ENV_TCP_NICS);
    char name[HOLMES_NIC_NAME_MAX], have[256] = "";

    if (!list || strcmp(list, "all") == 0)
        return 0;
    for (int i = 0; i < t->ndevices; i++)
        if (is_ethernet(t->devices[i]))
            snprintf(have + strlen(have), sizeof have - strlen(have), "%s%s", have[0] ? ", " : "",
                     t->devices[i]->nic.name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        bool found = false;

        at += *at == ',';
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        for (int i = 0; i < t->ndevices; i++)
            found =
                found || (is_ethernet(t->devices[i]) && strcmp(t->devices[i]->nic.name, name) == 0);
        if (!found) {
            holmes_warn(INIT,
                        "HOLMES_TCP_NICS=\"%s\": no Ethernet NIC \"%s\" is in use here; there %s",
                        list, name, have[0] ? "are" : "is none");
            if (have[0])
                holmes_warn(INIT, "HOLMES_TCP_NICS may name: %s", have);
            return -EINVAL;
        }
    }
    return 0;
}
