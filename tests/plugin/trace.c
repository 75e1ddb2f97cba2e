/* Message sizes of NCCL's ring all-reduce and point-to-point plan, from its buffer sizes: 8 steps
 * in a buffer, a SIMPLE chunk of 4 steps in two slices, an LL or LL128 chunk of one step. */
#include "trace.h"

#include <string.h>

#define ELEM ((size_t)4) /* float32 */

static size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void add(struct trace *t, size_t size)
{
    t->sizes[t->n++] = size;
}

/* One chunk of `elems` elements as the messages it becomes. */
static void add_chunk(struct trace *t, enum proto proto, size_t elems)
{
    size_t slice;

    switch (proto) {
    case SIMPLE:
        slice = min_size(elems, max_size(16 * ceil_div(elems, 32), 32768 / ELEM));
        add(t, slice * ELEM);
        add(t, (elems - slice) * ELEM);
        break;
    case LL: /* 8 bytes of data and 8 of flags in a line */
        add(t, ceil_div(elems, 8 / ELEM) * 16);
        break;
    default: /* 120 of every 128 bytes are data; a warp writes 16 lines */
        add(t, ceil_div(elems, 1920 / ELEM) * 2048);
        break;
    }
}

void trace_ring(enum proto proto, size_t bytes, int rank, struct trace *out)
{
    static const size_t chunk_bytes[NPROTOS] = {[LL] = 32768, [LL128] = 576000, [SIMPLE] = 2097152};
    size_t count = bytes / ELEM;

    memset(out, 0, sizeof *out);
    for (size_t at = 0, loop; at < count; at += loop) {
        size_t rest = count - at, chunk = chunk_bytes[proto] / ELEM;

        loop = 2 * chunk;
        if (rest < loop) /* the last: both ranks take half */
            chunk = ceil_div(ceil_div(rest, 2), 16 / ELEM) * (16 / ELEM);
        for (int step = 0; step < 2; step++) { /* the peer's chunk, then the own one, reduced */
            size_t offset = (size_t)((rank + 1 + step) % 2) * chunk;

            add_chunk(out, proto, offset < rest ? min_size(chunk, rest - offset) : 0);
        }
    }
}

size_t trace_recv_max(enum proto proto)
{
    return trace_stride(proto);
}

int trace_depth(enum proto proto)
{
    return proto == SIMPLE ? STEPS / 2 : STEPS;
}

size_t trace_stride(enum proto proto)
{
    static const size_t bytes[NPROTOS] = {[LL] = 65536, [LL128] = 614400, [SIMPLE] = 1048576};

    return bytes[proto];
}

/* Bytes that one channel carries, and over how many channels. */
static size_t p2p_part(size_t bytes, size_t *channels)
{
    const size_t per_peer = 2;
    size_t k = 1, part = max_size(65536, bytes); /* two ranks on two channels: start with one */

    while (part > TRACE_P2P_CHUNK && k <= per_peer / 2) {
        k *= 2;
        part = ceil_div(bytes, k);
    }
    *channels = k;
    return ceil_div(ceil_div(bytes, k), 4096) * 4096;
}

static size_t p2p_chunk(size_t bytes)
{
    return bytes < 131072 ? 32768 : bytes < 1048576 ? 65536 : TRACE_P2P_CHUNK;
}

void trace_p2p(size_t bytes, int channel, struct trace *out)
{
    size_t channels, part = p2p_part(bytes, &channels), begin, end;

    memset(out, 0, sizeof *out);
    if ((size_t)channel >= channels)
        return;
    if (bytes == 0) {
        add(out, 0);
        return;
    }
    begin = min_size(bytes, part * (size_t)channel);
    end = (size_t)channel + 1 == channels ? bytes : min_size(bytes, begin + part);
    for (size_t at = begin; at < end; at += p2p_chunk(bytes))
        add(out, min_size(p2p_chunk(bytes), end - at));
}

size_t trace_p2p_recv_max_2_28(size_t bytes)
{
    size_t channels, part = p2p_part(bytes, &channels);

    return min_size(part, p2p_chunk(bytes));
}
