/* Sums, eight elements at a time in the compiler's portable vectors, so that they vectorise at any
 * optimisation level and without alignment. */
#include "sum.h"

#include <string.h>

enum { WIDTH = 8 };
typedef float v_f32 __attribute__((vector_size(4 * WIDTH)));
typedef int32_t v_i32 __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t v_u32 __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t v_u16 __attribute__((vector_size(2 * WIDTH)));

static void sum_f32(float *dst, const float *a, const float *b, size_t n)
{
    size_t i = 0;

    for (; i + WIDTH <= n; i += WIDTH) {
        v_f32 x, y;

        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        x += y;
        memcpy(dst + i, &x, sizeof x);
    }
    for (; i < n; i++)
        dst[i] = a[i] + b[i];
}

static void sum_bf16_wide(uint16_t *dst, const uint16_t *a, const uint16_t *b)
{
    v_u16 x, y;
    v_u32 bits, rounded;
    v_i32 nan;
    v_f32 sum;

    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    sum = (v_f32)(__builtin_convertvector(x, v_u32) << 16) +
          (v_f32)(__builtin_convertvector(y, v_u32) << 16);
    bits = (v_u32)sum;
    nan = sum != sum;
    rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    /* Rounding could carry a NaN into infinity; a sum's NaN is quiet and so survives being cut. */
    bits = ((bits >> 16) & (v_u32)nan) | (rounded & ~(v_u32)nan);
    x = __builtin_convertvector(bits, v_u16);
    memcpy(dst, &x, sizeof x);
}

static void sum_bf16(uint16_t *dst, const uint16_t *a, const uint16_t *b, size_t n)
{
    uint16_t tail[3][WIDTH] = {0};
    size_t i = 0, left;

    for (; i + WIDTH <= n; i += WIDTH)
        sum_bf16_wide(dst + i, a + i, b + i);
    left = n - i;
    if (left == 0)
        return;
    memcpy(tail[0], a + i, left * sizeof *a);
    memcpy(tail[1], b + i, left * sizeof *b);
    sum_bf16_wide(tail[2], tail[0], tail[1]);
    memcpy(dst + i, tail[2], left * sizeof *dst);
}

void holmes_sum(enum holmes_dtype t, void *dst, const void *a, const void *b, size_t n)
{
    if (t == HOLMES_FLOAT32)
        sum_f32(dst, a, b, n);
    else
        sum_bf16(dst, a, b, n);
}
