/* The wire of a connection, as both ends choose it: over a wire that looks like RDMA (fake_rdma.h),
 * beside tcp. What descriptions alone decide is in tests/unit/test_choose.c. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/patience.h"
#include "clock.h"
#include "fake_rdma.h"
#include "link.h"
#include "test_nics.h"

#define BIG (1u << 20)

static struct fake_rdma_plan plan;
static struct holmes_nic from[4], to[4]; /* RDMA ports, changed by tests before open_ends */

static void two_rdma_nodes(void)
{
    memset(&plan, 0, sizeof plan);
    fake_rdma_use(&plan);
    link_capture_log();
    for (int i = 0; i < 4; i++) {
        char name[16];

        snprintf(name, sizeof name, "mlx5_%d", i);
        from[i] = fake_rdma_nic(name, "127.0.0.1");
        to[i] = fake_rdma_nic(name, "127.0.0.2");
    }
}

static struct holmes_transport *open_end(const struct holmes_nic *ports, int n, const char *ip)
{
    struct holmes_nic nics[5];
    struct holmes_transport *t;

    memcpy(nics, ports, (size_t)n * sizeof *ports);
    nics[n] = test_loopback_nic(ip);
    cr_assert_eq(holmes_transport_create(nics, n + 1, &t), 0);
    return t;
}

static void open_ends(struct link *l, int nfrom, int nto)
{
    memset(l, 0, sizeof *l);
    l->a = open_end(from, nfrom, "127.0.0.1");
    l->b = open_end(to, nto, "127.0.0.2");
}

/* Both ends say the same wire, for the same reason. */
static void both_say(struct link *l, const char *wire, const char *reason)
{
    struct holmes_conn_stats a, b;

    holmes_conn_get_stats(l->send, &a);
    holmes_conn_get_stats(l->recv, &b);
    cr_assert_str_eq(a.wire, wire, "%s: %s", a.wire, a.reason);
    cr_assert_str_eq(b.wire, wire, "%s: %s", b.wire, b.reason);
    cr_assert_str_eq(a.reason, b.reason);
    cr_assert(strstr(a.reason, reason), "\"%s\" lacks \"%s\"", a.reason, reason);
    cr_assert_eq(a.lanes, b.lanes);
    cr_assert_geq(link_log_count(a.reason), 2, "one line at each end");
}

static void moves_a_megabyte(struct link *l)
{
    uint8_t *src = malloc(BIG), *dst = calloc(1, BIG);
    struct holmes_mr *sm, *dm;
    struct holmes_request *s, *r;

    link_fill(src, BIG, 3);
    cr_assert_eq(holmes_mr_reg(l->send, src, BIG, &sm), 0);
    cr_assert_eq(holmes_mr_reg(l->recv, dst, BIG, &dm), 0);
    for (int i = 0; i < 5; i++) { /* every lane gets its turn */
        memset(dst, 0, BIG);
        r = link_irecv(l->recv, dst, BIG, 1, dm);
        s = link_isend(l->send, src, BIG - (size_t)i, 1, sm);
        cr_assert_eq(link_wait_both(s, r), BIG - (size_t)i);
        cr_assert(link_check(dst, BIG - (size_t)i, 3));
    }
    cr_assert_eq(holmes_mr_dereg(l->send, sm), 0);
    cr_assert_eq(holmes_mr_dereg(l->recv, dm), 0);
    free(src);
    free(dst);
}

static void connect_again(struct link *l)
{
    holmes_conn_close(l->send);
    holmes_conn_close(l->recv);
    l->send = l->recv = NULL;
    link_connect(l);
}

Test(choice, ports_that_a_probe_joins_talk_rdma_and_ask_once)
{
    struct link l;

    two_rdma_nodes();
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, "verbs", "RoCE v2 IPv4 10.0.0.1, 10.0.0.2: probe passed");
    moves_a_megabyte(&l);
    cr_assert_eq(plan.probes, 2);
    connect_again(&l);
    both_say(&l, "verbs", "probe passed");
    cr_assert_eq(plan.probes, 2, "the answer was not kept");
    link_close(&l);
}

Test(choice, ports_without_a_path_fall_to_tcp_within_the_probes_time)
{
    struct link l;
    uint64_t start;

    two_rdma_nodes();
    setenv("HOLMES_PROBE_MS", "300", 1);
    plan.deaf = true;
    open_ends(&l, 1, 1);
    start = holmes_now_ns();
    link_connect(&l);
    cr_assert_lt(holmes_now_ns() - start, patience_ns(5000));
    both_say(&l, test_tcp_wire()->name, "no RDMA path (RoCE v2 IPv4 10.0.0.1, 10.0.0.2)");
    cr_assert_eq(plan.probes, 4, "two rounds on two ends, not %d", plan.probes);
    moves_a_megabyte(&l);
    connect_again(&l);
    both_say(&l, test_tcp_wire()->name, "no RDMA path");
    cr_assert_eq(plan.probes, 4, "the answer was not kept");
    link_close(&l);
}

Test(choice, path_that_only_carries_small_packets_gets_a_small_mtu_and_a_warning)
{
    struct link l;

    two_rdma_nodes();
    setenv("HOLMES_PROBE_MS", "300", 1);
    plan.path_mtu = 1024;
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, "verbs", "probe passed, MTU 1024 only");
    cr_assert_eq(link_log_count("WARN conn"), 1);
    cr_assert_eq(link_log_count("only packets of MTU 1024 pass"), 1);
    connect_again(&l);
    both_say(&l, "verbs", "MTU 1024 only");
    link_close(&l);
}

Test(choice, descriptions_decide_without_a_probe)
{
    struct link l;

    two_rdma_nodes();
    strcpy(from[0].rdma.fabric, "rack7");
    strcpy(to[0].rdma.fabric, "rack7");
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, "verbs", "same HOLMES_FABRIC rack7");
    link_close(&l);

    strcpy(to[0].rdma.fabric, "rack8");
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, test_tcp_wire()->name, "HOLMES_FABRIC differs (rack7, rack8)");
    link_close(&l);

    to[0].rdma.link_layer = HOLMES_LINK_INFINIBAND;
    strcpy(to[0].rdma.fabric, "");
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, test_tcp_wire()->name, "link layers differ (RoCE, InfiniBand)");
    moves_a_megabyte(&l);
    link_close(&l);
    cr_assert_eq(plan.probes, 0);
}

Test(choice, node_without_rdma_on_either_side_gets_tcp)
{
    for (int side = 0; side < 2; side++) {
        struct link l;

        two_rdma_nodes();
        open_ends(&l, side == 0 ? 0 : 1, side == 1 ? 0 : 1);
        link_connect(&l);
        both_say(&l, test_tcp_wire()->name, "has no RDMA port (lo)");
        moves_a_megabyte(&l);
        link_close(&l);
    }
}

Test(choice, port_that_cannot_be_opened_on_one_side_gets_tcp)
{
    for (int side = 0; side < 2; side++) {
        struct link l;

        two_rdma_nodes();
        strcpy((side == 0 ? &from[0] : &to[0])->rdma.device, "stuck");
        plan.broken = "stuck";
        open_ends(&l, 1, 1);
        link_connect(&l);
        both_say(&l, test_tcp_wire()->name, "mlx5_0: Permission denied");
        connect_again(&l);
        both_say(&l, test_tcp_wire()->name, "mlx5_0: Permission denied");
        cr_assert_eq(link_log_count("cannot open wire verbs: Permission denied"), 1, "once");
        link_close(&l);
    }
}

Test(choice, lost_device_or_link_gets_tcp_until_it_is_back)
{
    struct link l;

    two_rdma_nodes();
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, "verbs", "probe passed");
    plan.status = -EIO;
    connect_again(&l);
    both_say(&l, test_tcp_wire()->name, "mlx5_0: device lost");
    plan.status = -ENETDOWN;
    connect_again(&l);
    both_say(&l, test_tcp_wire()->name, "mlx5_0: link down");
    plan.status = 0;
    connect_again(&l);
    both_say(&l, "verbs", "probe passed");
    link_close(&l);
}

Test(choice, missing_library_is_one_line_and_everything_over_tcp)
{
    struct link l;

    two_rdma_nodes();
    plan.load_error = -ELIBACC;
    open_ends(&l, 1, 1);
    cr_assert_eq(link_log_count("WARN libfake.so not found, RDMA off"), 2, "one for each process");
    link_connect(&l);
    both_say(&l, test_tcp_wire()->name, "libfake.so not found, RDMA off");
    moves_a_megabyte(&l);
    link_close(&l);
}

Test(choice, user_forces_tcp)
{
    struct link l;

    two_rdma_nodes();
    setenv("HOLMES_WIRE", "tcp", 1);
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, test_tcp_wire()->name, "HOLMES_WIRE=tcp on ");
    cr_assert_eq(plan.probes, 0);
    link_close(&l);
}

/* Drives both until both have ended. */
static void both_end(struct link *l, int *sent, int *got)
{
    uint8_t handle[HOLMES_HANDLE_SIZE];
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    cr_assert_eq(holmes_listen(l->b, l, 0, handle, &l->listen), 0);
    *sent = *got = -EAGAIN;
    while ((*sent == -EAGAIN || *got == -EAGAIN) && !holmes_deadline_passed(deadline)) {
        if (*sent == -EAGAIN)
            *sent = holmes_connect(l->a, l, 0, handle, &l->send);
        if (*got == -EAGAIN)
            *got = holmes_accept(l->listen, &l->recv);
    }
}

Test(choice, user_who_insists_on_rdma_is_refused_where_there_is_none)
{
    struct link l;
    int sent, got;

    two_rdma_nodes();
    setenv("HOLMES_WIRE", "verbs", 1);
    setenv("HOLMES_PROBE_MS", "200", 1);
    plan.deaf = true;
    open_ends(&l, 1, 1);
    both_end(&l, &sent, &got);
    cr_assert_eq(got, -EPROTONOSUPPORT);
    cr_assert_eq(sent, -EPROTONOSUPPORT);
    cr_assert_eq(link_log_count("HOLMES_WIRE=verbs on"), 1);
    link_close(&l);
}

/* HOLMES_TCP is read once by a process, hence another wire by name. */
Test(choice, ends_whose_wires_over_tcp_differ_are_both_refused)
{
    struct wire_ops other = *test_tcp_wire();
    const struct wire_ops *wires[2] = {&other, NULL};
    struct link l = {.send = NULL};
    int sent, got;

    link_capture_log();
    l.a = open_end(from, 0, "127.0.0.1");
    other.name = "tcp-other";
    holmes_wires_override(wires);
    l.b = open_end(to, 0, "127.0.0.2");
    both_end(&l, &sent, &got);
    cr_assert_eq(got, -EPROTONOSUPPORT);
    cr_assert_eq(sent, -EPROTONOSUPPORT);
    cr_assert_eq(link_log_count("speaks wire \"tcp-other\", not"), 1);
    cr_assert_eq(link_log_count("HOLMES_TCP must be the same on all ranks"), 1);
    link_close(&l);
    holmes_wires_override(NULL);
}

Test(choice, accepting_end_that_cannot_raise_rdma_falls_to_tcp)
{
    struct link l;

    two_rdma_nodes();
    plan.lane_error = -ENOMEM;
    plan.lane_error_role = WIRE_ACCEPT;
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, test_tcp_wire()->name, "mlx5_0: Cannot allocate memory");
    moves_a_megabyte(&l);
    link_close(&l);
}

Test(choice, connecting_end_that_cannot_raise_rdma_ends_both)
{
    struct link l;
    int sent, got;

    two_rdma_nodes();
    plan.lane_error = -ENOMEM;
    plan.lane_error_role = WIRE_CONNECT;
    open_ends(&l, 1, 1);
    both_end(&l, &sent, &got);
    cr_assert_eq(sent, -ENOMEM);
    cr_assert_eq(got, -ECONNABORTED);
    link_close(&l);
}

Test(choice, peer_that_goes_while_it_is_probed_keeps_nobody_waiting)
{
    struct link l;
    uint8_t handle[HOLMES_HANDLE_SIZE];
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    struct holmes_conn *c;

    two_rdma_nodes();
    open_ends(&l, 1, 1);
    cr_assert_eq(holmes_listen(l.b, &l, 0, handle, &l.listen), 0);
    while (plan.probes == 0) { /* the accepting end's half; ours is not yet there */
        cr_assert(!holmes_deadline_passed(deadline), "no probe");
        cr_assert_eq(holmes_connect(l.a, &l, 0, handle, &c), -EAGAIN);
        cr_assert_eq(holmes_accept(l.listen, &c), -EAGAIN);
    }
    holmes_transport_destroy(l.a);
    l.a = open_end(from, 1, "127.0.0.1");
    holmes_listen_close(l.listen);
    l.listen = NULL;
    link_connect(&l);
    both_say(&l, "verbs", "probe passed");
    link_close(&l);
}

static int fuse(struct holmes_transport *t, const struct holmes_nic *first, int n)
{
    struct holmes_nic nic = *first;
    int members[] = {0, 1, 2, 3}, dev = -1;

    strcpy(nic.name, "fused");
    cr_assert_eq(holmes_transport_fuse(t, &nic, members, n, &dev), 0);
    return dev;
}

static void connect_devices(struct link *l, int dial, int accept)
{
    uint8_t handle[HOLMES_HANDLE_SIZE];
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    int sent = -EAGAIN, got = -EAGAIN;

    cr_assert_eq(holmes_listen(l->b, l, accept, handle, &l->listen), 0);
    while (sent == -EAGAIN || got == -EAGAIN) {
        cr_assert(!holmes_deadline_passed(deadline), "connect %d accept %d", sent, got);
        if (sent == -EAGAIN)
            sent = holmes_connect(l->a, l, dial, handle, &l->send);
        if (got == -EAGAIN)
            got = holmes_accept(l->listen, &l->recv);
    }
    cr_assert(sent == 0 && got == 0, "connect %d accept %d", sent, got);
    holmes_listen_close(l->listen);
    l->listen = NULL;
}

/* A process that is busy elsewhere for longer than a probe may take. */
Test(choice, peer_that_is_slow_to_answer_is_not_out_of_reach)
{
    struct link l;
    uint8_t handle[HOLMES_HANDLE_SIZE];
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS), back;
    struct holmes_conn *c;

    two_rdma_nodes();
    setenv("HOLMES_PROBE_MS", "50", 1);
    open_ends(&l, 1, 1);
    cr_assert_eq(holmes_listen(l.b, &l, 0, handle, &l.listen), 0);
    while (plan.probes == 0) {
        cr_assert(!holmes_deadline_passed(deadline), "no probe");
        cr_assert_eq(holmes_connect(l.a, &l, 0, handle, &c), -EAGAIN);
        cr_assert_eq(holmes_accept(l.listen, &c), -EAGAIN);
    }
    for (back = holmes_deadline_ms(200); !holmes_deadline_passed(back);)
        cr_assert_eq(holmes_accept(l.listen, &c), -EAGAIN);
    cr_assert_eq(link_try_connect(&l, handle), 0);
    both_say(&l, "verbs", "probe passed");
    link_close(&l);
}

Test(choice, ports_of_fused_nics_share_the_probes_time)
{
    struct link l;
    uint64_t start;

    two_rdma_nodes();
    setenv("HOLMES_PROBE_MS", "800", 1);
    plan.deaf = true;
    for (int i = 0; i < 4; i++) /* subnets of their own */
        from[i].rdma.gids[0].bytes[14] = to[i].rdma.gids[0].bytes[14] = (uint8_t)i;
    open_ends(&l, 4, 4);
    start = holmes_now_ns();
    connect_devices(&l, fuse(l.a, from, 4), fuse(l.b, to, 4));
    cr_assert_lt(holmes_now_ns() - start, patience_ns(2000));
    both_say(&l, test_tcp_wire()->name, "no RDMA path");
    cr_assert_eq(plan.probes, 16, "two rounds of four pairs on two ends, not %d", plan.probes);
    link_close(&l);
}

Test(choice, link_local_gids_are_warned_of_once)
{
    struct link l;

    two_rdma_nodes();
    for (struct holmes_nic *n = from; n; n = n == from ? to : NULL) {
        memset(n->rdma.gids[0].bytes, 0, 15);
        n->rdma.gids[0].bytes[0] = 0xfe;
        n->rdma.gids[0].bytes[1] = 0x80;
    }
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, "verbs", "RoCE v2 link-local fe80::1, fe80::2: probe passed");
    connect_again(&l);
    cr_assert_eq(link_log_count("link-local GIDs reach no further"), 1);
    link_close(&l);
}

Test(choice, end_that_cannot_probe_gets_tcp_at_once)
{
    for (int role = WIRE_CONNECT; role <= WIRE_ACCEPT; role++) {
        struct link l;

        two_rdma_nodes();
        setenv("HOLMES_PROBE_MS", "60000", 1);
        plan.probe_error = -ENOMEM;
        plan.lane_error_role = (enum wire_role)role;
        open_ends(&l, 1, 1);
        link_connect(&l);
        both_say(&l, test_tcp_wire()->name, "no RDMA path");
        cr_assert_eq(link_log_count("nic mlx5_0 cannot probe: "), 1);
        link_close(&l);
    }
}

/* What failed is this host, not the path. */
Test(choice, probe_that_failed_here_is_tried_again_by_the_next_connection)
{
    struct link l;

    two_rdma_nodes();
    plan.probe_error = -ENOMEM;
    plan.lane_error_role = WIRE_ACCEPT;
    open_ends(&l, 1, 1);
    link_connect(&l);
    both_say(&l, test_tcp_wire()->name, "no RDMA path");
    plan.probe_error = 0;
    connect_again(&l);
    both_say(&l, "verbs", "probe passed");
    link_close(&l);
}

/* NCCL raises the connections of all channels at once. */
Test(choice, crowd_of_connections_shares_one_probe)
{
    enum { CROWD = 64 };
    struct link l;
    static uint8_t handles[CROWD][HOLMES_HANDLE_SIZE];
    struct holmes_listen *listens[CROWD];
    struct holmes_conn *sends[CROWD] = {NULL}, *recvs[CROWD] = {NULL};
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);
    int up = 0;

    two_rdma_nodes();
    open_ends(&l, 1, 1);
    for (int i = 0; i < CROWD; i++)
        cr_assert_eq(holmes_listen(l.b, &l, 0, handles[i], &listens[i]), 0);
    while (up < 2 * CROWD) {
        cr_assert(!holmes_deadline_passed(deadline), "%d of %d ends are up", up, 2 * CROWD);
        for (int i = 0; i < CROWD; i++) {
            if (!sends[i])
                up += holmes_connect(l.a, &l, 0, handles[i], &sends[i]) == 0;
            if (!recvs[i])
                up += holmes_accept(listens[i], &recvs[i]) == 0;
        }
    }
    cr_assert_eq(plan.probes, 2, "%d halves of probes", plan.probes);
    for (int i = 0; i < CROWD; i++) {
        l.send = sends[i];
        l.recv = recvs[i];
        both_say(&l, "verbs", "probe passed");
        holmes_conn_close(sends[i]);
        holmes_conn_close(recvs[i]);
        holmes_listen_close(listens[i]);
    }
    l.send = l.recv = NULL;
    link_close(&l);
}

Test(choice, fused_nic_uses_all_its_ports_and_meets_any_other)
{
    static const char *const qps[] = {"1", "2", "4"};

    for (size_t q = 0; q < sizeof qps / sizeof *qps; q++) {
        for (int split = 0; split < 2; split++) {
            for (int nf = 1; nf <= 4; nf += 3) {
                struct link l;
                struct holmes_conn_stats stats;
                int want =
                    4 * atoi(qps[q]) > HOLMES_MAX_LANES ? HOLMES_MAX_LANES : 4 * atoi(qps[q]);

                two_rdma_nodes();
                setenv("NCCL_IB_QPS_PER_CONNECTION", qps[q], 1);
                setenv("NCCL_IB_SPLIT_DATA_ON_QPS", split ? "1" : "0", 1);
                for (int i = 0; i < 4; i++) {
                    strcpy(from[i].rdma.fabric, "A");
                    strcpy(to[i].rdma.fabric, "A");
                }
                open_ends(&l, 4, 4);
                connect_devices(&l, nf == 1 ? 0 : fuse(l.a, from, nf), fuse(l.b, to, 4));
                both_say(&l, "verbs", "same HOLMES_FABRIC A");
                holmes_conn_get_stats(l.send, &stats);
                cr_assert_eq(stats.lanes, want, "%d lanes, not %d", stats.lanes, want);
                moves_a_megabyte(&l);
                link_close(&l);
            }
        }
    }
}

Test(choice, port_of_a_fused_nic_that_fails_is_left_out)
{
    struct link l;
    struct holmes_conn_stats stats;

    two_rdma_nodes();
    strcpy(from[1].rdma.device, "stuck");
    plan.broken = "stuck";
    strcpy(to[2].rdma.fabric, "other");
    strcpy(from[3].rdma.fabric, "another");
    open_ends(&l, 4, 4);
    connect_devices(&l, fuse(l.a, from, 4), fuse(l.b, to, 4));
    both_say(&l, "verbs", "probe passed");
    holmes_conn_get_stats(l.send, &stats);
    cr_assert_lt(stats.lanes, 4);
    moves_a_megabyte(&l);
    link_close(&l);
}

/* The fused NIC has no registrations there. */
Test(choice, port_that_opens_after_its_fused_nic_stays_out_of_it)
{
    struct link l;
    struct holmes_conn_stats stats;
    int dial, accept;

    two_rdma_nodes();
    for (int i = 0; i < 2; i++) {
        strcpy(from[i].rdma.fabric, "A");
        strcpy(to[i].rdma.fabric, "A");
    }
    plan.broken = "mlx5_1";
    open_ends(&l, 2, 2);
    dial = fuse(l.a, from, 2);
    accept = fuse(l.b, to, 2);
    connect_devices(&l, dial, accept);
    holmes_conn_close(l.send);
    holmes_conn_close(l.recv);
    plan.broken = NULL;
    connect_devices(&l, 1, 1);
    both_say(&l, "verbs", "same HOLMES_FABRIC A");
    holmes_conn_close(l.send);
    holmes_conn_close(l.recv);
    connect_devices(&l, dial, accept);
    holmes_conn_get_stats(l.send, &stats);
    cr_assert_eq(stats.lanes, 1);
    moves_a_megabyte(&l);
    link_close(&l);
}

enum { THREADS = 4, CYCLES = 12 };

struct thread {
    pthread_t id;
    struct link l;
    int dial, accept;
    int rc;
};

/* Criterion's assertions are for the main thread: what goes wrong is in `rc`. */
static void *connects_and_closes(void *arg)
{
    struct thread *t = arg;
    uint8_t handle[HOLMES_HANDLE_SIZE];
    uint64_t deadline = holmes_deadline_ms(LINK_TIMEOUT_MS);

    for (int i = 0; t->rc == 0 && i < CYCLES; i++) {
        int dial = i & 1 ? t->dial : 1, accept = i & 2 ? t->accept : 1;
        int sent = -EAGAIN, got = -EAGAIN;

        t->rc = holmes_listen(t->l.b, t, accept, handle, &t->l.listen);
        while (t->rc == 0 && (sent == -EAGAIN || got == -EAGAIN)) {
            if (sent == -EAGAIN)
                sent = holmes_connect(t->l.a, t, dial, handle, &t->l.send);
            if (got == -EAGAIN)
                got = holmes_accept(t->l.listen, &t->l.recv);
            if (holmes_deadline_passed(deadline))
                t->rc = -ETIME;
        }
        if (t->rc == 0)
            t->rc = sent != 0 ? sent : got;
        holmes_conn_close(t->l.send);
        holmes_conn_close(t->l.recv);
        holmes_listen_close(t->l.listen);
        t->l.send = t->l.recv = NULL;
        t->l.listen = NULL;
    }
    return NULL;
}

/* Threads of several communicators open devices, probe, connect and close while another one fuses:
 * mostly for the thread sanitizer. */
Test(choice, threads_connect_while_others_open_and_fuse)
{
    static struct thread threads[THREADS];
    struct link l;
    int dial, accept, members[] = {0, 1}, dev;

    two_rdma_nodes();
    from[0].rdma.gids[0].bytes[14] = to[0].rdma.gids[0].bytes[14] = 1;
    strcpy(from[2].rdma.device, "stuck");
    plan.broken = "stuck";
    open_ends(&l, 3, 3);
    dial = fuse(l.a, from, 3);
    accept = fuse(l.b, to, 3);
    for (int i = 0; i < THREADS; i++) {
        threads[i].l = l;
        threads[i].dial = dial;
        threads[i].accept = accept;
        cr_assert_eq(pthread_create(&threads[i].id, NULL, connects_and_closes, &threads[i]), 0);
    }
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(holmes_transport_fuse(l.b, &to[0], members, 2, &dev), 0);
        cr_assert_eq(holmes_transport_memory(l.b, dev), HOLMES_MEMORY_HOST);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i].id, NULL);
        cr_assert_eq(threads[i].rc, 0, "%s", strerror(-threads[i].rc));
    }
    link_close(&l);
}

Test(choice, only_rdma_ports_of_this_process_can_be_fused)
{
    struct holmes_nic nic;
    struct link l;
    int dev, same[] = {0, 4}, out[] = {0, 9}, one[] = {0}, good[] = {0, 1};

    two_rdma_nodes();
    nic = from[0];
    open_ends(&l, 4, 1);
    cr_assert_eq(holmes_transport_fuse(l.a, &nic, same, 2, &dev), -EINVAL, "an Ethernet NIC");
    cr_assert_eq(holmes_transport_fuse(l.a, &nic, out, 2, &dev), -EINVAL);
    cr_assert_eq(holmes_transport_fuse(l.a, &nic, one, 1, &dev), -EINVAL);
    cr_assert_eq(holmes_transport_fuse(l.a, &nic, good, 2, &dev), 0);
    cr_assert_eq(dev, 5);
    cr_assert_eq(holmes_transport_nics(l.a), 6);
    cr_assert_eq(holmes_transport_fuse(l.a, &nic, (int[]){0, 5}, 2, &dev), -EINVAL, "a fused one");
    link_close(&l);
}

Test(choice, receive_into_gpu_memory_is_flushed_on_every_rail)
{
    struct link l;
    uint8_t src[64], dst[64];
    void *buf = dst;
    size_t len = sizeof dst, none = 0;
    struct holmes_mr *sm, *dm, *host;
    struct holmes_request *r;
    bool done = false;

    two_rdma_nodes();
    plan.gpu = true;
    for (int i = 0; i < 2; i++) {
        strcpy(from[i].rdma.fabric, "A");
        strcpy(to[i].rdma.fabric, "A");
    }
    open_ends(&l, 2, 2);
    connect_devices(&l, fuse(l.a, from, 2), fuse(l.b, to, 2));
    cr_assert_eq(holmes_transport_memory(l.b, 0), HOLMES_MEMORY_HOST | HOLMES_MEMORY_DMABUF);
    cr_assert_eq(holmes_mr_reg(l.send, src, sizeof src, &sm), 0);
    cr_assert_eq(holmes_mr_reg(l.recv, dst, sizeof dst, &host), 0);
    cr_assert_eq(holmes_mr_reg_dmabuf(l.recv, dst, sizeof dst, 0, 7, &dm), 0);
    cr_assert_neq(dm, host, "another kind of memory is another registration");
    link_fill(src, sizeof src, 1);
    r = link_irecv(l.recv, dst, sizeof dst, 1, dm);
    link_wait_both(link_isend(l.send, src, sizeof src, 1, sm), r);
    cr_assert_eq(holmes_iflush(l.recv, 1, &buf, &len, &host, &r), 0);
    cr_assert_null(r, "host memory needs no flush");
    cr_assert_eq(holmes_iflush(l.recv, 1, &buf, &none, &dm, &r), 0);
    cr_assert_null(r, "nothing came");
    cr_assert_eq(holmes_iflush(l.recv, 1, &buf, &len, &dm, &r), 0);
    cr_assert_eq(plan.flushes, 2);
    for (int i = 0; i < 1000 && !done; i++)
        cr_assert_eq(holmes_test(r, &done, NULL), 0);
    cr_assert(done, "the flush never ended");
    holmes_mr_dereg(l.recv, dm);
    holmes_mr_dereg(l.recv, host);
    holmes_mr_dereg(l.send, sm);
    link_close(&l);
}
