/* The tables. Of the reference the fastest number of streams stands among the plugins; a second
 * table gives all of them. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "table.h"

static const char *type_name(const struct holmes_bench_options *o)
{
    return o->type == HOLMES_FLOAT32 ? "float" : "bfloat16";
}

/* "-" for what does not exist. */
static void cell_number(struct holmes_table *t, const char *fmt, double v)
{
    char text[48] = "-";

    if (isfinite(v))
        snprintf(text, sizeof text, fmt, v);
    holmes_table_cell(t, "%s", text);
}

/* Three or four significant digits without an exponent, as columns like it. */
static const char *digits_for(double v)
{
    static const struct {
        double least;
        const char *fmt;
    } steps[] = {{1000, "%.0f"}, {100, "%.1f"}, {1, "%.2f"}, {0.01, "%.3f"}, {0.0001, "%.5f"}};

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (v >= steps[i].least)
            return steps[i].fmt;
    return "%.7f";
}

static void cell_figure(struct holmes_table *t, double v)
{
    cell_number(t, digits_for(v), v);
}

static bool is_latency(const struct holmes_results *r, int measure)
{
    return r->measures[measure] == HOLMES_BENCH_LATENCY;
}

static void add_columns(struct holmes_table *t, const char *const *headings, size_t n)
{
    for (size_t i = 0; i < n; i++)
        holmes_table_column(t, headings[i], HOLMES_TABLE_RIGHT);
}

static bool has_both(const struct holmes_results *r)
{
    return holmes_results_has(r, HOLMES_REFERENCE_BLOCKS) &&
           holmes_results_has(r, HOLMES_REFERENCE_POLLS);
}

/* Whether the tables have a ratio to the fastest of this kind: one column where there is one kind,
 * or one for each. */
static bool compares(const struct holmes_results *r, enum holmes_reference_kind kind)
{
    int lines = r->options->nplugins + (has_both(r) ? 2 : 1);

    return lines > 1 && holmes_results_has(r, kind) &&
           has_both(r) == (kind != HOLMES_REFERENCE_ANY);
}

static bool shows_wire(const struct holmes_results *r, int measure)
{
    return holmes_link_total_rate(&r->options->link) > 0 && !is_latency(r, measure);
}

static void add_headings(struct holmes_table *t, const struct holmes_results *r, int measure,
                         bool vs_first)
{
    static const char *const before[] = {"size\n(B)", "count\n(elements)", "type", "side",
                                         "time\n(us)"};
    static const char *const bandwidths[] = {"algbw\n(GB/s)", "busbw\n(GB/s)"};
    static const char *const percentiles[] = {"p50\n(us)", "p99\n(us)", "max\n(us)"};
    static const char *const after[] = {"spread\n(%)", "#wrong", "CPU\n(s/GB)"};
    char ratio[96];

    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        holmes_table_column(t, before[i],
                            i == 2 || i == 3 ? HOLMES_TABLE_LEFT : HOLMES_TABLE_RIGHT);
    if (is_latency(r, measure))
        add_columns(t, percentiles, sizeof percentiles / sizeof percentiles[0]);
    else
        add_columns(t, bandwidths, sizeof bandwidths / sizeof bandwidths[0]);
    if (shows_wire(r, measure))
        holmes_table_column(t, "wire\n(%)", HOLMES_TABLE_RIGHT);
    add_columns(t, after, sizeof after / sizeof after[0]);
    snprintf(ratio, sizeof ratio, "x %.60s", r->variants[0].label);
    if (vs_first)
        holmes_table_column(t, ratio, HOLMES_TABLE_RIGHT);
    for (int kind = 0; kind <= HOLMES_REFERENCE_ANY; kind++) {
        snprintf(ratio, sizeof ratio, "x %s",
                 holmes_reference_name((enum holmes_reference_kind)kind));
        if (compares(r, (enum holmes_reference_kind)kind))
            holmes_table_column(t, ratio, HOLMES_TABLE_RIGHT);
    }
}

static void add_row(struct holmes_table *t, const struct holmes_results *r, int measure, int size,
                    int variant, bool vs_first)
{
    const struct holmes_shape *s = &r->shapes[size];
    struct holmes_figures f = holmes_results_figures(r, measure, size, variant);

    holmes_table_cell(t, "%ju", (uintmax_t)s->size_bytes);
    holmes_table_cell(t, "%zu", s->count);
    holmes_table_cell(t, "%s", type_name(r->options));
    holmes_table_cell(t, "%s", r->variants[variant].label);
    cell_figure(t, f.us.median);
    if (is_latency(r, measure)) {
        cell_figure(t, f.p50);
        cell_figure(t, f.p99);
        cell_figure(t, f.max);
    } else {
        cell_figure(t, f.algbw.median);
        cell_figure(t, f.busbw.median);
    }
    if (shows_wire(r, measure))
        cell_number(t, "%.1f", 100 * f.wire);
    cell_number(t, "%.0f", 100 * f.spread);
    if (r->options->check)
        holmes_table_cell(t, "%ju", (uintmax_t)r->cells[0][size][variant].wrong);
    else
        holmes_table_cell(t, "n/a");
    cell_figure(t, f.cpu.median);
    if (vs_first)
        cell_number(t, "%.2f", f.vs_first);
    for (int kind = 0; kind <= HOLMES_REFERENCE_ANY; kind++)
        if (compares(r, (enum holmes_reference_kind)kind))
            cell_number(t, "%.2f", f.vs_reference[kind]);
}

static int print_measure(const struct holmes_results *r, int measure, FILE *out)
{
    const struct holmes_bench_options *o = r->options;
    bool vs_first = o->nplugins > 0 && o->nplugins + o->reference > 1;
    int columns = (is_latency(r, measure) ? 11 : 10) + shows_wire(r, measure) + vs_first;
    struct holmes_table *t;
    int rc;

    for (int kind = 0; kind <= HOLMES_REFERENCE_ANY; kind++)
        columns += compares(r, (enum holmes_reference_kind)kind);
    rc = holmes_table_create(columns, &t);
    if (rc != 0)
        return rc;
    add_headings(t, r, measure, vs_first);
    for (int s = 0; s < r->nsizes_done; s++) {
        for (int v = 0; v < o->nplugins; v++)
            add_row(t, r, measure, s, v, vs_first);
        for (int kind = 0; kind < HOLMES_REFERENCE_ANY; kind++) {
            int best =
                holmes_results_best_reference(r, (enum holmes_reference_kind)kind, measure, s);

            if (best >= 0)
                add_row(t, r, measure, s, best, vs_first);
        }
    }
    rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    return rc;
}

/* The reference by number of streams: bandwidths, for latencies microseconds. */
static int print_streams(const struct holmes_results *r, int measure, FILE *out)
{
    bool latency = is_latency(r, measure);
    int first = r->options->nplugins;
    struct holmes_table *t;
    int rc = holmes_table_create(1 + r->nvariants - first, &t);

    if (rc != 0)
        return rc;
    holmes_table_column(t, "size\n(B)", HOLMES_TABLE_RIGHT);
    for (int v = first; v < r->nvariants; v++)
        holmes_table_column(t, r->variants[v].label, HOLMES_TABLE_RIGHT);
    for (int s = 0; s < r->nsizes_done; s++) {
        holmes_table_cell(t, "%ju", (uintmax_t)r->shapes[s].size_bytes);
        for (int v = first; v < r->nvariants; v++) {
            struct holmes_figures f = holmes_results_figures(r, measure, s, v);

            cell_figure(t, latency ? f.us.median : f.busbw.median);
        }
    }
    fprintf(out, "\n# reference by number of streams: %s\n", latency ? "us" : "busbw, GB/s");
    rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    return rc;
}

/* What each side sent over each link in its rounds: whether all NICs were used, and how evenly. */
static int print_links(const struct holmes_results *r, FILE *out)
{
    int nlinks = r->options->link.nlinks;
    struct holmes_table *t;
    char heading[32];
    int rc = holmes_table_create(1 + nlinks, &t);

    if (rc != 0)
        return rc;
    holmes_table_column(t, "side", HOLMES_TABLE_LEFT);
    for (int k = 0; k < nlinks; k++) {
        snprintf(heading, sizeof heading, "link%d\n(MB)", k);
        holmes_table_column(t, heading, HOLMES_TABLE_RIGHT);
    }
    for (int v = 0; v < r->nvariants; v++) {
        holmes_table_cell(t, "%s", r->variants[v].label);
        for (int k = 0; k < nlinks; k++)
            holmes_table_cell(t, "%.1f", (double)r->variants[v].link_bytes[k] / 1e6);
    }
    fprintf(out, "\n# sent by all ranks in the rounds, by the interfaces' counters\n");
    rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    return rc;
}

static void print_preface(const struct holmes_results *r, FILE *out)
{
    const struct holmes_bench_options *o = r->options;
    char host[65] = "";

    gethostname(host, sizeof host - 1);
    fprintf(out, "# holmes-bench %s%s: %d ranks on %s (%ld CPUs), %s, median of %d rounds\n",
            holmes_collective_name(o->collective), o->through_nccl ? " through NCCL" : "",
            o->nranks, host, sysconf(_SC_NPROCESSORS_ONLN), type_name(o), o->rounds);
    for (int k = 0; k < o->link.nlinks; k++) {
        char text[160];

        /* two ranks without delay have a cable */
        holmes_link_describe(&o->link.shapes[k], o->nranks > 2 || *r->delayed_by, text,
                             sizeof text);
        fprintf(out, "# link%d: %s, MTU %d%s%s\n", k, text, HOLMES_LINK_MTU,
                *r->delayed_by ? ", by " : "", r->delayed_by);
    }
    for (int v = 0; v < o->nplugins; v++) {
        fprintf(out, "# %s: %s", r->variants[v].label, r->variants[v].about);
        for (int i = 0; i < o->plugins[v].nsettings; i++)
            fprintf(out, "%s %s", i ? "" : ", with", o->plugins[v].settings[i]);
        fputc('\n', out);
    }
    if (o->reference)
        fprintf(out, "# reference: %s, plain streams, no sums\n", r->variants[o->nplugins].about);
    if (holmes_results_has(r, HOLMES_REFERENCE_BLOCKS))
        fprintf(out, "# TCP xN: N streams, blocking, a thread for each end of each\n");
    if (holmes_results_has(r, HOLMES_REFERENCE_POLLS))
        fprintf(out,
                "# poll xN: N streams, non-blocking, one thread in each rank (/T: T of them)\n");
}

static const char *measure_title(const struct holmes_bench_options *o, enum holmes_bench_measure m)
{
    switch (m) {
    case HOLMES_BENCH_LATENCY:
        return "latency: half a round trip";
    case HOLMES_BENCH_BANDWIDTH:
        return o->both_ways ? "bandwidth: of each direction, both ways at once, several messages "
                              "under way"
                            : "bandwidth: one way, several messages under way";
    default:
        return NULL;
    }
}

int holmes_report_table(const struct holmes_results *r, FILE *out)
{
    uint64_t wrong = holmes_results_wrong(r);
    int rc = 0;

    print_preface(r, out);
    for (int m = 0; m < r->nmeasures && rc == 0; m++) {
        const char *title = measure_title(r->options, r->measures[m]);

        fprintf(out, "#\n%s%s%s", title ? "# " : "", title ? title : "", title ? "\n" : "");
        rc = print_measure(r, m, out);
        if (rc == 0 && r->nvariants - r->options->nplugins > 1)
            rc = print_streams(r, m, out);
    }
    if (rc == 0 && r->options->link.nlinks > 0)
        rc = print_links(r, out);
    if (rc == 0 && r->options->check)
        fprintf(out, "\n# wrong elements: %ju%s\n", (uintmax_t)wrong, wrong ? "  FAILED" : "");
    return rc != 0 ? rc : fflush(out) != 0 || ferror(out) ? -EIO : 0;
}
