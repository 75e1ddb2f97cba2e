#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "tests/support/xml_check.h"

static struct holmes_bench_options two_plugins(enum holmes_collective c)
{
    return (struct holmes_bench_options){
        .collective = c,
        .nranks = 4,
        .min_bytes = 1024,
        .max_bytes = 4096,
        .factor = 2,
        .rounds = 3,
        .reference = true,
        .check = true,
        .streams = {1, 4},
        .nstreams = 2,
        .nthreads = 1,
        .plugins = {{"new", "new.so"}, {"o\"l,d<&>", "old.so"}},
        .nplugins = 2,
    };
}

/* Plugin 0 takes 10 us for each KiB, plugin 1 twice, one stream four times, four streams half. */
static struct holmes_results *filled(const struct holmes_bench_options *o)
{
    static const double factors[] = {1, 2, 4, 0.5};
    struct holmes_results *r = holmes_results_create(o);

    cr_assert_not_null(r);
    cr_assert_eq(r->nvariants, 4);
    for (int m = 0; m < r->nmeasures; m++) {
        for (int s = 0; s < r->nsizes; s++) {
            for (int v = 0; v < r->nvariants; v++) {
                double us = 10.0 * (double)(r->shapes[s].size_bytes / 1024) * factors[v];
                struct holmes_cell *c = &r->cells[m][s][v];

                c->us[0] = us * 1.1;
                c->us[1] = us * 0.9;
                c->us[2] = us;
                for (int i = 0; i < 3; i++) {
                    bool latency = r->measures[m] == HOLMES_BENCH_LATENCY;

                    c->cpu[i] = 0.25 * factors[v] * (i + 1);
                    c->p50[i] = latency ? us * (i + 1) : NAN;
                    c->p99[i] = latency ? us * (i + 5) : NAN;
                    c->max[i] = latency ? us * (20 - i) : NAN;
                }
                c->rounds = 3;
                c->iters = 5;
            }
        }
    }
    r->nsizes_done = r->nsizes;
    return r;
}

/* The two kinds of reference beside a plugin: it takes 4 us, the blocking streams 8 and 6, the
 * polled ones 5, 3 and, with two threads, 2. */
static struct holmes_results *filled_with_both_kinds(struct holmes_bench_options *o)
{
    static const double us[] = {4, 8, 6, 5, 3, 2};
    struct holmes_results *r;

    *o = two_plugins(HOLMES_ALL_REDUCE);
    o->nplugins = 1;
    o->max_bytes = o->min_bytes;
    o->threads[1] = 1;
    o->threads[2] = 2;
    o->nthreads = 3;
    r = holmes_results_create(o);
    cr_assert_eq(r->nvariants, 6, "two threads cannot share one stream");
    for (int v = 0; v < r->nvariants; v++) {
        r->cells[0][0][v].us[0] = us[v];
        r->cells[0][0][v].rounds = 1;
    }
    r->nsizes_done = 1;
    return r;
}

static char *written(const struct holmes_results *r,
                     int (*report)(const struct holmes_results *, FILE *))
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert_eq(report(r, f), 0);
    fclose(f);
    return text;
}

Test(results, sizes_grow_by_the_factor_and_are_never_the_same_twice)
{
    struct holmes_bench_options o = two_plugins(HOLMES_ALL_GATHER);
    struct holmes_results *r;

    o.min_bytes = 8;
    o.max_bytes = 63;
    o.nranks = 3; /* 12 bytes are one element for each rank */
    r = holmes_results_create(&o);
    cr_assert_eq(r->nsizes, 2);
    cr_assert_eq(r->shapes[0].size_bytes, 12);
    cr_assert_eq(r->shapes[1].size_bytes, 24);
    holmes_results_destroy(r);
    o.min_bytes = 1;
    o.max_bytes = 13;
    o.factor = 16;
    r = holmes_results_create(&o);
    cr_assert_eq(r->nsizes, 1, "the largest size is measured when no step fits");
    cr_assert_eq(r->shapes[0].size_bytes, 12);
    holmes_results_destroy(r);
    holmes_results_destroy(NULL);
}

Test(results, bandwidths_and_ratios_follow_from_the_medians)
{
    struct holmes_bench_options o = two_plugins(HOLMES_ALL_REDUCE);
    struct holmes_results *r = filled(&o);
    struct holmes_figures f = holmes_results_figures(r, 0, 1, 1); /* 2048 B, 40 us */

    cr_assert_float_eq(f.us.median, 40, 1e-9);
    cr_assert_float_eq(f.algbw.median, 2048 / 40e-6 / 1e9, 1e-12);
    cr_assert_float_eq(f.busbw.median, 1.5 * f.algbw.median, 1e-12);
    cr_assert_float_eq(f.algbw.min, 2048 / 44e-6 / 1e9, 1e-12);
    cr_assert_float_eq(f.spread, 0.2, 1e-9);
    cr_assert_float_eq(f.vs_first, 0.5, 1e-9);
    cr_assert_eq(holmes_results_best_reference(r, HOLMES_REFERENCE_ANY, 0, 1), 3);
    cr_assert_eq(holmes_results_best_reference(r, HOLMES_REFERENCE_BLOCKS, 0, 1), 3);
    cr_assert_eq(holmes_results_best_reference(r, HOLMES_REFERENCE_POLLS, 0, 1), -1);
    cr_assert_float_eq(f.vs_reference[HOLMES_REFERENCE_ANY], 0.25, 1e-9);
    cr_assert(isnan(holmes_results_figures(r, 0, 1, 0).vs_first));
    cr_assert(isnan(holmes_results_figures(r, 0, 1, 3).vs_reference[HOLMES_REFERENCE_ANY]));
    cr_assert(isnan(f.vs_reference[HOLMES_REFERENCE_POLLS]));
    holmes_results_destroy(r);
}

Test(results, messages_cross_the_links_that_the_pattern_has)
{
    static const struct {
        enum holmes_collective c;
        int measure;
        bool both_ways;
        double sizes; /* that all links of four ranks carry in one operation */
    } cases[] = {
        {HOLMES_ALL_REDUCE, 0, false, 6},     {HOLMES_ALL_GATHER, 0, false, 3},
        {HOLMES_REDUCE_SCATTER, 0, false, 3}, {HOLMES_SENDRECV, 0, false, 4},
        {HOLMES_SENDRECV, 1, false, 2},       {HOLMES_SENDRECV, 1, true, 4},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct holmes_bench_options o = two_plugins(cases[i].c);
        struct holmes_results *r;

        o.both_ways = cases[i].both_ways;
        r = holmes_results_create(&o);
        cr_assert_float_eq(holmes_results_link_bytes(r, cases[i].measure, 1, 10),
                           10 * 2048 * cases[i].sizes, 1e-6, "case %zu", i);
        holmes_results_destroy(r);
    }
}

Test(report, latency_has_percentiles_in_table_and_files)
{
    struct holmes_bench_options o = two_plugins(HOLMES_SENDRECV);
    struct holmes_results *r = filled(&o);
    char *text = written(r, holmes_report_table);
    json_t *root, *latency, *bandwidth;

    cr_assert(strstr(text, "\n1024         256  float  new       10.00  20.00  60.00  200.0      20"
                           "       0   0.500      -         0.50\n"),
              "%s", text);
    free(text);
    text = written(r, holmes_report_csv);
    cr_assert(strstr(text, ",0.5,0.25,0.75,20,60,200,0,"), "%s", text);
    cr_assert(strstr(text, ",0.5,0.25,0.75,,,,0,"), "%s", text);
    free(text);
    text = written(r, holmes_report_json);
    root = json_loads(text, 0, NULL);
    latency = json_array_get(json_object_get(root, "results"), 0);
    bandwidth = json_array_get(json_object_get(root, "results"), 3 * 4);
    cr_assert_str_eq(json_string_value(json_object_get(bandwidth, "measure")), "bandwidth");
    cr_assert_float_eq(json_real_value(json_object_get(latency, "p99_us")), 60, 1e-6);
    cr_assert(json_is_null(json_object_get(bandwidth, "p99_us")));
    cr_assert_float_eq(json_real_value(json_object_get(bandwidth, "cpu_s_per_gbyte")), 0.5, 1e-9);
    cr_assert_eq(json_array_size(json_object_get(latency, "round_cpu_s_per_gbyte")), 3);
    json_decref(root);
    free(text);
    holmes_results_destroy(r);
}

Test(report, links_have_shares_and_counters)
{
    struct holmes_bench_options o = two_plugins(HOLMES_ALL_REDUCE);
    struct holmes_results *r;
    json_t *root, *cell;
    char *text;

    o.link = (struct holmes_link_attr){.nlinks = 2,
                                       .shapes = {{1000000000, 20000, 0}, {536000000, 0, 0}}};
    r = filled(&o);
    r->variants[0].link_bytes[1] = 12345678;
    r->delayed_by = "netem";
    text = written(r, holmes_report_table);
    cr_assert(strstr(text, "# link0: 1 Gbit/s each way, queue 5 ms, round trip +20 ms, MTU 9000, "
                           "by netem\n"),
              "%s", text);
    /* 0.1536 GB/s of 0.192 */
    cr_assert(
        strstr(text, "\n1024         256  float  new       10.00   0.102   0.154   80.0      20"),
        "%s", text);
    cr_assert(strstr(text, "\nnew         0.0   12.3\n"), "%s", text);
    free(text);
    text = written(r, holmes_report_json);
    root = json_loads(text, 0, NULL);
    cell = json_array_get(json_object_get(root, "results"), 0);
    cr_assert_float_eq(json_real_value(json_object_get(cell, "wire_share")), 0.8, 1e-6);
    cr_assert_eq(json_array_size(json_object_get(root, "links")), 2);
    json_decref(root);
    free(text);
    holmes_results_destroy(r);
}

Test(report, table_has_a_row_for_each_plugin_and_the_best_reference)
{
    struct holmes_bench_options o = two_plugins(HOLMES_ALL_REDUCE);
    struct holmes_results *r = filled(&o);
    char *text;

    r->cells[0][2][1].wrong = 3;
    r->nsizes_done = 3;
    text = written(r, holmes_report_table);
    cr_assert(strstr(text, "\n1024         256  float  new       10.00   0.102   0.154      20"
                           "       0   0.500      -         0.50\n"),
              "%s", text);
    cr_assert(strstr(text, "TCP x4"), "%s", text);
    cr_assert(strstr(text, "wrong elements: 3  FAILED"), "%s", text);
    free(text);
    r->nsizes_done = 1;
    text = written(r, holmes_report_table);
    cr_assert_null(strstr(text, "4096"), "a size that is not done was shown:\n%s", text);
    free(text);
    holmes_results_destroy(r);
}

/* Fields of one CSV line, quotes resolved; returns their number. */
static int csv_fields(char **at, char *fields[40])
{
    int n = 0;
    char *to = *at, *p = *at;
    bool quoted = false;

    fields[n] = to;
    for (; *p && (quoted || strncmp(p, "\r\n", 2) != 0); p++) {
        if (*p == '"' && quoted && p[1] == '"')
            *to++ = *p++;
        else if (*p == '"')
            quoted = !quoted;
        else if (*p == ',' && !quoted) {
            *to++ = '\0';
            fields[++n] = to;
        } else {
            *to++ = *p;
        }
    }
    *at = *p ? p + 2 : p;
    *to = '\0';
    return n + 1;
}

Test(report, each_kind_of_reference_has_a_row_and_a_ratio)
{
    struct holmes_bench_options o;
    struct holmes_results *r = filled_with_both_kinds(&o);
    struct holmes_figures f = holmes_results_figures(r, 0, 0, 0);
    char *text = written(r, holmes_report_table);

    cr_assert_str_eq(r->variants[5].label, "poll x4/2");
    cr_assert_float_eq(f.vs_reference[HOLMES_REFERENCE_BLOCKS], 1.5, 1e-9);
    cr_assert_float_eq(f.vs_reference[HOLMES_REFERENCE_POLLS], 0.5, 1e-9);
    cr_assert_float_eq(f.vs_reference[HOLMES_REFERENCE_ANY], 0.5, 1e-9);
    cr_assert(strstr(text, "x new  x TCP  x poll\n"), "%s", text);
    cr_assert(strstr(text, "float  TCP x4 "), "%s", text);
    cr_assert(strstr(text, "float  poll x4/2 "), "%s", text);
    cr_assert_null(strstr(text, "float  poll x4 "), "the fastest of a kind is enough:\n%s", text);
    cr_assert(strstr(text, "poll x1"), "all are in the second table:\n%s", text);
    free(text);
    text = written(r, holmes_report_csv);
    cr_assert(strstr(text, ",2,3,,\r\n"), "threads and ratios of the last line:\n%s", text);
    free(text);
    holmes_results_destroy(r);
}

Test(report, csv_has_every_variant_and_keeps_odd_names_whole)
{
    struct holmes_bench_options o = two_plugins(HOLMES_SENDRECV);
    struct holmes_results *r = filled(&o);
    char *text = written(r, holmes_report_csv), *at = text, *fields[40];
    int ncols = csv_fields(&at, fields), rows = 0, odd = 0;

    cr_assert_str_eq(fields[11], "time_us");
    for (; *at; rows++) {
        cr_assert_eq(csv_fields(&at, fields), ncols, "row %d", rows);
        odd += strcmp(fields[6], "o\"l,d<&>") == 0;
        cr_assert_gt(atof(fields[11]), 0);
    }
    cr_assert_eq(rows, 2 * 3 * 4, "two measures, three sizes, four variants");
    cr_assert_eq(odd, 6);
    free(text);
    holmes_results_destroy(r);
}

static int count(const char *text, const char *what)
{
    int n = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

Test(report, svg_is_well_formed_with_a_line_for_each_side)
{
    struct holmes_bench_options o = two_plugins(HOLMES_ALL_REDUCE);
    struct holmes_results *r = filled(&o);
    char *text = written(r, holmes_report_svg);
    const char *bad = xml_check(text);
    cr_assert_null(bad, "from: %.80s", bad);
    cr_assert_eq(count(text, "stroke-width=\"2\""), 2 * (3 + 1),
                 "two charts of two plugins and the reference, which the legend shows dashed");
    cr_assert_eq(count(text, "fill-opacity"), 2 * 3, "a band for each line");
    cr_assert(strstr(text, "o&quot;l,d&lt;&amp;&gt;"));
    free(text);
    holmes_results_destroy(r);
}

Test(report, json_holds_every_measurement)
{
    struct holmes_bench_options o = two_plugins(HOLMES_ALL_GATHER);
    struct holmes_results *r = filled(&o);
    char *text;
    json_t *root, *cell;

    snprintf(r->variants[1].about, sizeof r->variants[1].about, "\xff\xfe");
    text = written(r, holmes_report_json);
    root = json_loads(text, 0, NULL);
    cr_assert_not_null(root, "%s", text);
    cr_assert_eq(json_array_size(json_object_get(root, "results")), 3 * 4);
    cr_assert_eq(json_array_size(json_object_get(root, "sides")), 4);
    cell = json_array_get(json_object_get(root, "results"), 0);
    cr_assert_eq(json_array_size(json_object_get(cell, "round_us")), 3);
    cr_assert_float_eq(json_real_value(json_object_get(cell, "time_us")), 10, 1e-6);
    cr_assert(json_is_null(json_object_get(cell, "ratio_first")));
    json_decref(root);
    free(text);
    holmes_results_destroy(r);
}

Test(report, a_full_device_is_told)
{
    struct holmes_bench_options o = two_plugins(HOLMES_ALL_REDUCE);
    struct holmes_results *r = filled(&o);
    int (*const reports[])(const struct holmes_results *, FILE *) = {
        holmes_report_table, holmes_report_csv, holmes_report_json, holmes_report_svg};

    for (size_t i = 0; i < sizeof reports / sizeof reports[0]; i++) {
        FILE *full = fopen("/dev/full", "w");

        cr_assert_eq(reports[i](r, full), -EIO, "report %zu", i);
        fclose(full);
    }
    holmes_results_destroy(r);
}
