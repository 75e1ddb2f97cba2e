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

Test(proto, immediate_of_an_unknown_mode_is_refused)
{
    struct proto_imm out;

    cr_assert_eq(proto_imm_decode(0xc0000000u, &out), -EPROTO);
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

static void refused(struct proto_info i, const char *what)
{
    char why[128] = "";

    cr_assert_eq(proto_info_check(&i, why, sizeof why), -EPROTO, "%s was taken", what);
    cr_assert(strstr(why, what), "\"%s\" lacks \"%s\"", why, what);
}

Test(proto, information_of_a_hostile_peer_is_refused)
{
    struct proto_info good = {.nlanes = 8, .max_group = 8, .host = "a0", .nic = "eth0"}, bad;
    char why[128];

    cr_assert_eq(proto_info_check(&good, why, sizeof why), 0);
    bad = good, bad.nlanes = 0, refused(bad, "lane count");
    bad = good, bad.nlanes = 9, refused(bad, "lane count");
    bad = good, bad.max_group = 0, refused(bad, "group size");
    bad = good, bad.lanes[7].len = HOLMES_LANE_BLOB_MAX + 1, refused(bad, "lane description");
    bad = good, memset(bad.host, 'x', sizeof bad.host), refused(bad, "name");
    bad = good, bad.nic[0] = '\n', refused(bad, "name");
}
