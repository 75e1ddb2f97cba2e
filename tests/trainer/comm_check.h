/* Values that ranks contribute, and what their sums have to be: small integers, exact in bfloat16
 * too, whatever the order of summation. */
#ifndef HOLMES_TEST_COMM_CHECK_H
#define HOLMES_TEST_COMM_CHECK_H

#include <stdlib.h>
#include <string.h>

#include "ranks.h"

static inline float check_value(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 5) % 13) - 6.0f;
}

static inline float check_sum(int size, size_t i)
{
    float sum = 0;

    for (int r = 0; r < size; r++)
        sum += check_value(r, i);
    return sum;
}

static inline float check_load(enum holmes_dtype t, const void *buf, size_t i)
{
    uint32_t bits;
    float f;

    if (t == HOLMES_FLOAT32)
        return ((const float *)buf)[i];
    bits = (uint32_t)((const uint16_t *)buf)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline void check_store(enum holmes_dtype t, void *buf, size_t i, float f)
{
    uint32_t bits;

    if (t == HOLMES_FLOAT32) {
        ((float *)buf)[i] = f;
        return;
    }
    memcpy(&bits, &f, sizeof bits);
    ((uint16_t *)buf)[i] = (uint16_t)(bits >> 16);
}

/* Memory that holds no right value. */
static inline void *check_buffer(size_t bytes)
{
    void *b = malloc(bytes + 1);

    EXPECT(b);
    memset(b, 0x5a, bytes + 1);
    return b;
}

/* Values of `rank` from element `first` on. */
static inline void *check_values(int rank, size_t first, size_t count, enum holmes_dtype t)
{
    void *b = check_buffer(count * holmes_dtype_size(t));

    for (size_t i = 0; i < count; i++)
        check_store(t, b, i, check_value(rank, first + i));
    return b;
}

#endif
