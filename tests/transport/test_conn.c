/* Connections: strangers, wrong peers, death of the peer, descriptors, ports. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/free_port.h"
#include "../support/patience.h"
#include "../support/spawn.h"
#include "clock.h"
#include "fake_peer.h"
#include "link.h"
#include "self.h"
#include "test_nics.h"
#include "transport/conn.h"
#include "transport/context.h"

struct listening {
    struct holmes_transport *t;
    struct holmes_listen *l;
    uint8_t handle[HOLMES_HANDLE_SIZE];
};

static void listen_open(struct listening *s)
{

    s->t = link_transport(LINK_TO);
    cr_assert_eq(holmes_listen(s->t, s, 0, s->handle, &s->l), 0);
}

static void listen_close(struct listening *s)
{
    holmes_listen_close(s->l);
    holmes_transport_destroy(s->t);
}

static void accept_is_pending(struct listening *s, int times)
{
    struct holmes_conn *c;

    for (int i = 0; i < times; i++)
        cr_assert_eq(holmes_accept(s->l, &c), -EAGAIN, "accept must wait for the true peer");
}

/* Polls accept until the log has `count` times `needle`. */
static void accept_until_logged(struct listening *s, const char *needle, int count)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    while (link_log_count(needle) < count) {
        cr_assert(!holmes_deadline_passed(deadline), "never said \"%s\"", needle);
        accept_is_pending(s, 1);
    }
    cr_assert_eq(link_log_count(needle), count, "one line per stranger: \"%s\"", needle);
}

/* Polls accept until something has been said to a scripted peer. */
static void accept_until_answered(struct listening *s, int fd)
{
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    struct pollfd answer = {.fd = fd, .events = POLLIN};

    while (poll(&answer, 1, 0) == 0) {
        cr_assert(!holmes_deadline_passed(deadline), "no answer");
        accept_is_pending(s, 1);
    }
}

/* The true peer comes after whatever happened before, and moves a byte. */
static void true_peer_gets_in(struct listening *s)
{
    struct link l = {.b = s->t, .listen = s->l};
    uint64_t start = holmes_now_ns();
    char from = 'y', to = 'n';
    struct holmes_mr *fm, *tm;
    struct holmes_request *send, *recv;

    l.a = link_transport(LINK_FROM);
    start = holmes_now_ns();
    cr_assert_eq(link_try_connect(&l, s->handle), 0);
    cr_assert_lt(holmes_now_ns() - start, patience_ns(1000), "the true peer waited over a second");
    cr_assert_eq(holmes_mr_reg(l.send, &from, 1, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, &to, 1, &tm), 0);
    recv = link_irecv(l.recv, &to, 1, 0, tm);
    send = link_isend(l.send, &from, 1, 0, fm);
    link_wait_both(send, recv);
    cr_assert_eq(to, 'y');
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    holmes_conn_close(l.send);
    holmes_conn_close(l.recv);
    holmes_transport_destroy(l.a);
}

/* ---- strangers (case C7) ---- */

Test(conn, strangers_are_turned_away_and_the_true_peer_gets_in)
{
    struct listening s;
    struct proto_hello hello = {.listen_id = 42};
    int fds, fd;

    link_capture_log();
    listen_open(&s);
    accept_is_pending(&s, 1);
    fds = holmes_self_fds();

    fd = fake_peer_dial(s.handle); /* zero bytes and close */
    close(fd);
    accept_until_logged(&s, "it closed the connection", 1);

    fd = fake_peer_dial(s.handle); /* three bytes and close */
    fake_peer_send(fd, "abc", 3);
    close(fd);
    accept_until_logged(&s, "it closed the connection", 2);

    fd = fake_peer_dial(s.handle);
    fake_peer_send(fd, "GET /metrics HTTP/1.1\r\n\r\n", 25);
    accept_until_logged(&s, "does not speak this protocol", 1);
    cr_assert(fake_peer_closed(fd, patience_ms(1000)));
    close(fd);

    fd = fake_peer_dial(s.handle);
    fake_peer_frame(fd, 99, PROTO_HELLO, sizeof hello, &hello, sizeof hello);
    accept_until_logged(&s, "speaks protocol version 99", 1);
    cr_assert(fake_peer_closed(fd, patience_ms(1000)));
    close(fd);

    fd = fake_peer_dial(s.handle);
    fake_peer_frame(fd, PROTO_VERSION, PROTO_HELLO, 0xffffffffu, "x", 1);
    accept_until_logged(&s, "length 4294967295", 1);
    cr_assert(fake_peer_closed(fd, patience_ms(1000)));
    close(fd);

    fd = fake_peer_dial(s.handle);
    fake_peer_frame(fd, PROTO_VERSION, 77, 0, NULL, 0);
    accept_until_logged(&s, "frame of type 77", 1);
    close(fd);

    fd = fake_peer_dial(s.handle); /* another job's listen */
    fake_peer_frame(fd, PROTO_VERSION, PROTO_HELLO, sizeof hello, &hello, sizeof hello);
    accept_until_logged(&s, "asks for a listen that is not here", 1);
    cr_assert(fake_peer_closed(fd, patience_ms(1000)));
    close(fd);

    cr_assert_eq(holmes_self_fds(), fds, "strangers must not cost descriptors");
    fd = fake_peer_dial(s.handle); /* silent while the true peer comes */
    accept_is_pending(&s, 100);
    true_peer_gets_in(&s);
    close(fd);
    s.l = NULL; /* closed by nobody else: accept took the peer */
    holmes_transport_destroy(s.t);
}

/* The second address of a true peer, dropped when the first one answered. */
Test(conn, connection_dropped_before_its_first_byte_is_no_warning)
{
    struct listening s;

    link_capture_log();
    listen_open(&s);
    close(fake_peer_dial(s.handle));
    accept_until_logged(&s, "it closed the connection", 1);
    cr_assert_eq(link_log_count("WARN "), 0);
    true_peer_gets_in(&s);
    s.l = NULL;
    holmes_transport_destroy(s.t);
}

Test(conn, peer_without_the_token_is_turned_away)
{
    struct listening s;
    struct proto_handle h;
    struct proto_hello hello;
    struct proto_welcome welcome;
    struct proto_offer offer = {.mac = 1, .tcp_lanes = 1, .qps = 1};
    int fd;

    link_capture_log();
    listen_open(&s);
    memcpy(&h, s.handle, sizeof h);
    hello.listen_id = proto_listen_id(h.token);
    memset(hello.nonce, 7, sizeof hello.nonce);
    fd = fake_peer_dial(s.handle);
    fake_peer_frame(fd, PROTO_VERSION, PROTO_HELLO, sizeof hello, &hello, sizeof hello);
    accept_until_answered(&s, fd);
    fake_peer_expect(fd, PROTO_WELCOME, &welcome, sizeof welcome);
    cr_assert_eq(welcome.mac, proto_mac(h.token, 'S', hello.nonce, welcome.nonce));
    /* The listener's own proof, sent back, is no proof. */
    offer.mac = welcome.mac;
    fake_peer_frame(fd, PROTO_VERSION, PROTO_AUTH, sizeof offer, &offer, sizeof offer);
    accept_until_logged(&s, "does not know the token", 1);
    cr_assert(fake_peer_closed(fd, patience_ms(1000)));
    close(fd);
    true_peer_gets_in(&s);
    holmes_listen_close(s.l);
    s.l = NULL;
    listen_close(&s);
}

/* Its thread may have thousands of connections to raise, or no core. */
Test(conn, peer_that_named_a_listen_has_the_time_of_its_connect)
{
    struct listening s;
    struct proto_handle h;
    struct proto_hello hello = {.nonce = {1}};
    int fd;

    setenv("HOLMES_CONNECT_TIMEOUT", "2", 1);
    link_capture_log();
    listen_open(&s);
    memcpy(&h, s.handle, sizeof h);
    hello.listen_id = proto_listen_id(h.token);
    fd = fake_peer_dial(s.handle);
    fake_peer_frame(fd, PROTO_VERSION, PROTO_HELLO, sizeof hello, &hello, sizeof hello);
    accept_until_logged(&s, "silent for 2 s", 1);
    close(fd);
    listen_close(&s);
}

Test(conn, one_byte_at_a_time_is_a_peer_too)
{
    struct listening s;
    struct proto_handle h;
    struct {
        struct proto_frame f;
        struct proto_hello hello;
    } __attribute__((packed))
    bytes = {.f = {PROTO_FRAME_MAGIC, PROTO_VERSION, PROTO_HELLO, sizeof(struct proto_hello)}};
    struct proto_welcome welcome;
    int fd;

    listen_open(&s);
    memcpy(&h, s.handle, sizeof h);
    bytes.hello.listen_id = proto_listen_id(h.token);
    fd = fake_peer_dial(s.handle);
    for (size_t i = 0; i < sizeof bytes; i++) {
        fake_peer_send(fd, (char *)&bytes + i, 1);
        accept_is_pending(&s, 3);
    }
    accept_until_answered(&s, fd);
    fake_peer_expect(fd, PROTO_WELCOME, &welcome, sizeof welcome);
    close(fd);
    listen_close(&s);
}

Test(conn, crowd_of_silent_strangers_does_not_keep_the_true_peer_out)
{
    enum { CROWD = 1100 };
    struct rlimit limit = {.rlim_cur = 0};
    struct proto_abort busy = {.error = 0};
    struct listening s;
    int fds[CROWD];
    struct link l = {0};

    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 2 * CROWD + 200)
        cr_skip("more descriptors are needed than the hard limit allows");
    limit.rlim_cur = limit.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    link_capture_log();
    listen_open(&s);
    for (int i = 0; i < CROWD; i++)
        fds[i] = fake_peer_dial(s.handle);
    l.b = s.t;
    l.listen = s.l;
    l.a = link_transport(LINK_FROM);
    cr_assert_eq(link_try_connect(&l, s.handle), 0);
    cr_assert_gt(link_log_count("silent while others wait"), 0);
    /* The oldest of them might have been a true peer whose thread is busy. */
    fake_peer_expect(fds[0], PROTO_ABORT, &busy, sizeof busy);
    cr_assert_eq(busy.error, EBUSY);
    holmes_conn_close(l.send);
    holmes_conn_close(l.recv);
    holmes_transport_destroy(l.a);
    for (int i = 0; i < CROWD; i++)
        close(fds[i]);
    listen_close(&s);
}

/* Takes whoever dials and says that it has no room. */
static int turn_dialers_away(int listener)
{
    static const struct proto_abort busy = {.error = EBUSY};
    int fd = accept(listener, NULL, NULL);

    if (fd < 0)
        return 0;
    fake_peer_frame(fd, PROTO_VERSION, PROTO_ABORT, sizeof busy, &busy, sizeof busy);
    close(fd);
    return 1;
}

Test(conn, listener_without_room_is_tried_until_the_deadline)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), dialled = 0, rc;
    socklen_t len = sizeof at;
    struct holmes_transport *t;
    struct holmes_conn *c;
    struct listening s;
    struct proto_handle h;

    setenv("HOLMES_CONNECT_TIMEOUT", "4", 1); /* longer than other failures are tried again */
    link_capture_log();
    cr_assert_eq(bind(listener, (struct sockaddr *)&at, len), 0);
    cr_assert_eq(listen(listener, 16), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    listen_open(&s);
    memcpy(&h, s.handle, sizeof h);
    memset(h.addrs, 0, sizeof h.addrs);
    proto_addr_encode((struct sockaddr *)&at, ntohs(at.sin_port), &h.addrs[0]);
    proto_handle_seal(&h);
    t = link_transport(LINK_FROM);
    while ((rc = holmes_connect(t, NULL, 0, &h, &c)) == -EAGAIN)
        dialled += turn_dialers_away(listener);
    cr_assert_eq(rc, -ETIMEDOUT, "%d", rc);
    cr_assert_geq(dialled, 3);
    holmes_transport_destroy(t);
    listen_close(&s);
    close(listener);
}

/* ---- handles ---- */

static int connect_with(const void *handle)
{
    struct holmes_transport *t;
    struct holmes_conn *c = (void *)handle;
    uint8_t copy[HOLMES_HANDLE_SIZE];
    int rc;

    memcpy(copy, handle, sizeof copy);
    t = link_transport(LINK_FROM);
    rc = holmes_connect(t, NULL, 0, copy, &c);
    cr_assert_null(c, "a failed connect must leave no connection");
    holmes_transport_destroy(t);
    return rc;
}

Test(conn, foreign_handles_are_refused_at_once)
{
    struct listening s;
    struct proto_handle h;
    uint8_t foreign[HOLMES_HANDLE_SIZE] = {2, 0, 0x1f, 0x90, 127, 0, 0, 1}; /* a sockaddr_in */

    link_capture_log();
    listen_open(&s);
    memcpy(&h, s.handle, sizeof h);
    cr_assert_eq(connect_with(foreign), -EPROTO);
    cr_assert_eq(link_log_count("all ranks of a communicator must load the same net plugin"), 1);
    h.token[3] ^= 1;
    cr_assert_eq(connect_with(&h), -EPROTO);
    cr_assert_eq(link_log_count("damaged"), 1);
    memcpy(&h, s.handle, sizeof h);
    h.version = PROTO_VERSION + 1;
    cr_assert_eq(connect_with(&h), -EPROTONOSUPPORT);
    cr_assert_eq(link_log_count("protocol version 4, this library speaks 3"), 1);
    memset(h.addrs, 0, sizeof h.addrs);
    proto_handle_seal(&h);
    cr_assert_eq(connect_with(&h), -EPROTO);
    /* Its first two bytes are an address family that no system has. */
    cr_assert_gt(s.handle[0] | s.handle[1] << 8, AF_MAX);
    listen_close(&s);
}

Test(conn, host_that_merely_has_the_address_is_not_the_peer)
{
    struct listening s, other;
    struct proto_handle h, o;
    struct link l = {0};

    link_capture_log();
    listen_open(&s);
    listen_open(&other);
    memcpy(&h, s.handle, sizeof h);
    memcpy(&o, other.handle, sizeof o);
    h.addrs[1] = h.addrs[0];
    h.addrs[0] = o.addrs[0]; /* another job answers on the first address */
    proto_handle_seal(&h);
    l.b = s.t;
    l.listen = s.l;
    l.a = link_transport(LINK_FROM);
    {
        uint64_t deadline = holmes_deadline_ms(2000);
        int sent = -EAGAIN, got = -EAGAIN;
        struct holmes_conn *none;

        while (sent == -EAGAIN || got == -EAGAIN) {
            cr_assert(!holmes_deadline_passed(deadline), "not over the second address in 2 s");
            if (sent == -EAGAIN)
                sent = holmes_connect(l.a, NULL, 0, &h, &l.send);
            if (got == -EAGAIN)
                got = holmes_accept(l.listen, &l.recv);
            cr_assert_eq(holmes_accept(other.l, &none), -EAGAIN);
        }
        cr_assert(sent == 0 && got == 0);
    }
    holmes_conn_close(l.send);
    holmes_conn_close(l.recv);
    holmes_transport_destroy(l.a);
    listen_close(&s);
    listen_close(&other);
}

Test(conn, address_that_drops_packets_is_passed_over)
{
    struct listening s;
    struct proto_handle h;
    struct sockaddr_in hole = {.sin_family = AF_INET};
    struct link l = {0};
    int full = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), filler[8];
    socklen_t len = sizeof hole;
    uint64_t start;

    /* A listener with a full backlog drops every further SYN, like a rail that is not routed. */
    hole.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(bind(full, (struct sockaddr *)&hole, sizeof hole), 0);
    cr_assert_eq(listen(full, 0), 0);
    cr_assert_eq(getsockname(full, (struct sockaddr *)&hole, &len), 0);
    for (int i = 0; i < 8; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)!connect(filler[i], (struct sockaddr *)&hole, sizeof hole);
    }
    listen_open(&s);
    memcpy(&h, s.handle, sizeof h);
    h.addrs[1] = h.addrs[0];
    proto_addr_encode((struct sockaddr *)&hole, ntohs(hole.sin_port), &h.addrs[0]);
    proto_handle_seal(&h);
    l.b = s.t;
    l.listen = s.l;
    l.a = link_transport(LINK_FROM);
    start = holmes_now_ns();
    cr_assert_eq(link_try_connect(&l, &h), 0);
    cr_assert_lt(holmes_now_ns() - start, patience_ns(2000));
    holmes_conn_close(l.send);
    holmes_conn_close(l.recv);
    holmes_transport_destroy(l.a);
    listen_close(&s);
    for (int i = 0; i < 8; i++)
        close(filler[i]);
    close(full);
}

Test(conn, nobody_there_is_refused_in_bounded_time)
{
    struct listening s;
    uint8_t handle[HOLMES_HANDLE_SIZE];
    struct holmes_transport *t;
    struct holmes_conn *c;
    uint64_t start = holmes_now_ns();
    int rc;

    link_capture_log();
    listen_open(&s);
    memcpy(handle, s.handle, sizeof handle);
    listen_close(&s);
    t = link_transport(LINK_FROM);
    while ((rc = holmes_connect(t, NULL, 0, handle, &c)) == -EAGAIN)
        ;
    cr_assert_eq(rc, -ECONNREFUSED);
    cr_assert_lt(holmes_now_ns() - start, patience_ns(10000));
    cr_assert_eq(link_log_count("cannot connect to "), 1);
    holmes_transport_destroy(t);
}

Test(conn, peer_that_never_answers_times_out)
{
    struct listening s;
    struct holmes_transport *t;
    struct holmes_conn *c;
    uint64_t start;
    int rc;

    setenv("HOLMES_CONNECT_TIMEOUT", "1", 1);
    link_capture_log();
    listen_open(&s); /* never polled */
    t = link_transport(LINK_FROM);
    start = holmes_now_ns();
    while ((rc = holmes_connect(t, NULL, 0, s.handle, &c)) == -EAGAIN)
        ;
    cr_assert_eq(rc, -ETIMEDOUT);
    cr_assert_lt(holmes_now_ns() - start, patience_ns(5000));
    cr_assert_eq(link_log_count("within HOLMES_CONNECT_TIMEOUT=1 s"), 1);
    holmes_transport_destroy(t);
    listen_close(&s);
}

Test(conn, accept_gives_up_after_its_own_deadline)
{
    struct listening s;
    struct holmes_conn *c;
    int rc;

    setenv("HOLMES_ACCEPT_TIMEOUT", "1", 1);
    listen_open(&s);
    while ((rc = holmes_accept(s.l, &c)) == -EAGAIN)
        ;
    cr_assert_eq(rc, -ETIMEDOUT);
    listen_close(&s);
}

/* ---- the peer dies (case C8) ---- */

/* A process that accepts, posts four receives, tells so, and waits to be killed. With `with_child`
 * it forks, and that process lives on. */
static int receive_until_killed(const void *with_child, const int *fds)
{
    const int handle_fd = fds[0], ready_fd = fds[1], life_fd = fds[2];
    struct listening s;
    struct holmes_conn *c;
    static char buf[4][4096];
    struct holmes_mr *mr;

    listen_open(&s);
    if (write(handle_fd, s.handle, sizeof s.handle) != sizeof s.handle)
        return 1;
    while (holmes_accept(s.l, &c) == -EAGAIN)
        ;
    if (holmes_mr_reg(c, buf, sizeof buf, &mr) != 0)
        return 2;
    for (int i = 0; i < 4; i++)
        link_irecv(c, buf[i], sizeof buf[i], 1, mr);
    if (*(const bool *)with_child && fork() == 0) {
        /* Holds whatever it inherited until its pipe closes. */
        char byte;

        (void)!read(life_fd, &byte, 1);
        _exit(0);
    }
    (void)!write(ready_fd, "r", 1);
    for (;;)
        pause();
}

static void killed_peer(bool with_child)
{
    struct holmes_transport *t;
    struct holmes_conn *c;
    struct holmes_request *r;
    struct holmes_mr *mr;
    static char buf[8192];
    uint8_t handle[HOLMES_HANDLE_SIZE];
    int to_parent[2], ready[2], life[2], rc;
    char byte;
    pid_t pid;
    uint64_t killed;
    bool done;

    cr_assert(pipe2(to_parent, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0 &&
              pipe2(life, O_CLOEXEC) == 0);
    pid = spawn(receive_until_killed, &with_child, sizeof with_child,
                (const int[]){to_parent[1], ready[1], life[0]}, 3);
    cr_assert_gt(pid, 0);
    close(life[0]);
    cr_assert_eq(read(to_parent[0], handle, sizeof handle), (ssize_t)sizeof handle);
    t = link_transport(LINK_FROM);
    while ((rc = holmes_connect(t, NULL, 0, handle, &c)) == -EAGAIN)
        ;
    cr_assert_eq(rc, 0);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    cr_assert_eq(holmes_mr_reg(c, buf, sizeof buf, &mr), 0);
    r = link_isend(c, buf, 4096, 1, mr);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    killed = holmes_now_ns();
    do {
        done = false;
        rc = r ? holmes_test(r, &done, NULL) : holmes_isend(c, buf, 4096, 1, mr, &r);
        if (rc == -EAGAIN)
            rc = 0;
        if (done) /* RDMA needs no peer to deliver to its memory, nor one stream to its kernel */
            r = NULL;
        cr_assert(!done || c->limits.delivers, "done, and nobody was there to receive");
    } while (rc == 0 && holmes_now_ns() - killed < patience_ns(10000));
    cr_assert_eq(rc, -ECONNRESET, "%s said %d", r ? "test" : "isend", rc);
    cr_assert_lt(holmes_now_ns() - killed, patience_ns(2000), "noticed too late");
    cr_assert_eq(holmes_isend(c, buf, 1, 1, mr, &r), -ECONNRESET);
    holmes_mr_dereg(c, mr);
    killed = holmes_now_ns();
    holmes_conn_close(c);
    cr_assert_lt(holmes_now_ns() - killed, patience_ns(5000));
    holmes_transport_destroy(t);
    close(life[1]);
    { /* a new pair in the same process works */
        struct link l;

        link_open(&l);
        link_close(&l);
    }
}

Test(conn, killed_peer_is_noticed_within_two_seconds)
{
    killed_peer(false);
}

Test(conn, killed_peer_is_noticed_although_its_forked_child_lives_on)
{
    killed_peer(true);
}

Test(conn, orderly_close_is_quiet_when_nothing_is_under_way)
{
    struct link l;
    struct holmes_request *r;
    char buf[8];
    struct holmes_mr *mr;
    void *p = buf;
    size_t len = 8;
    int tag = 1, rc;
    uint64_t deadline = holmes_deadline_ms(5000);

    link_capture_log();
    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.recv, buf, 8, &mr), 0);
    holmes_conn_close(l.send);
    l.send = NULL;
    while ((rc = holmes_irecv(l.recv, 1, &p, &len, &tag, &mr, &r)) == -EAGAIN || rc == 0) {
        if (rc == 0) { /* taken before the close was seen: the request must fail */
            bool done;

            while ((rc = holmes_test(r, &done, NULL)) == 0)
                cr_assert(!holmes_deadline_passed(deadline));
            break;
        }
        cr_assert(!holmes_deadline_passed(deadline));
    }
    cr_assert_eq(rc, -ECONNRESET, "%s", strerror(-rc));
    holmes_mr_dereg(l.recv, mr);
    link_close(&l);
}

/* What the end tells is heard after the clock was read. */
Test(conn, message_that_the_end_confirms_is_no_stall)
{
    struct holmes_request *send, *recv;
    struct holmes_mr *from, *to;
    struct link l;
    char buf[16];
    uint64_t ask;

    link_capture_log();
    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.send, buf, 8, &from), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, buf + 8, 8, &to), 0);
    recv = link_irecv(l.recv, buf + 8, 8, 1, to);
    send = link_isend(l.send, buf, 8, 1, from);
    /* Long enough for the sender to look at its handshake socket when it is asked. */
    ask = l.send->next_oob_ns;
    cr_assert_eq(link_wait(recv), 8u);
    holmes_mr_dereg(l.recv, to);
    while (holmes_now_ns() <= ask)
        conn_progress(l.recv);
    holmes_conn_close(l.recv);
    l.recv = NULL;
    link_wait(send);
    cr_assert_eq(link_log_count("nothing moved"), 0);
    holmes_mr_dereg(l.send, from);
    link_close(&l);
}

/* What a peer that is gone has not acknowledged it never will. */
Test(conn, closing_after_the_peer_waits_for_nothing)
{
    uint64_t closing_ns = 0;
    struct link l;

    link_open(&l);
    for (int i = 0; i < 20; i++) {
        struct holmes_request *send, *recv;
        struct holmes_mr *from, *to;
        char buf[16];

        cr_assert_eq(holmes_mr_reg(l.send, buf, 8, &from), 0);
        cr_assert_eq(holmes_mr_reg(l.recv, buf + 8, 8, &to), 0);
        /* The sender leaves before it has read its clear-to-send. */
        if (!holmes_isend(l.send, buf, 8, 1, from, &send) && send)
            link_wait(send);
        recv = link_irecv(l.recv, buf + 8, 8, 1, to);
        if (send)
            link_wait(recv);
        holmes_mr_dereg(l.send, from);
        holmes_conn_close(l.send);
        closing_ns -= holmes_now_ns();
        holmes_mr_dereg(l.recv, to);
        holmes_conn_close(l.recv);
        closing_ns += holmes_now_ns();
        link_connect(&l);
    }
    link_close(&l);
    cr_assert_lt(closing_ns, patience_ns(1000));
}

/* What a receiver holds back leaves without its caller, by a thread. */
Test(conn, no_thread_is_left_when_the_last_connection_is_closed)
{
    const int held = test_nics()->ops->cq_push != NULL;
    struct link l;

    link_open(&l);
    for (int i = 0; i < 3; i++) {
        int before = holmes_self_threads();
        struct holmes_request *send, *recv;
        struct holmes_mr *from, *to;
        char buf[16];

        cr_assert_eq(holmes_mr_reg(l.send, buf, 8, &from), 0);
        cr_assert_eq(holmes_mr_reg(l.recv, buf + 8, 8, &to), 0);
        recv = link_irecv(l.recv, buf + 8, 8, 1, to);
        cr_assert_eq(holmes_self_threads(), before + held);
        send = link_isend(l.send, buf, 8, 1, from);
        cr_assert_eq(link_wait_both(send, recv), 8u);
        holmes_mr_dereg(l.send, from);
        holmes_mr_dereg(l.recv, to);
        holmes_conn_close(l.send);
        holmes_conn_close(l.recv);
        cr_assert_eq(holmes_self_threads(), before, "a thread is left");
        link_connect(&l);
    }
    link_close(&l);
}

/* Stands still in cq_poll, where the thread of what is held settles a connection. */
static struct {
    sem_t entered, go_on;
    atomic_bool used, timed_out;
} still;

static int stand_still(struct wire_cq *cq, struct wire_event *events, int max)
{
    struct timespec until;

    if (!atomic_exchange(&still.used, true)) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += (time_t)(5 * patience());
        sem_post(&still.entered);
        if (sem_timedwait(&still.go_on, &until) != 0)
            atomic_store(&still.timed_out, true);
    }
    return test_nics()->ops->cq_poll(cq, events, max);
}

/* A clear-to-send of the connection's is held from now on. */
static struct holmes_request *receive_held(struct holmes_conn *c, char *buf, struct holmes_mr **mr)
{
    cr_assert_eq(holmes_mr_reg(c, buf, 8, mr), 0);
    return link_irecv(c, buf, 8, 1, *mr);
}

Test(conn, one_that_takes_long_to_settle_holds_nobody_up)
{
    struct wire_ops slow_ops = *test_nics()->ops;
    struct holmes_mr *mr, *slow_mr;
    char buf[8], slow_buf[8];
    struct holmes_conn *slow;
    struct link l, other;

    if (!slow_ops.cq_push)
        return; /* nothing is held on this wire */
    cr_assert(sem_init(&still.entered, 0, 0) == 0 && sem_init(&still.go_on, 0, 0) == 0);
    link_open(&l);
    other = l;
    link_connect(&other);
    slow = l.recv;
    slow_ops.cq_poll = stand_still;
    slow->ops = &slow_ops;
    atomic_store(&still.used, true); /* not by this thread */
    receive_held(slow, slow_buf, &slow_mr);
    atomic_store(&still.used, false);
    cr_assert_eq(sem_wait(&still.entered), 0);
    receive_held(other.recv, buf, &mr);
    holmes_mr_dereg(other.recv, mr);
    holmes_conn_close(other.recv);
    holmes_conn_close(other.send);
    cr_expect(!atomic_load(&still.timed_out), "they waited for it");
    sem_post(&still.go_on);
    holmes_mr_dereg(slow, slow_mr);
    link_close(&l); /* waits for the thread that is at it */
}

/* The child is a copy of this thread alone: locks that others hold stay locked in it. */
static void fork_under(pthread_mutex_t *lock, struct link *l, struct holmes_mr *mr)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)patience_ms(5000));
    pid_t child, ended = 0;
    int status = -1;

    pthread_mutex_lock(lock);
    child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        int fds[16];
        bool closed, open = true;

        for (int i = 0; i < 16; i++) /* numbers that the parent's sockets have there */
            fds[i] = dup(0);
        holmes_mr_dereg(l->recv, mr);
        closed = holmes_conn_close(l->recv) || holmes_conn_close(l->send) ||
                 holmes_listen_close(l->listen);
        holmes_transport_destroy(l->b);
        for (int i = 0; i < 16; i++)
            open = open && fcntl(fds[i], F_GETFD) >= 0;
        _exit(closed ? 1 : open ? 0 : 2);
    }
    pthread_mutex_unlock(lock);
    while (ended == 0 && !holmes_deadline_passed(deadline)) {
        ended = waitpid(child, &status, WNOHANG);
        sched_yield();
    }
    if (ended == 0)
        kill(child, SIGKILL);
    cr_expect_eq(ended, child, "the child hangs");
    cr_expect_eq(status, 0, "status %x", status);
}

Test(conn, forked_child_may_close_what_its_parent_opened)
{
    uint8_t handle[HOLMES_HANDLE_SIZE];
    struct holmes_request *send, *recv;
    struct holmes_mr *from, *to;
    /* The child has no pages with something registered: not on the stack. */
    static _Alignas(65536) char out[65536] = "221b", in[65536];
    struct link l;

    link_open(&l);
    cr_assert_eq(holmes_listen(l.b, &l, 0, handle, &l.listen), 0);
    cr_assert_eq(holmes_mr_reg(l.send, out, 8, &from), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, in, 8, &to), 0);
    fork_under(&l.recv->t->held.lock, &l, to);
    fork_under(&l.recv->t->lock, &l, to);
    fork_under(&l.recv->lock, &l, to);
    recv = link_irecv(l.recv, in, 8, 1, to);
    send = link_isend(l.send, out, 8, 1, from);
    cr_assert_eq(link_wait_both(send, recv), 8u);
    cr_expect_str_eq(in, "221b");
    holmes_mr_dereg(l.send, from);
    holmes_mr_dereg(l.recv, to);
    link_close(&l);
}

/* ---- memory registration (case C9) ---- */

Test(conn, deregistering_under_a_posted_receive_cancels_it)
{
    struct link l;
    char *buf = malloc(4096);
    struct holmes_mr *mr;
    struct holmes_request *r;

    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.recv, buf, 4096, &mr), 0);
    r = link_irecv(l.recv, buf, 4096, 1, mr);
    cr_assert_eq(holmes_mr_dereg(l.recv, mr), 0);
    free(buf);
    cr_assert_eq(link_wait_error(r), -ECANCELED);
    { /* for the sender it is the peer that failed */
        uint64_t deadline = holmes_deadline_ms(5000);
        int rc;

        while ((rc = holmes_isend(l.send, NULL, 0, 1, NULL, &r)) == -EAGAIN)
            cr_assert(!holmes_deadline_passed(deadline));
        if (rc == 0) /* the receive had been seen already */
            rc = link_wait_error(r);
        cr_assert_eq(rc, -ECONNABORTED, "%s", strerror(-rc));
    }
    link_close(&l);
}

Test(conn, equal_ranges_share_a_registration_and_neighbours_do_not)
{
    struct link l;
    char *page = aligned_alloc(4096, 4096);
    struct holmes_mr *a, *b, *c, *again;

    link_open(&l);
    cr_assert_eq(holmes_mr_reg(l.recv, page, 100, &a), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, page + 100, 100, &b), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, page, 200, &c), 0);
    cr_assert(a != b && a != c && b != c, "each handle covers its own range");
    cr_assert_eq(holmes_mr_reg(l.recv, page + 100, 100, &again), 0);
    cr_assert_eq(again, b);
    holmes_mr_dereg(l.recv, a);
    holmes_mr_dereg(l.recv, b);
    holmes_mr_dereg(l.recv, c);
    cr_assert_eq(holmes_mr_reg(l.recv, page + 100, 100, &a), 0);
    cr_assert_eq(a, again, "still held once");
    holmes_mr_dereg(l.recv, a);
    holmes_mr_dereg(l.recv, again);
    cr_assert_eq(holmes_mr_reg(l.recv, page, 0, &a), -EINVAL);
    link_close(&l);
    free(page);
}

/* ---- descriptors and ports (cases C10, C13) ---- */

Test(conn, thousand_cycles_leave_no_descriptor)
{
    struct link l;
    int before = 0;

    link_open(&l);
    for (int i = 0; i < 1000; i++) {
        struct holmes_conn *s = l.send, *r = l.recv;

        link_connect(&l);
        holmes_conn_close(i & 1 ? s : r);
        holmes_conn_close(i & 1 ? r : s);
        if (i == 10)
            before = holmes_self_fds();
    }
    cr_assert_eq(holmes_self_fds(), before);
    link_close(&l);
}

Test(conn, too_few_descriptors_name_the_limit_and_spare_older_connections)
{
    struct link l;
    struct holmes_conn *sends[64] = {0}, *recvs[64] = {0};
    struct rlimit limit;
    int n = 0, rc = 0;

    link_capture_log();
    link_open(&l);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = (rlim_t)holmes_self_fds() + 24;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (rc == 0 && n < 64) {
        uint8_t handle[HOLMES_HANDLE_SIZE];

        sends[n] = l.send;
        recvs[n++] = l.recv;
        l.send = l.recv = NULL;
        cr_assert_eq(holmes_listen(l.b, &l, 0, handle, &l.listen), 0);
        rc = link_try_connect(&l, handle);
        holmes_listen_close(l.listen);
        l.listen = NULL;
    }
    cr_assert(rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ECONNRESET,
              "64 connections fit 24 descriptors? %d", rc);
    cr_assert_gt(link_log_count("RLIMIT_NOFILE"), 0);
    limit.rlim_cur = limit.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    { /* the first connection goes on */
        char from = 'a', to = 'b';
        struct holmes_mr *fm, *tm;
        struct holmes_request *r, *s;

        cr_assert_eq(holmes_mr_reg(sends[0], &from, 1, &fm), 0);
        cr_assert_eq(holmes_mr_reg(recvs[0], &to, 1, &tm), 0);
        r = link_irecv(recvs[0], &to, 1, 1, tm);
        s = link_isend(sends[0], &from, 1, 1, fm);
        link_wait_both(s, r);
        cr_assert_eq(to, 'a');
        holmes_mr_dereg(sends[0], fm);
        holmes_mr_dereg(recvs[0], tm);
    }
    for (int i = 0; i < n; i++) {
        holmes_conn_close(sends[i]);
        holmes_conn_close(recvs[i]);
    }
    link_close(&l);
}

Test(conn, many_listens_share_one_port_inside_the_range)
{
    struct holmes_transport *t;
    struct holmes_listen *l[1000];
    uint16_t port = 0;
    char range[32];
    uint16_t first = free_port();
    struct proto_handle h;

    snprintf(range, sizeof range, "%u-%u", first, first + 20); /* some of which may be taken */
    setenv("HOLMES_PORT_RANGE", range, 1);
    t = link_transport(LINK_FROM);
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(holmes_listen(t, NULL, 0, &h, &l[i]), 0);
        cr_assert(port == 0 || port == h.addrs[0].port);
        port = h.addrs[0].port;
    }
    for (int i = 0; i < 1000; i++)
        holmes_listen_close(l[i]);
    holmes_transport_destroy(t);
}

Test(conn, exhausted_port_range_is_refused_by_name)
{
    struct listening s;
    struct holmes_transport *t;
    struct proto_handle h;
    struct holmes_nic nics[2];
    char range[32];
    int n;

    link_capture_log();
    listen_open(&s);
    memcpy(&h, s.handle, sizeof h);
    snprintf(range, sizeof range, "%u-%u", h.addrs[0].port, h.addrs[0].port);
    setenv("HOLMES_PORT_RANGE", range, 1);
    n = link_nics(LINK_FROM, nics);
    cr_assert_eq(holmes_transport_create(nics, n, &t), -EADDRINUSE);
    cr_assert_eq(link_log_count(range), 1);
    listen_close(&s);
}

Test(conn, reap_closes_what_an_aborted_owner_left)
{
    struct listening s;
    struct holmes_transport *t;
    struct holmes_conn *c;
    int fds, owner;

    listen_open(&s);
    t = link_transport(LINK_FROM);
    {
        uint8_t warm[HOLMES_HANDLE_SIZE];
        struct holmes_listen *l;

        cr_assert_eq(holmes_listen(t, &owner, 0, warm, &l), 0); /* opens the NIC */
    }
    fds = holmes_self_fds();
    for (int i = 0; i < 10; i++)
        cr_assert_eq(holmes_connect(t, &owner, 0, s.handle, &c), -EAGAIN);
    cr_assert_gt(holmes_self_fds(), fds);
    holmes_transport_reap(t, &owner);
    cr_assert_eq(holmes_self_fds(), fds);
    holmes_transport_destroy(t);
    listen_close(&s);
}

/* Established TCP streams of this network namespace whose far end is the IPv4 address. */
static int streams_to(const char *ip)
{
    FILE *f = fopen("/proc/self/net/tcp", "re");
    char line[512];
    struct in_addr want;
    int n = 0;

    cr_assert_not_null(f);
    cr_assert_eq(inet_pton(AF_INET, ip, &want), 1);
    while (fgets(line, sizeof line, f)) {
        unsigned address, port, state;

        if (sscanf(line, "%*d: %*8x:%*x %8x:%x %x", &address, &port, &state) == 3 &&
            address == want.s_addr && state == 1)
            n++;
    }
    fclose(f);
    return n;
}

/* Behind a gateway: the peer reaches the host, handshake and lanes, under an address that is none
 * of its NICs'. */
Test(conn, advertised_address_carries_handshake_and_lanes)
{
    struct link l = {0};
    struct holmes_conn_stats stats;
    char from = 'v', to = '-';
    struct holmes_mr *fm, *tm;
    struct holmes_request *s, *r;
    char ip[32];

    /* Of this process alone, since streams are counted by it. */
    snprintf(ip, sizeof ip, "127.%d.%d.9", 1 + getpid() / 250 % 250, 1 + getpid() % 250);
    l.a = link_transport(LINK_FROM);
    setenv("HOLMES_ADVERTISE", ip, 1);
    l.b = link_transport(LINK_TO);
    link_connect(&l);
    holmes_conn_get_stats(l.send, &stats);
    cr_assert(strstr(stats.peer, ip), "%s", stats.peer);
    cr_assert_eq(streams_to(ip), test_nics()->ops->rdma ? 1 : 2, "handshake and one lane");
    cr_assert_eq(holmes_mr_reg(l.send, &from, 1, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, &to, 1, &tm), 0);
    r = link_irecv(l.recv, &to, 1, 1, tm);
    s = link_isend(l.send, &from, 1, 1, fm);
    link_wait_both(s, r);
    cr_assert_eq(to, 'v');
    holmes_mr_dereg(l.send, fm);
    holmes_mr_dereg(l.recv, tm);
    link_close(&l);
}

Test(conn, advertised_addresses_that_are_none_are_refused)
{
    struct holmes_transport *t;
    struct holmes_listen *l;
    uint8_t handle[HOLMES_HANDLE_SIZE];

    for (const char *const *bad = (const char *const[]){"gateway", "1.2.3.4,x", ",", "1.2.3",
                                                        "1.1.1.1,2.2.2.2,3.3.3.3,4.4.4.4", NULL};
         *bad; bad++) {
        setenv("HOLMES_ADVERTISE", *bad, 1);
        link_capture_log();
        t = link_transport(LINK_FROM);
        cr_assert_eq(holmes_listen(t, NULL, 0, handle, &l), -EINVAL, "%s was taken", *bad);
        cr_assert_eq(link_log_count("one to three IP addresses are right"), 1, "%s", *bad);
        holmes_transport_destroy(t);
    }
}

Test(conn, source_address_is_the_nics)
{
    struct holmes_nic nic = test_loopback_nic("127.0.0.3");
    struct link l = {0};
    struct holmes_conn_stats stats;

    cr_assert_eq(holmes_transport_create(&nic, 1, &l.a), 0);
    nic = test_loopback_nic("127.0.0.2");
    cr_assert_eq(holmes_transport_create(&nic, 1, &l.b), 0);
    link_connect(&l);
    holmes_conn_get_stats(l.send, &stats);
    cr_assert(strstr(stats.local, "127.0.0.3"), "%s", stats.local);
    cr_assert(strstr(stats.peer, "127.0.0.2"), "%s", stats.peer);
    holmes_conn_get_stats(l.recv, &stats);
    cr_assert(strstr(stats.peer, "127.0.0.3"), "%s", stats.peer);
    link_close(&l);
}
