/* Two links in two threads over loopback. */
#include <criterion/criterion.h>
#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "topology/tool/check_link.h"

#define LONG_MS 30000

static struct holmes_transport *transport(void)
{
    struct holmes_nic nic = {.name = "lo", .ifname = "lo", .numa_node = -1, .naddrs = 1};
    struct holmes_transport *t;

    nic.addrs[0].in =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    nic.addrs[0].prefix_len = 8;
    cr_assert_eq(holmes_transport_create(&nic, 1, &t), 0);
    return t;
}

struct peer {
    struct holmes_check_link *link;
    uint8_t handle[HOLMES_HANDLE_SIZE]; /* the other's */
    int rc;
};

static void *answers(void *arg)
{
    struct peer *p = arg;

    p->rc = holmes_check_link_connect(p->link, p->handle, holmes_deadline_ms(LONG_MS));
    if (p->rc == 0)
        p->rc = holmes_check_link_pong(p->link, holmes_deadline_ms(LONG_MS));
    if (p->rc == 0)
        p->rc = holmes_check_link_recv(p->link, holmes_deadline_ms(LONG_MS));
    if (p->rc == 0)
        p->rc = holmes_check_link_recv(p->link, holmes_deadline_ms(LONG_MS));
    return NULL;
}

Test(check_link, measures_over_the_real_transport, .timeout = 120)
{
    struct holmes_transport *t[2] = {transport(), transport()};
    struct holmes_check_link *l;
    struct peer peer;
    uint8_t handle[HOLMES_HANDLE_SIZE];
    struct holmes_conn_stats stats;
    uint64_t rtt_ns = 0, started;
    double gbps[2] = {0};
    pthread_t thread;

    cr_assert_eq(holmes_check_link_create(t[0], 0, peer.handle, &l), 0);
    cr_assert_eq(holmes_check_link_create(t[1], 0, handle, &peer.link), 0);
    pthread_create(&thread, NULL, answers, &peer);
    cr_assert_eq(holmes_check_link_connect(l, handle, holmes_deadline_ms(LONG_MS)), 0);
    holmes_check_link_stats(l, &stats);
    cr_assert_str_eq(stats.wire, "tcp");
    started = holmes_now_ns();
    cr_assert_eq(
        holmes_check_link_ping(l, holmes_deadline_ms(50), holmes_deadline_ms(LONG_MS), &rtt_ns), 0);
    cr_assert(rtt_ns > 1000 && rtt_ns < holmes_now_ns() - started, "%llu ns",
              (unsigned long long)rtt_ns);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(holmes_check_link_send(l, 50000000, holmes_deadline_ms(LONG_MS), &gbps[i]), 0);
    pthread_join(thread, NULL);
    cr_assert_eq(peer.rc, 0, "peer: %s", strerror(-peer.rc));
    cr_assert(gbps[0] > 0.01 && gbps[0] < 5000 && gbps[1] > 0.01, "%g, %g Gb/s", gbps[0], gbps[1]);
    holmes_check_link_destroy(l);
    holmes_check_link_destroy(peer.link);
    holmes_transport_destroy(t[0]);
    holmes_transport_destroy(t[1]);
}

Test(check_link, a_peer_that_never_comes_or_never_answers_ends_by_the_deadline, .timeout = 120)
{
    struct holmes_transport *t = transport();
    struct holmes_check_link *a, *b;
    uint8_t ha[HOLMES_HANDLE_SIZE], hb[HOLMES_HANDLE_SIZE];
    uint64_t rtt_ns;
    double gbps;
    int rc;

    cr_assert_eq(holmes_check_link_create(t, 0, ha, &a), 0);
    cr_assert_eq(holmes_check_link_create(t, 0, hb, &b), 0);
    rc = holmes_check_link_connect(a, hb, holmes_deadline_ms(100));
    cr_assert_eq(rc, -ETIMEDOUT, "%s", strerror(-rc));
    holmes_check_link_destroy(a);
    holmes_check_link_destroy(b);

    struct peer peer;
    pthread_t thread;

    cr_assert_eq(holmes_check_link_create(t, 0, peer.handle, &a), 0);
    cr_assert_eq(holmes_check_link_create(t, 0, hb, &peer.link), 0);
    peer.rc = 1;
    pthread_create(&thread, NULL, answers, &peer);
    cr_assert_eq(holmes_check_link_connect(a, hb, holmes_deadline_ms(LONG_MS)), 0);
    cr_assert_eq(holmes_check_link_ping(a, 0, holmes_deadline_ms(LONG_MS), &rtt_ns), 0);
    cr_assert_eq(holmes_check_link_send(a, 1000000, holmes_deadline_ms(LONG_MS), &gbps), 0);
    cr_assert_eq(holmes_check_link_send(a, 1000000, holmes_deadline_ms(LONG_MS), &gbps), 0);
    pthread_join(thread, NULL);
    cr_assert_eq(peer.rc, 0);
    /* The peer does nothing more. */
    rc = holmes_check_link_ping(a, 0, holmes_deadline_ms(100), &rtt_ns);
    cr_assert_eq(rc, -ETIMEDOUT, "%s", strerror(-rc));
    holmes_check_link_destroy(a);
    holmes_check_link_destroy(peer.link);
    holmes_transport_destroy(t);
}
