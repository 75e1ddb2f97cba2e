/* Discovery on a kernel that has RDMA devices: in the guests of tests/soft-roce only, which have
 * rxe_v0 and rxe_v1 on the two ends of a cable and say so in HOLMES_TEST_VERBS. */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "topology.h"

#define PORTS_MAX 16

struct guest {
    struct holmes_rdma_port_seen *ports;
    struct holmes_rdma_verdict verdicts[PORTS_MAX];
    struct holmes_nic nics[HOLMES_RDMA_PORTS_MAX];
    int nports, nnics;
};

static void run(const char *command)
{
    cr_assert_eq(system(command), 0, "%s", command);
}

/* The kernel fills GID tables after it has made the device. */
static void wait_for_gid(const char *device, int index)
{
    uint64_t end = holmes_now_ns() + 20000000000u;
    char path[128], gid[64] = "";

    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/gids/%d", device, index);
    while (holmes_now_ns() < end) {
        FILE *f = fopen(path, "r");

        cr_assert_not_null(f, "%s", path);
        if (!fgets(gid, sizeof gid, f))
            gid[0] = '\0';
        fclose(f);
        if (strncmp(gid, "0000:0000:0000:0000:0000:0000:0000:0000", 39) != 0)
            return;
        poll(NULL, 0, 20);
    }
    cr_assert_fail("%s stays empty", path);
}

static struct guest *discover(const char *hca)
{
    static struct guest g;
    struct holmes_rdma_request req = HOLMES_RDMA_NOTHING_ASKED;
    struct holmes_netif_request netif_req = {0};
    struct holmes_netif_verdict netif_verdicts[64];
    struct holmes_nic ethernet[HOLMES_NETIFS_MAX];
    struct holmes_netif *ifs;
    char why[1024];
    int nifs, nethernet;

    if (!getenv("HOLMES_TEST_VERBS"))
        cr_skip("not in a guest of tests/soft-roce");
    req.hca = hca;
    cr_assert_eq(holmes_netif_collect("/sys", &ifs, &nifs), 0);
    cr_assert_leq(nifs, 64);
    cr_assert_eq(holmes_netif_choose(ifs, nifs, &netif_req, netif_verdicts, ethernet, &nethernet,
                                     why, sizeof why),
                 0, "%s", why);
    cr_assert_eq(holmes_rdma_collect("/sys", &g.ports, &g.nports), 0);
    cr_assert_leq(g.nports, PORTS_MAX);
    cr_assert_eq(holmes_rdma_choose(g.ports, g.nports, &req, ifs, nifs, ethernet, nethernet,
                                    g.verdicts, g.nics, &g.nnics, why, sizeof why),
                 0, "%s", why);
    free(ifs);
    return &g;
}

static void expect_reason(const struct guest *g, const char *device, const char *needle)
{
    for (int i = 0; i < g->nports; i++) {
        if (strcmp(g->ports[i].device, device) == 0)
            cr_expect(strstr(g->verdicts[i].reason, needle), "%s: \"%s\" lacks \"%s\"", device,
                      g->verdicts[i].reason, needle);
    }
}

Test(rdma_guest, finds_both_devices_and_their_interfaces)
{
    struct guest *g = discover(NULL);

    cr_assert_eq(g->nnics, 2, "%d", g->nnics);
    for (int i = 0; i < 2; i++) {
        const struct holmes_nic *nic = &g->nics[i];
        char name[16];

        snprintf(name, sizeof name, "rxe_v%d", i);
        cr_expect_str_eq(nic->name, name);
        cr_expect_str_eq(nic->ifname, name + 4);
        cr_expect_eq(nic->rdma.port, 1);
        cr_expect_eq(nic->rdma.link_layer, HOLMES_LINK_ETHERNET);
        cr_expect_neq(nic->rdma.guid, 0);
        cr_expect_eq(nic->rdma.gids[0].type, HOLMES_GID_ROCE_V2);
        cr_expect_eq(nic->rdma.gids[0].bytes[12], 10, "not its IPv4 address");
        cr_expect_gt(nic->speed_mbps, 0);
        cr_assert_geq(nic->naddrs, 1);
        cr_expect_eq(memcmp(&nic->addrs[0].in.sin_addr, nic->rdma.gids[0].bytes + 12, 4), 0);
    }
    free(g->ports);
}

/* RoCE devices on loopback and on a bridge of guests say that they are active, too. */
Test(rdma_guest, leaves_devices_alone_that_lead_nowhere)
{
    struct guest *g = discover(NULL);

    free(g->ports);
    run("ip link set lo up && ip link add docker0 type bridge && ip link set docker0 up && "
        "ip addr add 172.17.0.1/16 dev docker0");
    run("rdma link add rxe_lo type rxe netdev lo && rdma link add rxe_d type rxe netdev docker0");
    wait_for_gid("rxe_lo", 1);
    wait_for_gid("rxe_d", 1);
    g = discover(NULL);
    cr_expect_eq(g->nports, 4);
    cr_expect_eq(g->nnics, 2);
    expect_reason(g, "rxe_lo", "lo leads to no other host");
    expect_reason(g, "rxe_d", "docker0 leads to no other host");
    free(g->ports);
    g = discover("=rxe_d");
    cr_expect_eq(g->nnics, 1, "what is named is used");
    free(g->ports);
    run("rdma link delete rxe_lo && rdma link delete rxe_d && ip link del docker0");
}
