/* holmes-topo draw: a plan as a picture. */
#include <argp.h>
#include <errno.h>
#include <string.h>

#include "emit/draw.h"
#include "tool/output.h"
#include "tool/verbs.h"

struct draw_run {
    const char *plan, *path;
};

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "where the picture goes (plan.svg); - is the output", 0},
    {0},
};

static const char doc[] =
    "Draws a plan: the clusters with their stages, layers and nodes, and the wires between with "
    "what they carry in a step."
    "\v"
    "The picture is SVG, which browsers show; rsvg-convert and inkscape make PNG or PDF of it.\n"
    "\n"
    "Example:\n"
    "  holmes-topo draw plan.json -o plan.svg\n"
    "\n"
    "Exit status: 0 done; 1 could not write; 2 bad usage or a bad plan.";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct draw_run *r = state->input;

    switch (key) {
    case 'o':
        r->path = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (r->plan)
            argp_error(state, "\"%s\": one plan at a time", arg);
        r->plan = arg;
        return 0;
    case ARGP_KEY_END:
        if (!r->plan)
            argp_error(state, "name a plan, as holmes-topo plan -o wrote it");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int draw(const struct holmes_plan_doc *plan, const char *path, char *why, size_t why_len)
{
    struct topo_output out;
    int rc = topo_output_open(path, 0666, &out, why, why_len);

    if (rc != 0)
        return rc;
    errno = 0;
    rc = holmes_plan_draw(plan, out.file);
    if (rc != 0)
        snprintf(why, why_len, "cannot write %s: %s", path,
                 strerror(rc == -EIO && errno ? errno : -rc));
    return topo_output_close(&out, rc, why, why_len);
}

int topo_draw(int argc, char **argv)
{
    static const struct argp argp = {options, parse, "PLAN.json", doc, NULL, NULL, NULL};
    static char name[] = "holmes-topo draw";
    struct draw_run r = {.path = "plan.svg"};
    struct holmes_plan_doc plan;
    char why[1024] = "";
    int rc;

    argp_err_exit_status = TOPO_USAGE;
    argv[0] = name;
    argp_parse(&argp, argc, argv, 0, NULL, &r);
    if (holmes_plan_read(r.plan, &plan, why, sizeof why) != 0) {
        fprintf(stderr, "%s: %s\n", name, why);
        return TOPO_USAGE;
    }
    rc = draw(&plan, r.path, why, sizeof why);
    holmes_plan_doc_fini(&plan);
    if (rc != 0)
        fprintf(stderr, "%s: %s\n", name, why);
    return rc == 0 ? TOPO_OK : TOPO_FAILED;
}
