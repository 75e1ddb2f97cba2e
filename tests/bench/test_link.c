/* Links of our own: their words, the packets that a relay cuts up, and real ones between
 * namespaces. Speeds have upper bounds only: a busy machine makes nothing faster than its wire. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/virtio_net.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "link.h"
#include "link_packet.h"
#include "link_relay.h"
#include "self.h"

/* --- words ------------------------------------------------------------------------------------ */

Test(link_list, has_values_in_their_units)
{
    static const struct {
        enum holmes_link_list what;
        const char *text;
        int n;
        uint64_t values[3];
    } good[] = {
        {HOLMES_LINK_RATE, "1G", 1, {1000000000}},
        {HOLMES_LINK_RATE, "1G,2.5G,100M", 3, {1000000000, 2500000000, 100000000}},
        {HOLMES_LINK_RATE, "400G", 1, {400000000000}},
        {HOLMES_LINK_RATE, "1000K", 1, {1000000}},
        {HOLMES_LINK_RTT, "20ms", 1, {20000}},
        {HOLMES_LINK_RTT, "0ms,1.5ms,70us", 3, {0, 1500, 70}},
        {HOLMES_LINK_RTT, "10s", 1, {10000000}},
        {HOLMES_LINK_LOSS, "1%", 1, {10000}},
        {HOLMES_LINK_LOSS, "0%,0.01%", 2, {0, 100}},
    };
    uint64_t values[HOLMES_LINKS_MAX];

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert_eq(holmes_link_list_parse(good[i].what, good[i].text, values), good[i].n, "%s",
                     good[i].text);
        for (int k = 0; k < good[i].n; k++)
            cr_assert_eq(values[k], good[i].values[k], "%s: %ju", good[i].text,
                         (uintmax_t)values[k]);
    }
}

Test(link_list, refuses_what_it_does_not_mean)
{
    static const struct {
        enum holmes_link_list what;
        const char *text;
    } bad[] = {
        {HOLMES_LINK_RATE, ""},      {HOLMES_LINK_RATE, "1"},
        {HOLMES_LINK_RATE, "1g"},    {HOLMES_LINK_RATE, "401G"},
        {HOLMES_LINK_RATE, "0G"},    {HOLMES_LINK_RATE, "-1G"},
        {HOLMES_LINK_RATE, "1.G"},   {HOLMES_LINK_RATE, ".5G"},
        {HOLMES_LINK_RATE, "1G,"},   {HOLMES_LINK_RATE, ",1G"},
        {HOLMES_LINK_RATE, "1G 2G"}, {HOLMES_LINK_RATE, "1Gbit"},
        {HOLMES_LINK_RATE, "999K"},  {HOLMES_LINK_RATE, "99999999999999999999G"},
        {HOLMES_LINK_RTT, "20"},     {HOLMES_LINK_RTT, "11s"},
        {HOLMES_LINK_RTT, "1m"},     {HOLMES_LINK_RTT, "nan"},
        {HOLMES_LINK_LOSS, "1"},     {HOLMES_LINK_LOSS, "51%"},
        {HOLMES_LINK_LOSS, "1%%"},   {HOLMES_LINK_RATE, "1G,1G,1G,1G,1G,1G,1G,1G,1G"},
    };
    uint64_t values[HOLMES_LINKS_MAX] = {77};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(holmes_link_list_parse(bad[i].what, bad[i].text, values), -EINVAL,
                     "took \"%s\"", bad[i].text);
    cr_assert_eq(values[0], 77, "written on failure");
}

Test(link_list, reads_as_people_say_it)
{
    struct holmes_link_shape shape = {1000000000, 20000, 10000}, bare = {0, 0, 0};
    struct holmes_link_attr two = {.nlinks = 2, .shapes = {{1000, 0, 0}, {3000, 0, 0}}};
    char text[160];

    holmes_link_describe(&shape, true, text, sizeof text);
    cr_assert_str_eq(text, "1 Gbit/s each way, queue 5 ms, round trip +20 ms, loss 1 % each way");
    holmes_link_describe(&shape, false, text, sizeof text);
    cr_assert_str_eq(text, "1 Gbit/s each way, round trip +20 ms, loss 1 % each way");
    holmes_link_describe(&bare, true, text, sizeof text);
    cr_assert_str_eq(text, "no limit of rate");
    cr_assert_eq(holmes_link_total_rate(&two), 4000);
    two.shapes[1].bits_per_s = 0;
    cr_assert_eq(holmes_link_total_rate(&two), 0, "no share of what has no limit");
}

Test(link_list, super_packets_are_a_fifth_of_a_millisecond)
{
    static const struct {
        struct holmes_link_shape shape;
        uint32_t bytes;
    } rows[] = {
        {{0, 0, 0}, HOLMES_SUPER_PACKET},
        {{1000000000, 0, 0}, HOLMES_SUPER_PACKET},
        {{10000000000, 0, 0}, 250000},
        {{10000000000, 20000, 0}, 250000},
        {{10000000000, 0, 1}, HOLMES_SUPER_PACKET}, /* one would be lost as a whole */
        {{400000000000, 0, 0}, 500 << 10},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_eq(holmes_link_super_packet(&rows[i].shape), rows[i].bytes, "row %zu", i);
}

Test(link_list, streams_carry_what_their_links_can)
{
    struct holmes_link_attr two = {.nlinks = 2, .shapes = {{1000, 0, 0}, {3000, 0, 0}}};

    cr_assert_float_eq(holmes_link_part(&two, 1, 2), 0.25, 1e-9);
    cr_assert_float_eq(holmes_link_part(&two, 1, 3), 0.125, 1e-9, "two share link 0");
    cr_assert_float_eq(holmes_link_part(&two, 2, 3), 0.875, 1e-9);
    cr_assert_eq(holmes_link_part(&two, 3, 3), 1);
    cr_assert_eq(holmes_link_part(&two, 0, 3), 0);
    cr_assert_eq(holmes_link_part(&two, 1, 1), 1, "one stream, one link");
    cr_assert_eq(holmes_link_part(NULL, 3, 4), 0.75);
    two.shapes[1].bits_per_s = 0;
    cr_assert_eq(holmes_link_part(&two, 1, 2), 0.5);
}

Test(relay_order, names_a_stream_and_its_loss)
{
    static const char *const bad[] = {"",
                                      "0 1 2",
                                      "0 1 2 ",
                                      "0 1 2 1",
                                      "0 1 2 51%",
                                      "64 1 2 1%",
                                      "0 65536 2 1%",
                                      "0 1  2 1%",
                                      "-1 1 2 1%",
                                      "0 1 2 1%,2%",
                                      "0 1 2 1% ",
                                      " 0 1 2 1%",
                                      "0000000000000000000 1 2 1%"};
    struct holmes_relay_order o = {.rank = 77};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(holmes_relay_order_parse(bad[i], &o), -EINVAL, "took \"%s\"", bad[i]);
    cr_assert_eq(o.rank, 77, "written on failure");
    cr_assert_eq(holmes_relay_order_parse("63 65535 1 0.5%", &o), 0);
    cr_assert(o.rank == 63 && o.port == 65535 && o.peer_port == 1 && o.loss_ppm == 5000);
}

/* --- packets ---------------------------------------------------------------------------------- */

#define DEVICE (sizeof(struct virtio_net_hdr))
#define IP     24 /* bytes, one word of options */
#define TCP    32
#define SEQ    0xfffffff0u /* wraps within the packet */

static uint8_t super[HOLMES_PACKET_BYTES_MAX];

/* A super-packet with all the flags that only its first or last segment may keep. */
static size_t super_make(size_t payload, uint16_t segment)
{
    struct virtio_net_hdr h = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                               .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                               .gso_size = segment,
                               .hdr_len = IP + TCP,
                               .csum_start = IP,
                               .csum_offset = 16};
    static const uint8_t addresses[] = {10, 78, 0, 1, 10, 78, 0, 2};
    size_t total = IP + TCP + payload;
    uint8_t *ip = super + DEVICE, *tcp = ip + IP;

    memset(super, 0, DEVICE + IP + TCP);
    memcpy(super, &h, sizeof h);
    ip[0] = 0x40 | IP / 4;
    ip[2] = (uint8_t)(total >> 8);
    ip[3] = (uint8_t)total;
    ip[5] = 0xff;
    ip[8] = 64;
    ip[9] = IPPROTO_TCP;
    memcpy(ip + 12, addresses, sizeof addresses);
    memcpy(tcp + 4, &(uint32_t){htonl(SEQ)}, 4);
    tcp[12] = TCP / 4 << 4;
    tcp[13] = 0x80 | TH_ACK | TH_PUSH | TH_FIN;
    for (size_t i = 0; i < payload; i++)
        tcp[TCP + i] = (uint8_t)(i * 7 + i / 251);
    return DEVICE + total;
}

static uint16_t internet_sum(const uint8_t *p, size_t len, uint32_t sum)
{
    for (size_t i = 0; i < len; i += 2)
        sum += (uint32_t)(p[i] << 8 | p[i + 1]);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/* What the receiving kernel will look at. */
static void expect_piece(const uint8_t *bytes, size_t len, size_t at, size_t payload, bool begins,
                         bool ends, size_t count)
{
    const uint8_t *ip = bytes + DEVICE, *tcp = ip + IP;
    struct virtio_net_hdr h;
    uint32_t seq;

    memcpy(&h, bytes, sizeof h);
    memcpy(&seq, tcp + 4, 4);
    cr_assert_eq(len, DEVICE + IP + TCP + payload);
    cr_assert_eq(ip[2] << 8 | ip[3], (int)(IP + TCP + payload));
    cr_assert_eq(internet_sum(ip, IP, 0), 0xffff, "IP's checksum is wrong");
    cr_assert_eq(tcp[16] << 8 | tcp[17], internet_sum(ip + 12, 8, IPPROTO_TCP + (TCP + payload)));
    cr_assert_eq(ntohl(seq), (uint32_t)(SEQ + at));
    cr_assert_eq(h.gso_type == VIRTIO_NET_HDR_GSO_NONE, count == 1);
    cr_assert_eq(tcp[13] & (TH_FIN | TH_PUSH), ends ? TH_FIN | TH_PUSH : 0);
    cr_assert_eq(tcp[13] & 0x80, begins ? 0x80 : 0);
    for (size_t i = 0; i < payload; i++)
        cr_assert_eq(tcp[TCP + i], (uint8_t)((at + i) * 7 + (at + i) / 251), "byte %zu", i);
}

Test(packet, any_run_of_a_super_packet_is_a_packet)
{
    static uint8_t out[HOLMES_PACKET_BYTES_MAX];
    const size_t segment = 1000, payload = 4321, n = 5;
    struct holmes_packet p, piece;
    size_t len = super_make(payload, (uint16_t)segment);

    cr_assert_eq(holmes_packet_parse(super, len, &p), 0);
    cr_assert_eq(p.segments, n);
    cr_assert_eq(p.to, 0x0a4e0002);
    cr_assert_eq(holmes_packet_wire_bytes(&p, 0, n), n * (14 + IP + TCP) + payload);
    cr_assert_eq(holmes_packet_wire_bytes(&p, 4, 1), 14 + IP + TCP + 321);
    for (size_t first = 0; first < n; first++) {
        for (size_t count = 1; first + count <= n; count++) {
            size_t end = first + count == n ? payload : (first + count) * segment;
            size_t got;

            if (count == n)
                continue; /* as it came, its checksum too */
            got = holmes_packet_cut(&p, first, count, out);
            expect_piece(out, got, first * segment, end - first * segment, first == 0,
                         first + count == n, count);
            cr_assert_eq(holmes_packet_parse(out, got, &piece), 0);
            cr_assert_eq(piece.segments, count);
        }
    }
    cr_assert_eq(holmes_packet_cut(&p, 0, n, out), len);
    cr_assert_arr_eq(out, super, len);
}

Test(packet, refuses_what_is_not_whole)
{
    struct holmes_packet p;
    size_t len = super_make(3000, 1000);

    for (size_t cut = 0; cut < len; cut += cut < 90 ? 1 : 97)
        cr_assert_eq(holmes_packet_parse(super, cut, &p), -EINVAL, "%zu bytes", cut);
    super[DEVICE + 9] = IPPROTO_UDP;
    cr_assert_eq(holmes_packet_parse(super, len, &p), -EINVAL, "segments of UDP");
    super_make(3000, 0);
    cr_assert_eq(holmes_packet_parse(super, len, &p), -EINVAL, "segments of no length");
    super_make(3000, 1000);
    super[DEVICE + IP + 12] = 4 << 4;
    cr_assert_eq(holmes_packet_parse(super, len, &p), -EINVAL, "a TCP header of 16 bytes");
    super_make(3000, 1000);
    super[DEVICE] = 0x60 | IP / 4;
    cr_assert_eq(holmes_packet_parse(super, len, &p), -EINVAL, "IPv6");
}

/* --- links ------------------------------------------------------------------------------------ */

/* Skips where this user may make none. */
static struct holmes_link *links_made(const struct holmes_link_attr *attr, int nranks)
{
    struct holmes_link *l = NULL;
    char why[512] = "";
    int rc = holmes_link_create(attr, nranks, &l, why, sizeof why);

    if (rc == -EPERM || (attr->relay && (rc == -ENOENT || rc == -EACCES)))
        cr_skip_test("%s", why);
    cr_assert_eq(rc, 0, "%s", why);
    return l;
}

/* TEST_NETEM: this kernel has it, and nothing may make do without. */
static struct holmes_link *links_by_the_kernel(const struct holmes_link_attr *attr)
{
    struct holmes_link *l = links_made(attr, 2);
    const char *by = holmes_link_delayed_by(l);

    cr_assert(!getenv("TEST_NETEM") || strcmp(by, "netem") == 0, "by %s", by);
    return l;
}

struct stream {
    int in, out;
};

static void close_stream(struct stream s)
{
    close(s.in);
    close(s.out);
}

/* From rank `from` to rank `to` over this link; *ns is what the connect took. */
static struct stream dial(const struct holmes_link *l, int link, int from, int to, uint64_t *ns)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    socklen_t len = sizeof sa;
    struct timeval tv = {.tv_sec = 30};
    struct stream s = {-1, -1};
    uint64_t start;
    int listener;

    sa.sin_addr = holmes_link_address(l, link, to);
    cr_assert_eq(holmes_link_enter(l, to), 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&sa, sizeof sa), 0, "%s", strerror(errno));
    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&sa, &len), 0);
    cr_assert_eq(holmes_link_enter(l, from), 0);
    s.out = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(s.out, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    start = holmes_now_ns();
    cr_assert_eq(connect(s.out, (struct sockaddr *)&sa, sizeof sa), 0, "%s", strerror(errno));
    *ns = holmes_now_ns() - start;
    s.in = accept(listener, NULL, NULL);
    cr_assert_geq(s.in, 0);
    setsockopt(s.in, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    cr_assert_eq(holmes_link_enter(l, HOLMES_LINK_OUTSIDE), 0);
    close(listener);
    return s;
}

struct sender {
    int fd;
    size_t bytes;
};

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i ^ i >> 8 ^ i >> 16);
}

static void *send_main(void *arg)
{
    const struct sender *s = arg;
    static uint8_t block[1 << 16];
    size_t done = 0;

    while (done < s->bytes) {
        size_t n = s->bytes - done < sizeof block ? s->bytes - done : sizeof block;
        ssize_t sent;

        for (size_t i = 0; i < n; i++)
            block[i] = byte_at(done + i);
        sent = send(s->fd, block, n, MSG_NOSIGNAL);
        if (sent <= 0)
            break;
        done += (size_t)sent;
    }
    return NULL;
}

/* Moves and compares the bytes; returns the seconds. */
static double move(struct stream s, size_t bytes)
{
    static uint8_t block[1 << 16];
    struct sender sender = {s.out, bytes};
    uint64_t start = holmes_now_ns();
    pthread_t thread;
    size_t done = 0;

    cr_assert_eq(pthread_create(&thread, NULL, send_main, &sender), 0);
    while (done < bytes) {
        ssize_t n = recv(s.in, block, sizeof block, 0);

        cr_assert_gt(n, 0, "after %zu bytes: %s", done, strerror(errno));
        for (ssize_t i = 0; i < n; i++)
            cr_assert_eq(block[i], byte_at(done + (size_t)i), "byte %zu", done + (size_t)i);
        done += (size_t)n;
    }
    pthread_join(thread, NULL);
    return (double)(holmes_now_ns() - start) / 1e9;
}

/* What has been sent again; only loss makes it grow for sure. */
static uint32_t retransmitted(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    cr_assert_eq(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    return info.tcpi_total_retrans;
}

static void expect_rate(const struct holmes_link_attr *attr, int nranks, size_t bytes)
{
    struct holmes_link *l = links_made(attr, nranks);
    double rate = (double)attr->shapes[0].bits_per_s * 1e-6;
    uint64_t ns;

    for (int way = 0; way < 2; way++) {
        struct stream s = dial(l, 0, way ? nranks - 1 : 0, way ? 0 : nranks - 1, &ns);
        double mbps = (double)bytes * 8e-6 / move(s, bytes);

        cr_assert_lt(mbps, 1.04 * rate, "%.0f Mbit/s over %.0f, way %d", mbps, rate, way);
        close_stream(s);
    }
    holmes_link_destroy(l);
}

Test(links, carry_no_more_than_their_rate_each_way, .timeout = 120)
{
    struct holmes_link_attr attr = {.nlinks = 1, .shapes = {{.bits_per_s = 100000000}}};

    expect_rate(&attr, 2, 4 << 20);
    expect_rate(&attr, 3, 4 << 20);
    attr.shapes[0].rtt_us = 1000;
    attr.relay = true;
    expect_rate(&attr, 3, 4 << 20);
}

Test(links, carry_no_more_than_their_rate_in_large_super_packets, .timeout = 120)
{
    struct holmes_link_attr attr = {.nlinks = 1, .shapes = {{.bits_per_s = 5000000000}}};

    expect_rate(&attr, 2, 64 << 20);
    expect_rate(&attr, 3, 64 << 20);
}

/* As much as the kernel takes without waiting. */
static void fill(int fd)
{
    static const uint8_t block[1 << 16];

    while (send(fd, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        continue;
}

static bool has_come(int fd)
{
    uint8_t byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

/* Eight streams that begin have half a second of this link's time on their way. */
Test(links, what_has_priority_goes_before_bulk, .timeout = 120)
{
    struct holmes_link_attr attr = {.nlinks = 1, .shapes = {{.bits_per_s = 10000000}}};
    struct holmes_link *l = links_made(&attr, 2);
    uint64_t ns, deadline = holmes_deadline_ms(30000);
    struct stream bulk[8], plain = dial(l, 0, 0, 1, &ns), urgent = dial(l, 0, 0, 1, &ns);
    int interactive = 6;

    cr_assert_eq(setsockopt(urgent.out, SOL_SOCKET, SO_PRIORITY, &interactive, sizeof interactive),
                 0);
    for (int i = 0; i < 8; i++)
        bulk[i] = dial(l, 0, 0, 1, &ns);
    for (int i = 0; i < 8; i++)
        fill(bulk[i].out);
    cr_assert_eq(send(plain.out, "p", 1, MSG_NOSIGNAL), 1);
    cr_assert_eq(send(urgent.out, "u", 1, MSG_NOSIGNAL), 1);
    while (!has_come(urgent.in))
        cr_assert_not(holmes_deadline_passed(deadline));
    cr_assert_not(has_come(plain.in), "it waited with the others");
    for (int i = 0; i < 8; i++)
        close_stream(bulk[i]);
    close_stream(plain);
    close_stream(urgent);
    holmes_link_destroy(l);
}

Test(links, two_links_are_two_ways_with_counters, .timeout = 120)
{
    struct holmes_link_attr attr = {.nlinks = 2,
                                    .shapes = {{1000000000, 0, 0}, {3000000000, 0, 0}}};
    struct holmes_link *l = links_made(&attr, 2);
    uint64_t before[2] = {holmes_link_sent(l, 0), holmes_link_sent(l, 1)}, ns;
    struct stream s = dial(l, 1, 0, 1, &ns);

    move(s, 4 << 20);
    cr_assert_gt(holmes_link_sent(l, 1) - before[1], 4u << 20);
    cr_assert_lt(holmes_link_sent(l, 0) - before[0], 100000);
    close_stream(s);
    holmes_link_destroy(l);
}

static void expect_delay(bool relay)
{
    struct holmes_link_attr attr = {.nlinks = 1, .shapes = {{.rtt_us = 40000}}, .relay = relay};
    struct holmes_link *l = relay ? links_made(&attr, 2) : links_by_the_kernel(&attr);
    uint64_t ns;
    struct stream s = dial(l, 0, 0, 1, &ns);

    cr_assert_geq(ns, 40000000, "%.1f ms", (double)ns / 1e6);
    move(s, 1 << 20);
    close_stream(s);
    holmes_link_destroy(l);
}

Test(links, a_relay_delays_by_the_round_trip, .timeout = 120)
{
    expect_delay(true);
}

Test(links, what_the_kernel_has_delays_by_the_round_trip, .timeout = 120)
{
    expect_delay(false);
}

static void expect_loss(bool relay)
{
    struct holmes_link_attr attr = {.nlinks = 1, .shapes = {{.loss_ppm = 20000}}, .relay = relay};
    struct holmes_link *l = relay ? links_made(&attr, 2) : links_by_the_kernel(&attr);
    uint64_t ns;
    struct stream s = dial(l, 0, 0, 1, &ns);

    move(s, 16 << 20); /* 1,870 packets */
    cr_assert_gt(retransmitted(s.out), 5);
    close_stream(s);
    holmes_link_destroy(l);
}

Test(links, a_relay_loses_packets_and_harms_none, .timeout = 120)
{
    expect_loss(true);
}

Test(links, what_the_kernel_has_loses_packets_and_harms_none, .timeout = 120)
{
    expect_loss(false);
}

static int port_of(int fd)
{
    struct sockaddr_in sa = {.sin_port = 0};
    socklen_t len = sizeof sa;

    cr_assert_eq(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    return ntohs(sa.sin_port);
}

Test(links, an_order_makes_one_stream_lose, .timeout = 120)
{
    struct holmes_link_attr attr = {.nlinks = 1, .relay = true};
    struct holmes_link *l = links_made(&attr, 2);
    volatile sig_atomic_t stop = 0;
    char command[128], why[256] = "";
    struct holmes_link_call call = {.command = command, .side = "test", .timeout_s = 60};
    uint32_t lost[2];
    uint64_t ns;
    struct stream s[2];

    for (int i = 0; i < 2; i++)
        s[i] = dial(l, 0, 0, 1, &ns);
    snprintf(command, sizeof command, "echo 0 %d %d 5%% >$BENCH_RELAY", port_of(s[1].out),
             port_of(s[1].in));
    cr_assert_eq(holmes_link_hook(l, &call, &stop, why, sizeof why), 0, "%s", why);
    for (int i = 0; i < 2; i++) {
        move(s[i], 16 << 20); /* 1,870 packets */
        lost[i] = retransmitted(s[i].out);
        close_stream(s[i]);
    }
    cr_assert_gt(lost[1], 30);
    cr_assert_lt(lost[0], lost[1] / 2, "%u beside %u", lost[0], lost[1]);
    holmes_link_destroy(l);
}

/* The relay is the only child there is. */
Test(links, tell_when_their_relay_has_died, .timeout = 120)
{
    struct holmes_link_attr attr = {.nlinks = 1, .relay = true};
    struct holmes_link *l = links_made(&attr, 2);
    uint64_t deadline = holmes_deadline_ms(30000);
    char path[64];
    pid_t relay = 0;
    FILE *f;

    cr_assert(holmes_link_works(l) && holmes_link_works(NULL));
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    f = fopen(path, "r");
    if (!f)
        cr_skip_test("the kernel does not list children");
    cr_assert_eq(fscanf(f, "%d", &relay), 1);
    fclose(f);
    cr_assert_eq(kill(relay, SIGKILL), 0);
    while (holmes_link_works(l))
        cr_assert_not(holmes_deadline_passed(deadline));
    holmes_link_destroy(l);
}

static ino_t network(void)
{
    struct stat st;

    cr_assert_eq(stat("/proc/self/ns/net", &st), 0);
    return st.st_ino;
}

Test(links, leave_nothing_when_they_go, .timeout = 120)
{
    struct holmes_link_attr attr = {
        .nlinks = 2, .shapes = {{1000000000, 1000, 0}, {1000000000, 0, 0}}, .relay = true};
    ino_t before = network();
    int fds = holmes_self_fds();

    holmes_link_destroy(links_made(&attr, 4));
    cr_assert_eq(holmes_self_fds(), fds);
    if (geteuid() == 0) /* there is no way back out of a user namespace */
        cr_assert_eq(network(), before);
    cr_assert_eq(holmes_link_count(NULL), 1);
    cr_assert_eq(ntohl(holmes_link_address(NULL, 0, 3).s_addr), INADDR_LOOPBACK);
}
