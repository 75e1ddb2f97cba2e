/* Moving bytes over a wire, both ends in one process. What is said about memory is
 * checked only after the immediate that follows the bytes, as the protocol does. Each case runs
 * over the wire itself and through the fault driver with an empty plan. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "fault_driver.h"
#include "wire_pair.h"

#define OVER_BOTH(claim)                                                                           \
    static void claim(const struct wire_ops *wire);                                                \
    Test(wire_data, claim)                                                                         \
    {                                                                                              \
        claim(test_nics()->ops);                                                                   \
    }                                                                                              \
    Test(wire_fault, claim)                                                                        \
    {                                                                                              \
        struct fault_plan plan = {0};                                                              \
                                                                                                   \
        claim(fault_driver(test_nics()->ops, &plan));                                              \
        cr_assert_gt(plan.polls, 0, "the fault driver was not in between");                        \
    }                                                                                              \
    static void claim(const struct wire_ops *wire)

static void fill(uint8_t *p, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(seed * 29 + i * 131 + (i >> 8) * 17 + (i >> 16));
}

static void expect_imm(struct wire_pair *p, uint32_t imm)
{
    struct wire_event e;

    cr_assert(end_wait_event(&p->to, &p->from, &e), "immediate %u never came", imm);
    cr_assert_eq(e.type, WIRE_IMM, "event %d, error %d", e.type, e.error);
    cr_assert_eq(e.imm, imm, "%u instead of %u", e.imm, imm);
}

static void expect_done(struct wire_pair *p, void *context)
{
    struct wire_event e;

    cr_assert(end_wait_event(&p->from, &p->to, &e), "a write never completed");
    cr_assert_eq(e.type, WIRE_WRITE_DONE, "event %d, error %d", e.type, e.error);
    cr_assert_eq(e.context, context);
}

OVER_BOTH(limits_carry_the_protocol)
{
    struct wire_limits limits;
    struct wire_pair p;

    pair_open(&p, wire, 0);
    wire->nic_limits(p.from.wn, &limits);
    cr_assert_geq(limits.inline_max, 64u);
    cr_assert_geq(limits.max_write, (size_t)1 << 20);
    end_drive(&p.from);
    pair_close(&p);
}

OVER_BOTH(immediate_without_bytes_arrives)
{
    struct wire_pair p;
    int context;

    pair_open(&p, wire, 1);
    end_post(&p.from, &p.to, 0,
             &(struct wire_write){.imm = 0xdeadbeef, .flags = WIRE_WITH_IMM, .context = &context});
    expect_imm(&p, 0xdeadbeef);
    expect_done(&p, &context);
    end_post(&p.from, &p.to, 0,
             &(struct wire_write){.imm = 7, .flags = WIRE_WITH_IMM | WIRE_INLINE});
    expect_imm(&p, 7);
    pair_close(&p);
}

static void move_bytes(struct wire_pair *p, size_t len, unsigned flags)
{
    const struct wire_ops *wire = p->from.ops;
    uint8_t *src = malloc(len), *dst = calloc(1, len + 2);
    struct wire_mr from, to;

    cr_assert(src && dst);
    fill(src, len, (unsigned)len);
    cr_assert_eq(wire->mr_reg(p->from.wn, src, len, &from), 0);
    cr_assert_eq(wire->mr_reg(p->to.wn, dst, len + 2, &to), 0);
    end_post(&p->from, &p->to, 0,
             &(struct wire_write){.buf = src,
                                  .len = len,
                                  .mr = &from,
                                  .remote_addr = to.base + 1,
                                  .remote_key = to.key,
                                  .imm = (uint32_t)len,
                                  .flags = WIRE_WITH_IMM | flags,
                                  .context = src});
    if (flags & WIRE_INLINE)
        memset(src, 0xa5, len); /* ours again: the bytes were copied */
    expect_imm(p, (uint32_t)len);
    cr_assert(dst[0] == 0 && dst[len + 1] == 0, "%zu B: bytes outside", len);
    fill(src, len, (unsigned)len);
    cr_assert_eq(memcmp(dst + 1, src, len), 0, "%zu B differ", len);
    if (!(flags & WIRE_INLINE))
        expect_done(p, src);
    wire->mr_dereg(p->from.wn, &from);
    wire->mr_dereg(p->to.wn, &to);
    free(src);
    free(dst);
}

OVER_BOTH(writes_of_every_size_land_intact)
{
    static const size_t sizes[] = {1,    2,    63,   64,    65,      127,     128,     129,
                                   4096, 8999, 9000, 65536, 1048577, 8388608, 67108864};
    struct wire_limits limits;
    struct wire_pair p;

    pair_open(&p, wire, 1);
    wire->nic_limits(p.from.wn, &limits);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= limits.max_write; i++)
        move_bytes(&p, sizes[i], 0);
    for (size_t len = 1; len <= limits.inline_max; len++)
        move_bytes(&p, len, WIRE_INLINE);
    pair_close(&p);
}

OVER_BOTH(refuses_writes_that_no_wire_can_carry)
{
    struct wire_limits limits;
    struct wire_pair p;
    uint8_t bytes[4096] = {0};

    pair_open(&p, wire, 1);
    wire->nic_limits(p.from.wn, &limits);
    cr_assert_lt(limits.inline_max, sizeof bytes);
    cr_assert_eq(wire->lane_post(p.from.lanes[0], &(struct wire_write){.flags = WIRE_NO_IMM}),
                 -EINVAL);
    cr_assert_eq(wire->lane_post(p.from.lanes[0],
                                 &(struct wire_write){.buf = bytes,
                                                      .len = limits.inline_max + 1,
                                                      .flags = WIRE_INLINE | WIRE_WITH_IMM}),
                 -EINVAL);
    end_drive(&p.from);
    pair_close(&p);
}

/* ---- order -------------------------------------------------------------------------------- */

#define ORDER_WRITES 10000
#define ORDER_SLOTS  64u
#define ORDER_SLOT   (16u << 10) /* bytes */
#define ORDER_AHEAD  32u         /* writes posted beyond the last one that was checked */

struct order {
    struct wire_pair *p;
    uint8_t *src, *dst;
    struct wire_mr from, to;
    size_t len[ORDER_SLOTS];
    unsigned posted, checked;
    unsigned random;
};

static unsigned order_random(struct order *o)
{
    o->random = o->random * 1664525u + 1013904223u;
    return o->random >> 8;
}

/* Inline, bulk or no bytes at all; with an immediate (its number) or without. */
static void order_post(struct order *o)
{
    unsigned i = o->posted++, slot = i % ORDER_SLOTS, kind = order_random(o) % 8;
    uint8_t *src = o->src + slot * ORDER_SLOT;
    struct wire_write w = {.buf = src,
                           .mr = &o->from,
                           .remote_addr = o->to.base + slot * ORDER_SLOT,
                           .remote_key = o->to.key,
                           .imm = i,
                           .context = src};

    w.len = kind == 0 ? 0 : kind < 5 ? 1 + order_random(o) % 64 : 1 + order_random(o) % ORDER_SLOT;
    if (kind < 5)
        w.flags |= WIRE_INLINE;
    if (w.len == 0 || order_random(o) % 4 == 0 || i % ORDER_AHEAD == ORDER_AHEAD - 1 ||
        o->posted == ORDER_WRITES)
        w.flags |= WIRE_WITH_IMM;
    o->len[slot] = w.len;
    fill(src, w.len, i);
    end_post(&o->p->from, &o->p->to, 0, &w);
}

/* Immediate `imm` is here: so must be all writes up to it. */
static void order_check(struct order *o, uint32_t imm)
{
    static uint8_t expected[ORDER_SLOT];

    cr_assert(imm >= o->checked && imm < o->posted, "immediate %u out of order", imm);
    for (; o->checked <= imm; o->checked++) {
        unsigned slot = o->checked % ORDER_SLOTS;

        fill(expected, o->len[slot], o->checked);
        cr_assert_eq(memcmp(o->dst + slot * ORDER_SLOT, expected, o->len[slot]), 0,
                     "write %u of %zu B not there with immediate %u", o->checked, o->len[slot],
                     imm);
    }
}

OVER_BOTH(bytes_and_immediates_arrive_in_the_order_of_posting)
{
    struct wire_pair p;
    struct order o = {.p = &p, .random = 1};
    struct wire_event e;

    pair_open(&p, wire, 1);
    o.src = calloc(ORDER_SLOTS, ORDER_SLOT);
    o.dst = calloc(ORDER_SLOTS, ORDER_SLOT);
    cr_assert(o.src && o.dst);
    cr_assert_eq(wire->mr_reg(p.from.wn, o.src, (size_t)ORDER_SLOTS * ORDER_SLOT, &o.from), 0);
    cr_assert_eq(wire->mr_reg(p.to.wn, o.dst, (size_t)ORDER_SLOTS * ORDER_SLOT, &o.to), 0);
    while (o.checked < ORDER_WRITES) {
        while (o.posted < ORDER_WRITES && o.posted < o.checked + ORDER_AHEAD)
            order_post(&o);
        cr_assert(end_wait_event(&p.to, &p.from, &e), "stuck after write %u", o.checked);
        cr_assert_eq(e.type, WIRE_IMM, "event %d, error %d", e.type, e.error);
        order_check(&o, e.imm);
        p.from.first += p.from.count; /* the local completions say nothing here */
        p.from.count = 0;
    }
    wire->mr_dereg(p.from.wn, &o.from);
    wire->mr_dereg(p.to.wn, &o.to);
    pair_close(&p);
    free(o.src);
    free(o.dst);
}

OVER_BOTH(several_lanes_share_a_completion_queue)
{
    struct wire_pair p;
    struct wire_event e;
    unsigned imms = 0, dones = 0;
    int contexts[PAIR_LANES_MAX];

    pair_open(&p, wire, PAIR_LANES_MAX);
    for (int i = 0; i < PAIR_LANES_MAX; i++)
        end_post(
            &p.from, &p.to, i,
            &(struct wire_write){.imm = 1u << i, .flags = WIRE_WITH_IMM, .context = &contexts[i]});
    for (int i = 0; i < PAIR_LANES_MAX; i++) {
        cr_assert(end_wait_event(&p.to, &p.from, &e));
        cr_assert_eq(e.type, WIRE_IMM);
        imms |= e.imm;
        cr_assert(end_wait_event(&p.from, &p.to, &e));
        cr_assert_eq(e.type, WIRE_WRITE_DONE);
        dones |= 1u << ((int *)e.context - contexts);
    }
    cr_assert_eq(imms, (1u << PAIR_LANES_MAX) - 1);
    cr_assert_eq(dones, (1u << PAIR_LANES_MAX) - 1);
    pair_close(&p);
}

/* ---- memory ------------------------------------------------------------------------------- */

OVER_BOTH(registration_of_nothing_is_refused)
{
    struct wire_pair p;
    struct wire_mr mr;
    char byte;

    pair_open(&p, wire, 0);
    cr_assert_eq(wire->mr_reg(p.from.wn, &byte, 0, &mr), -EINVAL);
    end_drive(&p.from);
    pair_close(&p);
}

/* The peer's mistake or malice must not reach memory beside the registered range. */
static void expect_write_refused(const struct wire_ops *wire, uint64_t key_change, size_t offset)
{
    uint8_t *dst = calloc(1, 300);
    struct wire_mr to, from;
    struct wire_pair p;
    uint8_t src[100];
    int rc;

    cr_assert_not_null(dst);
    memset(src, 0xee, sizeof src);
    pair_open(&p, wire, 1);
    cr_assert_eq(wire->mr_reg(p.from.wn, src, sizeof src, &from), 0);
    cr_assert_eq(wire->mr_reg(p.to.wn, dst + 100, 100, &to), 0);
    end_post(&p.from, &p.to, 0,
             &(struct wire_write){.buf = src,
                                  .len = sizeof src,
                                  .mr = &from,
                                  .remote_addr = to.base + offset,
                                  .remote_key = to.key ^ key_change,
                                  .flags = WIRE_WITH_IMM});
    rc = lane_wait_end(&p.to, &p.from, p.to.lanes[0], PAIR_TIMEOUT_MS);
    cr_assert(rc == -ECONNRESET || rc == -EPROTO, "%s", strerror(-rc));
    for (int i = 0; i < 300; i++)
        cr_assert_eq(dst[i], 0, "byte %d was written", i);
    cr_assert_eq(p.to.count, 0u, "an immediate came");
    wire->mr_dereg(p.from.wn, &from);
    wire->mr_dereg(p.to.wn, &to);
    pair_close(&p);
    free(dst);
}

OVER_BOTH(write_with_an_unknown_key_ends_the_lane_and_lands_nowhere)
{
    expect_write_refused(wire, 1, 0);
}

OVER_BOTH(write_beyond_the_range_ends_the_lane_and_lands_nowhere)
{
    expect_write_refused(wire, 0, 1);
}

struct registrar {
    const struct wire_ops *wire;
    struct wire_nic *wn;
    atomic_bool stop;
    int rounds, failed;
};

static void *registrar_main(void *arg)
{
    struct registrar *r = arg;
    static uint8_t memory[64][64];
    struct wire_mr mrs[64];

    for (int i = 0; !atomic_load(&r->stop); i = (i + 1) % 64) {
        if (r->rounds >= 64)
            r->wire->mr_dereg(r->wn, &mrs[i]);
        r->failed += r->wire->mr_reg(r->wn, memory[i], sizeof memory[i], &mrs[i]) != 0;
        r->rounds++;
    }
    for (int i = 0; i < 64 && i < r->rounds; i++)
        r->wire->mr_dereg(r->wn, &mrs[i]);
    return NULL;
}

/* NCCL registers on one thread while another moves bytes. */
OVER_BOTH(memory_is_registered_by_another_thread_during_transfers)
{
    struct registrar r = {.wire = wire};
    struct wire_pair p;
    struct wire_mr to;
    pthread_t thread;
    uint8_t src[8] = {1, 2, 3, 4, 5, 6, 7, 8}, dst[8];

    pair_open(&p, wire, 1);
    r.wn = p.to.wn;
    cr_assert_eq(wire->mr_reg(p.to.wn, dst, sizeof dst, &to), 0);
    cr_assert_eq(pthread_create(&thread, NULL, registrar_main, &r), 0);
    for (unsigned i = 0; i < 2000; i++) {
        struct wire_write w = {.buf = src,
                               .len = sizeof src,
                               .remote_addr = to.base,
                               .remote_key = to.key,
                               .imm = i,
                               .flags = WIRE_INLINE};

        for (int k = 0; k < 31; k++)
            end_post(&p.from, &p.to, 0, &w);
        w.flags |= WIRE_WITH_IMM;
        end_post(&p.from, &p.to, 0, &w);
        expect_imm(&p, i);
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    cr_assert_eq(r.failed, 0);
    cr_assert_gt(r.rounds, 64, "the other thread got no turn");
    wire->mr_dereg(p.to.wn, &to);
    pair_close(&p);
}
