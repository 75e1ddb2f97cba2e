/* What NCCL sees of RDMA ports, on a kernel that has some: in the guests of tests/soft-roce only,
 * which have rxe_v0 and rxe_v1 on interfaces v0 and v1 and say so in HOLMES_TEST_VERBS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pair.h"
#include "self.h"

TestSuite(rdma, .timeout = 120);

static void guests_only(void)
{
    if (!over_rdma())
        cr_skip("not in a guest of tests/soft-roce");
}

/* "rxe_v0 rxe_v1" */
static const char *device_names(const struct pair *p)
{
    static char names[256];
    size_t len = 0;
    int n = -1;

    cr_assert_eq(net_devices(&p->api, &n), ncclSuccess);
    names[0] = '\0';
    for (int i = 0; i < n && len < sizeof names; i++) {
        struct net_props props;

        cr_assert_eq(net_properties(&p->api, i, &props), ncclSuccess);
        len +=
            (size_t)snprintf(names + len, sizeof names - len, "%s%s", i > 0 ? " " : "", props.name);
    }
    return names;
}

static void expect_devices(const char *want)
{
    struct pair p;

    pair_init(&p, 12);
    cr_expect_str_eq(device_names(&p), want, "%s", log_text());
    pair_fini(&p);
}

Test(rdma, ports_are_shown_as_they_are)
{
    struct net_props first, second;
    struct pair p;

    guests_only();
    pair_init(&p, 12);
    cr_expect_str_eq(device_names(&p), "rxe_v0 rxe_v1");
    cr_assert_eq(net_properties(&p.api, 0, &first), ncclSuccess);
    cr_assert_eq(net_properties(&p.api, 1, &second), ncclSuccess);
    cr_expect_neq(first.guid, second.guid, "they are two adapters");
    cr_expect_eq(first.port, 1);
    cr_expect_eq(second.port, 1);
    cr_expect(first.ptr_support & NCCL_PTR_HOST);
    cr_expect(!(first.ptr_support & NCCL_PTR_CUDA), "there is no peer memory here");
    cr_expect(log_has(NCCL_LOG_INFO, "rdma rxe_v0 port 1 used", "on v0"), "%s", log_text());
    pair_fini(&p);
}

Test(rdma, lists_of_devices_are_obeyed)
{
    guests_only();
    setenv("NCCL_IB_HCA", "=rxe_v1:1", 1);
    expect_devices("rxe_v1");
    setenv("NCCL_IB_HCA", "^rxe_v1", 1);
    expect_devices("rxe_v0");
}

Test(rdma, a_list_that_fits_no_device_is_refused)
{
    struct net_api api;
    void *ctx;

    guests_only();
    setenv("NCCL_IB_HCA", "mlx5_9", 1);
    cr_assert_null(net_open(HOLMES_PLUGIN, 12, &api));
    cr_expect_eq(net_init(&api, &ctx, 1, test_logger), ncclInvalidUsage);
    cr_expect(log_has(NCCL_LOG_WARN, "NCCL_IB_HCA=\"mlx5_9\"", "rxe_v0:1, rxe_v1:1"), "%s",
              log_text());
    net_close(&api);
}

Test(rdma, without_rdma_the_interfaces_are_shown)
{
    guests_only();
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_SOCKET_IFNAME", "v0,v1", 1); /* in this order */
    expect_devices("v0 v1");
}

Test(rdma, two_ports_can_be_fused)
{
    ncclNetVDeviceProps_v12_t members = {.ndevs = 2, .devs = {0, 1}};
    struct net_props props;
    const ncclNet_v12_t *t;
    struct pair p;
    int dev = -1;

    guests_only();
    pair_init(&p, 12);
    t = p.api.table;
    cr_assert_eq(t->makeVDevice(&dev, &members), ncclSuccess, "%s", log_text());
    cr_expect_eq(dev, 2);
    cr_expect_str_eq(device_names(&p), "rxe_v0 rxe_v1 rxe_v0+rxe_v1");
    cr_assert_eq(net_properties(&p.api, 2, &props), ncclSuccess);
    cr_expect_eq(props.vdevs, 2);
    pair_fini(&p);
    /* A NCCL that kept the library goes on with what it knows. */
    pair_init(&p, 12);
    cr_assert_eq(net_properties(&p.api, 2, &props), ncclSuccess);
    cr_expect_str_eq(props.name, "rxe_v0+rxe_v1");
    pair_connect_dev(&p, 2, 2);
    pair_move(&p, 4096, 4096);
    pair_fini(&p);
    /* One that forgot begins with the ports. */
    pair_init(&p, 12);
    cr_expect_str_eq(device_names(&p), "rxe_v0 rxe_v1");
    cr_expect_neq(net_properties(&p.api, 2, &props), ncclSuccess);
    pair_fini(&p);
    setenv("NCCL_IB_MERGE_NICS", "0", 1);
    pair_init(&p, 12);
    cr_expect_neq(t->makeVDevice(&dev, &members), ncclSuccess);
    pair_fini(&p);
}

/* The devices stay: NCCL has their place and speed from them, and the bytes go over tcp. */
Test(rdma, without_its_library_everything_goes_over_tcp)
{
    struct pair p;

    guests_only();
    setenv("HOLMES_LIBIBVERBS", "libibverbs.so.99", 1);
    pair_init(&p, 12);
    cr_expect_eq(log_count(NCCL_LOG_WARN, "libibverbs.so.99 not found, RDMA off"), 1, "%s",
                 log_text());
    cr_expect_str_eq(device_names(&p), "rxe_v0 rxe_v1");
    pair_connect(&p);
    pair_move(&p, 100000, 100000);
    cr_expect(log_has(NCCL_LOG_INFO, " tcp ", "libibverbs.so.99 not found"), "%s", log_text());
    pair_fini(&p);
}

/* What the kernel holds for this process on all RDMA devices, by `rdma resource`: queue pairs,
 * completion queues, memory regions, protection domains. Other tests run beside this one. */
static void count_objects(int total[4])
{
    static const char *const kinds[] = {"qp", "cq", "mr", "pd"};
    char line[512], mine[32];

    snprintf(mine, sizeof mine, " pid %d ", (int)getpid());
    for (int k = 0; k < 4; k++) {
        FILE *f;

        snprintf(line, sizeof line, "rdma resource show %s", kinds[k]);
        f = popen(line, "r");
        cr_assert_not_null(f);
        total[k] = 0;
        while (fgets(line, sizeof line, f))
            total[k] += strstr(line, mine) != NULL;
        cr_assert_eq(pclose(f), 0, "rdma resource show %s failed", kinds[k]);
    }
}

static void cycle(struct pair *p)
{
    pair_connect_dev(p, 0, 1);
    pair_move(p, 1000, 1000);
    pair_close(p);
    log_clear();
}

Test(rdma, thousand_connections_leave_nothing_behind, .timeout = 900)
{
    int before[4], open[4], after[4], fds;
    struct pair p;

    guests_only();
    pair_init(&p, 12);
    pair_connect_dev(&p, 0, 1);
    cr_assert(log_has(NCCL_LOG_INFO, " verbs over ", "rxe_v0"), "%s", log_text());
    pair_move(&p, 1000, 1000);
    count_objects(open);
    pair_close(&p);
    cycle(&p);
    count_objects(before);
    for (int k = 0; k < 4; k++) /* else the counting would be at fault */
        cr_assert_gt(open[k], 0, "an open connection has objects of kind %d", k);
    cr_assert_gt(open[0], before[0], "an open connection has queue pairs");
    fds = holmes_self_fds();
    for (int i = 0; i < 1000; i++)
        cycle(&p);
    count_objects(after);
    for (int k = 0; k < 4; k++)
        cr_expect_eq(after[k], before[k], "%d became %d (queue pairs, cqs, mrs, pds: %d)",
                     before[k], after[k], k);
    cr_expect_eq(holmes_self_fds(), fds);
    pair_fini(&p);
}
