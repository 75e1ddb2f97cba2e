/* The pictures of a report. A run keeps its colour through all of them; where there is but one run,
 * colours tell wires or kinds apart. */
#include "pictures.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "svg.h"

#define POINTS_MAX 1200 /* of a line: a picture has not more columns */
#define RANKS_MAX  16   /* bars that can be told apart */
#define NAME_MAX   112

int holmes_picture_width(const struct holmes_picture *p)
{
    return p->wide ? HOLMES_PICTURE_WIDE : HOLMES_PICTURE_WIDTH;
}

int holmes_picture_height(const struct holmes_picture *p, const struct holmes_report *r)
{
    return p->height ? p->height(r) : HOLMES_PICTURE_HEIGHT;
}

/* --- curves over steps ---------------------------------------------------------------------------
 */

/* A line of few enough points: of each piece of a long one its least and its greatest value, in
 * their order, so that no peak is lost. */
struct line {
    double *x, *y;
    size_t n;
};

static void line_add(struct line *l, double x, double y)
{
    l->x[l->n] = x;
    l->y[l->n++] = y;
}

static void line_thin(struct line *l, const double *x, const double *y, size_t n)
{
    size_t pieces = POINTS_MAX / 2;

    for (size_t p = 0; p < pieces; p++) {
        size_t first = n * p / pieces, end = n * (p + 1) / pieces, low = first, high = first;

        for (size_t i = first; i < end; i++) {
            low = !(y[i] >= y[low]) && !isnan(y[i]) ? i : low;
            high = !(y[i] <= y[high]) && !isnan(y[i]) ? i : high;
        }
        if (low == high) {
            line_add(l, x[low], y[low]);
            continue;
        }
        line_add(l, x[low < high ? low : high], y[low < high ? low : high]);
        line_add(l, x[low < high ? high : low], y[low < high ? high : low]);
    }
}

static int line_make(struct line *l, const double *x, const double *y, size_t n)
{
    size_t room = n < POINTS_MAX ? n : POINTS_MAX;

    *l = (struct line){.x = calloc(room + 1, sizeof *x), .y = calloc(room + 1, sizeof *y)};
    if (!l->x || !l->y)
        return -ENOMEM;
    if (n > POINTS_MAX) {
        line_thin(l, x, y, n);
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        line_add(l, x[i], y[i]);
    return 0;
}

static void line_free(struct line *l)
{
    free(l->x);
    free(l->y);
}

/* One column of the steps, as it lies in struct holmes_runlog_steps. */
struct curve {
    const char *title, *label;
    enum holmes_svg_scale scale;
    size_t column; /* offset of the double * */
};

static const double *column_of(const struct holmes_runlog *l, const struct curve *c)
{
    return *(double *const *)((const char *)&l->steps + c->column);
}

/* `evals`: the held-out losses too, dashed. */
static int draw_curve(const struct holmes_report *r, const struct curve *c, const char *subtitle,
                      bool evals, double width, double height, FILE *out)
{
    struct line lines[2 * HOLMES_REPORT_RUNS] = {0};
    struct holmes_svg_series series[2 * HOLMES_REPORT_RUNS];
    char names[HOLMES_REPORT_RUNS][NAME_MAX];
    struct holmes_svg_chart chart = {.title = c->title,
                                     .subtitle = subtitle,
                                     .x = {"step", HOLMES_SVG_LINEAR},
                                     .y = {c->label, c->scale},
                                     .series = series};
    int rc = 0;

    for (size_t i = 0; i < r->nruns && rc == 0; i++) {
        const struct holmes_runlog *l = &r->runs[i];
        struct line *line = &lines[chart.nseries];

        rc = line_make(line, l->steps.step, column_of(l, c), l->steps.n);
        series[chart.nseries++] = (struct holmes_svg_series){
            .name = r->names[i], .x = line->x, .y = line->y, .n = line->n, .colour = i + 1};
        if (rc != 0 || !evals || l->evals.n == 0)
            continue;
        line = &lines[chart.nseries];
        rc = line_make(line, l->evals.step, l->evals.loss, l->evals.n);
        snprintf(names[i], sizeof names[i], "%s, held out", r->names[i]);
        series[chart.nseries++] = (struct holmes_svg_series){.name = names[i],
                                                             .x = line->x,
                                                             .y = line->y,
                                                             .n = line->n,
                                                             .colour = i + 1,
                                                             .dashed = true};
    }
    if (rc == 0)
        holmes_svg_lines(out, 0, 0, width, height, &chart);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        line_free(&lines[i]);
    return rc;
}

#define COLUMN(field) offsetof(struct holmes_runlog_steps, field)

static bool has_steps(const struct holmes_report *r)
{
    for (size_t i = 0; i < r->nruns; i++)
        if (r->runs[i].steps.n > 0)
            return true;
    return false;
}

static int draw_loss(const struct holmes_report *r, double width, double height, FILE *out)
{
    static const struct curve c = {"Loss", "nats per token", HOLMES_SVG_LINEAR, COLUMN(loss)};

    return draw_curve(r, &c, "of the global batch before each update", true, width, height, out);
}

static int draw_rate(const struct holmes_report *r, double width, double height, FILE *out)
{
    static const struct curve c = {"Throughput", "tokens per second", HOLMES_SVG_LINEAR,
                                   COLUMN(tokens_per_s)};
    char subtitle[400] = "median";
    size_t n = strlen(subtitle);

    for (size_t i = 0; i < r->nruns && n < sizeof subtitle; i++)
        n += (size_t)snprintf(subtitle + n, sizeof subtitle - n, "%s %.0f%s%s", i ? "," : "",
                              holmes_runlog_median(&r->runs[i], r->runs[i].steps.tokens_per_s),
                              r->nruns > 1 ? " " : " tokens per second",
                              r->nruns > 1 ? r->names[i] : "");
    return draw_curve(r, &c, subtitle, false, width, height, out);
}

static int draw_norm(const struct holmes_report *r, double width, double height, FILE *out)
{
    static const struct curve c = {"Gradient norm", "2-norm", HOLMES_SVG_LOG10, COLUMN(grad_norm)};

    return draw_curve(r, &c, "global, before clipping", false, width, height, out);
}

static int draw_lr(const struct holmes_report *r, double width, double height, FILE *out)
{
    static const struct curve c = {"Learning rate", "learning rate", HOLMES_SVG_LINEAR, COLUMN(lr)};

    return draw_curve(r, &c, NULL, false, width, height, out);
}

/* --- bytes ---------------------------------------------------------------------------------------
 */

/* Kinds and wires of all runs together. */
struct names {
    int n;
    const char *name[HOLMES_RUNLOG_KINDS * HOLMES_REPORT_RUNS];
};

static int names_index(struct names *s, const char *name)
{
    int i = 0;

    while (i < s->n && strcmp(s->name[i], name) != 0)
        i++;
    if (i == s->n)
        s->name[s->n++] = name;
    return i;
}

static bool has_bytes(const struct holmes_report *r)
{
    for (size_t i = 0; i < r->nruns; i++)
        if (r->runs[i].nwires > 0)
            return true;
    return false;
}

/* A bar for each wire that a run used. */
struct byte_bars {
    struct names kinds;
    int n;
    char names[HOLMES_REPORT_RUNS * HOLMES_RUNLOG_WIRES][NAME_MAX];
    const char *name[HOLMES_REPORT_RUNS * HOLMES_RUNLOG_WIRES];
    size_t colours[HOLMES_REPORT_RUNS * HOLMES_RUNLOG_WIRES];
};

static void byte_bars_name(const struct holmes_report *r, struct byte_bars *b)
{
    for (size_t i = 0; i < r->nruns; i++) {
        const struct holmes_runlog *l = &r->runs[i];

        for (int k = 0; k < l->nkinds; k++)
            names_index(&b->kinds, l->kinds[k]);
        for (int w = 0; w < l->nwires; w++, b->n++) {
            const char *over = strcmp(l->wires[w], "untold") == 0 ? "wire" : l->wires[w];

            snprintf(b->names[b->n], NAME_MAX, "%s%sover %s", r->nruns > 1 ? r->names[i] : "",
                     r->nruns > 1 ? ", " : "", over);
            b->name[b->n] = b->names[b->n];
            b->colours[b->n] = r->nruns > 1 && l->nwires == 1 ? i : (size_t)b->n;
        }
    }
}

/* (kinds, bars) */
static void byte_bars_fill(const struct holmes_report *r, struct byte_bars *b, double *values)
{
    int bar = 0;

    for (size_t i = 0; i < r->nruns; i++) {
        const struct holmes_runlog *l = &r->runs[i];
        double steps = l->steps.n > 0 ? (double)l->steps.n : 1;

        for (int w = 0; w < l->nwires; w++, bar++) {
            for (int k = 0; k < l->nkinds; k++) {
                int group = names_index(&b->kinds, l->kinds[k]);

                if (l->bytes[k][w] > 0)
                    values[group * b->n + bar] = l->bytes[k][w] / steps / 1e6;
            }
        }
    }
}

static int draw_bytes(const struct holmes_report *r, double width, double height, FILE *out)
{
    struct byte_bars *b = calloc(1, sizeof *b);
    const char *titles[HOLMES_RUNLOG_KINDS * HOLMES_REPORT_RUNS];
    double *values = NULL;
    size_t cells;

    if (b) {
        byte_bars_name(r, b);
        cells = (size_t)b->kinds.n * (size_t)b->n;
        values = calloc(cells + 1, sizeof *values);
        for (size_t i = 0; values && i < cells; i++)
            values[i] = NAN;
    }
    if (values) {
        struct holmes_svg_bars bars = {.title = "Bytes sent",
                                       .subtitle = "by all ranks, evaluations included",
                                       .value_label = "MB per step",
                                       .groups = titles,
                                       .ngroups = (size_t)b->kinds.n,
                                       .names = b->name,
                                       .nnames = (size_t)b->n,
                                       .values = values,
                                       .colours = b->colours};

        byte_bars_fill(r, b, values);
        for (int k = 0; k < b->kinds.n; k++)
            titles[k] = holmes_runlog_kind_title(b->kinds.name[k]);
        holmes_svg_bars(out, 0, 0, width, height, &bars);
    }
    free(b);
    free(values);
    return values ? 0 : -ENOMEM;
}

/* --- ranks ---------------------------------------------------------------------------------------
 */

static double steps_of(const struct holmes_runlog *l)
{
    return l->steps.n > 0 ? (double)l->steps.n : 1;
}

/* One value of a rank; kind -1: over all kinds. NaN: not told. */
typedef double (*rank_value)(const struct holmes_runlog *l, int rank, int which);

static double wait_of(const struct holmes_runlog *l, int rank, int kind)
{
    double sum = 0;

    if (rank >= l->nranks || !l->ranks[rank].told)
        return NAN;
    for (int k = 0; k < l->nkinds; k++)
        if (kind < 0 || k == kind)
            sum += l->ranks[rank].wait_seconds[k];
    return sum / steps_of(l) * 1e3;
}

static double memory_of(const struct holmes_runlog *l, int rank, int which)
{
    if (rank >= l->nranks)
        return NAN;
    return (which == 0 ? l->ranks[rank].predicted_bytes : l->ranks[rank].measured_bytes) / 1e6;
}

/* A value of every rank under several names: bars where they fit, else lines over the ranks. */
struct by_rank {
    const char *title, *subtitle, *label;
    int nnames;
    const char *names[2 * HOLMES_REPORT_RUNS];
    size_t colours[2 * HOLMES_REPORT_RUNS];
    const struct holmes_runlog *runs[2 * HOLMES_REPORT_RUNS];
    int which[2 * HOLMES_REPORT_RUNS];
    rank_value value;
};

static int most_ranks(const struct by_rank *b)
{
    int most = 0;

    for (int i = 0; i < b->nnames; i++)
        most = b->runs[i]->nranks > most ? b->runs[i]->nranks : most;
    return most;
}

static void draw_rank_bars(const struct by_rank *b, int ranks, const double *values, double width,
                           double height, FILE *out)
{
    char text[RANKS_MAX][48];
    const char *groups[RANKS_MAX];
    struct holmes_svg_bars bars = {.title = b->title,
                                   .subtitle = b->subtitle,
                                   .value_label = b->label,
                                   .groups = groups,
                                   .ngroups = (size_t)ranks,
                                   .names = b->names,
                                   .nnames = (size_t)b->nnames,
                                   .values = values,
                                   .colours = b->colours};

    for (int i = 0; i < ranks; i++) {
        snprintf(text[i], sizeof text[i], ranks > 8 ? "%d" : "rank %d", i);
        groups[i] = text[i];
    }
    holmes_svg_bars(out, 0, 0, width, height, &bars);
}

/* values is (ranks, names); lines want (names, ranks). */
static int draw_rank_lines(const struct by_rank *b, int ranks, const double *values, double width,
                           double height, FILE *out)
{
    struct holmes_svg_series series[2 * HOLMES_REPORT_RUNS];
    struct holmes_svg_chart chart = {.title = b->title,
                                     .subtitle = b->subtitle,
                                     .x = {"rank", HOLMES_SVG_LINEAR},
                                     .y = {b->label, HOLMES_SVG_LINEAR},
                                     .series = series,
                                     .nseries = (size_t)b->nnames};
    size_t n = (size_t)ranks;
    double *x = calloc(n * (size_t)(b->nnames + 1), sizeof *x);

    if (!x)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        x[i] = (double)i;
    for (int s = 0; s < b->nnames; s++) {
        double *y = x + n * (size_t)(s + 1);

        for (size_t i = 0; i < n; i++)
            y[i] = values[i * (size_t)b->nnames + (size_t)s];
        series[s] = (struct holmes_svg_series){
            .name = b->names[s], .x = x, .y = y, .n = n, .colour = b->colours[s] + 1};
    }
    holmes_svg_lines(out, 0, 0, width, height, &chart);
    free(x);
    return 0;
}

static int draw_by_rank(const struct by_rank *b, double width, double height, FILE *out)
{
    int ranks = most_ranks(b), rc = 0;
    double *values = calloc((size_t)ranks * (size_t)b->nnames + 1, sizeof *values);

    if (!values)
        return -ENOMEM;
    for (int i = 0; i < ranks; i++)
        for (int s = 0; s < b->nnames; s++)
            values[i * b->nnames + s] = b->value(b->runs[s], i, b->which[s]);
    if (ranks <= RANKS_MAX)
        draw_rank_bars(b, ranks, values, width, height, out);
    else
        rc = draw_rank_lines(b, ranks, values, width, height, out);
    free(values);
    return rc;
}

static void by_rank_add(struct by_rank *b, const char *name, size_t colour,
                        const struct holmes_runlog *run, int which)
{
    b->names[b->nnames] = name;
    b->colours[b->nnames] = colour;
    b->runs[b->nnames] = run;
    b->which[b->nnames++] = which;
}

static bool has_waits(const struct holmes_report *r)
{
    for (size_t i = 0; i < r->nruns; i++)
        for (int k = 0; k < r->runs[i].nranks; k++)
            if (r->runs[i].ranks[k].told && r->runs[i].nranks > 1)
                return true;
    return false;
}

static int draw_waits(const struct holmes_report *r, double width, double height, FILE *out)
{
    struct by_rank b = {.title = "Time that ranks stood still for others",
                        .subtitle = "per step; what overlaps with computation is not in it",
                        .label = "ms per step",
                        .value = wait_of};

    for (size_t i = 0; r->nruns > 1 && i < r->nruns; i++)
        by_rank_add(&b, r->names[i], i, &r->runs[i], -1);
    for (int k = 0; r->nruns == 1 && k < r->runs->nkinds; k++)
        by_rank_add(&b, holmes_runlog_kind_title(r->runs->kinds[k]), (size_t)k, r->runs, k);
    return draw_by_rank(&b, width, height, out);
}

static bool has_memory(const struct holmes_report *r)
{
    for (size_t i = 0; i < r->nruns; i++)
        for (int k = 0; k < r->runs[i].nranks; k++)
            if (isfinite(r->runs[i].ranks[k].measured_bytes))
                return true;
    return false;
}

static int draw_memory(const struct holmes_report *r, double width, double height, FILE *out)
{
    char names[HOLMES_REPORT_RUNS][2][NAME_MAX];
    struct by_rank b = {.title = "Memory of every rank",
                        .subtitle = "predicted from the configuration; measured: the peak of its "
                                    "resident memory over what it had before",
                        .label = "MB",
                        .value = memory_of};

    for (size_t i = 0; i < r->nruns; i++) {
        for (int which = 0; which < 2; which++) {
            snprintf(names[i][which], NAME_MAX, "%s%s%s", r->nruns > 1 ? r->names[i] : "",
                     r->nruns > 1 ? ", " : "", which == 0 ? "predicted" : "measured");
            by_rank_add(&b, names[i][which], 2 * i + (size_t)which, &r->runs[i], which);
        }
    }
    return draw_by_rank(&b, width, height, out);
}

/* --- the trace -----------------------------------------------------------------------------------
 */

static bool has_trace(const struct holmes_report *r)
{
    return r->trace != NULL;
}

static int trace_height(const struct holmes_report *r)
{
    return holmes_timeline_height(r->trace);
}

static int draw_trace(const struct holmes_report *r, double width, double height, FILE *out)
{
    char title[64] = "The whole trace";

    (void)height;
    if (r->step > 0)
        snprintf(title, sizeof title, "Step %d, rank by rank", r->step);
    holmes_timeline_draw(r->trace, r->from, r->to, width, title, out);
    return 0;
}

const struct holmes_picture holmes_pictures[] = {
    {"loss", false, has_steps, NULL, draw_loss},
    {"throughput", false, has_steps, NULL, draw_rate},
    {"gradient-norm", false, has_steps, NULL, draw_norm},
    {"learning-rate", false, has_steps, NULL, draw_lr},
    {"bytes", false, has_bytes, NULL, draw_bytes},
    {"waits", false, has_waits, NULL, draw_waits},
    {"memory", false, has_memory, NULL, draw_memory},
    {"timeline", true, has_trace, trace_height, draw_trace},
    {0}};
