/* What the verbs wire reads from its peer, what it makes of it, and what NCCL's variables do to it:
 * the parts that need no device. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/verbs/verbs.h"

static union ibv_gid gid(const char *text)
{
    union ibv_gid g;

    cr_assert_eq(inet_pton(AF_INET6, text, &g), 1);
    return g;
}

static struct verbs_end roce_end(const char *address)
{
    return (struct verbs_end){.role = WIRE_ACCEPT,
                              .link_layer = IBV_LINK_LAYER_ETHERNET,
                              .mtu = IBV_MTU_4096,
                              .qpn = 0x12ab34,
                              .psn = 0xfedcba,
                              .gid = gid(address)};
}

static struct verbs_end infiniband_end(uint16_t lid, const char *address)
{
    struct verbs_end e = roce_end(address);

    e.link_layer = IBV_LINK_LAYER_INFINIBAND;
    e.lid = lid;
    return e;
}

/* ---- blob --------------------------------------------------------------------------------- */

static void expect_round_trip(const struct verbs_end *in)
{
    uint8_t bytes[VERBS_BLOB_LEN];
    struct verbs_end out;

    cr_assert_eq(holmes_verbs_blob_encode(in, bytes), (size_t)VERBS_BLOB_LEN);
    memset(&out, 0xff, sizeof out);
    cr_assert_eq(holmes_verbs_blob_decode(bytes, sizeof bytes, &out), 0);
    cr_assert(out.role == in->role && out.link_layer == in->link_layer && out.mtu == in->mtu &&
              out.qpn == in->qpn && out.psn == in->psn && out.lid == in->lid &&
              memcmp(&out.gid, &in->gid, sizeof out.gid) == 0);
}

Test(verbs_blob, carries_an_end)
{
    struct verbs_end roce = roce_end("::ffff:10.2.0.1"), ib = infiniband_end(7, "fe80::2:c9ff");

    expect_round_trip(&roce);
    roce.role = WIRE_CONNECT;
    expect_round_trip(&roce);
    expect_round_trip(&ib);
}

Test(verbs_blob, has_the_documented_layout_and_fits_the_handshake)
{
    static const uint8_t expected[VERBS_BLOB_LEN] = {
        'H', 'V',  'R',  'B',  1, 1,    2,    5,    /* magic, version, role, link layer, MTU */
        0,   0x12, 0xab, 0x34, 0, 0xfe, 0xdc, 0xba, /* queue pair, packet number */
        0,   0,    0,    0,                         /* LID */
        0,   0,    0,    0,    0, 0,    0,    0,    0, 0, 0xff, 0xff, 10, 2, 0, 1};
    struct verbs_end e = roce_end("::ffff:10.2.0.1");
    uint8_t bytes[VERBS_BLOB_LEN];

    holmes_verbs_blob_encode(&e, bytes);
    cr_assert_eq(memcmp(bytes, expected, sizeof expected), 0);
    cr_assert_leq(VERBS_BLOB_LEN, HOLMES_LANE_BLOB_MAX);
}

Test(verbs_blob, refuses_every_other_length)
{
    struct verbs_end e = roce_end("::ffff:10.2.0.1"), out;
    uint8_t bytes[VERBS_BLOB_LEN + 8] = {0};

    holmes_verbs_blob_encode(&e, bytes);
    for (size_t len = 0; len < sizeof bytes; len++)
        cr_assert_eq(holmes_verbs_blob_decode(bytes, len, &out),
                     len == VERBS_BLOB_LEN ? 0 : -EPROTO);
}

/* Every bit of magic, version and reserved bytes, and the top byte of the two numbers. */
Test(verbs_blob, refuses_any_change_of_a_fixed_field)
{
    struct verbs_end e = infiniband_end(7, "fe80::1"), out;
    uint8_t good[VERBS_BLOB_LEN], bad[VERBS_BLOB_LEN];

    holmes_verbs_blob_encode(&e, good);
    for (size_t i = 0; i < 20; i++) {
        if ((i > 4 && i < 8) || (i > 8 && i < 12) || (i > 12 && i < 18))
            continue;
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bad, good, sizeof bad);
            bad[i] ^= (uint8_t)(1 << bit);
            cr_assert_eq(holmes_verbs_blob_decode(bad, sizeof bad, &out), -EPROTO,
                         "byte %zu bit %d", i, bit);
        }
    }
}

static void expect_refused(const struct verbs_end *e, const char *what)
{
    uint8_t bytes[VERBS_BLOB_LEN];
    struct verbs_end out;

    holmes_verbs_blob_encode(e, bytes);
    cr_assert_eq(holmes_verbs_blob_decode(bytes, sizeof bytes, &out), -EPROTO, "%s", what);
}

#define EXPECT_REFUSED(end, field, value)                                                          \
    do {                                                                                           \
        struct verbs_end e_ = (end);                                                               \
                                                                                                   \
        e_.field = (value);                                                                        \
        expect_refused(&e_, #field " = " #value);                                                  \
    } while (0)

Test(verbs_blob, refuses_what_no_port_has)
{
    struct verbs_end roce = roce_end("fd00::1"), ib = infiniband_end(7, "fe80::1");

    EXPECT_REFUSED(roce, role, (enum wire_role)2);
    EXPECT_REFUSED(roce, link_layer, IBV_LINK_LAYER_UNSPECIFIED);
    EXPECT_REFUSED(roce, link_layer, 3);
    EXPECT_REFUSED(roce, mtu, 0);
    EXPECT_REFUSED(roce, mtu, IBV_MTU_4096 + 1);
    EXPECT_REFUSED(roce, qpn, 0);
    EXPECT_REFUSED(roce, qpn, 1);
    EXPECT_REFUSED(roce, qpn, 1u << 24);
    EXPECT_REFUSED(roce, psn, 1u << 24);
    EXPECT_REFUSED(roce, lid, 3);
    EXPECT_REFUSED(roce, gid, gid("::"));
    EXPECT_REFUSED(ib, lid, 0);
    EXPECT_REFUSED(ib, lid, 0xc000); /* the first multicast LID */
}

/* ---- path --------------------------------------------------------------------------------- */

static struct ibv_qp_attr path(const struct verbs_end *own, const struct verbs_end *peer)
{
    struct ibv_qp_attr attr = {0};

    cr_assert_eq(holmes_verbs_path(own, peer, 2, 3, 4, 5, &attr), 0);
    cr_assert_eq(attr.ah_attr.port_num, 2);
    cr_assert_eq(attr.ah_attr.sl, 4);
    return attr;
}

static void expect_global(const struct ibv_ah_attr *ah, const struct verbs_end *peer)
{
    cr_assert_eq(ah->is_global, 1);
    cr_assert_eq(memcmp(&ah->grh.dgid, &peer->gid, sizeof ah->grh.dgid), 0);
    cr_assert_eq(ah->grh.sgid_index, 3);
    cr_assert_eq(ah->grh.traffic_class, 5);
    cr_assert_eq(ah->grh.hop_limit, 255);
}

Test(verbs_path, roce_always_goes_by_gid)
{
    struct verbs_end own = roce_end("::ffff:10.2.0.1"), peer = roce_end("::ffff:10.2.0.2");
    struct ibv_qp_attr attr = path(&own, &peer);

    expect_global(&attr.ah_attr, &peer);
    cr_assert_eq(attr.ah_attr.dlid, 0);
}

Test(verbs_path, infiniband_of_one_subnet_goes_by_lid)
{
    struct verbs_end own = infiniband_end(5, "fe80::1"), peer = infiniband_end(9, "fe80::2");
    struct ibv_qp_attr attr = path(&own, &peer);

    cr_assert_eq(attr.ah_attr.is_global, 0);
    cr_assert_eq(attr.ah_attr.dlid, 9);
    own.needs_grh = true;
    attr = path(&own, &peer);
    expect_global(&attr.ah_attr, &peer);
    cr_assert_eq(attr.ah_attr.dlid, 9);
    /* The FLID in the prefix names a port, not another subnet. */
    own = infiniband_end(5, "fec0:0:11:1::1");
    peer = infiniband_end(9, "fec0:0:22:1::2");
    attr = path(&own, &peer);
    cr_assert_eq(attr.ah_attr.is_global, 0);
    cr_assert_eq(attr.ah_attr.dlid, 9);
}

Test(verbs_path, infiniband_of_another_subnet_goes_by_flid_and_gid)
{
    struct verbs_end own = infiniband_end(5, "fec0:0:11:1::1"),
                     peer = infiniband_end(9, "fec0:0:22:2::2");
    struct ibv_qp_attr attr = path(&own, &peer);

    expect_global(&attr.ah_attr, &peer);
    cr_assert_eq(attr.ah_attr.dlid, 0x22);
    peer = infiniband_end(9, "fec0:0:0:2::2"); /* has none */
    attr = path(&own, &peer);
    expect_global(&attr.ah_attr, &peer);
    cr_assert_eq(attr.ah_attr.dlid, 9);
}

Test(verbs_path, smaller_mtu_counts)
{
    struct verbs_end own = roce_end("fd00::1"), peer = roce_end("fd00::2");
    struct ibv_qp_attr attr;

    own.mtu = IBV_MTU_1024;
    attr = path(&own, &peer);
    cr_assert_eq(attr.path_mtu, IBV_MTU_1024);
    attr = path(&peer, &own);
    cr_assert_eq(attr.path_mtu, IBV_MTU_1024);
}

Test(verbs_path, different_links_have_none)
{
    struct verbs_end own = roce_end("fd00::1"), peer = infiniband_end(9, "fe80::2");
    struct ibv_qp_attr attr;

    cr_assert_eq(holmes_verbs_path(&own, &peer, 1, 0, 0, 0, &attr), -EPROTO);
}

Test(verbs_path, mtu_in_bytes_becomes_its_code)
{
    cr_assert_eq(holmes_verbs_mtu(0), 0);
    cr_assert_eq(holmes_verbs_mtu(255), 0);
    cr_assert_eq(holmes_verbs_mtu(256), IBV_MTU_256);
    cr_assert_eq(holmes_verbs_mtu(1500), IBV_MTU_1024);
    cr_assert_eq(holmes_verbs_mtu(4096), IBV_MTU_4096);
    cr_assert_eq(holmes_verbs_mtu(9000), IBV_MTU_4096);
}

/* ---- errors ------------------------------------------------------------------------------- */

Test(verbs_err, every_status_has_an_errno)
{
    cr_assert_eq(holmes_verbs_status_errno(IBV_WC_SUCCESS), 0);
    cr_assert_eq(holmes_verbs_status_errno(IBV_WC_RETRY_EXC_ERR), -ECONNRESET);
    cr_assert_eq(holmes_verbs_status_errno(IBV_WC_RNR_RETRY_EXC_ERR), -ECONNRESET);
    cr_assert_eq(holmes_verbs_status_errno(IBV_WC_WR_FLUSH_ERR), -ECONNRESET);
    cr_assert_eq(holmes_verbs_status_errno(IBV_WC_REM_ACCESS_ERR), -ECONNABORTED);
    cr_assert_eq(holmes_verbs_status_errno(IBV_WC_LOC_PROT_ERR), -EIO);
    for (int status = IBV_WC_LOC_LEN_ERR; status < 64; status++) {
        int rc = holmes_verbs_status_errno((enum ibv_wc_status)status);

        cr_assert(rc < 0 && rc != -EAGAIN, "status %d gives %d", status, rc);
    }
}

Test(verbs_err, call_that_leaves_no_errno_gets_the_fallback)
{
    errno = 0;
    cr_assert_eq(holmes_verbs_errno(ENODEV), -ENODEV);
    errno = ENOMEM;
    cr_assert_eq(holmes_verbs_errno(ENODEV), -ENOMEM);
}

/* ---- options ------------------------------------------------------------------------------ */

Test(verbs_options, are_nccl_s_when_nothing_is_set)
{
    struct verbs_options o;
    char names[64];

    holmes_verbs_options_read(&o);
    cr_assert_eq(o.timeout, 20);
    cr_assert_eq(o.retry_cnt, 7);
    cr_assert_eq(o.pkey_index, 0);
    cr_assert_eq(o.relaxed_ordering, 2);
    cr_assert_lt(o.adaptive_routing, 0);
    cr_assert_eq(o.ar_threshold, 8192u);
    cr_assert(o.async_errors && !o.retry_all);
    cr_assert(o.retry_max == 34 && o.retry_sleep_ms == 100);
    cr_assert_eq(holmes_verbs_options_idle(names, sizeof names), 0);
}

Test(verbs_options, follow_the_environment)
{
    static const char *const set[][2] = {
        {"NCCL_IB_TIMEOUT", "14"},
        {"NCCL_IB_RETRY_CNT", "3"},
        {"NCCL_IB_PKEY", "0x2"},
        {"NCCL_IB_PCI_RELAXED_ORDERING", "0"},
        {"NCCL_IB_ADAPTIVE_ROUTING", "1"},
        {"NCCL_IB_AR_THRESHOLD", "0"},
        {"NCCL_IB_RETURN_ASYNC_EVENTS", "0"},
        {"NCCL_IB_MQP_RETRY_ALL", "1"},
        {"NCCL_IB_MQP_RETRY_CNT", "2"},
    };
    struct verbs_options o;

    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        setenv(set[i][0], set[i][1], 1);
    holmes_verbs_options_read(&o);
    cr_assert(o.timeout == 14 && o.retry_cnt == 3 && o.pkey_index == 2);
    cr_assert(o.relaxed_ordering == 0 && o.adaptive_routing == 1 && o.ar_threshold == 0);
    cr_assert(!o.async_errors && o.retry_all && o.retry_max == 2);
}

/* As NCCL does with a value that it cannot use. */
Test(verbs_options, out_of_range_counts_as_unset)
{
    struct verbs_options o;

    setenv("NCCL_IB_TIMEOUT", "32", 1);
    setenv("NCCL_IB_RETRY_CNT", "many", 1);
    holmes_verbs_options_read(&o);
    cr_assert(o.timeout == 20 && o.retry_cnt == 7);
}

Test(verbs_options, classes_come_from_variable_communicator_or_zero)
{
    struct verbs_options o = {.sl = -1, .tc = -1, .fifo_tc = -1};

    cr_assert(holmes_verbs_sl(&o, -1) == 0 && holmes_verbs_tc(&o, WIRE_CONNECT, -1) == 0);
    cr_assert(holmes_verbs_sl(&o, 5) == 5 && holmes_verbs_tc(&o, WIRE_CONNECT, 105) == 105);
    o.sl = 3;
    o.tc = 96;
    cr_assert(holmes_verbs_sl(&o, 5) == 3 && holmes_verbs_tc(&o, WIRE_CONNECT, 105) == 96);
    cr_assert_eq(holmes_verbs_tc(&o, WIRE_ACCEPT, 105), 96);
    o.fifo_tc = 8;
    cr_assert_eq(holmes_verbs_tc(&o, WIRE_ACCEPT, 105), 8, "clear-to-sends have their own");
    cr_assert_eq(holmes_verbs_tc(&o, WIRE_CONNECT, 105), 96);
}

Test(verbs_options, without_effect_are_named)
{
    char names[256], little[24];

    setenv("NCCL_IB_USE_INLINE", "1", 1);
    setenv("NCCL_IB_ECE_ENABLE", "0", 1);
    cr_assert_eq(holmes_verbs_options_idle(names, sizeof names), 2);
    cr_assert_str_eq(names, "NCCL_IB_USE_INLINE, NCCL_IB_ECE_ENABLE");
    cr_assert_eq(holmes_verbs_options_idle(little, sizeof little), 2);
    cr_assert_eq(strlen(little), sizeof little - 1);
}
