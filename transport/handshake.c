#include "handshake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "choose.h"
#include "clock.h"
#include "env.h"
#include "log.h"
#include "path.h"
#include "probe.h"

#define PROBE_ROUNDS    2 /* for one pair of ports */
#define UP_NAME         "word that its lanes are up"
#define PROBE_SMALL_MTU 1024 /* what every Ethernet carries */

/* Own RDMA ports, as offered. */
struct own_ports {
    int n;
    int members[HOLMES_MAX_RAILS]; /* place of each port in the wanted device */
    struct proto_port ports[HOLMES_MAX_RAILS];
    char why_none[96];
};

struct handshake {
    struct proto_offer offer; /* the connecting end's */
    struct own_ports own;
    struct probe *probe;

    /* connecting end */
    int nprobes; /* asked for by the peer */

    /* accepting end */
    int ntries, tried; /* pairs of ports */
    struct choose_ports tries[HOLMES_MAX_RAILS];
    bool trying; /* `pair` and `rail` are those of the pair being tried */
    struct choose_pair pair;
    struct proto_rail rail;
    int nrails; /* of those tried, the shared ones */
    struct proto_rail rails[HOLMES_MAX_RAILS];
    struct proto_probe sent; /* the probe under way */
    bool probe_answered;
    int answer_error; /* what the peer's answer makes of the probe */
    uint64_t round_deadline_ns;
    char reason[CHOOSE_REASON_MAX];
};

int handshake_create(struct holmes_conn *c, const struct proto_offer *offer)
{
    c->handshake = calloc(1, sizeof *c->handshake);
    if (!c->handshake)
        return -ENOMEM;
    if (offer)
        c->handshake->offer = *offer;
    return 0;
}

void handshake_destroy(struct holmes_conn *c)
{
    if (!c->handshake)
        return;
    probe_close(c->handshake->probe);
    if (!c->sending) {
        pthread_mutex_lock(&c->t->probes_lock);
        probe_cache_leave(&c->t->probes, c);
        pthread_mutex_unlock(&c->t->probes_lock);
    }
    free(c->handshake);
    c->handshake = NULL;
}

/* ---- own side ---- */

static int lanes_wanted(const struct device *d)
{
    int64_t lanes = holmes_env_int(HOLMES_ENV_LANES);

    if (lanes > 0)
        return (int)lanes;
    /* One stream fills up to about 10 Gbit/s on one core; more than four need more cores than a
     * proxy thread has. */
    return d->nic.speed_mbps > 100000 ? 4 : d->nic.speed_mbps > 25000 ? 2 : 1;
}

/* Each NIC of a bundle has its own. */
static int bundle_lanes_wanted(struct device *const *devs, int n)
{
    int lanes = 0;

    for (int i = 0; i < n; i++)
        lanes += lanes_wanted(devs[i]);
    return lanes < HOLMES_MAX_LANES ? lanes : HOLMES_MAX_LANES;
}

/* The fewer of both ends; of bundles the more, so that each NIC of either has one. */
static int tcp_lanes(struct device *const *devs, int n, const struct proto_offer *o)
{
    int lanes = bundle_lanes_wanted(devs, n);

    if (n > 1 || o->tcp_nics > 1)
        return lanes > o->tcp_lanes ? lanes : o->tcp_lanes;
    return lanes < o->tcp_lanes ? lanes : o->tcp_lanes;
}

static int qps_wanted(void)
{
    int64_t qps = holmes_env_int(HOLMES_ENV_NCCL_IB_QPS_PER_CONNECTION);

    return qps > HOLMES_MAX_LANES ? HOLMES_MAX_LANES : qps < 1 ? 1 : (int)qps;
}

static enum proto_policy own_policy(void)
{
    const char *wire = holmes_env_string(HOLMES_ENV_WIRE);

    if (strcmp(wire, "verbs") == 0)
        return PROTO_POLICY_VERBS;
    return strcmp(wire, "tcp") == 0 ? PROTO_POLICY_TCP : PROTO_POLICY_AUTO;
}

static void describe_port(const struct device *d, struct proto_port *out)
{
    const struct holmes_rdma *r = &d->nic.rdma;

    memset(out, 0, sizeof *out);
    proto_text(out->name, sizeof out->name, d->nic.name);
    proto_text(out->fabric, sizeof out->fabric, r->fabric);
    out->guid = r->guid;
    out->lid = r->lid;
    out->mtu = d->limits.mtu != 0 ? d->limits.mtu : r->mtu;
    out->link_layer = r->link_layer;
    out->port = r->port;
    out->ngids = (uint8_t)r->ngids;
    for (int i = 0; i < r->ngids; i++) {
        memcpy(out->gids[i].bytes, r->gids[i].bytes, sizeof out->gids[i].bytes);
        out->gids[i].index = r->gids[i].index;
        out->gids[i].type = r->gids[i].type;
    }
}

/* The ports of the wanted NIC that can be used now. */
static void find_own_ports(const struct holmes_conn *c, struct own_ports *own)
{
    struct device *d = c->wanted;
    int rc;

    memset(own, 0, sizeof *own);
    if (!device_is_rdma(d)) {
        snprintf(own->why_none, sizeof own->why_none, "%.31s has no RDMA port (%.31s)", c->host,
                 d->nic.name);
        return;
    }
    if (!c->t->rdma) {
        snprintf(own->why_none, sizeof own->why_none, "%.31s: %.60s", c->host, c->t->no_rdma);
        return;
    }
    rc = device_open(d);
    if (rc != 0) {
        snprintf(own->why_none, sizeof own->why_none, "%.31s:%.24s: %.32s", c->host, d->nic.name,
                 holmes_strerror(rc));
        return;
    }
    for (int i = 0; i < d->nmembers; i++) {
        const struct device *port = d->members[i];

        if (!device_has_port(d, i))
            continue;
        rc = port->ops->nic_status ? port->ops->nic_status(port->wn) : 0;
        if (rc != 0) {
            snprintf(own->why_none, sizeof own->why_none, "%.31s:%.24s: %s", c->host,
                     port->nic.name, rc == -ENETDOWN ? "link down" : "device lost");
            continue;
        }
        describe_port(d->members[i], &own->ports[own->n]);
        own->members[own->n++] = i;
    }
}

static struct device *tcp_device(const struct holmes_conn *c)
{
    struct holmes_addr local;

    oob_local_addr(&c->oob, &local);
    return device_for_tcp(c->t, &local);
}

static void no_tcp(const struct holmes_conn *c, const char *why_tcp)
{
    holmes_warn(NET, "conn %llu: %s, and there is no Ethernet NIC for tcp",
                (unsigned long long)c->id, why_tcp);
}

static int make_offer(struct holmes_conn *c, uint64_t mac, struct proto_offer *o)
{
    struct own_ports *own = &c->handshake->own;
    struct device *tcp = tcp_device(c), *devs[HOLMES_BUNDLE_MAX];
    int n;

    find_own_ports(c, own);
    memset(o, 0, sizeof *o);
    o->mac = mac;
    o->pid = (uint32_t)getpid();
    n = tcp ? device_bundle(tcp, c->wanted, devs) : 0;
    o->tcp_nics = (uint8_t)n;
    o->tcp_lanes = (uint16_t)(n > 0 ? bundle_lanes_wanted(devs, n) : lanes_wanted(c->wanted));
    o->qps = (uint8_t)qps_wanted();
    o->policy = (uint8_t)own_policy();
    o->nports = (uint8_t)own->n;
    memcpy(o->ports, own->ports, sizeof o->ports);
    proto_text(o->host, sizeof o->host, c->host);
    proto_text(o->nic, sizeof o->nic, c->wanted->nic.name);
    proto_text(o->no_rdma, sizeof o->no_rdma, own->why_none);
    return 0;
}

/* ---- frames ---- */

int handshake_abort_error(const struct holmes_conn *c, char *why, size_t why_len)
{
    struct proto_abort frame;

    memcpy(&frame, c->oob.in_payload, sizeof frame);
    snprintf(why, why_len, "it failed: %s",
             frame.error > 0 && frame.error < 4096 ? holmes_strerror(-frame.error)
                                                   : "with no known error");
    /* A message that did not fit, and settings that contradict, are both ends' error; whatever else
     * happened there, from our side the peer is what failed. */
    if (frame.error == EMSGSIZE || frame.error == EPROTONOSUPPORT)
        return -frame.error;
    return -ECONNABORTED;
}

/* The next frame; the peer may abort instead. The type is checked by the caller. */
static int next_frame(struct holmes_conn *c)
{
    char why[160] = "";
    int sent = oob_flush(&c->oob), rc = oob_recv(&c->oob, why, sizeof why);

    /* What it said before it went comes first. */
    if (rc == -EAGAIN && sent != 0)
        rc = sent;
    if (rc == 0 && c->oob.in_frame.type == PROTO_ABORT)
        rc = handshake_abort_error(c, why, sizeof why);
    if (rc == 0 && c->oob.in_frame.type == PROTO_BYE) {
        snprintf(why, sizeof why, "it closed the connection before that was raised");
        rc = -ECONNRESET;
    }
    if (rc != 0 && rc != -EAGAIN)
        holmes_warn(NET, "conn %llu: peer %s: %s", (unsigned long long)c->id, c->peer_addr,
                    why[0] ? why : holmes_strerror(rc));
    return rc;
}

static int wrong_frame(const struct holmes_conn *c, const char *wanted)
{
    holmes_warn(NET, "conn %llu: peer %s sent frame type %u instead of %s",
                (unsigned long long)c->id, c->peer_addr, c->oob.in_frame.type, wanted);
    return -EPROTO;
}

static int expect_frame(struct holmes_conn *c, enum proto_type type, const char *name)
{
    int rc = next_frame(c);

    return rc == 0 && c->oob.in_frame.type != type ? wrong_frame(c, name) : rc;
}

/* It is our turn: the peer can only fail. -EAGAIN as long as it does not. */
static int expect_nothing(struct holmes_conn *c)
{
    int rc = next_frame(c);

    return rc == 0 ? wrong_frame(c, "waiting for its turn") : rc;
}

/* A peer that is gone is no error here: it may have said why, and the next read tells. */
static int say(struct holmes_conn *c, enum proto_type type, const void *payload)
{
    int rc = oob_send(&c->oob, type, payload);

    return rc == -ECONNRESET ? 0 : rc;
}

static int refuse(const struct holmes_conn *c, int rc, const char *why)
{
    holmes_warn(NET, "conn %llu: peer %s %s", (unsigned long long)c->id, c->peer_addr, why);
    return rc;
}

/* ---- connecting end ---- */

static int step_dial(struct holmes_conn *c)
{
    struct dial_result result;
    int rc = dialer_progress(c->dialer, &result);

    if (rc != 0)
        return rc;
    dialer_destroy(c->dialer);
    c->dialer = NULL;
    oob_move(&c->oob, &result.oob);
    conn_note_addrs(c);
    rc = make_offer(c, result.mac, &c->handshake->offer);
    if (rc == 0)
        rc = say(c, PROTO_AUTH, &c->handshake->offer);
    if (rc == 0)
        conn_enter(c, CONN_VERDICT);
    return rc;
}

static void cannot_probe(const struct holmes_conn *c, const struct device *port, int rc)
{
    holmes_warn(NET, "conn %llu: nic %s cannot probe: %s", (unsigned long long)c->id,
                port->nic.name, holmes_strerror(rc));
}

/* Raises our half of the probe that the accepting end asks for. What fails here is an answer too:
 * a frame without a lane. */
static int answer_probe(struct holmes_conn *c)
{
    struct handshake *hs = c->handshake;
    struct proto_probe asked, reply;
    struct device *port;
    char why[160];
    int rc;

    memcpy(&asked, c->oob.in_payload, sizeof asked);
    rc = proto_probe_check(&asked, &hs->offer, why, sizeof why);
    if (rc == 0 && hs->nprobes++ == PROBE_ROUNDS * HOLMES_MAX_RAILS) {
        snprintf(why, sizeof why, "asks for more than %d probes", PROBE_ROUNDS * HOLMES_MAX_RAILS);
        rc = -EPROTO;
    }
    if (rc != 0)
        return refuse(c, rc, why);
    probe_close(hs->probe);
    hs->probe = NULL;
    port = c->wanted->members[hs->own.members[asked.rail.dial_port]];
    reply = asked;
    reply.lane.len = 0;
    rc = probe_open(port, false, &reply, &hs->probe);
    if (rc == 0)
        rc = probe_connect(hs->probe, &asked);
    if (rc != 0) {
        reply.lane.len = 0;
        cannot_probe(c, port, rc);
    }
    return say(c, PROTO_PROBE, &reply);
}

static int dialing_tcp(const struct holmes_conn *c, const struct proto_verdict *v,
                       struct path_plan *plan)
{
    struct device *dev = tcp_device(c), *devs[HOLMES_BUNDLE_MAX];

    if (!dev) {
        no_tcp(c, v->reason);
        return -ENODEV;
    }
    *plan = path_tcp(devs, device_bundle(dev, c->wanted, devs), v->info.nlanes);
    plan->nlanes = v->info.nlanes;
    return 0;
}

static int dialing_plan(const struct holmes_conn *c, const struct proto_verdict *v,
                        struct path_plan *plan)
{
    const struct own_ports *own = &c->handshake->own;

    if (!v->rdma)
        return dialing_tcp(c, v, plan);
    *plan = path_plain(c->wanted, v->info.nlanes);
    plan->nrails = v->nrails;
    for (int i = 0; i < v->nrails; i++) {
        plan->rails[i].member = own->members[v->rails[i].dial_port];
        plan->rails[i].params = (struct wire_lane_params){.gid_index = v->rails[i].dial_gid,
                                                          .mtu = v->rails[i].mtu,
                                                          .traffic_class = c->facts.traffic_class};
    }
    return 0;
}

/* Two wires over TCP are two settings, and both ends' error. */
static int refuse_wire(const struct holmes_conn *c, const struct proto_verdict *v)
{
    bool setting = !c->ops->rdma && strncmp(v->wire, "tcp", 3) == 0;
    char why[192];

    snprintf(why, sizeof why, "(%s) speaks wire \"%s\", not \"%s\"%s", v->host, v->wire,
             c->ops->name, setting ? ": HOLMES_TCP must be the same on all ranks" : "");
    return refuse(c, setting ? -EPROTONOSUPPORT : -EPROTO, why);
}

static int take_verdict(struct holmes_conn *c)
{
    struct handshake *hs = c->handshake;
    struct proto_verdict v;
    struct proto_info info;
    struct path_plan plan;
    char why[160] = "";
    int rc;

    memcpy(&v, c->oob.in_payload, sizeof v);
    rc = proto_verdict_check(&v, &hs->offer, why, sizeof why);
    if (rc != 0)
        return refuse(c, rc, why);
    probe_close(hs->probe);
    hs->probe = NULL;
    snprintf(c->peer_host, sizeof c->peer_host, "%s", v.host);
    snprintf(c->peer_nic, sizeof c->peer_nic, "%s", v.nic);
    snprintf(c->reason, sizeof c->reason, "%s", v.reason);
    rc = dialing_plan(c, &v, &plan);
    if (rc == 0)
        rc = path_open(c, &plan, &info);
    if (rc == 0 && strcmp(v.wire, c->ops->name) != 0)
        return refuse_wire(c, &v);
    if (rc == 0) {
        rc = path_take_peer(c, &v.info, why, sizeof why);
        if (rc != 0)
            return refuse(c, rc, why);
    }
    if (rc == 0)
        rc = say(c, PROTO_INFO, &info);
    if (rc == 0)
        conn_enter(c, CONN_LANES);
    return rc;
}

static int step_verdict(struct holmes_conn *c)
{
    int rc = next_frame(c);

    if (rc == 0 && c->oob.in_frame.type == PROTO_PROBE)
        return answer_probe(c);
    if (rc == 0)
        return c->oob.in_frame.type == PROTO_VERDICT ? take_verdict(c)
                                                     : wrong_frame(c, "a verdict");
    /* Whether our half of a probe fails is for the other end to see. */
    if (rc == -EAGAIN && c->handshake->probe)
        probe_progress(c->handshake->probe);
    return rc;
}

/* ---- accepting end: the choice ---- */

static void set_reason(struct handshake *hs, const char *reason)
{
    snprintf(hs->reason, sizeof hs->reason, "%s", reason);
}

static const struct proto_gid *gid_at(const struct proto_port *p, uint8_t index)
{
    for (int i = 0; i < p->ngids; i++) {
        if (p->gids[i].index == index)
            return &p->gids[i];
    }
    return &p->gids[0];
}

static struct probe_key probe_key(const struct proto_port *own, uint8_t own_gid,
                                  const struct proto_port *peer, uint8_t peer_gid)
{
    struct probe_key key;

    memset(&key, 0, sizeof key); /* compared as bytes */
    memcpy(key.own_gid, gid_at(own, own_gid)->bytes, sizeof key.own_gid);
    memcpy(key.peer_gid, gid_at(peer, peer_gid)->bytes, sizeof key.peer_gid);
    key.own_guid = own->guid;
    key.peer_guid = peer->guid;
    key.own_lid = own->lid;
    key.peer_lid = peer->lid;
    key.own_port = own->port;
    key.peer_port = peer->port;
    return key;
}

static enum probe_answer cache_look(struct holmes_conn *c, const struct probe_key *key,
                                    uint16_t *mtu)
{
    enum probe_answer answer;

    pthread_mutex_lock(&c->t->probes_lock);
    answer = probe_cache_look(&c->t->probes, key, c, holmes_now_ns(), mtu);
    pthread_mutex_unlock(&c->t->probes_lock);
    return answer;
}

static void cache_tell(struct holmes_conn *c, const struct probe_key *key, bool yes, uint16_t mtu)
{
    pthread_mutex_lock(&c->t->probes_lock);
    probe_cache_tell(&c->t->probes, key, yes, mtu, holmes_now_ns());
    pthread_mutex_unlock(&c->t->probes_lock);
}

static void cache_leave(struct holmes_conn *c)
{
    pthread_mutex_lock(&c->t->probes_lock);
    probe_cache_leave(&c->t->probes, c);
    pthread_mutex_unlock(&c->t->probes_lock);
}

static void probe_end(struct handshake *hs)
{
    probe_close(hs->probe);
    hs->probe = NULL;
}

static void found_path(struct handshake *hs, uint16_t mtu)
{
    char what[CHOOSE_REASON_MAX];

    probe_end(hs);
    snprintf(what, sizeof what, "%.90s", hs->pair.reason);
    hs->pair.answer = CHOOSE_SHARED;
    hs->pair.mtu = mtu;
    if (mtu != hs->rail.mtu)
        snprintf(hs->pair.reason, sizeof hs->pair.reason, "%.90s: probe passed, MTU %u only", what,
                 mtu);
    else
        snprintf(hs->pair.reason, sizeof hs->pair.reason, "%.90s: probe passed", what);
}

static void found_no_path(struct handshake *hs)
{
    char what[CHOOSE_REASON_MAX];

    probe_end(hs);
    snprintf(what, sizeof what, "%.90s", hs->pair.reason);
    hs->pair.answer = CHOOSE_APART;
    snprintf(hs->pair.reason, sizeof hs->pair.reason, "no RDMA path (%.90s)", what);
}

/* Raises our half and asks the peer for the other. -EAGAIN; 0 when that cannot be done here, which
 * says nothing about the path: the next connection may ask again, now. */
static int probe_round(struct holmes_conn *c, uint32_t round, uint16_t mtu)
{
    struct handshake *hs = c->handshake;
    struct device *port = c->wanted->members[hs->own.members[hs->rail.accept_port]];
    uint32_t len = 2u * (mtu != 0 ? mtu : 4096);
    int rc;

    probe_end(hs);
    hs->probe_answered = false;
    hs->sent = (struct proto_probe){.rail = hs->rail, .round = round};
    hs->sent.rail.mtu = mtu;
    hs->sent.len = len > PROTO_PROBE_MAX ? PROTO_PROBE_MAX : len;
    rc = probe_open(port, true, &hs->sent, &hs->probe);
    if (rc != 0) {
        cannot_probe(c, port, rc);
        cache_leave(c);
        found_no_path(hs);
        return 0;
    }
    rc = say(c, PROTO_PROBE, &hs->sent);
    return rc != 0 ? rc : -EAGAIN;
}

/* The round's time begins with the answer: a peer that is busy is not one out of reach. All pairs
 * of two fused NICs share HOLMES_PROBE_MS. */
static int take_probe_answer(struct holmes_conn *c)
{
    struct handshake *hs = c->handshake;
    uint64_t ms = (uint64_t)holmes_env_int(HOLMES_ENV_PROBE_MS);
    struct proto_probe reply;
    int rc = expect_frame(c, PROTO_PROBE, "an answer to the probe");

    if (rc != 0)
        return rc;
    memcpy(&reply, c->oob.in_payload, sizeof reply);
    if (reply.round != hs->sent.round || reply.lane.len > HOLMES_LANE_BLOB_MAX)
        return refuse(c, -EPROTO, "sent an answer that does not fit the probe");
    hs->probe_answered = true;
    hs->round_deadline_ns = holmes_deadline_ms(ms / (uint64_t)(PROBE_ROUNDS * hs->ntries) + 1);
    hs->answer_error = reply.lane.len == 0 ? -EOPNOTSUPP : probe_connect(hs->probe, &reply);
    return 0;
}

static int probe_under_way(struct holmes_conn *c, const struct probe_key *key)
{
    struct handshake *hs = c->handshake;
    uint16_t mtu = hs->sent.rail.mtu;
    int rc = hs->probe_answered ? expect_nothing(c) : take_probe_answer(c);

    if (rc != 0 && !(rc == -EAGAIN && hs->probe_answered))
        return rc;
    rc = hs->answer_error != 0 ? hs->answer_error : probe_progress(hs->probe);
    if (rc == -EAGAIN && !holmes_deadline_passed(hs->round_deadline_ns))
        return rc;
    if (rc != 0 && rc != -EOPNOTSUPP && hs->sent.round + 1 < PROBE_ROUNDS)
        return probe_round(c, hs->sent.round + 1,
                           mtu == 0 || mtu > PROBE_SMALL_MTU ? PROBE_SMALL_MTU : mtu);
    cache_tell(c, key, rc == 0, mtu);
    if (rc != 0) {
        found_no_path(hs);
        return 0;
    }
    if (mtu != hs->rail.mtu)
        holmes_warn(NET,
                    "conn %llu: only packets of MTU %u pass between %s and %s, not %u: MTU of a "
                    "switch on the way?",
                    (unsigned long long)c->id, mtu, hs->offer.host, c->host, hs->rail.mtu);
    found_path(hs, mtu);
    return 0;
}

/* Settles an unknown pair. 0 with the answer in hs->pair.answer, -EAGAIN, or an error of the
 * connection. */
static int settle(struct holmes_conn *c)
{
    struct handshake *hs = c->handshake;
    const struct proto_rail *rail = &hs->rail;
    struct probe_key key = probe_key(&hs->own.ports[rail->accept_port], rail->accept_gid,
                                     &hs->offer.ports[rail->dial_port], rail->dial_gid);
    uint16_t mtu = 0;

    if (hs->probe)
        return probe_under_way(c, &key);
    switch (cache_look(c, &key, &mtu)) {
    case PROBE_WAIT:
        return expect_nothing(c);
    case PROBE_ASK:
        return probe_round(c, 0, rail->mtu);
    case PROBE_YES:
        found_path(hs, mtu);
        return 0;
    case PROBE_NO:
        found_no_path(hs);
        return 0;
    }
    return -EINVAL;
}

static void begin_pair(struct handshake *hs, const struct choose_ports *ports)
{
    choose_pair(&hs->offer.ports[ports->dial], &hs->own.ports[ports->accept], &hs->pair);
    hs->rail = (struct proto_rail){.dial_port = ports->dial,
                                   .accept_port = ports->accept,
                                   .dial_gid = hs->pair.dial_gid,
                                   .accept_gid = hs->pair.accept_gid,
                                   .mtu = hs->pair.mtu};
    hs->trying = true;
}

/* One pair of ports; 0 when it is decided. */
static int try_pair(struct holmes_conn *c, const struct choose_ports *ports)
{
    struct handshake *hs = c->handshake;
    const struct choose_pair *pair = &hs->pair;
    int rc = 0;

    if (!hs->trying)
        begin_pair(hs, ports);
    if (pair->answer == CHOOSE_UNKNOWN)
        rc = settle(c);
    if (rc != 0)
        return rc;
    hs->trying = false;
    if (hs->nrails == 0)
        set_reason(hs, pair->reason);
    if (pair->answer != CHOOSE_SHARED)
        return 0;
    if (pair->link_local && !atomic_exchange(&c->wanted->link_local_warned, true))
        holmes_warn(NET, "conn %llu: %s: link-local GIDs reach no further than one switch",
                    (unsigned long long)c->id, pair->reason);
    hs->rail.mtu = pair->mtu;
    hs->rails[hs->nrails++] = hs->rail;
    return 0;
}

static int open_tcp(struct holmes_conn *c, struct proto_verdict *v)
{
    struct device *dev = tcp_device(c), *devs[HOLMES_BUNDLE_MAX];
    struct path_plan plan;
    int lanes, n;

    if (!dev) {
        no_tcp(c, c->handshake->reason);
        return -ENODEV;
    }
    n = device_bundle(dev, c->wanted, devs);
    lanes = tcp_lanes(devs, n, &c->handshake->offer);
    plan = path_tcp(devs, n, lanes);
    v->rdma = 0;
    v->nrails = 1;
    return path_open(c, &plan, &v->info);
}

static int open_rdma(struct holmes_conn *c, struct proto_verdict *v)
{
    struct handshake *hs = c->handshake;
    int qps = hs->offer.qps > qps_wanted() ? hs->offer.qps : qps_wanted();
    int lanes = qps * hs->nrails;
    struct path_plan plan =
        path_plain(c->wanted, lanes > HOLMES_MAX_LANES ? HOLMES_MAX_LANES : lanes);

    plan.nrails = hs->nrails;
    for (int i = 0; i < hs->nrails; i++) {
        plan.rails[i].member = hs->own.members[hs->rails[i].accept_port];
        plan.rails[i].params = (struct wire_lane_params){.gid_index = hs->rails[i].accept_gid,
                                                         .mtu = hs->rails[i].mtu,
                                                         .flush = device_gpu_memory(c->wanted) != 0,
                                                         .traffic_class = c->facts.traffic_class};
    }
    v->rdma = 1;
    v->nrails = (uint8_t)hs->nrails;
    memcpy(v->rails, hs->rails, sizeof v->rails);
    return path_open(c, &plan, &v->info);
}

/* Opens the chosen wire. Where RDMA fails only on this end, tcp still connects the two. */
static int open_chosen(struct holmes_conn *c, enum proto_policy policy, struct proto_verdict *v)
{
    struct handshake *hs = c->handshake;
    int rc;

    if (hs->nrails == 0)
        return open_tcp(c, v);
    rc = open_rdma(c, v);
    if (rc == 0 || policy == PROTO_POLICY_VERBS)
        return rc;
    path_close(c);
    holmes_warn(NET, "conn %llu: nic %s cannot raise RDMA, although %s: %s",
                (unsigned long long)c->id, c->wanted->nic.name, hs->reason, holmes_strerror(rc));
    snprintf(hs->reason, sizeof hs->reason, "%.31s:%.31s: %.40s", c->host, c->wanted->nic.name,
             holmes_strerror(rc));
    return open_tcp(c, v);
}

static int send_verdict(struct holmes_conn *c, enum proto_policy policy)
{
    struct handshake *hs = c->handshake;
    struct proto_verdict v = {.pid = (uint32_t)getpid()};
    int rc = open_chosen(c, policy, &v);

    if (rc != 0)
        return rc;
    proto_text(v.reason, sizeof v.reason, hs->reason);
    proto_text(v.wire, sizeof v.wire, c->ops->name);
    proto_text(v.host, sizeof v.host, c->host);
    proto_text(v.nic, sizeof v.nic, c->wanted->nic.name);
    memcpy(c->reason, v.reason, sizeof c->reason);
    rc = say(c, PROTO_VERDICT, &v);
    if (rc == 0)
        conn_enter(c, CONN_INFO);
    return rc;
}

static int choose_begin(struct holmes_conn *c, enum proto_policy policy)
{
    struct handshake *hs = c->handshake;

    find_own_ports(c, &hs->own);
    if (policy != PROTO_POLICY_TCP && hs->own.n == 0)
        set_reason(hs, hs->own.why_none);
    if (policy != PROTO_POLICY_TCP && hs->offer.nports == 0)
        set_reason(hs, hs->offer.no_rdma);
    hs->ntries =
        policy == PROTO_POLICY_TCP ? 0 : choose_rails(hs->offer.nports, hs->own.n, hs->tries);
    return 0;
}

static int step_choose(struct holmes_conn *c)
{
    struct handshake *hs = c->handshake;
    enum proto_policy policy;
    char why[CHOOSE_REASON_MAX];
    int rc = choose_policy(hs->offer.policy, hs->offer.host, own_policy(), c->host, &policy, why);

    if (rc != 0) {
        holmes_warn(NET, "conn %llu: %s: they contradict", (unsigned long long)c->id, why);
        return rc;
    }
    if (!hs->reason[0] && hs->ntries == 0) {
        set_reason(hs, why);
        choose_begin(c, policy);
    }
    while (rc == 0 && hs->tried < hs->ntries) {
        rc = try_pair(c, &hs->tries[hs->tried]);
        hs->tried += rc == 0;
    }
    if (rc != 0)
        return rc;
    if (hs->nrails == 0 && policy == PROTO_POLICY_VERBS) {
        holmes_warn(NET, "conn %llu: %s, but there is none to %s:%s: %s", (unsigned long long)c->id,
                    why, hs->offer.host, hs->offer.nic, hs->reason);
        return -EPROTONOSUPPORT;
    }
    return send_verdict(c, policy);
}

static int step_info(struct holmes_conn *c)
{
    struct proto_info info;
    char why[160];
    int rc = expect_frame(c, PROTO_INFO, "its lanes");

    if (rc != 0)
        return rc;
    memcpy(&info, c->oob.in_payload, sizeof info);
    rc = proto_info_check(&info, why, sizeof why);
    if (rc == 0)
        rc = path_take_peer(c, &info, why, sizeof why);
    if (rc != 0)
        return refuse(c, rc, why);
    conn_enter(c, CONN_LANES);
    return 0;
}

/* ---- both ---- */

static int step_lanes(struct holmes_conn *c)
{
    int rc = path_connect(c);

    if (rc != 0)
        return rc;
    for (int i = 0; i < c->nrails; i++)
        device_progress(c->rails[i].dev, holmes_now_ns(), 0);
    rc = request_poll(c);
    for (int i = 0; rc == 0 && i < c->nlanes; i++)
        rc = c->ops->lane_poll(c->lanes[i]);
    if (rc == -EAGAIN) { /* the peer's may be up before ours, or it may have failed */
        int heard = c->peer_up ? expect_nothing(c) : expect_frame(c, PROTO_UP, UP_NAME);

        c->peer_up = c->peer_up || heard == 0;
        return heard == 0 ? -EAGAIN : heard;
    }
    if (rc == 0)
        rc = say(c, PROTO_UP, NULL);
    if (rc == 0)
        conn_enter(c, CONN_PEER_UP);
    return rc;
}

static int step_peer_up(struct holmes_conn *c)
{
    int rc = c->peer_up ? 0 : expect_frame(c, PROTO_UP, UP_NAME);

    if (rc == -EAGAIN) {
        int lane = request_poll(c); /* tcp lanes finish rising only while somebody reads */

        return lane != 0 ? lane : -EAGAIN;
    }
    if (rc != 0)
        return rc;
    conn_enter(c, CONN_READY);
    c->nstreams = path_streams(c);
    c->q.eager_max = request_eager_max(c);
    holmes_info(NET, "conn %llu %s:%s %s %s:%s %s over %s (%s, peer %s), %d lane%s: %s",
                (unsigned long long)c->id, c->host, c->wanted->nic.name, c->sending ? "->" : "<-",
                c->peer_host, c->peer_nic, c->ops->name,
                c->dev == c->wanted ? c->dev->nic.name : c->dev->nic.ifname, c->local_addr,
                c->peer_addr, c->nstreams, c->nstreams == 1 ? "" : "s", c->reason);
    handshake_destroy(c);
    return 0;
}

static int (*const steps[])(struct holmes_conn *) = {
    [CONN_DIALING] = step_dial, [CONN_VERDICT] = step_verdict, [CONN_CHOOSE] = step_choose,
    [CONN_INFO] = step_info,    [CONN_LANES] = step_lanes,     [CONN_PEER_UP] = step_peer_up,
};

int handshake_step(struct holmes_conn *c)
{
    return steps[c->state](c);
}
