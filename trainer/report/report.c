/* Lays out two summaries as a table, as a picture and as JSON. */
#include "report.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "launch.h"
#include "log.h"
#include "svg.h"
#include "table.h"

static bool are_counted(const struct holmes_summary runs[2])
{
    return runs[0].counted && runs[1].counted;
}

void holmes_predict(const struct holmes_summary runs[2], double slow_mbit,
                    struct holmes_prediction *out)
{
    *out = (struct holmes_prediction){0};
    out->saved = runs[0].step_seconds - runs[1].step_seconds;
    if (runs[1].step_seconds > 0)
        out->speed_up = runs[0].step_seconds / runs[1].step_seconds;
    if (slow_mbit <= 0 || !are_counted(runs))
        return;
    for (int i = 0; i < 2; i++)
        out->link_seconds[i] = runs[i].busiest * 8 / (slow_mbit * 1e6);
    out->predicted_saved = out->link_seconds[0] - out->link_seconds[1];
    if (out->saved != 0)
        out->share = out->predicted_saved / out->saved;
}

/* A log's name without its folder and ending. */
static const char *stem(const struct holmes_summary *run, char buf[48])
{
    const char *slash = strrchr(run->path, '/'), *name = slash ? slash + 1 : run->path;

    snprintf(buf, 48, "%.*s", (int)strcspn(name, "."), name);
    return buf;
}

/* Column names: what was placed, else what the logs are called, else first and second. */
static const char *column(const struct holmes_summary runs[2], int i)
{
    static char stems[2][48];

    if (runs[i].placement[0] && strcmp(runs[0].placement, runs[1].placement) != 0)
        return runs[i].placement;
    if (strcmp(stem(&runs[0], stems[0]), stem(&runs[1], stems[1])) != 0 && *stems[i])
        return stems[i];
    return i == 0 ? "first" : "second";
}

static void cell(struct holmes_table *t, int decimals, double v)
{
    if (v >= 0)
        holmes_table_cell(t, "%.*f", decimals, v);
    else
        holmes_table_cell(t, "-");
}

/* A negative value is not known. */
static void row(struct holmes_table *t, const char *title, int decimals, double a, double b)
{
    holmes_table_cell(t, "%s", title);
    cell(t, decimals, a);
    cell(t, decimals, b);
    cell(t, 2, a > 0 && b >= 0 ? b / a : -1);
}

static double crossing_total(const struct holmes_summary *s)
{
    double sum = 0;

    for (int k = 0; k < HOLMES_KIND_COUNT; k++)
        sum += s->crossing[k];
    return sum;
}

static bool has_sides(const struct holmes_summary runs[2])
{
    return runs[0].nsides > 1 && runs[1].nsides > 1;
}

/* Tensor groups lie inside hosts: their row is for those who draw the sides through one. */
static bool kind_shown(const struct holmes_summary runs[2], int kind)
{
    return kind != HOLMES_KIND_TP || runs[0].crossing[kind] > 0 || runs[1].crossing[kind] > 0;
}

static void table_crossing(struct holmes_table *t, const struct holmes_summary runs[2],
                           double slow_mbit)
{
    struct holmes_prediction p;
    char title[96];

    holmes_table_rule(t);
    for (int k = 0; k < HOLMES_KIND_COUNT; k++) {
        if (!kind_shown(runs, k))
            continue;
        snprintf(title, sizeof title, "slow link, kB/step: %s", holmes_kind_titles[k]);
        row(t, title, 1, runs[0].crossing[k] / 1e3, runs[1].crossing[k] / 1e3);
    }
    row(t, "slow link, kB/step: all", 1, crossing_total(&runs[0]) / 1e3,
        crossing_total(&runs[1]) / 1e3);
    if (slow_mbit <= 0 || !are_counted(runs))
        return;
    holmes_predict(runs, slow_mbit, &p);
    snprintf(title, sizeof title, "slow link alone, ms/step at %.6g Mbit/s", slow_mbit);
    row(t, title, 0, p.link_seconds[0] * 1e3, p.link_seconds[1] * 1e3);
}

static void print_conclusion(const struct holmes_summary runs[2], double slow_mbit, FILE *out)
{
    struct holmes_prediction p;

    holmes_predict(runs, slow_mbit, &p);
    fprintf(out, "\nA GPT of %.2f million parameters; %s is %.2f times as fast as %s",
            (double)runs[1].parameters / 1e6, column(runs, 1), p.speed_up, column(runs, 0));
    if (!has_sides(runs))
        fprintf(out,
                ".\nNo rank has a cluster: give --slow-peers to count the slow link's bytes.\n");
    else if (slow_mbit <= 0 || !are_counted(runs))
        fprintf(out, ".\n");
    else
        fprintf(out,
                ": %.0f ms less per step.\nThe link's arithmetic (bytes / bandwidth) predicts "
                "%.0f ms of it, %.0f %%.\n",
                p.saved * 1e3, p.predicted_saved * 1e3, p.share * 100);
}

/* What the losses are counted over. */
static const char *unit(const struct holmes_summary runs[2])
{
    return runs[0].by_token && runs[1].by_token ? "token" : "byte";
}

int holmes_report_table(const struct holmes_summary runs[2], double slow_mbit, FILE *out)
{
    struct holmes_table *t;
    char label[64];
    int rc = holmes_table_create(4, &t);

    if (rc != 0)
        return rc;
    holmes_table_column(t, "", HOLMES_TABLE_LEFT);
    holmes_table_column(t, column(runs, 0), HOLMES_TABLE_RIGHT);
    holmes_table_column(t, column(runs, 1), HOLMES_TABLE_RIGHT);
    holmes_table_column(t, "ratio", HOLMES_TABLE_RIGHT);
    row(t, "tokens/s", 0, runs[0].tokens_per_s, runs[1].tokens_per_s);
    row(t, "step time, ms", 0, runs[0].step_seconds * 1e3, runs[1].step_seconds * 1e3);
    if (has_sides(runs))
        table_crossing(t, runs, slow_mbit);
    holmes_table_rule(t);
    snprintf(label, sizeof label, "training loss at the end, nats/%s", unit(runs));
    row(t, label, 3, runs[0].final_loss, runs[1].final_loss);
    snprintf(label, sizeof label, "held-out loss, nats/%s", unit(runs));
    row(t, label, 3, runs[0].held_out, runs[1].held_out);
    row(t, "unigram entropy of the held-out text", 3, runs[0].unigram, runs[1].unigram);
    rc = holmes_table_print(t, out);
    holmes_table_destroy(t);
    if (rc == 0)
        print_conclusion(runs, slow_mbit, out);
    return rc == 0 && ferror(out) ? -EIO : rc;
}

static void draw_loss(const struct holmes_summary runs[2], FILE *out)
{
    struct holmes_svg_series series[2];
    struct holmes_svg_chart chart = {
        .title = "Training loss",
        .subtitle = "the same model, text and seed: equal curves cover each other",
        .x = {"step", HOLMES_SVG_LINEAR},
        .y = {strcmp(unit(runs), "byte") == 0 ? "nats per byte" : "nats per token",
              HOLMES_SVG_LINEAR},
        .series = series,
        .nseries = 2};

    for (int i = 0; i < 2; i++)
        series[i] = (struct holmes_svg_series){column(runs, i), runs[i].step, runs[i].loss,
                                               (size_t)runs[i].steps};
    holmes_svg_lines(out, 0, 0, 900, 320, &chart);
}

static void draw_bars(const struct holmes_summary runs[2], double slow_mbit, FILE *out)
{
    const char *names[2] = {column(runs, 0), column(runs, 1)};
    const char *times[2] = {"step", "slow link alone"}, *kinds[HOLMES_KIND_COUNT];
    struct holmes_prediction p;
    double seconds[4], bytes[2 * HOLMES_KIND_COUNT];
    struct holmes_svg_bars time_bars = {
        .title = "Time per step",
        .value_label = "milliseconds",
        .groups = times,
        .ngroups = slow_mbit > 0 && has_sides(runs) && are_counted(runs) ? 2 : 1,
        .names = names,
        .nnames = 2,
        .values = seconds};
    struct holmes_svg_bars byte_bars = {.title = "Bytes over the slow link per step",
                                        .value_label = "megabytes",
                                        .groups = kinds,
                                        .names = names,
                                        .nnames = 2,
                                        .values = bytes};

    holmes_predict(runs, slow_mbit, &p);
    for (int i = 0; i < 2; i++) {
        seconds[i] = runs[i].step_seconds * 1e3;
        seconds[2 + i] = p.link_seconds[i] * 1e3;
    }
    for (int k = 0; k < HOLMES_KIND_COUNT; k++) {
        if (!kind_shown(runs, k))
            continue;
        for (int i = 0; i < 2; i++)
            bytes[2 * byte_bars.ngroups + i] = round(runs[i].crossing[k] / 1e3) / 1e3;
        kinds[byte_bars.ngroups++] = holmes_kind_titles[k];
    }
    holmes_svg_bars(out, 0, 330, 440, 300, &time_bars);
    if (has_sides(runs) && are_counted(runs))
        holmes_svg_bars(out, 460, 330, 440, 300, &byte_bars);
}

int holmes_report_svg(const struct holmes_summary runs[2], double slow_mbit, FILE *out)
{
    holmes_svg_begin(out, 900, 640, "Two placements of the same training run");
    draw_loss(runs, out);
    draw_bars(runs, slow_mbit, out);
    return holmes_svg_end(out);
}

static json_t *count_or_null(const struct holmes_summary *s, double bytes)
{
    return s->counted ? json_real(bytes) : json_null();
}

static json_t *run_object(const struct holmes_summary *s, double link_seconds)
{
    json_t *crossing = json_object();

    for (int k = 0; k < HOLMES_KIND_COUNT; k++)
        json_object_set_new(crossing, holmes_kind_names[k], count_or_null(s, s->crossing[k]));
    return json_pack("{s:s, s:s, s:b, s:b, s:i, s:I, s:f, s:f, s:o, s:o, s:f, s:f, s:f, s:f}",
                     "log", s->path, "placement", s->placement, "finished", s->finished, "cut",
                     s->cut, "steps", s->steps, "parameters", (json_int_t)s->parameters,
                     "tokens_per_s", s->tokens_per_s, "step_seconds", s->step_seconds,
                     "slow_bytes_per_step", crossing, "busiest_bytes_per_step",
                     count_or_null(s, s->busiest), "link_seconds", link_seconds, "final_loss",
                     s->final_loss, "held_out_loss", s->held_out, "unigram_nats", s->unigram);
}

json_t *holmes_report_json(const struct holmes_summary runs[2], double slow_mbit)
{
    struct holmes_prediction p;

    holmes_predict(runs, slow_mbit, &p);
    return json_pack("{s:[o, o], s:f, s:f, s:f, s:f, s:f}", "runs",
                     run_object(&runs[0], p.link_seconds[0]),
                     run_object(&runs[1], p.link_seconds[1]), "slow_mbit", slow_mbit, "speed_up",
                     p.speed_up, "saved_seconds", p.saved, "predicted_saved_seconds",
                     p.predicted_saved, "predicted_share", p.share);
}

/* --- command line ----------------------------------------------------------------------------- */

enum { OPT_PEERS = 1000, OPT_MBIT, OPT_SVG, OPT_JSON };

struct compare_args {
    const char *logs[2];
    int nlogs;
    struct holmes_sides sides;
    double slow_mbit;
    const char *svg;
    bool json;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct compare_args *a = state->input;
    const char *colon;
    char *end;

    switch (key) {
    case OPT_PEERS:
        colon = strchr(arg, ':');
        if (!colon || colon == arg || !colon[1] || strchr(colon + 1, ':'))
            argp_error(state, "--slow-peers \"%s\": host,host:host,host is right", arg);
        a->sides.peers = arg;
        return 0;
    case OPT_MBIT:
        a->slow_mbit = strtod(arg, &end);
        if (end == arg || *end || !(a->slow_mbit > 0 && a->slow_mbit <= 1e9))
            argp_error(state, "--slow-mbit \"%s\": a positive number of Mbit/s is right", arg);
        return 0;
    case OPT_SVG:
        a->svg = arg;
        return 0;
    case OPT_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->nlogs == 2)
            argp_error(state, "\"%s\": two logs are compared, not more", arg);
        a->logs[a->nlogs++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->nlogs != 2)
            argp_error(state, "two logs are compared: name both");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int write_svg(const struct compare_args *a, const struct holmes_summary runs[2])
{
    FILE *f = NULL;
    int rc = holmes_file_create(a->svg, &f);

    if (rc == 0)
        rc = holmes_report_svg(runs, a->slow_mbit, f);

    if (f && fclose(f) != 0 && rc == 0)
        rc = -errno;
    if (rc != 0)
        fprintf(stderr, "holmes-train compare: --svg %s: %s\n", a->svg, holmes_file_strerror(rc));
    return rc;
}

static int print(const struct compare_args *a, const struct holmes_summary runs[2])
{
    int rc;

    if (a->json) {
        json_t *o = holmes_report_json(runs, a->slow_mbit);

        rc = o ? json_dumpf(o, stdout, JSON_INDENT(2)) : -ENOMEM;
        json_decref(o);
        putchar('\n');
    } else {
        rc = holmes_report_table(runs, a->slow_mbit, stdout);
    }
    if (rc == 0 && fflush(stdout) == 0)
        return 0;
    fprintf(stderr, "holmes-train compare: the output cannot be written\n");
    return -EIO;
}

/* A run that was killed is compared by what it had done. */
static void warn_of_cut(const struct holmes_summary *s)
{
    if (!s->finished)
        fprintf(
            stderr,
            "holmes-train compare: %s: the run did not finish%s: %d of %d steps are compared%s\n",
            s->path, s->cut ? " (its last line is cut)" : "", s->steps, s->planned_steps,
            s->counted ? "" : ", and the bytes that its ranks sent are not known");
}

int holmes_report_main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"slow-peers", OPT_PEERS, "A,...:B,...", 0,
         "hosts on the two sides of the slow link (the clusters that the logs name)", 0},
        {"slow-mbit", OPT_MBIT, "X", 0, "speed of the slow link in Mbit/s, for the prediction", 0},
        {"svg", OPT_SVG, "FILE", 0, "draw loss curves, step time and bytes", 0},
        {"json", OPT_JSON, NULL, 0, "print JSON in place of the table", 0},
        {0}};
    static const struct argp argp = {
        options,
        parse_option,
        "NAIVE.jsonl PLANNED.jsonl",
        "Compares the logs of two runs of holmes-train that differ in the placement of ranks: "
        "speed, loss, and the bytes of each kind that crossed the slow link.",
        NULL,
        NULL,
        NULL};
    struct compare_args a = {0};
    struct holmes_summary runs[2] = {0};
    char why[400], name[] = "holmes-train compare";
    int rc = 0, code = HOLMES_EXIT_USAGE;

    argv[0] = name;
    argp_err_exit_status = HOLMES_EXIT_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = holmes_summary_read(a.logs[i], &a.sides, &runs[i], why, sizeof why);
        if (rc != 0)
            fprintf(stderr, "holmes-train compare: %s\n", why);
        else
            warn_of_cut(&runs[i]);
    }
    if (rc == 0)
        code = print(&a, runs) == 0 && (!a.svg || write_svg(&a, runs) == 0) ? HOLMES_EXIT_OK
                                                                            : HOLMES_EXIT_FAILED;
    holmes_summary_fini(&runs[0]);
    holmes_summary_fini(&runs[1]);
    return code;
}
