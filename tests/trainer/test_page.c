/* Logs and traces made by hand, what is read of them, and the report that is made of it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "page.h"
#include "support/xml_check.h"

#define CONFIG                                                                                     \
    "{\"record\":\"config\",\"model\":{\"layers\":2,\"channels\":8,\"heads\":2,\"seq_len\":4,"     \
    "\"vocab\":16,\"parameters\":2000},\"batch\":4,\"pipeline\":2,\"data_parallel\":1,"            \
    "\"ranks\":[{\"rank\":0,\"host\":\"<a>\"},{\"rank\":1,\"stage\":1}]}\n"
#define STEP(n, loss, seconds)                                                                     \
    "{\"record\":\"step\",\"step\":" #n ",\"loss\":" #loss ",\"grad_norm\":1.5,\"lr\":0.001,"      \
    "\"step_seconds\":" #seconds ",\"tokens_per_s\":100}\n"
#define TRAFFIC(rank, kind, wires)                                                                 \
    "{\"record\":\"traffic\",\"rank\":" #rank ",\"memory\":{\"predicted_bytes\":110,"              \
    "\"measured_bytes\":100},\"communicators\":[{\"kind\":\"" kind "\",\"wait_seconds\":0.5,"      \
    "\"peers\":[{\"rank\":0,\"bytes_sent\":3000}],\"wires\":[" wires "]}]}\n"
#define TCP "{\"wire\":\"tcp\",\"bytes_sent\":1000},{\"wire\":\"rdma\",\"bytes_sent\":2000}"
#define FULL                                                                                       \
    CONFIG STEP(1, 4, 9) STEP(                                                                     \
        2, 3,                                                                                      \
        2) "{\"record\":\"held_out\",\"step\":2,\"loss\":3.5,\"unigram_nats\":5}\n" STEP(3, 2, 1)  \
        TRAFFIC(0, "pp", TCP)                                                                      \
            TRAFFIC(1, "dp", "") "{\"record\":\"future\",\"x\":[]}\n{\"record\":\"end\"}\n"

static void parse(const char *text, struct holmes_runlog *l)
{
    char why[300] = "";

    cr_assert_eq(holmes_runlog_parse("dir/run.x.jsonl", text, strlen(text), l, why, sizeof why), 0,
                 "%s", why);
}

Test(runlog, columns_and_counters_are_those_of_the_records)
{
    struct holmes_runlog l;

    parse(FULL, &l);
    cr_expect_str_eq(l.name, "run.x");
    cr_expect_eq(l.steps.n, 3);
    cr_expect_float_eq(l.steps.loss[1], 3, 1e-9);
    cr_expect_float_eq(holmes_runlog_median(&l, l.steps.seconds), 1.5, 1e-9,
                       "without the first step");
    cr_expect_float_eq(holmes_runlog_final_loss(&l), 3, 1e-9);
    cr_expect_eq(l.evals.n, 1);
    cr_expect_float_eq(l.evals.loss[0], 3.5, 1e-9);
    cr_expect_eq(l.nranks, 2);
    cr_expect_str_eq(l.ranks[0].host, "<a>");
    cr_expect_float_eq(l.ranks[1].wait_seconds[1], 0.5, 1e-9);
    cr_expect_float_eq(l.ranks[1].measured_bytes, 100, 1e-9);
    cr_assert_eq(l.nkinds, 2);
    cr_assert_eq(l.nwires, 3);
    cr_expect_float_eq(l.bytes[0][0], 1000, 1e-9);
    cr_expect_float_eq(l.bytes[0][1], 2000, 1e-9);
    cr_expect_str_eq(l.wires[2], "untold");
    cr_expect_float_eq(l.bytes[1][2], 3000, 1e-9, "a plugin that tells nothing");
    cr_expect(l.finished && !l.cut);
    /* 3 (L (24 C^2 + 4 T C) + 2 C V) */
    cr_expect_float_eq(l.flops_per_token, 3 * (2 * (24 * 64 + 4 * 4 * 8) + 2 * 8 * 16), 1e-9);
    holmes_runlog_fini(&l);
}

Test(runlog, what_a_killed_run_left_is_read_up_to_its_last_whole_line)
{
    static const char text[] = FULL;
    struct holmes_runlog l;
    char why[300];

    for (size_t len = strlen(CONFIG); len < sizeof text - 1; len++) {
        cr_assert_eq(holmes_runlog_parse("x", text, len, &l, why, sizeof why), 0, "%zu: %s", len,
                     why);
        cr_expect(len == sizeof text - 2 || !l.finished);
        cr_expect_eq(l.cut, text[len - 1] != '\n' && text[len] != '\n', "%zu bytes", len);
        holmes_runlog_fini(&l);
    }
}

Test(runlog, refuses_what_is_no_log_and_names_the_line)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "is empty"},
        {"{\"record\":\"con", "no config record"},
        {CONFIG "hello\n" STEP(1, 1, 1), "line 2: no JSON object"},
        {CONFIG "[]\n", "line 2: no JSON object"},
        {CONFIG "{}\n", "line 2: an object that is no record"},
        {CONFIG "\n", "line 2"},
        {CONFIG CONFIG, "line 2: a second config"},
        {"{\"record\":\"config\"}\n", "line 1: its config record has no ranks"},
        {CONFIG "{\"record\":\"step\"}\n", "line 2: a step record without"},
        {CONFIG "{\"record\":\"held_out\",\"step\":\"1\"}\n", "line 2: a held_out record without"},
        {TRAFFIC(0, "dp", ""), "line 1: a traffic record of a rank"},
        {CONFIG TRAFFIC(2, "dp", ""), "line 2: a traffic record of a rank"},
        {CONFIG TRAFFIC(-1, "dp", ""), "line 2: a traffic record of a rank"},
        {CONFIG TRAFFIC(1, "dp", "") TRAFFIC(1, "dp", ""), "line 3: a second traffic record"},
        {CONFIG TRAFFIC(1, "", ""), "without a kind"},
        {CONFIG TRAFFIC(1, "dp", "{}"), "a wire without a name"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_runlog l;
        char why[300] = "";

        cr_expect_eq(holmes_runlog_parse("f.jsonl", cases[i].text, strlen(cases[i].text), &l, why,
                                         sizeof why),
                     -EINVAL, "%s", cases[i].text);
        cr_expect_not_null(strstr(why, cases[i].says), "\"%s\" expected, it says: %s",
                           cases[i].says, why);
        cr_expect_eq(strncmp(why, "f.jsonl: ", 9), 0, "%s", why);
    }
}

Test(runlog, senseless_numbers_are_gaps)
{
    struct holmes_runlog l;

    parse(CONFIG STEP(1, 1e300, 1) STEP(2, "x", -1) STEP(3, null, 1), &l);
    for (int i = 0; i < 3; i++)
        cr_expect(isnan(l.steps.loss[i]));
    cr_expect(isnan(holmes_runlog_final_loss(&l)));
    holmes_runlog_fini(&l);
}

#define THREAD(pid, tid, name)                                                                     \
    "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":" #pid ",\"tid\":" #tid                        \
    ",\"args\":{\"name\":\"" name "\"}},"
#define SPAN(pid, tid, name, ts, dur)                                                              \
    "{\"ph\":\"X\",\"name\":\"" name "\",\"pid\":" #pid ",\"tid\":" #tid ",\"ts\":" #ts            \
    ",\"dur\":" #dur "}"
#define TRACE                                                                                      \
    "{\"traceEvents\":[" THREAD(1, 2, "compute")                                                   \
        SPAN(1, 2, "backward 0", 11000, 2000) "," SPAN(1, 2, "layer 1", 11500, 500) "," SPAN(      \
            0, 7, "wait dp.0", 9000,                                                               \
            1000) "," SPAN(0, 1, "step 1", 5000,                                                   \
                           1000) "," SPAN(0, 1, "step 2", 8000,                                    \
                                          4000) "," SPAN(1, 1, "step 2", 8500,                     \
                                                         5000) "," SPAN(1, 1, "step 3", 15000,     \
                                                                        500) "]}"

static void parse_trace(const char *text, struct holmes_timeline *t)
{
    char why[300] = "";

    cr_assert_eq(holmes_timeline_parse("t", text, strlen(text), t, why, sizeof why), 0, "%s", why);
}

Test(timeline, lanes_and_spans_are_in_order_and_start_at_zero)
{
    struct holmes_timeline t;

    parse_trace(TRACE, &t);
    cr_assert_eq(t.nlanes, 4);
    cr_assert_eq(t.nspans, 7);
    cr_expect_eq(t.lanes[0].rank, 0);
    cr_expect_eq(t.lanes[0].track, 1);
    cr_expect_not(t.lanes[0].shown, "it has steps only");
    cr_expect_str_eq(t.lanes[1].name, "track 7");
    cr_expect_str_eq(t.lanes[3].name, "compute");
    cr_expect(t.lanes[3].shown);
    cr_expect_float_eq(t.spans[0].start, 0, 1e-9);
    cr_expect_str_eq(t.spans[5].name, "backward 0");
    cr_expect_float_eq(t.spans[5].end, 8, 1e-9);
    cr_expect_not(t.spans[5].nested);
    cr_expect(t.spans[6].nested, "the layer lies in the backward");
    cr_expect_float_eq(t.end, 10.5, 1e-9);
    holmes_timeline_fini(&t);
}

Test(timeline, a_step_is_from_its_first_rank_to_its_last)
{
    struct holmes_timeline t;
    double from, to;
    int step = 0;

    parse_trace(TRACE, &t);
    cr_expect_eq(holmes_timeline_step(&t, &step, &from, &to), 0);
    cr_expect_eq(step, 2, "the one in the middle, not %d", step);
    cr_expect_float_eq(from, 3, 1e-9);
    cr_expect_float_eq(to, 8.5, 1e-9);
    step = 7;
    cr_expect_eq(holmes_timeline_step(&t, &step, &from, &to), -ENOENT);
    cr_expect_float_eq(to, 10.5, 1e-9, "then it is the whole trace");
    holmes_timeline_fini(&t);
}

Test(timeline, refuses_what_is_no_trace)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "no JSON"},
        {"{\n\n]", "line 3"},
        {"7", "no JSON"},
        {"{}", "no list of \"traceEvents\""},
        {"[]", "without a single span"},
        {"[7]", "event 0: no object with a \"ph\""},
        {"[{\"ph\":\"B\"},{\"ph\":\"X\"}]", "event 1: a span needs"},
        {"[" SPAN(0, 0, "a", "x", 1) "]", "event 0: a span needs"},
        {"[" SPAN(0, 0, "a", 0, -1) "]", "is no time"},
        {"[" SPAN(0, 0, "a", 1e300, 1) "]", "is no time"},
        {"[" SPAN("0", 0, "a", 0, 1) "]", "must be whole numbers"},
        {"[{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":0,\"tid\":0}]", "without args.name"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_timeline t;
        char why[300] = "";

        cr_expect_eq(holmes_timeline_parse("t.json", cases[i].text, strlen(cases[i].text), &t, why,
                                           sizeof why),
                     -EINVAL, "%s", cases[i].text);
        cr_expect_not_null(strstr(why, cases[i].says), "\"%s\" expected, it says: %s",
                           cases[i].says, why);
    }
}

/* The page of these runs, whose form is checked. */
static char *page_of(struct holmes_report *r)
{
    char *text = NULL;
    const char *bad;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert_eq(holmes_page_html(r, f), 0);
    fclose(f);
    cr_assert_eq(strncmp(text, "<!DOCTYPE html>\n", 16), 0);
    bad = xml_check(text + 16);
    cr_assert_null(bad, "not well-formed from: %.80s", bad);
    cr_expect_null(strstr(text, "http://www"), "it fetches nothing");
    cr_expect_null(strstr(text, "<script"));
    cr_expect_null(strstr(text, "=\"nan"));
    return text;
}

Test(page, has_a_picture_of_all_that_the_logs_tell)
{
    static const char *const parts[] = {
        "id=\"loss\"",   "id=\"throughput\"", "id=\"gradient-norm\"", "id=\"learning-rate\"",
        "id=\"bytes\"",  "id=\"waits\"",      "id=\"memory\"",        "id=\"timeline\"",
        "a, held out",   "a, over rdma",      "data parallel",        "backward 0: 2.000 ms",
        "a &lt;b&gt;",   "1 x 2 x 1",         "not finished",         "Step 2, rank by rank",
        ">rank 1</text>"};
    struct holmes_runlog runs[2];
    struct holmes_timeline t;
    struct holmes_report r = {
        .runs = runs, .names = (const char *[]){"a", "a <b>"}, .nruns = 2, .trace = &t, .step = 2};
    char *text;

    parse(FULL, &runs[0]);
    parse(CONFIG STEP(1, 5, 1), &runs[1]);
    parse_trace(TRACE, &t);
    cr_assert_eq(holmes_timeline_step(&t, &r.step, &r.from, &r.to), 0);
    text = page_of(&r);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect_not_null(strstr(text, parts[i]), "\"%s\" is missing", parts[i]);
    free(text);
    holmes_runlog_fini(&runs[0]);
    holmes_runlog_fini(&runs[1]);
    holmes_timeline_fini(&t);
}

Test(page, leaves_out_what_no_log_tells)
{
    struct holmes_runlog run;
    struct holmes_report r = {.runs = &run, .names = (const char *[]){"a"}, .nruns = 1};
    char *text;

    parse(CONFIG, &run);
    text = page_of(&r);
    cr_expect_null(strstr(text, "<figure"));
    cr_expect_not_null(strstr(text, "not finished"));
    free(text);
    holmes_runlog_fini(&run);
}

/* A log of many ranks and steps: lines in place of bars, thinned without losing the peak. */
Test(page, long_runs_of_many_ranks_stay_small_and_keep_their_peaks)
{
    enum { STEPS = 20000, RANKS = 40 };
    struct holmes_runlog run;
    struct holmes_report r = {.runs = &run, .names = (const char *[]){"a"}, .nruns = 1};
    char *log = NULL, *text, why[300];
    size_t len;
    FILE *f = open_memstream(&log, &len);

    fputs("{\"record\":\"config\",\"ranks\":[{}", f);
    for (int i = 1; i < RANKS; i++)
        fputs(",{}", f);
    fputs("]}\n", f);
    for (int i = 1; i <= STEPS; i++)
        fprintf(f, "{\"record\":\"step\",\"step\":%d,\"loss\":%d}\n", i, i == 7777 ? 900 : 1);
    for (int i = 0; i < RANKS; i++)
        fprintf(f,
                "{\"record\":\"traffic\",\"rank\":%d,\"communicators\":[{\"kind\":\"dp\","
                "\"wait_seconds\":%d}]}\n",
                i, i);
    fclose(f);
    cr_assert_eq(holmes_runlog_parse("x", log, len, &run, why, sizeof why), 0, "%s", why);
    text = page_of(&r);
    cr_expect_lt(strlen(text), 100000, "%zu bytes", strlen(text));
    cr_expect_not_null(strstr(text, ">1000</text>"), "the axis goes up to 1000");
    cr_expect_not_null(strstr(text, "Time that ranks stood still"));
    free(text);
    free(log);
    holmes_runlog_fini(&run);
}

Test(page, table_and_json_tell_the_same_figures)
{
    struct holmes_runlog runs[2];
    struct holmes_report r = {.runs = runs, .names = (const char *[]){"one", "two"}, .nruns = 2};
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    json_t *o, *first, *rank;

    parse(FULL, &runs[0]);
    parse(CONFIG STEP(1, 5, 1), &runs[1]);
    cr_assert_eq(holmes_page_table(&r, f), 0);
    fclose(f);
    cr_expect_not_null(
        strstr(text, "step time, ms, median                    1500.0        1000.0"), "%s", text);
    cr_expect_not_null(
        strstr(text, "memory: worst prediction off by, %         10.0             -"), "%s", text);
    o = holmes_page_json(&r);
    first = json_array_get(json_object_get(o, "runs"), 0);
    cr_expect_float_eq(json_number_value(json_object_get(first, "step_ms")), 1500, 1e-9);
    cr_expect_float_eq(json_number_value(json_object_get(first, "sent_mb_per_step")), 0.002, 1e-9);
    rank = json_array_get(json_object_get(first, "per_rank"), 1);
    cr_expect_float_eq(
        json_number_value(json_object_get(json_object_get(rank, "wait_seconds"), "dp")), 0.5, 1e-9);
    cr_expect(json_is_null(
        json_object_get(json_array_get(json_object_get(o, "runs"), 1), "held_out_loss")));
    json_decref(o);
    free(text);
    holmes_runlog_fini(&runs[0]);
    holmes_runlog_fini(&runs[1]);
}
