/* Collectives and point to point over the plugin of this build, every element checked against what
 * arithmetic says. Values are small integers, so that sums are exact in any order. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

/* Element i of rank r's contribution: exact in bfloat16 too, also summed over eight ranks. */
static float value(int r, size_t i)
{
    return (float)((i * 7 + (size_t)r * 5) % 13) - 6.0f;
}

static float value_sum(int size, size_t i)
{
    float sum = 0;

    for (int r = 0; r < size; r++)
        sum += value(r, i);
    return sum;
}

static float load(enum holmes_dtype t, const void *buf, size_t i)
{
    uint32_t bits;
    float f;

    if (t == HOLMES_FLOAT32)
        return ((const float *)buf)[i];
    bits = (uint32_t)((const uint16_t *)buf)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void store(enum holmes_dtype t, void *buf, size_t i, float f)
{
    uint32_t bits;

    if (t == HOLMES_FLOAT32) {
        ((float *)buf)[i] = f;
        return;
    }
    memcpy(&bits, &f, sizeof bits);
    ((uint16_t *)buf)[i] = (uint16_t)(bits >> 16);
}

static void *buffer(size_t count, enum holmes_dtype t)
{
    void *b = malloc(count * holmes_dtype_size(t) + 1);

    EXPECT(b);
    memset(b, 0x5a, count * holmes_dtype_size(t) + 1);
    return b;
}

/* Sizes around nothing, one element, chunk and group boundaries, and some without a pattern. */
static const size_t counts[] = {0,     1,      2,      3,      5,      63,     64,
                                65,    1000,   4096,   8191,   8193,   16384,  16385,
                                32768, 100003, 131072, 131073, 262147, 524288, 1000003};
enum { NCOUNTS = sizeof counts / sizeof *counts };

static void check_all_reduce(struct holmes_comm *c, size_t count, enum holmes_dtype t,
                             bool in_place)
{
    void *in = buffer(count, t), *out = in_place ? in : buffer(count, t);
    struct holmes_op *op;

    for (size_t i = 0; i < count; i++)
        store(t, in, i, value(c->rank, i));
    EXPECT(c->ops->all_reduce(c, in, out, count, t, &op) == 0);
    holmes_test_wait(c, op, 0);
    for (size_t i = 0; i < count; i++)
        EXPECT(load(t, out, i) == value_sum(c->size, i), "rank %d: element %zu of %zu is %g not %g",
               c->rank, i, count, load(t, out, i), value_sum(c->size, i));
    for (size_t i = 0; i < count && !in_place; i++)
        EXPECT(load(t, in, i) == value(c->rank, i), "in was written");
    if (!in_place)
        free(out);
    free(in);
}

static void all_reduce_body(struct rank *r)
{
    for (int n = 0; n < NCOUNTS; n++) {
        check_all_reduce(r->all, counts[n], HOLMES_FLOAT32, false);
        check_all_reduce(r->all, counts[n], HOLMES_FLOAT32, true);
        check_all_reduce(r->all, counts[n], HOLMES_BFLOAT16, n % 2);
    }
}

static void run(int size, void (*body)(struct rank *r))
{
    struct ranks ranks = {.size = size, .plugin = holmes_test_plugin(), .body = body};

    cr_assert(holmes_test_ranks_run(&ranks, 240));
}

Test(comm_net, all_reduce_sums_every_element_on_2_ranks)
{
    run(2, all_reduce_body);
}

Test(comm_net, all_reduce_sums_every_element_on_3_ranks)
{
    run(3, all_reduce_body);
}

Test(comm_net, all_reduce_sums_every_element_on_4_ranks)
{
    run(4, all_reduce_body);
}
