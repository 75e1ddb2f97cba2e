/* Facts of runs as rows, which table, page and JSON share; the page around the pictures. */
#include "page.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "svg.h"
#include "table.h"

/* --- facts ---------------------------------------------------------------------------------------
 */

struct fact {
    const char *key, *title;
    int decimals; /* -1: six digits */
    double (*value)(const struct holmes_runlog *l);
};

static double steps_done(const struct holmes_runlog *l)
{
    return (double)l->steps.n;
}

static double ranks(const struct holmes_runlog *l)
{
    return l->nranks;
}

static double millions(const struct holmes_runlog *l)
{
    return l->parameters > 0 ? l->parameters / 1e6 : NAN;
}

static double step_ms(const struct holmes_runlog *l)
{
    return holmes_runlog_median(l, l->steps.seconds) * 1e3;
}

static double rate(const struct holmes_runlog *l)
{
    return holmes_runlog_median(l, l->steps.tokens_per_s);
}

static double gflops(const struct holmes_runlog *l)
{
    return l->flops_per_token > 0 ? rate(l) * l->flops_per_token / 1e9 : NAN;
}

static double held_out(const struct holmes_runlog *l)
{
    return l->evals.n > 0 ? l->evals.loss[l->evals.n - 1] : NAN;
}

static double unigram(const struct holmes_runlog *l)
{
    return l->unigram_nats;
}

static double sent_mb(const struct holmes_runlog *l)
{
    double sum = 0;

    for (int k = 0; k < l->nkinds; k++)
        for (int w = 0; w < l->nwires; w++)
            sum += l->bytes[k][w];
    return l->nwires > 0 && l->steps.n > 0 ? sum / (double)l->steps.n / 1e6 : NAN;
}

/* Of the rank that waits most: the others wait for somebody who does not. */
static double longest_wait_ms(const struct holmes_runlog *l)
{
    double most = NAN;

    for (int i = 0; i < l->nranks; i++) {
        double sum = 0;

        for (int k = 0; k < l->nkinds; k++)
            sum += l->ranks[i].wait_seconds[k];
        if (l->ranks[i].told && l->steps.n > 0)
            most = fmax(most, sum / (double)l->steps.n * 1e3);
    }
    return most;
}

/* The prediction that is furthest off, in percent of what was measured. */
static double memory_error(const struct holmes_runlog *l)
{
    double worst = NAN;

    for (int i = 0; i < l->nranks; i++) {
        double error = (l->ranks[i].predicted_bytes / l->ranks[i].measured_bytes - 1) * 100;

        if (isfinite(error) && !(fabs(error) <= fabs(worst)))
            worst = error;
    }
    return worst;
}

static const struct fact facts[] = {
    {"steps", "steps", 0, steps_done},
    {"ranks", "ranks", 0, ranks},
    {"million_parameters", "parameters, millions", 2, millions},
    {"tokens_per_s", "tokens/s, median", 0, rate},
    {"step_ms", "step time, ms, median", 1, step_ms},
    {"gflops", "GFLOPS of all ranks", 1, gflops},
    {"final_loss", "loss, mean of the last 10 steps", 4, holmes_runlog_final_loss},
    {"held_out_loss", "held-out loss", 4, held_out},
    {"unigram_nats", "unigram entropy of the held-out part", 4, unigram},
    {"sent_mb_per_step", "sent by all ranks, MB per step", 3, sent_mb},
    {"longest_wait_ms", "longest wait of a rank, ms per step", 1, longest_wait_ms},
    {"memory_error_percent", "memory: worst prediction off by, %", 1, memory_error},
};
#define NFACTS (sizeof facts / sizeof *facts)

static void split_text(const struct holmes_runlog *l, char *out, size_t len)
{
    int tensor = l->tensor_parallel > 0 ? l->tensor_parallel : 1;

    snprintf(out, len, "%d x %d x %d", tensor, l->pipeline, l->data_parallel);
}

static void model_text(const struct holmes_runlog *l, char *out, size_t len)
{
    snprintf(out, len, "%d x %d x %d", l->layers, l->channels, l->seq_len);
}

/* How the run ended, as far as its log tells. */
static const char *ending(const struct holmes_runlog *l)
{
    if (l->finished)
        return "finished";
    return l->cut ? "not finished, its last line is cut" : "not finished";
}

static bool anybody_knows(const struct holmes_report *r, const struct fact *f)
{
    for (size_t i = 0; i < r->nruns; i++)
        if (isfinite(f->value(&r->runs[i])))
            return true;
    return false;
}

static void fact_text(const struct fact *f, double v, char *out, size_t len)
{
    if (isfinite(v))
        snprintf(out, len, "%.*f", f->decimals, v);
    else
        snprintf(out, len, "-");
}

/* --- the table -----------------------------------------------------------------------------------
 */

static void text_row(struct holmes_table *t, const struct holmes_report *r, const char *title,
                     void (*text)(const struct holmes_runlog *l, char *out, size_t len))
{
    char buf[96];

    holmes_table_cell(t, "%s", title);
    for (size_t i = 0; i < r->nruns; i++) {
        text(&r->runs[i], buf, sizeof buf);
        holmes_table_cell(t, "%s", buf);
    }
}

static void ending_text(const struct holmes_runlog *l, char *out, size_t len)
{
    snprintf(out, len, "%s", ending(l));
}

static const struct {
    const char *title;
    void (*text)(const struct holmes_runlog *l, char *out, size_t len);
} texts[] = {{"run", ending_text},
             {"tensor x pipeline x data", split_text},
             {"layers x channels x sequence", model_text}};
#define NTEXTS (sizeof texts / sizeof *texts)

int holmes_page_table(const struct holmes_report *r, FILE *out)
{
    struct holmes_table *t;
    char buf[48];
    int rc = holmes_table_create((int)r->nruns + 1, &t);

    if (rc != 0)
        return rc;
    holmes_table_column(t, "", HOLMES_TABLE_LEFT);
    for (size_t i = 0; i < r->nruns; i++)
        holmes_table_column(t, r->names[i], HOLMES_TABLE_RIGHT);
    for (size_t i = 0; i < NTEXTS; i++)
        text_row(t, r, texts[i].title, texts[i].text);
    holmes_table_rule(t);
    for (size_t f = 0; f < NFACTS; f++) {
        if (!anybody_knows(r, &facts[f]))
            continue;
        holmes_table_cell(t, "%s", facts[f].title);
        for (size_t i = 0; i < r->nruns; i++) {
            fact_text(&facts[f], facts[f].value(&r->runs[i]), buf, sizeof buf);
            holmes_table_cell(t, "%s", buf);
        }
    }
    rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    return rc == 0 && ferror(out) ? -EIO : rc;
}

/* --- JSON ----------------------------------------------------------------------------------------
 */

static json_t *number_or_null(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *bytes_object(const struct holmes_runlog *l)
{
    json_t *kinds = json_object();

    for (int k = 0; k < l->nkinds; k++) {
        json_t *wires = json_object();

        for (int w = 0; w < l->nwires; w++)
            if (l->bytes[k][w] > 0)
                json_object_set_new(wires, l->wires[w], json_real(l->bytes[k][w]));
        json_object_set_new(kinds, l->kinds[k], wires);
    }
    return kinds;
}

static json_t *ranks_array(const struct holmes_runlog *l)
{
    json_t *all = json_array();

    for (int i = 0; i < l->nranks; i++) {
        const struct holmes_runlog_rank *rank = &l->ranks[i];
        json_t *waits = json_object();

        for (int k = 0; k < l->nkinds; k++)
            json_object_set_new(waits, l->kinds[k], json_real(rank->wait_seconds[k]));
        json_array_append_new(all,
                              json_pack("{s:i, s:i, s:i, s:s, s:s, s:o, s:o, s:o}", "rank", i,
                                        "stage", rank->stage, "replica", rank->replica, "host",
                                        rank->host, "cluster", rank->cluster, "wait_seconds", waits,
                                        "predicted_bytes", number_or_null(rank->predicted_bytes),
                                        "measured_bytes", number_or_null(rank->measured_bytes)));
    }
    return all;
}

static json_t *run_object(const struct holmes_report *r, size_t i)
{
    const struct holmes_runlog *l = &r->runs[i];
    json_t *o =
        json_pack("{s:s, s:b, s:b, s:i, s:i, s:i}", "name", r->names[i], "finished", l->finished,
                  "cut", l->cut, "tensor", l->tensor_parallel > 0 ? l->tensor_parallel : 1,
                  "pipeline", l->pipeline, "data_parallel", l->data_parallel);

    for (size_t f = 0; o && f < NFACTS; f++)
        json_object_set_new(o, facts[f].key, number_or_null(facts[f].value(l)));
    if (o && (json_object_set_new(o, "bytes_sent", bytes_object(l)) != 0 ||
              json_object_set_new(o, "per_rank", ranks_array(l)) != 0)) {
        json_decref(o);
        o = NULL;
    }
    return o;
}

json_t *holmes_page_json(const struct holmes_report *r)
{
    json_t *runs = json_array();

    for (size_t i = 0; runs && i < r->nruns; i++) {
        if (json_array_append_new(runs, run_object(r, i)) != 0) {
            json_decref(runs);
            return NULL;
        }
    }
    return runs ? json_pack("{s:o}", "runs", runs) : NULL;
}

/* --- the page ------------------------------------------------------------------------------------
 */

static const char style[] =
    ":root{color-scheme:light dark;--ink:#222;--grid:#ddd;--back:#fff;--card:#fafafa}\n"
    "@media (prefers-color-scheme:dark){:root{--ink:#e4e4e4;--grid:#3c3c3c;--back:#161616;"
    "--card:#1f1f1f}\n"
    ".f0{fill:#4aa3df}.s0{stroke:#4aa3df}.f6{fill:#fff}.s6{stroke:#fff}"
    ".f7{fill:#9f9f9f}.s7{stroke:#9f9f9f}}\n"
    "body{margin:0 auto;padding:16px;max-width:1340px;background:var(--back);color:var(--ink);"
    "font-family:system-ui,sans-serif}\n"
    "h1{font-size:22px;margin:8px 0 16px}\n"
    "main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));"
    "gap:16px}\n"
    "figure{margin:0;background:var(--card);border:1px solid var(--grid);border-radius:6px;"
    "overflow-x:auto}\n"
    "figure.wide{grid-column:1/-1}\n"
    "svg{display:block;width:100%;height:auto}\n"
    ".ink{fill:var(--ink)}.grid{stroke:var(--grid)}.axis{stroke:var(--ink)}\n"
    "table{border-collapse:collapse;margin:0 0 20px}\n"
    "th,td{padding:3px 14px 3px 0;text-align:right;font-size:14px}\n"
    "th:first-child,td:first-child{text-align:left}\n"
    "thead th{border-bottom:1px solid var(--ink)}\n"
    "footer{font-size:12px;margin-top:16px;opacity:.7}\n";

static void cell_put(FILE *out, const char *tag, const char *text)
{
    fprintf(out, "<%s>", tag);
    holmes_svg_escape(out, text);
    fprintf(out, "</%s>", tag);
}

static void page_table(const struct holmes_report *r, FILE *out)
{
    char buf[96];

    fputs("<table><thead><tr><th></th>", out);
    for (size_t i = 0; i < r->nruns; i++)
        cell_put(out, "th", r->names[i]);
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t k = 0; k < NTEXTS; k++) {
        fputs("<tr>", out);
        cell_put(out, "td", texts[k].title);
        for (size_t i = 0; i < r->nruns; i++) {
            texts[k].text(&r->runs[i], buf, sizeof buf);
            cell_put(out, "td", buf);
        }
        fputs("</tr>\n", out);
    }
    for (size_t f = 0; f < NFACTS; f++) {
        if (!anybody_knows(r, &facts[f]))
            continue;
        fputs("<tr>", out);
        cell_put(out, "td", facts[f].title);
        for (size_t i = 0; i < r->nruns; i++) {
            fact_text(&facts[f], facts[f].value(&r->runs[i]), buf, sizeof buf);
            cell_put(out, "td", buf);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table>\n", out);
}

static int page_figure(const struct holmes_report *r, const struct holmes_picture *p, FILE *out)
{
    int width = holmes_picture_width(p), height = holmes_picture_height(p, r), rc;

    fprintf(out, "<figure%s id=\"%s\">\n", p->wide ? " class=\"wide\"" : "", p->file);
    holmes_svg_begin_inline(out, width, height, p->file);
    rc = p->draw(r, width, height, out);
    fputs("</svg></figure>\n", out);
    return rc;
}

int holmes_page_html(const struct holmes_report *r, FILE *out)
{
    int rc = 0;

    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
          "<title>holmes-train: ",
          out);
    for (size_t i = 0; i < r->nruns; i++) {
        fputs(i ? ", " : "", out);
        holmes_svg_escape(out, r->names[i]);
    }
    fprintf(out, "</title>\n<style>\n%s</style></head>\n<body>\n<h1>Training report</h1>\n", style);
    page_table(r, out);
    fputs("<main>\n", out);
    for (const struct holmes_picture *p = holmes_pictures; p->file && rc == 0; p++)
        if (p->has(r))
            rc = page_figure(r, p, out);
    fputs("</main>\n<footer>holmes-train report. Medians are without the first step. Where the "
          "mouse rests on a piece of a time line, its name and length are shown.</footer>\n"
          "</body></html>\n",
          out);
    if (rc == 0 && (fflush(out) != 0 || ferror(out)))
        rc = -EIO;
    return rc;
}
