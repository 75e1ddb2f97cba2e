/* The life of a connection outside its data path.
 *
 *     connecting end                                   accepting end
 *     dialing     HELLO/WELCOME with listener.c
 *     peer-info   AUTH: proof, control, lane blobs ->  (created here)
 *                                                  <-  INFO: control, lane blobs, final lane count
 *     lanes       raise lanes                          lanes       raise lanes
 *                 UP ->                            <-  UP
 *     peer-up                                          peer-up
 *     ready                                            ready
 *
 * Afterwards the socket stays: its end of file is the peer's death, its keepalive the heartbeat.
 */
#include "conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clock.h"
#include "env.h"
#include "log.h"

#define SLOW_NS       1000000ull  /* lanes and connection events are looked at this often */
#define OOB_NS        50000000ull /* the handshake socket this often: one system call */
#define GONE_DRAIN_MS 500         /* what a peer sent before it closed may land this long after */
#define LANE_GRACE_MS 20          /* a lane ended: the handshake socket has this long to say why */

static const char wire_reason[] = "the only wire of this build";

static const char *const state_names[] = {
    [CONN_DIALING] = "dialing", [CONN_PEER_INFO] = "peer-info", [CONN_LANES] = "lanes",
    [CONN_PEER_UP] = "peer-up", [CONN_READY] = "ready",
};

static void conn_enter(struct holmes_conn *c, enum conn_state next)
{
    holmes_trace(NET, "conn %llu %s -> %s", (unsigned long long)c->id, state_names[c->state],
                 state_names[next]);
    c->state = next;
}

/* ---- local side: device, control memory, lanes ---- */

static int lanes_wanted(const struct device *d)
{
    int64_t lanes = holmes_env_int(HOLMES_ENV_LANES);

    if (lanes > 0)
        return (int)lanes;
    /* One stream fills up to about 10 Gbit/s on one core; more than four need more cores than a
     * proxy thread has. */
    return d->nic.speed_mbps > 100000 ? 4 : d->nic.speed_mbps > 25000 ? 2 : 1;
}

static int control_open(struct holmes_conn *c)
{
    size_t len = c->sending ? sizeof(struct proto_send_control) : sizeof(struct proto_recv_control);
    int rc;

    if (posix_memalign(&c->control, 4096, len) != 0) {
        c->control = NULL;
        return -ENOMEM;
    }
    memset(c->control, 0, len);
    rc = c->ops->mr_reg(c->dev->wn, c->control, len, &c->control_mr);
    if (rc != 0) {
        free(c->control);
        c->control = NULL;
    }
    return rc;
}

static void lanes_close(struct holmes_conn *c)
{
    for (int i = 0; i < HOLMES_MAX_LANES; i++) {
        if (c->lanes[i])
            c->ops->lane_close(c->lanes[i]);
        c->lanes[i] = NULL;
    }
}

/* Opens everything local and describes it in `info`. */
static int local_open(struct holmes_conn *c, int nlanes, struct proto_info *info)
{
    int rc = device_open(c->dev);

    if (rc != 0)
        return rc;
    c->ops = c->dev->ops;
    rc = c->ops->cq_open(c->dev->wn, &c->cq);
    if (rc == 0)
        rc = control_open(c);
    memset(info, 0, sizeof *info);
    for (int i = 0; rc == 0 && i < nlanes; i++) {
        size_t len = 0;

        rc = c->ops->lane_create(c->dev->wn, c->cq, c->sending ? WIRE_CONNECT : WIRE_ACCEPT, NULL,
                                 info->lanes[i].bytes, &len, &c->lanes[i]);
        info->lanes[i].len = (uint16_t)len;
        c->nlanes = i + 1;
    }
    if (rc != 0)
        return rc;
    info->control_addr = c->control_mr.base;
    info->control_key = c->control_mr.key;
    info->control_len =
        c->sending ? sizeof(struct proto_send_control) : sizeof(struct proto_recv_control);
    info->nlanes = (uint16_t)nlanes;
    info->max_group = HOLMES_MAX_GROUP;
    info->pid = (uint32_t)getpid();
    snprintf(info->host, sizeof info->host, "%s", c->host);
    snprintf(info->nic, sizeof info->nic, "%s", c->dev->nic.name);
    snprintf(info->wire, sizeof info->wire, "%s", c->ops->name);
    return 0;
}

static void note_addrs(struct holmes_conn *c)
{
    struct holmes_addr a;
    char text[56];

    oob_local_addr(&c->oob, &a);
    snprintf(c->local_addr, sizeof c->local_addr, "%s", oob_addr_text(&a.sa, text, sizeof text));
    oob_peer_addr(&c->oob, &a);
    snprintf(c->peer_addr, sizeof c->peer_addr, "%s", oob_addr_text(&a.sa, text, sizeof text));
}

static int peer_info_take(struct holmes_conn *c, const struct proto_info *info)
{
    size_t need =
        c->sending ? sizeof(struct proto_recv_control) : sizeof(struct proto_send_control);

    if (info->control_len < need) {
        holmes_warn(NET, "conn %llu: %s offers %u bytes of control memory, %zu are needed",
                    (unsigned long long)c->id, c->peer_addr, info->control_len, need);
        return -EPROTO;
    }
    if (strcmp(info->wire, c->ops->name) != 0) {
        holmes_warn(NET, "conn %llu: %s (%s) speaks wire \"%s\", not \"%s\"",
                    (unsigned long long)c->id, c->peer_addr, info->host, info->wire, c->ops->name);
        return -EPROTO;
    }
    c->peer = *info;
    return 0;
}

/* ---- making ---- */

static struct holmes_conn *conn_alloc(struct device *dev, const void *owner, bool sending)
{
    struct holmes_conn *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    holmes_list_init(&c->link);
    pthread_mutex_init(&c->lock, NULL);
    c->t = dev->t;
    c->owner = owner;
    c->id = atomic_fetch_add(&dev->t->next_id, 1);
    c->sending = sending;
    c->dev = dev;
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
    pthread_mutex_unlock(&c->t->lock);
}

int conn_create_sender(struct device *dev, const void *owner, const struct proto_handle *handle,
                       struct holmes_conn **out)
{
    struct holmes_conn *c = conn_alloc(dev, owner, true);
    int rc;

    if (!c)
        return -ENOMEM;
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
    struct holmes_addr local;
    struct device *used;
    struct proto_info info;
    int rc, nlanes;

    if (!c)
        return -ENOMEM;
    oob_move(&c->oob, &a->oob);
    note_addrs(c);
    /* The peer may have reached us over another NIC than the one it was told of. */
    oob_local_addr(&c->oob, &local);
    used = device_by_addr(c->t, &local);
    if (used)
        c->dev = used;
    nlanes = lanes_wanted(c->dev);
    if (nlanes > a->info.nlanes)
        nlanes = a->info.nlanes;
    conn_enter(c, CONN_LANES);
    rc = local_open(c, nlanes, &info);
    if (rc == 0)
        rc = peer_info_take(c, &a->info);
    if (rc == 0)
        rc = oob_send(&c->oob, PROTO_INFO, &info);
    if (rc != 0) {
        conn_fail(c, rc);
        conn_destroy(c);
        return rc;
    }
    conn_link(c);
    *out = c;
    return 0;
}

/* ---- steps: each does one thing, leaves through conn_enter, 0 means it advanced ---- */

static int step_dial(struct holmes_conn *c)
{
    struct dial_result result;
    struct proto_info info;
    int rc = dialer_progress(c->dialer, &result);

    if (rc != 0)
        return rc;
    dialer_destroy(c->dialer);
    c->dialer = NULL;
    oob_move(&c->oob, &result.oob);
    c->dev = result.dev;
    note_addrs(c);
    rc = local_open(c, lanes_wanted(c->dev), &info);
    if (rc == 0) {
        info.mac = result.mac;
        rc = oob_send(&c->oob, PROTO_AUTH, &info);
    }
    if (rc == 0)
        conn_enter(c, CONN_PEER_INFO);
    return rc;
}

/* What the peer's abort means here. A message that did not fit is both ends' error; whatever else
 * happened there, from our side the peer is what failed. */
static int abort_error(const struct holmes_conn *c, char *why, size_t why_len)
{
    struct proto_abort frame;

    memcpy(&frame, c->oob.in_payload, sizeof frame);
    snprintf(why, why_len, "it failed: %s",
             frame.error > 0 && frame.error < 4096 ? holmes_strerror(-frame.error)
                                                   : "with no known error");
    return frame.error == EMSGSIZE ? -EMSGSIZE : -ECONNABORTED;
}

/* The next frame must be `type`; the peer may abort instead. */
static int expect_frame(struct holmes_conn *c, enum proto_type type)
{
    char why[160] = "";
    int rc = oob_flush(&c->oob);

    if (rc == 0 || rc == -EAGAIN)
        rc = oob_recv(&c->oob, why, sizeof why);
    if (rc == 0 && c->oob.in_frame.type == PROTO_ABORT) {
        rc = abort_error(c, why, sizeof why);
    } else if (rc == 0 && c->oob.in_frame.type != type) {
        snprintf(why, sizeof why, "sent frame type %u instead of %d", c->oob.in_frame.type, type);
        rc = -EPROTO;
    }
    if (rc != 0 && rc != -EAGAIN)
        holmes_warn(NET, "conn %llu: peer %s: %s", (unsigned long long)c->id, c->peer_addr,
                    why[0] ? why : holmes_strerror(rc));
    return rc;
}

static int step_peer_info(struct holmes_conn *c)
{
    struct proto_info info;
    char why[160];
    int rc = expect_frame(c, PROTO_INFO);

    if (rc != 0)
        return rc;
    memcpy(&info, c->oob.in_payload, sizeof info);
    rc = proto_info_check(&info, why, sizeof why);
    if (rc == 0 && info.nlanes > c->nlanes) {
        snprintf(why, sizeof why, "answers %u lanes to an offer of %d", info.nlanes, c->nlanes);
        rc = -EPROTO;
    }
    if (rc != 0) {
        holmes_warn(NET, "conn %llu: peer %s %s", (unsigned long long)c->id, c->peer_addr, why);
        return rc;
    }
    for (int i = info.nlanes; i < c->nlanes; i++) {
        c->ops->lane_close(c->lanes[i]);
        c->lanes[i] = NULL;
    }
    c->nlanes = info.nlanes;
    rc = peer_info_take(c, &info);
    if (rc == 0)
        conn_enter(c, CONN_LANES);
    return rc;
}

static int step_lanes(struct holmes_conn *c)
{
    struct holmes_addr via;
    int rc = 0;

    if (c->sending && !c->lanes_connected)
        oob_peer_addr(&c->oob, &via);
    for (int i = 0; rc == 0 && !c->lanes_connected && i < c->nlanes; i++) {
        if (c->sending && c->ops->lane_via)
            c->ops->lane_via(c->lanes[i], &via);
        rc = c->ops->lane_connect(c->lanes[i], c->peer.lanes[i].bytes, c->peer.lanes[i].len);
    }
    if (rc != 0)
        return rc;
    c->lanes_connected = true;
    c->ops->nic_progress(c->dev->wn);
    rc = request_poll(c);
    for (int i = 0; rc == 0 && i < c->nlanes; i++)
        rc = c->ops->lane_poll(c->lanes[i]);
    if (rc == -EAGAIN && !c->peer_up) {
        int heard = expect_frame(c, PROTO_UP); /* it may be faster, or have failed */

        c->peer_up = heard == 0;
        return heard == 0 ? -EAGAIN : heard;
    }
    if (rc == 0)
        rc = oob_send(&c->oob, PROTO_UP, NULL);
    if (rc == 0)
        conn_enter(c, CONN_PEER_UP);
    return rc;
}

static int step_peer_up(struct holmes_conn *c)
{
    int rc = c->peer_up ? 0 : expect_frame(c, PROTO_UP);

    if (rc == -EAGAIN) {
        int lane = request_poll(c); /* tcp lanes finish rising only while somebody reads */

        return lane != 0 ? lane : -EAGAIN;
    }
    if (rc != 0)
        return rc;
    conn_enter(c, CONN_READY);
    holmes_info(NET, "conn %llu %s:%s %s %s:%s %s over %s (%s, peer %s), %d lane%s: %s",
                (unsigned long long)c->id, c->host, c->dev->nic.name, c->sending ? "->" : "<-",
                c->peer.host, c->peer.nic, c->ops->name, c->dev->nic.ifname, c->local_addr,
                c->peer_addr, c->nlanes, c->nlanes == 1 ? "" : "s", wire_reason);
    return 0;
}

static int (*const steps[])(struct holmes_conn *) = {
    [CONN_DIALING] = step_dial,
    [CONN_PEER_INFO] = step_peer_info,
    [CONN_LANES] = step_lanes,
    [CONN_PEER_UP] = step_peer_up,
};

int conn_progress(struct holmes_conn *c)
{
    int rc;

    pthread_mutex_lock(&c->lock);
    rc = c->error;
    while (rc == 0 && c->state != CONN_READY)
        rc = steps[c->state](c);
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
                    c->peer.host);
    else
        holmes_warn(NET, "conn %llu %s %s (%s) failed in state %s with %d requests outstanding: %s",
                    (unsigned long long)c->id, c->sending ? "to" : "from",
                    c->peer_addr[0] ? c->peer_addr : "(not connected)", c->peer.host,
                    state_names[c->state], c->q.outstanding, holmes_strerror(error));
    /* First the reason, then the lanes, so that the peer learns them in this order. */
    if (c->oob.fd >= 0)
        oob_send(&c->oob, PROTO_ABORT, &frame);
    lanes_close(c);
}

void conn_destroy(struct holmes_conn *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->t->lock);
    holmes_list_remove(&c->link);
    pthread_mutex_unlock(&c->t->lock);

    pthread_mutex_lock(&c->lock);
    if (c->oob.fd >= 0 && c->error == 0)
        oob_send(&c->oob, PROTO_BYE, NULL);
    dialer_destroy(c->dialer);
    lanes_close(c);
    if (c->control) {
        c->ops->mr_dereg(c->dev->wn, &c->control_mr);
        free(c->control);
    }
    if (c->cq)
        c->ops->cq_close(c->cq);
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

static void watch_oob(struct holmes_conn *c)
{
    char why[160];
    int rc = c->oob_ended ? -EAGAIN : oob_recv(&c->oob, why, sizeof why);

    if (rc == -EAGAIN)
        return;
    c->oob_ended = true;
    if (rc == 0 && c->oob.in_frame.type == PROTO_BYE) {
        peer_gone(c, 0, GONE_DRAIN_MS);
    } else if (rc == 0 && c->oob.in_frame.type == PROTO_ABORT) {
        peer_gone(c, abort_error(c, why, sizeof why), 0);
        c->gone_deadline_ns = 1; /* nothing more comes */
        holmes_warn(NET, "conn %llu: peer %s (%s): %s", (unsigned long long)c->id, c->peer_addr,
                    c->peer.host, why);
    } else if (rc == 0) {
        peer_gone(c, -EPROTO, 0);
    } else {
        /* After a time-out of the peer's kernel nothing is on its way. */
        peer_gone(c, rc, rc == -ETIMEDOUT ? 0 : GONE_DRAIN_MS);
    }
}

static void watch_stall(struct holmes_conn *c, uint64_t now)
{
    uint64_t after = c->t->warn_stall_ns;
    char what[160];

    if (after == 0 || c->q.outstanding == 0 || now - c->q.moved_ns < after ||
        c->q.stall_warned_ns >= c->q.moved_ns)
        return;
    if (!request_describe_oldest(c, now, what, sizeof what))
        return;
    c->q.stall_warned_ns = now;
    holmes_warn(NET, "conn %llu: nothing moved for %llu s on %s with %s (%s): %s",
                (unsigned long long)c->id, (unsigned long long)((now - c->q.moved_ns) / 1000000000),
                c->ops->name, c->peer_addr, c->peer.host, what);
}

static int first_lane_error(const struct holmes_conn *c)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < c->nlanes; i++)
        rc = c->ops->lane_poll(c->lanes[i]);
    return rc == -EAGAIN ? 0 : rc;
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

int conn_watch(struct holmes_conn *c)
{
    uint64_t now = holmes_now_ns();
    int lane_error, rc = 0;

    if (c->error != 0 || now < c->next_slow_ns)
        return c->error;
    c->next_slow_ns = now + SLOW_NS;
    device_progress(c->dev, now, SLOW_NS / 2);
    lane_error = first_lane_error(c);
    if (lane_error != 0 && c->gone_deadline_ns == 0)
        peer_gone(c, lane_error, LANE_GRACE_MS);
    if (c->gone_deadline_ns != 0 || now >= c->next_oob_ns) {
        c->next_oob_ns = now + OOB_NS;
        watch_oob(c);
    }
    watch_stall(c, now);
    if (c->gone_deadline_ns == 0)
        return 0;
    rc = request_poll(c); /* what the lanes delivered before they ended counts */
    if (rc != 0)
        rc = conn_wire_error(c, rc);
    if (rc == 0 && (now >= c->gone_deadline_ns || (lane_error != 0 && c->oob_ended)))
        rc = c->peer_error != 0 ? c->peer_error : -ECONNRESET;
    if (rc != 0)
        conn_fail(c, rc);
    return c->error;
}

void conn_snapshot(const struct holmes_conn *c, struct holmes_conn_stats *out)
{
    *out = (struct holmes_conn_stats){.id = c->id,
                                      .sending = c->sending,
                                      .lanes = c->nlanes,
                                      .messages = c->q.messages,
                                      .bytes = c->q.bytes};
    snprintf(out->local, sizeof out->local, "%.15s %.47s", c->dev->nic.name, c->local_addr);
    snprintf(out->peer, sizeof out->peer, "%.63s", c->peer_addr);
    snprintf(out->wire, sizeof out->wire, "%.15s", c->ops ? c->ops->name : "");
    snprintf(out->reason, sizeof out->reason, "%s", wire_reason);
}
