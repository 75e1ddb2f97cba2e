/* Single calls, as NCCL makes them at the edges: error paths, stale outputs, things given up
 * half-way. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "../support/patience.h"
#include "clock.h"
#include "pair.h"
#include "self.h"

#define STALE ((void *)0xdead0)

TestSuite(contract, .timeout = 60);

Test(contract, every_property_of_every_version_is_filled)
{
    for (int version = 6; version <= 12; version++) {
        struct pair p;
        int ndev = -1;

        pair_init(&p, version);
        cr_assert_eq(net_devices(&p.api, &ndev), ncclSuccess);
        cr_assert_geq(ndev, 1);
        for (int dev = 0; dev < ndev; dev++) {
            struct net_props props;

            cr_assert_eq(net_properties(&p.api, dev, &props), ncclSuccess);
            cr_expect_gt(strlen(props.name), 0);
            cr_expect(!props.pci_path || strncmp(props.pci_path, "/sys/", 5) == 0, "%s",
                      props.pci_path);
            cr_expect_eq(props.ptr_support, NCCL_PTR_HOST);
            cr_expect(props.speed >= 10 && props.speed <= 3200000, "speed %d", props.speed);
            cr_expect_eq(props.port, over_rdma() ? 1 : 0);
            cr_expect_eq(props.latency, 0);
            cr_expect_geq(props.max_comms, 65536);
            cr_expect_eq(props.max_recvs, 1);
            cr_expect_eq(props.device_type, NCCL_NET_DEVICE_HOST);
            cr_expect_eq(props.device_version, NCCL_NET_DEVICE_INVALID_VERSION);
            cr_expect_eq(props.reg_is_global, 0);
            cr_expect_eq(props.force_flush, 0);
            cr_expect(props.vdevs == 1 && props.vdev0 == dev);
            cr_expect(props.max_p2p_bytes >= (size_t)1 << 30 && props.max_p2p_bytes <= (size_t)1
                                                                                           << 40);
            cr_expect(props.max_coll_bytes > 0 && props.max_coll_bytes <= (size_t)1 << 40);
            cr_expect_eq(props.max_multi_request, 1);
            cr_expect_eq(props.rail, NCCL_NET_ID_UNDEF);
            cr_expect_eq(props.plane, NCCL_NET_ID_UNDEF);
        }
        pair_fini(&p);
    }
}

/* NCCL keeps the pointers. */
Test(contract, names_outlive_their_communicator)
{
    struct net_props before, after;
    char name[64];
    struct pair p;

    pair_init(&p, 12);
    cr_assert_eq(net_properties(&p.api, 0, &before), ncclSuccess);
    snprintf(name, sizeof name, "%s", before.name);
    pair_fini(&p);
    cr_expect_str_eq(before.name, name);
    pair_init(&p, 12);
    cr_assert_eq(net_properties(&p.api, 0, &after), ncclSuccess);
    cr_expect_eq(after.name, before.name);
    cr_expect_eq(after.guid, before.guid);
    pair_fini(&p);
}

Test(contract, a_logger_may_come_with_a_later_communicator)
{
    struct net_api api;
    struct pair p;
    void *ctx;

    cr_assert_null(net_open(HOLMES_PLUGIN, 11, &api));
    cr_assert_eq(net_init(&api, &ctx, 1, NULL), ncclSuccess);
    cr_expect_eq(log_count(NCCL_LOG_NONE, ""), 0);
    pair_init(&p, 11);
    cr_expect(log_has(NCCL_LOG_INFO, "communicator", "joins"), "%s", log_text());
    pair_fini(&p);
    cr_assert_eq(net_finalize(&api, ctx), ncclSuccess);
    net_close(&api);
}

Test(contract, members_that_must_be_there_are_there)
{
    struct net_api api;
    const ncclNet_v12_t *t;

    cr_assert_null(net_open(HOLMES_PLUGIN, 12, &api));
    t = api.table;
    cr_expect(t->init && t->devices && t->getProperties && t->listen && t->connect && t->accept &&
              t->regMr && t->deregMr && t->isend && t->irecv && t->iflush && t->test &&
              t->closeSend && t->closeRecv && t->closeListen && t->finalize);
    /* Where a GPU takes part. */
    cr_expect(t->regMrDmaBuf && t->makeVDevice);
    /* Each of these would change what NCCL does. */
    cr_expect(!t->getDeviceMr && !t->irecvConsumed);
    net_close(&api);
}

Test(contract, a_device_is_not_fused_with_itself_nor_nine)
{
    struct pair p;
    const ncclNet_v12_t *t;
    ncclNetVDeviceProps_v12_t members = {.ndevs = 2, .devs = {0, 0}}, bad = {.ndevs = 9};
    int dev = -7, before = 0, after = 0;

    pair_init(&p, 12);
    t = p.api.table;
    cr_assert_eq(t->devices(&before), ncclSuccess);
    cr_expect_neq(t->makeVDevice(&dev, &members), ncclSuccess);
    cr_expect_neq(t->makeVDevice(&dev, &bad), ncclSuccess);
    cr_assert_eq(t->devices(&after), ncclSuccess);
    cr_expect_eq(before, after);
    cr_expect_eq(dev, -7);
    pair_fini(&p);
}

Test(contract, a_device_that_is_not_there_is_refused)
{
    struct pair p;
    struct net_props props;
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *comm = STALE;
    int ndev;

    pair_init(&p, 12);
    cr_assert_eq(net_devices(&p.api, &ndev), ncclSuccess);
    cr_expect_eq(net_properties(&p.api, ndev, &props), ncclInternalError);
    cr_expect_eq(net_properties(&p.api, -1, &props), ncclInternalError);
    cr_expect_eq(net_listen(&p.api, p.ctx, ndev, handle, &comm), ncclInternalError);
    cr_expect_null(comm);
    pair_fini(&p);
}

Test(contract, nothing_is_closed_without_harm)
{
    struct pair p;

    pair_init(&p, 11);
    cr_expect_eq(net_close_send(&p.api, NULL), ncclSuccess);
    cr_expect_eq(net_close_recv(&p.api, NULL), ncclSuccess);
    cr_expect_eq(net_close_listen(&p.api, NULL), ncclSuccess);
    cr_expect_eq(net_dereg(&p.api, NULL, NULL), ncclSuccess);
    pair_connect(&p);
    cr_expect_eq(net_dereg(&p.api, p.send, NULL), ncclSuccess);
    cr_expect_eq(net_finalize(&p.api, NULL), ncclSuccess);
    pair_move(&p, 1000, 1000);
    pair_fini(&p);
}

/* NCCL 2.28 finalizes what a failed init left in ctx. */
Test(contract, init_that_fails_leaves_null_and_may_be_repeated)
{
    struct net_api api;
    struct pair p;
    void *ctx = STALE;

    cr_assert_null(net_open(HOLMES_PLUGIN, 11, &api));
    setenv("HOLMES_LANES", "many", 1);
    cr_expect_eq(net_init(&api, &ctx, 1, test_logger), ncclInvalidUsage);
    cr_expect_null(ctx);
    cr_expect(log_has(NCCL_LOG_WARN, "HOLMES_LANES", "\"many\""), "%s", log_text());
    cr_expect_eq(net_finalize(&api, ctx), ncclSuccess);
    unsetenv("HOLMES_LANES");
    net_close(&api);
    pair_init(&p, 11);
    pair_connect(&p);
    pair_move(&p, 5000, 5000);
    pair_fini(&p);
}

Test(contract, an_unknown_holmes_variable_is_refused)
{
    struct net_api api;
    void *ctx;

    cr_assert_null(net_open(HOLMES_PLUGIN, 10, &api));
    setenv("HOLMES_LANE", "2", 1);
    cr_expect_eq(net_init(&api, &ctx, 1, test_logger), ncclInvalidUsage);
    cr_expect(log_has(NCCL_LOG_WARN, "HOLMES_LANE", "not a variable"), "%s", log_text());
    net_close(&api);
}

Test(contract, an_interface_that_is_not_there_is_refused_by_name)
{
    struct net_api api;
    void *ctx;

    cr_assert_null(net_open(HOLMES_PLUGIN, 11, &api));
    setenv("NCCL_SOCKET_IFNAME", "nosuch7", 1);
    cr_expect_eq(net_init(&api, &ctx, 1, test_logger), ncclInvalidUsage);
    cr_expect(log_has(NCCL_LOG_WARN, "\"nosuch7\"", "interfaces here: lo"), "%s", log_text());
    net_close(&api);
}

Test(contract, an_interface_is_used_when_named)
{
    struct net_props props;
    struct pair p;
    int ndev;

    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    pair_init(&p, 11);
    cr_assert_eq(net_devices(&p.api, &ndev), ncclSuccess);
    cr_assert_eq(ndev, 1);
    cr_assert_eq(net_properties(&p.api, 0, &props), ncclSuccess);
    cr_expect_str_eq(props.name, "lo");
    cr_expect_null(props.pci_path);
    pair_connect(&p);
    pair_move(&p, 100000, 100000);
    pair_fini(&p);
}

Test(contract, the_name_comes_from_the_environment)
{
    struct net_api api;

    setenv("HOLMES_NET_NAME", "IB", 1);
    cr_assert_null(net_open(HOLMES_PLUGIN, 12, &api));
    cr_expect_str_eq(net_name(&api), "IB");
    net_close(&api);
}

Test(contract, a_name_that_does_not_fit_is_refused)
{
    char name[100] = {0};
    struct net_api api;
    void *ctx;

    memset(name, 'x', sizeof name - 1);
    setenv("HOLMES_NET_NAME", name, 1);
    cr_assert_null(net_open(HOLMES_PLUGIN, 12, &api));
    cr_expect_eq(net_init(&api, &ctx, 1, test_logger), ncclInvalidUsage);
    cr_expect(log_has(NCCL_LOG_WARN, "HOLMES_NET_NAME", "1 to 63"), "%s", log_text());
    net_close(&api);
}

Test(contract, lines_reach_nccls_logger)
{
    struct pair p;

    pair_init(&p, 11);
    cr_expect(log_has(NCCL_LOG_INFO, "NET/Holmes", "nic "), "%s", log_text());
    cr_expect(log_has(NCCL_LOG_INFO, "NET/Holmes", "communicator 0000000000000007 joins"));
    cr_expect_eq(log_count(NCCL_LOG_TRACE, "NET/Holmes"), 0, "traces without NCCL_DEBUG=TRACE");
    pair_connect(&p);
    cr_expect_geq(log_count(NCCL_LOG_INFO, over_rdma() ? " verbs over " : over_tcp()), 2, "%s",
                  log_text());
    pair_fini(&p);
}

Test(contract, traces_come_when_nccl_wants_them)
{
    struct pair p;

    setenv("NCCL_DEBUG", "trace", 1);
    pair_init(&p, 12);
    pair_connect(&p);
    cr_expect_geq(log_count(NCCL_LOG_TRACE, "NET/Holmes"), 1, "%s", log_text());
    pair_fini(&p);
}

Test(contract, a_foreign_handle_is_refused_at_once)
{
    static const uint8_t socket_handle[] = {AF_INET, 0, 0x9c, 0x40, 127, 0, 0, 1};
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    void *comm = STALE;
    struct pair p;

    pair_init(&p, 11);
    memset(handle, 0, sizeof handle);
    memcpy(handle, socket_handle, sizeof socket_handle);
    cr_expect_eq(net_connect(&p.api, p.ctx, 0, handle, &comm), ncclInvalidUsage);
    cr_expect_null(comm);
    cr_expect_geq(log_count(NCCL_LOG_WARN, "handle"), 1, "%s", log_text());
    memset(handle, 0, sizeof handle);
    comm = STALE;
    cr_expect_eq(net_connect(&p.api, p.ctx, 0, handle, &comm), ncclInvalidUsage);
    cr_expect_null(comm);
    pair_fini(&p);
}

/* NCCL's own transports read the first two bytes as an address family. */
Test(contract, our_handle_is_no_socket_address)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *listen;
    sa_family_t family;
    struct pair p;

    pair_init(&p, 11);
    cr_assert_eq(net_listen(&p.api, p.ctx, 0, handle, &listen), ncclSuccess);
    memcpy(&family, handle, sizeof family);
    cr_expect_gt(family, AF_MAX);
    handle[60]++; /* a handle that was damaged on its way */
    {
        void *comm = STALE;

        cr_expect_eq(net_connect(&p.api, p.ctx, 0, handle, &comm), ncclInvalidUsage);
        cr_expect_null(comm);
    }
    cr_assert_eq(net_close_listen(&p.api, listen), ncclSuccess);
    pair_fini(&p);
}

Test(contract, polling_without_a_peer_costs_microseconds)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    const int rounds = 2000;
    void *listen, *comm;
    uint64_t begin;
    struct pair p;

    pair_init(&p, 11);
    cr_assert_eq(net_listen(&p.api, p.ctx, 0, handle, &listen), ncclSuccess);
    begin = holmes_now_ns();
    for (int i = 0; i < rounds; i++) {
        comm = STALE;
        cr_assert_eq(net_accept(&p.api, listen, &comm), ncclSuccess);
        cr_assert_null(comm);
    }
    cr_expect_lt((holmes_now_ns() - begin) / (uint64_t)rounds, 66000 * patience(),
                 "nanoseconds for one accept");
    cr_assert_eq(net_close_listen(&p.api, listen), ncclSuccess);
    pair_fini(&p);
}

Test(contract, isend_waits_for_its_receive_without_a_request)
{
    char buf[64] = "x";
    void *request, *mr;
    struct pair p;

    setenv("HOLMES_EAGER", "0", 1);
    pair_init(&p, 12);
    pair_connect(&p);
    cr_assert_eq(net_reg(&p.api, p.send, buf, sizeof buf, &mr), ncclSuccess);
    for (int i = 0; i < 100; i++) {
        request = STALE;
        cr_assert_eq(net_isend(&p.api, p.send, buf, sizeof buf, 3, mr, &request), ncclSuccess);
        cr_assert_null(request);
    }
    cr_assert_eq(net_dereg(&p.api, p.send, mr), ncclSuccess);
    pair_fini(&p);
}

Test(contract, thirty_two_receives_and_then_not_yet)
{
    static char buf[NCCL_NET_MAX_REQUESTS + 1][64];
    void *requests[NCCL_NET_MAX_REQUESTS + 1], *mr;
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    cr_assert_eq(net_reg(&p.api, p.recv, buf, sizeof buf, &mr), ncclSuccess);
    for (int i = 0; i <= NCCL_NET_MAX_REQUESTS; i++) {
        requests[i] = STALE;
        cr_assert_eq(net_irecv(&p.api, p.recv, buf[i], sizeof buf[i], 0, mr, &requests[i]),
                     ncclSuccess);
        cr_assert_neq(requests[i], STALE);
        cr_assert(i < NCCL_NET_MAX_REQUESTS ? requests[i] != NULL : requests[i] == NULL,
                  "receive %d", i);
    }
    cr_assert_eq(net_dereg(&p.api, p.recv, mr), ncclSuccess);
    pair_fini(&p);
}

Test(contract, an_empty_message_needs_no_memory)
{
    void *requests[2];
    int done = 0, size = -7;
    struct pair p;

    for (int version = 6; version <= 12; version += 3) {
        pair_init(&p, version);
        pair_connect(&p);
        requests[0] = pair_irecv(&p, NULL, 0, NULL);
        requests[1] = pair_isend(&p, NULL, 0, NULL);
        done = 0;
        cr_assert(
            WAIT_UNTIL(net_test(&p.api, requests[0], &done, &size) == ncclSuccess && done, 5000));
        cr_expect_eq(size, 0);
        cr_assert(
            WAIT_UNTIL(net_test(&p.api, requests[1], &done, &size) == ncclSuccess && done, 5000));
        pair_fini(&p);
    }
}

/* NCCL's bootstrap over the net registers heap memory as it finds it, and asks for no sizes. */
Test(contract, bootstrap_moves_unaligned_memory_and_ignores_sizes)
{
    const size_t lens[] = {1, 28, 4095, 4097, 100001};
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        uint8_t *out = malloc(lens[i] + 3), *in = calloc(1, lens[i] + 5);
        void *out_mr, *in_mr, *requests[2];
        int done[2] = {0, 0};

        cr_assert(out && in);
        memset(out, 0x5a + (int)i, lens[i] + 3);
        cr_assert_eq(net_reg(&p.api, p.send, out + 3, lens[i], &out_mr), ncclSuccess);
        cr_assert_eq(net_reg(&p.api, p.recv, in + 1, lens[i], &in_mr), ncclSuccess);
        requests[0] = pair_irecv(&p, in + 1, lens[i], in_mr);
        requests[1] = pair_isend(&p, out + 3, lens[i], out_mr);
        for (uint64_t until = holmes_deadline_ms(10000); !done[0] || !done[1];) {
            cr_assert(!holmes_deadline_passed(until), "%s", log_text());
            for (int k = 0; k < 2; k++) {
                if (!done[k])
                    cr_assert_eq(net_test(&p.api, requests[k], &done[k], NULL), ncclSuccess);
            }
        }
        cr_expect_eq(memcmp(in + 1, out + 3, lens[i]), 0, "%zu bytes", lens[i]);
        cr_expect(in[0] == 0 && in[1 + lens[i]] == 0, "bytes beside the buffer");
        cr_assert_eq(net_dereg(&p.api, p.send, out_mr), ncclSuccess);
        cr_assert_eq(net_dereg(&p.api, p.recv, in_mr), ncclSuccess);
        free(out);
        free(in);
    }
    pair_fini(&p);
}

Test(contract, a_send_larger_than_its_receive_fails_both_ends)
{
    static char out[4096], in[2048];
    void *recv_request, *request = NULL, *out_mr, *in_mr;
    ncclResult_t rc = ncclSuccess;
    uint64_t deadline;
    int done = 0, size;
    struct pair p;

    pair_init(&p, 12);
    pair_connect(&p);
    cr_assert_eq(net_reg(&p.api, p.send, out, sizeof out, &out_mr), ncclSuccess);
    cr_assert_eq(net_reg(&p.api, p.recv, in, sizeof in, &in_mr), ncclSuccess);
    recv_request = pair_irecv(&p, in, sizeof in, in_mr);
    deadline = holmes_deadline_ms(5000);
    while (rc == ncclSuccess && !request && !holmes_deadline_passed(deadline))
        rc = net_isend(&p.api, p.send, out, sizeof out, 0, out_mr, &request);
    if (rc == ncclSuccess && request)
        WAIT_UNTIL((rc = net_test(&p.api, request, &done, &size)) != ncclSuccess || done, 5000);
    cr_expect_eq(rc, ncclInvalidUsage, "the sender got %d", rc);
    cr_expect(log_has(NCCL_LOG_WARN, "4096", "2048"), "both sizes are named:\n%s", log_text());
    rc = ncclSuccess;
    WAIT_UNTIL((rc = net_test(&p.api, recv_request, &done, &size)) != ncclSuccess || done, 5000);
    cr_expect_neq(rc, ncclSuccess, "the receiver went on");
    cr_expect_eq(done, 0);
    net_dereg(&p.api, p.send, out_mr);
    net_dereg(&p.api, p.recv, in_mr);
    pair_fini(&p);
}

/* Without CUDA: by the transport, or by the port that would have to find the memory. */
Test(contract, device_memory_is_refused)
{
    void *mr = STALE, *gpu = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ncclResult_t rc;
    struct pair p;

    cr_assert_neq(gpu, MAP_FAILED);
    pair_init(&p, 12);
    pair_connect(&p);
    rc = ((const ncclNet_v12_t *)p.api.table)->regMr(p.send, gpu, 4096, NCCL_PTR_CUDA, &mr);
    if (over_rdma())
        cr_expect_neq(rc, ncclSuccess);
    else
        cr_expect_eq(rc, ncclInternalError, "%d", rc);
    cr_expect_null(mr);
    pair_fini(&p);
    munmap(gpu, 4096);
}

Test(contract, a_group_larger_than_offered_is_refused)
{
    struct pair p;
    char buf[2][64];
    void *data[2] = {buf[0], buf[1]}, *mrs[2] = {NULL, NULL}, *request = STALE;
    size_t sizes[2] = {64, 64};
    int tags[2] = {0, 0};

    pair_init(&p, 12);
    pair_connect(&p);
    cr_expect_eq(((const ncclNet_v12_t *)p.api.table)
                     ->irecv(p.recv, 2, data, sizes, tags, mrs, NULL, &request),
                 ncclInternalError);
    cr_expect_null(request);
    pair_fini(&p);
}

/* An aborted set-up: a listen nobody connects to, a connect nobody accepts, a connection that both
 * ends have looked at `looks` times. NCCL closes what it was given of it, and finalizes. */
static void abandon(struct pair *p, int looks)
{
    char handle[3][NCCL_NET_HANDLE_MAXSIZE] = {{0}};
    void *listen[3], *nobody, *send = NULL, *recv = NULL;

    for (int i = 0; i < 3; i++)
        cr_assert_eq(net_listen(&p->api, p->ctx, 0, handle[i], &listen[i]), ncclSuccess);
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(net_connect(&p->api, p->ctx, 0, handle[1], &nobody), ncclSuccess);
        cr_assert_null(nobody);
        if (i < looks && !send)
            cr_assert_eq(net_connect(&p->api, p->ctx, 0, handle[2], &send), ncclSuccess);
        if (i < looks && !recv)
            cr_assert_eq(net_accept(&p->api, listen[2], &recv), ncclSuccess);
    }
    /* Over RDMA three looks are enough for the accepting end. */
    if (send)
        cr_assert_eq(net_close_send(&p->api, send), ncclSuccess);
    if (recv)
        cr_assert_eq(net_close_recv(&p->api, recv), ncclSuccess);
}

Test(contract, finalize_reaps_what_an_aborted_setup_left)
{
    struct pair keep, p;
    int fds, threads;

    pair_init(&keep, 11);
    pair_connect(&keep);
    pair_init(&p, 11);
    pair_connect(&p);
    pair_fini(&p);
    fds = holmes_self_fds();
    threads = holmes_self_threads();
    for (int i = 0; i < 5; i++) {
        pair_init(&p, 11);
        abandon(&p, 1 + i % 3);
        pair_fini(&p);
        cr_expect_eq(holmes_self_fds(), fds, "round %d: %d descriptors instead of %d", i,
                     holmes_self_fds(), fds);
        cr_expect_eq(holmes_self_threads(), threads);
    }
    pair_move(&keep, 70000, 70000);
    pair_fini(&keep);
}

Test(contract, the_last_finalize_gives_everything_back)
{
    struct pair p;
    int fds = 0, threads = 0;

    for (int i = 0; i < 4; i++) {
        pair_init(&p, 12);
        pair_connect(&p);
        pair_move(&p, 1 << 20, 1 << 20);
        abandon(&p, 3);
        pair_fini(&p);
        if (i == 0) { /* libraries keep what they opened once */
            fds = holmes_self_fds();
            threads = holmes_self_threads();
        }
        cr_expect_eq(holmes_self_fds(), fds, "round %d: %d descriptors instead of %d", i,
                     holmes_self_fds(), fds);
        cr_expect_eq(holmes_self_threads(), threads, "round %d: %d threads, not %d", i,
                     holmes_self_threads(), threads);
    }
    cr_expect_eq(listening_ports((int[8]){0}, 8), 0);
}

Test(contract, before_v11_init_may_be_repeated)
{
    struct pair a, b;

    pair_init(&a, 8);
    pair_init(&b, 10);
    pair_connect(&a);
    pair_connect(&b);
    pair_move(&a, 3000, 3000);
    pair_fini(&a);
    pair_move(&b, 3000, 3000);
    pair_fini(&b);
    pair_init(&a, 6);
    pair_connect(&a);
    pair_move(&a, 3000, 4000);
    pair_fini(&a);
}
