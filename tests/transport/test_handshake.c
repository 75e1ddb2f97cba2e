/* A peer that knows the token and then does not keep to the handshake: frames out of turn, silence,
 * an end in every state, descriptions that do not fit. The other end is a script on a raw socket;
 * RDMA is fake_rdma.h. Every case ends in one error of this end, in bounded time, with nothing left
 * behind, and a true peer gets through afterwards. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/patience.h"
#include "clock.h"
#include "fake_peer.h"
#include "fake_rdma.h"
#include "link.h"
#include "self.h"
#include "test_nics.h"
#include "transport/conn.h"
#include "transport/tcp_peer.h"

/* The end under test. */
struct end {
    bool dials;
    struct holmes_transport *t;
    uint8_t handle[HOLMES_HANDLE_SIZE];
    struct holmes_listen *l; /* accepting */
    int listener;            /* the script's, where the end under test dials */
    int lanes;               /* where its lanes dial: nobody answers */
    struct holmes_conn *c;
    int rc;
};

static struct fake_rdma_plan plan;
static const char *doing = "";     /* for what a failed assertion says */
static struct holmes_nic ports[2]; /* of the end under test; two where a test fuses them */

static struct holmes_transport *transport_open(const struct holmes_nic *rdma, const char *ip)
{
    struct holmes_nic nics[2] = {*rdma, test_loopback_nic(ip)};
    struct holmes_transport *t;

    cr_assert_eq(holmes_transport_create(nics, 2, &t), 0);
    return t;
}

static void world_open(void)
{
    memset(&plan, 0, sizeof plan);
    fake_rdma_use(&plan);
    link_capture_log();
    ports[0] = fake_rdma_nic("mlx5_0", "127.0.0.2");
}

/* ---- driving ---- */

static void step(struct end *e)
{
    if (e->rc != -EAGAIN)
        return;
    e->rc = e->dials ? holmes_connect(e->t, e, 0, e->handle, &e->c) : holmes_accept(e->l, &e->c);
    cr_assert_neq(e->rc, 0, "raised with a script?");
}

/* Steps until the script's socket can be read, or the end under test has failed. */
static void step_until_readable(struct end *e, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    while (poll(&p, 1, 0) == 0) {
        cr_assert(!holmes_deadline_passed(deadline), "nothing was sent");
        step(e);
    }
}

static void read_frame(struct end *e, int fd, uint16_t type, void *payload, size_t len)
{
    step_until_readable(e, fd);
    fake_peer_expect(fd, type, payload, len);
}

/* NULL: a payload of zeros. */
static void send_frame(int fd, uint16_t type, const void *payload)
{
    static const uint8_t zeros[PROTO_PAYLOAD_MAX];
    size_t len = (size_t)proto_payload_size(type);

    fake_peer_frame(fd, PROTO_VERSION, type, (uint32_t)len, payload ? payload : zeros, len);
}

static int end_of(struct end *e)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    while (e->rc == -EAGAIN) {
        cr_assert(!holmes_deadline_passed(deadline), "it never failed: %s", doing);
        step(e);
    }
    cr_assert_null(e->c);
    return e->rc;
}

/* ---- the script's first words ---- */

static struct proto_offer offer_of(const struct holmes_nic *nic)
{
    struct proto_offer o = {.tcp_lanes = 1, .qps = 1, .host = "script", .no_rdma = "a script"};

    strcpy(o.nic, "mlx5_0");
    if (!nic)
        return o;
    o.nports = 1;
    snprintf(o.ports[0].name, sizeof o.ports[0].name, "%.31s", nic->name);
    o.ports[0].port = 1;
    o.ports[0].link_layer = nic->rdma.link_layer;
    o.ports[0].ngids = 1;
    o.ports[0].gids[0].index = nic->rdma.gids[0].index;
    o.ports[0].gids[0].type = nic->rdma.gids[0].type;
    memcpy(o.ports[0].gids[0].bytes, nic->rdma.gids[0].bytes, 16);
    return o;
}

/* Dials the end under test and proves itself. */
static int script_dials(struct end *e, struct proto_offer *offer)
{
    struct proto_handle h;
    struct proto_hello hello = {.nonce = {1, 2, 3}};
    struct proto_welcome welcome;
    int fd = fake_peer_dial(e->handle);

    e->rc = -EAGAIN;
    memcpy(&h, e->handle, sizeof h);
    hello.listen_id = proto_listen_id(h.token);
    send_frame(fd, PROTO_HELLO, &hello);
    read_frame(e, fd, PROTO_WELCOME, &welcome, sizeof welcome);
    offer->mac = proto_mac(h.token, 'C', hello.nonce, welcome.nonce);
    send_frame(fd, PROTO_AUTH, offer);
    return fd;
}

/* Lets the end under test dial a fresh handle, and proves itself. */
static int script_accepts(struct end *e, struct proto_offer *offer)
{
    struct sockaddr_in at = {0};
    socklen_t len = sizeof at;
    struct proto_handle h = {.token = "script's token"};
    struct proto_hello hello;
    struct proto_welcome welcome = {.nonce = {9}};
    int fd;

    cr_assert_eq(getsockname(e->listener, (struct sockaddr *)&at, &len), 0);
    proto_addr_encode((struct sockaddr *)&at, ntohs(at.sin_port), &h.addrs[0]);
    proto_handle_seal(&h);
    memcpy(e->handle, &h, sizeof h);
    e->rc = -EAGAIN;
    step_until_readable(e, e->listener);
    fd = accept(e->listener, NULL, NULL);
    cr_assert_geq(fd, 0);
    read_frame(e, fd, PROTO_HELLO, &hello, sizeof hello);
    welcome.mac = proto_mac(h.token, 'S', hello.nonce, welcome.nonce);
    send_frame(fd, PROTO_WELCOME, &welcome);
    read_frame(e, fd, PROTO_AUTH, offer, sizeof *offer);
    cr_assert_eq(offer->mac, proto_mac(h.token, 'C', hello.nonce, welcome.nonce));
    return fd;
}

static void accepting_open(struct end *e)
{
    *e = (struct end){.rc = -EAGAIN};
    e->t = transport_open(&ports[0], "127.0.0.2");
    cr_assert_eq(holmes_listen(e->t, e, 0, e->handle, &e->l), 0);
}

static int listening_socket(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(fd, 64), 0);
    return fd;
}

static void dialing_open(struct end *e)
{
    *e = (struct end){.dials = true, .rc = -EAGAIN};
    e->t = transport_open(&ports[0], "127.0.0.2");
    e->listener = listening_socket();
    e->lanes = listening_socket();
}

static void end_close(struct end *e)
{
    holmes_listen_close(e->l);
    holmes_transport_destroy(e->t);
    if (e->dials) {
        close(e->listener);
        close(e->lanes);
    }
}

/* The end under test and a true one raise a connection. */
static void true_peer_gets_in(struct end *e)
{
    struct holmes_nic nic = fake_rdma_nic("mlx5_0", "127.0.0.1");
    struct holmes_transport *other = transport_open(&nic, "127.0.0.1");
    struct link l = {.a = e->dials ? e->t : other, .b = e->dials ? other : e->t, .listen = e->l};
    uint8_t handle[HOLMES_HANDLE_SIZE];
    uint64_t start = holmes_now_ns();

    memcpy(handle, e->handle, sizeof handle);
    if (e->dials)
        cr_assert_eq(holmes_listen(other, &l, 0, handle, &l.listen), 0);
    cr_assert_eq(link_try_connect(&l, handle), 0, "the true peer does not get in");
    cr_assert_lt(holmes_now_ns() - start, patience_ns(5000));
    holmes_conn_close(l.send);
    holmes_conn_close(l.recv);
    if (e->dials)
        holmes_listen_close(l.listen);
    holmes_transport_destroy(other);
}

/* ---- the way to every state ---- */

/* The blob of a lane over TCP (transport/tcp_peer.h). */
static void blob_write(struct proto_lane_blob *b, bool accepts, uint16_t port)
{
    const bool sockets = test_tcp_wire() == &holmes_wire_sock;
    struct tcp_blob blob = {.role = accepts ? WIRE_ACCEPT : WIRE_CONNECT, .secret = 1};

    blob.streams = accepts && sockets;
    blob.addr.in = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    b->len = (uint16_t)tcp_blob_encode(sockets ? 0x48534f4b : 0x484f4649, &blob, b->bytes);
}

static struct proto_info good_info(bool accepts, uint16_t port)
{
    struct proto_info info = {
        .nlanes = 1, .max_group = HOLMES_MAX_GROUP, .control_len = 1u << 20, .nic = "lo"};

    blob_write(&info.lanes[0], accepts, port);
    return info;
}

static struct proto_verdict good_verdict(const struct end *e, const char *wire)
{
    struct sockaddr_in at = {0};
    socklen_t len = sizeof at;
    struct proto_verdict v = {.reason = "the script says so", .host = "script", .nic = "mlx5_0"};

    cr_assert_eq(getsockname(e->lanes, (struct sockaddr *)&at, &len), 0);
    snprintf(v.wire, sizeof v.wire, "%s", wire);
    v.nrails = 1;
    v.rdma = strcmp(wire, "verbs") == 0;
    v.rails[0].dial_gid = ports[0].rdma.gids[0].index;
    v.info = good_info(true, ntohs(at.sin_port));
    return v;
}

static struct proto_probe good_probe(void)
{
    struct proto_probe p = {.len = 2048};

    p.rail.dial_gid = ports[0].rdma.gids[0].index;
    blob_write(&p.lane, true, 1);
    return p;
}

enum state {
    PROBING, /* accepting: the probe is asked for and not answered */
    INFO,    /* accepting: the verdict is out */
    RISING,  /* accepting: lanes rise */
    VERDICT, /* dialing: the offer is out */
    RAISING, /* dialing: lanes rise */
    STATES,
};
static const char *const state_names[] = {"probing", "info", "rising", "verdict", "raising"};

/* Opens the end under test where `e->t` is NULL. Returns the script's socket. */
static int reach(struct end *e, enum state state)
{
    struct holmes_nic nic = fake_rdma_nic("mlx5_7", "127.0.0.9"); /* no true peer's */
    struct proto_offer offer = offer_of(state == PROBING ? &nic : NULL);
    struct proto_probe probe;
    struct proto_verdict verdict;
    struct proto_info info = good_info(false, 0);
    int fd;

    if (state >= VERDICT) {
        if (!e->t)
            dialing_open(e);
        fd = script_accepts(e, &offer);
        verdict = good_verdict(e, test_tcp_wire()->name);
        if (state == RAISING) {
            send_frame(fd, PROTO_VERDICT, &verdict);
            read_frame(e, fd, PROTO_INFO, &info, sizeof info);
        }
        return fd;
    }
    if (!e->t)
        accepting_open(e);
    fd = script_dials(e, &offer);
    if (state == PROBING) {
        read_frame(e, fd, PROTO_PROBE, &probe, sizeof probe);
        return fd;
    }
    read_frame(e, fd, PROTO_VERDICT, &verdict, sizeof verdict);
    if (state == RISING) {
        send_frame(fd, PROTO_INFO, &info);
        for (int i = 0; i < 20; i++)
            step(e);
    }
    return fd;
}

/* What the end under test said last; 0 when it closed without a word. */
static int abort_heard(int fd)
{
    struct proto_frame f = {.type = 0};
    struct proto_abort a = {.error = 0};
    uint8_t skip[PROTO_PAYLOAD_MAX];

    while (recv(fd, &f, sizeof f, MSG_WAITALL) == (ssize_t)sizeof f) {
        if (f.type == PROTO_ABORT) {
            cr_assert_eq(recv(fd, &a, sizeof a, MSG_WAITALL), (ssize_t)sizeof a);
            return a.error;
        }
        cr_assert_leq(f.length, sizeof skip);
        if (f.length > 0)
            cr_assert_eq(recv(fd, skip, f.length, MSG_WAITALL), (ssize_t)f.length);
    }
    return 0;
}

/* ---- every state, every misdeed ---- */

struct misdeed {
    const char *name;
    void (*act)(int fd);
    int error;       /* of the end under test */
    const char *log; /* in one warning */
};

static void act_close(int fd)
{
    shutdown(fd, SHUT_WR);
}

static void act_half_frame(int fd)
{
    struct proto_frame f = {PROTO_FRAME_MAGIC, PROTO_VERSION, PROTO_INFO,
                            sizeof(struct proto_info)};

    fake_peer_send(fd, &f, sizeof f);
    fake_peer_send(fd, "half", 4);
    shutdown(fd, SHUT_WR);
}

static void act_bye(int fd)
{
    send_frame(fd, PROTO_BYE, NULL);
}

static void abort_with(int fd, int error)
{
    struct proto_abort a = {.error = error};

    send_frame(fd, PROTO_ABORT, &a);
}

static void act_abort(int fd)
{
    abort_with(fd, ENOMEM);
}

static void act_abort_settings(int fd)
{
    abort_with(fd, EPROTONOSUPPORT);
}

static void act_abort_nonsense(int fd)
{
    abort_with(fd, INT32_MIN);
}

static void act_junk(int fd)
{
    char junk[64];

    memset(junk, 'J', sizeof junk);
    fake_peer_send(fd, junk, sizeof junk);
}

static void act_other_version(int fd)
{
    fake_peer_frame(fd, PROTO_VERSION + 1, PROTO_UP, 0, NULL, 0);
}

static void act_wrong_length(int fd)
{
    fake_peer_frame(fd, PROTO_VERSION, PROTO_INFO, 7, "seven..", 7);
}

static void act_hello(int fd)
{
    send_frame(fd, PROTO_HELLO, NULL);
}

static void act_auth(int fd)
{
    send_frame(fd, PROTO_AUTH, NULL);
}

static const struct misdeed misdeeds[] = {
    {"close", act_close, -ECONNRESET, "it closed the connection"},
    {"half a frame", act_half_frame, -ECONNRESET, "it closed the connection"},
    {"bye", act_bye, -ECONNRESET, "it closed the connection before"},
    {"abort", act_abort, -ECONNABORTED, "it failed: "},
    {"abort for its settings", act_abort_settings, -EPROTONOSUPPORT, "it failed: "},
    {"abort with nonsense", act_abort_nonsense, -ECONNABORTED, "with no known error"},
    {"junk", act_junk, -EPROTO, "does not speak this protocol"},
    {"another version", act_other_version, -EPROTONOSUPPORT, "speaks protocol version"},
    {"wrong length", act_wrong_length, -EPROTO, "with length 7"},
    {"hello again", act_hello, -EPROTO, "sent frame type 1 instead of"},
    {"auth again", act_auth, -EPROTO, "sent frame type 3 instead of"},
};

static void commit(struct end *e, enum state state, const struct misdeed *m)
{
    int fd = reach(e, state), fds = holmes_self_fds();

    link_capture_log();
    doing = m->name;
    m->act(fd);
    cr_assert_eq(end_of(e), m->error, "%s in state %s: %s", m->name, state_names[state],
                 strerror(-e->rc));
    cr_assert_eq(link_log_count(m->log), 1, "%s in state %s: not one \"%s\"", m->name,
                 state_names[state], m->log);
    cr_assert_eq(link_log_count("failed in state"), 1);
    cr_assert_eq(abort_heard(fd), -m->error, "%s in state %s: the peer hears why", m->name,
                 state_names[state]);
    close(fd);
    cr_assert_lt(holmes_self_fds(), fds, "%s in state %s leaves descriptors", m->name,
                 state_names[state]);
}

/* The state's descriptors, then those after each misdeed: the same. */
static void commit_all(enum state state)
{
    struct end e = {.t = NULL};
    int fds = 0;

    world_open();
    for (size_t i = 0; i < sizeof misdeeds / sizeof *misdeeds; i++) {
        commit(&e, state, &misdeeds[i]);
        true_peer_gets_in(&e);
        if (i == 0)
            fds = holmes_self_fds();
        cr_assert_eq(holmes_self_fds(), fds, "%s in state %s leaves descriptors", misdeeds[i].name,
                     state_names[state]);
    }
    end_close(&e);
}

Test(handshake, peer_that_misbehaves_while_it_is_probed)
{
    commit_all(PROBING);
}

Test(handshake, peer_that_misbehaves_instead_of_describing_its_lanes)
{
    commit_all(INFO);
}

Test(handshake, peer_that_misbehaves_while_lanes_are_accepted)
{
    commit_all(RISING);
}

Test(handshake, peer_that_misbehaves_instead_of_its_verdict)
{
    commit_all(VERDICT);
}

Test(handshake, peer_that_misbehaves_while_lanes_are_dialled)
{
    commit_all(RAISING);
}

Test(handshake, silence_in_any_state_ends_at_the_deadline)
{
    struct end ends[STATES] = {{.t = NULL}};
    int fds[STATES];
    uint64_t start;

    world_open();
    setenv("HOLMES_CONNECT_TIMEOUT", "1", 1);
    start = holmes_now_ns();
    for (int s = 0; s < STATES; s++)
        fds[s] = reach(&ends[s], (enum state)s);
    for (int s = 0; s < STATES; s++) {
        cr_assert_eq(end_of(&ends[s]), -ETIMEDOUT, "%s: %s", state_names[s], strerror(-ends[s].rc));
        cr_assert_eq(abort_heard(fds[s]), ETIMEDOUT);
        close(fds[s]);
    }
    cr_assert_lt(holmes_now_ns() - start, patience_ns(10000));
    cr_assert_eq(link_log_count("within HOLMES_CONNECT_TIMEOUT=1 s"), STATES);
    for (int s = 0; s < STATES; s++) {
        true_peer_gets_in(&ends[s]);
        end_close(&ends[s]);
    }
}

/* ---- frames out of turn ---- */

static void refused(struct end *e, int fd, const char *log)
{
    cr_assert_eq(end_of(e), -EPROTO, "%s", strerror(-e->rc));
    cr_assert_eq(link_log_count(log), 1, "not one \"%s\"", log);
    cr_assert_eq(abort_heard(fd), EPROTO);
    close(fd);
    true_peer_gets_in(e);
    end_close(e);
}

Test(handshake, frame_of_a_later_state_is_refused_in_an_earlier_one)
{
    static const struct {
        enum state state;
        uint16_t type;
        const char *log;
    } cases[] = {
        {PROBING, PROTO_INFO, "sent frame type 6 instead of an answer to the probe"},
        {PROBING, PROTO_UP, "sent frame type 7 instead of an answer to the probe"},
        {PROBING, PROTO_VERDICT, "sent frame type 5 instead of an answer to the probe"},
        {INFO, PROTO_UP, "sent frame type 7 instead of its lanes"},
        {INFO, PROTO_PROBE, "sent frame type 4 instead of its lanes"},
        {RISING, PROTO_INFO, "sent frame type 6 instead of word that its lanes are up"},
        {VERDICT, PROTO_INFO, "sent frame type 6 instead of a verdict"},
        {VERDICT, PROTO_UP, "sent frame type 7 instead of a verdict"},
        {RAISING, PROTO_VERDICT, "sent frame type 5 instead of word that its lanes are up"},
        {RAISING, PROTO_PROBE, "sent frame type 4 instead of word that its lanes are up"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct end e = {.t = NULL};
        int fd;

        world_open();
        fd = reach(&e, cases[i].state);
        send_frame(fd, cases[i].type, NULL);
        refused(&e, fd, cases[i].log);
    }
}

Test(handshake, lanes_told_to_be_up_twice_are_refused)
{
    for (int s = RISING; s <= RAISING; s += RAISING - RISING) {
        struct end e = {.t = NULL};
        int fd;

        world_open();
        fd = reach(&e, (enum state)s);
        send_frame(fd, PROTO_UP, NULL);
        send_frame(fd, PROTO_UP, NULL);
        refused(&e, fd, "sent frame type 7 instead of waiting for its turn");
    }
}

/* What the peer said before it went is why, also when our own words find it gone. */
Test(handshake, reason_of_a_peer_that_resets_is_heard)
{
    struct end e = {.t = NULL};
    struct proto_probe probe;
    struct linger reset = {.l_onoff = 1};
    int fd;

    world_open();
    probe = good_probe();
    fd = reach(&e, VERDICT);
    cr_assert_eq(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
    send_frame(fd, PROTO_PROBE, &probe);
    abort_with(fd, EPROTONOSUPPORT);
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    close(fd);
    cr_assert_eq(end_of(&e), -EPROTONOSUPPORT, "%s", strerror(-e.rc));
    true_peer_gets_in(&e);
    end_close(&e);
}

/* ---- the probe ---- */

Test(handshake, answer_to_another_probe_is_refused)
{
    struct end e = {.t = NULL};
    struct proto_probe answer = {.round = 1};
    int fd;

    world_open();
    fd = reach(&e, PROBING);
    send_frame(fd, PROTO_PROBE, &answer);
    refused(&e, fd, "sent an answer that does not fit the probe");
}

Test(handshake, second_answer_to_a_probe_is_refused)
{
    struct end e = {.t = NULL};
    struct proto_probe answer = {.round = 0};
    int fd;

    world_open();
    fd = reach(&e, PROBING);
    blob_write(&answer.lane, false, 0);
    send_frame(fd, PROTO_PROBE, &answer);
    send_frame(fd, PROTO_PROBE, &answer);
    refused(&e, fd, "sent frame type 4 instead of waiting for its turn");
}

Test(handshake, peer_that_cannot_probe_gets_tcp_at_once)
{
    struct end e = {.t = NULL};
    struct proto_probe answer = {.round = 0};
    struct proto_verdict verdict;
    uint64_t start;
    int fd;

    world_open();
    setenv("HOLMES_PROBE_MS", "60000", 1);
    fd = reach(&e, PROBING);
    start = holmes_now_ns();
    send_frame(fd, PROTO_PROBE, &answer);
    read_frame(&e, fd, PROTO_VERDICT, &verdict, sizeof verdict);
    cr_assert_lt(holmes_now_ns() - start, patience_ns(5000));
    cr_assert_eq(verdict.rdma, 0);
    cr_assert_str_eq(verdict.wire, test_tcp_wire()->name);
    cr_assert(strstr(verdict.reason, "no RDMA path"), "%s", verdict.reason);
    cr_assert_eq(plan.probes, 1);
    close(fd);
    cr_assert_eq(end_of(&e), -ECONNRESET);
    end_close(&e);
}

Test(handshake, probes_without_end_are_refused)
{
    struct end e = {.t = NULL};
    struct proto_probe probe, answer;
    int fd;

    world_open();
    probe = good_probe();
    fd = reach(&e, VERDICT);
    for (int i = 0; i < 2 * HOLMES_MAX_RAILS; i++) {
        send_frame(fd, PROTO_PROBE, &probe);
        read_frame(&e, fd, PROTO_PROBE, &answer, sizeof answer);
    }
    send_frame(fd, PROTO_PROBE, &probe);
    refused(&e, fd, "asks for more than 8 probes");
}

Test(handshake, probe_that_does_not_fit_the_offer_is_refused)
{
    for (int i = 0; i < 4; i++) {
        struct end e = {.t = NULL};
        struct proto_probe probe;
        int fd;

        world_open();
        probe = good_probe();
        probe.rail.dial_port = i == 0 ? 1 : i == 1 ? 255 : 0;
        probe.rail.dial_gid = (uint8_t)(probe.rail.dial_gid + (i == 2));
        probe.rail.mtu = i == 3 ? 5000 : 0;
        fd = reach(&e, VERDICT);
        send_frame(fd, PROTO_PROBE, &probe);
        refused(&e, fd, "sent an invalid rail");
        cr_assert_eq(plan.lanes, 2, "the true peer's only");
    }
}

Test(handshake, probe_of_an_end_without_rdma_is_refused)
{
    struct end e = {.t = NULL};
    struct proto_offer offer;
    struct proto_probe probe;
    int fd;

    world_open();
    probe = good_probe();
    ports[0] = test_loopback_nic("127.0.0.2");
    fd = (dialing_open(&e), script_accepts(&e, &offer));
    cr_assert_eq(offer.nports, 0);
    send_frame(fd, PROTO_PROBE, &probe);
    refused(&e, fd, "sent an invalid rail");
}

/* Its caller may never poll it again: others take over. */
Test(handshake, peer_that_never_answers_its_probe_keeps_no_other_waiting_for_long)
{
    struct end e = {.t = NULL};
    struct holmes_nic nic = fake_rdma_nic("mlx5_0", "127.0.0.1"); /* the true peer's */
    struct proto_offer offer;
    struct proto_probe probe;
    struct link l = {.send = NULL};
    struct holmes_conn_stats stats;
    uint64_t start;
    int fd;

    setenv("HOLMES_PROBE_MS", "100", 1);
    world_open();
    accepting_open(&e);
    offer = offer_of(&nic);
    fd = script_dials(&e, &offer);
    read_frame(&e, fd, PROTO_PROBE, &probe, sizeof probe);
    l.a = transport_open(&nic, "127.0.0.1");
    l.b = e.t;
    start = holmes_now_ns();
    link_connect(&l); /* another listen; `e` is not stepped any more */
    cr_assert_lt(holmes_now_ns() - start, patience_ns(10000));
    holmes_conn_get_stats(l.send, &stats);
    cr_assert_str_eq(stats.wire, "verbs", "%s", stats.reason);
    holmes_conn_close(l.send);
    holmes_conn_close(l.recv);
    holmes_transport_destroy(l.a);
    close(fd);
    end_close(&e);
}

/* ---- verdict and lanes ---- */

Test(handshake, verdict_that_does_not_fit_the_offer_is_refused)
{
    static const char *const logs[] = {
        "sent an invalid rail",
        "sent an invalid rail",
        "sent an invalid rail",
        "sent an invalid rail count",
        "sent an invalid rail count",
        "speaks wire \"quantum\"",
        "speaks wire",
        "of control memory",
        "sent an invalid lane count",
        "sent an invalid name",
    };

    for (int i = 0; i < (int)(sizeof logs / sizeof *logs); i++) {
        struct end e = {.t = NULL};
        struct proto_verdict v;
        int fd;

        world_open();
        fd = reach(&e, VERDICT);
        v = good_verdict(&e, "verbs");
        switch (i) {
        case 0:
            v.rails[0].dial_port = 1;
            break;
        case 1:
            v.rails[0].dial_gid++;
            break;
        case 2:
            v.rails[0].mtu = 77;
            break;
        case 3:
            v.nrails = 0;
            break;
        case 4:
            v.nrails = 2;
            break; /* more than lanes */
        case 5:
            strcpy(v.wire, "quantum");
            break;
        case 6:
            strcpy(v.wire, test_tcp_wire()->name);
            break; /* and rdma */
        case 7:
            v.info.control_len = 64;
            break;
        case 8:
            v.info.nlanes = HOLMES_MAX_LANES + 1;
            break;
        case 9:
            memset(v.reason, 'r', sizeof v.reason);
            break;
        }
        send_frame(fd, PROTO_VERDICT, &v);
        refused(&e, fd, logs[i]);
    }
}

Test(handshake, verdict_against_the_users_word_is_refused)
{
    for (int i = 0; i < 2; i++) {
        struct end e = {.t = NULL};
        struct proto_verdict v;
        int fd;

        world_open();
        setenv("HOLMES_WIRE", i == 0 ? "tcp" : "verbs", 1);
        fd = reach(&e, VERDICT);
        v = good_verdict(&e, i == 0 ? "verbs" : test_tcp_wire()->name);
        send_frame(fd, PROTO_VERDICT, &v);
        refused(&e, fd, "HOLMES_WIRE forbids it here");
    }
}

Test(handshake, lanes_that_do_not_fit_the_verdict_are_refused)
{
    static const char *const logs[] = {
        "answers 2 lanes to an offer of 1", "sent an invalid lane count", "of control memory",
        "sent an invalid lane description", "sent an invalid group size", "sent an invalid name",
    };

    for (int i = 0; i < (int)(sizeof logs / sizeof *logs); i++) {
        struct end e = {.t = NULL};
        struct proto_info info = good_info(false, 0);
        int fd;

        world_open();
        fd = reach(&e, INFO);
        switch (i) {
        case 0:
            info.nlanes = 2;
            break;
        case 1:
            info.nlanes = 0;
            break;
        case 2:
            info.control_len = 63;
            break;
        case 3:
            info.lanes[0].len = HOLMES_LANE_BLOB_MAX + 1;
            break;
        case 4:
            info.max_group = 0;
            break;
        case 5:
            info.nic[0] = '\033';
            break;
        }
        send_frame(fd, PROTO_INFO, &info);
        refused(&e, fd, logs[i]);
    }
}

Test(handshake, lane_that_is_junk_fails_the_connection)
{
    for (int s = INFO; s <= VERDICT; s += VERDICT - INFO) {
        struct end e = {.t = NULL};
        struct proto_info info = good_info(false, 0);
        struct proto_verdict v;
        int fd;

        world_open();
        fd = reach(&e, (enum state)s);
        memset(info.lanes[0].bytes, 'J', HOLMES_LANE_BLOB_MAX);
        if (s == INFO) {
            send_frame(fd, PROTO_INFO, &info);
        } else {
            v = good_verdict(&e, test_tcp_wire()->name);
            memset(v.info.lanes[0].bytes, 'J', HOLMES_LANE_BLOB_MAX);
            send_frame(fd, PROTO_VERDICT, &v);
        }
        refused(&e, fd, "failed in state lanes");
    }
}

/* Words on the socket of a raised connection: the true peer's own end says them here. */
Test(handshake, frame_on_a_raised_connection_fails_it_with_its_reason)
{
    static const struct {
        uint16_t version, type;
        const char *log;
    } cases[] = {
        {PROTO_VERSION, PROTO_UP, "sent frame type 7 on a raised connection"},
        {PROTO_VERSION, 99, "sent a frame of type 99"},
        {PROTO_VERSION + 1, PROTO_UP, "speaks protocol version"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct link l;
        struct holmes_request *r;
        uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
        int rc;

        setenv("HOLMES_EAGER", "0", 1); /* the send waits */
        link_open(&l);
        link_capture_log();
        fake_peer_frame(l.recv->oob.fd, cases[i].version, cases[i].type, 0, NULL, 0);
        while ((rc = holmes_isend(l.send, NULL, 0, 1, NULL, &r)) == -EAGAIN)
            cr_assert(!holmes_deadline_passed(deadline));
        cr_assert_eq(rc, -EPROTO, "%s", strerror(-rc));
        cr_assert_eq(link_log_count(cases[i].log), 1, "not one \"%s\"", cases[i].log);
        link_close(&l);
    }
}

/* A handle comes from the peer, its scratch bytes too: they cannot name another connection. */
Test(handshake, scratch_bytes_of_another_connection_do_not_give_it_away)
{
    struct end e = {.t = NULL};
    struct proto_handle handles[2];
    struct holmes_listen *other;
    struct holmes_conn *c;
    int owner;

    world_open();
    accepting_open(&e);
    memcpy(&handles[0], e.handle, sizeof e.handle);
    cr_assert_eq(holmes_listen(e.t, &e, 0, &handles[1], &other), 0);
    cr_assert_eq(holmes_connect(e.t, &owner, 0, &handles[0], &c), -EAGAIN);
    memcpy(handles[1].state, handles[0].state, sizeof handles[1].state);
    cr_assert_eq(holmes_connect(e.t, &owner, 0, &handles[1], &c), -EAGAIN);
    cr_assert_neq(memcmp(handles[1].state, handles[0].state, sizeof handles[1].state), 0);
    handles[1] = handles[0];
    cr_assert_eq(holmes_connect(e.t, &e, 0, &handles[1], &c), -EAGAIN, "another owner");
    cr_assert_neq(memcmp(handles[1].state, handles[0].state, sizeof handles[1].state), 0);
    holmes_listen_close(other);
    end_close(&e);
}

Test(handshake, offer_that_is_none_is_turned_away_as_a_stranger)
{
    struct end e = {.t = NULL};
    struct proto_offer offer = offer_of(NULL);
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    int fd;

    world_open();
    accepting_open(&e);
    offer.nports = HOLMES_MAX_RAILS + 1;
    fd = script_dials(&e, &offer);
    while (link_log_count("sent an invalid port count") == 0) {
        cr_assert(!holmes_deadline_passed(deadline));
        step(&e);
        cr_assert_eq(e.rc, -EAGAIN, "accept waits for the true peer");
    }
    cr_assert(fake_peer_closed(fd, patience_ms(1000)));
    close(fd);
    true_peer_gets_in(&e);
    end_close(&e);
}
