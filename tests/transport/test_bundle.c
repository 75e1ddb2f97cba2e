/* Connections over several NICs. Addresses of the loopback stand for NICs; which interface bytes
 * leave by is tested in network namespaces (tests/bench). */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "link.h"
#include "self.h"
#include "test_nics.h"
#include "transport/conn.h"
#include "transport/sock/sock.h"

#define SIZE ((size_t)8 << 20)

static struct holmes_nic nic_at(const char *name, const char *addr)
{
    struct holmes_nic nic = test_nics()->from;

    snprintf(nic.name, sizeof nic.name, "%s", name);
    nic.naddrs = 1;
    nic.addrs[0] = (struct holmes_addr){.in = {.sin_family = AF_INET}, .prefix_len = 8};
    cr_assert_eq(inet_pton(AF_INET, addr, &nic.addrs[0].in.sin_addr), 1);
    return nic;
}

static struct holmes_transport *transport_of(int n, const struct holmes_nic *nics)
{
    struct holmes_transport *t;

    cr_assert_eq(holmes_transport_create(nics, n, &t), 0);
    return t;
}

/* Ends with so many NICs each: 127.0.0.11, .12 ... and 127.0.0.21, .22 ... */
static void open_ends(struct link *l, int nfrom, int nto)
{
    struct holmes_nic from[3], to[3];
    static const char *const names[] = {"lo", "two", "three"};
    char addr[16];

    memset(l, 0, sizeof *l);
    for (int i = 0; i < 3; i++) {
        snprintf(addr, sizeof addr, "127.0.0.%d", 11 + i);
        from[i] = nic_at(names[i], addr);
        snprintf(addr, sizeof addr, "127.0.0.%d", 21 + i);
        to[i] = nic_at(names[i], addr);
    }
    l->a = transport_of(nfrom, from);
    l->b = transport_of(nto, to);
    link_connect(l);
}

static const struct wire_lane *lane_of(const struct holmes_conn *c)
{
    cr_assert_eq(c->nlanes, 1);
    return c->lanes[0];
}

static uint64_t sent_by(const struct sock_stream *s)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    cr_assert_eq(getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    return info.tcpi_bytes_acked;
}

/* Last bytes of the addresses that a stream joins: ours * 256 + the peer's. */
static unsigned ends_of(const struct sock_stream *s)
{
    struct sockaddr_in own, peer;
    socklen_t len = sizeof own;

    cr_assert_eq(getsockname(s->fd, (struct sockaddr *)&own, &len), 0);
    len = sizeof peer;
    cr_assert_eq(getpeername(s->fd, (struct sockaddr *)&peer, &len), 0);
    return (ntohl(own.sin_addr.s_addr) & 0xff) << 8 | (ntohl(peer.sin_addr.s_addr) & 0xff);
}

/* Moves messages until every stream has carried some. */
static void all_carry(struct link *l)
{
    uint8_t *from = malloc(SIZE), *to = malloc(SIZE);
    const struct wire_lane *lane = lane_of(l->send);
    struct holmes_mr *fm, *tm;
    int idle = lane->nstreams;

    cr_assert_eq(holmes_mr_reg(l->send, from, SIZE, &fm), 0);
    cr_assert_eq(holmes_mr_reg(l->recv, to, SIZE, &tm), 0);
    for (unsigned i = 0; i < 100 && idle > 0; i++) {
        struct holmes_request *r = link_irecv(l->recv, to, SIZE, 1, tm), *s;

        link_fill(from, SIZE, i);
        s = link_isend(l->send, from, SIZE, 1, fm);
        cr_assert_eq(link_wait_both(s, r), SIZE);
        cr_assert(link_check(to, SIZE, i));
        idle = 0;
        for (int k = 0; k < lane->nstreams; k++)
            idle += sent_by(&lane->streams[k]) < 4096;
    }
    cr_assert_eq(idle, 0, "%d streams carry nothing", idle);
    holmes_mr_dereg(l->send, fm);
    holmes_mr_dereg(l->recv, tm);
    free(from);
    free(to);
}

static bool has_ends(const struct wire_lane *lane, unsigned ends)
{
    for (int i = 0; i < lane->nstreams; i++)
        if (ends_of(&lane->streams[i]) == ends)
            return true;
    return false;
}

Test(bundle, one_nic_each_unless_asked)
{
    struct link l;

    open_ends(&l, 3, 3);
    cr_assert_eq(lane_of(l.send)->nstreams, 1);
    link_close(&l);
}

Test(bundle, each_nic_carries_its_part)
{
    struct link l;
    int fds;

    setenv("HOLMES_TCP_NICS", "all", 1);
    fds = holmes_self_fds();
    open_ends(&l, 3, 3);
    cr_assert_eq(lane_of(l.send)->nstreams, 3);
    cr_assert(has_ends(lane_of(l.send), 11 << 8 | 21));
    cr_assert(has_ends(lane_of(l.send), 12 << 8 | 22));
    cr_assert(has_ends(lane_of(l.send), 13 << 8 | 23));
    all_carry(&l);
    link_close(&l);
    cr_assert_eq(holmes_self_fds(), fds);
}

Test(bundle, more_nics_at_the_sender_all_leave)
{
    struct link l;

    setenv("HOLMES_TCP_NICS", "all", 1);
    open_ends(&l, 3, 1);
    cr_assert_eq(lane_of(l.send)->nstreams, 3);
    for (unsigned i = 11; i <= 13; i++)
        cr_assert(has_ends(lane_of(l.send), i << 8 | 21));
    all_carry(&l);
    link_close(&l);
}

Test(bundle, more_nics_at_the_receiver_are_all_reached)
{
    struct link l;

    setenv("HOLMES_TCP_NICS", "all", 1);
    open_ends(&l, 1, 3);
    cr_assert_eq(lane_of(l.send)->nstreams, 3);
    for (unsigned i = 21; i <= 23; i++)
        cr_assert(has_ends(lane_of(l.send), 11 << 8 | i));
    all_carry(&l);
    link_close(&l);
}

Test(bundle, names_choose)
{
    struct link l;

    setenv("HOLMES_TCP_NICS", "three", 1);
    open_ends(&l, 3, 3);
    cr_assert_eq(lane_of(l.send)->nstreams, 2);
    cr_assert(has_ends(lane_of(l.send), 11 << 8 | 21));
    cr_assert(has_ends(lane_of(l.send), 13 << 8 | 23));
    link_close(&l);
}

Test(bundle, lanes_are_each_nic_s)
{
    struct link l;

    setenv("HOLMES_TCP_NICS", "two", 1);
    setenv("HOLMES_LANES", "2", 1);
    open_ends(&l, 2, 2);
    cr_assert_eq(lane_of(l.send)->nstreams, 4);
    all_carry(&l);
    link_close(&l);
}

/* As NCCL makes one of a card's ports. */
Test(bundle, fused_device_spreads_over_its_members_only)
{
    struct holmes_nic from[3] = {nic_at("lo", "127.0.0.11"), nic_at("two", "127.0.0.12"),
                                 nic_at("three", "127.0.0.13")};
    uint8_t handle[HOLMES_HANDLE_SIZE];
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    int fused = -1, sent = -EAGAIN, got = -EAGAIN;
    struct link l = {.a = transport_of(3, from)};

    l.b = transport_of(1, (struct holmes_nic[]){nic_at("lo", "127.0.0.21")});
    cr_assert_eq(holmes_transport_fuse(l.a, &from[1], (int[]){1, 2}, 2, &fused), 0);
    cr_assert_eq(fused, 3);
    cr_assert_eq(holmes_listen(l.b, &l, 0, handle, &l.listen), 0);
    while (sent == -EAGAIN || got == -EAGAIN) {
        cr_assert(!holmes_deadline_passed(deadline));
        if (sent == -EAGAIN)
            sent = holmes_connect(l.a, &l, fused, handle, &l.send);
        if (got == -EAGAIN)
            got = holmes_accept(l.listen, &l.recv);
    }
    cr_assert(sent == 0 && got == 0, "connect %d accept %d", sent, got);
    cr_assert_eq(lane_of(l.send)->nstreams, 2);
    cr_assert(has_ends(lane_of(l.send), 12 << 8 | 21));
    cr_assert(has_ends(lane_of(l.send), 13 << 8 | 21));
    all_carry(&l);
    link_close(&l);
}

Test(bundle, unknown_name_is_refused_with_those_there_are)
{
    struct holmes_nic nics[2] = {nic_at("lo", "127.0.0.11"), nic_at("two", "127.0.0.12")};
    struct holmes_transport *t;

    link_capture_log();
    setenv("HOLMES_TCP_NICS", "two,eth7", 1);
    cr_assert_eq(holmes_transport_create(nics, 2, &t), -EINVAL);
    cr_assert_eq(link_log_count("HOLMES_TCP_NICS=\"two,eth7\""), 1);
    cr_assert_eq(link_log_count("\"eth7\""), 1);
    cr_assert_eq(link_log_count("lo, two"), 1);
}

/* ---- ways ---- */

static struct wire_nic wire_nic_at(const char *ifname, const char *addr, uint8_t prefix)
{
    struct wire_nic wn = {.nic = nic_at(ifname, addr)};

    snprintf(wn.nic.ifname, sizeof wn.nic.ifname, "%s", ifname);
    wn.nic.addrs[0].prefix_len = prefix;
    return wn;
}

static struct sock_peer peer_at(int n, const char *const *addrs)
{
    struct sock_peer p = {.role = WIRE_ACCEPT, .streams = 1, .naddrs = n, .secret = 1};

    for (int i = 0; i < n; i++)
        p.addrs[i] = nic_at("peer", addrs[i]).addrs[0];
    return p;
}

Test(bundle, subnets_go_together)
{
    struct wire_nic a = wire_nic_at("lo", "127.1.0.1", 16), b = wire_nic_at("lo", "127.2.0.1", 16);
    struct wire_nic *wns[] = {&a, &b};
    struct sock_peer peer = peer_at(2, (const char *[]){"127.2.0.9", "127.1.0.9"});
    struct sock_pair pairs[SOCK_PAIRS_MAX];

    cr_assert_eq(holmes_sock_pairs(wns, 2, &peer, pairs), 2);
    cr_assert(pairs[0].wn == &a && pairs[0].to.in.sin_addr.s_addr == inet_addr("127.1.0.9"));
    cr_assert(pairs[1].wn == &b && pairs[1].to.in.sin_addr.s_addr == inet_addr("127.2.0.9"));
}

Test(bundle, nic_without_a_way_of_its_own_is_left_out_and_the_first_stays)
{
    struct wire_nic a = wire_nic_at("lo", "127.0.0.1", 8), b = wire_nic_at("none0", "127.0.0.2", 8);
    struct wire_nic *wns[] = {&a, &b}, *others[] = {&b, &b};
    struct sock_peer peer = peer_at(1, (const char *[]){"127.0.0.9"});
    struct sock_pair pairs[SOCK_PAIRS_MAX];

    cr_assert_eq(holmes_sock_pairs(wns, 2, &peer, pairs), 1);
    cr_assert_eq(pairs[0].wn, &a);
    cr_assert_eq(holmes_sock_pairs(others, 2, &peer, pairs), 1, "better that than nothing");
}

Test(bundle, other_family_is_no_way)
{
    struct wire_nic a = wire_nic_at("lo", "127.0.0.1", 8), *wns[] = {&a};
    struct sock_peer peer = peer_at(1, (const char *[]){"127.0.0.9"});
    struct sock_pair pairs[SOCK_PAIRS_MAX];

    peer.addrs[0].in6 = (struct sockaddr_in6){.sin6_family = AF_INET6};
    cr_assert_eq(holmes_sock_pairs(wns, 1, &peer, pairs), -EAFNOSUPPORT);
}
