/* Small SVG charts: lines on linear or logarithmic axes, grouped bars, and the page they stand on.
 *
 * Text may be any bytes: it is escaped, and what XML forbids is replaced. Colours can be told apart
 * by people with colour-blindness, lines also by their markers. Everything is written to a stdio
 * stream that the caller opens and closes; its errors are told once, by holmes_svg_end.
 *
 *     holmes_svg_begin(f, 800, 400, "all_reduce");
 *     holmes_svg_lines(f, 0, 0, 800, 400, &chart);
 *     rc = holmes_svg_end(f);
 *
 * Colours are attributes, so that a picture needs no style sheet; a page that embeds pictures can
 * override them by class, for a dark background say: "ink" (text), "axis", "grid", and for the i-th
 * colour "f0" to "f7" where it fills and "s0" to "s7" where it strokes.
 */
#ifndef HOLMES_SVG_H
#define HOLMES_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum holmes_svg_scale {
    HOLMES_SVG_LINEAR, /* from 0 when all values are positive and near it, else around them */
    HOLMES_SVG_LOG10,  /* decades; values of 0 and below are left out */
    HOLMES_SVG_LOG2,   /* powers of two, written as byte sizes: 8, 4K, 256M */
};

struct holmes_svg_axis {
    const char *label; /* with its unit */
    enum holmes_svg_scale scale;
};

/* A line through (x[i], y[i]) in the given order; a value that is no finite number makes a gap.
 * With `low` and `high` a pale band in its colour lies behind all lines. */
struct holmes_svg_series {
    const char *name;
    const double *x, *y;
    size_t n;
    size_t colour;            /* 1 + index of its colour; 0: the series' place in the chart */
    bool dashed;              /* a second kind of line in the colour of another */
    const double *low, *high; /* (n) the band's edges; both NULL: none */
};

struct holmes_svg_chart {
    const char *title, *subtitle; /* subtitle may be NULL */
    struct holmes_svg_axis x, y;
    const struct holmes_svg_series *series;
    size_t nseries;
};

/* For each group one bar per name, standing on 0 (values below hang from it). values is
 * (ngroups, nnames); what is no finite number has no bar. The value is written on each bar. */
struct holmes_svg_bars {
    const char *title, *subtitle, *value_label;
    const char *const *groups;
    size_t ngroups;
    const char *const *names;
    size_t nnames;
    const double *values;
    const size_t *colours; /* index of each name's colour; NULL: its place */
};

/* A white page; `title` is what a screen reader says. */
void holmes_svg_begin(FILE *out, int width, int height, const char *title);
/* The same within an HTML page: no XML declaration, no background, as wide as its parent. */
void holmes_svg_begin_inline(FILE *out, int width, int height, const char *title);
/* A chart in the rectangle; 320 by 200 is about the least that reads well. */
void holmes_svg_lines(FILE *out, double x, double y, double width, double height,
                      const struct holmes_svg_chart *chart);
void holmes_svg_bars(FILE *out, double x, double y, double width, double height,
                     const struct holmes_svg_bars *bars);
/* Ends the page. 0, or -EIO when anything of it could not be written. */
int holmes_svg_end(FILE *out);

/* Character data, or a part of an attribute value, for drawings of one's own. */
void holmes_svg_escape(FILE *out, const char *text);
/* One line of text in ink; `anchor`: start, middle or end of it stands at x. */
void holmes_svg_text(FILE *out, double x, double y, int size, const char *anchor, const char *text);
/* The i-th colour, "#rrggbb"; repeats after eight. */
const char *holmes_svg_colour(size_t i);

#endif
