/* One connection: its way from a dialled or accepted socket to raised lanes, and its failure. The
 * data path is in request.c. */
#ifndef HOLMES_CONN_H
#define HOLMES_CONN_H

#include "context.h"
#include "dial.h"
#include "request.h"

enum conn_state {
    CONN_DIALING,   /* connecting end: no address has proven itself yet */
    CONN_PEER_INFO, /* connecting end: AUTH sent, the peer's verdict is awaited */
    CONN_LANES,     /* both: lanes are rising */
    CONN_PEER_UP,   /* both: ours are up, the peer's word is awaited */
    CONN_READY,
};

struct holmes_conn {
    struct holmes_list link; /* holmes_transport.conns, under the transport's lock */
    struct holmes_transport *t;
    const void *owner;
    uint64_t id;
    bool sending;
    bool taken; /* handed to the caller, who closes it; under the transport's lock */

    pthread_mutex_t lock; /* guards what follows */
    enum conn_state state;
    int error; /* first error, sticky */
    uint64_t deadline_ns;
    struct dialer *dialer;
    struct oob oob;
    struct device *dev;
    const struct wire_ops *ops;
    struct wire_cq *cq;
    struct wire_lane *lanes[HOLMES_MAX_LANES];
    int nlanes;
    bool lanes_connected;
    bool peer_up;
    struct proto_info peer; /* names; control address and key */
    char host[64];          /* ours */
    char peer_addr[64], local_addr[64];

    /* Written by the peer through the wire. */
    union {
        void *control;
        struct proto_send_control *send_control;
        struct proto_recv_control *recv_control;
    };
    struct wire_mr control_mr;

    /* Watching the peer. */
    uint64_t next_slow_ns, next_oob_ns;
    uint64_t gone_deadline_ns; /* the peer is gone: what is in flight may land until then; 0: it is
                                  not */
    int peer_error;            /* why; 0: it closed in order */
    bool oob_ended;            /* the handshake socket has said its last word */

    struct request_queue q;
};

/* A connection in state CONN_DIALING. */
int conn_create_sender(struct device *dev, const void *owner, const struct proto_handle *handle,
                       struct holmes_conn **out);
/* A connection in state CONN_LANES for a peer that arrived on a listen of `dev`; takes the
 * arrival's socket, also on failure. */
int conn_create_receiver(struct device *dev, const void *owner, struct arrival *a,
                         struct holmes_conn **out);

/* Advances towards CONN_READY: 0 there, -EAGAIN, or the connection's error. Takes the lock. */
int conn_progress(struct holmes_conn *c);

/* Says which limit -EMFILE ran into. */
void conn_explain_descriptors(void);

/* Lock held. Keeps the first error, logs it once, closes the lanes so that nothing lands any more,
 * and tells the peer. */
void conn_fail(struct holmes_conn *c, int error);
/* Lock held. Looks after lanes and peer, at most every millisecond; 0 or the connection's error
 * after failing it. */
int conn_watch(struct holmes_conn *c);

/* Lock held. The wire refused or reported something. A lost peer: 0, and conn_watch fails the
 * connection with the best reason it hears in time; anything else fails it now. */
int conn_wire_error(struct holmes_conn *c, int error);

/* Unlinks and frees. */
void conn_destroy(struct holmes_conn *c);

void conn_snapshot(const struct holmes_conn *c, struct holmes_conn_stats *out);

#endif
