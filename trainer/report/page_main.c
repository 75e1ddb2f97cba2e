/* The command line of `holmes-train report`. */
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "file.h"
#include "launch.h"
#include "log.h"
#include "page.h"
#include "svg.h"

enum { OPT_SVG_DIR = 1000, OPT_TRACE, OPT_STEP, OPT_JSON };

struct args {
    const char *logs[HOLMES_REPORT_RUNS];
    size_t nlogs;
    const char *html, *svg_dir, *trace;
    int step; /* of the trace; 0: the one in its middle; -1: all */
    bool json;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    char *end;
    long n;

    switch (key) {
    case 'o':
        a->html = arg;
        return 0;
    case OPT_SVG_DIR:
        a->svg_dir = arg;
        return 0;
    case OPT_TRACE:
        a->trace = arg;
        return 0;
    case OPT_STEP:
        n = strtol(arg, &end, 10);
        if (strcmp(arg, "all") != 0 && (end == arg || *end || n < 1 || n > 1000000000))
            argp_error(state, "--step \"%s\": the number of a step from 1, or all, is right", arg);
        a->step = strcmp(arg, "all") == 0 ? -1 : (int)n;
        return 0;
    case OPT_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->nlogs == HOLMES_REPORT_RUNS)
            argp_error(state, "\"%s\": %d logs at most: there are not more colours", arg,
                       HOLMES_REPORT_RUNS);
        a->logs[a->nlogs++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->nlogs == 0)
            argp_error(state, "name the log of a run (holmes-train --log FILE writes it)");
        if (a->step != 0 && !a->trace)
            argp_error(state, "--step chooses a step of --trace: name that file too");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void parse(int argc, char **argv, struct args *a)
{
    static const struct argp_option options[] = {
        {0, 'o', "FILE", 0, "write the report as one HTML file that needs nothing else", 0},
        {"svg-dir", OPT_SVG_DIR, "DIR", 0, "write every picture as an SVG file into DIR", 0},
        {"trace", OPT_TRACE, "FILE", 0,
         "draw the time line of a step from what holmes-train --trace wrote", 0},
        {"step", OPT_STEP, "N|all", 0, "that step of the trace (the one in its middle)", 0},
        {"json", OPT_JSON, NULL, 0, "print JSON in place of the table", 0},
        {0}};
    static const struct argp argp = {
        options,
        parse_option,
        "LOG...",
        "Shows what the logs of holmes-train say: a table on the output, and with -o a page with "
        "curves of loss, throughput, gradient norm and learning rate, the bytes of each kind over "
        "each wire, where ranks waited, their memory, and the time line of a step.\v"
        "Several logs are drawn over each other, a colour for each. A log may be that of a run "
        "that still goes on or was killed.\n\n"
        "  holmes-train --data FILE --log run.jsonl --trace run.trace.json\n"
        "  holmes-train report run.jsonl --trace run.trace.json -o run.html\n"
        "  holmes-train report naive.jsonl planned.jsonl -o both.html --svg-dir pictures",
        NULL,
        NULL,
        NULL};

    argp_err_exit_status = HOLMES_EXIT_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, a);
}

/* --- output --------------------------------------------------------------------------------------
 */

static int complain(const char *option, const char *path, int rc)
{
    fprintf(stderr, "holmes-train report: %s %s: %s\n", option, path, holmes_file_strerror(rc));
    return rc;
}

/* -EIO from writing carries no cause; what the system says at the end may. */
static int close_file(FILE *f, int rc)
{
    if (fclose(f) != 0 && rc == 0)
        rc = errno ? -errno : -EIO;
    return rc;
}

static int write_html(const struct args *a, const struct holmes_report *r)
{
    FILE *f;
    int rc = holmes_file_create(a->html, &f);

    if (rc == 0)
        rc = close_file(f, holmes_page_html(r, f));
    return rc == 0 ? 0 : complain("-o", a->html, rc);
}

static int write_picture(const char *path, const struct holmes_picture *p,
                         const struct holmes_report *r)
{
    int width = holmes_picture_width(p), height = holmes_picture_height(p, r);
    FILE *f;
    int rc = holmes_file_create(path, &f);

    if (rc != 0)
        return rc;
    holmes_svg_begin(f, width, height, p->file);
    rc = p->draw(r, width, height, f);
    if (rc == 0)
        rc = holmes_svg_end(f);
    return close_file(f, rc);
}

static int write_pictures(const struct args *a, const struct holmes_report *r)
{
    int rc = mkdir(a->svg_dir, 0777) == 0 || errno == EEXIST ? 0 : -errno;
    char path[4096];

    if (rc != 0)
        return complain("--svg-dir", a->svg_dir, rc);
    for (const struct holmes_picture *p = holmes_pictures; p->file && rc == 0; p++) {
        if (!p->has(r))
            continue;
        if (snprintf(path, sizeof path, "%s/%s.svg", a->svg_dir, p->file) >= (int)sizeof path)
            return complain("--svg-dir", a->svg_dir, -ENAMETOOLONG);
        rc = write_picture(path, p, r);
        if (rc != 0)
            complain("--svg-dir", path, rc);
    }
    return rc;
}

static int print(const struct args *a, const struct holmes_report *r)
{
    int rc;

    if (a->json) {
        json_t *o = holmes_page_json(r);

        rc = o ? json_dumpf(o, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : -ENOMEM;
        json_decref(o);
        putchar('\n');
    } else {
        rc = holmes_page_table(r, stdout);
    }
    if (rc == 0 && fflush(stdout) == 0)
        return 0;
    fprintf(stderr, "holmes-train report: the output cannot be written\n");
    return -EIO;
}

/* --- input ---------------------------------------------------------------------------------------
 */

struct input {
    struct holmes_runlog runs[HOLMES_REPORT_RUNS];
    char texts[HOLMES_REPORT_RUNS][80];
    const char *names[HOLMES_REPORT_RUNS];
    struct holmes_timeline trace;
    struct holmes_report report;
};

/* The logs' names without folders, numbered where two are alike. */
static void name_runs(struct input *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int same = 1;

        for (size_t k = 0; k < i; k++)
            same += strcmp(in->runs[k].name, in->runs[i].name) == 0;
        if (same > 1)
            snprintf(in->texts[i], sizeof in->texts[i], "%s (%d)", in->runs[i].name, same);
        else
            snprintf(in->texts[i], sizeof in->texts[i], "%s", in->runs[i].name);
        in->names[i] = in->texts[i];
    }
}

static int choose_window(const struct args *a, struct holmes_report *r)
{
    int rc;

    if (a->step < 0) {
        r->to = r->trace->end;
        return 0;
    }
    r->step = a->step;
    rc = holmes_timeline_step(r->trace, &r->step, &r->from, &r->to);
    if (rc != 0 && a->step > 0) {
        fprintf(stderr, "holmes-train report: --step %d: %s has no such step\n", a->step, a->trace);
        return rc;
    }
    return 0;
}

static int read_input(const struct args *a, struct input *in)
{
    struct holmes_report *r = &in->report;
    char why[500];
    int rc = 0;

    *r = (struct holmes_report){.runs = in->runs, .names = in->names};
    for (size_t i = 0; i < a->nlogs && rc == 0; i++) {
        rc = holmes_runlog_read(a->logs[i], &in->runs[i], why, sizeof why);
        r->nruns += rc == 0;
    }
    if (rc == 0 && a->trace) {
        rc = holmes_timeline_read(a->trace, &in->trace, why, sizeof why);
        r->trace = rc == 0 ? &in->trace : NULL;
    }
    if (rc != 0) {
        fprintf(stderr, "holmes-train report: %s\n", why);
        return rc;
    }
    name_runs(in, a->nlogs);
    for (size_t i = 0; i < r->nruns; i++)
        if (in->runs[i].cut)
            fprintf(stderr,
                    "holmes-train report: %s: the last line is not whole: the run still writes, or "
                    "was killed; it is left out\n",
                    a->logs[i]);
    return r->trace ? choose_window(a, r) : 0;
}

int holmes_page_main(int argc, char **argv)
{
    struct args a = {0};
    struct input *in = calloc(1, sizeof *in);
    char name[] = "holmes-train report";
    int code = HOLMES_EXIT_USAGE;

    argv[0] = name;
    parse(argc, argv, &a);
    if (!in) {
        fprintf(stderr, "holmes-train report: out of memory\n");
        return HOLMES_EXIT_FAILED;
    }
    if (read_input(&a, in) == 0)
        code = print(&a, &in->report) == 0 && (!a.html || write_html(&a, &in->report) == 0) &&
                       (!a.svg_dir || write_pictures(&a, &in->report) == 0)
                   ? HOLMES_EXIT_OK
                   : HOLMES_EXIT_FAILED;
    for (size_t i = 0; i < in->report.nruns; i++)
        holmes_runlog_fini(&in->runs[i]);
    holmes_timeline_fini(&in->trace);
    free(in);
    return code;
}
