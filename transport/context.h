/* What a transport holds for the whole process: its NICs, the listener, all connections. */
#ifndef HOLMES_CONTEXT_H
#define HOLMES_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "list.h"
#include "listener.h"
#include "mr.h"
#include "stats.h"

#define GOOD_ADDRS_MAX 64

/* A NIC and the wire opened on it. Opened at first use, closed with the transport. */
struct device {
    struct holmes_transport *t;
    struct holmes_nic nic;
    pthread_mutex_t open_lock;
    const struct wire_ops *ops; /* NULL until opened */
    struct wire_nic *wn;
    struct wire_limits limits;
    struct mr_cache mrs;
    _Atomic uint64_t next_progress_ns;
    atomic_bool route_warned;
};

struct holmes_transport {
    int ndevices;
    struct device *devices;
    const struct wire_ops *wire;
    uint16_t port_low, port_high; /* 0: the kernel chooses */
    uint64_t warn_stall_ns;       /* 0: never */

    /* Guards what follows. Taken before a connection's lock, never after. */
    pthread_mutex_t lock;
    struct listener listener;
    struct holmes_list listens; /* struct holmes_listen.link */
    struct holmes_list conns;   /* struct holmes_conn.link, half-made ones included */
    struct holmes_addr good_addrs[GOOD_ADDRS_MAX]; /* peers' addresses that worked; a ring */
    unsigned ngood;
    struct stats stats;

    _Atomic uint64_t next_id;
};

/* Opens the device's wire if it is not. Thread safe. */
int device_open(struct device *d);
/* Drives the device's connection events, at most every `interval_ns`. */
void device_progress(struct device *d, uint64_t now_ns, uint64_t interval_ns);
/* The device that owns the IP address, or NULL. */
struct device *device_by_addr(struct holmes_transport *t, const struct holmes_addr *addr);

#endif
