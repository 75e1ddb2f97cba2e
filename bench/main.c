/* holmes-bench: reads the command line, sees that what it asks for is possible, measures, reports.
 */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env.h"
#include "log.h"
#include "report.h"
#include "scale/scale.h"
#include "session.h"
#include "size.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNALLED = 128 };

/* glibc looks for it in the program, where names are hidden by default. */
__attribute__((visibility("default"))) const char *argp_program_version =
    "holmes-bench " HOLMES_VERSION;

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
    stop = sig;
}

static int complain(int status, const char *sentence)
{
    fprintf(stderr, "holmes-bench: %s\n", sentence);
    return status;
}

/* --- files: opened before anything is measured, kept only when something was written -------------
 */

struct output {
    const char *option, *path; /* path NULL: not wanted */
    int (*write)(const struct holmes_results *r, FILE *out);
    FILE *file;
    bool created; /* by us: may be removed again */
};

static int output_open(struct output *o)
{
    struct stat st;

    if (!o->path)
        return 0;
    o->created = lstat(o->path, &st) != 0;
    /* "a": what is there stays until there is something better. */
    o->file = fopen(o->path, "ae");
    if (o->file)
        return 0;
    o->created = false;
    fprintf(stderr, "holmes-bench: %s \"%s\": cannot write: %s\n", o->option, o->path,
            strerror(errno));
    return -EINVAL;
}

static int output_write(struct output *o, const struct holmes_results *r)
{
    int rc;

    if (!o->file || r->nsizes_done == 0)
        return 0;
    o->created = false;
    /* A pipe or terminal cannot be cut, and need not be. */
    if (ftruncate(fileno(o->file), 0) != 0 && errno != EINVAL)
        rc = -errno;
    else
        rc = o->write(r, o->file);
    if (fclose(o->file) != 0 && rc == 0)
        rc = -errno;
    o->file = NULL;
    if (rc != 0)
        fprintf(stderr, "holmes-bench: %s \"%s\": %s\n", o->option, o->path, holmes_strerror(rc));
    return rc;
}

static void output_drop(struct output *o)
{
    if (o->file)
        fclose(o->file);
    if (o->created)
        unlink(o->path);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* What the kernel says can be had without swapping; 0 when it does not say. */
static uint64_t memory_available(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");

    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return (uint64_t)kib * 1024;
}

static int memory_check(const struct holmes_results *r)
{
    uint64_t need = holmes_session_memory(r), have = memory_available();
    char needs[32], has[32];

    if (have == 0 || need <= have / 10 * 9)
        return 0;
    holmes_size_format(need, needs, sizeof needs);
    holmes_size_format(have, has, sizeof has);
    fprintf(stderr,
            "holmes-bench: buffers for --max with %d ranks need %s, %s of memory are available: "
            "lower --max or --ranks\n",
            r->options->nranks, needs, has);
    return -EINVAL;
}

/* ---------------------------------------------------------------------------------------------- */

static int measure_and_report(struct holmes_results *r, struct output *outputs, size_t noutputs)
{
    char why[1024] = "";
    int rc = holmes_session_run(r, &stop, why, sizeof why), bad = 0;

    if (r->nsizes_done > 0 && holmes_report_table(r, stdout) != 0)
        bad = complain(EXIT_FAILED, "cannot write the table to standard output");
    for (size_t i = 0; i < noutputs; i++)
        bad |= output_write(&outputs[i], r) != 0;
    if (rc == -EINTR && stop)
        return complain(EXIT_SIGNALLED + stop, "interrupted");
    if (rc != 0)
        return complain(EXIT_FAILED, why);
    if (holmes_results_wrong(r) > 0)
        return complain(EXIT_FAILED, "results are wrong, see the #wrong column");
    return bad ? EXIT_FAILED : 0;
}

static void catch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal};

    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
}

int main(int argc, char **argv)
{
    struct holmes_bench_options options;
    struct holmes_results *r;
    enum holmes_log_level level;
    char why[512];
    int status = EXIT_USAGE;

    argp_err_exit_status = EXIT_USAGE;
    if (holmes_env_check(why, sizeof why) != 0)
        return complain(EXIT_USAGE, why);
    if (holmes_log_level_parse(holmes_env_string(HOLMES_ENV_LOG), &level) == 0)
        holmes_log_set_level(level);
    if (argc > 1 && holmes_scale_is_command(argv[1]))
        return holmes_scale_main(argc - 1, argv + 1);
    if (holmes_bench_options_parse(argc, argv, &options, why, sizeof why) != 0)
        return complain(EXIT_USAGE, why);
    struct output outputs[] = {
        {"--csv", options.csv, holmes_report_csv, NULL, false},
        {"--json", options.json, holmes_report_json, NULL, false},
        {"--svg", options.svg, holmes_report_svg, NULL, false},
    };
    size_t noutputs = sizeof outputs / sizeof outputs[0], opened = 0;

    r = holmes_results_create(&options);
    if (!r)
        return complain(EXIT_FAILED, "no memory");
    if (memory_check(r) == 0) {
        while (opened < noutputs && output_open(&outputs[opened]) == 0)
            opened++;
        if (opened == noutputs) {
            catch_signals();
            status = measure_and_report(r, outputs, noutputs);
        }
    }
    for (size_t i = 0; i < noutputs; i++)
        output_drop(&outputs[i]);
    holmes_results_destroy(r);
    return status;
}
