/* Aligned text tables for people. Cells are UTF-8; control characters in them are shown as '?', so
 * that a foreign name cannot steer the terminal. Not thread safe.
 *
 *     holmes_table_create(2, &t);
 *     holmes_table_column(t, "host", HOLMES_TABLE_LEFT);
 *     holmes_table_column(t, "tokens/s", HOLMES_TABLE_RIGHT);
 *     holmes_table_cell(t, "%s", host);
 *     holmes_table_cell(t, "%.0f", rate);
 *     holmes_table_print(t, stdout);
 */
#ifndef HOLMES_TABLE_H
#define HOLMES_TABLE_H

#include <stdio.h>

struct holmes_table;

enum holmes_table_align { HOLMES_TABLE_LEFT, HOLMES_TABLE_RIGHT };

/* 0 or -ENOMEM. `ncols` is 1 or more. */
int holmes_table_create(int ncols, struct holmes_table **out);
void holmes_table_destroy(struct holmes_table *t); /* NULL is fine */

/* The next column's heading, from the left, `ncols` times before the first cell. A newline in it
 * starts a second line (units). */
void holmes_table_column(struct holmes_table *t, const char *heading,
                         enum holmes_table_align align);
/* The next cell; a row is full after `ncols` of them. Lack of memory is told by the print. */
void holmes_table_cell(struct holmes_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* A table with its columns: `align` has a letter for each heading, 'l' or 'r'. NULL: no memory. */
struct holmes_table *holmes_table_of(const char *const *headings, const char *align);
/* A line across before the next row. Only between full rows. */
void holmes_table_rule(struct holmes_table *t);

/* Headings, a line, the full rows; columns are two blanks apart, no blanks end a line. May be
 * called again after more cells. 0, -ENOMEM when a cell was lost, -EIO when `out` failed. */
int holmes_table_print(const struct holmes_table *t, FILE *out);

#endif
