#include <criterion/criterion.h>

#include "transport/lane.h"

static void check(size_t len, int nlanes, int first, size_t min_part)
{
    struct lane_part parts[HOLMES_MAX_LANES];
    int n = lane_split(len, nlanes, first, min_part, parts);
    size_t offset = 0;
    unsigned lanes = 0;

    cr_assert(n >= 1 && n <= nlanes, "%d parts on %d lanes", n, nlanes);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(parts[i].offset, offset, "len %zu lanes %d: gap before part %d", len, nlanes,
                     i);
        cr_assert_eq(parts[i].offset % LANE_ALIGN, 0, "len %zu: cut at %zu", len, parts[i].offset);
        cr_assert(!(lanes >> parts[i].lane & 1), "lane %d twice", parts[i].lane);
        cr_assert(parts[i].lane >= 0 && parts[i].lane < nlanes);
        cr_assert(n == 1 || parts[i].len > 0);
        cr_assert(n == 1 || i == n - 1 || parts[i].len >= min_part,
                  "len %zu lanes %d: part %d has %zu", len, nlanes, i, parts[i].len);
        lanes |= 1u << parts[i].lane;
        offset += parts[i].len;
    }
    cr_assert_eq(offset, len, "len %zu lanes %d: parts cover %zu", len, nlanes, offset);
    cr_assert_eq(parts[0].lane, first % nlanes);
}

Test(lane, split_covers_message_exactly)
{
    static const size_t around[] = {0,      1,      127,    128,     129,     4096,    65536,
                                    131072, 576000, 614400, 1048576, 4915200, 1u << 30};

    for (size_t a = 0; a < sizeof around / sizeof *around; a++) {
        for (size_t len = around[a] > 2 ? around[a] - 2 : 0; len <= around[a] + 2; len++) {
            for (int nlanes = 1; nlanes <= HOLMES_MAX_LANES; nlanes++) {
                for (int first = 0; first < nlanes; first++) {
                    check(len, nlanes, first, 65536);
                    check(len, nlanes, first, 128);
                    check(len, nlanes, first, 1);
                }
            }
        }
    }
}

Test(lane, small_message_stays_on_one_lane)
{
    struct lane_part parts[HOLMES_MAX_LANES];

    cr_assert_eq(lane_split(65535, 8, 3, 65536, parts), 1);
    cr_assert_eq(parts[0].lane, 3);
    cr_assert_eq(lane_split(8 * 65536, 8, 3, 65536, parts), 8);
}
