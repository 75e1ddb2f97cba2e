/* Packets as a TUN device with IFF_VNET_HDR hands them over: a struct virtio_net_hdr, then IPv4.
 * One of them may stand for many packets of the wire (a super-packet of TCP segments), and each of
 * those can be lost on its own. Pure. */
#ifndef HOLMES_BENCH_LINK_PACKET_H
#define HOLMES_BENCH_LINK_PACKET_H

#include <stddef.h>
#include <stdint.h>

#define HOLMES_PACKET_BYTES_MAX (64 + 65535)

struct holmes_packet {
    const uint8_t *bytes; /* of the caller: the header of the device, then the packet */
    size_t len;
    size_t head_len;    /* IP and, of a super-packet, TCP; without the device's */
    size_t payload_len; /* behind head_len */
    size_t segment;     /* payload of each wire packet but the last; all of it in a lone packet */
    size_t segments;    /* wire packets, 1 at least */
    uint32_t to;        /* host order */
    uint16_t port, peer_port; /* of TCP; 0 for others, and for fragments */
};

/* 0, or -EINVAL for what is no whole IPv4 packet, or a super-packet of anything but TCP. `out`
 * points into `bytes`. */
int holmes_packet_parse(const void *bytes, size_t len, struct holmes_packet *out);

/* Bytes on the wire of `count` of its packets from `first` on, Ethernet's header included. */
size_t holmes_packet_wire_bytes(const struct holmes_packet *p, size_t first, size_t count);

/* Writes these wire packets as a packet of their own, of at most p->len bytes; returns its length.
 * count >= 1, first + count <= p->segments. */
size_t holmes_packet_cut(const struct holmes_packet *p, size_t first, size_t count, void *out);

#endif
