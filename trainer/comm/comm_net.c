/* The communicator over a net plugin: arguments are checked here, an operation is made from a ring
 * algorithm and handed to its stream. The ring's connections come up with the communicator; a pair
 * that sends or receives point to point is connected when first used, by each end for itself. */
#include "comm_net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "net_progress.h"
#include "net_setup.h"
#include "siphash.h"

enum {
    RING_CHUNK_MIN = 64 * 1024, /* a block is cut so far that a group is full, but no further */
    RING_CHUNK_MAX = 512 * 1024,
    PEER_CHUNK = 1024 * 1024,
};

struct holmes_net {
    struct holmes_plugin *plugin;
    void *ctx; /* keeps a v11 plugin initialised while there is no communicator */
    bool initialised;
    int dev, ndev;
    struct holmes_plugin_device device;
    int connect_timeout_ms, op_timeout_ms;
    struct holmes_progress *progress;
    struct holmes_setup *setup;
};

/* Connections and streams with one peer; NULL where none was needed yet. */
struct pair {
    struct holmes_conn *tx, *rx;
    struct holmes_stream *to, *from;
};

struct net_comm {
    struct holmes_net_comm nc; /* first: a holmes_comm is one of these */
    struct holmes_net *net;
    void *ctx;
    bool initialised;
    struct holmes_conn *next, *prev;
    struct holmes_stream *ring;
    struct pair *pairs; /* by rank */
};

static struct net_comm *of(struct holmes_comm *c)
{
    return (struct net_comm *)c;
}

/* ---- net ---- */

static void net_conn_ready(void *arg)
{
    holmes_progress_wake(arg);
}

static int net_start(struct holmes_net *n, const struct holmes_net_attr *attr, char *why,
                     size_t why_len)
{
    int rc = holmes_plugin_open(attr->plugin, &n->plugin, why, why_len);

    if (rc)
        return rc;
    rc = holmes_plugin_init(n->plugin, 0, &n->ctx);
    if (rc) {
        snprintf(why, why_len, "%s: init answered %s", holmes_plugin_path(n->plugin),
                 holmes_plugin_result_name(rc));
        return rc;
    }
    n->initialised = true;
    rc = holmes_plugin_find_device(n->plugin, attr->device, &n->dev, &n->device, &n->ndev, why,
                                   why_len);
    if (rc)
        return rc;
    if (n->device.max_message < PEER_CHUNK) {
        snprintf(why, why_len, "device %s takes messages of %zu bytes at most, %d are needed",
                 n->device.name, n->device.max_message, PEER_CHUNK);
        return -EMSGSIZE;
    }
    rc = holmes_progress_start(&n->progress);
    if (rc == 0)
        rc = holmes_setup_start(net_conn_ready, n->progress, &n->setup);
    if (rc)
        snprintf(why, why_len, "cannot start a thread: %s", holmes_strerror(rc));
    return rc;
}

int holmes_net_open(const struct holmes_net_attr *attr, struct holmes_net **out, char *why,
                    size_t why_len)
{
    struct holmes_net *n = calloc(1, sizeof *n);
    int rc;

    if (!n)
        return -ENOMEM;
    n->connect_timeout_ms = attr->connect_timeout_s * 1000;
    n->op_timeout_ms = attr->op_timeout_s * 1000;
    rc = net_start(n, attr, why, why_len);
    if (rc) {
        holmes_net_close(n);
        return rc;
    }
    holmes_info(NET, "net %s (v%d of the interface, %s), device %s of %d, %d Mbit/s",
                holmes_plugin_name(n->plugin), holmes_plugin_abi(n->plugin),
                holmes_plugin_path(n->plugin), n->device.name, n->ndev, n->device.speed_mbps);
    *out = n;
    return 0;
}

void holmes_net_close(struct holmes_net *n)
{
    if (!n)
        return;
    holmes_setup_stop(n->setup);
    holmes_progress_stop(n->progress);
    if (n->initialised)
        holmes_plugin_fini(n->plugin, n->ctx);
    holmes_plugin_close(n->plugin);
    free(n);
}

void holmes_net_info(const struct holmes_net *n, struct holmes_net_info *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->path, sizeof out->path, "%s", holmes_plugin_path(n->plugin));
    snprintf(out->name, sizeof out->name, "%s", holmes_plugin_name(n->plugin));
    snprintf(out->device, sizeof out->device, "%s", n->device.name);
    out->abi = holmes_plugin_abi(n->plugin);
    out->speed_mbps = n->device.speed_mbps;
    out->ndev = n->ndev;
}

double holmes_net_cpu_seconds(const struct holmes_net *n)
{
    return holmes_progress_cpu_seconds(n->progress);
}

/* ---- operations ---- */

static int comm_submit(struct net_comm *c, struct holmes_stream *st, struct holmes_ring_attr attr,
                       const char *name, enum holmes_dtype t, const void *in, void *out,
                       struct holmes_op **op)
{
    struct holmes_op *o;
    int rc = atomic_load(&c->nc.error);

    if (rc)
        return rc;
    attr.rank = c->nc.base.rank;
    attr.size = c->nc.base.size;
    rc = holmes_op_create(st, &attr, name, t, in, out, &o);
    if (rc) /* registering meets closed connections when the communicator has just failed */
        return atomic_load(&c->nc.error) ? atomic_load(&c->nc.error) : rc;
    if (o->ring.nsend == 0 && o->ring.nrecv == 0)
        holmes_op_complete(o, 0);
    else
        holmes_progress_submit(c->net->progress, o);
    *op = o;
    return 0;
}

static struct holmes_ring_attr ring_attr(enum holmes_ring_kind kind, size_t count,
                                         enum holmes_dtype t)
{
    return (struct holmes_ring_attr){
        .kind = kind,
        .count = count,
        .elem_bytes = holmes_dtype_size(t),
        .chunk_min = RING_CHUNK_MIN,
        .chunk_max = RING_CHUNK_MAX,
    };
}

size_t holmes_comm_net_bytes(int size, size_t count, enum holmes_dtype t, bool scatter)
{
    struct holmes_ring_attr attr = scatter ? ring_attr(HOLMES_RING_REDUCE_SCATTER,
                                                       (count + (size_t)size - 1) / (size_t)size, t)
                                           : ring_attr(HOLMES_RING_ALL_REDUCE, count, t);

    attr.size = size;
    return size > 1 ? holmes_stream_slot_bytes(&attr) : 0;
}

static int net_all_reduce(struct holmes_comm *c, const void *in, void *out, size_t count,
                          enum holmes_dtype t, struct holmes_op **op)
{
    return comm_submit(of(c), of(c)->ring, ring_attr(HOLMES_RING_ALL_REDUCE, count, t),
                       "all_reduce", t, in, out, op);
}

static int net_reduce_scatter(struct holmes_comm *c, const void *in, void *out, size_t count,
                              enum holmes_dtype t, struct holmes_op **op)
{
    return comm_submit(of(c), of(c)->ring, ring_attr(HOLMES_RING_REDUCE_SCATTER, count, t),
                       "reduce_scatter", t, in, out, op);
}

static int net_all_gather(struct holmes_comm *c, const void *in, void *out, size_t count,
                          enum holmes_dtype t, struct holmes_op **op)
{
    return comm_submit(of(c), of(c)->ring, ring_attr(HOLMES_RING_ALL_GATHER, count, t),
                       "all_gather", t, in, out, op);
}

static int net_broadcast(struct holmes_comm *c, void *buf, size_t count, enum holmes_dtype t,
                         int root, struct holmes_op **op)
{
    struct holmes_ring_attr attr = ring_attr(HOLMES_RING_BROADCAST, count, t);

    if (root < 0 || root >= c->size) {
        holmes_warn(NET, "broadcast from rank %d, but ranks are 0 to %d", root, c->size - 1);
        return -EINVAL;
    }
    attr.root = root;
    return comm_submit(of(c), of(c)->ring, attr, "broadcast", t, NULL, buf, op);
}

static int net_barrier(struct holmes_comm *c, struct holmes_op **op)
{
    return comm_submit(of(c), of(c)->ring, ring_attr(HOLMES_RING_BARRIER, 0, HOLMES_FLOAT32),
                       "barrier", HOLMES_FLOAT32, NULL, NULL, op);
}

/* ---- point to point ---- */

static struct holmes_conn_attr conn_attr(struct net_comm *c, const char *what, bool sends, int peer)
{
    int rank = c->nc.base.rank;

    return (struct holmes_conn_attr){
        .plugin = c->net->plugin,
        .ctx = c->ctx,
        .dev = c->net->dev,
        .rdv = c->nc.rdv,
        .sends = sends,
        .peer = peer,
        .what = what,
        .from = sends ? rank : peer,
        .to = sends ? peer : rank,
        .timeout_ms = c->net->connect_timeout_ms,
    };
}

static int comm_connect(struct net_comm *c, const char *kind, bool sends, int peer, bool lazy,
                        struct holmes_conn **out)
{
    struct holmes_conn_attr attr;
    char what[96];
    int rc;

    snprintf(what, sizeof what, "%s/%s", c->nc.name, kind);
    attr = conn_attr(c, what, sends, peer);
    attr.lazy = lazy;
    rc = holmes_conn_create(&attr, out);
    if (rc == 0)
        holmes_setup_add(c->net->setup, *out);
    return rc;
}

static int pair_stream(struct net_comm *c, int peer, bool sends, struct holmes_stream **out)
{
    struct pair *p;
    struct holmes_conn **conn;
    struct holmes_stream **st;
    int rc = atomic_load(&c->nc.error);

    if (rc)
        return rc;
    if (peer < 0 || peer >= c->nc.base.size || peer == c->nc.base.rank) {
        holmes_warn(NET, "%s rank %d, but this is rank %d of %d",
                    sends ? "send to" : "receive from", peer, c->nc.base.rank, c->nc.base.size);
        return -EINVAL;
    }
    p = &c->pairs[peer];
    conn = sends ? &p->tx : &p->rx;
    st = sends ? &p->to : &p->from;
    if (!*conn)
        rc = comm_connect(c, "peer", sends, peer, true, conn);
    if (rc == 0 && !*st)
        rc = holmes_stream_create(&c->nc, c->nc.base.rank, sends ? *conn : NULL,
                                  sends ? NULL : *conn, st);
    if (rc == 0)
        *out = *st;
    return rc;
}

static struct holmes_ring_attr peer_attr(enum holmes_ring_kind kind, size_t bytes)
{
    return (struct holmes_ring_attr){
        .kind = kind,
        .count = bytes,
        .elem_bytes = 1,
        .chunk_min = PEER_CHUNK,
        .chunk_max = PEER_CHUNK,
    };
}

static int net_send(struct holmes_comm *c, const void *buf, size_t bytes, int peer,
                    struct holmes_op **op)
{
    struct holmes_stream *st;
    int rc = pair_stream(of(c), peer, true, &st);

    return rc ? rc
              : comm_submit(of(c), st, peer_attr(HOLMES_RING_SEND, bytes), "send", HOLMES_FLOAT32,
                            buf, NULL, op);
}

static int net_recv(struct holmes_comm *c, void *buf, size_t bytes, int peer, struct holmes_op **op)
{
    struct holmes_stream *st;
    int rc = pair_stream(of(c), peer, false, &st);

    return rc ? rc
              : comm_submit(of(c), st, peer_attr(HOLMES_RING_RECV, bytes), "recv", HOLMES_FLOAT32,
                            NULL, buf, op);
}

/* ---- handles ---- */

static int net_test(struct holmes_op *op, bool *done)
{
    *done = holmes_op_done(op);
    return *done ? op->rc : 0;
}

static int net_wait(struct holmes_op *op, int timeout_ms)
{
    int rc;

    if (timeout_ms >= 0 && !holmes_op_wait(op, timeout_ms))
        return -ETIMEDOUT;
    if (timeout_ms < 0 && !holmes_op_done(op)) {
        /* Until it is done its communicator is there. */
        struct net_comm *c = (struct net_comm *)op->stream->comm;

        if (!holmes_op_wait(op, c->net->op_timeout_ms))
            holmes_progress_cancel(c->net->progress, &c->nc, -ETIME);
        holmes_op_wait(op, -1);
    }
    rc = op->rc;
    holmes_op_destroy(op);
    return rc;
}

static void traffic_add(struct holmes_comm_traffic *t, const struct holmes_conn *c, int peer)
{
    if (!c || c->attr.peer != peer)
        return;
    *(c->attr.sends ? &t->bytes_sent : &t->bytes_received) += atomic_load(&c->bytes);
    *(c->attr.sends ? &t->messages_sent : &t->messages_received) += atomic_load(&c->messages);
}

static void net_traffic(struct holmes_comm *comm, int peer, struct holmes_comm_traffic *out)
{
    struct net_comm *c = of(comm);

    *out = (struct holmes_comm_traffic){0};
    if (peer < 0 || peer >= comm->size)
        return;
    traffic_add(out, c->next, peer);
    traffic_add(out, c->prev, peer);
    traffic_add(out, c->pairs[peer].tx, peer);
    traffic_add(out, c->pairs[peer].rx, peer);
}

/* ---- life ---- */

static void conn_end(struct net_comm *c, struct holmes_conn *conn)
{
    if (!conn)
        return;
    holmes_setup_remove(c->net->setup, conn);
    holmes_conn_destroy(conn);
}

static void net_destroy(struct holmes_comm *comm)
{
    struct net_comm *c = of(comm);

    holmes_progress_cancel(c->net->progress, &c->nc, -ECANCELED);
    conn_end(c, c->next);
    conn_end(c, c->prev);
    holmes_stream_destroy(c->ring);
    for (int i = 0; c->pairs && i < comm->size; i++) {
        conn_end(c, c->pairs[i].tx);
        conn_end(c, c->pairs[i].rx);
        holmes_stream_destroy(c->pairs[i].to);
        holmes_stream_destroy(c->pairs[i].from);
    }
    if (c->initialised)
        holmes_plugin_fini(c->net->plugin, c->ctx);
    free(c->pairs);
    free(c);
}

static const struct holmes_comm_ops net_ops = {
    .name = "net",
    .all_reduce = net_all_reduce,
    .reduce_scatter = net_reduce_scatter,
    .all_gather = net_all_gather,
    .broadcast = net_broadcast,
    .send = net_send,
    .recv = net_recv,
    .barrier = net_barrier,
    .test = net_test,
    .wait = net_wait,
    .traffic = net_traffic,
    .destroy = net_destroy,
};

static int ring_wait(struct net_comm *c, struct holmes_conn *conn)
{
    int rc = holmes_setup_wait(c->net->setup, conn);

    if (rc)
        holmes_warn(NET, "communicator %s: %s rank %d of %d: %s", c->nc.name,
                    conn->attr.sends ? "no way to" : "nothing came from", conn->attr.peer,
                    c->nc.base.size,
                    rc == -ECONNABORTED ? holmes_rdv_reason(c->nc.rdv) : holmes_strerror(rc));
    return rc;
}

/* Both directions at once, so that a ring of two does not wait for itself. */
static int comm_raise_ring(struct net_comm *c)
{
    int rank = c->nc.base.rank, size = c->nc.base.size;
    int rc = comm_connect(c, "ring", false, (rank + size - 1) % size, false, &c->prev);

    if (rc == 0)
        rc = comm_connect(c, "ring", true, (rank + 1) % size, false, &c->next);
    if (rc == 0)
        rc = ring_wait(c, c->prev);
    if (rc == 0)
        rc = ring_wait(c, c->next);
    if (rc == 0)
        rc = holmes_stream_create(&c->nc, rank, c->next, c->prev, &c->ring);
    return rc;
}

uint64_t holmes_comm_net_id(const char *name)
{
    static const uint8_t key[16] = "holmes comm name";

    return holmes_siphash(key, name, strlen(name));
}

int holmes_comm_net_create(struct holmes_net *n, struct holmes_rdv *rdv, const char *name,
                           const char *kind, const int *ranks, int size, int rank,
                           struct holmes_comm **out)
{
    struct net_comm *c;
    int rc;

    if (size < 1 || rank < 0 || rank >= size || strlen(name) >= sizeof c->nc.name) {
        holmes_warn(NET, "communicator %s: rank %d of %d", name, rank, size);
        return -EINVAL;
    }
    (void)ranks; /* peers meet under the communicator's name and their ranks in it */
    if (size == 1)
        return holmes_comm_loopback_create(kind, out);
    c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->nc.base.ops = &net_ops;
    c->nc.base.rank = rank;
    c->nc.base.size = size;
    snprintf(c->nc.base.kind, sizeof c->nc.base.kind, "%s", kind);
    snprintf(c->nc.name, sizeof c->nc.name, "%s", name);
    c->nc.rdv = rdv;
    holmes_list_init(&c->nc.in_requests);
    c->net = n;
    c->pairs = calloc((size_t)size, sizeof *c->pairs);
    rc = c->pairs ? holmes_plugin_init(n->plugin, holmes_comm_net_id(name), &c->ctx) : -ENOMEM;
    if (rc == 0) {
        c->initialised = true;
        rc = comm_raise_ring(c);
    }
    if (rc) {
        net_destroy(&c->nc.base);
        return rc;
    }
    *out = &c->nc.base;
    return 0;
}
