/* CSV and JSON of the results. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "report.h"
#include "utf8.h"

/* RFC 4180: quoted where it must be. */
static void csv_text(FILE *out, const char *text)
{
    if (!strpbrk(text, "\",\r\n")) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

/* Nothing for what does not exist. */
static void csv_number(FILE *out, double v)
{
    fputc(',', out);
    if (isfinite(v))
        fprintf(out, "%.9g", v);
}

static void csv_stats(FILE *out, struct holmes_stats s)
{
    csv_number(out, s.median);
    csv_number(out, s.min);
    csv_number(out, s.max);
}

static const char *type_name(const struct holmes_results *r)
{
    return r->options->type == HOLMES_FLOAT32 ? "float" : "bfloat16";
}

static void csv_row(const struct holmes_results *r, int m, int s, int v, FILE *out)
{
    const struct holmes_variant *variant = &r->variants[v];
    const struct holmes_cell *c = &r->cells[m][s][v];
    struct holmes_figures f = holmes_results_figures(r, m, s, v);

    fprintf(out, "%s,%s,%d,%s,%ju,%zu,", holmes_collective_name(r->options->collective),
            holmes_measure_name(r->measures[m]), r->options->nranks, type_name(r),
            (uintmax_t)r->shapes[s].size_bytes, r->shapes[s].count);
    csv_text(out, variant->label);
    fprintf(out, ",%s,%d,%d,%d", variant->streams ? "reference" : "plugin", variant->streams,
            c->rounds, c->iters);
    csv_stats(out, f.us);
    csv_stats(out, f.algbw);
    csv_stats(out, f.busbw);
    if (r->options->check)
        fprintf(out, ",%ju", (uintmax_t)r->cells[0][s][v].wrong);
    else
        fputc(',', out);
    csv_number(out, f.vs_first);
    csv_number(out, f.vs_reference[HOLMES_REFERENCE_ANY]);
    csv_stats(out, f.cpu);
    csv_number(out, f.p50);
    csv_number(out, f.p99);
    csv_number(out, f.max);
    fprintf(out, ",%d", variant->threads);
    csv_number(out, f.vs_reference[HOLMES_REFERENCE_BLOCKS]);
    csv_number(out, f.vs_reference[HOLMES_REFERENCE_POLLS]);
    csv_number(out, f.wire);
    fputs("\r\n", out);
}

int holmes_report_csv(const struct holmes_results *r, FILE *out)
{
    fputs("collective,measure,ranks,type,size_bytes,count,side,kind,streams,rounds,iters,"
          "time_us,time_us_min,time_us_max,algbw_gbytes_s,algbw_gbytes_s_min,algbw_gbytes_s_max,"
          "busbw_gbytes_s,busbw_gbytes_s_min,busbw_gbytes_s_max,wrong,ratio_first,"
          "ratio_reference,cpu_s_per_gbyte,cpu_s_per_gbyte_min,cpu_s_per_gbyte_max,p50_us,p99_us,"
          "max_us,polling_threads,ratio_tcp,ratio_poll,wire_share\r\n",
          out);
    for (int m = 0; m < r->nmeasures; m++)
        for (int s = 0; s < r->nsizes_done; s++)
            for (int v = 0; v < r->nvariants; v++)
                csv_row(r, m, s, v, out);
    return fflush(out) != 0 || ferror(out) ? -EIO : 0;
}

static json_t *json_number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* A label may come from a path of any bytes, and jansson takes UTF-8 only. */
static json_t *json_text(const char *text)
{
    char clean[512];
    size_t at = 0, n;

    for (; *text && at + 4 < sizeof clean; text += n) {
        if (holmes_utf8_decode(text, &n) == HOLMES_UTF8_REPLACEMENT) {
            clean[at++] = '?';
            continue;
        }
        memcpy(clean + at, text, n);
        at += n;
    }
    return json_stringn(clean, at);
}

/* What every round gave. */
static json_t *json_rounds(const double *values, int rounds)
{
    json_t *array = json_array();

    for (int i = 0; i < rounds; i++)
        json_array_append_new(array, json_number(values[i]));
    return array;
}

static json_t *json_cell(const struct holmes_results *r, int m, int s, int v)
{
    const struct holmes_cell *c = &r->cells[m][s][v];
    struct holmes_figures f = holmes_results_figures(r, m, s, v);
    json_t *cell = json_pack(
        "{s:s, s:I, s:I, s:o, s:i, s:i, s:i, s:o, s:o, s:o}", "measure",
        holmes_measure_name(r->measures[m]), "size_bytes", (json_int_t)r->shapes[s].size_bytes,
        "count", (json_int_t)r->shapes[s].count, "side", json_text(r->variants[v].label), "streams",
        r->variants[v].streams, "polling_threads", r->variants[v].threads, "iters", c->iters,
        "round_us", json_rounds(c->us, c->rounds), "round_cpu_s_per_gbyte",
        json_rounds(c->cpu, c->rounds), "wrong",
        r->options->check ? json_integer((json_int_t)r->cells[0][s][v].wrong) : json_null());
    const struct {
        const char *name;
        double value;
    } figures[] = {
        {"time_us", f.us.median},
        {"algbw_gbytes_s", f.algbw.median},
        {"busbw_gbytes_s", f.busbw.median},
        {"ratio_first", f.vs_first},
        {"ratio_reference", f.vs_reference[HOLMES_REFERENCE_ANY]},
        {"ratio_tcp", f.vs_reference[HOLMES_REFERENCE_BLOCKS]},
        {"ratio_poll", f.vs_reference[HOLMES_REFERENCE_POLLS]},
        {"cpu_s_per_gbyte", f.cpu.median},
        {"p50_us", f.p50},
        {"p99_us", f.p99},
        {"max_us", f.max},
        {"wire_share", f.wire},
    };

    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++)
        json_object_set_new(cell, figures[i].name, json_number(figures[i].value));
    return cell;
}

static json_t *json_settings(const struct holmes_results *r, int v)
{
    const struct holmes_bench_options *o = r->options;
    json_t *settings = json_array();

    for (int i = 0; v < o->nplugins && i < o->plugins[v].nsettings; i++)
        json_array_append_new(settings, json_text(o->plugins[v].settings[i]));
    return settings;
}

static json_t *json_links(const struct holmes_results *r)
{
    json_t *links = json_array();

    for (int k = 0; k < r->options->link.nlinks; k++) {
        const struct holmes_link_shape *s = &r->options->link.shapes[k];

        json_array_append_new(
            links, json_pack("{s:I, s:f, s:f}", "bits_per_s", (json_int_t)s->bits_per_s, "rtt_ms",
                             (double)s->rtt_us / 1e3, "loss_percent", (double)s->loss_ppm / 1e4));
    }
    return links;
}

static json_t *json_link_bytes(const struct holmes_results *r, int v)
{
    json_t *bytes = json_array();

    for (int k = 0; k < r->options->link.nlinks; k++)
        json_array_append_new(bytes, json_integer((json_int_t)r->variants[v].link_bytes[k]));
    return bytes;
}

static json_t *json_sides(const struct holmes_results *r)
{
    json_t *sides = json_array();

    for (int v = 0; v < r->nvariants; v++) {
        const struct holmes_variant *variant = &r->variants[v];

        json_array_append_new(
            sides, json_pack("{s:o, s:o, s:i, s:i, s:o, s:o}", "label", json_text(variant->label),
                             "about", json_text(variant->about), "streams", variant->streams,
                             "polling_threads", variant->threads, "settings", json_settings(r, v),
                             "link_bytes", json_link_bytes(r, v)));
    }
    return sides;
}

int holmes_report_json(const struct holmes_results *r, FILE *out)
{
    json_t *cells = json_array(), *root;
    int rc;

    for (int m = 0; m < r->nmeasures; m++)
        for (int s = 0; s < r->nsizes_done; s++)
            for (int v = 0; v < r->nvariants; v++)
                json_array_append_new(cells, json_cell(r, m, s, v));
    root = json_pack("{s:s, s:s, s:i, s:s, s:i, s:b, s:o, s:o, s:o}", "collective",
                     holmes_collective_name(r->options->collective), "backend",
                     r->options->through_nccl ? "nccl" : "net", "ranks", r->options->nranks, "type",
                     type_name(r), "rounds", r->options->rounds, "both_ways", r->options->both_ways,
                     "links", json_links(r), "sides", json_sides(r), "results", cells);
    if (!root)
        return -ENOMEM;
    rc = json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(root);
    fputc('\n', out);
    return rc != 0 || fflush(out) != 0 || ferror(out) ? -EIO : 0;
}
