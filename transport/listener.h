/* The process's one listening socket. Many listens share it; an incoming connection names its
 * listen by an identifier and proves that it knows that listen's token before anything is made for
 * it. All functions are called with the transport's lock held.
 */
#ifndef HOLMES_LISTENER_H
#define HOLMES_LISTENER_H

#include "list.h"
#include "oob.h"

struct device;

struct listener {
    int fd; /* -1: not open */
    uint16_t port;
    struct holmes_list pendings; /* struct pending.link: not yet proven */
    int npendings;
    uint64_t next_ns; /* of listener_progress, so that it takes half of the time at most */
};

/* A peer that proved itself and waits for accept. */
struct arrival {
    struct holmes_list link; /* holmes_listen.arrivals */
    struct oob oob;
    struct proto_offer offer;
};

struct holmes_listen {
    struct holmes_list link; /* holmes_transport.listens */
    struct holmes_transport *t;
    const void *owner;
    struct device *dev;
    uint8_t token[PROTO_TOKEN_SIZE];
    uint64_t id;
    uint64_t deadline_ns; /* of the peer's arrival; 0 until the first accept */
    struct holmes_list arrivals;
    struct holmes_conn *accepting; /* half-made, owned by this */
};

/* Binds `addr` (NULL: all addresses) on the first free port of the range (low 0: any). */
int listener_open(struct listener *l, const struct holmes_addr *addr, uint16_t low, uint16_t high);
void listener_close(struct listener *l);

/* Takes new connections and advances those that have not proven themselves: a system call for each.
 * Every accept that is polled calls it, a thousand of them in turn while a job starts; it does
 * nothing until as much time has passed as it took last. -EMFILE and the like when the kernel
 * cannot give a socket. */
int listener_progress(struct holmes_transport *t);
/* Forgets pendings of a listen that goes away. */
void listener_forget(struct listener *l, const struct holmes_listen *listen);

void arrival_free(struct arrival *a);

/* With the peers that nobody accepted; a half-made connection is its owner's to close. */
void listen_free(struct holmes_listen *l);

#endif
