/* How a message is cut into writes over the lanes of a connection. Pure arithmetic. */
#ifndef HOLMES_LANE_H
#define HOLMES_LANE_H

#include <stddef.h>

#include "transport.h"

/* Cuts lie at multiples of this offset: an LL128 line must not be torn (docs/protocol.md). */
#define LANE_ALIGN 128u

/* The contiguous part [offset, offset+len) of a message that one lane carries. */
struct lane_part {
    int lane;
    size_t offset, len;
};

/* Splits `len` bytes over at most `nlanes` lanes, none getting less than `min_part` (rounded up to
 * LANE_ALIGN) but the last, which takes the rest. Parts are in order of offset, on lanes
 * first_lane, first_lane+1, ... modulo nlanes. Returns the number of parts: at least 1, for len 0
 * one empty part. */
int lane_split(size_t len, int nlanes, int first_lane, size_t min_part,
               struct lane_part parts[HOLMES_MAX_LANES]);

#endif
