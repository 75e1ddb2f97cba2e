/* What a wire over TCP reads from its peer before it trusts it: lane blobs and connect requests. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "transport/sock/sock.h"

#define MAGIC 0x484f4649u /* "HOFI" */

static struct tcp_blob accepting(const char *addr, uint16_t port)
{
    struct tcp_blob b = {.role = WIRE_ACCEPT, .secret = 0x0123456789abcdef};

    if (strchr(addr, ':')) {
        b.addr.in6.sin6_family = AF_INET6;
        b.addr.in6.sin6_port = htons(port);
        cr_assert_eq(inet_pton(AF_INET6, addr, &b.addr.in6.sin6_addr), 1);
    } else {
        b.addr.in.sin_family = AF_INET;
        b.addr.in.sin_port = htons(port);
        cr_assert_eq(inet_pton(AF_INET, addr, &b.addr.in.sin_addr), 1);
    }
    return b;
}

static void expect_round_trip(const char *addr)
{
    struct tcp_blob in = accepting(addr, 40123), out;
    uint8_t bytes[TCP_BLOB_LEN];
    size_t len;

    in.streams = 7;
    len = tcp_blob_encode(MAGIC, &in, bytes);
    memset(&out, 0xff, sizeof out);
    cr_assert_eq(tcp_blob_decode(MAGIC, bytes, len, &out), 0);
    cr_assert_eq(out.role, WIRE_ACCEPT);
    cr_assert_eq(out.secret, in.secret);
    cr_assert_eq(out.streams, in.streams);
    cr_assert_eq(memcmp(&out.addr, &in.addr, sizeof out.addr), 0);
}

Test(wire_blob, carries_address_and_secret)
{
    expect_round_trip("10.1.2.3");
    expect_round_trip("fd00::1:2");
}

Test(wire_blob, fits_the_handshake)
{
    cr_assert_leq(TCP_BLOB_LEN, HOLMES_LANE_BLOB_MAX);
}

Test(wire_blob, has_the_documented_layout)
{
    static const uint8_t expected[TCP_BLOB_LEN] = {
        'H',  'O',  'F',  'I',  1,    1,    4,    3, /* magic, version, role, family, streams */
        0x9c, 0xbb, 0,    0,                         /* port 40123 */
        0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 10, 1, 2, 3};
    struct tcp_blob b = accepting("10.1.2.3", 40123);
    uint8_t bytes[TCP_BLOB_LEN];

    b.streams = 3;

    cr_assert_eq(tcp_blob_encode(MAGIC, &b, bytes), (size_t)TCP_BLOB_LEN);
    cr_assert_eq(memcmp(bytes, expected, sizeof expected), 0);
}

/* Every bit of the fixed fields matters; number of streams, address, port and secret are free. */
Test(wire_blob, refuses_any_change_of_a_fixed_field)
{
    struct tcp_blob b = accepting("10.1.2.3", 40123), out;
    uint8_t good[TCP_BLOB_LEN], bad[TCP_BLOB_LEN];
    size_t len = tcp_blob_encode(MAGIC, &b, good);

    for (size_t i = 0; i < len; i++) {
        bool fixed = i < 7 || i == 10 || i == 11 || i >= 24;

        for (int bit = 0; fixed && bit < 8; bit++) {
            if (i == 6 && bit == 1)
                continue; /* the other family, equally good */
            memcpy(bad, good, len);
            bad[i] ^= (uint8_t)(1 << bit);
            cr_assert_eq(tcp_blob_decode(MAGIC, bad, len, &out), -EPROTO, "byte %zu bit %d", i,
                         bit);
        }
    }
}

Test(wire_blob, refuses_every_other_length)
{
    struct tcp_blob b = accepting("fd00::7", 1), out;
    uint8_t bytes[TCP_BLOB_LEN + 8] = {0};
    size_t good = tcp_blob_encode(MAGIC, &b, bytes);

    for (size_t len = 0; len < sizeof bytes; len++)
        cr_assert_eq(tcp_blob_decode(MAGIC, bytes, len, &out), len == good ? 0 : -EPROTO);
}

Test(wire_blob, refuses_port_or_secret_zero)
{
    struct tcp_blob b = accepting("10.1.2.3", 0), out;
    uint8_t bytes[TCP_BLOB_LEN];

    cr_assert_eq(tcp_blob_decode(MAGIC, bytes, tcp_blob_encode(MAGIC, &b, bytes), &out), -EPROTO);
    b = accepting("10.1.2.3", 5);
    b.secret = 0;
    cr_assert_eq(tcp_blob_decode(MAGIC, bytes, tcp_blob_encode(MAGIC, &b, bytes), &out), -EPROTO);
}

Test(wire_blob, request_is_refused_unless_whole_and_ours)
{
    uint8_t good[TCP_REQUEST_LEN], bad[TCP_REQUEST_LEN];
    uint64_t secret = 0;

    tcp_request_encode(MAGIC, 77, good);
    cr_assert_eq(tcp_request_decode(MAGIC, good, sizeof good, &secret), 0);
    cr_assert_eq(secret, 77u);
    for (size_t len = 0; len < sizeof good; len++)
        cr_assert_eq(tcp_request_decode(MAGIC, good, len, &secret), -EPROTO);
    for (size_t i = 0; i < 8; i++) {
        memcpy(bad, good, sizeof good);
        bad[i] ^= 0x10;
        cr_assert_eq(tcp_request_decode(MAGIC, bad, sizeof bad, &secret), -EPROTO, "byte %zu", i);
    }
    tcp_request_encode(MAGIC, 0, bad);
    cr_assert_eq(tcp_request_decode(MAGIC, bad, sizeof bad, &secret), -EPROTO);
}

/* ---- the sockets wire: a blob, and further addresses behind it ---- */

#define EXTRA 20

static struct sock_peer bundle(int naddrs)
{
    static const char *const addrs[HOLMES_BUNDLE_MAX] = {"10.1.2.3", "fd00::1:2", "10.2.2.3",
                                                         "fe80::7"};
    struct sock_peer p = {
        .role = WIRE_ACCEPT, .streams = 8, .naddrs = naddrs, .secret = 0x0123456789abcdef};

    for (int i = 0; i < naddrs; i++)
        p.addrs[i] = accepting(addrs[i], (uint16_t)(40123 + i)).addr;
    return p;
}

Test(wire_blob, carries_all_addresses_of_a_bundle)
{
    for (int n = 1; n <= HOLMES_BUNDLE_MAX; n++) {
        struct sock_peer in = bundle(n), out;
        uint8_t bytes[HOLMES_LANE_BLOB_MAX];
        size_t len = holmes_sock_blob_encode(&in, bytes);

        cr_assert_eq(len, (size_t)TCP_BLOB_LEN + (size_t)(n - 1) * EXTRA);
        cr_assert_eq(holmes_sock_blob_decode(bytes, len, &out), 0, "%d addresses", n);
        cr_assert_eq(out.role, WIRE_ACCEPT);
        cr_assert_eq(out.streams, 8);
        cr_assert_eq(out.secret, in.secret);
        cr_assert_eq(out.naddrs, n);
        for (int i = 0; i < n; i++)
            cr_assert_eq(memcmp(&out.addrs[i], &in.addrs[i], sizeof out.addrs[i]), 0,
                         "address %d of %d", i, n);
    }
}

Test(wire_blob, further_addresses_have_the_documented_layout)
{
    static const uint8_t expected[2 * EXTRA] = {6, 0, 0x9c, 0xbc, 0xfd, 0, 0, 0, 0, 0, 0,
                                                0, 0, 0,    0,    0,    0, 1, 0, 2, /* port 40124 */
                                                4, 0, 0x9c, 0xbd, 10,   2, 2, 3};
    struct sock_peer in = bundle(3);
    uint8_t bytes[HOLMES_LANE_BLOB_MAX];

    cr_assert_eq(holmes_sock_blob_encode(&in, bytes), (size_t)TCP_BLOB_LEN + 2 * EXTRA);
    cr_assert_eq(memcmp(bytes + TCP_BLOB_LEN, expected, sizeof expected), 0);
}

Test(wire_blob, connecting_lane_tells_no_address)
{
    struct sock_peer in = bundle(3), out;
    uint8_t bytes[HOLMES_LANE_BLOB_MAX];
    size_t len;

    in.role = WIRE_CONNECT;
    in.streams = 0;
    len = holmes_sock_blob_encode(&in, bytes);
    cr_assert_eq(len, (size_t)TCP_BLOB_HEAD);
    cr_assert_eq(holmes_sock_blob_decode(bytes, len, &out), 0);
    cr_assert_eq(out.role, WIRE_CONNECT);
    cr_assert_eq(out.naddrs, 0);
    bytes[7] = 1; /* streams */
    cr_assert_eq(holmes_sock_blob_decode(bytes, len, &out), -EPROTO);
}

Test(wire_blob, bundle_of_every_other_length_is_refused)
{
    struct sock_peer in = bundle(HOLMES_BUNDLE_MAX), out;
    uint8_t bytes[HOLMES_LANE_BLOB_MAX + EXTRA + 1] = {0};
    size_t full = holmes_sock_blob_encode(&in, bytes);

    memcpy(bytes + full, bytes + full - EXTRA, EXTRA); /* a good address, but one too many */
    for (size_t len = 0; len < sizeof bytes; len++) {
        bool good = len >= TCP_BLOB_LEN && len <= full && (len - TCP_BLOB_LEN) % EXTRA == 0;

        out.naddrs = -1;
        cr_assert_eq(holmes_sock_blob_decode(bytes, len, &out), good ? 0 : -EPROTO, "%zu bytes",
                     len);
        cr_assert_eq(out.naddrs, good ? (int)(1 + (len - TCP_BLOB_LEN) / EXTRA) : -1);
    }
}

/* Port and address are free, but for port 0. */
Test(wire_blob, further_address_with_a_wrong_byte_is_refused)
{
    struct sock_peer in = bundle(3), out;
    uint8_t good[HOLMES_LANE_BLOB_MAX], bad[HOLMES_LANE_BLOB_MAX];
    size_t len = holmes_sock_blob_encode(&in, good), last = len - EXTRA; /* an IPv4 one */

    for (size_t i = 0; i < EXTRA; i++) {
        for (int bit = 0; bit < 8; bit++) {
            bool fixed = (i < 2 && !(i == 0 && bit == 1)) || i >= 8; /* 4 ^ 2: the other family */

            memcpy(bad, good, len);
            bad[last + i] ^= (uint8_t)(1 << bit);
            cr_assert_eq(holmes_sock_blob_decode(bad, len, &out), fixed ? -EPROTO : 0,
                         "byte %zu bit %d", i, bit);
        }
    }
    memcpy(bad, good, len);
    memset(bad + last + 2, 0, 2);
    cr_assert_eq(holmes_sock_blob_decode(bad, len, &out), -EPROTO, "port 0");
}

Test(wire_blob, bundle_of_no_stream_or_too_many_is_refused)
{
    struct sock_peer in = bundle(2), out;
    uint8_t bytes[HOLMES_LANE_BLOB_MAX];
    size_t len = holmes_sock_blob_encode(&in, bytes);

    for (int n = 0; n < 256; n++) {
        bytes[7] = (uint8_t)n;
        cr_assert_eq(holmes_sock_blob_decode(bytes, len, &out),
                     n >= 1 && n <= SOCK_STREAMS_MAX ? 0 : -EPROTO, "%d streams", n);
    }
}
