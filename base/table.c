/* Text tables: cells are formatted and made safe for a terminal as they come, widths are found at
 * the print. Rows live in one growing array of strings; a rule is remembered by its row. */
#include "table.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

struct column {
    char *lines[2]; /* heading; the second may be NULL */
    enum holmes_table_align align;
};

struct holmes_table {
    int ncols, nheaded;
    struct column *columns;
    char **cells;
    size_t ncells, cells_cap;
    size_t *rules; /* rows above which a line goes, ascending */
    size_t nrules, rules_cap;
    bool lost; /* memory ran out for a cell or heading */
};

/* Copies at most `len` bytes, control characters and broken UTF-8 replaced. NULL without memory. */
static char *text_clean(const char *s, size_t len)
{
    char *out = malloc(len + 1);
    size_t n, at = 0;

    if (!out)
        return NULL;
    for (size_t i = 0; i < len; i += n) {
        uint32_t c = holmes_utf8_decode(s + i, &n);

        if (holmes_utf8_is_control(c) || c == HOLMES_UTF8_REPLACEMENT) {
            out[at++] = '?';
        } else {
            memcpy(out + at, s + i, n);
            at += n;
        }
    }
    out[at] = '\0';
    return out;
}

static int text_columns(const char *s)
{
    int columns = 0;
    size_t n;

    for (; s && *s; s += n)
        columns += holmes_utf8_columns(holmes_utf8_decode(s, &n));
    return columns;
}

/* The array with room for one more element, moved perhaps; NULL without memory, the old one stays.
 */
static void *array_grow(void *array, size_t *cap, size_t used, size_t size)
{
    size_t want = *cap ? 2 * *cap : 32;

    if (used < *cap)
        return array;
    array = reallocarray(array, want, size);
    if (array)
        *cap = want;
    return array;
}

int holmes_table_create(int ncols, struct holmes_table **out)
{
    struct holmes_table *t = calloc(1, sizeof *t);

    assert(ncols > 0);
    if (!t)
        return -ENOMEM;
    t->ncols = ncols;
    t->columns = calloc((size_t)ncols, sizeof *t->columns);
    if (!t->columns) {
        free(t);
        return -ENOMEM;
    }
    *out = t;
    return 0;
}

void holmes_table_destroy(struct holmes_table *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->nheaded; i++) {
        free(t->columns[i].lines[0]);
        free(t->columns[i].lines[1]);
    }
    for (size_t i = 0; i < t->ncells; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t->rules);
    free(t->columns);
    free(t);
}

void holmes_table_column(struct holmes_table *t, const char *heading, enum holmes_table_align align)
{
    const char *cut = strchrnul(heading, '\n');
    struct column *c = &t->columns[t->nheaded];

    assert(t->nheaded < t->ncols && t->ncells == 0);
    t->nheaded++;
    c->align = align;
    c->lines[0] = text_clean(heading, (size_t)(cut - heading));
    if (*cut)
        c->lines[1] = text_clean(cut + 1, strlen(cut + 1));
    t->lost |= !c->lines[0] || (*cut && !c->lines[1]);
}

struct holmes_table *holmes_table_of(const char *const *headings, const char *align)
{
    struct holmes_table *t;

    if (holmes_table_create((int)strlen(align), &t) != 0)
        return NULL;
    for (int i = 0; align[i]; i++)
        holmes_table_column(t, headings[i],
                            align[i] == 'r' ? HOLMES_TABLE_RIGHT : HOLMES_TABLE_LEFT);
    return t;
}

void holmes_table_cell(struct holmes_table *t, const char *fmt, ...)
{
    char *raw = NULL, **cells;
    va_list ap;
    int len;

    va_start(ap, fmt);
    len = vasprintf(&raw, fmt, ap);
    va_end(ap);
    cells = array_grow(t->cells, &t->cells_cap, t->ncells, sizeof *t->cells);
    if (cells)
        t->cells = cells;
    if (len >= 0 && cells) {
        cells[t->ncells] = text_clean(raw, (size_t)len);
        t->lost |= !cells[t->ncells++];
    } else {
        t->lost = true;
    }
    if (len >= 0)
        free(raw);
}

void holmes_table_rule(struct holmes_table *t)
{
    size_t row = t->ncells / (size_t)t->ncols;
    size_t *rules = array_grow(t->rules, &t->rules_cap, t->nrules, sizeof *t->rules);

    assert(t->lost || t->ncells % (size_t)t->ncols == 0);
    if (!rules) {
        t->lost = true;
        return;
    }
    t->rules = rules;
    t->rules[t->nrules++] = row;
}

static int column_width(const struct holmes_table *t, int col)
{
    int width = 0;

    for (int i = 0; i < 2; i++) {
        int w = text_columns(t->columns[col].lines[i]);
        width = w > width ? w : width;
    }
    for (size_t i = (size_t)col; i < t->ncells; i += (size_t)t->ncols) {
        int w = text_columns(t->cells[i]);
        width = w > width ? w : width;
    }
    return width;
}

/* `gap` carries the blanks owed, so that none end a line. */
static void print_padded(FILE *out, const char *s, enum holmes_table_align align, int width,
                         int *gap)
{
    int pad = width - text_columns(s);

    if (align == HOLMES_TABLE_RIGHT)
        *gap += pad;
    if (s && *s) {
        fprintf(out, "%*s%s", *gap, "", s);
        *gap = 0;
    }
    if (align == HOLMES_TABLE_LEFT)
        *gap += pad;
    *gap += 2;
}

static void print_headings(const struct holmes_table *t, FILE *out, const int *widths)
{
    bool two = false;

    for (int c = 0; c < t->nheaded; c++)
        two |= t->columns[c].lines[1] != NULL;
    for (int line = 0; line <= two; line++) {
        int gap = 0;

        for (int c = 0; c < t->nheaded; c++)
            print_padded(out, t->columns[c].lines[line], t->columns[c].align, widths[c], &gap);
        fputc('\n', out);
    }
}

static void print_rule(const struct holmes_table *t, FILE *out, const int *widths)
{
    for (int c = 0; c < t->ncols; c++) {
        fputs(c ? "  " : "", out);
        for (int i = 0; i < widths[c]; i++)
            fputc('-', out);
    }
    fputc('\n', out);
}

int holmes_table_print(const struct holmes_table *t, FILE *out)
{
    size_t ncols = (size_t)t->ncols, rule = 0;
    int *widths = calloc(ncols, sizeof *widths);

    if (!widths || t->lost) {
        free(widths);
        return -ENOMEM;
    }
    for (int c = 0; c < t->ncols; c++)
        widths[c] = column_width(t, c);
    print_headings(t, out, widths);
    print_rule(t, out, widths);
    for (size_t row = 0; row < t->ncells / ncols; row++) {
        int gap = 0;

        for (; rule < t->nrules && t->rules[rule] <= row; rule++)
            if (row > 0)
                print_rule(t, out, widths);
        for (size_t c = 0; c < ncols; c++)
            print_padded(out, t->cells[row * ncols + c], t->columns[c].align, widths[c], &gap);
        fputc('\n', out);
    }
    free(widths);
    return ferror(out) ? -EIO : 0;
}
