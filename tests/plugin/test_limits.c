/* Memory registration, descriptors and ports: what runs out, and what must come back. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "pair.h"

TestSuite(limits, .timeout = 240);

/* ---- memory ---- */

/* A write that landed late would hit memory that is gone. */
Test(limits, nothing_lands_after_dereg)
{
    const size_t len = 1 << 20;

    for (int round = 0; round < 5; round++) {
        void *in = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *out = calloc(1, len), *in_mr, *out_mr, *request = NULL;
        uint64_t deadline;
        struct pair p;

        cr_assert(in != MAP_FAILED && out);
        pair_init(&p, 12);
        pair_connect(&p);
        cr_assert_eq(net_reg(&p.api, p.recv, in, len, &in_mr), ncclSuccess);
        cr_assert_eq(net_reg(&p.api, p.send, out, len, &out_mr), ncclSuccess);
        pair_irecv(&p, in, len, in_mr);
        request = pair_isend(&p, out, len, out_mr); /* bytes are on their way */
        cr_assert_eq(net_dereg(&p.api, p.recv, in_mr), ncclSuccess);
        munmap(in, len);
        deadline = holmes_deadline_ms(200);
        while (request && !holmes_deadline_passed(deadline)) {
            int done = 0, size;

            if (net_test(&p.api, request, &done, &size) != ncclSuccess || done)
                request = NULL;
        }
        cr_assert_eq(net_close_recv(&p.api, p.recv), ncclSuccess);
        p.recv = NULL;
        cr_assert_eq(net_dereg(&p.api, p.send, out_mr), ncclSuccess);
        pair_fini(&p);
        free(out);
    }
}

Test(limits, a_range_registered_again_gives_the_same_handle)
{
    static char buf[4][8192] __attribute__((aligned(4096)));
    void *mr[4], *again;
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(net_reg(&p.api, p.recv, buf[i], sizeof buf[i], &mr[i]), ncclSuccess);
    cr_assert_eq(net_dereg(&p.api, p.recv, mr[0]), ncclSuccess);
    cr_assert_eq(net_reg(&p.api, p.recv, buf[1], sizeof buf[1], &again), ncclSuccess);
    cr_expect_eq(again, mr[1]);
    cr_assert_eq(net_dereg(&p.api, p.recv, again), ncclSuccess);
    for (int i = 1; i < 4; i++)
        cr_assert_eq(net_dereg(&p.api, p.recv, mr[i]), ncclSuccess);
    pair_move(&p, 8192, 8192);
    pair_fini(&p);
}

Test(limits, two_buffers_in_one_page_are_two)
{
    static char out[200] __attribute__((aligned(4096))), in[200] __attribute__((aligned(4096)));
    void *out_mr[2], *in_mr[2], *requests[4];
    struct pair p;
    int failed;

    for (int i = 0; i < 200; i++)
        out[i] = (char)(i + 1);
    pair_init(&p, 12);
    pair_connect(&p);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(net_reg(&p.api, p.send, out + 100 * i, 100, &out_mr[i]), ncclSuccess);
        cr_assert_eq(net_reg(&p.api, p.recv, in + 100 * i, 100, &in_mr[i]), ncclSuccess);
    }
    cr_expect_neq(out_mr[0], out_mr[1]);
    cr_expect_neq(in_mr[0], in_mr[1]);
    for (int i = 0; i < 2; i++)
        requests[i] = pair_irecv(&p, in + 100 * i, 100, in_mr[i]);
    for (int i = 0; i < 2; i++)
        requests[2 + i] = pair_isend(&p, out + 100 * i, 100, out_mr[i]);
    cr_assert_eq(pair_wait(&p, requests, 4, 10000, &failed), ncclSuccess);
    cr_expect_eq(memcmp(in, out, 200), 0);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(net_dereg(&p.api, p.send, out_mr[i]), ncclSuccess);
        cr_assert_eq(net_dereg(&p.api, p.recv, in_mr[i]), ncclSuccess);
    }
    pair_fini(&p);
}

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
    fds = count_fds();
    for (int i = 0; i < 1000; i++) {
        pair_connect(&p);
        pair_close(&p);
    }
    cr_expect_eq(count_fds(), fds, "%d descriptors instead of %d", count_fds(), fds);
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
    limit_descriptors((rlim_t)count_fds() + 32, 4096);
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

Test(limits, back_to_back_processes_share_their_ports)
{
    private_loopback();
    setenv("HOLMES_PORT_RANGE", "40000-40001", 1);
    for (int job = 0; job < 5; job++) {
        pid_t child = fork();
        int status;

        cr_assert_geq(child, 0);
        if (child == 0) {
            struct pair p;

            pair_init(&p, 12);
            pair_connect(&p);
            pair_move(&p, 1000 + (size_t)job, 2000);
            _exit(0); /* the kernel closes */
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "job %d", job);
    }
}
