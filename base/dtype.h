/* Number formats of arrays in memory and on wires. */
#ifndef HOLMES_DTYPE_H
#define HOLMES_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum holmes_dtype { HOLMES_FLOAT32, HOLMES_BFLOAT16 };

static inline size_t holmes_dtype_size(enum holmes_dtype t)
{
    return t == HOLMES_FLOAT32 ? 4 : 2;
}

/* The number that these bits of a bfloat16 are. */
static inline float holmes_bf16_value(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
