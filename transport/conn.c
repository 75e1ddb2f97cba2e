/* The life of a connection outside its data path; its way to raised lanes is in handshake.c. */
#include "conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clock.h"
#include "env.h"
#include "handshake.h"
#include "log.h"
#include "path.h"

#define SLOW_NS       1000000ull  /* lanes and connection events are looked at this often */
#define OOB_NS        50000000ull /* the handshake socket this often: one system call */
#define GONE_DRAIN_MS 500         /* what a peer sent before it closed may land this long after */
#define LANE_GRACE_MS 20          /* a lane ended: the handshake socket has this long to say why */

static const char *const state_names[] = {
    [CONN_DIALING] = "dialing", [CONN_VERDICT] = "verdict", [CONN_CHOOSE] = "choose",
    [CONN_INFO] = "info",       [CONN_LANES] = "lanes",     [CONN_PEER_UP] = "peer-up",
    [CONN_READY] = "ready",
};

void conn_enter(struct holmes_conn *c, enum conn_state next)
{
    holmes_trace(NET, "conn %llu %s -> %s", (unsigned long long)c->id, state_names[c->state],
                 state_names[next]);
    c->state = next;
}

void conn_note_addrs(struct holmes_conn *c)
{
    struct holmes_addr a;
    char text[56];

    oob_local_addr(&c->oob, &a);
    snprintf(c->local_addr, sizeof c->local_addr, "%s", oob_addr_text(&a.sa, text, sizeof text));
    oob_peer_addr(&c->oob, &a);
    snprintf(c->peer_addr, sizeof c->peer_addr, "%s", oob_addr_text(&a.sa, text, sizeof text));
}

/* ---- making ---- */

static struct holmes_conn *conn_alloc(struct device *dev, const void *owner, bool sending)
{
    struct holmes_conn *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    holmes_list_init(&c->link);
    holmes_list_init(&c->in_connecting);
    holmes_list_init(&c->held_link);
    pthread_mutex_init(&c->lock, NULL);
    c->t = dev->t;
    c->owner = owner;
    c->id = atomic_fetch_add(&dev->t->next_id, 1);
    c->sending = sending;
    c->wanted = dev;
    c->facts = owner_facts(dev->t, owner);
    c->oob.fd = -1;
    gethostname(c->host, sizeof c->host - 1);
    c->deadline_ns =
        holmes_deadline_ms((uint64_t)holmes_env_int(HOLMES_ENV_CONNECT_TIMEOUT) * 1000);
    if (request_queue_init(c) != 0) {
        pthread_mutex_destroy(&c->lock);
        free(c);
        return NULL;
    }
    return c;
}

static void conn_link(struct holmes_conn *c)
{
    pthread_mutex_lock(&c->t->lock);
    holmes_list_append(&c->t->conns, &c->link);
    if (c->sending)
        holmes_list_append(&c->t->connecting[c->id % CONNECTING_BUCKETS], &c->in_connecting);
    pthread_mutex_unlock(&c->t->lock);
}

int conn_create_sender(struct device *dev, const void *owner, const struct proto_handle *handle,
                       struct holmes_conn **out)
{
    struct holmes_conn *c = conn_alloc(dev, owner, true);
    int rc;

    if (!c)
        return -ENOMEM;
    c->listen_id = proto_listen_id(handle->token);
    rc = handshake_create(c, NULL);
    if (rc == 0)
        rc = dialer_create(dev, handle, &c->dialer);
    if (rc != 0) {
        conn_destroy(c);
        return rc;
    }
    conn_link(c);
    *out = c;
    return 0;
}

int conn_create_receiver(struct device *dev, const void *owner, struct arrival *a,
                         struct holmes_conn **out)
{
    struct holmes_conn *c = conn_alloc(dev, owner, false);
    int rc;

    if (!c)
        return -ENOMEM;
    rc = handshake_create(c, &a->offer);
    if (rc != 0) {
        conn_destroy(c);
        return rc;
    }
    oob_move(&c->oob, &a->oob);
    conn_note_addrs(c);
    snprintf(c->peer_host, sizeof c->peer_host, "%s", a->offer.host);
    snprintf(c->peer_nic, sizeof c->peer_nic, "%s", a->offer.nic);
    conn_enter(c, CONN_CHOOSE);
    conn_link(c);
    *out = c;
    return 0;
}

int conn_progress(struct holmes_conn *c)
{
    int rc;

    pthread_mutex_lock(&c->lock);
    rc = c->error;
    while (rc == 0 && c->state != CONN_READY)
        rc = handshake_step(c);
    if (rc == -EAGAIN && holmes_deadline_passed(c->deadline_ns)) {
        holmes_warn(
            NET, "conn %llu: peer %s did not get past \"%s\" within HOLMES_CONNECT_TIMEOUT=%lld s",
            (unsigned long long)c->id, c->peer_addr[0] ? c->peer_addr : "(no address)",
            state_names[c->state], (long long)holmes_env_int(HOLMES_ENV_CONNECT_TIMEOUT));
        rc = -ETIMEDOUT;
    }
    if (rc != 0 && rc != -EAGAIN)
        conn_fail(c, rc);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* ---- failing and ending ---- */

void conn_explain_descriptors(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        holmes_warn(NET, "out of descriptors: RLIMIT_NOFILE is %llu; raise it (ulimit -n)",
                    (unsigned long long)limit.rlim_cur);
}

/* A path that a probe found may be there no longer: the next connection asks again. */
static void doubt_paths(struct holmes_conn *c)
{
    for (int i = 0; i < c->nlanes; i++) {
        const struct holmes_nic *nic = &c->rails[i % c->nrails].dev->nic;
        int rc = c->lanes[i] && nic->rdma.port != 0 ? c->ops->lane_poll(c->lanes[i]) : 0;

        if (rc == 0 || rc == -EAGAIN)
            continue;
        pthread_mutex_lock(&c->t->probes_lock);
        probe_cache_forget(&c->t->probes, nic->rdma.guid, nic->rdma.port);
        pthread_mutex_unlock(&c->t->probes_lock);
    }
}

void conn_fail(struct holmes_conn *c, int error)
{
    struct proto_abort frame = {.error = -error};

    if (c->error != 0)
        return;
    c->error = error;
    if (error == -EMFILE)
        conn_explain_descriptors();
    /* A peer that closed in order while nothing was under way is no reason to warn. */
    if (c->gone_deadline_ns != 0 && c->peer_error == 0 && c->q.outstanding == 0)
        holmes_info(NET, "conn %llu: peer %s (%s) closed", (unsigned long long)c->id, c->peer_addr,
                    c->peer_host);
    else
        holmes_warn(NET, "conn %llu %s %s (%s) failed in state %s with %d requests outstanding: %s",
                    (unsigned long long)c->id, c->sending ? "to" : "from",
                    c->peer_addr[0] ? c->peer_addr : "(not connected)", c->peer_host,
                    state_names[c->state], c->q.outstanding, holmes_strerror(error));
    /* First the reason, then the lanes, so that the peer learns them in this order. */
    if (c->oob.fd >= 0)
        oob_send(&c->oob, PROTO_ABORT, &frame);
    handshake_destroy(c);
    doubt_paths(c);
    path_close_lanes(c, 0);
    stage_drain(c->stage);
}

/* Sends that were done arrive, though nobody looks after the lanes from here on. The peer hears of
 * the end after that. */
static void conn_linger(struct holmes_conn *c)
{
    if (c->error != 0 || !c->sending || c->state != CONN_READY || !c->ops->lane_linger)
        return;
    for (int i = 0; i < c->nlanes; i++)
        c->ops->lane_linger(c->lanes[i]);
}

void conn_destroy(struct holmes_conn *c)
{
    struct proto_bye bye;
    struct held *held;
    bool last;

    if (!c)
        return;
    held = &c->t->held;
    /* Before it leaves the list: of several that end at once, the last one must find nothing held.
     */
    held_remove(held, c);
    pthread_mutex_lock(&c->t->lock);
    holmes_list_remove(&c->link);
    holmes_list_remove(&c->in_connecting);
    last = holmes_list_empty(&c->t->conns);
    pthread_mutex_unlock(&c->t->lock);
    if (last)
        held_rest(held);

    pthread_mutex_lock(&c->lock);
    conn_linger(c);
    bye.completed = c->sending ? 0 : c->q.recv.completed;
    if (c->oob.fd >= 0 && c->error == 0)
        oob_send(&c->oob, PROTO_BYE, &bye);
    dialer_destroy(c->dialer);
    handshake_destroy(c);
    path_close_lanes(c, 0);
    stage_destroy(c->stage);
    path_close(c);
    oob_close(&c->oob);
    request_queue_fini(c);
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- watching ---- */

/* Starts the end: what the peer sent before may land until the deadline. A later, better reason
 * replaces the first. */
static void peer_gone(struct holmes_conn *c, int error, uint64_t drain_ms)
{
    c->peer_error = error;
    if (c->gone_deadline_ns == 0)
        c->gone_deadline_ns = holmes_deadline_ms(drain_ms);
}

/* A receiver says what it has: what it does not have now it never will. A sender's last bytes may
 * still be in flight. */
static void watch_bye(struct holmes_conn *c)
{
    struct proto_bye bye;

    memcpy(&bye, c->oob.in_payload, sizeof bye);
    if (c->sending && request_take_ack(c, bye.completed) != 0)
        peer_gone(c, -EPROTO, 0);
    else
        peer_gone(c, 0, c->sending ? 0 : GONE_DRAIN_MS);
}

static int first_lane_error(const struct holmes_conn *c)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < c->nlanes; i++)
        rc = c->ops->lane_poll(c->lanes[i]);
    return rc == -EAGAIN ? 0 : rc;
}

/* The network between the ends is gone where the handshake socket went, but a connection of several
 * streams, perhaps of other NICs, learns by those whether it ends. */
static bool lanes_outlive(const struct holmes_conn *c, int oob_error)
{
    switch (oob_error) {
    case -ETIMEDOUT:
    case -EHOSTUNREACH:
    case -EHOSTDOWN:
    case -ENETUNREACH:
    case -ENETDOWN:
        return c->ops->bundles && c->nstreams > 1 && first_lane_error(c) == 0;
    default:
        return false;
    }
}

static void watch_oob(struct holmes_conn *c)
{
    char why[160];
    int rc = c->oob_ended ? -EAGAIN : oob_recv(&c->oob, why, sizeof why);

    if (rc == -EAGAIN)
        return;
    c->oob_ended = true;
    if (rc == 0 && c->oob.in_frame.type == PROTO_BYE) {
        watch_bye(c);
    } else if (rc == 0 && c->oob.in_frame.type == PROTO_ABORT) {
        peer_gone(c, handshake_abort_error(c, why, sizeof why), 0);
        c->gone_deadline_ns = 1; /* nothing more comes */
        holmes_warn(NET, "conn %llu: peer %s (%s): %s", (unsigned long long)c->id, c->peer_addr,
                    c->peer_host, why);
    } else if (rc == 0 || rc == -EPROTO || rc == -EPROTONOSUPPORT) {
        if (rc == 0)
            snprintf(why, sizeof why, "sent frame type %u on a raised connection",
                     c->oob.in_frame.type);
        holmes_warn(NET, "conn %llu: peer %s (%s) %s", (unsigned long long)c->id, c->peer_addr,
                    c->peer_host, why);
        peer_gone(c, -EPROTO, 0);
    } else if (lanes_outlive(c, rc)) {
        holmes_warn(NET,
                    "conn %llu: the handshake socket to %s (%s) is lost (%s), its streams go on",
                    (unsigned long long)c->id, c->peer_addr, c->peer_host, holmes_strerror(rc));
    } else {
        /* After a time-out of the peer's kernel nothing is on its way. */
        peer_gone(c, rc, rc == -ETIMEDOUT ? 0 : GONE_DRAIN_MS);
    }
}

static void watch_stall(struct holmes_conn *c)
{
    uint64_t after = c->t->warn_stall_ns, now = holmes_now_ns(); /* what was just heard is past */
    char what[160];

    if (after == 0 || c->q.outstanding == 0 || now - c->q.moved_ns < after ||
        c->q.stall_warned_ns >= c->q.moved_ns)
        return;
    if (!request_describe_oldest(c, now, what, sizeof what))
        return;
    c->q.stall_warned_ns = now;
    holmes_warn(NET, "conn %llu: nothing moved for %llu s on %s with %s (%s): %s",
                (unsigned long long)c->id, (unsigned long long)((now - c->q.moved_ns) / 1000000000),
                c->ops->name, c->peer_addr, c->peer_host, what);
}

int conn_wire_error(struct holmes_conn *c, int error)
{
    switch (error) {
    case -ENOTCONN:
    case -EPIPE:
    case -ECONNRESET:
    case -ECONNABORTED:
        /* The lane says that the peer is gone; the handshake socket may still say why. */
        if (c->gone_deadline_ns == 0)
            peer_gone(c, -ECONNRESET, LANE_GRACE_MS);
        c->next_slow_ns = 0;
        return 0;
    default:
        conn_fail(c, error);
        return c->error;
    }
}

bool conn_settle(struct holmes_conn *c)
{
    bool sent = true;
    int rc = 0;

    if (c->error != 0 || c->state != CONN_READY)
        return true;
    rc = request_poll(c);
    if (rc == 0)
        rc = request_push(c, false, &sent);
    for (int i = 0; rc == 0 && sent && c->ops->lane_settled && i < c->nlanes; i++)
        sent = c->ops->lane_settled(c->lanes[i]);
    if (rc != 0)
        conn_wire_error(c, rc);
    return sent || rc != 0;
}

int conn_watch(struct holmes_conn *c)
{
    uint64_t now = c->now_ns = holmes_now_ns();
    int lane_error, rc = 0;

    if (c->error != 0 || now < c->next_slow_ns)
        return c->error;
    c->next_slow_ns = now + SLOW_NS;
    for (int i = 0; i < c->nrails; i++)
        device_progress(c->rails[i].dev, now, SLOW_NS / 2);
    lane_error = first_lane_error(c);
    if (lane_error != 0 && c->gone_deadline_ns == 0)
        peer_gone(c, lane_error, LANE_GRACE_MS);
    if (c->gone_deadline_ns != 0 || now >= c->next_oob_ns) {
        c->next_oob_ns = now + OOB_NS;
        watch_oob(c);
    }
    watch_stall(c);
    if (c->gone_deadline_ns == 0)
        return 0;
    rc = request_poll(c); /* what the lanes delivered before they ended counts */
    if (rc != 0)
        rc = conn_wire_error(c, rc);
    /* Small messages of a peer that closed in order may still wait for receives. */
    if (rc == 0 && c->peer_error == 0 && c->oob_ended && request_eager_is_enough(c))
        return 0;
    if (rc == 0 && (now >= c->gone_deadline_ns || (lane_error != 0 && c->oob_ended)))
        rc = c->peer_error != 0 ? c->peer_error : -ECONNRESET;
    if (rc != 0)
        conn_fail(c, rc);
    return c->error;
}

void conn_snapshot(const struct holmes_conn *c, struct holmes_conn_stats *out)
{
    *out = (struct holmes_conn_stats){.id = c->id,
                                      .communicator = c->facts.communicator,
                                      .sending = c->sending,
                                      .lanes = c->nstreams,
                                      .messages = c->q.messages,
                                      .bytes = c->q.bytes,
                                      .retries = c->q.retries,
                                      .staged_bytes = c->q.staged};
    snprintf(out->local, sizeof out->local, "%.15s %.47s", c->wanted->nic.name, c->local_addr);
    snprintf(out->peer, sizeof out->peer, "%.63s", c->peer_addr);
    snprintf(out->wire, sizeof out->wire, "%.15s", c->ops ? c->ops->name : "");
    snprintf(out->reason, sizeof out->reason, "%s", c->reason);
}
