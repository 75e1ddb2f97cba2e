/* Number formats of arrays in memory and on wires. */
#ifndef HOLMES_DTYPE_H
#define HOLMES_DTYPE_H

#include <stddef.h>

enum holmes_dtype { HOLMES_FLOAT32, HOLMES_BFLOAT16 };

static inline size_t holmes_dtype_size(enum holmes_dtype t)
{
    return t == HOLMES_FLOAT32 ? 4 : 2;
}

#endif
