/* Draws the lanes of a trace. Kinds of spans are their names without numbers: "forward 3" is a
 * forward. Spans narrower than the eye can see are joined with their neighbour of the same kind. */
#include "timeline.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "svg.h"

#define LANE_HEIGHT 15
#define RANK_GAP    8
#define LEFT        150
#define RIGHT       20
#define KINDS_MAX   24
#define THIN        0.25 /* of a unit */
#define TICKS       10

struct drawing {
    const struct holmes_timeline *t;
    double from, to, width;
    int nkinds;
    struct kind {
        char name[24];
        size_t colour;
        double opacity;
    } kinds[KINDS_MAX];
    FILE *out;
};

/* What holmes-train calls its work: one colour for one meaning, in every picture. */
static const struct {
    const char *name;
    size_t colour;
    double opacity;
} known[] = {{"forward", 0, 1}, {"backward", 1, 1}, {"reduce-scatter", 2, 1}, {"all-gather", 3, 1},
             {"adamw", 5, 1},   {"norm", 5, 0.6},   {"send", 4, 1},           {"send d", 4, 0.6},
             {"recv", 4, 0.8},  {"recv d", 4, 0.5}, {"all-reduce", 2, 0.6},   {"tied", 6, 0.7},
             {"sums", 6, 0.4},  {"layer", 7, 1},    {"embedding", 6, 0.6},    {"head", 3, 0.6},
             {"wait", 7, 0.5}};

/* The first words of a name, up to a number; all waits are one kind, whatever for. */
static void kind_of(const char *name, char out[24])
{
    size_t n = 0;

    if (strncmp(name, "wait ", 5) == 0)
        name = "wait";

    while (name[n] && n < 23 && !isdigit((unsigned char)name[n]))
        n++;
    while (n > 0 && strchr(" .:#", name[n - 1]))
        n--;
    snprintf(out, 24, "%.*s", (int)n, n > 0 ? name : "");
    if (n == 0)
        snprintf(out, 24, "other");
}

static void kind_add(struct drawing *d, const char *name)
{
    struct kind *k = &d->kinds[d->nkinds];

    snprintf(k->name, sizeof k->name, "%s", name);
    k->colour = (size_t)d->nkinds;
    k->opacity = 0.7;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) == 0) {
            k->colour = known[i].colour;
            k->opacity = known[i].opacity;
        }
    }
    d->nkinds++;
}

static int kind_index(struct drawing *d, const char *name)
{
    char kind[24];
    int i = 0;

    kind_of(name, kind);
    while (i < d->nkinds && strcmp(d->kinds[i].name, kind) != 0)
        i++;
    if (i == KINDS_MAX)
        return KINDS_MAX - 1;
    if (i == d->nkinds)
        kind_add(d, kind);
    return i;
}

static double place(const struct drawing *d, double ms)
{
    double x = (ms - d->from) / (d->to - d->from);

    return LEFT + fmin(fmax(x, 0), 1) * (d->width - LEFT - RIGHT);
}

static bool first_of_rank(const struct holmes_timeline *t, size_t lane)
{
    return lane == 0 || t->lanes[lane].rank != t->lanes[lane - 1].rank;
}

int holmes_timeline_height(const struct holmes_timeline *t)
{
    int height = 112;

    for (size_t i = 0; i < t->nlanes; i++)
        height += (t->lanes[i].shown ? LANE_HEIGHT : 0) + (first_of_rank(t, i) ? RANK_GAP : 0);
    return height;
}

static bool in_window(const struct drawing *d, const struct holmes_timeline_span *s)
{
    return s->end > d->from && s->start < d->to && holmes_timeline_step_number(s) == 0;
}

static void draw_span(struct drawing *d, const struct holmes_timeline_span *s, double end, double y)
{
    const struct kind *k = &d->kinds[kind_index(d, s->name)];
    double x1 = place(d, s->start), x2 = place(d, end), height = LANE_HEIGHT - 3;

    if (s->nested) {
        y += height - 4;
        height = 4;
    }
    fprintf(d->out,
            "<rect class=\"f%zu\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\" "
            "fill=\"%s\" fill-opacity=\"%.2f\"><title>",
            k->colour % 8, x1, y, fmax(x2 - x1 - 0.15, THIN), height, holmes_svg_colour(k->colour),
            k->opacity);
    holmes_svg_escape(d->out, s->name);
    fprintf(d->out, ": %.3f ms from %.3f ms</title></rect>\n", end - s->start, s->start - d->from);
}

/* All spans of one lane; `at` moves behind them. */
static void draw_lane(struct drawing *d, size_t lane, size_t *at, double y)
{
    const struct holmes_timeline *t = d->t;
    double thin = THIN / (d->width - LEFT - RIGHT) * (d->to - d->from);

    while (*at < t->nspans && t->spans[*at].lane == (int)lane) {
        const struct holmes_timeline_span *s = &t->spans[(*at)++];
        double end = s->end;
        int kind;

        if (!in_window(d, s))
            continue;
        kind = kind_index(d, s->name);
        while (end - s->start < thin && *at < t->nspans && t->spans[*at].lane == (int)lane &&
               in_window(d, &t->spans[*at]) && t->spans[*at].nested == s->nested &&
               t->spans[*at].end - s->start < thin && kind_index(d, t->spans[*at].name) == kind)
            end = fmax(end, t->spans[(*at)++].end);
        draw_span(d, s, end, y);
    }
}

static double draw_axis(const struct drawing *d, double top, double bottom)
{
    double span = d->to - d->from, raw = span / TICKS, unit = pow(10, floor(log10(raw)));
    double step = unit * (raw / unit <= 1 ? 1 : raw / unit <= 2 ? 2 : raw / unit <= 5 ? 5 : 10);
    char text[32];

    for (int i = 0; i <= 2 * TICKS && i * step <= span * 1.0001; i++) {
        double x = place(d, d->from + i * step);

        fprintf(d->out,
                "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                "stroke=\"#dddddd\"/>\n",
                x, top, x, bottom);
        snprintf(text, sizeof text, "%.6g", i * step);
        holmes_svg_text(d->out, x, bottom + 15, 11, "middle", text);
    }
    holmes_svg_text(d->out, (LEFT + d->width - RIGHT) / 2, bottom + 32, 12, "middle",
                    "milliseconds");
    return bottom + 40;
}

static void draw_legend(const struct drawing *d, double y)
{
    double x = 16;

    for (int i = 0; i < d->nkinds; i++) {
        const struct kind *k = &d->kinds[i];
        double need = 30 + 7.0 * (double)strlen(k->name);

        if (x + need > d->width - 8)
            break;
        fprintf(d->out,
                "<rect class=\"f%zu\" x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"10\" "
                "fill=\"%s\" fill-opacity=\"%.2f\"/>\n",
                k->colour % 8, x, y, holmes_svg_colour(k->colour), k->opacity);
        holmes_svg_text(d->out, x + 14, y + 9, 12, "start", k->name);
        x += need;
    }
}

void holmes_timeline_draw(const struct holmes_timeline *t, double from, double to, double width,
                          const char *title, FILE *out)
{
    struct drawing d = {
        .t = t, .from = from, .to = to > from ? to : from + 1e-3, .width = width, .out = out};
    double top = 58, y = top, bottom = holmes_timeline_height(t) - 46;
    size_t at = 0;
    char text[80];

    fputs("<g>\n", out);
    holmes_svg_text(out, 16, 24, 16, "start", title);
    draw_axis(&d, top, bottom);
    for (size_t i = 0; i < t->nlanes; i++) {
        if (first_of_rank(t, i)) {
            y += RANK_GAP;
            snprintf(text, sizeof text, "rank %jd", (intmax_t)t->lanes[i].rank);
            holmes_svg_text(out, 16, y + 11, 12, "start", text);
        }
        if (!t->lanes[i].shown) {
            draw_lane(&d, i, &at, y);
            continue;
        }
        snprintf(text, sizeof text, "%.14s", t->lanes[i].name);
        holmes_svg_text(out, LEFT - 8, y + 11, 11, "end", text);
        draw_lane(&d, i, &at, y);
        y += LANE_HEIGHT;
    }
    draw_legend(&d, 36);
    fputs("</g>\n", out);
}
