/* Sums against a scalar reference that rounds by another way: through double, comparing neighbours.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sum.h"

static float widen(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The bfloat16 nearest to f; of two equally near, the one with an even last bit. */
static uint16_t nearest(float f)
{
    uint32_t bits;
    uint16_t low, high;
    double below, above;

    memcpy(&bits, &f, sizeof bits);
    low = (uint16_t)(bits >> 16);
    if (isinf(f) || !(bits & 0xffff))
        return low;
    high = (uint16_t)(low + 1);
    below = fabs((double)f - (double)widen(low));
    /* The step to infinity counts as if the exponent went on. */
    above = isinf(widen(high)) ? fabs(ldexp(1, 128) - fabs((double)f))
                               : fabs((double)widen(high) - (double)f);
    if (below != above)
        return below < above ? low : high;
    return low & 1 ? high : low;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

Test(sum, bfloat16_rounds_to_nearest_even)
{
    enum { N = 200003 };
    uint16_t *a = malloc(N * sizeof *a), *b = malloc(N * sizeof *b), *sum = malloc(N * sizeof *sum);
    uint32_t state = 1;

    for (size_t i = 0; i < N; i++) {
        a[i] = (uint16_t)next_random(&state);
        /* Half of them of like exponent, so that ties and cancellation come up. */
        b[i] = i % 2 ? (uint16_t)next_random(&state)
                     : (uint16_t)((a[i] & 0xff80) ^ (next_random(&state) & 0x80ff));
    }
    holmes_sum(HOLMES_BFLOAT16, sum, a, b, N);
    for (size_t i = 0; i < N; i++) {
        float exact = widen(a[i]) + widen(b[i]);

        if (isnan(exact))
            cr_assert(isnan(widen(sum[i])), "%04x + %04x gave %04x", a[i], b[i], sum[i]);
        else
            cr_assert_eq(sum[i], nearest(exact), "%04x + %04x gave %04x, not %04x", a[i], b[i],
                         sum[i], nearest(exact));
    }
    free(sum);
    free(b);
    free(a);
}

Test(sum, every_length_and_alignment_and_nothing_beyond)
{
    float a[40], b[40], out[40];

    for (size_t n = 0; n <= 35; n++) {
        for (size_t at = 0; at < 3; at++) {
            for (int i = 0; i < 40; i++) {
                a[i] = (float)i;
                b[i] = (float)(100 * i);
                out[i] = -1;
            }
            holmes_sum(HOLMES_FLOAT32, out + at, a + at, b + at, n);
            for (size_t i = 0; i < 40; i++)
                cr_assert_eq(out[i], i >= at && i < at + n ? 101.0f * (float)i : -1.0f);
        }
    }
}

Test(sum, into_either_operand)
{
    uint16_t x[11], y[11];

    for (int i = 0; i < 11; i++)
        x[i] = y[i] = 0x3f80; /* 1 */
    holmes_sum(HOLMES_BFLOAT16, x, x, y, 11);
    holmes_sum(HOLMES_BFLOAT16, x, y, x, 11);
    for (int i = 0; i < 11; i++)
        cr_assert_eq(x[i], 0x4040); /* 3 */
}
