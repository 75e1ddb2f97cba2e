/* holmes-topo emit: a plan as the settings of those who start jobs. */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emit/emit.h"
#include "tool/output.h"
#include "tool/verbs.h"

struct emit_run {
    const char *plan, *form_name, *part_name, *dir;
    const struct holmes_emit_form *form;
    const struct holmes_emit_part *part; /* NULL: all */
    struct holmes_emit_options o;
};

enum {
    KEY_FOR = 1000,
    KEY_PART,
    KEY_PLUGIN,
    KEY_PROGRAM,
    KEY_MASTER,
    KEY_PORT,
    KEY_CORES,
    KEY_NAIVE
};

static const struct argp_option options[] = {
    {"for", KEY_FOR, "FORM", 0, "whom the settings are for; see below", 0},
    {"part", KEY_PART, "NAME", 0, "only this part of them, and nothing else on the output", 0},
    {"output", 'o', "DIR", 0, "write each part to its file in this folder", 0},
    {"plugin", KEY_PLUGIN, "PATH", 0,
     "absolute path of libnccl-net-holmes.so on the nodes (else it is found by its name)", 0},
    {"program", KEY_PROGRAM, "FILE", 0, "what each rank runs (pretrain_gpt.py)", 0},
    {"master", KEY_MASTER, "HOST", 0, "where ranks meet (the host of rank 0)", 0},
    {"port", KEY_PORT, "N", 0, "port of the meeting (29500)", 0},
    {"cores", KEY_CORES, "N", 0, "cores of each rank in rankfiles (1)", 0},
    {"naive", KEY_NAIVE, NULL, 0,
     "holmes: the order of the cluster file and even layers, to compare with", 0},
    {0},
};

static const char doc[] =
    "Writes a plan as the settings of Megatron-LM, torchrun, Slurm, Open MPI or holmes-train."
    "\v"
    "Examples:\n"
    "  holmes-topo emit plan.json --for megatron -o job --plugin "
    "/opt/holmes/libnccl-net-holmes.so\n"
    "  holmes-topo emit plan.json --for slurm --part nodelist\n"
    "\n"
    "Exit status: 0 done; 1 could not write; 2 bad usage or a bad plan.\n"
    "\n"
    "Forms and their parts:\n";

/* Adds the table of forms to the text below the options. */
static char *help_filter(int key, const char *text, void *input)
{
    char *out = NULL;
    size_t len;
    FILE *f;

    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC || !(f = open_memstream(&out, &len)))
        return (char *)text;
    fputs(text, f);
    for (int i = 0; holmes_emit_forms[i]; i++) {
        fprintf(f, "  %-9s %s\n", holmes_emit_forms[i]->name, holmes_emit_forms[i]->summary);
        for (const struct holmes_emit_part *p = holmes_emit_forms[i]->parts; p->name; p++)
            fprintf(f, "    %-9s %-11s %s\n", p->name, p->file, p->summary);
    }
    fclose(f);
    return out ? out : (char *)text;
}

static int read_number(struct argp_state *state, const char *option, const char *text, int max)
{
    char *end;
    long v = strtol(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || v < 1 || v > max)
        argp_error(state, "--%s \"%s\": a whole number from 1 to %d is right", option, text, max);
    return (int)v;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct emit_run *r = state->input;

    switch (key) {
    case KEY_FOR:
        r->form_name = arg;
        break;
    case KEY_PART:
        r->part_name = arg;
        break;
    case 'o':
        r->dir = arg;
        break;
    case KEY_PLUGIN:
        r->o.plugin = arg;
        break;
    case KEY_PROGRAM:
        r->o.program = arg;
        break;
    case KEY_MASTER:
        r->o.master = arg;
        break;
    case KEY_PORT:
        r->o.port = read_number(state, "port", arg, 65535);
        break;
    case KEY_CORES:
        r->o.cores = read_number(state, "cores", arg, 4096);
        break;
    case KEY_NAIVE:
        r->o.naive = true;
        break;
    case ARGP_KEY_ARG:
        if (r->plan)
            argp_error(state, "\"%s\": one plan at a time", arg);
        r->plan = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Names after what was wrong, as they are in the tables. */
static void find_form(struct emit_run *r, struct argp_state *state)
{
    char names[256] = "";
    size_t n = 0;

    for (int i = 0; holmes_emit_forms[i]; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, " %s", holmes_emit_forms[i]->name);
    if (!r->form_name)
        argp_error(state, "--for FORM is missing; there are:%s", names);
    r->form = r->form_name ? holmes_emit_find(r->form_name) : NULL;
    if (!r->form)
        argp_error(state, "--for \"%s\": no such form; there are:%s", r->form_name, names);
    if (!r->form || !r->part_name)
        return;
    r->part = holmes_emit_find_part(r->form, r->part_name);
    n = 0;
    for (const struct holmes_emit_part *p = r->form->parts; p->name; p++)
        n += (size_t)snprintf(names + n, sizeof names - n, " %s", p->name);
    if (!r->part)
        argp_error(state, "--part \"%s\": %s has no such part; there are:%s", r->part_name,
                   r->form->name, names);
}

static error_t parse_all(int key, char *arg, struct argp_state *state)
{
    struct emit_run *r = state->input;

    if (key != ARGP_KEY_END)
        return parse(key, arg, state);
    find_form(r, state);
    if (!r->plan)
        argp_error(state, "name a plan, as holmes-topo plan -o wrote it");
    if (r->o.naive && r->form && strcmp(r->form->name, "holmes") != 0)
        argp_error(state, "--naive goes with --for holmes");
    return 0;
}

/* To its file below the folder. */
static int write_file(const struct emit_run *r, const struct holmes_emit_part *part,
                      const struct holmes_plan_doc *plan, char *why, size_t why_len)
{
    struct topo_output out;
    char *path;
    int rc;

    if (asprintf(&path, "%s/%s", r->dir, part->file) < 0)
        return -ENOMEM;
    rc = topo_output_open(path, part->script ? 0777 : 0666, &out, why, why_len);
    if (rc == 0) {
        rc = part->write(plan, &r->o, out.file, why, why_len);
        rc = topo_output_close(&out, rc, why, why_len);
    }
    free(path);
    return rc;
}

static int write_parts(const struct emit_run *r, const struct holmes_plan_doc *plan, char *why,
                       size_t why_len)
{
    int rc = 0;

    if (r->dir && mkdir(r->dir, 0777) != 0 && errno != EEXIST) {
        snprintf(why, why_len, "cannot make the folder %s: %s", r->dir, strerror(errno));
        return -EIO;
    }
    for (const struct holmes_emit_part *p = r->form->parts; rc == 0 && p->name; p++) {
        if (r->part ? p != r->part : p->wanted && !p->wanted(plan))
            continue;
        if (r->dir) {
            rc = write_file(r, p, plan, why, why_len);
            continue;
        }
        if (!r->part)
            printf("%s==> %s <==\n", p == r->form->parts ? "" : "\n", p->file);
        rc = p->write(plan, &r->o, stdout, why, why_len);
    }
    if (rc == 0 && !r->dir && (fflush(stdout) != 0 || ferror(stdout))) {
        snprintf(why, why_len, "cannot write: %s", strerror(errno));
        rc = -EIO;
    }
    return rc;
}

int topo_emit(int argc, char **argv)
{
    static const struct argp argp = {options, parse_all, "PLAN.json", doc, NULL, help_filter, NULL};
    static char name[] = "holmes-topo emit";
    struct emit_run r = {0};
    struct holmes_plan_doc plan;
    char why[1024] = "";
    int rc;

    argp_err_exit_status = TOPO_USAGE;
    argv[0] = name;
    argp_parse(&argp, argc, argv, 0, NULL, &r);
    rc = holmes_emit_check(&r.o, why, sizeof why);
    if (rc == 0)
        rc = holmes_plan_read(r.plan, &plan, why, sizeof why);
    if (rc == 0) {
        rc = write_parts(&r, &plan, why, sizeof why);
        holmes_plan_doc_fini(&plan);
        if (rc != -EINVAL && rc != 0) {
            fprintf(stderr, "%s: %s\n", name, why);
            return TOPO_FAILED;
        }
    }
    if (rc != 0)
        fprintf(stderr, "%s: %s\n", name, why);
    return rc == 0 ? TOPO_OK : TOPO_USAGE;
}
