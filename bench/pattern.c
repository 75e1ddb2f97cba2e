/* Buffer contents. bfloat16 is exact up to 256, so its values are 0 to 3 (64 ranks sum to 192);
 * float32 takes 0 to 4095. */
#include "pattern.h"

#include <string.h>

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static uint32_t value_at(size_t i, uint32_t seed, uint32_t mask)
{
    return mix((uint32_t)i * 0x9e3779b1u ^ (uint32_t)(i >> 32) ^ seed) & mask;
}

static uint32_t seed_of(int rank, uint32_t salt)
{
    return mix((uint32_t)rank + 1) ^ mix(salt ^ 0x5bd1e995u);
}

static uint32_t mask_of(enum holmes_dtype t)
{
    return t == HOLMES_FLOAT32 ? 0xfff : 3;
}

/* Whole numbers that bfloat16 holds exactly: the upper half of a float32. */
static uint16_t bfloat16_of(uint32_t value)
{
    float f = (float)value;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

void holmes_pattern_fill(void *buf, size_t first, size_t count, enum holmes_dtype t, int rank,
                         uint32_t salt)
{
    uint32_t seed = seed_of(rank, salt), mask = mask_of(t);
    float *f = buf;
    uint16_t *h = buf;

    for (size_t i = 0; i < count; i++) {
        uint32_t v = value_at(first + i, seed, mask);

        if (t == HOLMES_FLOAT32)
            f[i] = (float)v;
        else
            h[i] = bfloat16_of(v);
    }
}

static uint64_t check_value(const void *buf, size_t i, enum holmes_dtype t, uint32_t want)
{
    if (t == HOLMES_FLOAT32)
        return ((const float *)buf)[i] != (float)want;
    return ((const uint16_t *)buf)[i] != bfloat16_of(want);
}

uint64_t holmes_pattern_check(const void *buf, size_t first, size_t count, enum holmes_dtype t,
                              int rank, uint32_t salt)
{
    uint32_t seed = seed_of(rank, salt), mask = mask_of(t);
    uint64_t wrong = 0;

    for (size_t i = 0; i < count; i++)
        wrong += check_value(buf, i, t, value_at(first + i, seed, mask));
    return wrong;
}

uint64_t holmes_pattern_check_sum(const void *buf, size_t first, size_t count, enum holmes_dtype t,
                                  int nranks, uint32_t salt)
{
    uint32_t seeds[64], mask = mask_of(t);
    uint64_t wrong = 0;

    for (int r = 0; r < nranks; r++)
        seeds[r] = seed_of(r, salt);
    for (size_t i = 0; i < count; i++) {
        uint32_t sum = 0;

        for (int r = 0; r < nranks; r++)
            sum += value_at(first + i, seeds[r], mask);
        wrong += check_value(buf, i, t, sum);
    }
    return wrong;
}

void holmes_pattern_poison(void *buf, size_t bytes)
{
    memset(buf, 0xff, bytes);
}
