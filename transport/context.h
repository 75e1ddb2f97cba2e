/* What a transport holds for the whole process: its NICs, the listener, all connections. */
#ifndef HOLMES_CONTEXT_H
#define HOLMES_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

#include "held.h"
#include "list.h"
#include "listener.h"
#include "mr.h"
#include "probe_cache.h"
#include "stats.h"

#define CONNECTING_BUCKETS 256
#define GOOD_ADDRS_MAX     64
#define HOLMES_MAX_DEVICES 64

/* A NIC and the wire opened on it, or several RDMA ports fused into one. Opened at first use,
 * closed with the transport. */
struct device {
    struct holmes_transport *t;
    struct holmes_nic nic;
    int nmembers; /* ports of a fused NIC; else 1, itself */
    struct device *members[HOLMES_MAX_RAILS];
    pthread_mutex_t open_lock;
    atomic_bool opened;
    const struct wire_ops *ops; /* NULL until opened, and of a fused NIC */
    struct wire_nic *wn;
    struct wire_limits limits;
    struct mr_cache mrs;
    struct port_counters counted; /* when it was opened */
    _Atomic size_t staged_bytes;  /* pinned for GPU memory of its connections */
    _Atomic uint64_t next_progress_ns;
    atomic_bool route_warned, link_local_warned;
    int open_error; /* that was told of; under open_lock */
};

struct holmes_transport {
    pid_t pid; /* whose it is; a forked child leaves it alone */
    atomic_int ndevices;
    struct device *devices[HOLMES_MAX_DEVICES]; /* fused ones last */
    const struct wire_ops *tcp, *rdma;          /* NULL: that wire's library could not be opened */
    char no_rdma[96];                           /* why `rdma` is NULL */
    uint16_t port_low, port_high;               /* 0: the kernel chooses */
    uint64_t warn_stall_ns;                     /* 0: never */

    /* Guards what follows. May be taken under a connection's lock, never before one. */
    pthread_mutex_t lock;
    struct listener listener;
    struct holmes_list listens; /* struct holmes_listen.link */
    struct holmes_list conns;   /* struct holmes_conn.link, half-made ones included */
    struct holmes_list connecting[CONNECTING_BUCKETS]; /* struct holmes_conn.in_connecting, by id */
    struct holmes_list owners;                         /* struct owner.link */
    struct holmes_addr good_addrs[GOOD_ADDRS_MAX];     /* peers' addresses that worked; a ring */
    unsigned ngood;
    struct stats stats;

    struct held held;

    pthread_mutex_t probes_lock; /* innermost */
    struct probe_cache probes;

    _Atomic uint64_t next_id;
};

/* This process has made no transport: all that it knows of are its parent's, and their memory may
 * not be here (libibverbs keeps pages with something registered from children). */
bool transport_none_is_ours(void);
/* In a child of the process that made it. */
static inline bool transport_is_inherited(const struct holmes_transport *t)
{
    return t->pid != getpid();
}

static inline bool device_is_rdma(const struct device *d)
{
    return d->nic.rdma.port != 0;
}

/* NULL when out of memory or places. Others see it once it is published. */
struct device *device_new(struct holmes_transport *t, const struct holmes_nic *nic);
void device_publish(struct holmes_transport *t, struct device *d);
/* First the registrations of all devices, which may be on each other's ports. */
void device_close_registrations(struct device *d);
void device_close(struct device *d);

/* Opens the device's wire if it is not; of a fused NIC at least one port. Thread safe. */
int device_open(struct device *d);
/* Whether port `i` of an opened device is part of it. One that failed then stays out, also when
 * another device opens it later. */
static inline bool device_has_port(const struct device *d, int i)
{
    return d->mrs.rails[i].ops != NULL;
}
/* Kinds of GPU memory that all ports of an opened device take: HOLMES_MEMORY_*. */
unsigned device_gpu_memory(const struct device *d);
/* What holmes_transport_set_owner said. Takes the transport's lock. */
struct owner_facts {
    uint64_t communicator;
    int traffic_class;
};
struct owner_facts owner_facts(struct holmes_transport *t, const void *owner);
/* Drives the device's connection events, at most every `interval_ns`, and for half of the time at
 * most: every connection that rises asks for it, and it looks at all of them. */
void device_progress(struct device *d, uint64_t now_ns, uint64_t interval_ns);
/* The opened devices over which a connection on the Ethernet device `d`, wanted on `wanted`,
 * spreads, `d` first: those that were fused with it, or those of HOLMES_TCP_NICS. Their number, at
 * most HOLMES_BUNDLE_MAX; 1 where the wire does not bundle. */
int device_bundle(struct device *d, const struct device *wanted,
                  struct device *out[HOLMES_BUNDLE_MAX]);
/* -EINVAL after a log line: HOLMES_TCP_NICS names a NIC that the transport does not have. */
int device_check_tcp_nics(const struct holmes_transport *t);

/* The Ethernet device that owns the IP address, else the best one; NULL when there is none. */
struct device *device_for_tcp(struct holmes_transport *t, const struct holmes_addr *addr);

#endif
