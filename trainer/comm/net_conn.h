/* One directed connection of a communicator: how it comes up, what memory is registered on it, what
 * went over it.
 *
 * Threads: holmes_conn_step runs on the setup thread; once ready, data calls belong to the progress
 * thread, registration to any. Memory stays registered until the connection closes or the cache is
 * full of ranges in use more recently, so that a buffer used again costs no registration.
 */
#ifndef HOLMES_NET_CONN_H
#define HOLMES_NET_CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "list.h"
#include "net_plugin.h"
#include "rendezvous.h"

enum holmes_conn_state {
    HOLMES_CONN_LISTEN,  /* receiver: open a listener, publish its handle */
    HOLMES_CONN_ACCEPT,  /* receiver: the handle is out, the sender may come */
    HOLMES_CONN_FETCH,   /* sender: wait until the receiver has published */
    HOLMES_CONN_CONNECT, /* sender: the plugin is dialing */
    HOLMES_CONN_READY,   /* `comm` is usable */
    HOLMES_CONN_FAILED,  /* `error` says why; nothing is open but what close ends */
};

struct holmes_conn_attr {
    struct holmes_plugin *plugin;
    void *ctx;
    int dev;
    struct holmes_rdv *rdv;
    bool sends;
    int peer;         /* rank in the communicator */
    const char *what; /* unique in the job with `from` and `to`: "dp/ring" */
    int from, to;     /* ranks in the communicator */
    int timeout_ms;   /* until ready */
    bool lazy;        /* the peer may take its time: timeout_ms counts once it has come */
};

struct holmes_conn {
    struct holmes_conn_attr attr;
    char key[160];
    atomic_int state;
    int error; /* valid when FAILED */
    struct holmes_list in_setup;
    void *listen_comm;
    unsigned char handle[HOLMES_PLUGIN_HANDLE_BYTES];
    uint64_t deadline_ns;  /* 0: none yet */
    uint64_t next_look_ns; /* FETCH: not before this */
    void *comm;            /* the plugin's, written before READY */

    pthread_mutex_t lock;       /* the members below */
    struct holmes_list regions; /* least recently used first */
    int nregions;
    bool closed;

    atomic_uint_fast64_t bytes, messages; /* payload handed over, or received */
};

/* A registered range; pinned by `users`. */
struct holmes_region {
    struct holmes_list node;
    char *base;
    size_t len;
    void *mr;
    int users;
};

int holmes_conn_create(const struct holmes_conn_attr *attr, struct holmes_conn **out);
/* One step of connecting: 0 when something moved, -EAGAIN, or the error it failed with. */
int holmes_conn_step(struct holmes_conn *c);
/* Ends the plugin's side: registrations, connection, listener. Later calls do nothing. */
void holmes_conn_close(struct holmes_conn *c);
void holmes_conn_destroy(struct holmes_conn *c); /* closes; NULL is fine */

/* The connection must be ready. The region is the caller's to release. -ECANCELED once closed. */
int holmes_conn_register(struct holmes_conn *c, const void *data, size_t len,
                         struct holmes_region **out);
void holmes_conn_release(struct holmes_conn *c, struct holmes_region *r); /* NULL is fine */
/* Release, and deregister now, because the memory goes away. */
void holmes_conn_forget(struct holmes_conn *c, struct holmes_region *r);

#endif
