/* Who measures when. For each size every side verifies once and finds its number of iterations;
 * then come the rounds, in each of which every variant has one turn. The order of turns moves by
 * one each round, so that nobody always follows the same neighbour. */
#include "session.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "progress.h"
#include "size.h"
#include "team.h"

#define TEAMS_MAX (HOLMES_BENCH_PLUGINS_MAX + 1)
/* What one measurement takes when iterations are ours to choose: on loopback; over links, where it
 * has to outlast the streams' search for their speed; round trips of a link on top. */
#define SAMPLE_NS         100000000.0
#define LINK_SAMPLE_NS    500000000.0
#define SAMPLE_RTTS       25
#define ITERS_MAX         20000
#define CALIBRATIONS_MAX  3
#define CALIBRATION_SHARE 8 /* of a measurement, that a calibration must last */
#define CALIBRATION_US                                                                             \
    2000.0 /* what an operation is expected to take before it is known: small sizes */

struct session {
    struct holmes_results *r;
    struct holmes_team *teams[TEAMS_MAX];
    int nteams;
    struct holmes_link *link; /* NULL: loopback */
    volatile sig_atomic_t *stop;
    struct holmes_progress bar;
    uint64_t done_ms; /* of the bar's total: expected milliseconds */
    char *why;
    size_t why_len;
};

uint64_t holmes_session_memory(const struct holmes_results *r)
{
    const struct holmes_bench_options *o = r->options;
    const struct holmes_shape *s = &r->shapes[r->nsizes - 1];
    uint64_t out_bytes = s->out_bytes, teams = (uint64_t)o->nplugins + o->reference;

    if (o->collective == HOLMES_SENDRECV)
        out_bytes = holmes_window_bytes_max(s->size_bytes, (size_t)o->window);
    return teams * (uint64_t)o->nranks * (s->in_bytes + out_bytes);
}

static int team_result(struct session *s, const struct holmes_team *t, int rc)
{
    if (rc != 0)
        snprintf(s->why, s->why_len, "%s", holmes_team_why(t));
    return rc;
}

static int start_teams(struct session *s, volatile sig_atomic_t *stop)
{
    const struct holmes_bench_options *o = s->r->options;
    int rc = 0;

    for (int i = 0; i < o->nplugins + o->reference && rc == 0; i++) {
        bool plugin = i < o->nplugins;
        struct holmes_team_attr attr = {
            .label = plugin ? o->plugins[i].label : "reference",
            .settings = plugin ? o->plugins[i].settings : NULL,
            .nsettings = plugin ? o->plugins[i].nsettings : 0,
            .rank =
                {
                    .collective = o->collective,
                    .type = o->type,
                    .nranks = o->nranks,
                    .max_bytes = s->r->shapes[s->r->nsizes - 1].size_bytes,
                    .max_iters = (uint32_t)(o->iters > ITERS_MAX ? o->iters : ITERS_MAX),
                    .window = (size_t)o->window,
                    .both_ways = o->both_ways,
                    .idle_us = o->idle_us,
                    .timeout_s = o->timeout_s,
                    .plugin = plugin ? o->plugins[i].path : NULL,
                    .device = o->device,
                    .through_nccl = o->through_nccl,
                    .link = s->link,
                },
            .stop = stop,
        };
        rc = holmes_team_fork(&attr, &s->teams[i], s->why, s->why_len);
        s->nteams += rc == 0;
    }
    for (int i = 0; i < s->nteams && rc == 0; i++)
        rc = team_result(s, s->teams[i], holmes_team_join(s->teams[i]));
    for (int i = 0; i < s->r->nvariants && rc == 0; i++)
        snprintf(s->r->variants[i].about, sizeof s->r->variants[i].about, "%s",
                 holmes_team_about(s->teams[s->r->variants[i].team]));
    return rc;
}

/* --- links ------------------------------------------------------------------------------------ */

static double sample_ns(const struct session *s)
{
    const struct holmes_link_attr *a = &s->r->options->link;
    uint64_t rtt_us = 0;

    for (int k = 0; k < a->nlinks; k++)
        rtt_us = a->shapes[k].rtt_us > rtt_us ? a->shapes[k].rtt_us : rtt_us;
    return a->nlinks ? LINK_SAMPLE_NS + (double)rtt_us * 1e3 * SAMPLE_RTTS : SAMPLE_NS;
}

/* How many operations the wire would let through in one measurement; 0 without a rate. */
static double operations_of_wire(const struct session *s, int size, int measure)
{
    const struct holmes_bench_options *o = s->r->options;
    double bytes = (double)s->r->shapes[size].size_bytes;
    double rate = (double)holmes_link_total_rate(&o->link);

    if (s->r->measures[measure] == HOLMES_BENCH_LATENCY)
        return 0;
    return sample_ns(s) / 8e9 * rate / (bytes * holmes_collective_factor(o->collective, o->nranks));
}

/* Adds (sign 1) or takes away (-1) what the links have carried so far. */
static void count_links(struct session *s, int variant, int sign)
{
    for (int k = 0; s->link && k < s->r->options->link.nlinks; k++)
        s->r->variants[variant].link_bytes[k] += (uint64_t)sign * holmes_link_sent(s->link, k);
}

/* --- progress --------------------------------------------------------------------------------- */

/* A guess that only the estimate of the time left depends on: every rank moves the bytes once at
 * 1 GB/s, all ranks share the machine. */
static double operation_guess_ms(const struct session *s, int size)
{
    return (double)s->r->shapes[size].size_bytes * s->r->options->nranks / 1e6;
}

static uint64_t turn_guess_ms(const struct session *s, int size)
{
    double ms = operation_guess_ms(s, size);
    int iters = s->r->options->iters;

    if (iters)
        return 1 + (uint64_t)((CALIBRATION_US / 1e3 + ms) * iters);
    return (uint64_t)(ms > sample_ns(s) / 1e6 ? ms : sample_ns(s) / 1e6 * 1.1);
}

static uint64_t size_guess_ms(const struct session *s, int size)
{
    const struct holmes_results *r = s->r;
    uint64_t turns = (uint64_t)(r->nvariants * r->nmeasures * r->options->rounds);
    uint64_t before =
        (uint64_t)(2 + operation_guess_ms(s, size) * 4) * (uint64_t)(r->nvariants * r->nmeasures);

    return turns * turn_guess_ms(s, size) + before;
}

static uint64_t total_guess_ms(const struct session *s)
{
    uint64_t ms = 0;

    for (int i = 0; i < s->r->nsizes; i++)
        ms += size_guess_ms(s, i);
    return ms;
}

static void show(struct session *s, int size, int round, const char *label)
{
    char text[32];

    holmes_size_format(s->r->shapes[size].size_bytes, text, sizeof text);
    if (round < 0)
        holmes_progress_update(&s->bar, s->done_ms, "%s, checking %s", text, label);
    else
        holmes_progress_update(&s->bar, s->done_ms, "%s, round %d of %d, %s", text, round + 1,
                               s->r->options->rounds, label);
}

/* --- measuring -------------------------------------------------------------------------------- */

/* Percentiles over the messages of all pairs. */
static int messages_sum_up(struct session *s, const struct holmes_team *t, uint32_t iters,
                           struct holmes_percentiles *out)
{
    int nranks = s->r->options->nranks;
    size_t n = (size_t)nranks / 2 * iters;
    float *all = n ? malloc(n * sizeof *all) : NULL;

    if (!all) {
        snprintf(s->why, s->why_len, "no memory for the times of %u messages", iters);
        return -ENOMEM;
    }
    for (int rank = 0; rank < nranks; rank += 2)
        memcpy(all + (size_t)rank / 2 * iters, holmes_team_message_us(t, rank),
               iters * sizeof *all);
    *out = holmes_percentiles_of(all, n);
    free(all);
    return 0;
}

/* What one timed run gave. */
struct sample {
    double us;  /* of an operation, by the slowest rank */
    double cpu; /* seconds for each GB over links */
    struct holmes_percentiles message_us;
};

static int measure_once(struct session *s, int size, int measure, int variant, uint32_t warmups,
                        uint32_t iters, struct sample *out)
{
    const struct holmes_variant *v = &s->r->variants[variant];
    struct holmes_bench_reply replies[HOLMES_BENCH_RANKS_MAX];
    struct holmes_bench_command cmd = {
        .verb = HOLMES_BENCH_RUN,
        .measure = s->r->measures[measure],
        .warmups = warmups,
        .iters = iters,
        .streams = (uint32_t)v->streams,
        .threads = (uint32_t)v->threads,
    };
    struct holmes_team *t = s->teams[v->team];
    bool latency = cmd.measure == HOLMES_BENCH_LATENCY;
    uint64_t ns = 0, cpu_ns = 0;
    int rc = team_result(s, t, holmes_team_call(t, &cmd, replies));

    if (rc != 0)
        return rc;
    for (int i = 0; i < s->r->options->nranks; i++) {
        ns = replies[i].ns > ns ? replies[i].ns : ns;
        cpu_ns += replies[i].cpu_ns;
    }
    out->us = (double)ns / 1e3 / iters / (latency ? 2 : 1);
    out->cpu = (double)cpu_ns / holmes_results_link_bytes(s->r, measure, size, (int)iters);
    out->message_us = (struct holmes_percentiles){NAN, NAN, NAN};
    return latency ? messages_sum_up(s, t, iters, &out->message_us) : 0;
}

/* Buffers for this size and, if wanted, a verified pass; the count goes to every variant that these
 * processes run with so many threads. */
static int prepare_team(struct session *s, int size, int team, int threads)
{
    const struct holmes_bench_options *o = s->r->options;
    struct holmes_bench_reply replies[HOLMES_BENCH_RANKS_MAX];
    struct holmes_bench_command cmd = {
        .verb = HOLMES_BENCH_PREPARE,
        .size_bytes = s->r->shapes[size].size_bytes,
        .salt = (uint32_t)((size * TEAMS_MAX + team) * HOLMES_BENCH_THREADS_MAX + threads + 1),
        .check = o->check,
        .streams = (uint32_t)o->streams[o->nstreams - 1],
        .threads = (uint32_t)threads,
    };
    uint64_t wrong = 0;
    int rc = team_result(s, s->teams[team], holmes_team_call(s->teams[team], &cmd, replies));

    if (rc != 0)
        return rc;
    for (int i = 0; i < o->nranks; i++)
        wrong += replies[i].wrong;
    for (int v = 0; v < s->r->nvariants; v++)
        if (s->r->variants[v].team == team && s->r->variants[v].threads == threads)
            s->r->cells[0][size][v].wrong = wrong;
    return 0;
}

/* The side's streams are there, and have carried the verified pass if there was one. */
static int call_hook(struct session *s, int size, int team)
{
    const struct holmes_bench_options *o = s->r->options;
    struct holmes_link_call call = {
        .command = o->link_hook,
        .side = team < o->nplugins ? o->plugins[team].label : "reference",
        .size_bytes = s->r->shapes[size].size_bytes,
        .timeout_s = o->timeout_s,
    };
    int rc = 0;

    for (call.rank = 0; call.rank < o->nranks && rc == 0 && call.command; call.rank++) {
        call.pid = holmes_team_pid(s->teams[team], call.rank);
        rc = holmes_link_hook(s->link, &call, s->stop, s->why, s->why_len);
    }
    return rc;
}

/* Every side, the reference with each number of threads. */
static int prepare_size(struct session *s, int size)
{
    const struct holmes_bench_options *o = s->r->options;
    int rc = 0;

    for (int t = 0; t < o->nplugins && rc == 0; t++) {
        show(s, size, -1, o->plugins[t].label);
        rc = prepare_team(s, size, t, 0);
    }
    for (int i = 0; i < o->nthreads && o->reference && rc == 0; i++) {
        show(s, size, -1, "reference");
        rc = prepare_team(s, size, o->nplugins, o->threads[i]);
    }
    for (int t = 0; t < s->nteams && rc == 0; t++)
        rc = call_hook(s, size, t);
    return rc;
}

/* How many operations fill a measurement, from short ones: the first may be over before the streams
 * have found their speed, so it only tells how long the next should be. */
static int calibrate(struct session *s, int size, int measure, int variant)
{
    struct holmes_cell *c = &s->r->cells[measure][size][variant];
    uint32_t iters = s->r->shapes[size].size_bytes < (1 << 20) ? 20 : 2;
    int passes = s->r->measures[measure] == HOLMES_BENCH_LATENCY ? 2 : 1;
    struct sample sample;
    double fit = 0;
    int rc = 0;

    c->iters = s->r->options->iters;
    for (int attempt = 0; attempt < CALIBRATIONS_MAX && c->iters == 0; attempt++) {
        rc = measure_once(s, size, measure, variant, (iters + 1) / 2, iters, &sample);
        if (rc != 0)
            return rc;
        fit = sample_ns(s) / 1e3 / (sample.us * passes);
        fit = fit < 1 ? 1 : fit > ITERS_MAX ? ITERS_MAX : fit;
        if (fit < iters * CALIBRATION_SHARE)
            break;
        iters = (uint32_t)(fit / CALIBRATION_SHARE) + 1;
    }
    /* A stall in a calibration makes the measurements no shorter than makes sense. */
    if (fit < operations_of_wire(s, size, measure) / 4)
        fit = operations_of_wire(s, size, measure) / 4;
    if (c->iters == 0)
        c->iters = (int)(fit < ITERS_MAX ? fit : ITERS_MAX);
    return rc;
}

static void cell_add(struct holmes_cell *c, int round, const struct sample *sample)
{
    c->us[round] = sample->us;
    c->cpu[round] = sample->cpu;
    c->p50[round] = sample->message_us.p50;
    c->p99[round] = sample->message_us.p99;
    c->max[round] = sample->message_us.max;
    c->rounds++;
}

static int take_turn(struct session *s, int size, int round, int variant)
{
    int rc = 0;

    show(s, size, round, s->r->variants[variant].label);
    for (int m = 0; m < s->r->nmeasures && rc == 0; m++) {
        struct holmes_cell *c = &s->r->cells[m][size][variant];
        struct sample sample;

        count_links(s, variant, -1);
        rc = measure_once(s, size, m, variant, (uint32_t)c->iters / 5, (uint32_t)c->iters, &sample);
        count_links(s, variant, 1);
        if (rc == 0)
            cell_add(c, round, &sample);
        s->done_ms += turn_guess_ms(s, size);
    }
    return rc;
}

static int measure_size(struct session *s, int size)
{
    struct holmes_results *r = s->r;
    uint64_t begun_ms = s->done_ms;
    int rc = prepare_size(s, size);

    for (int v = 0; v < r->nvariants && rc == 0; v++)
        for (int m = 0; m < r->nmeasures && rc == 0; m++)
            rc = calibrate(s, size, m, v);
    for (int round = 0; round < r->options->rounds && rc == 0; round++)
        for (int i = 0; i < r->nvariants && rc == 0; i++)
            rc = take_turn(s, size, round, (i + round) % r->nvariants);
    s->done_ms = begun_ms + size_guess_ms(s, size);
    r->nsizes_done += rc == 0;
    return rc;
}

int holmes_session_run(struct holmes_results *r, volatile sig_atomic_t *stop, char *why,
                       size_t why_len)
{
    struct session s = {.r = r, .stop = stop, .why = why, .why_len = why_len};
    int rc;

    holmes_progress_init(&s.bar, stderr, holmes_collective_name(r->options->collective),
                         total_guess_ms(&s), false);
    rc = holmes_link_create(&r->options->link, r->options->nranks, &s.link, why, why_len);
    r->delayed_by = holmes_link_delayed_by(s.link);
    if (rc == 0)
        rc = start_teams(&s, stop);
    else if (*stop)
        rc = -EINTR; /* it went to ip and tc too */
    for (int i = 0; i < r->nsizes && rc == 0; i++)
        rc = measure_size(&s, i);
    if (rc == 0)
        holmes_progress_update(&s.bar, s.done_ms, "%s", "");
    for (int i = 0; i < s.nteams && rc == 0; i++)
        rc = team_result(&s, s.teams[i], holmes_team_leave(s.teams[i]));
    if (rc == 0)
        holmes_progress_finish(&s.bar);
    else
        holmes_progress_hide(&s.bar);
    if (rc != 0 && rc != -EINTR && !holmes_link_works(s.link))
        snprintf(why + strlen(why), why_len - strlen(why), "; the links' relay has died");
    for (int i = 0; i < TEAMS_MAX; i++)
        holmes_team_destroy(s.teams[i]);
    holmes_link_destroy(s.link);
    return rc;
}
