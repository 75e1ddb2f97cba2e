/* The ofi wire, both ends in one process over 127.0.0.1. What is said about bytes is checked only
 * after the immediate that follows them, as the protocol does. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "wire_pair.h"

static const struct wire_ops *const wire = &holmes_wire_ofi;

struct dispositions {
    struct sigaction action[NSIG];
};

static void read_dispositions(struct dispositions *d)
{
    memset(d, 0, sizeof *d);
    for (int sig = 1; sig < NSIG; sig++)
        sigaction(sig, NULL, &d->action[sig]);
}

static void expect_dispositions(const struct dispositions *before, const char *when)
{
    struct dispositions now;

    read_dispositions(&now);
    for (int sig = 1; sig < NSIG; sig++) {
        /* libc marks what it has ever set; the kernel never looks at the mark of a default. */
        const int restorer = 0x04000000;

        cr_assert(now.action[sig].sa_handler == before->action[sig].sa_handler &&
                      (now.action[sig].sa_flags | restorer) ==
                          (before->action[sig].sa_flags | restorer),
                  "signal %d changed %s", sig, when);
    }
}

Test(wire_ofi, loading_and_use_change_no_signal_disposition)
{
    struct dispositions before;
    struct wire_pair p;

    read_dispositions(&before);
    pair_open(&p, wire, 1);
    expect_dispositions(&before, "by opening");
    pair_close(&p);
    expect_dispositions(&before, "by closing");
}

static uint8_t *pattern(size_t len, unsigned seed)
{
    uint8_t *p = malloc(len ? len : 1);

    cr_assert_not_null(p);
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(seed + i * 131 + (i >> 8) * 17 + (i >> 16));
    return p;
}

static void expect_imm(struct wire_pair *p, uint32_t imm)
{
    struct wire_event e;

    cr_assert(end_wait_event(&p->to, &p->from, &e), "immediate %u never came", imm);
    cr_assert_eq(e.type, WIRE_IMM, "event %d, error %d", e.type, e.error);
    cr_assert_eq(e.imm, imm);
}

static void expect_done(struct wire_pair *p, void *context)
{
    struct wire_event e;

    cr_assert(end_wait_event(&p->from, &p->to, &e), "a write never completed");
    cr_assert_eq(e.type, WIRE_WRITE_DONE, "event %d, error %d", e.type, e.error);
    cr_assert_eq(e.context, context);
}

Test(wire_ofi, limits_carry_the_protocol)
{
    struct wire_limits limits;
    struct wire_end e;

    end_open(&e, wire);
    wire->nic_limits(e.wn, &limits);
    cr_assert_geq(limits.inline_max, 64u);
    cr_assert_geq(limits.max_write, (size_t)64 << 20);
    end_close(&e);
}

Test(wire_ofi, immediate_without_bytes_arrives)
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
    uint8_t *src = pattern(len, (unsigned)len), *dst = calloc(1, len + 2);
    struct wire_mr from, to;

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
    expect_imm(p, (uint32_t)len);
    cr_assert(dst[0] == 0 && dst[len + 1] == 0, "%zu B: bytes outside", len);
    cr_assert_eq(memcmp(dst + 1, src, len), 0, "%zu B differ", len);
    if (!(flags & WIRE_INLINE))
        expect_done(p, src);
    wire->mr_dereg(p->from.wn, &from);
    wire->mr_dereg(p->to.wn, &to);
    free(src);
    free(dst);
}

Test(wire_ofi, writes_of_every_size_land_intact)
{
    static const size_t sizes[] = {1,    2,    63,   64,   65,    127,     128,     129,
                                   4096, 8999, 9000, 9001, 65536, 1048577, 8388608, 67108864};
    struct wire_pair p;

    pair_open(&p, wire, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        move_bytes(&p, sizes[i], 0);
    for (size_t len = 1; len <= 64; len++)
        move_bytes(&p, len, WIRE_INLINE);
    pair_close(&p);
}
