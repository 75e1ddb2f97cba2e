/* The order of a ring's messages. Block b of the reduce phase starts at rank b+1 and ends, summed,
 * at rank b; the gather phase carries it on from there, so that one formula gives the block of
 * every step of an all-reduce. */
#include "ring.h"

#include <assert.h>

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t div_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static uint64_t ring_steps(const struct holmes_ring_attr *a)
{
    switch (a->kind) {
    case HOLMES_RING_ALL_REDUCE:
        return 2 * (uint64_t)(a->size - 1);
    case HOLMES_RING_REDUCE_SCATTER:
    case HOLMES_RING_ALL_GATHER:
    case HOLMES_RING_BARRIER:
        return (uint64_t)(a->size - 1);
    default:
        return 1;
    }
}

/* Distance from the root, along the ring. */
static int ring_position(const struct holmes_ring_attr *a)
{
    return (a->rank - a->root + a->size) % a->size;
}

void holmes_ring_init(struct holmes_ring *r, const struct holmes_ring_attr *attr)
{
    const struct holmes_ring_attr *a = attr;
    bool empty = a->count == 0 && a->kind < HOLMES_RING_BARRIER;
    size_t bytes, chunks;
    uint64_t messages;

    assert(a->elem_bytes && a->chunk_min && a->chunk_max >= a->chunk_min);
    *r = (struct holmes_ring){.attr = *attr, .steps = ring_steps(attr)};
    r->block = a->kind == HOLMES_RING_ALL_REDUCE ? div_up(a->count, (size_t)a->size) : a->count;
    bytes = r->block * a->elem_bytes;
    chunks = min_size(div_up(bytes, a->chunk_min), HOLMES_RING_GROUP);
    if (chunks < div_up(bytes, a->chunk_max))
        chunks = div_up(bytes, a->chunk_max);
    if (chunks == 0)
        chunks = 1;
    r->group = min_size(chunks, HOLMES_RING_GROUP);
    r->groups = div_up(chunks, r->group);
    r->chunk = div_up(r->block, r->groups * r->group);

    messages = empty ? 0 : r->groups * r->group * r->steps;
    r->nsend = r->nrecv = messages;
    if (a->kind == HOLMES_RING_SEND || (a->kind == HOLMES_RING_BROADCAST && !ring_position(a)))
        r->nrecv = 0;
    if (a->kind == HOLMES_RING_RECV ||
        (a->kind == HOLMES_RING_BROADCAST && ring_position(a) == a->size - 1))
        r->nsend = 0;
}

struct place {
    uint64_t step;
    size_t chunk; /* index in the block */
};

static struct place ring_place(const struct holmes_ring *r, uint64_t i)
{
    uint64_t group = i / (r->steps * r->group);

    return (struct place){
        .step = i / r->group % r->steps,
        .chunk = (size_t)(group * r->group + i % r->group),
    };
}

/* The block that is `back` places before this rank's. */
static size_t ring_block(const struct holmes_ring *r, uint64_t back)
{
    uint64_t n = (uint64_t)r->attr.size;

    return (size_t)(((uint64_t)r->attr.rank + n - back % n) % n);
}

/* Elements of chunk `chunk` of a block that has `len` elements. */
static size_t chunk_range(const struct holmes_ring *r, size_t len, size_t chunk, size_t *start)
{
    *start = min_size(chunk * r->chunk, len);
    return min_size(*start + r->chunk, len) - *start;
}

/* The same, with the place of the block in the array that holds all of them. */
static size_t block_chunk(const struct holmes_ring *r, size_t block, size_t chunk, size_t *start)
{
    size_t total = r->attr.kind == HOLMES_RING_ALL_REDUCE ? r->attr.count
                                                          : r->attr.count * (size_t)r->attr.size;
    size_t first = min_size(block * r->block, total);
    size_t len = chunk_range(r, min_size(r->block, total - first), chunk, start);

    *start += first;
    return len;
}

/* Steps that reduce; the others pass finished blocks on. */
static uint64_t reduce_steps(const struct holmes_ring *r)
{
    return r->attr.kind == HOLMES_RING_ALL_REDUCE || r->attr.kind == HOLMES_RING_REDUCE_SCATTER
               ? (uint64_t)(r->attr.size - 1)
               : 0;
}

void holmes_ring_send_at(const struct holmes_ring *r, uint64_t i, struct holmes_ring_send *out)
{
    struct place at = ring_place(r, i);
    size_t start, len, own, elem = r->attr.elem_bytes;

    *out = (struct holmes_ring_send){.source = HOLMES_RING_FROM_IN};
    switch (r->attr.kind) {
    case HOLMES_RING_ALL_REDUCE:
    case HOLMES_RING_REDUCE_SCATTER:
        len = block_chunk(r, ring_block(r, at.step + 1), at.chunk, &start);
        if (at.step > 0)
            out->source = at.step < reduce_steps(r) ? HOLMES_RING_FROM_SLOT : HOLMES_RING_FROM_OUT;
        break;
    case HOLMES_RING_ALL_GATHER:
    case HOLMES_RING_BARRIER:
        len = block_chunk(r, ring_block(r, at.step), at.chunk, &start);
        if (at.step == 0) {
            out->own_block = true;
            out->out_offset = start * elem;
            len = chunk_range(r, r->block, at.chunk, &own);
            start = own;
        } else {
            out->source = HOLMES_RING_FROM_OUT;
        }
        break;
    default:
        len = chunk_range(r, r->block, at.chunk, &start);
        if (r->attr.kind == HOLMES_RING_BROADCAST)
            out->source = HOLMES_RING_FROM_OUT;
        break;
    }
    out->offset = start * elem;
    out->len = len * elem;
    if (at.step > 0)
        out->needs = i - r->group + 1;
    else if (r->attr.kind == HOLMES_RING_BROADCAST && r->nrecv)
        out->needs = i + 1;
}

void holmes_ring_recv_at(const struct holmes_ring *r, uint64_t i, struct holmes_ring_recv *out)
{
    struct place at = ring_place(r, i);
    uint64_t reducing = reduce_steps(r);
    size_t start, own = 0, len, elem = r->attr.elem_bytes;

    *out = (struct holmes_ring_recv){.sink = HOLMES_RING_TO_OUT};
    switch (r->attr.kind) {
    case HOLMES_RING_ALL_REDUCE:
    case HOLMES_RING_REDUCE_SCATTER:
        len = block_chunk(r, ring_block(r, at.step + 2), at.chunk, &start);
        own = start;
        if (at.step + 1 < reducing)
            out->sink = HOLMES_RING_SUM_TO_SLOT;
        else if (at.step + 1 == reducing)
            out->sink = HOLMES_RING_SUM_TO_OUT;
        else if (at.step == reducing) /* the block that went out of `in` in the first step */
            out->in_place_needs = i - reducing * r->group + 1;
        if (r->attr.kind == HOLMES_RING_REDUCE_SCATTER)
            own = at.chunk * r->chunk;
        break;
    case HOLMES_RING_ALL_GATHER:
    case HOLMES_RING_BARRIER:
        len = block_chunk(r, ring_block(r, at.step + 1), at.chunk, &start);
        own = start;
        break;
    default:
        len = chunk_range(r, r->block, at.chunk, &start);
        own = start;
        break;
    }
    out->in_offset = start * elem;
    out->out_offset = own * elem;
    out->len = len * elem;
}
