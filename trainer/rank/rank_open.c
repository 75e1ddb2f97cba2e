/* Opens what training needs, in the order in which it is needed: data, checkpoints, kernels,
 * network, model, log. */
#include "rank_priv.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "gpt2.h"
#include "launch.h"
#include "log.h"
#include "memory.h"
#include "record.h"

static int poll_job(void *ctx)
{
    return holmes_rdv_poll(ctx);
}

static int open_comm(void *ctx, const char *name, const char *kind, const int *ranks, int size,
                     int rank, struct holmes_comm **out)
{
    struct rank *r = ctx;

    if (r->nccl)
        return holmes_comm_nccl_create(r->nccl, r->rdv, name, kind, ranks, size, rank, out);
    return holmes_comm_net_create(r->net, r->rdv, name, kind, ranks, size, rank, out);
}

static int open_nccl(struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_nccl_attr attr = {.plugin = c->plugin,
                                    .stream = r->kernels->stream(),
                                    .connect_timeout_s = c->join_timeout_s,
                                    .op_timeout_s = c->op_timeout_s};
    char why[600] = "";
    int rc = holmes_nccl_open(&attr, &r->nccl, why, sizeof why);

    return rc ? holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "--comm nccl: %s",
                                 why[0] ? why : holmes_strerror(rc))
              : 0;
}

static int open_plugin(struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_net_attr attr = {.plugin = c->plugin,
                                   .device = c->device,
                                   .connect_timeout_s = c->join_timeout_s,
                                   .op_timeout_s = c->op_timeout_s};
    char why[600] = "";
    int rc = holmes_net_open(&attr, &r->net, why, sizeof why);

    return rc ? holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "cannot use --plugin %s: %s",
                                 c->plugin, why[0] ? why : holmes_strerror(rc))
              : 0;
}

int holmes_rank_open_network(struct rank *r)
{
    const struct holmes_config *c = r->config;
    int rc;

    if (r->world > 1) {
        rc = holmes_wires_prepare(&r->wires);
        if (rc != 0)
            return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false,
                                    "no file for the plugin's counters: %s", holmes_strerror(rc));
        rc = c->comm == HOLMES_COMM_NCCL ? open_nccl(r) : open_plugin(r);
        if (rc != 0)
            return rc;
    }
    r->links.timeout_ms = c->op_timeout_s * 1000;
    r->links.poll = r->rdv ? poll_job : NULL;
    r->links.poll_ctx = r->rdv;
    rc = holmes_links_open(&r->links, r->group, r->rank, c->model.tied, open_comm, r);
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true,
                                "cannot connect to the other ranks: %s", holmes_strerror(rc));
    rc = r->net ? holmes_links_greet(&r->links) : 0;
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, true, "the first message%s%s: %s",
                                r->links.failed ? " on " : "",
                                r->links.failed ? r->links.failed->name : "", holmes_strerror(rc));
    return 0;
}

/* What a launcher has bound to some cores may share them with other ranks of the host. */
static int threads(const struct holmes_config *c)
{
    cpu_set_t set;
    int cores = 1, share;

    if (c->threads > 0)
        return c->threads;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cores = CPU_COUNT(&set);
    cores /= c->local > 0 ? c->local : 1;
    share = c->local_ranks > 0 ? (int)sysconf(_SC_NPROCESSORS_ONLN) / c->local_ranks : cores;
    if (share < cores)
        cores = share;
    return cores > 0 ? cores : 1;
}

/* A GPU is taken by how many ranks before this one are on the same host. */
int holmes_rank_open_kernels(struct rank *r)
{
    const struct holmes_config *c = r->config;
    char why[700] = "";
    int before = 0;

    for (int i = 0; i < r->rank; i++)
        before += strcmp(r->hosts[i], r->hosts[r->rank]) == 0;
    r->kernels = holmes_kernels_open(c->kernels, before, why, sizeof why);
    if (!r->kernels)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "--kernels %s", why);
    holmes_kernels_set_threads(threads(c));
    return 0;
}

int holmes_rank_open_trainer(struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_trainer_attr attr = {.config = c,
                                       .group = r->group,
                                       .links = &r->links,
                                       .data = r->data,
                                       .kernels = r->kernels,
                                       .stop = &r->stop.asked};
    size_t peak;
    int rc;

    if (holmes_memory_resident(&r->resident, &peak) != 0)
        r->resident = 0;
    rc = holmes_trainer_create(&attr, &r->trainer);
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "cannot set up the model: %s",
                                holmes_strerror(rc));
    return 0;
}

int holmes_rank_open_checkpoints(struct rank *r)
{
    struct holmes_ckpt_failure f;

    return holmes_ckpt_run_open(r->config, r->rank, r->world, &r->ckpt, &f)
               ? holmes_rank_ckpt_fail(r, &f)
               : 0;
}

int holmes_rank_agree_on_checkpoint(struct rank *r)
{
    struct holmes_ckpt_failure f;

    return holmes_ckpt_run_agree(r->ckpt, r->rdv, &f) ? holmes_rank_ckpt_fail(r, &f) : 0;
}

/* What is not as it was is told, unless it cannot matter. */
static void tell_resumed(const struct rank *r)
{
    const char *option;
    json_t *values;

    if (r->rank != 0 || r->config->quiet)
        return;
    fprintf(stderr, "holmes-train: goes on after step %d of %s, %.1f MB read in %.1f s\n",
            r->resumed.step, r->resumed.path, (double)r->resumed.bytes / 1e6, r->resumed.seconds);
    json_object_foreach(r->resumed.changes, option, values) fprintf(
        stderr, "holmes-train: goes on with --%s %s, it was %s until now\n", option,
        json_string_value(json_array_get(values, 1)), json_string_value(json_array_get(values, 0)));
}

static int init_weights(struct rank *r)
{
    char why[1500] = "";
    const int rc = holmes_gpt2_import(r->config->init, r->config, r->trainer, why, sizeof why);

    if (rc == 0)
        return 0;
    return holmes_rank_fail(r, rc == -ENOMEM ? HOLMES_EXIT_FAILED : HOLMES_EXIT_USAGE, false, "%s",
                            why);
}

int holmes_rank_resume(struct rank *r)
{
    struct holmes_ckpt_failure f;

    if (holmes_ckpt_run_load(r->ckpt, r->trainer, &r->resumed, &f) != 0)
        return holmes_rank_ckpt_fail(r, &f);
    r->progress.first = (uint64_t)r->resumed.step;
    if (r->resumed.path[0])
        tell_resumed(r);
    else if (r->config->init)
        return init_weights(r);
    return 0;
}

int holmes_rank_open_data(struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_data_attr attr;
    char why[500] = "";

    if (holmes_config_data(c, &attr, why, sizeof why) != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_USAGE, false, "%s", why);
    if (holmes_dataloader_open(&attr, &r->data, why, sizeof why) != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_USAGE, false, "--data %s: %s", c->data, why);
    return 0;
}

int holmes_rank_write(struct rank *r, json_t *record)
{
    int rc = holmes_jsonlog_write(r->log, record);

    if (rc == 0)
        return 0;
    return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "--log %s: %s", r->config->log,
                            holmes_strerror(rc));
}

int holmes_rank_open_log(struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_run_facts facts = {.config = c,
                                     .group = r->group,
                                     .hosts = (const char(*)[64])r->hosts,
                                     .clusters = (const char(*)[64])r->clusters,
                                     .data = r->data,
                                     .threads = threads(c)};
    int rc;

    if (r->rank != 0 || !c->log)
        return 0;
    rc = r->resumed.path[0] ? holmes_jsonlog_keep(c->log) : 0;
    if (rc == 0)
        rc = holmes_jsonlog_open(c->log, &r->log);
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_USAGE, false, "--log %s: %s", c->log,
                                holmes_file_strerror(rc));
    if (r->net)
        holmes_net_info(r->net, &facts.net);
    rc = holmes_rank_write(r, holmes_record_config(&facts));
    if (rc == 0 && r->resumed.path[0])
        rc = holmes_rank_write(r, holmes_record_resume(&r->resumed));
    return rc;
}
