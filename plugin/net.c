/* Owns the process's transport on behalf of NCCL's communicators. NCCL counts communicators, not
 * processes, so references are counted here; and it aborts set-ups without closing them, so every
 * communicator is an owner that can be reaped. */
#include "net.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "env.h"
#include "log.h"
#include "topology.h"

#define NET_NAME_MAX 63 /* characters */
#define DEVICES_MAX  64
_Static_assert(DEVICES_MAX >= HOLMES_NICS_MAX, "room for all");

struct holmes_plugin_comm {
    uint64_t id;
};

/* `transport` is written under the lock and read without it by those who hold a reference. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct holmes_transport *_Atomic transport;
/* What NCCL sees. Entries below `ndevices` do not change while there is a transport. */
static struct holmes_plugin_device devices[DEVICES_MAX];
static int numbers[DEVICES_MAX]; /* of the same NICs in the transport */
static atomic_int ndevices;
static struct {
    int n, members[HOLMES_MAX_RAILS];
} fusions[DEVICES_MAX]; /* in the order in which NCCL asked for them */
static int nfusions, nshown;
static bool remembered; /* `devices` has the fusions of an earlier transport */
static int references;
static bool held_until_exit;
/* Listens and connections in the hands of callers: while there are any, exit must not pull the
 * transport from under the threads that use them. */
static atomic_int open_objects;

/* The parent's sockets and threads are not the child's, and a lock may have been held. */
static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    atomic_store(&transport, NULL);
    references = 0;
    held_until_exit = false;
    atomic_store(&open_objects, 0);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static void raise_descriptor_limit(void)
{
    struct rlimit lim;
    rlim_t soft;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == lim.rlim_max)
        return;
    if (strcmp(holmes_env_string(HOLMES_ENV_NOFILE), "keep") == 0) {
        holmes_info(INIT, "RLIMIT_NOFILE stays %llu (HOLMES_NOFILE=keep)",
                    (unsigned long long)lim.rlim_cur);
        return;
    }
    soft = lim.rlim_cur;
    lim.rlim_cur = lim.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &lim) != 0)
        holmes_warn(INIT, "RLIMIT_NOFILE cannot be raised from %llu to %llu: %s",
                    (unsigned long long)soft, (unsigned long long)lim.rlim_max,
                    holmes_strerror(-errno));
    else
        holmes_info(INIT, "RLIMIT_NOFILE raised from %llu to %llu", (unsigned long long)soft,
                    (unsigned long long)lim.rlim_max);
}

static int check_environment(void)
{
    size_t name_len = strlen(holmes_env_string(HOLMES_ENV_NET_NAME));
    char why[512];

    if (holmes_env_check(why, sizeof why) != 0) {
        holmes_warn(INIT, "%s", why);
        return -EINVAL;
    }
    if (name_len == 0 || name_len > NET_NAME_MAX) {
        holmes_warn(INIT, "HOLMES_NET_NAME=\"%s\": 1 to %d characters are right",
                    holmes_env_string(HOLMES_ENV_NET_NAME), NET_NAME_MAX);
        return -EINVAL;
    }
    return 0;
}

static int port_open_error(void *arg, const char *device, int port)
{
    struct holmes_nic nic = {.rdma.port = (uint8_t)port};
    int rc;

    (void)arg;
    snprintf(nic.name, sizeof nic.name, "%s", device);
    snprintf(nic.rdma.device, sizeof nic.rdma.device, "%s", device);
    rc = holmes_nic_check(&nic);
    return rc == -ELIBACC ? 0 : rc; /* the transport tells of a missing library, and does without */
}

/* The transport numbers the NICs as they were found; those that are shown come first. */
static int describe_shown(struct holmes_transport *t, const struct holmes_nics *found)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < found->nshown; i++) {
        numbers[i] = i;
        rc = holmes_plugin_describe(&found->nics[i], (int)holmes_transport_memory(t, i), devices, i,
                                    &devices[i]);
    }
    return rc;
}

/* Lock held. */
static int fuse(struct holmes_transport *t, const int *members, int n, int *dev, char *why,
                size_t why_len)
{
    const struct holmes_nic *nics[HOLMES_MAX_RAILS];
    int in_transport[HOLMES_MAX_RAILS], number, rc = 0, at = atomic_load(&ndevices);
    struct holmes_nic fused;

    if (n < 1 || n > HOLMES_MAX_RAILS)
        return -EINVAL;
    if (at == DEVICES_MAX)
        return -ENOSPC;
    for (int i = 0; rc == 0 && i < n; i++) {
        if (members[i] < 0 || members[i] >= at)
            return -EINVAL;
        in_transport[i] = numbers[members[i]];
        nics[i] = holmes_transport_nic(t, in_transport[i]);
    }
    rc = holmes_nics_fuse(nics, n, &fused, why, why_len);
    if (rc == 0)
        rc = holmes_transport_fuse(t, &fused, in_transport, n, &number);
    if (rc == 0)
        rc = holmes_plugin_describe(&fused, (int)holmes_transport_memory(t, number), devices, at,
                                    &devices[at]);
    if (rc != 0)
        return rc;
    numbers[at] = number;
    devices[at].nmembers = n;
    memcpy(devices[at].members, members, (size_t)n * sizeof *members);
    atomic_store(&ndevices, at + 1);
    *dev = at;
    return 0;
}

/* The transport goes with the last communicator and comes again with the next. If NCCL kept the
 * library meanwhile (NCCL_NET_PLUGIN_REF_COUNT), it counts on the fused devices that it knows; if
 * not, it asks for the number of devices first, and is then told of the ports alone. */
static void fuse_again(struct holmes_transport *t)
{
    char why[256] = "";
    int dev;

    for (int i = 0; i < nfusions; i++) {
        int rc = fuse(t, fusions[i].members, fusions[i].n, &dev, why, sizeof why);

        if (rc != 0) {
            holmes_warn(INIT, "a fused device that NCCL knows is no more: %s",
                        why[0] ? why : holmes_strerror(rc));
            return;
        }
    }
    remembered = nfusions > 0;
}

/* Lock held. */
static void forget_fusions(void)
{
    if (!remembered)
        return;
    remembered = false;
    nfusions = 0;
    atomic_store(&ndevices, nshown);
}

static int transport_open(void)
{
    struct holmes_nics found;
    struct holmes_transport *t;
    int rc = check_environment();

    if (rc == 0)
        rc = holmes_nics_discover("/sys", port_open_error, NULL, &found);
    if (rc != 0)
        return rc;
    raise_descriptor_limit();
    rc = holmes_transport_create(found.nics, found.n, &t);
    if (rc != 0)
        return rc;
    rc = describe_shown(t, &found);
    if (rc != 0) {
        holmes_transport_destroy(t);
        return rc;
    }
    atomic_store(&ndevices, found.nshown);
    nshown = found.nshown;
    fuse_again(t);
    atomic_store(&transport, t);
    return 0;
}

static int reference_get(void)
{
    int rc = references > 0 ? 0 : transport_open();

    references += rc == 0;
    return rc;
}

static void reference_put(void)
{
    if (--references == 0)
        holmes_transport_destroy(atomic_exchange(&transport, NULL));
}

static void release_at_exit(void)
{
    pthread_mutex_lock(&lock);
    if (held_until_exit && atomic_load(&open_objects) == 0) {
        held_until_exit = false;
        reference_put();
    }
    pthread_mutex_unlock(&lock);
}

int holmes_plugin_init_once(void)
{
    static bool registered;
    int rc = 0;

    pthread_mutex_lock(&lock);
    if (!held_until_exit) {
        rc = reference_get();
        held_until_exit = rc == 0;
        /* Not a destructor: the libraries behind the wires may have run theirs by then. */
        if (rc == 0 && !registered)
            registered = atexit(release_at_exit) == 0;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int holmes_plugin_init(uint64_t comm_id, int traffic_class, struct holmes_plugin_comm **out)
{
    struct holmes_plugin_comm *comm = calloc(1, sizeof *comm);
    int rc;

    *out = NULL;
    if (!comm)
        return -ENOMEM;
    comm->id = comm_id;
    pthread_mutex_lock(&lock);
    rc = reference_get();
    pthread_mutex_unlock(&lock);
    if (rc != 0) {
        free(comm);
        return rc;
    }
    rc = holmes_transport_set_owner(atomic_load(&transport), comm, comm_id, traffic_class);
    if (rc != 0) {
        holmes_plugin_finalize(comm);
        return rc;
    }
    holmes_info(INIT, "communicator %016llx joins, traffic class %d", (unsigned long long)comm_id,
                traffic_class);
    *out = comm;
    return 0;
}

void holmes_plugin_finalize(struct holmes_plugin_comm *comm)
{
    if (!comm)
        return;
    holmes_info(INIT, "communicator %016llx leaves", (unsigned long long)comm->id);
    pthread_mutex_lock(&lock);
    if (references > 0) { /* not in a forked child that finalizes its parent's */
        atomic_fetch_sub(&open_objects, holmes_transport_reap(atomic_load(&transport), comm));
        reference_put();
    }
    pthread_mutex_unlock(&lock);
    free(comm);
}

int holmes_plugin_devices(int *ndev)
{
    struct holmes_transport *t = atomic_load(&transport);

    if (!t)
        return -ENODEV;
    pthread_mutex_lock(&lock);
    forget_fusions();
    *ndev = atomic_load(&ndevices);
    pthread_mutex_unlock(&lock);
    return 0;
}

int holmes_plugin_device(int dev, struct holmes_plugin_device *out)
{
    struct holmes_transport *t = atomic_load(&transport);

    if (!t)
        return -ENODEV;
    if (dev < 0 || dev >= atomic_load(&ndevices))
        return -EINVAL;
    *out = devices[dev];
    return 0;
}

int holmes_plugin_fuse(const int *members, int n, int *dev)
{
    struct holmes_transport *t = atomic_load(&transport);
    char why[256] = "";
    int rc;

    if (!t)
        return -ENODEV;
    if (!holmes_env_int(HOLMES_ENV_NCCL_IB_MERGE_NICS)) {
        holmes_info(INIT, "devices stay apart: NCCL_IB_MERGE_NICS=0");
        return -EPERM;
    }
    pthread_mutex_lock(&lock);
    forget_fusions();
    rc = fuse(t, members, n, dev, why, sizeof why);
    if (rc == 0 && nfusions < DEVICES_MAX) {
        fusions[nfusions].n = n;
        memcpy(fusions[nfusions++].members, members, (size_t)n * sizeof *members);
    }
    pthread_mutex_unlock(&lock);
    if (rc != 0)
        holmes_info(INIT, "devices stay apart: %s", why[0] ? why : holmes_strerror(rc));
    else
        holmes_info(INIT, "device %d is %s", *dev, devices[*dev].name);
    return rc;
}

/* The transport's number of a device. */
static int number_of(int dev)
{
    return dev >= 0 && dev < atomic_load(&ndevices) ? numbers[dev] : -1;
}

int holmes_plugin_listen(struct holmes_plugin_comm *comm, int dev, void *handle,
                         struct holmes_listen **out)
{
    struct holmes_transport *t = atomic_load(&transport);
    int rc = t ? holmes_listen(t, comm, number_of(dev), handle, out) : -ENODEV;

    if (rc == 0)
        atomic_fetch_add(&open_objects, 1);
    return rc;
}

int holmes_plugin_connect(struct holmes_plugin_comm *comm, int dev, void *handle,
                          struct holmes_conn **out)
{
    struct holmes_transport *t = atomic_load(&transport);
    int rc = t ? holmes_connect(t, comm, number_of(dev), handle, out) : -ENODEV;

    if (rc == 0)
        atomic_fetch_add(&open_objects, 1);
    return rc;
}

int holmes_plugin_accept(struct holmes_listen *l, struct holmes_conn **out)
{
    int rc = holmes_accept(l, out);

    if (rc == 0)
        atomic_fetch_add(&open_objects, 1);
    return rc;
}

void holmes_plugin_close(struct holmes_conn *c)
{
    if (holmes_conn_close(c))
        atomic_fetch_sub(&open_objects, 1);
}

void holmes_plugin_close_listen(struct holmes_listen *l)
{
    if (holmes_listen_close(l))
        atomic_fetch_sub(&open_objects, 1);
}
