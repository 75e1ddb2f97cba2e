/* Descriptors and ports: what runs out, and what must come back. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/spawn.h"
#include "clock.h"
#include "pair.h"
#include "self.h"

TestSuite(limits, .timeout = 240);

/* ---- descriptors ---- */

static void limit_descriptors(rlim_t soft, rlim_t hard)
{
    struct rlimit lim = {soft, hard};

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &lim), 0);
}

static rlim_t soft_limit(void)
{
    struct rlimit lim;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &lim), 0);
    return lim.rlim_cur;
}

Test(limits, three_hundred_pairs_fit_under_a_raised_limit)
{
    enum { PAIRS = 300 };
    static void *sends[PAIRS], *recvs[PAIRS];
    struct pair p;

    private_loopback();
    setenv("HOLMES_LANES", "1", 1);
    limit_descriptors(256, 4096);
    pair_init(&p, 12);
    cr_assert_eq(soft_limit(), 4096);
    cr_expect(log_has(NCCL_LOG_INFO, "RLIMIT_NOFILE", "from 256 to 4096"), "%s", log_text());
    for (int i = 0; i < PAIRS; i++) {
        pair_connect(&p);
        sends[i] = p.send;
        recvs[i] = p.recv;
    }
    for (int i = 0; i < PAIRS; i++) {
        p.send = sends[i];
        p.recv = recvs[i];
        pair_move(&p, 1000 + (size_t)i, 4000);
    }
    for (int i = 0; i < PAIRS; i++) {
        p.send = sends[i];
        p.recv = recvs[i];
        pair_close(&p);
    }
    pair_fini(&p);
}

Test(limits, the_limit_stays_when_told_to)
{
    struct pair p;

    limit_descriptors(256, 4096);
    setenv("HOLMES_NOFILE", "keep", 1);
    pair_init(&p, 12);
    cr_expect_eq(soft_limit(), 256);
    pair_fini(&p);
}

Test(limits, a_thousand_connections_come_and_go)
{
    struct pair p;
    int fds;

    private_loopback();
    pair_init(&p, 12);
    pair_connect(&p);
    pair_close(&p);
    fds = holmes_self_fds();
    for (int i = 0; i < 1000; i++) {
        pair_connect(&p);
        pair_close(&p);
    }
    cr_expect_eq(holmes_self_fds(), fds, "%d descriptors instead of %d", holmes_self_fds(), fds);
    pair_fini(&p);
}

/* Polls a set-up until it is up or an end fails. */
static ncclResult_t try_connect(struct pair *p)
{
    uint64_t deadline = holmes_deadline_ms(10000);
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *listen = NULL;
    ncclResult_t rc = net_listen(&p->api, p->ctx, 0, handle, &listen);

    p->send = p->recv = NULL;
    while (rc == ncclSuccess && (!p->send || !p->recv)) {
        cr_assert(!holmes_deadline_passed(deadline), "neither up nor failed:\n%s", log_text());
        if (!p->send)
            rc = net_connect(&p->api, p->ctx, 0, handle, &p->send);
        if (rc == ncclSuccess && !p->recv)
            rc = net_accept(&p->api, listen, &p->recv);
    }
    net_close_listen(&p->api, listen);
    return rc;
}

Test(limits, running_out_of_descriptors_names_the_limit)
{
    ncclResult_t rc = ncclSuccess;
    struct pair first, more;
    int made = 0;

    private_loopback();
    setenv("HOLMES_LANES", "1", 1);
    pair_init(&first, 12);
    more = first;
    pair_connect(&first);
    limit_descriptors((rlim_t)holmes_self_fds() + 32, 4096);
    while (rc == ncclSuccess && made < 64) {
        rc = try_connect(&more);
        made += rc == ncclSuccess; /* kept open until finalize */
    }
    cr_expect_lt(made, 10, "the limit does not bind");
    cr_expect_eq(rc, ncclSystemError, "%d", rc);
    {
        char limit[32];

        snprintf(limit, sizeof limit, "%llu", (unsigned long long)soft_limit());
        cr_expect(log_has(NCCL_LOG_WARN, "RLIMIT_NOFILE", limit), "%s", log_text());
    }
    pair_move(&first, 100000, 100000);
    pair_fini(&first);
}

/* ---- ports ---- */

static void expect_range_refused(const char *range)
{
    struct net_api api;
    void *ctx;
    char quoted[64];

    snprintf(quoted, sizeof quoted, "\"%s\"", range);
    setenv("HOLMES_PORT_RANGE", range, 1);
    cr_assert_null(net_open(HOLMES_PLUGIN, 12, &api));
    cr_expect_eq(net_init(&api, &ctx, 1, test_logger), ncclInvalidUsage, "%s", range);
    cr_expect(log_has(NCCL_LOG_WARN, "HOLMES_PORT_RANGE", quoted), "%s", log_text());
    net_close(&api);
}

Test(limits, a_malformed_port_range_is_refused)
{
    expect_range_refused("40003-40000");
    expect_range_refused("0-70000");
    expect_range_refused("x");
}

Test(limits, every_listening_port_lies_in_the_range)
{
    enum { LISTENS = 1000 };
    static void *listens[LISTENS];
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    int ports[16], n;
    struct pair p;

    private_loopback();
    setenv("HOLMES_PORT_RANGE", "40000-40001", 1);
    pair_init(&p, 12);
    for (int i = 0; i < LISTENS; i++)
        cr_assert_eq(net_listen(&p.api, p.ctx, 0, handle, &listens[i]), ncclSuccess,
                     "listen %d:\n%s", i, log_text());
    pair_connect(&p);
    pair_move(&p, 100000, 100000);
    n = listening_ports(ports, 16);
    cr_expect_geq(n, 1);
    for (int i = 0; i < n; i++)
        cr_expect(ports[i] == 40000 || ports[i] == 40001, "port %d", ports[i]);
    cr_expect_null(getenv("FI_TCP_PORT_LOW_RANGE"));
    for (int i = 0; i < LISTENS; i++)
        cr_assert_eq(net_close_listen(&p.api, listens[i]), ncclSuccess);
    pair_fini(&p);
}

Test(limits, an_exhausted_range_is_refused_by_name)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct net_api api;
    ncclResult_t rc;
    void *ctx, *comm;

    if (geteuid() != 0)
        cr_skip("a range that is known to be free needs a namespace, and so root");
    private_loopback();
    setenv("HOLMES_PORT_RANGE", "40000-40000", 1); /* one for the handshake, none for lanes */
    cr_assert_null(net_open(HOLMES_PLUGIN, 12, &api));
    rc = net_init(&api, &ctx, 1, test_logger);
    if (rc == ncclSuccess)
        rc = net_listen(&api, ctx, 0, handle, &comm);
    cr_expect_eq(rc, ncclInvalidUsage, "%d", rc);
    cr_expect(log_has(NCCL_LOG_WARN, "HOLMES_PORT_RANGE", "40000-40000"), "%s", log_text());
    net_finalize(&api, ctx);
    net_close(&api);
}

/* Each job leaves connections in TIME_WAIT on the ports that the next one wants. */
Test(limits, back_to_back_jobs_share_their_ports)
{
    private_loopback();
    setenv("HOLMES_PORT_RANGE", "40000-40001", 1);
    for (int job = 0; job < 200; job++) {
        struct pair p;

        pair_init(&p, 12);
        pair_connect(&p);
        pair_move(&p, 1000 + (size_t)job, 2000);
        if (job % 2) /* the accepting end closes first: its port waits */
            net_close_recv(&p.api, p.recv), p.recv = NULL;
        pair_fini(&p);
    }
}

static int one_job(const void *arg, const int *fds)
{
    size_t len;
    struct pair p;

    (void)fds;
    memcpy(&len, arg, sizeof len);
    pair_init(&p, 12);
    pair_connect(&p);
    pair_move(&p, len, 2000);
    return 0; /* the kernel closes */
}

Test(limits, back_to_back_processes_share_their_ports)
{
    private_loopback();
    setenv("HOLMES_PORT_RANGE", "40000-40001", 1);
    for (int job = 0; job < 5; job++) {
        size_t len = 1000 + (size_t)job;
        pid_t child = spawn(one_job, &len, sizeof len, NULL, 0);
        int status;

        cr_assert_gt(child, 0);
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "job %d", job);
    }
}
