#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "transport/proto.h"

Test(proto, immediate_keeps_every_field)
{
    for (int mode = PROTO_IMM_SIZED; mode <= PROTO_IMM_RECORD; mode++) {
        for (unsigned slot = 0; slot < PROTO_SLOTS; slot++) {
            for (unsigned gen = 0; gen < PROTO_GENERATIONS; gen++) {
                struct proto_imm in = {mode, slot, gen, (slot * 2039 + gen) & PROTO_IMM_SIZE_MAX};
                struct proto_imm out;

                cr_assert_eq(proto_imm_decode(proto_imm_encode(&in), &out), 0);
                cr_assert(out.mode == in.mode && out.slot == slot && out.generation == gen &&
                          out.size == in.size);
            }
        }
    }
}

Test(proto, eager_immediate_names_a_slot_and_a_size_that_exist)
{
    struct proto_imm in = {
        .mode = PROTO_IMM_EAGER, .slot = PROTO_EAGERS - 1, .size = PROTO_EAGER_MAX};
    struct proto_imm out;

    cr_assert_eq(proto_imm_decode(proto_imm_encode(&in), &out), 0);
    in.slot = PROTO_EAGERS;
    cr_assert_eq(proto_imm_decode(proto_imm_encode(&in), &out), -EPROTO);
    in.slot = 0;
    in.size = PROTO_EAGER_MAX + 1;
    cr_assert_eq(proto_imm_decode(proto_imm_encode(&in), &out), -EPROTO);
}

Test(proto, generation_changes_when_a_slot_comes_again)
{
    for (uint64_t seq = 1; seq < 5000; seq++) {
        cr_assert_eq(proto_slot(seq), proto_slot(seq + PROTO_SLOTS));
        cr_assert_neq(proto_generation(seq), proto_generation(seq + PROTO_SLOTS));
        cr_assert_neq(proto_generation(seq), proto_generation(seq + 7 * PROTO_SLOTS));
    }
}

Test(proto, any_changed_byte_of_a_handle_is_noticed)
{
    struct proto_handle h = {.token = {1, 2, 3}, .fabric = 9};
    char why[256];

    h.addrs[0] = (struct proto_addr){.family = 4, .port = 4242, .ip = {10, 0, 0, 1}};
    proto_handle_seal(&h);
    cr_assert_eq(proto_handle_check(&h, why, sizeof why), 0);
    for (size_t i = 0; i < offsetof(struct proto_handle, state); i++) {
        struct proto_handle bad = h;

        ((uint8_t *)&bad)[i] ^= 0x10;
        cr_assert_neq(proto_handle_check(&bad, why, sizeof why), 0, "byte %zu", i);
    }
    memset(h.state, 0xff, sizeof h.state); /* the connecting process's own */
    cr_assert_eq(proto_handle_check(&h, why, sizeof why), 0);
}

Test(proto, addresses_survive_both_families_and_nothing_else_decodes)
{
    struct holmes_addr in = {.in = {.sin_family = AF_INET, .sin_addr = {htonl(0x0a010203)}}};
    struct holmes_addr in6 = {.in6 = {.sin6_family = AF_INET6}}, out;
    struct proto_addr a;

    proto_addr_encode(&in.sa, 77, &a);
    cr_assert_eq(proto_addr_decode(&a, &out), 0);
    cr_assert_eq(out.in.sin_addr.s_addr, in.in.sin_addr.s_addr);
    cr_assert_eq(ntohs(out.in.sin_port), 77);
    in6.in6.sin6_addr.s6_addr[15] = 5;
    proto_addr_encode(&in6.sa, 78, &a);
    cr_assert_eq(proto_addr_decode(&a, &out), 0);
    cr_assert_eq(memcmp(&out.in6.sin6_addr, &in6.in6.sin6_addr, 16), 0);
    a.family = 5;
    cr_assert_eq(proto_addr_decode(&a, &out), -EPROTO);
    a.family = 4;
    a.port = 0;
    cr_assert_eq(proto_addr_decode(&a, &out), -EPROTO);
}

Test(proto, proofs_differ_by_side_nonce_and_token)
{
    uint8_t token[16] = {1}, other[16] = {2}, n1[16] = {3}, n2[16] = {4};
    uint64_t mac = proto_mac(token, 'S', n1, n2);

    cr_assert_neq(mac, proto_mac(token, 'C', n1, n2));
    cr_assert_neq(mac, proto_mac(token, 'S', n2, n1));
    cr_assert_neq(mac, proto_mac(other, 'S', n1, n2));
}

static struct proto_offer offer = {
    .tcp_lanes = 8,
    .qps = 8,
    .nports = 2,
    .host = "a0",
    .nic = "mlx5_0",
    .ports = {
        {.name = "mlx5_0", .port = 1, .ngids = 8, .mtu = 4096, .link_layer = HOLMES_LINK_ETHERNET},
        {.name = "mlx5_1", .port = 1, .ngids = 1, .link_layer = HOLMES_LINK_INFINIBAND}}};

static void refused(int rc, const char *why, const char *what)
{
    cr_assert_eq(rc, -EPROTO, "%s was taken", what);
    cr_assert(strstr(why, what), "\"%s\" lacks \"%s\"", why, what);
}

/* Changes one field of a good message, which must then be refused for the reason given. */
#define REFUSE(check, good, change, what, ...)                                                     \
    do {                                                                                           \
        __typeof__(good) bad = good;                                                               \
        char why_not[128] = "";                                                                    \
        change;                                                                                    \
        refused(check(&bad, ##__VA_ARGS__, why_not, sizeof why_not), why_not, what);               \
    } while (0)

Test(proto, text_of_this_host_crosses_whatever_it_is)
{
    struct proto_info info = {.nlanes = 1, .max_group = 1};
    char why[128], text[8];

    proto_text(info.nic, sizeof info.nic,
               "Datei nicht ge\xc3\xb6"
               "ffnet\n");
    cr_assert_str_eq(info.nic, "Datei nicht ge??ffnet?");
    cr_assert_eq(proto_info_check(&info, why, sizeof why), 0, "%s", why);
    proto_text(text, sizeof text, "longer than that");
    cr_assert_str_eq(text, "longer ");
    proto_text(text, sizeof text, "");
    cr_assert_str_eq(text, "");
}

Test(proto, information_of_a_hostile_peer_is_refused)
{
    struct proto_info good = {.nlanes = 8, .max_group = 8, .nic = "eth0"};
    char why[128];

    cr_assert_eq(proto_info_check(&good, why, sizeof why), 0);
    REFUSE(proto_info_check, good, bad.nlanes = 0, "lane count");
    REFUSE(proto_info_check, good, bad.nlanes = 9, "lane count");
    REFUSE(proto_info_check, good, bad.max_group = 0, "group size");
    REFUSE(proto_info_check, good, bad.lanes[7].len = HOLMES_LANE_BLOB_MAX + 1, "lane description");
    REFUSE(proto_info_check, good, memset(bad.nic, 'x', sizeof bad.nic), "name");
    REFUSE(proto_info_check, good, bad.nic[0] = '\n', "name");
}

Test(proto, offer_of_a_hostile_peer_is_refused)
{
    char why[128];

    cr_assert_eq(proto_offer_check(&offer, why, sizeof why), 0, "%s", why);
    REFUSE(proto_offer_check, offer, bad.tcp_lanes = 0, "lane count");
    REFUSE(proto_offer_check, offer, bad.qps = 9, "lane count");
    REFUSE(proto_offer_check, offer, bad.policy = 3, "policy");
    REFUSE(proto_offer_check, offer, bad.nports = HOLMES_MAX_RAILS + 1, "port count");
    REFUSE(proto_offer_check, offer, memset(bad.host, 'x', sizeof bad.host), "name");
    REFUSE(proto_offer_check, offer, bad.ports[1].ngids = HOLMES_GIDS_MAX + 1, "port description");
    REFUSE(proto_offer_check, offer, bad.ports[0].link_layer = 3, "port description");
    REFUSE(proto_offer_check, offer, bad.ports[0].gids[7].type = 9, "port description");
    REFUSE(proto_offer_check, offer, bad.ports[0].port = 0, "port description");
    REFUSE(proto_offer_check, offer, bad.ports[0].mtu = 8192, "port description");
    REFUSE(proto_offer_check, offer, bad.ports[0].mtu = 3, "port description");
    REFUSE(proto_offer_check, offer, memset(bad.ports[0].fabric, 'x', 32), "port description");
}

Test(proto, verdict_that_does_not_fit_its_offer_is_refused)
{
    struct proto_verdict good = {.wire = "verbs",
                                 .reason = "probe passed",
                                 .host = "b0",
                                 .nic = "mlx5_0",
                                 .rdma = 1,
                                 .nrails = 2,
                                 .rails = {{.mtu = 1024}, {.dial_port = 1, .accept_port = 3}},
                                 .info = {.nlanes = 2, .max_group = 8, .nic = "mlx5_0"}};
    char why[128];

    cr_assert_eq(proto_verdict_check(&good, &offer, why, sizeof why), 0, "%s", why);
    REFUSE(proto_verdict_check, good, bad.nrails = 0, "rail count", &offer);
    REFUSE(proto_verdict_check, good, bad.nrails = 5, "rail count", &offer);
    REFUSE(proto_verdict_check, good, bad.info.nlanes = 1, "rail count", &offer);
    REFUSE(proto_verdict_check, good, bad.rails[1].dial_port = 2, "rail", &offer);
    REFUSE(proto_verdict_check, good, bad.rails[0].mtu = 5000, "rail", &offer);
    REFUSE(proto_verdict_check, good, bad.rails[0].mtu = 1, "rail", &offer);
    REFUSE(proto_verdict_check, good, bad.rails[1].dial_gid = 1, "rail", &offer);
    REFUSE(proto_verdict_check, good, memset(bad.reason, 'x', sizeof bad.reason), "name", &offer);
    REFUSE(proto_verdict_check, good, bad.info.max_group = 99, "group size", &offer);
}

Test(proto, verdict_against_the_users_word_is_refused)
{
    struct proto_verdict tcp = {.wire = "tcp", .nrails = 1, .info = {.nlanes = 1, .max_group = 8}};
    struct proto_verdict verbs = tcp;
    struct proto_offer insists = offer;
    char why[128];

    verbs.rdma = 1;
    insists.policy = PROTO_POLICY_TCP;
    cr_assert_eq(proto_verdict_check(&tcp, &insists, why, sizeof why), 0, "%s", why);
    REFUSE(proto_verdict_check, verbs, bad.wire[0] = 'v', "HOLMES_WIRE", &insists);
    insists.policy = PROTO_POLICY_VERBS;
    cr_assert_eq(proto_verdict_check(&verbs, &insists, why, sizeof why), 0, "%s", why);
    REFUSE(proto_verdict_check, tcp, bad.wire[0] = 't', "HOLMES_WIRE", &insists);
}

Test(proto, probe_that_does_not_fit_its_offer_is_refused)
{
    struct proto_probe good = {.len = 2048, .lane.len = 40};
    char why[128];

    cr_assert_eq(proto_probe_check(&good, &offer, why, sizeof why), 0, "%s", why);
    REFUSE(proto_probe_check, good, bad.rail.dial_port = 2, "rail", &offer);
    REFUSE(proto_probe_check, good, bad.rail.dial_gid = 200, "rail", &offer);
    REFUSE(proto_probe_check, good, bad.len = 0, "probe length", &offer);
    REFUSE(proto_probe_check, good, bad.len = PROTO_PROBE_MAX + 1, "probe length", &offer);
    REFUSE(proto_probe_check, good, bad.lane.len = HOLMES_LANE_BLOB_MAX + 1, "lane description",
           &offer);
}
