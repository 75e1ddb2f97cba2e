/* Which GIDs of a port are used, and in which order. */
#include <errno.h>
#include <stdlib.h>

#include "rdma_world.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define LL       "fe80::a288:c2ff:fee3:142a"
#define M(x)     "::ffff:10.2.0." #x

static struct holmes_rdma_request ask(void)
{
    return rdma_nothing_asked;
}

/* The indices that are used, "3 1", or the reason why none is. */
static const char *indices(enum holmes_link_layer layer, const char *table,
                           struct holmes_rdma_request req)
{
    static struct holmes_rdma_port_seen port;
    static struct rdma_answer a;
    static char text[sizeof a.why];
    size_t len = 0;

    world_port(&port, "mlx5_0", 1, layer, table);
    world_rdma(&port, 1, req, &a);
    if (a.rc != 0 || a.nnics == 0) {
        snprintf(text, sizeof text, "%s", a.rc != 0 ? a.why : a.verdicts[0].reason);
        return text;
    }
    text[0] = '\0';
    for (int i = 0; i < a.nics[0].rdma.ngids; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%u", i > 0 ? " " : "",
                                a.nics[0].rdma.gids[i].index);
    if (a.verdicts[0].link_local)
        snprintf(text + len, sizeof text - len, " link-local");
    return text;
}

struct row {
    const char *table, *want;
};

static void expect_rows(const struct row *rows, int n, struct holmes_rdma_request req)
{
    for (int i = 0; i < n; i++) {
        const char *got = indices(HOLMES_LINK_ETHERNET, rows[i].table, req);

        cr_expect_str_eq(got, rows[i].want, "%s: \"%s\", not \"%s\"", rows[i].table, got,
                         rows[i].want);
    }
}

Test(rdma_gid, best_ones_come_first)
{
    static const struct row rows[] = {
        {LL " v1, " LL " v2, " M(2) " v1, " M(2) " v2", "3 2"},
        {LL " v1, " LL " v2, fe80::2 v1, fe80::2 v2, " M(2) " v1, " M(2) " v2", "5 4"},
        {LL " v2, ::ffff:10.102.9.101 v2", "1"},
        {"-, -, " M(2) " v1, " M(2) " v2", "3 2"},
        {LL " v2, fd00::5 v1, fd00::5 v2, " M(2) " v1, " M(2) " v2", "4 2 3"},
        {"2001:db8::5 v2, fd00::5 v2", "0 1"},
        {M(2) " v1", "0"},
    };

    expect_rows(rows, COUNT(rows), ask());
}

Test(rdma_gid, link_local_is_used_with_a_warning_when_nothing_better_is)
{
    static const struct row rows[] = {
        {LL " v1, " LL " v2", "1 link-local"},
        {LL " v2, ::ffff:169.254.3.4 v2", "0 1 link-local"},
        {LL " v2, " M(2) " v1", "1 0 link-local"},
        {LL " v2, fd00::5 v2", "1"},
    };

    expect_rows(rows, COUNT(rows), ask());
}

Test(rdma_gid, addresses_that_no_peer_could_reach_are_none)
{
    static const struct row rows[] = {
        {"::ffff:127.0.0.1 v2", "no GID is an address that a peer could reach"},
        {"::1 v2, ::ffff:0.0.0.0 v2, ff02::1 v2", "no GID is an address that a peer could reach"},
        {"::ffff:127.0.0.1 v2, " M(2) " v2", "1"},
        {"::ffff:169.254.3.4 v1, " M(2) " v1", "1"},
        {LL " v1", "no GID is an address that a peer could reach"},
        {"-, -, -", "its GID table is empty: its interface needs an address"},
        {"", "its GID table is empty: its interface needs an address"},
    };

    expect_rows(rows, COUNT(rows), ask());
}

Test(rdma_gid, infiniband_needs_no_more_than_the_first)
{
    struct holmes_rdma_request req = ask();

    cr_expect_str_eq(indices(HOLMES_LINK_INFINIBAND, "fe80::1:2:3:4, fe80::5", req), "0");
    req.gid_index = 3;
    cr_expect_str_eq(indices(HOLMES_LINK_INFINIBAND, "fe80::1:2:3:4", req), "0",
                     "the variable speaks of RoCE");
    cr_expect_str_eq(indices(HOLMES_LINK_INFINIBAND, "-, fe80::5", req), "has no GID 0");
}

/* A routable subnet's GID holds a FLID in bytes 4 and 5. */
Test(rdma_gid, infiniband_with_a_flid_goes_by_it)
{
    struct holmes_rdma_request req = ask();
    const char *table = "fec0::1:2:3:4, fec0:0:17::5, fec0:0:18::5";

    cr_expect_str_eq(indices(HOLMES_LINK_INFINIBAND, table, req), "1 0");
    req.flid_gid_index = 2;
    cr_expect_str_eq(indices(HOLMES_LINK_INFINIBAND, table, req), "2 0");
    req.flid_gid_index = 0;
    cr_expect_str_eq(indices(HOLMES_LINK_INFINIBAND, table, req), "0");
    req.flid_gid_index = 77;
    cr_expect_str_eq(indices(HOLMES_LINK_INFINIBAND, table, req), "0");
}

Test(rdma_gid, the_user_may_fix_one)
{
    struct holmes_rdma_request req = ask();
    const char *table = LL " v1, " LL " v2, " M(2) " v1, " M(2) " v2";

    req.gid_index = 2;
    cr_expect_str_eq(indices(HOLMES_LINK_ETHERNET, table, req), "2");
    req.gid_index = 1;
    cr_expect_str_eq(indices(HOLMES_LINK_ETHERNET, table, req), "1", "link-local if they say so");
}

Test(rdma_gid, an_index_out_of_the_table_is_refused)
{
    static const struct row rows[] = {
        {LL " v2, " M(2) " v2",
         "NCCL_IB_GID_INDEX=3 is in no RoCE port's GID table: mlx5_0:1 has 0, 1"},
        {LL " v2, " M(2) " v2, -, -, " M(3) " v2",
         "NCCL_IB_GID_INDEX=3 is in no RoCE port's GID table: mlx5_0:1 has 0, 1, 4"},
        {"-, -", "its GID table is empty: its interface needs an address"},
    };
    struct holmes_rdma_request req = ask();
    static struct holmes_rdma_port_seen ports[2];
    static struct rdma_answer a;

    req.gid_index = 3;
    expect_rows(rows, COUNT(rows), req);

    /* One port that has it is enough; the other is left out and says why. */
    world_port(&ports[0], "mlx5_0", 1, HOLMES_LINK_ETHERNET, M(1) " v1, " M(1) " v2");
    world_port(&ports[1], "mlx5_1", 1, HOLMES_LINK_ETHERNET, "-, -, " M(2) " v1, " M(2) " v2");
    world_rdma(ports, 2, req, &a);
    cr_assert_eq(a.rc, 0, "%s", a.why);
    cr_expect_str_eq(a.names, "mlx5_1");
    rdma_expect_reason(&a, 0, "has no GID 3 (NCCL_IB_GID_INDEX)");
    req.gid_index = 300;
    world_rdma(ports, 2, req, &a);
    cr_expect_eq(a.rc, -EINVAL);
    cr_expect_str_eq(a.why, "NCCL_IB_GID_INDEX=300 is in no RoCE port's GID table: "
                            "mlx5_0:1 has 0, 1; mlx5_1:1 has 2, 3");
}

Test(rdma_gid, wishes_are_kept_to_where_the_port_has_what_is_wanted)
{
    const char *table = LL
        " v2, fd00::5 v1, fd00::5 v2, " M(2) " v1, " M(2) " v2, "
                                                          "::ffff:10.9.0.5 v1, ::ffff:10.9.0.5 v2";
    static const struct {
        const char *range, *family;
        int version;
        const char *want;
    } rows[] = {
        {NULL, NULL, 2, "4 6 2 3 5"},
        {NULL, NULL, 1, "3 5"},
        {NULL, "AF_INET", 2, "4 6 2 3 5"},
        {NULL, "AF_INET6", 2, "2"},
        {NULL, "AF_INET6", 1, "1"},
        {"10.9.0.0/16", NULL, 2, "6 5"},
        {"10.9.0.0/16", NULL, 1, "5"},
        {"10.2.0.0/15", NULL, 2, "4 3"},
        {"0.0.0.0/0", NULL, 2, "4 6 3 5"},
        {"10.9.0.5/32", NULL, 2, "6 5"},
        {"10.50.0.0/16", NULL, 2, "4 6 2 3 5"},
        {"fd00::/8", "AF_INET6", 2, "2"},
        {"fd01::/16", "AF_INET6", 2, "2"},
        {"fd00::/127", "AF_INET6", 1, "1"},
    };

    for (int i = 0; i < COUNT(rows); i++) {
        struct holmes_rdma_request req = ask();
        const char *got;

        req.addr_range = rows[i].range;
        req.addr_family = rows[i].family;
        req.roce_version = rows[i].version;
        got = indices(HOLMES_LINK_ETHERNET, table, req);
        cr_expect_str_eq(got, rows[i].want, "row %d: \"%s\", not \"%s\"", i, got, rows[i].want);
    }
}

Test(rdma_gid, a_wish_that_cannot_be_met_changes_nothing)
{
    struct holmes_rdma_request req = ask();

    req.roce_version = 1;
    cr_expect_str_eq(indices(HOLMES_LINK_ETHERNET, LL " v2, " M(2) " v2", req), "1");
    cr_expect_str_eq(indices(HOLMES_LINK_ETHERNET, LL " v2", req), "0 link-local");
    req = ask();
    req.addr_family = "AF_INET6";
    cr_expect_str_eq(indices(HOLMES_LINK_ETHERNET, LL " v2, " M(2) " v2", req), "1",
                     "link-local is no IPv6 address to wish for");
}

Test(rdma_gid, a_range_is_checked)
{
    static const struct {
        const char *range, *family;
        int rc;
        const char *needle; /* of the sentence */
    } rows[] = {
        {"10.9.0.0/16", NULL, 0, NULL},
        {"10.9.0.0", NULL, 0, "NCCL_IB_ADDR_RANGE=\"10.9.0.0\" counts as unset"},
        {"fd00::/8", NULL, 0, "NCCL_IB_ADDR_RANGE=\"fd00::/8\" counts as unset"},
        {"fd00::/8", "AF_INET6", 0, NULL},
        {"fd00::/8", "inet6", 0, "NCCL_IB_ADDR_FAMILY=\"inet6\" counts as unset"},
        {"10.9.0/16", NULL, -EINVAL, "NCCL_IB_ADDR_RANGE=\"10.9.0/16\""},
        {"10.9.0.0/33", NULL, -EINVAL, "32 bits"},
        {"10.9.0.0/", NULL, -EINVAL, "address/length is right"},
        {"10.9.0.0/-1", NULL, -EINVAL, "address/length is right"},
        {"10.9.0.0/8x", NULL, -EINVAL, "address/length is right"},
        {"fd00::/129", "AF_INET6", -EINVAL, "128"},
        {"/16", NULL, -EINVAL, "address/length is right"},
    };
    static struct holmes_rdma_port_seen port;
    static struct rdma_answer a;

    world_port(&port, "mlx5_0", 1, HOLMES_LINK_ETHERNET, M(2) " v2");
    for (int i = 0; i < COUNT(rows); i++) {
        struct holmes_rdma_request req = ask();

        req.addr_range = rows[i].range;
        req.addr_family = rows[i].family;
        world_rdma(&port, 1, req, &a);
        cr_expect_eq(a.rc, rows[i].rc, "%s: %d", rows[i].range, a.rc);
        if (rows[i].needle)
            cr_expect(strstr(a.why, rows[i].needle), "%s: \"%s\"", rows[i].range, a.why);
        else
            cr_expect_str_eq(a.why, "");
    }
}

/* Several interfaces of a port, or one address twice: the copy adds nothing. */
Test(rdma_gid, no_gid_is_there_twice)
{
    cr_expect_str_eq(indices(HOLMES_LINK_ETHERNET, M(2) " v2, " M(2) " v2, " M(3) " v2", ask()),
                     "0 2");
    cr_expect_str_eq(indices(HOLMES_LINK_ETHERNET, M(2) " v1, " M(2) " v2, " M(2) " v1", ask()),
                     "1 0");
}

Test(rdma_gid, the_best_eight_are_kept)
{
    const char *table = "fd00::1 v2, fd00::2 v2, fd00::3 v2, fd00::4 v2, fd00::5 v2, fd00::6 v2, "
                        "fd00::7 v2, fd00::8 v2, fd00::9 v2, " M(2) " v1, " M(2) " v2";

    cr_expect_str_eq(indices(HOLMES_LINK_ETHERNET, table, ask()), "10 0 1 2 3 4 5 6");
}

/* A container sees the host's GIDs too; the interface that it calls eth0 is not the host's. */
Test(rdma_gid, those_of_this_namespace_go_before_foreign_ones)
{
    static struct holmes_rdma_port_seen port;
    static struct rdma_answer a;
    struct holmes_netif ifs[] = {world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.2.0.9/24")};

    world_port(&port, "mlx5_0", 1, HOLMES_LINK_ETHERNET,
               M(2) " v2 eth0, " M(9) " v2 eth0, fe80::5 v2 eth0, " M(7) " v2 host7");
    world_rdma_over(&port, 1, ask(), ifs, 1, &a);
    cr_assert_eq(a.nnics, 1);
    cr_expect_eq(a.nics[0].rdma.ngids, 1);
    cr_expect_eq(a.nics[0].rdma.gids[0].index, 1);
    cr_expect_str_eq(a.nics[0].ifname, "eth0");
    cr_expect_eq(a.nics[0].naddrs, 1);
}

Test(rdma_gid, an_own_v1_gid_does_not_drive_out_link_local_v2)
{
    static struct holmes_rdma_port_seen port;
    static struct rdma_answer a;
    struct holmes_netif ifs[] = {world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.2.0.2/24")};

    world_port(&port, "mlx5_0", 1, HOLMES_LINK_ETHERNET, "fe80::5 v2 eth0, " M(2) " v1 eth0");
    world_rdma_over(&port, 1, ask(), ifs, 1, &a);
    cr_assert_eq(a.nnics, 1);
    cr_assert_eq(a.nics[0].rdma.ngids, 2);
    cr_expect_eq(a.nics[0].rdma.gids[0].index, 1);
    cr_expect_eq(a.nics[0].rdma.gids[1].index, 0);
    cr_expect(a.verdicts[0].link_local);
}

Test(rdma_gid, foreign_ones_are_used_where_there_are_no_others)
{
    static struct holmes_rdma_port_seen port;
    static struct rdma_answer a;
    struct holmes_netif ifs[] = {world_netif("eth0", HOLMES_NETIF_PHYSICAL, "10.2.0.9/24")};

    world_port(&port, "mlx5_0", 1, HOLMES_LINK_ETHERNET, "fe80::5 v2 eth0, " M(2) " v2 eth0");
    world_rdma_over(&port, 1, ask(), ifs, 1, &a);
    cr_assert_eq(a.nnics, 1);
    cr_expect_eq(a.nics[0].rdma.gids[0].index, 1);
    cr_expect_str_eq(a.nics[0].ifname, "");
    cr_expect_eq(a.nics[0].naddrs, 0, "the address is another host's");
}
