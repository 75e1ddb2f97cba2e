/* A run of a super-packet's segments is a packet with the same headers but for lengths, sequence
 * number and flags. Checksums are left to the receiving kernel ("partial"): only the sum over the
 * pseudo header, which carries the length, and IP's own are ours. */
#include "link_packet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/virtio_net.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>

#define DEVICE_LEN   sizeof(struct virtio_net_hdr)
#define ETHERNET_LEN 14

/* Of `len` bytes in 16-bit words as the Internet adds them, not yet complemented. */
static uint32_t sum_words(const uint8_t *p, size_t len, uint32_t sum)
{
    for (size_t i = 0; i + 1 < len; i += 2)
        sum += (uint32_t)p[i] << 8 | p[i + 1];
    return sum;
}

static uint16_t sum_fold(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static int parse_super(const struct virtio_net_hdr *h, const uint8_t *ip, size_t total, size_t ihl,
                       struct holmes_packet *p)
{
    struct tcphdr tcp;
    size_t thl;

    if ((h->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) != VIRTIO_NET_HDR_GSO_TCPV4 ||
        !(h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) || h->gso_size == 0)
        return -EINVAL;
    if (ip[9] != IPPROTO_TCP || total < ihl + sizeof tcp)
        return -EINVAL;
    memcpy(&tcp, ip + ihl, sizeof tcp);
    thl = (size_t)tcp.doff * 4;
    if (thl < sizeof tcp || total < ihl + thl)
        return -EINVAL;
    p->head_len = ihl + thl;
    p->payload_len = total - p->head_len;
    p->segment = h->gso_size;
    p->segments = p->payload_len == 0 ? 1 : (p->payload_len + p->segment - 1) / p->segment;
    return 0;
}

int holmes_packet_parse(const void *bytes, size_t len, struct holmes_packet *out)
{
    struct holmes_packet p = {.bytes = bytes, .len = len, .segments = 1};
    const uint8_t *ip = p.bytes + DEVICE_LEN;
    struct virtio_net_hdr h;
    size_t ihl, total;

    if (len < DEVICE_LEN + sizeof(struct iphdr) || len > HOLMES_PACKET_BYTES_MAX)
        return -EINVAL;
    memcpy(&h, bytes, sizeof h);
    ihl = (size_t)(ip[0] & 15) * 4;
    total = (size_t)ip[2] << 8 | ip[3];
    if (ip[0] >> 4 != 4 || ihl < sizeof(struct iphdr) || total != len - DEVICE_LEN || total < ihl)
        return -EINVAL;
    p.to = (uint32_t)ip[16] << 24 | (uint32_t)ip[17] << 16 | (uint32_t)ip[18] << 8 | ip[19];
    p.head_len = ihl;
    p.payload_len = p.segment = total - ihl;
    if (ip[9] == IPPROTO_TCP && ((ip[6] << 8 | ip[7]) & 0x1fff) == 0 && total >= ihl + 4) {
        p.port = (uint16_t)(ip[ihl] << 8 | ip[ihl + 1]);
        p.peer_port = (uint16_t)(ip[ihl + 2] << 8 | ip[ihl + 3]);
    }
    if (h.gso_type != VIRTIO_NET_HDR_GSO_NONE && parse_super(&h, ip, total, ihl, &p) != 0)
        return -EINVAL;
    *out = p;
    return 0;
}

static size_t payload_of(const struct holmes_packet *p, size_t first, size_t count)
{
    size_t begin = first * p->segment, end = (first + count) * p->segment;

    return (end < p->payload_len ? end : p->payload_len) - begin;
}

size_t holmes_packet_wire_bytes(const struct holmes_packet *p, size_t first, size_t count)
{
    return count * (ETHERNET_LEN + p->head_len) + payload_of(p, first, count);
}

static void fix_ip(uint8_t *ip, size_t total, size_t first)
{
    size_t ihl = (size_t)(ip[0] & 15) * 4;
    uint16_t id = (uint16_t)((ip[4] << 8 | ip[5]) + (int)first), sum;

    ip[2] = (uint8_t)(total >> 8);
    ip[3] = (uint8_t)total;
    ip[4] = (uint8_t)(id >> 8);
    ip[5] = (uint8_t)id;
    ip[10] = ip[11] = 0;
    sum = (uint16_t)~sum_fold(sum_words(ip, ihl, 0));
    ip[10] = (uint8_t)(sum >> 8);
    ip[11] = (uint8_t)sum;
}

static void fix_tcp(uint8_t *ip, size_t total, size_t skipped, bool begins, bool ends)
{
    size_t ihl = (size_t)(ip[0] & 15) * 4;
    uint16_t sum = sum_fold(sum_words(ip + 12, 8, IPPROTO_TCP + (uint32_t)(total - ihl)));
    uint8_t *tcp = ip + ihl;
    uint32_t seq;

    memcpy(&seq, tcp + 4, sizeof seq);
    seq = htonl(ntohl(seq) + (uint32_t)skipped);
    memcpy(tcp + 4, &seq, sizeof seq);
    if (!ends)
        tcp[13] &= (uint8_t) ~(TH_FIN | TH_PUSH);
    if (!begins)
        tcp[13] &= 0x7f; /* congestion window reduced: said once */
    tcp[16] = (uint8_t)(sum >> 8);
    tcp[17] = (uint8_t)sum;
}

size_t holmes_packet_cut(const struct holmes_packet *p, size_t first, size_t count, void *out)
{
    size_t payload = payload_of(p, first, count), total = p->head_len + payload;
    uint8_t *ip = (uint8_t *)out + DEVICE_LEN;
    struct virtio_net_hdr h;

    if (first == 0 && count == p->segments) {
        memcpy(out, p->bytes, p->len);
        return p->len;
    }
    memcpy(&h, p->bytes, sizeof h);
    if (count == 1) {
        h.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        h.gso_size = 0;
    }
    memcpy(out, &h, sizeof h);
    memcpy(ip, p->bytes + DEVICE_LEN, p->head_len);
    memcpy(ip + p->head_len, p->bytes + DEVICE_LEN + p->head_len + first * p->segment, payload);
    fix_ip(ip, total, first);
    fix_tcp(ip, total, first * p->segment, first == 0, first + count == p->segments);
    return DEVICE_LEN + total;
}
