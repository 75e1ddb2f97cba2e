/* Bandwidth and time by size, as a picture for a slide: drawn small and shown larger, so that its
 * text can be read from the last row. Lines are medians; the band around each holds the middle half
 * of the rounds: with all of them, one disturbed round would cover everything. */
#include <errno.h>
#include <stdlib.h>

#include "report.h"
#include "svg.h"

#define LINES_MAX    (HOLMES_BENCH_PLUGINS_MAX + HOLMES_REFERENCE_ANY)
#define CHART_WIDTH  480
#define CHART_HEIGHT 360
#define MAGNIFIED(n) ((n)*4 / 3)

/* Places in the palette, black and grey, which come last for plugins. */
enum { COLOUR_TCP = 7, COLOUR_POLL = 8 };

enum figure { FIGURE_US, FIGURE_BUSBW };

struct plot {
    struct holmes_svg_series series[LINES_MAX];
    size_t nseries;
    double x[HOLMES_BENCH_SIZES_MAX];
    double y[LINES_MAX][HOLMES_BENCH_SIZES_MAX];
    double low[LINES_MAX][HOLMES_BENCH_SIZES_MAX], high[LINES_MAX][HOLMES_BENCH_SIZES_MAX];
};

/* A line and its band; `kind` HOLMES_REFERENCE_ANY: of the plugin `which`. */
static struct holmes_svg_series *plot_add(struct plot *p, const struct holmes_results *r, int m,
                                          enum figure figure, enum holmes_reference_kind kind,
                                          int which)
{
    size_t line = p->nseries++;

    for (int s = 0; s < r->nsizes_done; s++) {
        int v = kind == HOLMES_REFERENCE_ANY ? which : holmes_results_best_reference(r, kind, m, s);
        struct holmes_figures f = holmes_results_figures(r, m, s, v);
        struct holmes_stats shown = figure == FIGURE_US ? f.us : f.busbw;

        p->x[s] = (double)r->shapes[s].size_bytes;
        p->y[line][s] = shown.median;
        p->low[line][s] = shown.q1;
        p->high[line][s] = shown.q3;
    }
    p->series[line] = (struct holmes_svg_series){.x = p->x,
                                                 .y = p->y[line],
                                                 .n = (size_t)r->nsizes_done,
                                                 .low = p->low[line],
                                                 .high = p->high[line]};
    return &p->series[line];
}

/* A line for each plugin, then one for each kind of reference, through the fastest of each size. */
static void plot_fill(struct plot *p, const struct holmes_results *r, int m, enum figure figure)
{
    static const struct {
        const char *name;
        size_t colour;
    } kinds[] = {
        [HOLMES_REFERENCE_BLOCKS] = {"plain TCP, a thread per stream end", COLOUR_TCP},
        [HOLMES_REFERENCE_POLLS] = {"plain TCP, polled", COLOUR_POLL},
    };

    for (int i = 0; i < r->options->nplugins; i++)
        plot_add(p, r, m, figure, HOLMES_REFERENCE_ANY, i)->name = r->variants[i].label;
    for (int kind = 0; kind < HOLMES_REFERENCE_ANY; kind++) {
        struct holmes_svg_series *s;

        if (!holmes_results_has(r, (enum holmes_reference_kind)kind))
            continue;
        s = plot_add(p, r, m, figure, (enum holmes_reference_kind)kind, 0);
        s->name = kinds[kind].name;
        s->colour = kinds[kind].colour;
        s->dashed = true;
    }
}

static void draw(const struct holmes_results *r, int m, enum figure figure, double x,
                 const char *title, FILE *out)
{
    const struct holmes_bench_options *o = r->options;
    struct plot *p = calloc(1, sizeof *p);
    char subtitle[160];
    /* Bandwidths are compared where they are large, times where they are small. */
    struct holmes_svg_chart chart = {
        .title = title,
        .subtitle = subtitle,
        .x = {"size (bytes)", HOLMES_SVG_LOG2},
        .y = {figure == FIGURE_US ? "microseconds" : "GB/s",
              figure == FIGURE_US ? HOLMES_SVG_LOG10 : HOLMES_SVG_LINEAR},
    };

    if (!p)
        return;
    snprintf(subtitle, sizeof subtitle, "%d ranks, median of %d rounds (band: the middle half)",
             o->nranks, o->rounds);
    plot_fill(p, r, m, figure);
    chart.series = p->series;
    chart.nseries = p->nseries;
    holmes_svg_lines(out, x, 0, CHART_WIDTH, CHART_HEIGHT, &chart);
    free(p);
}

/* Of what the last measure tells; with --measure latency only that is known. */
static const char *bandwidth_name(const struct holmes_results *r)
{
    if (r->options->collective != HOLMES_SENDRECV)
        return "bus bandwidth";
    if (r->options->no_bandwidth)
        return "bandwidth back and forth";
    return r->options->both_ways ? "bandwidth each way, both at once" : "bandwidth one way";
}

static const char *time_name(const struct holmes_results *r)
{
    if (r->options->collective != HOLMES_SENDRECV)
        return "time";
    return r->options->no_latency ? "time of a message among several"
                                  : "latency (half a round trip)";
}

int holmes_report_svg(const struct holmes_results *r, FILE *out)
{
    const char *name = holmes_collective_name(r->options->collective);
    char title[96];

    snprintf(title, sizeof title, "holmes-bench %s", name);
    holmes_svg_begin(out, MAGNIFIED(2 * CHART_WIDTH), MAGNIFIED(CHART_HEIGHT), title);
    fprintf(out, "<g transform=\"scale(%.4f)\">\n", 4.0 / 3);
    snprintf(title, sizeof title, "%s: %s", name, bandwidth_name(r));
    draw(r, r->nmeasures - 1, FIGURE_BUSBW, 0, title, out);
    snprintf(title, sizeof title, "%s: %s", name, time_name(r));
    draw(r, 0, FIGURE_US, CHART_WIDTH, title, out);
    fputs("</g>\n", out);
    return holmes_svg_end(out);
}
