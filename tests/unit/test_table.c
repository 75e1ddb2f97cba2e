#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"
#include "utf8.h"

static char *printed(const struct holmes_table *t)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert_eq(holmes_table_print(t, f), 0);
    fclose(f);
    return text;
}

static struct holmes_table *two_columns(const char *left, const char *right)
{
    struct holmes_table *t;

    cr_assert_eq(holmes_table_create(2, &t), 0);
    holmes_table_column(t, left, HOLMES_TABLE_LEFT);
    holmes_table_column(t, right, HOLMES_TABLE_RIGHT);
    return t;
}

static void expect_print(struct holmes_table *t, const char *want)
{
    char *text = printed(t);

    cr_assert_str_eq(text, want, "got\n%s\nwant\n%s", text, want);
    free(text);
    holmes_table_destroy(t);
}

Test(table, columns_are_as_wide_as_their_widest_cell)
{
    struct holmes_table *t = two_columns("host", "rate");

    holmes_table_cell(t, "a0");
    holmes_table_cell(t, "%.1f", 12345.5);
    holmes_table_cell(t, "longer-name");
    holmes_table_cell(t, "%d", 7);
    expect_print(t, "host            rate\n"
                    "-----------  -------\n"
                    "a0           12345.5\n"
                    "longer-name        7\n");
}

Test(table, heading_may_have_a_line_of_units_and_rules_stand_between_rows)
{
    struct holmes_table *t = two_columns("size\n(B)", "time");

    holmes_table_rule(t); /* above the first row the heading's line is enough */
    holmes_table_cell(t, "8");
    holmes_table_cell(t, "1");
    holmes_table_rule(t);
    holmes_table_cell(t, "16");
    holmes_table_cell(t, "2");
    expect_print(t, "size  time\n"
                    "(B)\n"
                    "----  ----\n"
                    "8        1\n"
                    "----  ----\n"
                    "16       2\n");
}

Test(table, width_counts_characters_not_bytes)
{
    struct holmes_table *t = two_columns("é", "x");

    holmes_table_cell(t, "µs");
    holmes_table_cell(t, "日本");
    holmes_table_cell(t, "ab");
    holmes_table_cell(t, "e\xcc\x81");
    expect_print(t, "é      x\n"
                    "--  ----\n"
                    "µs  日本\n"
                    "ab     e\xcc\x81\n");
}

Test(table, foreign_bytes_cannot_steer_the_terminal)
{
    struct holmes_table *t = two_columns("a", "b");

    holmes_table_cell(t, "\033[2Jx\n");
    holmes_table_cell(t, "\xff\xc3(");
    expect_print(t, "a         b\n"
                    "------  ---\n"
                    "?[2Jx?  ?\?(\n");
}

Test(table, empty_cells_leave_no_blanks_at_the_end)
{
    struct holmes_table *t = two_columns("first", "second");

    holmes_table_cell(t, "x");
    holmes_table_cell(t, "%s", "");
    expect_print(t, "first  second\n"
                    "-----  ------\n"
                    "x\n");
}

Test(table, print_tells_a_full_device)
{
    struct holmes_table *t = two_columns("a", "b");
    FILE *full = fopen("/dev/full", "w");

    cr_assert_not_null(full);
    setbuf(full, NULL);
    cr_assert_eq(holmes_table_print(t, full), -EIO);
    fclose(full);
    holmes_table_destroy(t);
    holmes_table_destroy(NULL);
}

Test(utf8, refuses_overlong_surrogate_and_cut_forms)
{
    static const char *const bad[] = {"\xc0\x80",         "\xed\xa0\x80", "\xe2\x82",
                                      "\xf4\x90\x80\x80", "\x80",         "\xf8\x88\x80\x80\x80"};
    size_t n;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(holmes_utf8_decode(bad[i], &n), HOLMES_UTF8_REPLACEMENT, "case %zu", i);
        cr_assert_eq(n, 1);
    }
    cr_assert_eq(holmes_utf8_decode("\xf0\x9f\x90\x8e", &n), 0x1f40eu);
    cr_assert_eq(n, 4);
    cr_assert_eq(holmes_utf8_decode("", &n), 0u);
    cr_assert_eq(n, 0);
}
