/* Strangers on the listening ports, and peers that die, stop or leave. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/patience.h"
#include "../support/spawn.h"
#include "clock.h"
#include "pair.h"
#include "self.h"
#include "trace.h"

TestSuite(peers, .timeout = 240);

/* ---- strangers ---- */

struct stranger {
    const char *what;
    const void *bytes;
    size_t len;
    bool stays; /* silent after its bytes, instead of closing */
};

static int dial(int port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (const struct sockaddr *)&sa, sizeof sa), 0, "port %d: %s", port,
                 strerror(errno));
    return fd;
}

/* The socket, still open when the stranger stays; else -1. */
static int knock(int port, const struct stranger *s)
{
    int fd = dial(port);

    if (s->len > 0)
        cr_assert_gt(send(fd, s->bytes, s->len, MSG_NOSIGNAL), 0);
    if (s->stays)
        return fd;
    close(fd);
    return -1;
}

Test(peers, strangers_do_not_keep_the_true_peer_out)
{
    static uint8_t garbage[65536];
    const struct stranger strangers[] = {
        {"nothing", NULL, 0, false},
        {"three bytes", "abc", 3, false},
        {"a web client", "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 34, false},
        {"garbage", garbage, sizeof garbage, false},
        {"silence", NULL, 0, true},
        {"three bytes and silence", "abc", 3, true},
        {"garbage and silence", garbage, sizeof garbage, true},
    };
    enum { N = sizeof strangers / sizeof *strangers };
    int open_fds[2 * N], nopen = 0, ports[4], nports, fds;
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    uint64_t begin;
    void *listen;
    struct pair p;

    for (size_t i = 0; i < sizeof garbage; i++)
        garbage[i] = (uint8_t)(i * 167 + 13);
    private_loopback();
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    pair_init(&p, 12);
    pair_connect(&p);
    nports = listening_ports(ports, 4);
    cr_assert_eq(nports, 2, "one port for the handshake, one for lanes: %d", nports);
    fds = holmes_self_fds();

    cr_assert_eq(net_listen(&p.api, p.ctx, 0, handle, &listen), ncclSuccess);
    for (int i = 0; i < nports; i++) {
        for (int k = 0; k < N; k++) {
            int fd = knock(ports[i], &strangers[k]);

            if (fd >= 0)
                open_fds[nopen++] = fd;
        }
    }
    begin = holmes_now_ns();
    while (holmes_now_ns() - begin < 300000000u) {
        void *comm = NULL;

        cr_assert_eq(net_accept(&p.api, listen, &comm), ncclSuccess, "%s", log_text());
        cr_assert_null(comm, "a stranger was accepted");
    }
    begin = holmes_now_ns();
    {
        void *send = NULL, *recv = NULL;

        while (!send || !recv) {
            cr_assert_lt(holmes_now_ns() - begin, patience_ns(1000), "not within a second:\n%s",
                         log_text());
            if (!send)
                cr_assert_eq(net_connect(&p.api, p.ctx, 0, handle, &send), ncclSuccess);
            if (!recv)
                cr_assert_eq(net_accept(&p.api, listen, &recv), ncclSuccess);
        }
        cr_assert_eq(net_close_send(&p.api, send), ncclSuccess);
        cr_assert_eq(net_close_recv(&p.api, recv), ncclSuccess);
    }
    pair_move(&p, 100000, 100000);
    for (int i = 0; i < nopen; i++)
        close(open_fds[i]);
    /* Both ports are looked after while somebody polls: accepts the one, connections the other. */
    for (uint64_t until = holmes_deadline_ms(10000);
         holmes_self_fds() > fds && !holmes_deadline_passed(until);) {
        void *comm = NULL;

        net_accept(&p.api, listen, &comm);
        pair_move(&p, 8, 8);
    }
    cr_expect_eq(holmes_self_fds(), fds, "%d descriptors instead of %d", holmes_self_fds(), fds);
    cr_expect_leq(log_count(NCCL_LOG_WARN, ""), nports * N, "more than a line each:\n%s",
                  log_text());
    cr_assert_eq(net_close_listen(&p.api, listen), ncclSuccess);
    pair_move(&p, 100000, 100000);
    pair_fini(&p);
}

/* ---- peers that die ---- */

static const size_t big[8] = {1048576, 1048576, 1048576, 1048576,
                              1048576, 1048576, 1048576, 1048576};

static struct op big_op(struct rank *r, bool sending)
{
    return (struct op){
        .sending = sending,
        .ch = &r->channels[0],
        .proto = SIMPLE,
        .sizes = big,
        .nmsgs = 8,
        .recv_max = trace_recv_max(SIMPLE),
        .depth = trace_depth(SIMPLE),
        .stride = trace_stride(SIMPLE),
        .seed = 99,
        .tag = sending ? r->rank : 1 - r->rank,
    };
}

enum death {
    KILLED,            /* SIGKILL */
    KILLED_WITH_CHILD, /* while a forked child keeps its descriptors */
    LEFT,              /* closed in order and exited */
};

struct victim {
    pid_t pid;
    pid_t child; /* its forked child, or 0 */
};

/* Rank 1, which dies on command. */
static int victim_entry(const void *arg, const int *fds)
{
    static struct rank rank;
    struct rank *r = &rank;
    enum death death;
    pid_t child = 0;
    char command;

    memcpy(&death, arg, sizeof death);
    rank_setup(r, HOLMES_PLUGIN, 12, 1, fds[0], NULL);
    if (!rank_init(r) || !rank_connect(r, 1))
        return 1;
    if (death == KILLED_WITH_CHILD) {
        child = fork();
        if (child == 0) {
            close(fds[0]);
            for (;;)
                pause();
        }
    }
    if (send(fds[0], &child, sizeof child, MSG_NOSIGNAL) != sizeof child ||
        read(fds[0], &command, 1) != 1)
        return 1;
    if (death == LEFT)
        rank_destroy(r);
    for (;;)
        pause();
}

static struct victim victim_start(enum death death, int *boot)
{
    struct victim v = {0};
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    v.pid = spawn(victim_entry, &death, sizeof death, &pair[1], 1);
    cr_assert_gt(v.pid, 0);
    close(pair[1]);
    *boot = pair[0];
    return v;
}

static void victim_end(struct victim *v)
{
    if (v->child > 0)
        kill(v->child, SIGKILL);
    kill(v->pid, SIGKILL);
    waitpid(v->pid, NULL, 0);
}

/* How long the operation took to end in ncclRemoteError after the peer went. */
static void expect_death_noticed(enum death death, bool sending)
{
    static struct rank rank;
    struct rank *r = &rank;
    struct victim v;
    struct op op;
    uint64_t begin;
    int boot;

    v = victim_start(death, &boot);
    rank_setup(r, HOLMES_PLUGIN, 12, 0, boot, NULL);
    cr_assert(rank_init(r) && rank_connect(r, 1), "%s", r->failure);
    cr_assert_eq(recv(boot, &v.child, sizeof v.child, MSG_WAITALL), sizeof v.child);
    op = big_op(r, sending);
    rank_start(r, &op, 1);
    if (!sending)
        cr_assert(rank_wait_posted(r, &op, 4), "%s", r->failure);
    begin = holmes_now_ns();
    if (death == LEFT)
        cr_assert_eq(write(boot, "x", 1), 1);
    else
        kill(v.pid, SIGKILL);
    cr_expect(rank_wait_finished(r, &op, patience_ms(2000)), "not noticed: %s", r->failure);
    cr_expect_eq(op.result, ncclRemoteError, "%d", op.result);
    begin = holmes_now_ns();
    cr_expect(rank_destroy(r), "%s", r->failure);
    cr_expect_lt(holmes_now_ns() - begin, patience_ns(5000), "close waits for the dead");
    rank_fini(r);
    victim_end(&v);
}

static void expect_fresh_pair_works(void)
{
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    pair_move(&p, 300000, 300000);
    pair_fini(&p);
}

Test(peers, a_killed_peer_fails_receives)
{
    expect_death_noticed(KILLED, false);
    expect_fresh_pair_works();
}

Test(peers, a_killed_peer_fails_sends)
{
    expect_death_noticed(KILLED, true);
    expect_fresh_pair_works();
}

Test(peers, a_killed_peer_is_dead_although_its_child_lives)
{
    expect_death_noticed(KILLED_WITH_CHILD, false);
    expect_death_noticed(KILLED_WITH_CHILD, true);
    expect_fresh_pair_works();
}

Test(peers, a_peer_that_leaves_fails_what_is_outstanding)
{
    expect_death_noticed(LEFT, false);
    expect_death_noticed(LEFT, true);
    expect_fresh_pair_works();
}

/* An orderly end says 0, and errno is whatever it was. */
Test(peers, a_stale_errno_does_not_hide_the_end)
{
    static char buf[4096];
    void *request, *mr;
    uint64_t deadline = holmes_deadline_ms(patience_ms(2000));
    ncclResult_t rc = ncclSuccess;
    int done = 0, size;
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    cr_assert_eq(net_reg(&p.api, p.recv, buf, sizeof buf, &mr), ncclSuccess);
    request = pair_irecv(&p, buf, sizeof buf, mr);
    cr_assert_eq(net_close_send(&p.api, p.send), ncclSuccess);
    p.send = NULL;
    while (rc == ncclSuccess && !holmes_deadline_passed(deadline)) {
        errno = EAGAIN;
        rc = net_test(&p.api, request, &done, &size);
        cr_assert_eq(done, 0);
    }
    cr_expect_eq(rc, ncclRemoteError, "%d", rc);
    cr_assert_eq(net_dereg(&p.api, p.recv, mr), ncclSuccess);
    pair_fini(&p);
}

/* Send 1 is pending while send 2 fails; another thread closes all. */
static void *close_both(void *arg)
{
    struct pair *p = arg;

    net_close_send(&p->api, p->send);
    net_close_recv(&p->api, p->recv);
    p->send = p->recv = NULL;
    return NULL;
}

Test(peers, a_failing_send_beside_a_pending_one_is_closed_by_another_thread)
{
    static char out[2][65536], in[2][1024];
    void *out_mr, *in_mr, *first, *second = NULL;
    uint64_t deadline = holmes_deadline_ms(20000);
    ncclResult_t rc = ncclSuccess;
    pthread_t thread;
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    cr_assert_eq(net_reg(&p.api, p.send, out, sizeof out, &out_mr), ncclSuccess);
    cr_assert_eq(net_reg(&p.api, p.recv, in, sizeof in, &in_mr), ncclSuccess);
    pair_irecv(&p, in[0], 1024, in_mr);
    pair_irecv(&p, in[1], 1024, in_mr);
    first = pair_isend(&p, out[0], 1024, out_mr);
    while (rc == ncclSuccess && !second && !holmes_deadline_passed(deadline))
        rc = net_isend(&p.api, p.send, out[1], 65536, 0, out_mr, &second);
    cr_expect_eq(rc, ncclInvalidUsage, "%d, %s:\n%s", rc, second ? "taken" : "not taken",
                 log_text());
    (void)first;
    cr_assert_eq(pthread_create(&thread, NULL, close_both, &p), 0);
    pthread_join(thread, NULL);
    net_finalize(&p.api, p.ctx);
    net_close(&p.api);
    expect_fresh_pair_works();
}

/* ---- a peer that merely sleeps ---- */

static int sleeper_entry(const void *arg, const int *fds)
{
    static struct rank rank;
    struct rank *r = &rank;
    struct op op;

    (void)arg;
    rank_setup(r, HOLMES_PLUGIN, 12, 1, fds[0], NULL);
    if (!rank_init(r) || !rank_connect(r, 1) || !rank_barrier(r) || raise(SIGSTOP) != 0)
        return 1;
    op = big_op(r, true);
    return rank_run(r, &op, 1) && rank_barrier(r) && rank_destroy(r) ? 0 : 1;
}

/* Stopped for longer than HOLMES_PEER_TIMEOUT: its kernel still answers. */
Test(peers, a_stopped_process_is_not_dead)
{
    static struct rank rank;
    struct rank *r = &rank;
    int pair[2], status;
    struct op op;
    pid_t child;

    setenv("HOLMES_PEER_TIMEOUT", "3", 1);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    child = spawn(sleeper_entry, NULL, 0, &pair[1], 1);
    cr_assert_gt(child, 0);
    close(pair[1]);
    rank_setup(r, HOLMES_PLUGIN, 12, 0, pair[0], NULL);
    cr_assert(rank_init(r) && rank_connect(r, 1) && rank_barrier(r), "%s", r->failure);
    cr_assert_eq(waitpid(child, &status, WUNTRACED), child);
    cr_assert(WIFSTOPPED(status));
    op = big_op(r, false);
    rank_start(r, &op, 1);
    cr_assert(rank_wait_posted(r, &op, 4), "%s", r->failure);
    /* Ten seconds in which nothing may happen. */
    cr_expect(!rank_wait_ended(r, &op, 10000), "the stopped peer was declared dead: %d", op.result);
    kill(child, SIGCONT);
    cr_expect(rank_wait_finished(r, &op, 20000), "%s", r->failure);
    cr_expect_eq(op.result, ncclSuccess, "%d", op.result);
    cr_expect(rank_barrier(r) && rank_destroy(r), "%s", r->failure);
    rank_fini(r);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0);
}
