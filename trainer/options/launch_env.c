/* The variables of each launcher as a table, innermost first: torchrun may be started by mpirun,
 * and mpirun by srun. */
#include "launch_env.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "hostlist.h"

#define PORT_FIRST 20000 /* below the ports that kernels give to connections */
#define PORT_COUNT 10000
#define PORT_OURS  29500 /* where nothing tells jobs apart */

struct launcher {
    const char *name;
    const char *sign; /* set by it alone; NULL: rank and world are the sign */
    const char *rank, *world, *local_rank, *local_world;
    const char *job;  /* the same for all ranks, another for another job; NULL: none */
    const char *step; /* tells what runs in one job at once apart; NULL: none */
};

enum { TORCHRUN, OPEN_MPI, SRUN, HYDRA, NLAUNCHERS };

static const struct launcher launchers[NLAUNCHERS] = {
    [TORCHRUN] = {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                  "LOCAL_WORLD_SIZE", NULL, NULL},
    [OPEN_MPI] = {"mpirun", NULL, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                  "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE",
                  NULL},
    [SRUN] = {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
              "SLURM_LOCALID", NULL, "SLURM_JOB_ID", "SLURM_STEP_ID"},
    [HYDRA] = {"mpiexec", NULL, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL,
               NULL},
};

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return -EINVAL;                                                                            \
    } while (0)

static const char *get(const struct holmes_launch_env *env, const char *name)
{
    const char *value = name ? env->get(env->ctx, name) : NULL;

    return value && value[0] ? value : NULL;
}

static int number(const struct holmes_launch_env *env, const char *name, int min, int max, int *out,
                  char *why, size_t why_len)
{
    const char *text = get(env, name);
    char *end;
    long v;

    if (!text)
        REFUSE("%s is not set", name);
    errno = 0;
    v = strtol(text, &end, 10);
    if (*end != '\0' || errno != 0 || v < min || v > max)
        REFUSE("%s=\"%.40s\": a number from %d to %d is right", name, text, min, max);
    *out = (int)v;
    return 0;
}

/* A batch script of Slurm is told SLURM_PROCID=0 as well, but is no step. */
static bool is_there(const struct holmes_launch_env *env, const struct launcher *l)
{
    if (l->sign && get(env, l->sign))
        return true;
    if (l == &launchers[SRUN])
        return false;
    return l == &launchers[TORCHRUN] ? get(env, l->rank) && get(env, l->world)
                                     : get(env, l->rank) || get(env, l->world);
}

static int read_rank(const struct holmes_launch_env *env, const struct launcher *l, int *rank,
                     int *world, char *why, size_t why_len)
{
    char what[200];

    if (number(env, l->world, 1, 1000000, world, what, sizeof what) != 0 ||
        number(env, l->rank, 0, INT_MAX, rank, what, sizeof what) != 0)
        REFUSE("%s has started this process, but %s", l->name, what);
    if (*rank >= *world)
        REFUSE("%s=%d, but ranks of %s=%d are 0 to %d", l->rank, *rank, l->world, *world,
               *world - 1);
    return 0;
}

/* Entry `node` of "2(x3),1": three hosts with two tasks, then one with one; 0: none. */
static int tasks_of_node(const char *text, int node)
{
    while (text && *text) {
        char *end;
        long tasks = strtol(text, &end, 10), times = 1;

        if (end == text || tasks < 1 || tasks > INT_MAX)
            return 0;
        if (end[0] == '(' && end[1] == 'x')
            times = strtol(end + 2, &end, 10);
        if (node < times)
            return (int)tasks;
        node -= (int)(times > 0 && times < INT_MAX ? times : 0);
        end += strcspn(end, ",");
        text = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

static int read_local(const struct holmes_launch_env *env, const struct launcher *l,
                      struct holmes_launch_place *p, char *why, size_t why_len)
{
    int local_rank = 0, node = 0;
    char nobody[200];

    p->local_world = 0;
    if (l->local_world && get(env, l->local_world)) {
        if (number(env, l->local_world, 1, p->world, &p->local_world, why, why_len) != 0)
            return -EINVAL;
    } else if (l == &launchers[SRUN] &&
               number(env, "SLURM_NODEID", 0, INT_MAX, &node, nobody, sizeof nobody) == 0) {
        p->local_world = tasks_of_node(get(env, "SLURM_STEP_TASKS_PER_NODE"), node);
    }
    if (!get(env, l->local_rank))
        return 0;
    if (number(env, l->local_rank, 0, INT_MAX, &local_rank, why, why_len) != 0)
        return -EINVAL;
    if (p->local_world > 0 && local_rank >= p->local_world)
        REFUSE("%s=%d, but this host has %d ranks", l->local_rank, local_rank, p->local_world);
    return 0;
}

static unsigned int port_of(const char *job, const char *step)
{
    unsigned int h = 2166136261u;

    for (; *job; job++)
        h = (h ^ (unsigned char)*job) * 16777619u;
    for (; step && *step; step++)
        h = (h ^ (unsigned char)*step) * 16777619u;
    return PORT_FIRST + h % PORT_COUNT;
}

static int first_host(const char *list, char *out, size_t out_len, char *why, size_t why_len)
{
    struct holmes_hostlist hosts = {0};
    char what[300];
    int rc = holmes_hostlist_parse(list, &hosts, what, sizeof what);

    if (rc == -EINVAL)
        REFUSE("SLURM_STEP_NODELIST: %s", what);
    if (rc != 0)
        return rc;
    holmes_hostlist_name(&hosts, 0, out, out_len);
    holmes_hostlist_fini(&hosts);
    return 0;
}

/* Where rank 0 can be found. */
static int read_rendezvous(const struct holmes_launch_env *env, const struct launcher *l,
                           struct holmes_launch_place *p, char *why, size_t why_len)
{
    const char *master = get(env, "MASTER_ADDR"), *nodes = get(env, "SLURM_STEP_NODELIST");
    const char *job = get(env, l->job);
    int port = 0, rc = 0;

    p->port = job ? (int)port_of(job, get(env, l->step)) : PORT_OURS;
    if (master)
        snprintf(p->host, sizeof p->host, "%s", master);
    else if (l == &launchers[SRUN] && nodes)
        rc = first_host(nodes, p->host, sizeof p->host, why, why_len);
    else if (p->local_world == p->world)
        snprintf(p->host, sizeof p->host, "127.0.0.1");
    if (rc != 0)
        return rc;
    if (!master || !get(env, "MASTER_PORT"))
        return 0;
    if (number(env, "MASTER_PORT", 1, 65535, &port, why, why_len) != 0)
        return -EINVAL;
    /* torchrun's own store listens there. */
    p->port = port < 65535 ? port + 1 : port - 1;
    return 0;
}

/* Two launchers at once: one inside the other, or settings that some script left behind. */
static int check_outer(const struct holmes_launch_env *env, const struct launcher *l,
                       const struct holmes_launch_place *p, char *why, size_t why_len)
{
    if (l != &launchers[TORCHRUN] || get(env, l->sign))
        return 0;
    for (const struct launcher *o = l + 1; o < launchers + NLAUNCHERS; o++) {
        int rank, world;

        if (!is_there(env, o) || read_rank(env, o, &rank, &world, why, why_len) != 0)
            continue;
        if (rank != p->rank || world != p->world)
            REFUSE("%s=%d of %s=%d, but %s=%d of %s=%d: they contradict each other; unset those "
                   "that no launcher has set",
                   l->rank, p->rank, l->world, p->world, o->rank, rank, o->world, world);
    }
    return 0;
}

/* Hydra may have been started by srun, once on each host; then srun's numbers are not the ranks. */
static bool is_hydra_in_srun(const struct holmes_launch_env *env, const struct launcher *l)
{
    const struct launcher *h = &launchers[HYDRA];

    return l == &launchers[SRUN] && get(env, h->rank) && get(env, h->world) && get(env, l->rank) &&
           (strcmp(get(env, h->rank), get(env, l->rank)) != 0 ||
            strcmp(get(env, h->world), get(env, l->world)) != 0);
}

int holmes_launch_env_read(const struct holmes_launch_env *env, struct holmes_launch_place *out,
                           char *why, size_t why_len)
{
    struct holmes_launch_place p = {0};
    int rc;

    for (const struct launcher *l = launchers; l < launchers + NLAUNCHERS && !p.launcher; l++) {
        if (!is_there(env, l) || is_hydra_in_srun(env, l))
            continue;
        p.launcher = l->name;
        p.how = l->world;
        rc = read_rank(env, l, &p.rank, &p.world, why, why_len);
        if (rc == 0)
            rc = check_outer(env, l, &p, why, why_len);
        if (rc == 0)
            rc = read_local(env, l, &p, why, why_len);
        if (rc == 0 && p.world > 1)
            rc = read_rendezvous(env, l, &p, why, why_len);
        if (rc != 0)
            return rc;
    }
    *out = p;
    if (p.world <= 1)
        out->launcher = NULL;
    return 0;
}

static int check_options(const struct holmes_launch_place *p, const struct holmes_config *c,
                         char *why, size_t why_len)
{
    if (c->local > 0)
        REFUSE("--local %d starts all ranks by itself, but %s has started this process as one of "
               "%d (%s): leave out one of the two",
               c->local, p->launcher, p->world, p->how);
    if (c->rank >= 0 && c->rank != p->rank)
        REFUSE("--rank %d, but %s has started this process as rank %d: leave --rank out", c->rank,
               p->launcher, p->rank);
    if (c->world > 0 && c->world != p->world)
        REFUSE("--world %d, but %s has started %d ranks (%s): leave --world out", c->world,
               p->launcher, p->world, p->how);
    if (c->serve)
        REFUSE("--serve is for ranks that are started by hand: under %s rank 0 serves",
               p->launcher);
    if (!c->rendezvous && !p->host[0])
        REFUSE("%s does not tell where rank 0 runs: give all ranks --rendezvous HOST:PORT, with "
               "the host of rank 0 and a free port there",
               p->launcher);
    return 0;
}

int holmes_launch_env_apply(const struct holmes_launch_place *p, struct holmes_config *c, char *why,
                            size_t why_len)
{
    int port = holmes_env_is_set(HOLMES_ENV_RENDEZVOUS_PORT)
                   ? (int)holmes_env_int(HOLMES_ENV_RENDEZVOUS_PORT)
                   : p->port;
    char where[300];
    int rc;

    if (!p->launcher || c->launcher_fd >= 0)
        return 0;
    rc = check_options(p, c, why, why_len);
    if (rc != 0)
        return rc;
    c->launcher = p->launcher;
    c->rank = p->rank;
    c->world = p->world;
    c->local_ranks = p->local_world;
    c->serve = p->rank == 0;
    if (c->rendezvous)
        return 0;
    snprintf(where, sizeof where, strchr(p->host, ':') ? "[%s]:%d" : "%s:%d", p->host, port);
    return holmes_config_set(c, "rendezvous", where, why, why_len);
}
