/* One connection: its way from a dialled or accepted socket to raised lanes, and its failure. The
 * data path is in request.c. */
#ifndef HOLMES_CONN_H
#define HOLMES_CONN_H

#include "context.h"
#include "dial.h"
#include "request.h"

struct handshake;

enum conn_state {
    CONN_DIALING, /* connecting end: no address has proven itself yet */
    CONN_VERDICT, /* connecting end: offer sent, the peer's verdict is awaited */
    CONN_CHOOSE,  /* accepting end: chooses the wire, probing where it must */
    CONN_INFO,    /* accepting end: verdict sent, the peer's lanes are awaited */
    CONN_LANES,   /* both: lanes are rising */
    CONN_PEER_UP, /* both: ours are up, the peer's word is awaited */
    CONN_READY,
};

/* A port that the connection runs over. */
struct conn_rail {
    struct device *dev;
    int member; /* its place in the carrying device, and in registrations */
    struct wire_cq *cq;
    struct wire_mr control_mr;
    bool control_registered;
};

struct holmes_conn {
    struct holmes_list link;          /* holmes_transport.conns, under the transport's lock */
    struct holmes_list in_connecting; /* holmes_transport.connecting, likewise, until it is taken */
    struct holmes_transport *t;
    struct holmes_list held_link; /* holmes_transport.held.conns, under that one's lock */
    const void *owner;
    uint64_t id;
    uint64_t listen_id; /* connecting end: of the peer's listen */
    bool sending;
    bool taken; /* handed to the caller, who closes it; under the transport's lock */

    pthread_mutex_t lock; /* guards what follows */
    enum conn_state state;
    int error; /* first error, sticky */
    uint64_t deadline_ns;
    uint64_t now_ns; /* when it was last watched */
    bool held;       /* in held_link's list */
    struct dialer *dialer;
    struct handshake *handshake; /* until ready */
    struct oob oob;
    struct device *wanted; /* the NIC that the caller named */
    struct device *dev;    /* the NIC that carries the connection; NULL until that is decided */
    const struct wire_ops *ops;
    struct wire_limits limits; /* the least of its rails' */
    int nrails;
    struct conn_rail rails[HOLMES_MAX_RAILS];
    struct wire_lane *lanes[HOLMES_MAX_LANES]; /* lane i is on rail i % nrails */
    int nlanes;
    int nstreams; /* of all lanes, once it is ready: what users know as lanes */
    int width;    /* lanes that one message is spread over, at most */
    bool lanes_connected;
    bool peer_up;
    struct proto_info peer; /* control address and keys, lanes */
    char peer_host[64], peer_nic[HOLMES_NIC_NAME_MAX];
    char host[64]; /* ours */
    char peer_addr[64], local_addr[64];
    char reason[128]; /* of the wire's choice */
    struct owner_facts facts;

    /* Written by the peer through the wire. */
    union {
        void *control;
        struct proto_send_control *send_control;
        struct proto_recv_control *recv_control;
    };

    struct stage *stage; /* once GPU memory was registered on a wire that cannot reach it */

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
/* A connection in state CONN_CHOOSE for a peer that arrived on a listen of `dev`; takes the
 * arrival's socket, also on failure. */
int conn_create_receiver(struct device *dev, const void *owner, struct arrival *a,
                         struct holmes_conn **out);

/* Advances towards CONN_READY: 0 there, -EAGAIN, or the connection's error. Takes the lock. */
int conn_progress(struct holmes_conn *c);

/* Lock held. */
void conn_enter(struct holmes_conn *c, enum conn_state next);
void conn_note_addrs(struct holmes_conn *c); /* of the socket's two ends, for messages */

/* Says which limit -EMFILE ran into. */
void conn_explain_descriptors(void);

/* Lock held. Keeps the first error, logs it once, closes the lanes so that nothing lands any more,
 * and tells the peer. */
void conn_fail(struct holmes_conn *c, int error);
/* Lock held. Looks after lanes and peer, at most every millisecond; 0 or the connection's error
 * after failing it. */
int conn_watch(struct holmes_conn *c);

/* Lock held. Sends all that is held back. False: the kernel does not take it now, or it may have to
 * be said again. */
bool conn_settle(struct holmes_conn *c);

/* Lock held. The wire refused or reported something. A lost peer: 0, and conn_watch fails the
 * connection with the best reason it hears in time; anything else fails it now. */
int conn_wire_error(struct holmes_conn *c, int error);

/* Unlinks and frees. */
void conn_destroy(struct holmes_conn *c);

void conn_snapshot(const struct holmes_conn *c, struct holmes_conn_stats *out);

#endif
