/* Runs `connections` and `ranks` and says what came of it. */
#include "scale.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int complain(int status, const char *sentence)
{
    fprintf(stderr, "holmes-bench: %s\n", sentence);
    return status;
}

static bool keeps_word(const struct holmes_scale_results *r)
{
    int64_t left = 0;

    for (int i = 0; i < r->nturns; i++)
        left += holmes_scale_left(&r->turns[i].near_before, &r->turns[i].near_after) +
                holmes_scale_left(&r->turns[i].far_before, &r->turns[i].far_after);
    return left == 0;
}

/* Everything that was measured is shown, also after a failure. */
static int run_connections(const struct holmes_scale_options *o, FILE *json)
{
    struct holmes_scale_results r = {.nturns = 0};
    char why[512] = "no memory";
    int rc = holmes_scale_hub_run(o, &r, why, sizeof why), bad = 0;

    if (r.nturns > 0 && holmes_scale_print(&r, stdout) != 0)
        bad = complain(EXIT_FAILED, "cannot write the table to standard output");
    if (json && holmes_scale_json(o, &r, json) != 0)
        bad = complain(EXIT_FAILED, "cannot write the file of --json");
    if (rc != 0)
        return complain(EXIT_FAILED, why);
    if (!keeps_word(&r))
        return complain(EXIT_FAILED, "descriptors or threads were left behind");
    return bad;
}

static int run_ranks(const struct holmes_scale_options *o, FILE *json)
{
    struct holmes_scale_mesh m = {.ranks = 0};
    char why[512] = "no memory";
    int rc = holmes_scale_mesh_run(o, &m, why, sizeof why), bad = 0;

    if (rc != 0)
        return complain(EXIT_FAILED, why);
    if (holmes_scale_mesh_print(&m, stdout) != 0)
        bad = complain(EXIT_FAILED, "cannot write the table to standard output");
    if (json && holmes_scale_mesh_json(&m, json) != 0)
        bad = complain(EXIT_FAILED, "cannot write the file of --json");
    if (holmes_scale_mesh_left(&m) != 0)
        return complain(EXIT_FAILED, "descriptors or threads were left behind");
    return bad;
}

int holmes_scale_main(int argc, char **argv)
{
    struct holmes_scale_options o;
    char why[512];
    FILE *json = NULL;
    int status;

    if (holmes_scale_options_parse(argc, argv, &o, why, sizeof why) != 0)
        return complain(EXIT_USAGE, why);
    /* Before anything is measured: a file that cannot be written is known at once. */
    if (o.json && !(json = fopen(o.json, "we"))) {
        fprintf(stderr, "holmes-bench: --json \"%s\": cannot write: %s\n", o.json, strerror(errno));
        return EXIT_USAGE;
    }
    status = o.ranks ? run_ranks(&o, json) : run_connections(&o, json);
    if (json && fclose(json) != 0)
        status = complain(EXIT_FAILED, "cannot write the file of --json");
    return status;
}
