/* Logs of two runs, made by hand, and what the comparison says about them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jsonlog.h"
#include "report.h"
#include "support/xml_check.h"

static char path[2][64];

static void set_up(void)
{
    for (int i = 0; i < 2; i++) {
        int fd;

        snprintf(path[i], sizeof path[i], "/tmp/holmes-report-XXXXXX");
        fd = mkstemp(path[i]);
        cr_assert_geq(fd, 0);
        close(fd);
    }
}

static void tear_down(void)
{
    unlink(path[0]);
    unlink(path[1]);
}

TestSuite(report, .init = set_up, .fini = tear_down);

/* Two ranks in two clusters, each sending the other `bytes` of `kind` in 4 steps, of which the
 * evaluation sent 100; the first step takes a second more than the others. */
static void write_log(const char *file, const char *placement, const char *kind, long bytes,
                      double seconds)
{
    FILE *f = fopen(file, "we");

    cr_assert_not_null(f);
    fprintf(f,
            "{\"record\":\"config\",\"placement\":\"%s\",\"batch\":8,\"model\":{\"seq_len\":32,"
            "\"parameters\":1000000},\"ranks\":[{\"rank\":0,\"host\":\"a0\",\"cluster\":\"A\"},"
            "{\"rank\":1,\"host\":\"b0\",\"cluster\":\"B\"}]}\n",
            placement);
    for (int s = 1; s <= 4; s++)
        fprintf(f, "{\"record\":\"step\",\"step\":%d,\"loss\":%d.5,\"step_seconds\":%g}\n", s,
                5 - s, seconds + (s == 1));
    fprintf(f, "{\"record\":\"held_out\",\"step\":4,\"loss\":2.25,\"unigram_nats\":3.5}\n");
    for (int r = 0; r < 2; r++)
        fprintf(f,
                "{\"record\":\"traffic\",\"rank\":%d,\"communicators\":[{\"name\":\"x\",\"kind\":"
                "\"%s\",\"peers\":[{\"rank\":%d,\"bytes_sent\":%ld,\"eval_bytes_sent\":100}]}]}\n",
                r, kind, 1 - r, bytes + 100);
    fprintf(f, "{\"record\":\"end\",\"steps\":4}\n");
    cr_assert_eq(fclose(f), 0);
}

static void read_both(struct holmes_summary runs[2], const char *peers)
{
    struct holmes_sides sides = {peers};
    char why[200] = "";

    for (int i = 0; i < 2; i++)
        cr_assert_eq(holmes_summary_read(path[i], &sides, &runs[i], why, sizeof why), 0, "%s", why);
}

static void free_both(struct holmes_summary runs[2])
{
    holmes_summary_fini(&runs[0]);
    holmes_summary_fini(&runs[1]);
}

Test(report, summary_leaves_out_the_first_step_and_the_evaluation)
{
    struct holmes_summary runs[2];

    write_log(path[0], "naive", "dp", 4000000, 0.5);
    write_log(path[1], "planned", "pp", 40000, 0.25);
    read_both(runs, NULL);
    cr_expect_float_eq(runs[0].step_seconds, 0.5, 1e-9);
    cr_expect_float_eq(runs[0].tokens_per_s, 8 * 32 / 0.5, 1e-6);
    cr_expect_float_eq(runs[0].crossing[HOLMES_KIND_DP], 2e6, 1e-6, "both directions, per step");
    cr_expect_float_eq(runs[0].busiest, 1e6, 1e-6, "one direction, per step");
    cr_expect_eq(runs[1].crossing[HOLMES_KIND_DP], 0);
    cr_expect_float_eq(runs[1].crossing[HOLMES_KIND_PP], 2e4, 1e-6);
    cr_expect_float_eq(runs[0].held_out, 2.25, 1e-9);
    cr_expect_float_eq(runs[0].final_loss, (4.5 + 3.5 + 2.5 + 1.5) / 4, 1e-9);
    free_both(runs);
}

Test(report, sides_of_the_slow_link_can_be_given_by_host)
{
    struct holmes_summary runs[2];

    write_log(path[0], "naive", "dp", 4000000, 0.5);
    write_log(path[1], "planned", "dp", 4000000, 0.5);
    read_both(runs, "b0,b1:a1,a0");
    cr_expect_float_eq(runs[0].busiest, 1e6, 1e-6);
    free_both(runs);
    read_both(runs, "a0,b0:c0");
    cr_expect_eq(runs[0].busiest, 0, "both hosts are on one side");
    free_both(runs);
    read_both(runs, "a:b");
    cr_expect_eq(runs[0].busiest, 0, "a prefix of a name is not the name");
    free_both(runs);
}

Test(report, prediction_is_bytes_by_bandwidth)
{
    struct holmes_summary runs[2];
    struct holmes_prediction p;

    write_log(path[0], "naive", "dp", 4000000, 0.5);
    write_log(path[1], "planned", "pp", 40000, 0.45);
    read_both(runs, NULL);
    holmes_predict(runs, 200, &p);
    cr_expect_float_eq(p.link_seconds[0], 0.040, 1e-9, "1 MB at 200 Mbit/s");
    cr_expect_float_eq(p.link_seconds[1], 0.0004, 1e-9);
    cr_expect_float_eq(p.speed_up, 0.5 / 0.45, 1e-9);
    cr_expect_float_eq(p.share, 0.0396 / 0.05, 1e-6);
    holmes_predict(runs, 0, &p);
    cr_expect_eq(p.share, 0);
    free_both(runs);
}

/* One blank for several. */
static void squeeze(char *text)
{
    char *to = text;

    for (const char *from = text; *from; from++)
        if (*from != ' ' || to == text || to[-1] != ' ')
            *to++ = *from;
    *to = '\0';
}

static char *print_table(const struct holmes_summary runs[2])
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert_eq(holmes_report_table(runs, 200, f), 0);
    fclose(f);
    squeeze(text);
    return text;
}

Test(report, table_shows_bytes_of_each_kind_and_both_losses)
{
    static const char *const lines[] = {
        "step time, ms 500 250 0.50",
        "slow link, kB/step: data parallel 2000.0 0.0 0.00",
        "slow link, kB/step: pipeline 0.0 20.0 -",
        "slow link alone, ms/step at 200 Mbit/s 40 0 0.01",
        "held-out loss, nats/byte 2.250 2.250",
        "unigram entropy of the held-out text 3.500 3.500",
        "planned is 2.00 times as fast as naive: 250 ms less per step",
        "predicts 40 ms of it, 16 %",
    };
    struct holmes_summary runs[2];
    char *text;

    write_log(path[0], "naive", "dp", 4000000, 0.5);
    write_log(path[1], "planned", "pp", 40000, 0.25);
    read_both(runs, NULL);
    text = print_table(runs);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect_not_null(strstr(text, lines[i]), "\"%s\" expected in\n%s", lines[i], text);
    free(text);
    free_both(runs);
}

Test(report, runs_of_one_placement_are_named_by_their_logs)
{
    struct holmes_summary runs[2];
    char *text, line[200];

    write_log(path[0], "order", "dp", 4000000, 0.5);
    write_log(path[1], "order", "pp", 40000, 0.25);
    read_both(runs, NULL);
    text = print_table(runs);
    snprintf(line, sizeof line, "%s is 2.00 times as fast as %s", strrchr(path[1], '/') + 1,
             strrchr(path[0], '/') + 1);
    cr_expect_not_null(strstr(text, line), "\"%s\" expected in\n%s", line, text);
    free(text);
    runs[1].path = runs[0].path;
    text = print_table(runs);
    cr_expect_not_null(strstr(text, "second is 2.00 times as fast as first"), "%s", text);
    free(text);
    free_both(runs);
}

Test(report, picture_is_well_formed_and_shows_both_runs)
{
    struct holmes_summary runs[2];
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    write_log(path[0], "naive", "dp", 4000000, 0.5);
    write_log(path[1], "planned", "pp", 40000, 0.25);
    read_both(runs, NULL);
    cr_assert_eq(holmes_report_svg(runs, 200, f), 0);
    fclose(f);
    cr_expect_null(xml_check(text), "%s", xml_check(text));
    cr_expect_not_null(strstr(text, "naive"));
    cr_expect_not_null(strstr(text, "planned"));
    free(text);
    free_both(runs);
}

Test(report, json_tells_the_same)
{
    struct holmes_summary runs[2];
    json_t *o, *first;

    write_log(path[0], "naive", "dp", 4000000, 0.5);
    write_log(path[1], "planned", "pp", 40000, 0.25);
    read_both(runs, NULL);
    o = holmes_report_json(runs, 200);
    first = json_array_get(json_object_get(o, "runs"), 0);
    cr_expect_float_eq(json_number_value(json_object_get(o, "speed_up")), 2, 1e-9);
    cr_expect_float_eq(
        json_number_value(json_object_get(json_object_get(first, "slow_bytes_per_step"), "dp")),
        2e6, 1e-6);
    json_decref(o);
    free_both(runs);
}

/* What a job that was killed has left: no counters, and half a line. */
static void cut_log(const char *file)
{
    char text[4096];
    size_t n;
    FILE *f = fopen(file, "re");

    n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    cr_assert_eq(truncate(file, strstr(text, "\"step\":3") - text), 0);
}

Test(report, compares_what_a_killed_run_had_done)
{
    struct holmes_summary runs[2];
    struct holmes_prediction p;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    json_t *o;

    write_log(path[0], "naive", "dp", 4000000, 0.5);
    write_log(path[1], "planned", "pp", 40000, 0.25);
    cut_log(path[0]);
    read_both(runs, NULL);
    cr_expect(!runs[0].finished && runs[0].cut && !runs[0].counted);
    cr_expect(runs[1].finished && !runs[1].cut && runs[1].counted);
    cr_expect_eq(runs[0].steps, 2);
    cr_expect_float_eq(runs[0].step_seconds, 0.5, 1e-9);
    holmes_predict(runs, 200, &p);
    cr_expect_float_eq(p.speed_up, 2, 1e-9);
    cr_expect_eq(p.link_seconds[1], 0, "nothing is predicted from one of two");
    cr_assert_eq(holmes_report_table(runs, 200, f), 0);
    fclose(f);
    cr_expect_not_null(strstr(text, "kB/step: data parallel"), "%s", text);
    cr_expect_null(strstr(text, "-1"), "%s", text);
    cr_expect_null(strstr(text, "alone, ms"), "%s", text);
    o = holmes_report_json(runs, 200);
    cr_expect(json_is_null(
        json_object_get(json_array_get(json_object_get(o, "runs"), 0), "busiest_bytes_per_step")));
    json_decref(o);
    free(text);
    free_both(runs);
}

Test(report, refuses_what_is_no_log_of_a_run)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "is empty"},
        {"hello\n", "line 1"},
        {"[1]\n", "line 1"},
        {"{\"record\":\"step\"}\n", "no config record"},
        {"{\"record\":\"config\",\"model\":{},\"ranks\":[{}]}\n", "no step"},
        {"{\"record\":\"config\"}\n{\"record\":\"st\n", "line 2"},
        {"{\"record\":\"config\"}\n{\"record\":\"step\"}\n{\"record\":\"end\"}\n", "no model"},
        {"{\"record\":\"config\",\"model\":{},\"ranks\":[{}]}\n{\"record\":\"step\"}\n"
         "{\"record\":\"end\"}\n",
         "not every rank"},
        {"{\"record\":\"config\",\"model\":{},\"ranks\":[{}]}\n{\"record\":\"step\"}\n"
         "{\"record\":\"end\"}\n{\"record\":\"traffic\",\"rank\":1}\n",
         "of a rank"},
        {"{\"record\":\"config\",\"model\":{},\"ranks\":[{}]}\n{\"record\":\"step\"}\n"
         "{\"record\":\"end\"}\n{\"record\":\"traffic\",\"rank\":0,\"communicators\":[{\"kind\":"
         "\"dp\",\"peers\":[{\"rank\":-1}]}]}\n",
         "names a rank"},
        {"{\"record\":\"config\",\"model\":{},\"ranks\":[{}]}\n{\"record\":\"step\"}\n"
         "{\"record\":\"end\"}\n{\"record\":\"traffic\",\"rank\":0,\"communicators\":[{\"kind\":"
         "7}]}\n",
         "unknown kind"},
    };
    struct holmes_sides sides = {0};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_summary s;
        char why[300] = "";
        FILE *f = fopen(path[0], "we");

        fputs(cases[i].text, f);
        fclose(f);
        cr_expect_eq(holmes_summary_read(path[0], &sides, &s, why, sizeof why), -EINVAL, "%s",
                     cases[i].text);
        cr_expect_not_null(strstr(why, cases[i].says), "\"%s\" expected, it says: %s",
                           cases[i].says, why);
        cr_expect_not_null(strstr(why, path[0]), "%s", why);
    }
    unlink(path[0]);
    {
        struct holmes_summary s;
        char why[300] = "";

        cr_expect_eq(holmes_summary_read(path[0], &sides, &s, why, sizeof why), -ENOENT);
        cr_expect_not_null(strstr(why, "No such file"), "%s", why);
    }
}
