/* Figures of `connections` and `ranks` as tables and JSON. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

#include "scale.h"
#include "table.h"

int64_t holmes_scale_left(const struct holmes_scale_usage *before,
                          const struct holmes_scale_usage *after)
{
    int64_t fds = after->fds - before->fds, threads = after->threads - before->threads;

    return (fds > 0 ? fds : 0) + (threads > 0 ? threads : 0);
}

/* A thread that a plugin starts with the first message may stay until the plugin ends. */
int64_t holmes_scale_mesh_left(const struct holmes_scale_mesh *m)
{
    struct holmes_scale_usage closed = m->closed;

    if (m->finalizes)
        closed.threads = m->started.threads;
    return holmes_scale_left(&m->started, &closed) +
           (m->finalizes ? holmes_scale_left(&m->before, &m->after) : 0);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

struct holmes_scale_times holmes_scale_times_of(int64_t *took, int n, int64_t total_ns)
{
    qsort(took, (size_t)n, sizeof *took, by_value);
    return (struct holmes_scale_times){.total_ns = total_ns,
                                       .p50_ns = took[n / 2],
                                       .p99_ns = took[(int64_t)n * 99 / 100],
                                       .max_ns = took[n - 1]};
}

/* ---- `connections`: a line for each figure, a column for each turn ---- */

static double per(int64_t total, int n)
{
    return (double)total / n;
}

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

struct figure {
    const char *name, *unit; /* unit NULL: a line across */
    const char *fmt;
    double (*of)(const struct holmes_scale_turn *t);
};

static double raise_total(const struct holmes_scale_turn *t)
{
    return ms(t->raise.total_ns);
}
static double raise_p50(const struct holmes_scale_turn *t)
{
    return ms(t->raise.p50_ns);
}
static double raise_p99(const struct holmes_scale_turn *t)
{
    return ms(t->raise.p99_ns);
}
static double raise_cpu(const struct holmes_scale_turn *t)
{
    return per(t->near_up.cpu_ns - t->near_before.cpu_ns, t->connections) * 1e-6;
}
static double far_raise_cpu(const struct holmes_scale_turn *t)
{
    return per(t->far_up.cpu_ns - t->far_before.cpu_ns, t->connections) * 1e-6;
}
static double near_pss(const struct holmes_scale_turn *t)
{
    return per(t->near_up.pss - t->near_before.pss, t->connections) / 1024;
}
static double near_rss(const struct holmes_scale_turn *t)
{
    return per(t->near_up.rss - t->near_before.rss, t->connections) / 1024;
}
static double near_used(const struct holmes_scale_turn *t)
{
    return per(t->near_used.pss - t->near_before.pss, t->connections) / 1024;
}
static double far_pss(const struct holmes_scale_turn *t)
{
    return per(t->far_up.pss - t->far_before.pss, t->connections) / 1024;
}
static double near_fds(const struct holmes_scale_turn *t)
{
    return per(t->near_up.fds - t->near_before.fds, t->connections);
}
static double far_fds(const struct holmes_scale_turn *t)
{
    return per(t->far_up.fds - t->far_before.fds, t->connections);
}
static double near_threads(const struct holmes_scale_turn *t)
{
    return (double)(t->near_up.threads - t->near_before.threads);
}
static double idle_cpu(const struct holmes_scale_turn *t)
{
    return t->idle_cpu;
}
static double poll_cpu(const struct holmes_scale_turn *t)
{
    return t->poll_cpu;
}
static double look_us(const struct holmes_scale_turn *t)
{
    return t->looks ? (double)t->looks_cpu_ns * 1e-3 / (double)t->looks : 0;
}
static double exchange_ms(const struct holmes_scale_turn *t)
{
    return ms(t->exchange_ns);
}
static double close_ms(const struct holmes_scale_turn *t)
{
    return ms(t->close_ns);
}
static double left_behind(const struct holmes_scale_turn *t)
{
    return (double)(holmes_scale_left(&t->near_before, &t->near_after) +
                    holmes_scale_left(&t->far_before, &t->far_after));
}
static double left_pss(const struct holmes_scale_turn *t)
{
    return (double)(t->near_after.pss - t->near_before.pss) / 1024;
}

static const struct figure figures[] = {
    {"all raised after", "ms", "%.1f", raise_total},
    {"a connection raised after, median", "ms", "%.1f", raise_p50},
    {"a connection raised after, 99 %", "ms", "%.1f", raise_p99},
    {"CPU to raise a connection", "ms", "%.3f", raise_cpu},
    {"the same, peers", "ms", "%.3f", far_raise_cpu},
    {NULL, NULL, NULL, NULL},
    {"memory of a connection (PSS)", "KiB", "%.1f", near_pss},
    {"the same as RSS", "KiB", "%.1f", near_rss},
    {"the same, other end (PSS)", "KiB", "%.1f", far_pss},
    {"after a message over it (PSS)", "KiB", "%.1f", near_used},
    {"descriptors of a connection", "", "%.2f", near_fds},
    {"the same, other end", "", "%.2f", far_fds},
    {"threads more than before", "", "%.0f", near_threads},
    {NULL, NULL, NULL, NULL},
    {"CPU at rest", "s/s", "%.4f", idle_cpu},
    {"CPU while polling", "s/s", "%.2f", poll_cpu},
    {"CPU of a look at a receive", "us", "%.2f", look_us},
    {NULL, NULL, NULL, NULL},
    {"a message over each", "ms", "%.1f", exchange_ms},
    {"all closed after", "ms", "%.1f", close_ms},
    {"descriptors and threads left", "", "%.0f", left_behind},
    {"memory left (PSS)", "KiB", "%.0f", left_pss},
};
#define NFIGURES (sizeof figures / sizeof *figures)

static void print_turns(struct holmes_table *t, const struct holmes_scale_results *r)
{
    for (size_t f = 0; f < NFIGURES; f++) {
        if (!figures[f].name) {
            holmes_table_rule(t);
            continue;
        }
        holmes_table_cell(t, "%s", figures[f].name);
        holmes_table_cell(t, "%s", figures[f].unit);
        for (int i = 0; i < r->nturns; i++) {
            char text[48];

            snprintf(text, sizeof text, figures[f].fmt, figures[f].of(&r->turns[i]));
            holmes_table_cell(t, "%s", text);
        }
    }
}

int holmes_scale_print(const struct holmes_scale_results *r, FILE *out)
{
    struct holmes_table *t;
    int rc = holmes_table_create(2 + r->nturns, &t);

    if (rc != 0)
        return rc;
    fprintf(out, "%s\n", r->about);
    fprintf(out,
            "The plugin and its NIC: %.1f MiB (PSS), %lld descriptors, %lld threads; %lld "
            "descriptors are allowed.\n\n",
            (double)(r->at_home.pss - r->alone.pss) / 1048576,
            (long long)(r->at_home.fds - r->alone.fds),
            (long long)(r->at_home.threads - r->alone.threads), (long long)r->nofile);
    holmes_table_column(t, "connections of one process", HOLMES_TABLE_LEFT);
    holmes_table_column(t, "", HOLMES_TABLE_LEFT);
    for (int i = 0; i < r->nturns; i++) {
        char heading[16];

        snprintf(heading, sizeof heading, "%d", r->turns[i].connections);
        holmes_table_column(t, heading, HOLMES_TABLE_RIGHT);
    }
    print_turns(t, r);
    rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    return rc;
}

/* ---- `ranks` ---- */

static void line(struct holmes_table *t, const char *name, const char *unit, const char *fmt,
                 double value)
{
    char text[48];

    snprintf(text, sizeof text, fmt, value);
    holmes_table_cell(t, "%s", name);
    holmes_table_cell(t, "%s", unit);
    holmes_table_cell(t, "%s", text);
}

int holmes_scale_mesh_print(const struct holmes_scale_mesh *m, FILE *out)
{
    static const char *const headings[] = {"ranks as threads, ring and tree", "", "", NULL};
    struct holmes_table *t = holmes_table_of(headings, "llr");
    double ends = 2.0 * m->connections;
    int rc;

    if (!t)
        return -ENOMEM;
    fprintf(out, "%s\n\n", m->about);
    line(t, "ranks", "", "%.0f", m->ranks);
    line(t, "connections", "", "%.0f", m->connections);
    holmes_table_rule(t);
    line(t, "plugins loaded and initialised after", "ms", "%.1f", ms(m->start_ns));
    line(t, "all raised after", "ms", "%.1f", ms(m->raise.total_ns));
    line(t, "an end raised after, median", "ms", "%.1f", ms(m->raise.p50_ns));
    line(t, "an end raised after, 99 %", "ms", "%.1f", ms(m->raise.p99_ns));
    line(t, "CPU to raise a connection, both ends", "ms", "%.3f",
         per(m->raise_cpu_ns, m->connections) * 1e-6);
    line(t, "a message over each", "ms", "%.1f", ms(m->exchange_ns));
    line(t, "all closed after", "ms", "%.1f", ms(m->close_ns));
    holmes_table_rule(t);
    line(t, "descriptors of a rank without connections", "", "%.2f",
         per(m->started.fds - m->before.fds, m->ranks));
    line(t, "descriptors of an end", "", "%.2f", (double)(m->up.fds - m->started.fds) / ends);
    line(t, "descriptors in all", "", "%.0f", (double)m->up.fds);
    line(t, "memory of a rank without connections (PSS)", "KiB", "%.0f",
         per(m->started.pss - m->before.pss, m->ranks) / 1024);
    line(t, "memory of an end (PSS)", "KiB", "%.1f",
         (double)(m->up.pss - m->started.pss) / 1024 / ends);
    line(t, "the same, after a message over it", "KiB", "%.1f",
         (double)(m->used.pss - m->started.pss) / 1024 / ends);
    line(t, "threads in all, one a rank ours", "", "%.0f", (double)m->used.threads);
    line(t, "descriptors and threads left", "", "%.0f", (double)holmes_scale_mesh_left(m));
    rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    return rc;
}

/* ---- JSON ---- */

static json_t *json_usage(const struct holmes_scale_usage *u)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "descriptors", (json_int_t)u->fds, "threads",
                     (json_int_t)u->threads, "rss_bytes", (json_int_t)u->rss, "pss_bytes",
                     (json_int_t)u->pss, "cpu_ns", (json_int_t)u->cpu_ns, "context_switches",
                     (json_int_t)u->switches);
}

static json_t *json_times(const struct holmes_scale_times *t)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "total_ns", (json_int_t)t->total_ns, "p50_ns",
                     (json_int_t)t->p50_ns, "p99_ns", (json_int_t)t->p99_ns, "max_ns",
                     (json_int_t)t->max_ns);
}

static json_t *json_stages(const struct holmes_scale_usage *before,
                           const struct holmes_scale_usage *raised,
                           const struct holmes_scale_usage *used,
                           const struct holmes_scale_usage *closed)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "before", json_usage(before), "raised",
                     json_usage(raised), "used", json_usage(used), "closed", json_usage(closed));
}

static json_t *json_turn(const struct holmes_scale_turn *t)
{
    json_t *near = json_stages(&t->near_before, &t->near_up, &t->near_used, &t->near_after);
    json_t *far = json_stages(&t->far_before, &t->far_up, &t->far_used, &t->far_after);

    return json_pack("{s:i, s:o, s:o, s:o, s:f, s:I, s:f, s:I, s:I, s:I, s:I, s:I}", "connections",
                     t->connections, "raise", json_times(&t->raise), "process", near, "peers", far,
                     "idle_cpu_s_per_s", t->idle_cpu, "idle_context_switches",
                     (json_int_t)t->idle_switches, "poll_cpu_s_per_s", t->poll_cpu, "looks",
                     (json_int_t)t->looks, "looks_cpu_ns", (json_int_t)t->looks_cpu_ns,
                     "exchange_ns", (json_int_t)t->exchange_ns, "close_ns", (json_int_t)t->close_ns,
                     "left",
                     (json_int_t)(holmes_scale_left(&t->near_before, &t->near_after) +
                                  holmes_scale_left(&t->far_before, &t->far_after)));
}

static int json_write(json_t *root, FILE *out)
{
    int rc;

    if (!root)
        return -ENOMEM;
    rc = json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(root);
    fputc('\n', out);
    return rc != 0 || fflush(out) != 0 || ferror(out) ? -EIO : 0;
}

int holmes_scale_json(const struct holmes_scale_options *o, const struct holmes_scale_results *r,
                      FILE *out)
{
    json_t *turns = json_array();

    for (int i = 0; i < r->nturns; i++)
        json_array_append_new(turns, json_turn(&r->turns[i]));
    return json_write(json_pack("{s:s, s:s, s:i, s:i, s:I, s:o, s:o, s:o}", "command",
                                "connections", "plugin", r->about, "peers", o->npeers,
                                "idle_seconds", o->idle_s, "descriptors_allowed",
                                (json_int_t)r->nofile, "before_plugin", json_usage(&r->alone),
                                "plugin_ready", json_usage(&r->at_home), "turns", turns),
                      out);
}

int holmes_scale_mesh_json(const struct holmes_scale_mesh *m, FILE *out)
{
    return json_write(
        json_pack(
            "{s:s, s:s, s:i, s:i, s:I, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I}",
            "command", "ranks", "plugin", m->about, "ranks", m->ranks, "connections",
            m->connections, "start_ns", (json_int_t)m->start_ns, "raise", json_times(&m->raise),
            "raise_cpu_ns", (json_int_t)m->raise_cpu_ns, "exchange_ns", (json_int_t)m->exchange_ns,
            "close_ns", (json_int_t)m->close_ns, "before", json_usage(&m->before), "started",
            json_usage(&m->started), "raised", json_usage(&m->up), "used", json_usage(&m->used),
            "closed", json_usage(&m->closed), "after", json_usage(&m->after), "left",
            (json_int_t)holmes_scale_mesh_left(m)),
        out);
}
