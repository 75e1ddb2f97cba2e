#include "lane.h"

static size_t align_up(size_t n)
{
    return (n + LANE_ALIGN - 1) / LANE_ALIGN * LANE_ALIGN;
}

int lane_split(size_t len, int nlanes, int first_lane, size_t min_part,
               struct lane_part parts[HOLMES_MAX_LANES])
{
    size_t floor = align_up(min_part > 0 ? min_part : 1);
    size_t want = len / floor; /* lanes that get enough each */
    size_t used = want < 1 ? 1 : want > (size_t)nlanes ? (size_t)nlanes : want;
    size_t step = align_up((len + used - 1) / used);
    size_t offset = 0;
    int n = 0;

    do {
        size_t part = len - offset < step || n == nlanes - 1 ? len - offset : step;

        parts[n].lane = (first_lane + n) % nlanes;
        parts[n].offset = offset;
        parts[n].len = part;
        offset += part;
        n++;
    } while (offset < len);
    return n;
}
