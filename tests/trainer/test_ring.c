/* The ring algorithms played by machine, without a network: every rank runs its list of messages
 * under the conditions that the list states, over queues with the window and the slots that the
 * engine has. What is wrong ends in a wrong element or in a state where nobody can move. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ring.h"

enum { RANKS = 8, WINDOW = 8, SLOTS = 16 };

struct player {
    struct holmes_ring ring;
    int *in, *out;               /* elements are sums of ints */
    uint64_t posted, recv, send; /* receives posted, processed; sends arrived */
    int *kept[SLOTS];
    size_t first, nkept, slots_used;
};

/* Where the plan says the bytes of message i of `p` are. */
static const int *source(struct player *p, const struct holmes_ring_send *s)
{
    size_t at = s->offset / sizeof(int);

    if (s->source == HOLMES_RING_FROM_IN)
        return p->in + at;
    if (s->source == HOLMES_RING_FROM_OUT)
        return p->out + at;
    cr_assert_gt(p->nkept, 0);
    return p->kept[p->first];
}

/* A receive that is posted may be written at any time: no send may be left that reads there. */
static void expect_free(struct player *p, const struct holmes_ring_recv *r)
{
    for (uint64_t i = p->send; i < p->ring.nsend; i++) {
        struct holmes_ring_send s;

        holmes_ring_send_at(&p->ring, i, &s);
        cr_assert(s.source != HOLMES_RING_FROM_IN || s.offset >= r->out_offset + r->len ||
                      r->out_offset >= s.offset + s.len,
                  "message %zu would be overwritten", (size_t)i);
    }
}

static bool may_post(struct player *p)
{
    struct holmes_ring_recv r;

    if (p->posted == p->ring.nrecv || p->posted - p->recv == WINDOW)
        return false;
    holmes_ring_recv_at(&p->ring, p->posted, &r);
    if (p->in == p->out && p->send < r.in_place_needs)
        return false;
    if (r.sink != HOLMES_RING_TO_OUT && p->slots_used == SLOTS)
        return false;
    if (p->in == p->out && r.sink == HOLMES_RING_TO_OUT)
        expect_free(p, &r);
    p->slots_used += r.sink != HOLMES_RING_TO_OUT;
    p->posted++;
    return true;
}

static void arrive(struct player *p, const int *data, size_t len)
{
    struct holmes_ring_recv r;
    size_t n;

    holmes_ring_recv_at(&p->ring, p->recv, &r);
    cr_assert_eq(r.len, len, "both ends of message %zu agree on its length", (size_t)p->recv);
    n = len / sizeof(int);
    if (r.sink == HOLMES_RING_TO_OUT) {
        memcpy(p->out + r.out_offset / sizeof(int), data, len);
    } else {
        int *sum = r.sink == HOLMES_RING_SUM_TO_OUT ? p->out + r.out_offset / sizeof(int)
                                                    : malloc(len + 1);

        for (size_t i = 0; i < n; i++)
            sum[i] = p->in[r.in_offset / sizeof(int) + i] + data[i];
        if (r.sink == HOLMES_RING_SUM_TO_SLOT)
            p->kept[(p->first + p->nkept++) % SLOTS] = sum;
        else
            p->slots_used--;
    }
    p->recv++;
}

/* One message from `p` to `next`, if the plan and the receiver allow it. */
static bool deliver(struct player *p, struct player *next)
{
    struct holmes_ring_send s;

    if (p->send == p->ring.nsend || next->posted == next->recv)
        return false;
    holmes_ring_send_at(&p->ring, p->send, &s);
    if (p->recv < s.needs)
        return false;
    if (s.own_block)
        memmove(p->out + s.out_offset / sizeof(int), source(p, &s), s.len);
    arrive(next, source(p, &s), s.len);
    if (s.source == HOLMES_RING_FROM_SLOT) {
        free(p->kept[p->first]);
        p->first = (p->first + 1) % SLOTS;
        p->nkept--;
        p->slots_used--;
    }
    p->send++;
    return true;
}

static uint32_t draw(void)
{
    static uint32_t state = 1;

    state = state * 1664525u + 1013904223u;
    return state >> 16;
}

/* In a random order, ranks running ahead and falling behind, until a whole turn moves nothing. */
static void play(struct player *p, int size)
{
    bool moved, all;

    do {
        all = draw() % 4 == 0;
        moved = false;
        for (int r = 0; r < size; r++) {
            while ((all || draw() % 3) && may_post(&p[r]))
                moved = true;
            while ((all || draw() % 3) && deliver(&p[r], &p[(r + 1) % size]))
                moved = true;
        }
    } while (moved || !all);
    for (int r = 0; r < size; r++) {
        cr_assert_eq(p[r].send, p[r].ring.nsend, "rank %d of %d stuck in a send", r, size);
        cr_assert_eq(p[r].recv, p[r].ring.nrecv, "rank %d of %d stuck in a receive", r, size);
        cr_assert_eq(p[r].nkept, 0);
    }
}

static int value(int rank, size_t i)
{
    return (int)i * 3 + rank * 1000003;
}

static size_t in_elements(const struct holmes_ring_attr *a)
{
    return a->count * (a->kind == HOLMES_RING_REDUCE_SCATTER ? (size_t)a->size : 1);
}

static size_t out_elements(const struct holmes_ring_attr *a)
{
    return a->count * (a->kind == HOLMES_RING_ALL_GATHER ? (size_t)a->size : 1);
}

static void check(const struct player *p)
{
    const struct holmes_ring_attr *a = &p->ring.attr;
    size_t n = a->kind == HOLMES_RING_ALL_GATHER ? a->count * (size_t)a->size : a->count;

    for (size_t i = 0; i < n; i++) {
        size_t first = a->kind == HOLMES_RING_REDUCE_SCATTER ? (size_t)a->rank * a->count : 0;
        int want = 0;

        if (a->kind == HOLMES_RING_ALL_GATHER)
            want = value((int)(i / a->count), i % a->count);
        else if (a->kind == HOLMES_RING_BROADCAST)
            want = value(a->root, i);
        else
            for (int r = 0; r < a->size; r++)
                want += value(r, first + i);
        cr_assert_eq(p->out[i], want, "kind %d, rank %d of %d, element %zu of %zu", a->kind,
                     a->rank, a->size, i, a->count);
    }
}

static void run(enum holmes_ring_kind kind, int size, size_t count, int root, bool in_place)
{
    struct player p[RANKS] = {0};

    for (int r = 0; r < size; r++) {
        struct holmes_ring_attr a = {kind, r, size, root, count, sizeof(int), 16, 64};
        size_t n = in_elements(&a);

        holmes_ring_init(&p[r].ring, &a);
        p[r].in = malloc((n + 1) * sizeof(int));
        for (size_t i = 0; i < n; i++)
            p[r].in[i] = value(r, i);
        p[r].out = in_place ? p[r].in : malloc((out_elements(&a) + 1) * sizeof(int));
        if (kind == HOLMES_RING_BROADCAST && r == root)
            memcpy(p[r].out, p[r].in, n * sizeof(int));
    }
    play(p, size);
    for (int r = 0; r < size; r++) {
        check(&p[r]);
        if (!in_place)
            free(p[r].out);
        free(p[r].in);
    }
}

/* Chunks of 4 to 16 elements: the counts make none, some and many groups, even and uneven. */
static const size_t counts[] = {0,  1,  2,   3,   4,   5,   7,   8,   15,  16,   17,
                                31, 33, 100, 127, 128, 129, 511, 512, 513, 1000, 2049};
enum { NCOUNTS = sizeof counts / sizeof *counts };

Test(ring, all_reduce_sums_whatever_the_size_and_number_of_ranks)
{
    for (int size = 2; size <= RANKS; size++) {
        for (int n = 0; n < NCOUNTS; n++) {
            run(HOLMES_RING_ALL_REDUCE, size, counts[n], 0, false);
            run(HOLMES_RING_ALL_REDUCE, size, counts[n], 0, true);
        }
    }
}

Test(ring, reduce_scatter_leaves_each_rank_its_block)
{
    for (int size = 2; size <= RANKS; size++) {
        for (int n = 0; n < NCOUNTS; n++)
            run(HOLMES_RING_REDUCE_SCATTER, size, counts[n], 0, false);
    }
}

Test(ring, all_gather_leaves_every_rank_all_blocks)
{
    for (int size = 2; size <= RANKS; size++) {
        for (int n = 0; n < NCOUNTS; n++)
            run(HOLMES_RING_ALL_GATHER, size, counts[n], 0, false);
    }
}

Test(ring, broadcast_comes_from_any_root)
{
    for (int size = 2; size <= RANKS; size++) {
        for (int n = 0; n < NCOUNTS; n++)
            run(HOLMES_RING_BROADCAST, size, counts[n], n % size, false);
    }
}

Test(ring, no_chunk_is_above_its_limit_and_nothing_has_no_messages)
{
    for (int n = 0; n < NCOUNTS; n++) {
        struct holmes_ring_attr a = {HOLMES_RING_ALL_REDUCE, 1, 3, 0, counts[n], 4, 16, 64};
        struct holmes_ring r;
        struct holmes_ring_send s;

        holmes_ring_init(&r, &a);
        if (counts[n] == 0)
            cr_assert_eq(r.nsend + r.nrecv, 0);
        for (uint64_t i = 0; i < r.nsend; i++) {
            holmes_ring_send_at(&r, i, &s);
            cr_assert_leq(s.len, 64);
        }
    }
}
