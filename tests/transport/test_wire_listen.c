/* How lanes of a wire over TCP find each other: secrets, strangers on the port, ports and
 * addresses. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/free_port.h"
#include "../support/patience.h"
#include "../support/spawn.h"
#include "clock.h"
#include "self.h"
#include "transport.h"
#include "transport/tcp_peer.h"
#include "wire_pair.h"

#define STRANGERS_MAX 64 /* that a NIC bears */

static const struct wire_ops *wire;

static void choose_wire(void)
{
    wire = test_nics()->ops;
}

TestSuite(wire_listen, .init = choose_wire);

static struct holmes_nic loopback_nic(void)
{
    return test_loopback_nic("127.0.0.1");
}

static void listen_end_open(struct wire_end *e)
{
    struct holmes_nic nic = loopback_nic();

    end_open(e, wire, &nic);
}

static struct sockaddr_in blob_address(const struct half *h)
{
    uint32_t magic = (uint32_t)h->blob[0] << 24 | h->blob[1] << 16 | h->blob[2] << 8 | h->blob[3];
    struct tcp_blob b;

    cr_assert_eq(tcp_blob_decode(magic, h->blob, h->len, &b), 0);
    return b.addr.in;
}

/* ---- secrets ------------------------------------------------------------------------------ */

Test(wire_listen, wrong_secret_is_rejected_and_the_true_peer_still_gets_up)
{
    struct wire_end a, b;
    struct half accepting, liar, honest;
    uint8_t forged[HOLMES_LANE_BLOB_MAX];

    listen_end_open(&a);
    listen_end_open(&b);
    accepting = half_make(&b, WIRE_ACCEPT);
    liar = half_make(&a, WIRE_CONNECT);
    honest = half_make(&a, WIRE_CONNECT);
    memcpy(forged, accepting.blob, accepting.len);
    forged[12] ^= 1; /* first byte of the secret */
    cr_assert_eq(wire->lane_connect(liar.lane, forged, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, &b, liar.lane, PAIR_TIMEOUT_MS), -ECONNREFUSED);
    cr_assert_eq(wire->lane_poll(accepting.lane), -EAGAIN);

    cr_assert_eq(wire->lane_connect(honest.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, &b, honest.lane, PAIR_TIMEOUT_MS), 0);
    cr_assert_eq(lane_wait(&b, &a, accepting.lane, PAIR_TIMEOUT_MS), 0);
    wire->lane_close(liar.lane);
    wire->lane_close(honest.lane);
    wire->lane_close(accepting.lane);
    end_close(&a);
    end_close(&b);
}

Test(wire_listen, secret_counts_once)
{
    struct wire_end a, b;
    struct half accepting, first, second;

    listen_end_open(&a);
    listen_end_open(&b);
    accepting = half_make(&b, WIRE_ACCEPT);
    first = half_make(&a, WIRE_CONNECT);
    second = half_make(&a, WIRE_CONNECT);
    cr_assert_eq(wire->lane_connect(first.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, &b, first.lane, PAIR_TIMEOUT_MS), 0);
    cr_assert_eq(wire->lane_connect(second.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, &b, second.lane, PAIR_TIMEOUT_MS), -ECONNREFUSED);
    cr_assert_eq(wire->lane_poll(first.lane), 0);
    cr_assert_eq(wire->lane_poll(accepting.lane), 0);
    wire->lane_close(first.lane);
    wire->lane_close(second.lane);
    wire->lane_close(accepting.lane);
    end_close(&a);
    end_close(&b);
}

Test(wire_listen, nobody_listening_is_connection_refused)
{
    struct wire_end a, b;
    struct half accepting, connecting;

    listen_end_open(&a);
    listen_end_open(&b);
    accepting = half_make(&b, WIRE_ACCEPT);
    connecting = half_make(&a, WIRE_CONNECT);
    wire->lane_close(accepting.lane);
    end_close(&b);
    cr_assert_eq(wire->lane_connect(connecting.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&a, NULL, connecting.lane, PAIR_TIMEOUT_MS), -ECONNREFUSED);
    cr_assert_eq(wire->lane_post(connecting.lane,
                                 &(struct wire_write){.flags = WIRE_WITH_IMM | WIRE_INLINE}),
                 -ECONNREFUSED);
    wire->lane_close(connecting.lane);
    end_close(&a);
}

/* ---- strangers ---------------------------------------------------------------------------- */

static int stranger_connect(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (const struct sockaddr *)to, sizeof *to), 0, "%s", strerror(errno));
    return fd;
}

static void stranger_say(const struct sockaddr_in *to, const void *bytes, size_t len)
{
    int fd = stranger_connect(to);

    if (len > 0)
        cr_assert_eq(send(fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
    close(fd);
}

/* Drives `e` until its process has `n` descriptors. errno is as any socket code leaves it. */
static bool wait_descriptors(struct wire_end *e, int n, int timeout_ms)
{
    uint64_t deadline = holmes_deadline_ms((uint64_t)timeout_ms);

    do {
        errno = EAGAIN;
        e->ops->nic_progress(e->wn);
        if (holmes_self_fds() == n)
            return true;
    } while (!holmes_deadline_passed(deadline));
    return false;
}

static void expect_pair_up_within(struct wire_end *a, struct wire_end *b, int timeout_ms)
{
    struct half accepting = half_make(b, WIRE_ACCEPT), connecting = half_make(a, WIRE_CONNECT);
    uint64_t start = holmes_now_ns();

    cr_assert_eq(wire->lane_connect(connecting.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(a, b, connecting.lane, timeout_ms), 0);
    cr_assert_eq(lane_wait(b, a, accepting.lane, timeout_ms), 0);
    cr_assert_lt(holmes_now_ns() - start, (uint64_t)timeout_ms * 1000000u);
    wire->lane_close(connecting.lane);
    wire->lane_close(accepting.lane);
}

/* The connect request of libfabric's provider with our private data replaced: what another
 * libfabric program, or another job, would send. */
static size_t foreign_request(uint8_t out[64], uint8_t version, uint16_t claimed)
{
    memset(out, 0, 64);
    out[0] = version; /* 3 in 1.17 */
    out[2] = (uint8_t)(claimed >> 8);
    out[3] = (uint8_t)claimed;
    out[24] = 1; /* byte order */
    memset(out + 32, 0x77, 32);
    return 64;
}

Test(wire_listen, strangers_cost_nothing_and_keep_nobody_out)
{
    static const char http[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    struct wire_end a, b;
    struct half probe;
    struct sockaddr_in port;
    uint8_t request[64];
    int before;

    listen_end_open(&a);
    listen_end_open(&b);
    probe = half_make(&b, WIRE_ACCEPT);
    port = blob_address(&probe);
    before = holmes_self_fds();
    for (int i = 0; i < 20; i++) {
        stranger_say(&port, "", 0);
        stranger_say(&port, "abc", 3);
        stranger_say(&port, http, strlen(http));
        foreign_request(request, 3, 16);
        stranger_say(&port, request, 64);
        foreign_request(request, 99, 16);
        stranger_say(&port, request, 64);
        foreign_request(request, 3, 0xffff);
        stranger_say(&port, request, 64);
        errno = EAGAIN;
        wire->nic_progress(b.wn);
    }
    expect_pair_up_within(&a, &b, patience_ms(1000));
    cr_assert(wait_descriptors(&b, before, PAIR_TIMEOUT_MS), "%d descriptors instead of %d",
              holmes_self_fds(), before);
    cr_assert_eq(wire->lane_poll(probe.lane), -EAGAIN);
    wire->lane_close(probe.lane);
    end_close(&a);
    end_close(&b);
}

/* With so many lanes that wait for their streams, ten strangers more than may be. */
static void silent_beyond_the_bound(int awaited)
{
    enum { AWAITED_MAX = 70, SILENT_MAX = STRANGERS_MAX + AWAITED_MAX * HOLMES_MAX_LANES + 10 };
    struct wire_end a, b;
    struct half probes[AWAITED_MAX];
    struct sockaddr_in port;
    int fds[SILENT_MAX], silent = STRANGERS_MAX + awaited * pair_streams() + 10, before, gone = 0;
    uint64_t deadline = holmes_deadline_ms(30000); /* they are looked for every few seconds */
    char byte;

    listen_end_open(&a);
    listen_end_open(&b);
    for (int i = 0; i < awaited; i++)
        probes[i] = half_make(&b, WIRE_ACCEPT);
    port = blob_address(&probes[0]);
    before = holmes_self_fds();
    for (int i = 0; i < silent; i++)
        fds[i] = stranger_connect(&port);
    expect_pair_up_within(&a, &b, patience_ms(1000));
    /* They are accepted in order, so the first ten are the oldest. */
    while (gone < 10 && !holmes_deadline_passed(deadline)) {
        wire->nic_progress(b.wn);
        if (recv(fds[gone], &byte, 1, MSG_DONTWAIT) >= 0 || errno == ECONNRESET)
            gone++;
    }
    cr_assert_eq(gone, 10);
    /* A wire may leave the awaited ones out of account when they are few. */
    for (int i = 10 + (awaited == 1); i < silent; i++)
        cr_assert(recv(fds[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN,
                  "stranger %d within the bound was dropped", i);
    for (int i = 0; i < silent; i++)
        close(fds[i]);
    cr_assert(wait_descriptors(&b, before, PAIR_TIMEOUT_MS), "%d descriptors instead of %d",
              holmes_self_fds(), before);
    for (int i = 0; i < awaited; i++)
        wire->lane_close(probes[i].lane);
    end_close(&a);
    end_close(&b);
}

Test(wire_listen, silent_strangers_beyond_the_bound_are_dropped_oldest_first)
{
    silent_beyond_the_bound(1);
}

/* While a job starts, most of those that have not spoken yet are true peers. */
Test(wire_listen, streams_that_lanes_wait_for_do_not_count_as_strangers)
{
    silent_beyond_the_bound(70);
}

Test(wire_listen, closing_a_nic_ends_silent_strangers)
{
    struct wire_end e;
    struct half probe;
    struct sockaddr_in port;
    int fds[20], before;

    listen_end_open(&e); /* what the library keeps for good is open now */
    end_close(&e);
    before = holmes_self_fds();
    listen_end_open(&e);
    probe = half_make(&e, WIRE_ACCEPT);
    port = blob_address(&probe);
    for (int i = 0; i < 20; i++) {
        fds[i] = stranger_connect(&port);
        if (i % 2 == 0)
            wire->nic_progress(e.wn); /* some accepted, some in the backlog */
    }
    wire->lane_close(probe.lane);
    end_close(&e);
    for (int i = 0; i < 20; i++)
        close(fds[i]);
    cr_assert_eq(holmes_self_fds(), before);
}

/* ---- addresses and ports ------------------------------------------------------------------ */

static int listener_at(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(bind(fd, (struct sockaddr *)at, len), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)at, &len), 0);
    return fd;
}

Test(wire_listen, exhausted_port_range_is_said)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct holmes_nic nic = loopback_nic();
    struct wire_nic *wn;
    char why[512];
    int fd, before;
    uint16_t port;

    loopback_alone();
    fd = listener_at(&at);
    port = ntohs(at.sin_port);
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    before = holmes_self_fds();
    cr_assert_eq(wire->nic_open(&nic, port, port, &wn), -EADDRINUSE);
    cr_assert_eq(holmes_self_fds(), before);
    close(fd);
    cr_assert_eq(wire->nic_open(&nic, port, port, &wn), 0);
    wire->nic_close(wn);
}

Test(wire_listen, port_comes_from_the_range)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct holmes_nic nic = loopback_nic();
    uint16_t first, last, got;
    struct wire_end e = {.ops = wire};
    char why[512];
    struct half h;
    int fd;

    loopback_alone();
    fd = listener_at(&at);
    first = ntohs(at.sin_port);
    last = first < 65000 ? first + 500 : 65535;
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    cr_assert_eq(wire->nic_open(&nic, first, last, &e.wn), 0);
    cr_assert_eq(wire->cq_open(e.wn, &e.cq), 0);
    h = half_make(&e, WIRE_ACCEPT);
    got = ntohs(blob_address(&h).sin_port);
    cr_assert(got > first && got <= last, "%u is not in %u-%u, or taken", got, first, last);
    wire->lane_close(h.lane);
    end_close(&e);
    close(fd);
}

Test(wire_listen, one_port_serves_two_hundred_jobs_in_a_row)
{
    struct holmes_nic nic = loopback_nic();
    struct wire_pair p = {0};
    uint16_t port;

    loopback_alone();
    port = free_port(); /* one that the kernel does not give to p.from meanwhile */
    for (int i = 0; i < 200; i++) {
        listen_end_open(&p.from);
        p.to.ops = wire;
        cr_assert_eq(wire->nic_open(&nic, port, port, &p.to.wn), 0, "job %d", i);
        cr_assert_eq(wire->cq_open(p.to.wn, &p.to.cq), 0);
        pair_raise(&p);
        pair_close(&p);
    }
}

/* Opens a NIC on the port, forks a child that lives on, and dies. */
static int die_with_a_child(const void *arg, const int *fds)
{
    const int hold = fds[0], ready = fds[1];
    struct holmes_nic nic = loopback_nic();
    struct wire_nic *wn;
    char why[512], byte = 1;
    uint16_t port;

    choose_wire();
    memcpy(&port, arg, sizeof port);
    if (wire->load(why, sizeof why) != 0 || wire->nic_open(&nic, port, port, &wn) != 0)
        return 1;
    if (fork() == 0) { /* ends when the test closes its end of `hold` */
        if (write(ready, &byte, 1) == 1 && read(hold, &byte, 1) >= 0)
            _exit(0);
        _exit(1);
    }
    (void)!read(hold, &byte, 1);
    return 1; /* not reached: killed */
}

Test(wire_listen, child_of_a_dead_process_does_not_hold_the_port)
{
    struct holmes_nic nic = loopback_nic();
    struct wire_nic *wn;
    int hold[2], ready[2], status;
    char why[512], byte;
    uint16_t port;
    pid_t pid;

    loopback_alone();
    port = free_port();
    cr_assert_eq(pipe2(hold, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(ready, O_CLOEXEC), 0);
    pid = spawn(die_with_a_child, &port, sizeof port, (const int[]){hold[0], ready[1]}, 2);
    cr_assert_gt(pid, 0);
    close(hold[0]);
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1, "the process could not start");
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    cr_assert_eq(wire->nic_open(&nic, port, port, &wn), 0);
    wire->nic_close(wn);
    close(hold[1]);
    close(ready[0]);
}

/* The local address of the stream in this process whose peer is `to`. */
static struct sockaddr_in stream_source(const struct sockaddr_in *to)
{
    struct sockaddr_in local = {0};

    for (int fd = 0; fd < 256; fd++) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;

        if (getpeername(fd, (struct sockaddr *)&peer, &len) != 0 || peer.sin_port != to->sin_port ||
            peer.sin_addr.s_addr != to->sin_addr.s_addr)
            continue;
        len = sizeof local;
        cr_assert_eq(getsockname(fd, (struct sockaddr *)&local, &len), 0);
    }
    return local;
}

Test(wire_listen, stream_leaves_from_the_nic_s_address)
{
    struct holmes_nic nic = loopback_nic();
    struct wire_pair p = {0};
    struct half accepting, connecting;
    struct sockaddr_in to;
    char why[512];

    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    listen_end_open(&p.to);
    p.from.ops = wire;
    nic.addrs[0].in.sin_addr.s_addr = htonl(0x7f000003); /* 127.0.0.3 */
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &p.from.wn), 0);
    cr_assert_eq(wire->cq_open(p.from.wn, &p.from.cq), 0);
    accepting = half_make(&p.to, WIRE_ACCEPT);
    connecting = half_make(&p.from, WIRE_CONNECT);
    to = blob_address(&accepting);
    cr_assert_eq(wire->lane_connect(connecting.lane, accepting.blob, accepting.len), 0);
    cr_assert_eq(lane_wait(&p.from, &p.to, connecting.lane, PAIR_TIMEOUT_MS), 0);
    cr_assert_eq(ntohl(stream_source(&to).sin_addr.s_addr), 0x7f000003u);
    wire->lane_close(connecting.lane);
    wire->lane_close(accepting.lane);
    pair_close(&p);
}

Test(wire_listen, rise_over_ipv6)
{
    struct holmes_nic nic = {.name = "lo", .ifname = "lo", .naddrs = 1};
    struct wire_pair p = {.from.ops = wire, .to.ops = wire};
    char why[512];
    int fd = socket(AF_INET6, SOCK_STREAM, 0);

    nic.addrs[0].in6.sin6_family = AF_INET6;
    nic.addrs[0].in6.sin6_addr = in6addr_loopback;
    if (fd < 0 || bind(fd, &nic.addrs[0].sa, sizeof nic.addrs[0].in6) != 0)
        cr_skip_test("this host has no ::1");
    close(fd);
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &p.from.wn), 0);
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &p.to.wn), 0);
    cr_assert_eq(wire->cq_open(p.from.wn, &p.from.cq), 0);
    cr_assert_eq(wire->cq_open(p.to.wn, &p.to.cq), 0);
    pair_raise(&p);
    pair_close(&p);
}
