/* holmes-topo check: reads what to reach and what to expect, has it measured, judges and reports.
 */
#include "tool/check.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env.h"
#include "tool/hosts.h"
#include "tool/launcher.h"
#include "tool/verbs.h"

#define AGAIN_MAX    24 /* pairs that are measured a second time, */
#define AGAIN_LIKE   12 /* findings of one cause that lead to it */
#define AGAIN_PASSES 3

enum {
    KEY_HOSTS = 256,
    KEY_HOSTFILE,
    KEY_LAUNCHER,
    KEY_PROGRAM,
    KEY_JSON,
    KEY_MIN_GBPS,
    KEY_ENOUGH,
    KEY_TIME_LIMIT
};

struct options {
    const char *plan, *hosts, *hostfile, *launcher, *program;
    bool json;
    double min_gbps, enough_percent;
    int time_limit_s;
};

static const struct argp_option argp_options[] = {
    {NULL, 0, NULL, 0, "What to check (PLAN.json, or one of these, or the Slurm allocation):", 1},
    {"hosts", KEY_HOSTS, "LIST", 0, "these hosts, like a[01-04],b7", 0},
    {"hostfile", KEY_HOSTFILE, "FILE", 0, "these hosts, one a line", 0},
    {NULL, 0, NULL, 0, "How to reach them:", 2},
    {"launcher", KEY_LAUNCHER, "COMMAND", 0,
     "starts a command on {host} (default: srun in a Slurm allocation, else \"" HOLMES_LAUNCHER_SSH
     "\")",
     0},
    {"program", KEY_PROGRAM, "PATH", 0, "holmes-topo on the hosts (default: as here)", 0},
    {"time-limit", KEY_TIME_LIMIT, "SECONDS", 0, "for all of it, 5 to 3600 (default 60)", 0},
    {NULL, 0, NULL, 0, "What is enough:", 3},
    {"enough", KEY_ENOUGH, "PERCENT", 0, "of the rate that the plan counts on (default 50)", 0},
    {"min-gbps", KEY_MIN_GBPS, "RATE", 0, "between any two hosts, each way", 0},
    {NULL, 0, NULL, 0, "What to write:", 4},
    {"json", KEY_JSON, NULL, 0, "everything, for programs", 0},
    {NULL, 0, NULL, 0, "Help:", -1},
    {0},
};

static const char argp_doc[] =
    "Starts the plugin's own transport on every host and measures between each two of them: over "
    "which wire they talk and why, the round trip, and the bandwidth each way."
    "\v"
    "With PLAN.json (holmes-topo plan) each pair is held against what the plan counts on: RDMA "
    "inside "
    "a fabric, the speed of a NIC, the bandwidth and round trip of the links between fabrics. "
    "Without "
    "a plan, pairs that do not reach each other and those below --min-gbps are told, and where "
    "slow "
    "links part the hosts into groups, which.\n"
    "\n"
    "Up to 64 hosts, every pair is measured, in rounds in which no host is in two pairs, each over "
    "another NIC of the host; of more hosts those pairs that talk in a step of the plan, and one "
    "of "
    "each two fabrics (without a plan: neighbours in the list, and opposites). A pair that falls "
    "short is measured again alone before it is told.\n"
    "\n"
    "{host} in the launcher stands for the host's name. ssh gets the command quoted for the shell "
    "on "
    "the other side; others get its words, or all of it in the place of {command}. Variables "
    "NCCL_* "
    "and HOLMES_* of this shell are set on the hosts too.\n"
    "\n"
    "Examples:\n"
    "  holmes-topo check plan.json\n"
    "  holmes-topo check --hosts a[01-32],b[01-32] --min-gbps 10\n"
    "  holmes-topo check --hostfile hosts.txt --launcher 'ssh -p 2222 root@{host}'\n"
    "\n"
    "Exit status: 0 nothing falls short; 1 something does; 2 usage.";

/* --- options ---------------------------------------------------------------------------------- */

static error_t read_number(struct argp_state *state, const char *option, const char *text,
                           double low, double high, double *out)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= low && v <= high)) {
        argp_error(state, "%s \"%s\": give a number from %g to %g", option, text, low, high);
        return EINVAL;
    }
    *out = v;
    return 0;
}

static error_t parse_key(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    double seconds;

    switch (key) {
    case KEY_HOSTS:
        o->hosts = arg;
        return 0;
    case KEY_HOSTFILE:
        o->hostfile = arg;
        return 0;
    case KEY_LAUNCHER:
        o->launcher = arg;
        return 0;
    case KEY_PROGRAM:
        o->program = arg;
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case KEY_MIN_GBPS:
        return read_number(state, "--min-gbps", arg, 0, 1e6, &o->min_gbps);
    case KEY_ENOUGH:
        return read_number(state, "--enough", arg, 1, 100, &o->enough_percent);
    case KEY_TIME_LIMIT:
        if (read_number(state, "--time-limit", arg, 5, 3600, &seconds) != 0)
            return EINVAL;
        o->time_limit_s = (int)seconds;
        return 0;
    case ARGP_KEY_ARG:
        if (o->plan) {
            argp_error(state, "\"%s\": one plan at a time", arg);
            return EINVAL;
        }
        o->plan = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->plan && (o->hosts || o->hostfile)) {
            argp_error(state, "the hosts are those of the plan: leave out --hosts and --hostfile");
            return EINVAL;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int complain(int status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int complain(int status, const char *fmt, ...)
{
    va_list ap;

    fputs("holmes-topo check: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return status;
}

/* --- what to check ---------------------------------------------------------------------------- */

struct target {
    int n;
    char **hosts;
    struct holmes_plan_doc doc;
    bool has_plan, slurm;
    struct holmes_schedule schedule;
};

static int name_hosts(struct target *t, const struct holmes_hostlist *l)
{
    char name[HOLMES_HOST_NAME_MAX];

    for (; t->n < l->nhosts; t->n++) {
        t->hosts[t->n] = strdup(holmes_hostlist_name(l, t->n, name, sizeof name));
        if (!t->hosts[t->n])
            return -ENOMEM;
    }
    return 0;
}

static int name_plan_hosts(struct target *t)
{
    const struct holmes_plan *p = t->doc.plan;
    char name[HOLMES_HOST_NAME_MAX];

    for (; t->n < p->nnodes; t->n++) {
        const struct holmes_plan_node *node = &p->nodes[t->n];
        const struct holmes_hostlist *l = &t->doc.cluster->groups[node->group].hosts;

        t->hosts[t->n] = strdup(holmes_hostlist_name(l, node->host, name, sizeof name));
        if (!t->hosts[t->n])
            return -ENOMEM;
    }
    return 0;
}

static int make_room(struct target *t, int n, char *why, size_t why_len)
{
    if (n < 2 || n > HOLMES_CHECK_NODES_MAX) {
        snprintf(why, why_len, "%d hosts: 2 to %d can be checked at once", n,
                 HOLMES_CHECK_NODES_MAX);
        return -EINVAL;
    }
    t->hosts = calloc((size_t)n + 1, sizeof *t->hosts);
    return t->hosts ? 0 : -ENOMEM;
}

static int target_hosts(struct target *t, const struct options *o, char *why, size_t why_len)
{
    struct holmes_hostlist l = {.nranges = 0};
    int rc;

    if (o->plan) {
        rc = holmes_plan_read(o->plan, &t->doc, why, why_len);
        t->has_plan = rc == 0;
        t->slurm = getenv("SLURM_JOB_ID") != NULL;
        if (rc == 0)
            rc = make_room(t, t->doc.plan->nnodes, why, why_len);
        return rc == 0 ? name_plan_hosts(t) : rc;
    }
    rc = holmes_hosts_choose(o->hosts, o->hostfile, &l, &t->slurm, why, why_len);
    if (rc != 0)
        return rc;
    t->slurm = t->slurm || getenv("SLURM_JOB_ID") != NULL;
    rc = make_room(t, l.nhosts, why, why_len);
    if (rc == 0)
        rc = name_hosts(t, &l);
    holmes_hostlist_fini(&l);
    return rc;
}

static int target_schedule(struct target *t)
{
    struct holmes_pair *pairs = NULL;
    int npairs = 0, rc;

    if (t->n <= HOLMES_SCHEDULE_ALL_MAX)
        return holmes_schedule_all(t->n, &t->schedule);
    rc = t->has_plan ? holmes_schedule_sample(&t->doc, &pairs, &npairs)
                     : holmes_schedule_ring(t->n, &pairs, &npairs);
    if (rc == 0)
        rc = holmes_schedule_pairs(t->n, pairs, npairs, &t->schedule);
    free(pairs);
    return rc;
}

static void target_fini(struct target *t)
{
    for (int i = 0; i < t->n; i++)
        free(t->hosts[i]);
    free(t->hosts);
    holmes_schedule_fini(&t->schedule);
    if (t->has_plan)
        holmes_plan_doc_fini(&t->doc);
}

/* --- the agent's command ---------------------------------------------------------------------- */

/* Not for the hosts: a secret, and files that belong to this process. */
static bool stays_here(enum holmes_env_id id)
{
    return id == HOLMES_ENV_JOB_SECRET || id == HOLMES_ENV_STATS || id == HOLMES_ENV_LOG;
}

/* env NAME=VALUE... PROGRAM check-agent. NULL: no memory. */
static char **agent_argv(const char *program)
{
    char **argv = calloc(HOLMES_ENV_COUNT + 4, sizeof *argv);
    int n = 0;

    if (!argv)
        return NULL;
    argv[n++] = strdup("env");
    for (int id = 0; id < HOLMES_ENV_COUNT; id++) {
        if (!holmes_env_is_set(id) || stays_here(id))
            continue;
        if (asprintf(&argv[n++], "%s=%s", holmes_env_vars[id].name, holmes_env_string(id)) < 0)
            argv[n - 1] = NULL;
    }
    argv[n++] = strdup(program);
    argv[n++] = strdup("check-agent");
    for (int i = 0; i < n; i++) {
        if (argv[i])
            continue;
        for (int k = 0; k < n; k++)
            free(argv[k]);
        free(argv);
        return NULL;
    }
    return argv;
}

static void argv_free(char **argv)
{
    for (char **a = argv; a && *a; a++)
        free(*a);
    free(argv);
}

/* --- run -------------------------------------------------------------------------------------- */

/* One that was measured alone goes before all others. -1: none was measured. */
static int fastest_between(const struct holmes_check_run *run, const struct holmes_check_groups *g,
                           int x, int y)
{
    int best = -1;

    for (int i = 0; i < run->npairs; i++) {
        const struct holmes_check_result *p = &run->pairs[i];
        const struct holmes_check_result *q = best >= 0 ? &run->pairs[best] : NULL;
        int a = g->group[p->a], b = g->group[p->b];

        if (p->state != HOLMES_CHECK_MEASURED || !((a == x && b == y) || (a == y && b == x)))
            continue;
        if (!q || p->alone > q->alone || (p->alone == q->alone && p->gbps[0] > q->gbps[0]))
            best = i;
    }
    return best;
}

/* Pairs that may only have been disturbed; and of each two groups, the fastest between them. */
static int choose_again(const struct holmes_check_run *run,
                        const struct holmes_check_finding *findings, int nfindings,
                        const struct holmes_check_groups *g, int again[AGAIN_MAX])
{
    int n = 0;

    for (int i = 0; i < nfindings && n < AGAIN_MAX; i++) {
        int alike = 0;

        if (!findings[i].slow || (n > 0 && again[n - 1] == findings[i].pair))
            continue;
        for (int k = 0; k < i; k++)
            alike += findings[k].slow && findings[k].like == findings[i].like;
        if (alike < AGAIN_LIKE)
            again[n++] = findings[i].pair;
    }
    for (int x = 0; x < g->n; x++) {
        for (int y = x + 1; y < g->n && n < AGAIN_MAX; y++) {
            int best = fastest_between(run, g, x, y);

            if (best >= 0 && !run->pairs[best].alone)
                again[n++] = best;
        }
    }
    return n;
}

struct verdict {
    struct holmes_check_finding *findings;
    int n;
    struct holmes_check_groups groups;
};

static void verdict_fini(struct verdict *v)
{
    free(v->findings);
    holmes_check_groups_fini(&v->groups);
    *v = (struct verdict){.n = 0};
}

static int judge(const struct holmes_check_run *run, const struct holmes_check_limits *limits,
                 struct verdict *v)
{
    int rc;

    verdict_fini(v);
    rc = holmes_check_judge(run, limits, &v->findings, &v->n);
    return rc == 0 ? holmes_check_groups(run, &v->groups) : rc;
}

static int measure(struct holmes_check_run *run, const struct holmes_check_options *o,
                   const struct holmes_check_limits *limits, struct verdict *v, char *why,
                   size_t why_len)
{
    struct holmes_check_session *s;
    int again[AGAIN_MAX], n, rc = holmes_check_session_open(run, o, &s, why, why_len);

    if (rc != 0)
        return rc;
    snprintf(why, why_len, "out of memory");
    rc = holmes_check_session_measure(s);
    /* Figures that got better can change the groups, and these what is worth another look. */
    for (int pass = 0; rc == 0 && pass < AGAIN_PASSES; pass++) {
        rc = judge(run, limits, v);
        n = rc == 0 ? choose_again(run, v->findings, v->n, &v->groups, again) : 0;
        if (n == 0)
            break;
        rc = holmes_check_session_again(s, again, n);
    }
    holmes_check_session_close(s);
    return rc == 0 || rc == -EINTR ? judge(run, limits, v) : rc;
}

static int check(const struct options *o, struct target *t)
{
    char path[PATH_MAX], why[1024] = "",
                         **argv = agent_argv(holmes_own_program(o->program, path, sizeof path));
    struct holmes_check_limits limits = {.doc = t->has_plan ? &t->doc : NULL,
                                         .share = o->enough_percent / 100,
                                         .min_gbps = o->min_gbps};
    struct holmes_check_options options = {
        .launcher = o->launcher ? o->launcher
                    : t->slurm  ? HOLMES_LAUNCHER_SRUN
                                : NULL,
        .argv = argv,
        .time_limit_s = o->time_limit_s,
        .progress = true,
    };
    struct holmes_check_run *run = NULL;
    struct verdict v = {.n = 0};
    int rc = options.argv
                 ? holmes_check_run_create((const char *const *)t->hosts, t->n, &t->schedule, &run)
                 : -ENOMEM;

    snprintf(why, sizeof why, "out of memory");
    if (rc == 0)
        rc = measure(run, &options, &limits, &v, why, sizeof why);
    if (rc == 0 && o->json)
        rc = holmes_check_print_json(run, &v.groups, v.findings, v.n, stdout);
    else if (rc == 0)
        holmes_check_print(run, &v.groups, v.findings, v.n, stdout);
    if (rc == -EINTR)
        rc = 128 + (run->signal ? run->signal : SIGINT);
    else if (rc != 0)
        rc = complain(rc == -EINVAL ? TOPO_USAGE : TOPO_FAILED, "%s", why);
    else if (run->signal)
        rc = 128 + run->signal;
    else
        rc = v.n > 0 ? TOPO_FAILED : TOPO_OK;
    verdict_fini(&v);
    holmes_check_run_destroy(run);
    argv_free(argv);
    return rc;
}

int topo_check(int argc, char **argv)
{
    static const struct argp argp = {argp_options, parse_key, "[PLAN.json]", argp_doc,
                                     NULL,         NULL,      NULL};
    struct options o = {.enough_percent = 50, .time_limit_s = 60};
    struct target t = {.n = 0};
    char why[1024] = "out of memory", name[] = "holmes-topo check";
    int rc;

    argv[0] = name;
    argp_err_exit_status = TOPO_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return TOPO_USAGE;
    rc = target_hosts(&t, &o, why, sizeof why);
    if (rc == 0)
        rc = target_schedule(&t);
    rc = rc == 0 ? check(&o, &t) : complain(rc == -ENOMEM ? TOPO_FAILED : TOPO_USAGE, "%s", why);
    target_fini(&t);
    return rc;
}
