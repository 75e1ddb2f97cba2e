/* One rank from its start to its end: joins the job, opens what it needs, trains, leaves. */
#include "rank.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch.h"
#include "log.h"
#include "measure.h"
#include "memory.h"
#include "notes.h"
#include "rank_priv.h"
#include "trace_job.h"

#define REFUSE_JOIN_S 5 /* for the rendezvous to be there, and again for all ranks */

static int measure(struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_measure m;
    int rc;

    if (c->measure_overlap == 0)
        return 0;
    rc = holmes_measure_overlap(r->trainer, &r->links, c->measure_overlap,
                                c->overlap == HOLMES_OVERLAP_ON, &m);
    if (rc != 0)
        return holmes_rank_step_failed(r, "measuring in rounds of", c->measure_overlap, rc);
    holmes_memory_forget_peak(); /* it held all weights and moments twice */
    holmes_notes_show(rank_hide_progress, &r->progress);
    if (r->rank != 0)
        return 0;
    rc = holmes_measure_print(&m, stdout);
    if (rc != 0)
        return holmes_rank_fail(r, HOLMES_EXIT_FAILED, false, "stdout: %s", holmes_strerror(rc));
    return holmes_rank_write(r, holmes_measure_record(&m));
}

static int trace(struct rank *r, int (*what)(const struct holmes_trace_job *, char *, size_t))
{
    struct holmes_trace_job job = {.path = r->config->trace,
                                   .links = &r->links,
                                   .group = r->group,
                                   .hosts = (const char(*)[64])r->hosts,
                                   .rdv = r->rdv,
                                   .rank = r->rank,
                                   .timeout_ms = rank_join_ms(r)};
    char why[300] = "";
    int rc = what(&job, why, sizeof why);

    if (rc == 0)
        return 0;
    return holmes_rank_fail(r, rc == -EINVAL ? HOLMES_EXIT_USAGE : HOLMES_EXIT_FAILED,
                            rc != -EINVAL, "%s", why);
}

/* The job is joined before anything can fail that the others would have to wait for. */
static int run_job(struct rank *r)
{
    double held_out = -1;
    int code = holmes_rank_stop_open(r);

    if (code == 0 && r->world > 1)
        code = holmes_rank_connect(r);
    if (code == 0 && r->world > 1)
        code = holmes_rank_gather(r);
    if (code == 0)
        code = holmes_rank_open_data(r);
    if (code == 0)
        code = holmes_rank_open_checkpoints(r);
    if (code == 0 && r->world > 1)
        code = holmes_rank_meet(r);
    if (code == 0 && r->config->planned_hosts)
        code = holmes_rank_compare_plan(r);
    if (code == 0)
        code = holmes_rank_agree_on_checkpoint(r);
    if (code == 0)
        code = holmes_rank_place(r);
    if (code == 0)
        code = holmes_rank_open_kernels(r);
    if (code == 0)
        code = holmes_rank_open_network(r);
    if (code == 0)
        code = holmes_rank_open_trainer(r);
    if (code == 0)
        code = holmes_rank_resume(r);
    if (code == 0)
        code = holmes_rank_open_log(r);
    if (code == 0)
        code = measure(r);
    if (code == 0)
        code = trace(r, holmes_trace_job_begin);
    if (code == 0)
        code = holmes_rank_train(r, &held_out);
    if (code == 0 && r->last_step == r->config->steps)
        code = holmes_rank_evaluate(r, r->config->steps, &held_out);
    if (code == 0)
        code = trace(r, holmes_trace_job_end);
    if (code == 0)
        code = holmes_rank_finish(r, held_out);
    return code;
}

/* `linger_ms`: the service outlives its rank until the others have their last answers. */
static void close_all(struct rank *r, int linger_ms)
{
    holmes_jsonlog_close(r->log);
    holmes_ckpt_run_close(r->ckpt);
    holmes_trainer_destroy(r->trainer);
    holmes_links_close(&r->links);
    holmes_net_close(r->net);
    holmes_nccl_close(r->nccl);
    holmes_wires_close(&r->wires);
    holmes_rank_may_speak(r); /* nothing is left to be said, and the connection goes */
    holmes_rank_stop_close(r);
    holmes_rank_no_more_ends(r);
    holmes_rdv_leave(r->rdv);
    if (r->server)
        holmes_rdv_server_wait(r->server, linger_ms);
    holmes_rdv_stop(r->server);
    holmes_group_destroy(r->group);
    holmes_dataloader_close(r->data);
    free(r->hosts);
    free(r->clusters);
}

/* What is known of a rank before it meets others. */
static int init(struct rank *r, const struct holmes_config *c)
{
    *r = (struct rank){.config = c,
                       .rank = c->rank > 0 ? c->rank : 0,
                       .world = holmes_config_world(c),
                       .closing_fd = -1,
                       .last_step = c->steps};
    r->hosts = calloc((size_t)r->world, sizeof *r->hosts);
    r->clusters = calloc((size_t)r->world, sizeof *r->clusters);
    if (!r->hosts || !r->clusters) {
        fprintf(stderr, "holmes-train: out of memory\n");
        free(r->hosts);
        free(r->clusters);
        return HOLMES_EXIT_FAILED;
    }
    holmes_host_label(c, r->rank, r->hosts[r->rank], sizeof r->hosts[0]);
    holmes_config_label(c->clusters, r->rank, r->clusters[r->rank], sizeof r->clusters[0]);
    holmes_progress_init(&r->progress, stderr, "train", (uint64_t)c->steps, true);
    r->progress.log_interval_ns = (uint64_t)c->progress_s * 1000000000u;
    return 0;
}

int holmes_rank_refuse(const struct holmes_config *c, const char *why)
{
    struct holmes_config brief = *c;
    struct rank r;

    if (brief.join_timeout_s > REFUSE_JOIN_S)
        brief.join_timeout_s = REFUSE_JOIN_S;
    if (init(&r, &brief) != 0)
        return HOLMES_EXIT_USAGE;
    if (holmes_rank_may_speak(&r))
        holmes_rank_say(&r, why);
    holmes_notes_start();
    if (holmes_rank_connect(&r) == 0) {
        holmes_rdv_on_abort(r.rdv, NULL, NULL);
        holmes_rdv_barrier(r.rdv, HOLMES_RANK_JOIN, brief.join_timeout_s * 1000);
        holmes_rdv_abort(r.rdv, why);
    }
    holmes_notes_drop();
    holmes_notes_stop();
    close_all(&r, RANK_BLAME_MS);
    return HOLMES_EXIT_USAGE;
}

int holmes_rank_run(const struct holmes_config *c)
{
    struct rank r;
    int code = init(&r, c);

    if (code != 0)
        return code;
    holmes_notes_start();
    code = run_job(&r);
    holmes_rank_stop_yield(&r);
    if (code != 0 && (r.net || r.nccl)) {
        holmes_wires_close(&r.wires);
        /* Operations under way still own their buffers; the kernel closes everything. */
        if (r.server)
            holmes_rdv_server_wait(r.server, RANK_BLAME_MS);
        fflush(NULL);
        _exit(code);
    }
    holmes_notes_stop();
    close_all(&r, code == 0 ? rank_join_ms(&r) : RANK_BLAME_MS);
    if (code == 0 && r.last_step < c->steps)
        return HOLMES_EXIT_STOPPED;
    return code;
}
