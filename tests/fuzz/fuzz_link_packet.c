/* Packets as a TUN device would hand them over: what is accepted can be cut into any runs of its
 * segments, each of which is a packet again, none longer than the whole. And the words of a link
 * and of a relay's orders. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "link_packet.h"
#include "link_relay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void words(const uint8_t *data, size_t size)
{
    uint64_t values[HOLMES_LINKS_MAX];
    struct holmes_relay_order order;
    char *text = malloc(size + 1);

    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    for (int what = HOLMES_LINK_RATE; what <= HOLMES_LINK_LOSS; what++)
        if (holmes_link_list_parse((enum holmes_link_list)what, text, values) > HOLMES_LINKS_MAX)
            __builtin_trap();
    if (holmes_relay_order_parse(text, &order) == 0 && (order.rank < 0 || order.loss_ppm > 500000))
        __builtin_trap();
    free(text);
}

static void cut(const struct holmes_packet *p, size_t first, size_t count, uint8_t *out)
{
    struct holmes_packet piece;
    size_t len = holmes_packet_cut(p, first, count, out);

    if (len > p->len || holmes_packet_wire_bytes(p, first, count) < count * 34)
        __builtin_trap();
    if (holmes_packet_parse(out, len, &piece) != 0 || piece.segments != count)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_packet p;
    uint8_t *out;

    words(data, size);
    if (holmes_packet_parse(data, size, &p) != 0)
        return 0;
    if (p.segments == 0 || p.head_len + p.payload_len > p.len)
        __builtin_trap();
    out = malloc(p.len); /* exactly: a sanitizer sees what is written behind it */
    if (!out)
        abort();
    for (size_t first = 0, step = 1; first < p.segments; first += step++)
        cut(&p, first, 1 + (p.segments - first - 1) % 5, out);
    cut(&p, 0, p.segments, out);
    free(out);
    return 0;
}
