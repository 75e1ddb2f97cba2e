/* The pure parts of staging: in which order a message's bytes go to the GPU, and how much pinned
 * memory a connection gets. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "transport/stage.h"

/* In which pass each byte goes; every byte must go once. */
static void passes(enum stage_layout layout, size_t len, int *pass_of)
{
    struct stage_rows rows[2];
    int n;

    for (size_t i = 0; i < len; i++)
        pass_of[i] = -1;
    for (int pass = 0; (n = stage_pass(layout, len, pass, rows)) > 0; pass++) {
        cr_assert_leq(n, 2);
        for (int r = 0; r < n; r++) {
            size_t height = rows[r].height;

            for (size_t row = 0; row < height * rows[r].depth; row++) {
                size_t at =
                    rows[r].at + row / height * rows[r].block + row % height * rows[r].pitch;

                for (size_t i = at; i < at + rows[r].width; i++) {
                    cr_assert_lt(i, len, "layout %d, %zu bytes: byte %zu is outside", layout, len,
                                 i);
                    cr_assert_eq(pass_of[i], -1, "layout %d, %zu bytes: byte %zu goes twice",
                                 layout, len, i);
                    pass_of[i] = pass;
                }
            }
        }
    }
    for (size_t i = 0; i < len; i++)
        cr_assert_neq(pass_of[i], -1, "layout %d, %zu bytes: byte %zu never goes", layout, len, i);
}

/* Of each line, the bytes before `flag_at` go in an earlier pass than those from there on. */
static void flags_are_last(enum stage_layout layout, size_t line, size_t flag_at)
{
    int pass_of[1024];

    for (size_t len = line; len <= sizeof pass_of / sizeof *pass_of; len += line) {
        passes(layout, len, pass_of);
        for (size_t flag = 0; flag < len; flag++) {
            size_t begin = flag - flag % line;

            for (size_t i = begin; flag % line >= flag_at && i < begin + flag_at; i++)
                cr_assert_lt(pass_of[i], pass_of[flag],
                             "layout %d, %zu bytes: byte %zu goes in pass %d, flag byte %zu in %d",
                             layout, len, i, pass_of[i], flag, pass_of[flag]);
        }
    }
}

Test(stage_order, every_byte_goes_once)
{
    int *pass_of = malloc(5000 * sizeof *pass_of);

    for (size_t len = 0; len < 700; len++) {
        for (int layout = STAGE_PLAIN; layout <= STAGE_FLAGS; layout++)
            passes(layout, len, pass_of);
    }
    for (int layout = STAGE_PLAIN; layout <= STAGE_FLAGS; layout++)
        passes(layout, 4992, pass_of);
    free(pass_of);
}

Test(stage_order, ll_flags_go_after_their_data)
{
    flags_are_last(STAGE_LL, 8, 4);
}

Test(stage_order, ll128_flags_go_after_their_data)
{
    flags_are_last(STAGE_LL128, 128, 120);
}

Test(stage_order, unknown_flags_go_after_the_data_of_either_protocol)
{
    flags_are_last(STAGE_FLAGS, 8, 4);
    flags_are_last(STAGE_FLAGS, 128, 120);
}

Test(stage_order, plain_message_is_one_copy)
{
    struct stage_rows rows[2];

    cr_assert_eq(stage_pass(STAGE_PLAIN, 12345, 0, rows), 1);
    cr_assert(rows[0].at == 0 && rows[0].width == 12345 && rows[0].height * rows[0].depth == 1);
    cr_assert_eq(stage_pass(STAGE_PLAIN, 12345, 1, rows), 0);
}

Test(stage_order, share_shrinks_with_the_budget_and_never_ends)
{
    const size_t kib = 1024, mib = 1024 * kib;
    size_t used = 0, before = SIZE_MAX;

    cr_assert_eq(stage_share(256 * mib, 0), 4 * mib);
    cr_assert_eq(stage_share(1 * mib, 0), 256 * kib);
    cr_assert_eq(stage_share(16 * mib, 17 * mib), 256 * kib);
    for (int conns = 0; conns < 64; conns++) {
        size_t share = stage_share(256 * mib, used);

        cr_assert_leq(share, before);
        cr_assert_eq(share % (256 * kib), 0);
        before = share;
        used += share;
    }
    cr_assert_leq(used, 256 * mib, "64 connections fit the default budget");
}
