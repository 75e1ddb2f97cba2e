/* Who shares a fabric with whom, decided from descriptions alone (cases C1 to C3). */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "transport/choose.h"

static void add_gid(struct proto_port *p, uint8_t index, enum holmes_gid_type type,
                    const char *text)
{
    struct proto_gid *g = &p->gids[p->ngids++];

    cr_assert_leq(p->ngids, HOLMES_GIDS_MAX);
    g->index = index;
    g->type = (uint8_t)type;
    cr_assert_eq(inet_pton(AF_INET6, text, g->bytes), 1, "%s", text);
}

static struct proto_port roce(const char *gid)
{
    struct proto_port p = {
        .name = "mlx5_0", .port = 1, .link_layer = HOLMES_LINK_ETHERNET, .mtu = 4096};

    if (gid)
        add_gid(&p, 3, HOLMES_GID_ROCE_V2, gid);
    return p;
}

static struct proto_port infiniband(const char *gid, uint16_t lid)
{
    struct proto_port p = {
        .name = "mlx5_0", .port = 1, .link_layer = HOLMES_LINK_INFINIBAND, .mtu = 4096, .lid = lid};

    add_gid(&p, 0, HOLMES_GID_INFINIBAND, gid);
    return p;
}

/* The answer from both sides, which must be the same. */
static struct choose_pair both_ways(const struct proto_port *a, const struct proto_port *b)
{
    struct choose_pair there, back;

    choose_pair(a, b, &there);
    choose_pair(b, a, &back);
    cr_assert_eq(there.answer, back.answer, "%s / %s", there.reason, back.reason);
    cr_assert_eq(there.dial_gid, back.accept_gid);
    cr_assert_eq(there.accept_gid, back.dial_gid);
    cr_assert_eq(there.mtu, back.mtu);
    return there;
}

static void says(const struct choose_pair *p, enum choose_answer answer, const char *text)
{
    cr_assert_eq(p->answer, answer, "%d: %s", p->answer, p->reason);
    cr_assert(strstr(p->reason, text), "\"%s\" lacks \"%s\"", p->reason, text);
}

/* C1: n0, n1 InfiniBand in one subnet, n2, n3 RoCE. */
Test(choose, infiniband_and_roce_clusters_share_within_and_not_between)
{
    struct proto_port n[4] = {infiniband("fec0:0:0:a::1", 3), infiniband("fec0:0:0:a::2", 4),
                              roce("::ffff:10.2.0.2"), roce("::ffff:10.2.0.3")};

    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            struct choose_pair p = both_ways(&n[i], &n[j]);

            if (i / 2 != j / 2)
                says(&p, CHOOSE_APART, "link layers differ (");
            else if (i < 2)
                says(&p, CHOOSE_SHARED, "same InfiniBand subnet fec000000000000a");
            else
                says(&p, CHOOSE_UNKNOWN, "RoCE v2 IPv4");
        }
    }
}

/* C2: two pairs that both say fe80:: and may or may not be the same fabric. */
Test(choose, default_prefix_alone_decides_nothing_and_ids_do)
{
    struct proto_port n[4] = {infiniband("fe80::1", 1), infiniband("fe80::2", 2),
                              infiniband("fe80::3", 1), infiniband("fe80::4", 2)};
    struct choose_pair p;

    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            p = both_ways(&n[i], &n[j]);
            says(&p, CHOOSE_UNKNOWN, "default prefix");
        }
        strcpy(n[i].fabric, i < 2 ? "A" : "B");
    }
    for (int i = 0; i < 4; i++) {
        strcpy(n[i].fabric, i < 2 ? "A" : "B");
        for (int j = 0; j < 4; j++) {
            strcpy(n[j].fabric, j < 2 ? "A" : "B");
            p = both_ways(&n[i], &n[j]);
            if (i / 2 == j / 2)
                says(&p, CHOOSE_SHARED, i < 2 ? "same HOLMES_FABRIC A" : "same HOLMES_FABRIC B");
            else
                says(&p, CHOOSE_APART, "HOLMES_FABRIC differs");
        }
    }
}

Test(choose, subnets_that_differ_are_apart_unless_the_user_joins_them)
{
    struct proto_port a = infiniband("fec0:0:0:a::1", 3), b = infiniband("fec0:0:0:b::1", 3);
    struct choose_pair p = both_ways(&a, &b);

    says(&p, CHOOSE_APART, "InfiniBand subnets differ (fec000000000000a, fec000000000000b)");
    strcpy(a.fabric, "X");
    p = both_ways(&a, &b);
    says(&p, CHOOSE_APART, "subnets differ"); /* one end's word is nobody's word */
    strcpy(b.fabric, "X");
    p = both_ways(&a, &b);
    says(&p, CHOOSE_SHARED, "same HOLMES_FABRIC X");
}

Test(choose, routed_infiniband_is_unknown)
{
    struct proto_port a = infiniband("fec0:0:12:a::1", 3), b = infiniband("fec0:0:13:b::1", 3);
    struct choose_pair p = both_ways(&a, &b);

    says(&p, CHOOSE_UNKNOWN, "FLID");
}

Test(choose, no_fabric_id_joins_unlike_link_layers_or_a_port_without_a_gid)
{
    struct proto_port ib = infiniband("fe80::1", 1), eth = roce("::ffff:10.0.0.1");
    struct proto_port bare = roce(NULL);
    struct choose_pair p;

    strcpy(ib.fabric, "A");
    strcpy(eth.fabric, "A");
    strcpy(bare.fabric, "A");
    strcpy(bare.name, "mlx5_7");
    p = both_ways(&ib, &eth);
    says(&p, CHOOSE_APART, "link layers differ");
    p = both_ways(&eth, &bare);
    says(&p, CHOOSE_APART, "mlx5_7 has no usable GID");
}

/* C3's order, for a pair: the best class that both have. */
Test(choose, gid_is_the_best_kind_that_both_ports_have)
{
    static const struct {
        enum holmes_gid_type type;
        const char *text, *name;
    } kinds[] = {
        {HOLMES_GID_ROCE_V2, "::ffff:10.0.0.1", "RoCE v2 IPv4"},
        {HOLMES_GID_ROCE_V2, "fd00::5", "RoCE v2 IPv6"},
        {HOLMES_GID_ROCE_V1, "::ffff:10.0.0.1", "RoCE v1 IPv4"},
        {HOLMES_GID_ROCE_V1, "fd00::5", "RoCE v1 IPv6"},
        {HOLMES_GID_ROCE_V2, "fe80::5", "RoCE v2 link-local"},
        {HOLMES_GID_ROCE_V1, "fe80::5", "RoCE v1 link-local"},
    };
    const int n = sizeof kinds / sizeof *kinds;

    for (unsigned has_a = 1; has_a < 1u << n; has_a++) {
        for (unsigned has_b = 1; has_b < 1u << n; has_b++) {
            struct proto_port a = roce(NULL), b = roce(NULL);
            struct choose_pair p;
            int best = __builtin_ffs((int)(has_a & has_b)) - 1;

            for (int k = 0; k < n; k++) {
                if (has_a >> k & 1)
                    add_gid(&a, (uint8_t)k, kinds[k].type, kinds[k].text);
                if (has_b >> k & 1)
                    add_gid(&b, (uint8_t)(10 + k), kinds[k].type, kinds[k].text);
            }
            p = both_ways(&a, &b);
            if (best < 0) {
                says(&p, CHOOSE_APART, "no GID version and family in common");
                continue;
            }
            says(&p, CHOOSE_UNKNOWN, kinds[best].name);
            cr_assert_eq(p.dial_gid, best);
            cr_assert_eq(p.accept_gid, 10 + best);
            cr_assert_eq(p.link_local, best >= 4);
        }
    }
}

Test(choose, addresses_that_lead_nowhere_count_as_link_local)
{
    struct proto_port a = roce("::ffff:169.254.3.4"), b = roce("::ffff:169.254.3.5");
    struct choose_pair p = both_ways(&a, &b);

    says(&p, CHOOSE_UNKNOWN, "link-local");
    add_gid(&a, 5, HOLMES_GID_ROCE_V2, "fd00::1");
    add_gid(&b, 6, HOLMES_GID_ROCE_V2, "fd00::2");
    p = both_ways(&a, &b);
    cr_assert_eq(p.dial_gid, 5);
    cr_assert_eq(p.accept_gid, 6);
}

Test(choose, of_several_subnets_the_common_one_is_taken)
{
    struct proto_port a = roce("::ffff:10.1.0.5"), b = roce("::ffff:10.2.0.6");
    struct choose_pair p;

    add_gid(&a, 5, HOLMES_GID_ROCE_V2, "::ffff:192.168.7.1");
    add_gid(&b, 7, HOLMES_GID_ROCE_V2, "::ffff:192.168.7.2");
    p = both_ways(&a, &b);
    cr_assert_eq(p.dial_gid, 5);
    cr_assert_eq(p.accept_gid, 7);
}

Test(choose, mtu_is_the_smaller_of_both)
{
    struct proto_port a = roce("::ffff:10.1.0.5"), b = roce("::ffff:10.1.0.6");

    b.mtu = 1024;
    cr_assert_eq(both_ways(&a, &b).mtu, 1024);
    b.mtu = 0;
    cr_assert_eq(both_ways(&a, &b).mtu, 0);
}

Test(choose, policy_of_either_end_holds_and_contradiction_is_refused)
{
    enum proto_policy out;
    char why[CHOOSE_REASON_MAX];

    cr_assert_eq(choose_policy(PROTO_POLICY_AUTO, "a0", PROTO_POLICY_AUTO, "b0", &out, why), 0);
    cr_assert(out == PROTO_POLICY_AUTO && !why[0]);
    cr_assert_eq(choose_policy(PROTO_POLICY_AUTO, "a0", PROTO_POLICY_TCP, "b0", &out, why), 0);
    cr_assert_eq(out, PROTO_POLICY_TCP);
    cr_assert_str_eq(why, "HOLMES_WIRE=tcp on b0");
    cr_assert_eq(choose_policy(PROTO_POLICY_VERBS, "a0", PROTO_POLICY_AUTO, "b0", &out, why), 0);
    cr_assert_eq(out, PROTO_POLICY_VERBS);
    cr_assert_str_eq(why, "HOLMES_WIRE=verbs on a0");
    cr_assert_eq(choose_policy(PROTO_POLICY_VERBS, "a0", PROTO_POLICY_TCP, "b0", &out, why),
                 -EPROTONOSUPPORT);
    cr_assert_str_eq(why, "HOLMES_WIRE=verbs on a0, HOLMES_WIRE=tcp on b0");
}

Test(choose, every_port_of_a_fused_nic_gets_its_turn)
{
    for (int d = 0; d <= HOLMES_MAX_RAILS; d++) {
        for (int a = 0; a <= HOLMES_MAX_RAILS; a++) {
            struct choose_ports ports[HOLMES_MAX_RAILS];
            unsigned seen_d = 0, seen_a = 0;
            int n = choose_rails(d, a, ports);

            cr_assert_eq(n, d == 0 || a == 0 ? 0 : d > a ? d : a);
            for (int i = 0; i < n; i++) {
                cr_assert(ports[i].dial < d && ports[i].accept < a);
                seen_d |= 1u << ports[i].dial;
                seen_a |= 1u << ports[i].accept;
            }
            cr_assert(n == 0 || (seen_d == (1u << d) - 1 && seen_a == (1u << a) - 1));
        }
    }
}
