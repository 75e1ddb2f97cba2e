/* Charts as SVG. A chart is an area with two mappings from values to places; axes choose their own
 * ticks. Coordinates are rounded to a tenth of a unit, which no eye sees and keeps files small. */
#include "svg.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "utf8.h"

#define FONT      "font-family=\"system-ui,sans-serif\""
#define INK       "#222222"
#define GRID      "#dddddd"
#define TICKS_MAX 64

struct axis {
    enum holmes_svg_scale scale;
    double low, high; /* ends, in values */
    double from, to;  /* ends, in places */
    double ticks[TICKS_MAX];
    int nticks;
};

/* Okabe and Ito's palette, order by contrast on white; yellow is left out. */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#56b4e9", "#e69f00", "#000000", "#7f7f7f"};

#define NCOLOURS (sizeof colours / sizeof colours[0])

const char *holmes_svg_colour(size_t i)
{
    return colours[i % NCOLOURS];
}

void holmes_svg_escape(FILE *out, const char *text)
{
    size_t n;

    for (; text && *text; text += n) {
        uint32_t c = holmes_utf8_decode(text, &n);

        if (c == HOLMES_UTF8_REPLACEMENT || (holmes_utf8_is_control(c) && c != '\t' && c != '\n'))
            fputs("&#xFFFD;", out);
        else if (c == '&')
            fputs("&amp;", out);
        else if (c == '<')
            fputs("&lt;", out);
        else if (c == '>')
            fputs("&gt;", out);
        else if (c == '"')
            fputs("&quot;", out);
        else if (c == '\'')
            fputs("&#39;", out);
        else
            fwrite(text, 1, n, out);
    }
}

void holmes_svg_begin(FILE *out, int width, int height, const char *title)
{
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" role=\"img\" " FONT ">\n<title>",
            width, height, width, height);
    holmes_svg_escape(out, title);
    fprintf(out, "</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n");
}

void holmes_svg_begin_inline(FILE *out, int width, int height, const char *title)
{
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" " FONT ">\n<title>", width, height);
    holmes_svg_escape(out, title);
    fputs("</title>\n", out);
}

int holmes_svg_end(FILE *out)
{
    fputs("</svg>\n", out);
    return fflush(out) != 0 || ferror(out) ? -EIO : 0;
}

/* `anchor`: start, middle or end. `turn`: degrees around its place. */
static void text_put(FILE *out, double x, double y, int size, const char *anchor, int turn,
                     const char *text)
{
    fprintf(out,
            "<text class=\"ink\" x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\" "
            "fill=\"" INK "\"",
            x, y, size, anchor);
    if (turn)
        fprintf(out, " transform=\"rotate(%d %.1f %.1f)\"", turn, x, y);
    fputc('>', out);
    holmes_svg_escape(out, text);
    fputs("</text>\n", out);
}

void holmes_svg_text(FILE *out, double x, double y, int size, const char *anchor, const char *text)
{
    text_put(out, x, y, size, anchor, 0, text);
}

static void line_put(FILE *out, double x1, double y1, double x2, double y2, bool grid)
{
    fprintf(out,
            "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
            "stroke-width=\"1\"/>\n",
            grid ? "grid" : "axis", x1, y1, x2, y2, grid ? GRID : INK);
}

static bool scale_takes(enum holmes_svg_scale scale, double v)
{
    return isfinite(v) && (scale == HOLMES_SVG_LINEAR || v > 0);
}

static double scale_apply(enum holmes_svg_scale scale, double v)
{
    return scale == HOLMES_SVG_LINEAR ? v : scale == HOLMES_SVG_LOG10 ? log10(v) : log2(v);
}

static double axis_place(const struct axis *a, double v)
{
    double low = scale_apply(a->scale, a->low), high = scale_apply(a->scale, a->high);

    return a->from + (scale_apply(a->scale, v) - low) / (high - low) * (a->to - a->from);
}

/* 1, 2 or 5 times a power of ten, for about `want` steps over `span`. */
static double nice_step(double span, int want)
{
    double raw = span / want, unit = pow(10, floor(log10(raw))), n = raw / unit;

    return unit * (n <= 1 ? 1 : n <= 2 ? 2 : n <= 5 ? 5 : 10);
}

static void axis_add_tick(struct axis *a, double v)
{
    if (a->nticks < TICKS_MAX)
        a->ticks[a->nticks++] = v;
}

static void axis_ticks_linear(struct axis *a, int want)
{
    double step;

    if (a->low > 0 && a->low < 0.6 * a->high)
        a->low = 0;
    if (!(a->high > a->low)) {
        double room = fabs(a->high) > 0 ? fabs(a->high) * 0.1 : 1;
        a->low -= room;
        a->high += room;
    }
    step = nice_step(a->high - a->low, want);
    a->low = floor(a->low / step) * step;
    a->high = ceil(a->high / step) * step;
    for (int i = 0; a->low + i * step <= a->high + step / 2; i++)
        axis_add_tick(a, a->low + i * step);
}

static void axis_ticks_log(struct axis *a, int room)
{
    double base = a->scale == HOLMES_SVG_LOG2 ? 2 : 10;
    double first = floor(scale_apply(a->scale, a->low) + 1e-9);
    double last = ceil(scale_apply(a->scale, a->high) - 1e-9);
    int every;

    if (last <= first)
        last = first + 1;
    every = (int)ceil((last - first) / (room > 1 ? room : 1));
    a->low = pow(base, first);
    a->high = pow(base, last);
    for (double e = first; e <= last; e += every) /* NOLINT: small whole numbers */
        axis_add_tick(a, pow(base, e));
}

/* Ends and ticks from the values that the scale takes; `room` is how many ticks have place. */
static void axis_fit(struct axis *a, double low, double high, int room)
{
    bool any = low <= high;

    a->low = any ? low : 1;
    a->high = any ? high : 2;
    a->nticks = 0;
    if (a->scale == HOLMES_SVG_LINEAR)
        axis_ticks_linear(a, room > 10 ? 8 : 6);
    else
        axis_ticks_log(a, room);
}

static void tick_text(enum holmes_svg_scale scale, double v, char *buf, size_t len)
{
    static const char units[] = {0, 'K', 'M', 'G', 'T'};
    size_t unit = 0;

    if (scale == HOLMES_SVG_LOG2)
        for (; v >= 1024 && unit < sizeof units - 1; unit++)
            v /= 1024;
    snprintf(buf, len, fabs(v) >= 10000 && fabs(v) < 1e9 ? "%.0f%c" : "%.6g%c",
             fabs(v) < 1e-12 ? 0 : v, units[unit]);
}

/* Whether the series has a band at its i-th point. */
static bool has_band(const struct holmes_svg_chart *c, const struct holmes_svg_series *s, size_t i)
{
    return s->low && s->high && scale_takes(c->x.scale, s->x[i]) &&
           scale_takes(c->y.scale, s->low[i]) && scale_takes(c->y.scale, s->high[i]);
}

static void range_of(const struct holmes_svg_chart *c, bool of_x, double *low, double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (size_t s = 0; s < c->nseries; s++) {
        for (size_t i = 0; i < c->series[s].n; i++) {
            double x = c->series[s].x[i], y = c->series[s].y[i], v = of_x ? x : y;

            if (!scale_takes(c->x.scale, x) || !scale_takes(c->y.scale, y))
                continue;
            *low = fmin(*low, v);
            *high = fmax(*high, v);
            if (!of_x && has_band(c, &c->series[s], i)) {
                *low = fmin(*low, c->series[s].low[i]);
                *high = fmax(*high, c->series[s].high[i]);
            }
        }
    }
}

static void draw_x_axis(FILE *out, const struct axis *a, const char *label, double top,
                        double bottom)
{
    char text[32];

    for (int i = 0; i < a->nticks; i++) {
        double at = axis_place(a, a->ticks[i]);

        line_put(out, at, top, at, bottom, true);
        tick_text(a->scale, a->ticks[i], text, sizeof text);
        text_put(out, at, bottom + 15, 11, "middle", 0, text);
    }
    text_put(out, (a->from + a->to) / 2, bottom + 33, 12, "middle", 0, label);
}

static void draw_y_axis(FILE *out, const struct axis *a, const char *label, double left,
                        double right, double label_x)
{
    char text[32];

    for (int i = 0; i < a->nticks; i++) {
        double at = axis_place(a, a->ticks[i]);

        line_put(out, left, at, right, at, true);
        tick_text(a->scale, a->ticks[i], text, sizeof text);
        text_put(out, left - 6, at + 4, 11, "end", 0, text);
    }
    text_put(out, label_x, (a->from + a->to) / 2, 12, "middle", -90, label);
}

static void draw_marker(FILE *out, double x, double y, size_t kind)
{
    const char *colour = holmes_svg_colour(kind);
    size_t class = kind % NCOLOURS;

    switch (kind % 3) {
    case 0:
        fprintf(out, "<circle class=\"f%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                class, x, y, colour);
        break;
    case 1:
        fprintf(out,
                "<rect class=\"f%zu\" x=\"%.1f\" y=\"%.1f\" width=\"6\" height=\"6\" "
                "fill=\"%s\"/>\n",
                class, x - 3, y - 3, colour);
        break;
    default:
        fprintf(out, "<path class=\"f%zu\" d=\"M%.1f %.1fl3.5 6h-7z\" fill=\"%s\"/>\n", class, x,
                y - 4, colour);
    }
}

static size_t series_colour(const struct holmes_svg_chart *c, size_t which)
{
    return c->series[which].colour > 0 ? c->series[which].colour - 1 : which;
}

static void draw_sample(FILE *out, double x, double y, size_t colour)
{
    fprintf(out,
            "<path class=\"s%zu\" d=\"M%.1f %.1fh12\" fill=\"none\" stroke=\"%s\" "
            "stroke-width=\"2\" stroke-dasharray=\"4 3\"/>\n",
            colour % NCOLOURS, x, y, holmes_svg_colour(colour));
}

static void draw_series(FILE *out, const struct holmes_svg_chart *c, size_t which,
                        const struct axis *ax, const struct axis *ay)
{
    const struct holmes_svg_series *s = &c->series[which];
    size_t colour = series_colour(c, which);
    bool pen_down = false;

    fprintf(out, "<path class=\"s%zu\" d=\"", colour % NCOLOURS);
    for (size_t i = 0; i < s->n; i++) {
        bool has = scale_takes(c->x.scale, s->x[i]) && scale_takes(c->y.scale, s->y[i]);

        if (has)
            fprintf(out, "%c%.1f %.1f", pen_down ? 'L' : 'M', axis_place(ax, s->x[i]),
                    axis_place(ay, s->y[i]));
        pen_down = has;
    }
    fprintf(out, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
            holmes_svg_colour(colour), s->dashed ? " stroke-dasharray=\"6 4\"" : "");
    /* Many points make a line of their own: markers only where they can be told apart. */
    for (size_t i = 0; i < s->n && s->n <= 64; i++)
        if (scale_takes(c->x.scale, s->x[i]) && scale_takes(c->y.scale, s->y[i]))
            draw_marker(out, axis_place(ax, s->x[i]), axis_place(ay, s->y[i]), colour);
}

/* The band over points `first` to `end`: along the upper edge, back along the lower. */
static void draw_band(FILE *out, const struct holmes_svg_series *s, size_t first, size_t end,
                      size_t colour, const struct axis *ax, const struct axis *ay)
{
    fprintf(out, "<path class=\"f%zu\" d=\"", colour % NCOLOURS);
    for (size_t i = first; i < end; i++)
        fprintf(out, "%c%.1f %.1f", i == first ? 'M' : 'L', axis_place(ax, s->x[i]),
                axis_place(ay, s->high[i]));
    for (size_t i = end; i-- > first;)
        fprintf(out, "L%.1f %.1f", axis_place(ax, s->x[i]), axis_place(ay, s->low[i]));
    fprintf(out, "Z\" fill=\"%s\" fill-opacity=\"0.15\"/>\n", holmes_svg_colour(colour));
}

static void draw_bands(FILE *out, const struct holmes_svg_chart *c, size_t which,
                       const struct axis *ax, const struct axis *ay)
{
    const struct holmes_svg_series *s = &c->series[which];

    for (size_t i = 0, end; i < s->n; i = end) {
        for (end = i; end < s->n && has_band(c, s, end); end++)
            ;
        if (end > i)
            draw_band(out, s, i, end, series_colour(c, which), ax, ay);
        else
            end++;
    }
}

static size_t text_columns(const char *s)
{
    size_t columns = 0, n;

    for (; s && *s; s += n)
        columns += (size_t)holmes_utf8_columns(holmes_utf8_decode(s, &n));
    return columns;
}

static double heading_put(FILE *out, double x, double y, const char *title, const char *subtitle)
{
    text_put(out, x + 16, y + 24, 16, "start", 0, title);
    if (subtitle && *subtitle)
        text_put(out, x + 16, y + 42, 12, "start", 0, subtitle);
    return y + (subtitle && *subtitle ? 50 : 34);
}

/* What a legend shows of its i-th entry. */
struct legend_entry {
    const char *name;
    size_t colour;
    bool dashed;
};

/* Entries in rows that fit the width; returns the y below them. */
static double legend_put(FILE *out, double x, double y, double width, size_t n,
                         struct legend_entry (*entry)(const void *ctx, size_t i), const void *ctx)
{
    double at = x + 16;

    for (size_t i = 0; i < n; i++) {
        struct legend_entry e = entry(ctx, i);
        double need = 26 + 7.0 * (double)text_columns(e.name);

        if (i > 0 && at + need > x + width - 8) {
            at = x + 16;
            y += 17;
        }
        if (e.dashed)
            draw_sample(out, at - 1, y + 8, e.colour);
        else
            draw_marker(out, at + 5, y + 8, e.colour);
        text_put(out, at + 14, y + 12, 12, "start", 0, e.name);
        at += need;
    }
    return y + 22;
}

static struct legend_entry series_entry(const void *ctx, size_t i)
{
    const struct holmes_svg_chart *c = ctx;

    return (struct legend_entry){c->series[i].name, series_colour(c, i), c->series[i].dashed};
}

static size_t bar_colour(const struct holmes_svg_bars *b, size_t i)
{
    return b->colours ? b->colours[i] : i;
}

static struct legend_entry bar_entry(const void *ctx, size_t i)
{
    const struct holmes_svg_bars *b = ctx;

    return (struct legend_entry){b->names[i], bar_colour(b, i), false};
}

void holmes_svg_lines(FILE *out, double x, double y, double width, double height,
                      const struct holmes_svg_chart *chart)
{
    double top, left = x + 72, right = x + width - 20, bottom = y + height - 46, low, high;
    struct axis ax = {.scale = chart->x.scale, .from = left, .to = right};
    struct axis ay = {.scale = chart->y.scale, .from = bottom};

    fputs("<g>\n", out);
    top = heading_put(out, x, y, chart->title, chart->subtitle);
    top = legend_put(out, x, top, width, chart->nseries, series_entry, chart);
    ay.to = top;
    range_of(chart, true, &low, &high);
    axis_fit(&ax, low, high, (int)((right - left) / 44));
    range_of(chart, false, &low, &high);
    axis_fit(&ay, low, high, (int)((bottom - top) / 24));
    draw_x_axis(out, &ax, chart->x.label, top, bottom);
    draw_y_axis(out, &ay, chart->y.label, left, right, x + 16);
    for (size_t i = 0; i < chart->nseries; i++)
        draw_bands(out, chart, i, &ax, &ay);
    for (size_t i = 0; i < chart->nseries; i++)
        draw_series(out, chart, i, &ax, &ay);
    fputs("</g>\n", out);
}

/* A bar too small to be seen is said to be small; its digits would run into its neighbour's. */
static void bar_text(const struct axis *ay, double value, char *text, size_t len)
{
    double visible = fabs(ay->high - ay->low) / 1000;

    if (value > 0 && value < visible && value < 0.01)
        snprintf(text, len, "<0.01");
    else
        snprintf(text, len, fabs(value) >= 1000 ? "%.0f" : "%.3g", value);
}

static void draw_bar(FILE *out, const struct axis *ay, double x, double width, double value,
                     size_t colour)
{
    double zero = axis_place(ay, 0), at = axis_place(ay, value);
    char text[32];

    if (!isfinite(value))
        return;
    fprintf(out,
            "<rect class=\"f%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
            "fill=\"%s\"/>\n",
            colour % NCOLOURS, x, fmin(at, zero), width, fabs(zero - at),
            holmes_svg_colour(colour));
    bar_text(ay, value, text, sizeof text);
    text_put(out, x + width / 2, value < 0 ? at + 13 : at - 4, 11, "middle", 0, text);
}

void holmes_svg_bars(FILE *out, double x, double y, double width, double height,
                     const struct holmes_svg_bars *b)
{
    double top, left = x + 72, right = x + width - 20, bottom = y + height - 40;
    double low = 0, high = 0, slot, bar;
    struct axis ay = {.scale = HOLMES_SVG_LINEAR, .from = bottom};

    fputs("<g>\n", out);
    top = heading_put(out, x, y, b->title, b->subtitle);
    top = legend_put(out, x, top, width, b->nnames, bar_entry, b);
    ay.to = top + 10;
    for (size_t i = 0; i < b->ngroups * b->nnames; i++) {
        low = isfinite(b->values[i]) ? fmin(low, b->values[i]) : low;
        high = isfinite(b->values[i]) ? fmax(high, b->values[i]) : high;
    }
    axis_fit(&ay, low, high, 0);
    draw_y_axis(out, &ay, b->value_label, left, right, x + 16);
    slot = (right - left) / (double)(b->ngroups ? b->ngroups : 1);
    bar = slot * 0.8 / (double)(b->nnames ? b->nnames : 1);
    for (size_t g = 0; g < b->ngroups; g++) {
        double start = left + slot * (double)g;

        for (size_t i = 0; i < b->nnames; i++)
            draw_bar(out, &ay, start + slot * 0.1 + bar * (double)i, bar * 0.95,
                     b->values[g * b->nnames + i], bar_colour(b, i));
        text_put(out, start + slot / 2, bottom + 18, 12, "middle", 0, b->groups[g]);
    }
    line_put(out, left, axis_place(&ay, 0), right, axis_place(&ay, 0), false);
    fputs("</g>\n", out);
}
