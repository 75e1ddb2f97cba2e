/* Joins the job, opens plugin and communicators, drives the trainer, writes the log, leaves. Every
 * failure goes through rank_fail, which finds out whose failure it is before it speaks. */
#include "rank.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_run.h"
#include "clock.h"
#include "comm_nccl.h"
#include "comm_net.h"
#include "env.h"
#include "gpt2.h"
#include "jsonlog.h"
#include "launch.h"
#include "log.h"
#include "measure.h"
#include "memory.h"
#include "notes.h"
#include "progress.h"
#include "record.h"
#include "rendezvous.h"
#include "secret.h"
#include "trace_job.h"
#include "train.h"
#include "wires.h"

#define RANK_GRACE_S      2    /* from the end of the job to that of a rank that computes on */
#define RANK_BLAME_MS     1500 /* for news of another rank's failure to arrive */
#define RANK_JOIN_SLACK_S 10   /* others may reach a step of joining later than this rank */

struct rank {
    const struct holmes_config *config;
    int rank, world;
    char (*hosts)[64], (*clusters)[64]; /* [world] */
    struct holmes_rdv_server *server;
    struct holmes_rdv *rdv;
    struct holmes_net *net; /* one of the two, when there are several ranks */
    struct holmes_nccl *nccl;
    struct holmes_group *group;
    struct holmes_links links;
    struct holmes_wires wires;
    struct holmes_dataloader *data;
    const struct holmes_kernels *kernels;
    struct holmes_trainer *trainer;
    struct holmes_ckpt_run *ckpt;
    struct holmes_resumed resumed; /* path "": the run begins */
    struct holmes_jsonlog *log;    /* rank 0 only */
    struct holmes_progress progress;
    uint64_t started_ns, step_ns; /* training began, the last step ended */
    size_t resident;              /* bytes in RAM before the trainer was set up; 0: not known */
    double loss_sum;              /* of the last steps */
    int loss_count;
    int skipped; /* steps */
    atomic_bool spoken;
};

static int poll_job(void *ctx)
{
    return holmes_rdv_poll(ctx);
}

/* The launcher prints the first sentence it gets; a rank started by hand prints its own. */
static void say(const struct rank *r, const char *sentence)
{
    int fd = r->config->launcher_fd;
    char line[1200];
    int n;

    if (r->world == 1)
        n = snprintf(line, sizeof line, "%s%s\n", fd < 0 ? "holmes-train: " : "", sentence);
    else
        n = snprintf(line, sizeof line, "%srank %d on %s: %s\n", fd < 0 ? "holmes-train: " : "",
                     r->rank, r->hosts[r->rank], sentence);
    if (n >= (int)sizeof line) {
        n = sizeof line - 1;
        line[n - 1] = '\n';
    }
    if (write(fd < 0 ? STDERR_FILENO : fd, line, (size_t)n) < 0)
        return; /* nobody listens any more */
}

/* A neighbour's death shows here as a broken connection; wait a moment for the true cause. */
static bool is_peers_failure(const struct rank *r)
{
    uint64_t deadline = holmes_deadline_ms(RANK_BLAME_MS);

    if (!r->rdv)
        return false;
    while (holmes_rdv_poll(r->rdv) == 0) {
        struct timespec pause = {.tv_nsec = 20000000};

        if (holmes_deadline_passed(deadline))
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

/* Whoever comes first speaks for this process. */
static bool may_speak(struct rank *r)
{
    return !atomic_exchange(&r->spoken, true);
}

/* A rank that computes does not see that the job has ended before it next waits for others, which
 * may be long; this ends it. A rank that is on its way out gets as long again. */
static void *end_in_time(void *arg)
{
    struct rank *r = arg;
    struct timespec grace = {.tv_sec = RANK_GRACE_S};
    char sentence[500];

    nanosleep(&grace, NULL);
    if (may_speak(r)) {
        snprintf(sentence, sizeof sentence, "the job ended: %s", holmes_rdv_reason(r->rdv));
        if (r->config->launcher_fd < 0)
            say(r, sentence);
    } else {
        nanosleep(&grace, NULL);
    }
    _exit(HOLMES_EXIT_PEER);
}

static void job_ended(void *ctx)
{
    pthread_attr_t attr;
    pthread_t id;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&id, &attr, end_in_time, ctx) != 0)
        holmes_warn(TRAIN, "no thread to end this rank in time");
    pthread_attr_destroy(&attr);
}

/* `remote`: the failure may be the consequence of another rank's. Returns the exit status. */
static int rank_fail(struct rank *r, int code, bool remote, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int rank_fail(struct rank *r, int code, bool remote, const char *fmt, ...)
{
    char text[600], cause[400], sentence[1100];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    holmes_progress_hide(&r->progress);
    if (remote && is_peers_failure(r)) {
        holmes_notes_take_last(cause, sizeof cause);
        snprintf(sentence, sizeof sentence, "the job ended: %s", holmes_rdv_reason(r->rdv));
        if (may_speak(r) && r->config->launcher_fd < 0)
            say(r, sentence);
        return HOLMES_EXIT_PEER;
    }
    holmes_notes_take_last(cause, sizeof cause);
    snprintf(sentence, sizeof sentence, "%s%s%s%s", text, cause[0] ? " (" : "", cause,
             cause[0] ? ")" : "");
    if (may_speak(r))
        say(r, sentence);
    if (r->rdv)
        holmes_rdv_abort(r->rdv, sentence);
    return code;
}

static int ckpt_fail(struct rank *r, const struct holmes_ckpt_failure *f)
{
    return rank_fail(r, f->code, f->remote, "%s", f->why);
}

static int join_ms(const struct rank *r)
{
    return (r->config->join_timeout_s + RANK_JOIN_SLACK_S) * 1000;
}

static int connect_job(struct rank *r)
{
    char host[256], why[400];
    const char *secret = holmes_secret(r->config, why, sizeof why);
    uint16_t port;
    int rc;

    if (!secret)
        return rank_fail(r, HOLMES_EXIT_USAGE, false, "%s", why);
    holmes_config_endpoint(r->config->rendezvous, host, sizeof host, &port);
    if (r->config->serve) {
        /* A launcher's name for this host need not be an address that others reach. */
        rc = holmes_rdv_serve(r->config->launcher && strcmp(host, "127.0.0.1") != 0 ? NULL : host,
                              port, secret, r->world, &r->server);
        if (rc != 0)
            holmes_notes_drop(); /* it says the same */
        if (rc != 0)
            return rank_fail(r, HOLMES_EXIT_FAILED, false,
                             "cannot serve the rendezvous on %s port %u: %s", host, port,
                             holmes_strerror(rc));
    }
    rc = holmes_rdv_connect_as(r->hosts[r->rank], host, port, secret, r->rank, r->world,
                               r->config->join_timeout_s * 1000, &r->rdv);
    if (rc != 0)
        return rank_fail(r, HOLMES_EXIT_FAILED, false, "cannot join the job at %s: %s",
                         r->config->rendezvous, holmes_strerror(rc));
    holmes_rdv_on_abort(r->rdv, job_ended, r);
    return 0;
}

/* Every rank tells its host and cluster, since placement is a function of all of them. */
static int meet_others(struct rank *r)
{
    char key[32];
    size_t len;
    int rc;

    snprintf(key, sizeof key, "host/%d", r->rank);
    rc = holmes_rdv_put(r->rdv, key, r->hosts[r->rank], sizeof r->hosts[0]);
    snprintf(key, sizeof key, "cluster/%d", r->rank);
    if (rc == 0)
        rc = holmes_rdv_put(r->rdv, key, r->clusters[r->rank], sizeof r->clusters[0]);
    if (rc == 0)
        rc = holmes_rdv_barrier(r->rdv, "join", r->config->join_timeout_s * 1000);
    if (rc == -ETIMEDOUT)
        return rank_fail(r, HOLMES_EXIT_FAILED, false, "after %d s not all %d ranks are here: %s",
                         r->config->join_timeout_s, r->world, holmes_rdv_reason(r->rdv));
    for (int i = 0; i < r->world && rc == 0; i++) {
        snprintf(key, sizeof key, "host/%d", i);
        rc = holmes_rdv_get(r->rdv, key, r->hosts[i], sizeof r->hosts[i], &len, join_ms(r));
        snprintf(key, sizeof key, "cluster/%d", i);
        if (rc == 0)
            rc = holmes_rdv_get(r->rdv, key, r->clusters[i], sizeof r->clusters[i], &len,
                                join_ms(r));
        r->hosts[i][sizeof r->hosts[i] - 1] = r->clusters[i][sizeof r->clusters[i] - 1] = '\0';
    }
    if (rc != 0)
        return rank_fail(r, HOLMES_EXIT_FAILED, true, "cannot meet the other ranks: %s",
                         holmes_strerror(rc));
    return 0;
}

/* The order that --placement and --rank-order ask for. */
static int choose_order(const struct rank *r, const char *const *clusters, const char *const *hosts,
                        int *order, char *why, size_t why_len)
{
    const struct holmes_config *c = r->config;

    switch (c->placement) {
    case HOLMES_PLACEMENT_PLANNED:
        return holmes_order_planned(clusters, hosts, r->world, order);
    case HOLMES_PLACEMENT_NAIVE:
        holmes_order_naive(c->stages, c->replicas, c->tensors, order);
        return 0;
    case HOLMES_PLACEMENT_ORDER:
        break;
    }
    return holmes_order_parse(c->rank_order, r->world, order, why, why_len);
}

static int place(struct rank *r)
{
    const struct holmes_config *c = r->config;
    int parts = c->stages * c->virtual_stages;
    int *numbers = calloc((size_t)r->world + (size_t)parts, sizeof *numbers);
    int *layers = numbers ? numbers + r->world : NULL;
    const char **clusters = calloc(2 * (size_t)r->world, sizeof *clusters);
    const char **hosts = clusters + r->world;
    char why[500] = "out of memory";
    int rc = numbers && clusters ? 0 : -ENOMEM, stage;

    for (int i = 0; i < r->world && rc == 0; i++) {
        clusters[i] = r->clusters[i];
        hosts[i] = r->hosts[i];
    }
    if (rc == 0)
        rc = choose_order(r, clusters, hosts, numbers, why, sizeof why);
    if (rc == 0 && c->stage_layers)
        rc = holmes_list_parse(c->stage_layers, "--stage-layers", parts, 0, c->model.layers, layers,
                               why, sizeof why);
    if (!c->stage_layers)
        layers = NULL;
    if (rc == 0)
        rc = holmes_group_create(c->stages, c->replicas, c->tensors, numbers, c->model.layers,
                                 parts == c->stages ? layers : NULL, &r->group, why, sizeof why);
    if (rc == 0 && c->virtual_stages > 1)
        rc = holmes_group_set_chunks(r->group, c->virtual_stages, c->model.layers, layers, why,
                                     sizeof why);
    if (rc == 0)
        rc = holmes_group_check_hosts(r->group, hosts, why, sizeof why);
    stage = rc == 0 ? holmes_group_straddles(r->group, clusters) : -1;
    if (stage >= 0 && r->rank == 0 && c->placement == HOLMES_PLACEMENT_PLANNED)
        holmes_warn(TRAIN,
                    "the replicas of stage %d lie in different clusters: their gradients "
                    "cross between them in every step",
                    stage);
    free(numbers);
    free(clusters);
    return rc == 0 ? 0 : rank_fail(r, HOLMES_EXIT_USAGE, false, "%s", why);
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

    return rc ? rank_fail(r, HOLMES_EXIT_FAILED, false, "--comm nccl: %s",
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

    return rc ? rank_fail(r, HOLMES_EXIT_FAILED, false, "cannot use --plugin %s: %s", c->plugin,
                          why[0] ? why : holmes_strerror(rc))
              : 0;
}

static int open_network(struct rank *r)
{
    const struct holmes_config *c = r->config;
    int rc;

    if (r->world > 1) {
        rc = holmes_wires_prepare(&r->wires);
        if (rc != 0)
            return rank_fail(r, HOLMES_EXIT_FAILED, false, "no file for the plugin's counters: %s",
                             holmes_strerror(rc));
        rc = c->comm == HOLMES_COMM_NCCL ? open_nccl(r) : open_plugin(r);
        if (rc != 0)
            return rc;
    }
    r->links.timeout_ms = c->op_timeout_s * 1000;
    r->links.poll = r->rdv ? poll_job : NULL;
    r->links.poll_ctx = r->rdv;
    rc = holmes_links_open(&r->links, r->group, r->rank, c->model.tied, open_comm, r);
    if (rc != 0)
        return rank_fail(r, HOLMES_EXIT_FAILED, true, "cannot connect to the other ranks: %s",
                         holmes_strerror(rc));
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
static int open_kernels(struct rank *r)
{
    const struct holmes_config *c = r->config;
    char why[700] = "";
    int before = 0;

    for (int i = 0; i < r->rank; i++)
        before += strcmp(r->hosts[i], r->hosts[r->rank]) == 0;
    r->kernels = holmes_kernels_open(c->kernels, before, why, sizeof why);
    if (!r->kernels)
        return rank_fail(r, HOLMES_EXIT_FAILED, false, "--kernels %s", why);
    holmes_kernels_set_threads(threads(c));
    return 0;
}

static int open_trainer(struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_trainer_attr attr = {
        .config = c, .group = r->group, .links = &r->links, .data = r->data, .kernels = r->kernels};
    size_t peak;
    int rc;

    if (holmes_memory_resident(&r->resident, &peak) != 0)
        r->resident = 0;
    rc = holmes_trainer_create(&attr, &r->trainer);
    if (rc != 0)
        return rank_fail(r, HOLMES_EXIT_FAILED, false, "cannot set up the model: %s",
                         holmes_strerror(rc));
    return 0;
}

static int open_checkpoints(struct rank *r)
{
    struct holmes_ckpt_failure f;

    return holmes_ckpt_run_open(r->config, r->rank, r->world, &r->ckpt, &f) ? ckpt_fail(r, &f) : 0;
}

static int agree_on_checkpoint(struct rank *r)
{
    struct holmes_ckpt_failure f;

    return holmes_ckpt_run_agree(r->ckpt, r->rdv, &f) ? ckpt_fail(r, &f) : 0;
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
    return rank_fail(r, rc == -ENOMEM ? HOLMES_EXIT_FAILED : HOLMES_EXIT_USAGE, false, "%s", why);
}

static int resume(struct rank *r)
{
    struct holmes_ckpt_failure f;

    if (holmes_ckpt_run_load(r->ckpt, r->trainer, &r->resumed, &f) != 0)
        return ckpt_fail(r, &f);
    r->progress.first = (uint64_t)r->resumed.step;
    if (r->resumed.path[0])
        tell_resumed(r);
    else if (r->config->init)
        return init_weights(r);
    return 0;
}

static int open_data(struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_data_attr attr;
    char why[500] = "";

    if (holmes_config_data(c, &attr, why, sizeof why) != 0)
        return rank_fail(r, HOLMES_EXIT_USAGE, false, "%s", why);
    if (holmes_dataloader_open(&attr, &r->data, why, sizeof why) != 0)
        return rank_fail(r, HOLMES_EXIT_USAGE, false, "--data %s: %s", c->data, why);
    return 0;
}

static int write_record(struct rank *r, json_t *record)
{
    int rc = holmes_jsonlog_write(r->log, record);

    if (rc == 0)
        return 0;
    return rank_fail(r, HOLMES_EXIT_FAILED, false, "--log %s: %s", r->config->log,
                     holmes_strerror(rc));
}

static int open_log(struct rank *r)
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
        return rank_fail(r, HOLMES_EXIT_USAGE, false, "--log %s: %s", c->log, holmes_strerror(rc));
    if (r->net)
        holmes_net_info(r->net, &facts.net);
    rc = write_record(r, holmes_record_config(&facts));
    if (rc == 0 && r->resumed.path[0])
        rc = write_record(r, holmes_record_resume(&r->resumed));
    return rc;
}

static void hide_progress(void *ctx)
{
    holmes_progress_hide(ctx);
}

/* Names the communicator, and who is in it: one of them is what this rank waited for. */
static int step_failed(struct rank *r, const char *what, int step, int rc)
{
    const struct holmes_link *k = r->links.failed;
    const char *data = holmes_dataloader_error(r->data);
    char members[128] = "";
    size_t n = 0;

    if (*data)
        return rank_fail(r, HOLMES_EXIT_USAGE, false, "--data %s", data);

    for (int i = 0; k && i < k->comm->size && n < sizeof members; i++)
        n += (size_t)snprintf(members + n, sizeof members - n, "%s%d", i ? ", " : "", k->ranks[i]);
    if (r->kernels->error())
        return rank_fail(r, HOLMES_EXIT_FAILED, false, "%s %d: the GPU failed: %s", what, step,
                         r->kernels->error());
    if (!k)
        return rank_fail(r, HOLMES_EXIT_FAILED, true, "%s %d: %s", what, step, holmes_strerror(rc));
    return rank_fail(r, HOLMES_EXIT_FAILED, true, "%s %d: %s among ranks %s: %s", what, step,
                     k->name, members, holmes_strerror(rc));
}

/* Counting the tokens takes a while: only for those who read it. */
static int write_held_out(struct rank *r, int step, double loss, int sequences)
{
    double unigram;
    const int rc = holmes_dataloader_unigram_nats(r->data, &unigram);

    if (rc != 0)
        return step_failed(r, "evaluation after step", step, rc);
    return write_record(r, holmes_record_held_out(step, loss, unigram, sequences));
}

/* Said by the rank that holds the first tensor at fault, and heard by the others. */
static int not_finite(struct rank *r, int step)
{
    const char *unfit = holmes_trainer_unfit(r->trainer);

    if (!unfit)
        return rank_fail(r, HOLMES_EXIT_FAILED, true, "step %d: loss or gradients are not finite",
                         step);
    return rank_fail(r, HOLMES_EXIT_FAILED, false, "step %d: %s", step, unfit);
}

static int evaluate(struct rank *r, int step, double *loss)
{
    int sequences, rc;

    *loss = -1;
    if (r->config->eval_sequences == 0)
        return 0;
    rc = holmes_trainer_evaluate(r->trainer, loss, &sequences);
    if (rc != 0)
        return step_failed(r, "evaluation after step", step, rc);
    if (!isfinite(*loss))
        return rank_fail(r, HOLMES_EXIT_FAILED, r->rank != 0,
                         "evaluation after step %d: the held-out loss is %g", step, *loss);
    if (sequences == 0) {
        *loss = -1;
        return 0;
    }
    return r->rank == 0 ? write_held_out(r, step, *loss, sequences) : 0;
}

/* Work is counted for the whole job, the share of the peak for each of its processors. */
static void show_progress(struct rank *r, int step, const struct holmes_step_result *s, double rate)
{
    const struct holmes_config *c = r->config;
    double tflops = rate * holmes_model_flops_per_token(&c->model) / 1e12;
    char mfu[24] = "";

    if (c->peak_tflops > 0)
        snprintf(mfu, sizeof mfu, ", MFU %.1f %%", tflops / c->peak_tflops / r->world * 100);
    holmes_progress_update(&r->progress, (uint64_t)step,
                           "loss %.4f, norm %.3g, lr %.3g, %.0f tokens/s, %.3g %s%s", s->loss,
                           s->grad_norm, s->lr, rate, tflops < 1 ? tflops * 1e3 : tflops,
                           tflops < 1 ? "GFLOPS" : "TFLOPS", mfu);
}

static int after_step(struct rank *r, int step, const struct holmes_step_result *s)
{
    const struct holmes_config *c = r->config;
    uint64_t now = holmes_now_ns();
    double seconds = (double)(now - r->step_ns) / 1e9;
    double rate = (double)c->batch * c->model.seq_len / seconds;

    r->step_ns = now;
    if (s->skipped)
        r->skipped++;
    if (step > c->steps - 10 && !s->skipped) {
        r->loss_sum += s->loss;
        r->loss_count++;
    }
    holmes_notes_show(hide_progress, &r->progress);
    if (r->rank != 0)
        return 0;
    if (s->skipped) {
        holmes_progress_hide(&r->progress);
        fprintf(stderr, "holmes-train: step %d is skipped: loss %g, gradient norm %g\n", step,
                s->loss, s->grad_norm);
    }
    if (!c->quiet)
        show_progress(r, step, s, rate);
    return write_record(r, holmes_record_step(step, s, seconds, rate));
}

/* The time it takes is no time of training. */
static int save(struct rank *r, int step)
{
    struct holmes_ckpt_failure f;
    struct holmes_saved saved;
    uint64_t before;
    int rc;

    if (!holmes_ckpt_run_due(r->ckpt, step))
        return 0;
    rc = holmes_trainer_settle(r->trainer);
    if (rc != 0)
        return step_failed(r, "step", step, rc);
    before = holmes_now_ns();
    if (holmes_ckpt_run_save(r->ckpt, r->trainer, &r->links, step, &saved, &f) != 0)
        return ckpt_fail(r, &f);
    r->started_ns += holmes_now_ns() - before;
    r->step_ns = holmes_now_ns();
    if (r->rank != 0)
        return 0;
    if (!r->config->quiet) {
        holmes_progress_hide(&r->progress);
        fprintf(stderr, "holmes-train: %s saved, %.1f MB in %.1f s, %.0f MB/s\n", saved.path,
                (double)saved.bytes / 1e6, saved.seconds,
                (double)saved.bytes / 1e6 / saved.seconds);
    }
    return write_record(r, holmes_record_checkpoint(step, &saved));
}

static int train(struct rank *r, double *held_out)
{
    const struct holmes_config *c = r->config;
    int code = 0;

    r->started_ns = r->step_ns = holmes_now_ns();
    r->progress.first = (uint64_t)r->resumed.step;
    for (int step = r->resumed.step + 1; step <= c->steps && code == 0; step++) {
        struct holmes_step_result s;
        int rc = holmes_trainer_step(r->trainer, step, &s);

        if (rc == -EDOM && !r->kernels->error())
            return not_finite(r, step);
        if (rc != 0 || r->kernels->error())
            return step_failed(r, "step", step, rc);
        code = after_step(r, step, &s);
        if (code == 0 && c->eval_every > 0 && step % c->eval_every == 0 && step < c->steps) {
            uint64_t before = holmes_now_ns();

            code = evaluate(r, step, held_out);
            r->started_ns += holmes_now_ns() - before;
            r->step_ns = holmes_now_ns();
        }
        if (code == 0)
            code = save(r, step);
    }
    if (code == 0) {
        int rc = holmes_trainer_settle(r->trainer);

        if (rc != 0)
            return step_failed(r, "weights of step", c->steps, rc);
    }
    if (r->rank == 0)
        holmes_progress_finish(&r->progress);
    return code;
}

/* What the trainer took at most, beside what was predicted. */
static json_t *own_memory(const struct rank *r)
{
    const struct holmes_config *c = r->config;
    struct holmes_memory predicted;
    size_t now, peak;

    if (holmes_memory_predict(c, r->group, holmes_group_place(r->group, r->rank),
                              holmes_kernels_find(c->kernels), &predicted) != 0)
        return json_null();
    if (r->resident == 0 || holmes_memory_resident(&now, &peak) != 0)
        return holmes_record_memory(&predicted, -1);
    return holmes_record_memory(&predicted, (double)peak - (double)r->resident);
}

static json_t *own_traffic(struct rank *r)
{
    json_t *record =
        holmes_record_traffic(r->rank, &r->links, r->hosts[r->rank], r->clusters[r->rank],
                              r->net ? holmes_net_cpu_seconds(r->net) : 0);

    if (record)
        json_object_set_new(record, "memory", own_memory(r));
    return record;
}

/* Closes the network, after which the plugin has written its counters, and adds them to the record:
 * which wire carried what. */
static json_t *closing_traffic(struct rank *r)
{
    json_t *mine = own_traffic(r), *communicator;
    size_t i;

    holmes_trainer_destroy(r->trainer);
    r->trainer = NULL;
    holmes_links_close(&r->links);
    holmes_net_close(r->net);
    holmes_nccl_close(r->nccl);
    r->net = NULL;
    r->nccl = NULL;
    holmes_wires_read(&r->wires);
    json_array_foreach(json_object_get(mine, "communicators"), i, communicator)
    {
        const char *name = json_string_value(json_object_get(communicator, "name"));

        json_object_set_new(communicator, "wires",
                            holmes_wires_of(&r->wires, holmes_comm_net_id(name ? name : "")));
    }
    return mine;
}

static int send_traffic(struct rank *r, json_t *mine)
{
    static char text[60000];
    char key[32];
    size_t len = mine ? json_dumpb(mine, text, sizeof text, JSON_COMPACT) : 0;

    json_decref(mine);
    snprintf(key, sizeof key, "traffic/%d", r->rank);
    return len == 0 || len > sizeof text ? -EMSGSIZE : holmes_rdv_put(r->rdv, key, text, len);
}

/* Takes the records of all ranks: each is written, and kept for the table. */
static int take_traffic(struct rank *r, json_t *mine, json_t *all, int *code)
{
    static char text[60000];
    char key[32];
    size_t len;
    int rc = 0;

    for (int i = 0; i < r->world && rc == 0 && *code == 0; i++) {
        json_t *record = i == 0 ? mine : NULL;

        snprintf(key, sizeof key, "traffic/%d", i);
        if (i > 0)
            rc = holmes_rdv_get(r->rdv, key, text, sizeof text, &len, join_ms(r));
        if (rc == 0 && i > 0)
            record = json_loadb(text, len, 0, NULL);
        if (rc == 0) {
            json_array_append(all, record);
            *code = write_record(r, record);
        }
    }
    return rc;
}

/* Rank 0 writes everybody's counters: one file tells of the whole job. */
static int collect_traffic(struct rank *r, json_t *all)
{
    int rc = 0, code = 0;
    json_t *mine;

    /* Nobody hangs up while others still compute. */
    if (r->world > 1)
        rc = holmes_rdv_barrier(r->rdv, "trained", join_ms(r));
    if (rc != 0)
        return rank_fail(r, HOLMES_EXIT_FAILED, true, "after the last step: %s",
                         holmes_strerror(rc));
    mine = closing_traffic(r);
    rc = r->rank == 0 ? take_traffic(r, mine, all, &code) : send_traffic(r, mine);
    if (rc != 0)
        return rank_fail(r, HOLMES_EXIT_FAILED, true, "cannot collect the counters: %s",
                         holmes_strerror(rc));
    return code;
}

static int print_results(const struct rank *r, double seconds, double held_out, const json_t *all)
{
    const struct holmes_config *c = r->config;
    const int steps = c->steps - r->resumed.step;
    const char *unit = holmes_dataloader_unit(r->data);
    double unigram;

    if (steps > 0)
        printf("trained %d steps in %.1f s: %.0f tokens/s, %.0f ms per step, loss %.3f (mean of "
               "the last %d)\n",
               steps, seconds, (double)steps * c->batch * c->model.seq_len / seconds,
               seconds / steps * 1e3, r->loss_count ? r->loss_sum / r->loss_count : 0,
               r->loss_count);
    else
        printf("nothing left to train: %s is at --steps %d\n", r->resumed.path, c->steps);
    if (r->skipped > 0)
        printf("%d of them skipped: loss or gradients were not finite\n", r->skipped);
    if (held_out >= 0 && holmes_dataloader_unigram_nats(r->data, &unigram) == 0)
        printf("held-out loss %.3f nats per %s; single %ss alone (unigram entropy) %.3f\n",
               held_out, unit, unit, unigram);
    holmes_wires_print(all, stdout);
    return fflush(stdout) == 0 ? 0 : -errno;
}

static int finish(struct rank *r, double held_out)
{
    const struct holmes_config *c = r->config;
    int steps = c->steps - r->resumed.step;
    double seconds = (double)(r->step_ns - r->started_ns) / 1e9;
    double rate = steps > 0 ? (double)steps * c->batch * c->model.seq_len / seconds : 0;
    double loss = r->loss_count ? r->loss_sum / r->loss_count : 0;
    json_t *all = json_array();
    int code = collect_traffic(r, all), rc = 0;

    if (code == 0)
        code = write_record(r, holmes_record_end(steps, seconds, rate, loss));
    if (code == 0 && r->world > 1) {
        rc = holmes_rdv_barrier(r->rdv, "end", join_ms(r));
        if (rc != 0)
            code = rank_fail(r, HOLMES_EXIT_FAILED, true, "at the end: %s", holmes_strerror(rc));
    }
    if (code == 0 && r->rank == 0)
        rc = print_results(r, seconds, held_out, all);
    json_decref(all);
    if (code == 0 && rc != 0)
        return rank_fail(r, HOLMES_EXIT_FAILED, false, "stdout: %s", holmes_strerror(rc));
    return code;
}

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
        return step_failed(r, "measuring in rounds of", c->measure_overlap, rc);
    holmes_memory_forget_peak(); /* it held all weights and moments twice */
    holmes_notes_show(hide_progress, &r->progress);
    if (r->rank != 0)
        return 0;
    rc = holmes_measure_print(&m, stdout);
    if (rc != 0)
        return rank_fail(r, HOLMES_EXIT_FAILED, false, "stdout: %s", holmes_strerror(rc));
    return write_record(r, holmes_measure_record(&m));
}

static int trace(struct rank *r, int (*what)(const struct holmes_trace_job *, char *, size_t))
{
    struct holmes_trace_job job = {.path = r->config->trace,
                                   .links = &r->links,
                                   .group = r->group,
                                   .hosts = (const char(*)[64])r->hosts,
                                   .rdv = r->rdv,
                                   .rank = r->rank,
                                   .timeout_ms = join_ms(r)};
    char why[300] = "";
    int rc = what(&job, why, sizeof why);

    if (rc == 0)
        return 0;
    return rank_fail(r, rc == -EINVAL ? HOLMES_EXIT_USAGE : HOLMES_EXIT_FAILED, rc != -EINVAL, "%s",
                     why);
}

static int run_job(struct rank *r)
{
    double held_out = -1;
    int code = open_data(r);

    if (code == 0)
        code = open_checkpoints(r);
    if (code == 0 && r->world > 1)
        code = connect_job(r);
    if (code == 0 && r->world > 1)
        code = meet_others(r);
    if (code == 0)
        code = agree_on_checkpoint(r);
    if (code == 0)
        code = place(r);
    if (code == 0)
        code = open_kernels(r);
    if (code == 0)
        code = open_network(r);
    if (code == 0)
        code = open_trainer(r);
    if (code == 0)
        code = resume(r);
    if (code == 0)
        code = open_log(r);
    if (code == 0)
        code = measure(r);
    if (code == 0)
        code = trace(r, holmes_trace_job_begin);
    if (code == 0)
        code = train(r, &held_out);
    if (code == 0)
        code = evaluate(r, r->config->steps, &held_out);
    if (code == 0)
        code = trace(r, holmes_trace_job_end);
    if (code == 0)
        code = finish(r, held_out);
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
    may_speak(r); /* nothing is left to be said, and the connection goes */
    if (r->rdv)
        holmes_rdv_on_abort(r->rdv, NULL, NULL);
    holmes_rdv_leave(r->rdv);
    if (r->server)
        holmes_rdv_server_wait(r->server, linger_ms);
    holmes_rdv_stop(r->server);
    holmes_group_destroy(r->group);
    holmes_dataloader_close(r->data);
    free(r->hosts);
    free(r->clusters);
}

int holmes_rank_run(const struct holmes_config *c)
{
    struct rank r = {
        .config = c, .rank = c->rank > 0 ? c->rank : 0, .world = holmes_config_world(c)};
    int code;

    r.hosts = calloc((size_t)r.world, sizeof *r.hosts);
    r.clusters = calloc((size_t)r.world, sizeof *r.clusters);
    if (!r.hosts || !r.clusters) {
        fprintf(stderr, "holmes-train: out of memory\n");
        free(r.hosts);
        free(r.clusters);
        return HOLMES_EXIT_FAILED;
    }
    holmes_host_label(c, r.rank, r.hosts[r.rank], sizeof r.hosts[0]);
    holmes_config_label(c->clusters, r.rank, r.clusters[r.rank], sizeof r.clusters[0]);
    holmes_progress_init(&r.progress, stderr, "train", (uint64_t)c->steps, true);
    r.progress.log_interval_ns = (uint64_t)c->progress_s * 1000000000u;
    holmes_notes_start();
    code = run_job(&r);
    if (code != 0 && (r.net || r.nccl)) {
        holmes_wires_close(&r.wires);
        /* Operations under way still own their buffers; the kernel closes everything. */
        if (r.server)
            holmes_rdv_server_wait(r.server, RANK_BLAME_MS);
        fflush(NULL);
        _exit(code);
    }
    holmes_notes_stop();
    close_all(&r, code == 0 ? join_ms(&r) : RANK_BLAME_MS);
    return code;
}
