/* The arithmetic of each benchmark. Factors are nccl-tests' (its doc/PERFORMANCE.md derives them),
 * so that figures can be set beside each other. */
#include "collective.h"

#include <errno.h>
#include <string.h>

#define WINDOW_BYTES (UINT64_C(64) << 20)

static const char *const names[] = {
    [HOLMES_ALL_REDUCE] = "all_reduce",
    [HOLMES_ALL_GATHER] = "all_gather",
    [HOLMES_REDUCE_SCATTER] = "reduce_scatter",
    [HOLMES_SENDRECV] = "sendrecv",
};

const char *holmes_collective_name(enum holmes_collective c)
{
    return names[c];
}

int holmes_collective_parse(const char *name, enum holmes_collective *out)
{
    for (int i = 0; i < HOLMES_COLLECTIVE_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum holmes_collective)i;
            return 0;
        }
    }
    return -EINVAL;
}

double holmes_collective_factor(enum holmes_collective c, int nranks)
{
    double n = nranks;

    switch (c) {
    case HOLMES_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case HOLMES_ALL_GATHER:
    case HOLMES_REDUCE_SCATTER:
        return (n - 1) / n;
    default:
        return 1;
    }
}

bool holmes_shape_of(enum holmes_collective c, uint64_t size_bytes, int nranks,
                     enum holmes_dtype type, struct holmes_shape *out)
{
    size_t element = holmes_dtype_size(type), n = (size_t)nranks, blocks = 1;

    if (c == HOLMES_ALL_GATHER || c == HOLMES_REDUCE_SCATTER)
        blocks = n;
    *out = (struct holmes_shape){.count = size_bytes / element / blocks};
    out->size_bytes = out->count * element * blocks;
    out->in_bytes = c == HOLMES_ALL_GATHER ? out->count * element : out->size_bytes;
    out->out_bytes = c == HOLMES_REDUCE_SCATTER ? out->count * element : out->size_bytes;
    out->in_blocks = c == HOLMES_ALL_GATHER || c == HOLMES_SENDRECV ? 1 : n;
    out->out_blocks = c == HOLMES_REDUCE_SCATTER || c == HOLMES_SENDRECV ? 1 : n;
    return out->count > 0;
}

size_t holmes_window_of(uint64_t size_bytes, size_t window)
{
    uint64_t fit = WINDOW_BYTES / (size_bytes ? size_bytes : 1);

    if (window <= 2)
        return window;
    return fit < 2 ? 2 : fit < window ? (size_t)fit : window;
}

uint64_t holmes_window_bytes_max(uint64_t max_bytes, size_t window)
{
    uint64_t all = max_bytes * window, two = max_bytes * 2;

    if (window <= 2 || all <= WINDOW_BYTES)
        return all;
    return two > WINDOW_BYTES ? two : WINDOW_BYTES;
}
