/* The table of measurements behind every output. */
#include "results.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *holmes_measure_name(enum holmes_bench_measure m)
{
    static const char *const names[] = {"time", "latency", "bandwidth"};

    return names[m];
}

static void lay_out_sizes(struct holmes_results *r)
{
    const struct holmes_bench_options *o = r->options;
    struct holmes_shape shape;

    for (uint64_t size = o->min_bytes; size <= o->max_bytes && r->nsizes < HOLMES_BENCH_SIZES_MAX;
         size *= (uint64_t)o->factor) {
        if (!holmes_shape_of(o->collective, size, o->nranks, o->type, &shape))
            continue;
        if (r->nsizes == 0 || r->shapes[r->nsizes - 1].size_bytes != shape.size_bytes)
            r->shapes[r->nsizes++] = shape;
    }
    /* All steps too small for an element, but the largest size is not. */
    if (r->nsizes == 0 && holmes_shape_of(o->collective, o->max_bytes, o->nranks, o->type, &shape))
        r->shapes[r->nsizes++] = shape;
}

static void add_reference(struct holmes_results *r, int streams, int threads)
{
    struct holmes_variant *v = &r->variants[r->nvariants++];

    v->team = r->options->nplugins;
    v->streams = streams;
    v->threads = threads;
    if (threads == 0)
        snprintf(v->label, sizeof v->label, "TCP x%d", streams);
    else if (threads == 1)
        snprintf(v->label, sizeof v->label, "poll x%d", streams);
    else
        snprintf(v->label, sizeof v->label, "poll x%d/%d", streams, threads);
}

static void lay_out_variants(struct holmes_results *r)
{
    const struct holmes_bench_options *o = r->options;

    for (int i = 0; i < o->nplugins; i++) {
        struct holmes_variant *v = &r->variants[r->nvariants++];

        snprintf(v->label, sizeof v->label, "%s", o->plugins[i].label);
        v->team = i;
    }
    for (int t = 0; t < o->nthreads && o->reference; t++)
        for (int i = 0; i < o->nstreams; i++)
            if (o->threads[t] <= o->streams[i])
                add_reference(r, o->streams[i], o->threads[t]);
}

/* One piece of memory, which `us` owns. */
static int cell_init(struct holmes_cell *c, size_t rounds)
{
    c->us = calloc(5 * rounds, sizeof *c->us);
    if (!c->us)
        return -ENOMEM;
    c->cpu = c->us + rounds;
    c->p50 = c->us + 2 * rounds;
    c->p99 = c->us + 3 * rounds;
    c->max = c->us + 4 * rounds;
    return 0;
}

struct holmes_results *holmes_results_create(const struct holmes_bench_options *options)
{
    struct holmes_results *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->options = options;
    r->delayed_by = "";
    if (options->collective != HOLMES_SENDRECV)
        r->measures[r->nmeasures++] = HOLMES_BENCH_TIME;
    if (options->collective == HOLMES_SENDRECV && !options->no_latency)
        r->measures[r->nmeasures++] = HOLMES_BENCH_LATENCY;
    if (options->collective == HOLMES_SENDRECV && !options->no_bandwidth)
        r->measures[r->nmeasures++] = HOLMES_BENCH_BANDWIDTH;
    lay_out_sizes(r);
    lay_out_variants(r);
    for (int m = 0; m < r->nmeasures; m++) {
        for (int s = 0; s < r->nsizes; s++) {
            for (int v = 0; v < r->nvariants; v++) {
                if (cell_init(&r->cells[m][s][v], (size_t)options->rounds) != 0) {
                    holmes_results_destroy(r);
                    return NULL;
                }
            }
        }
    }
    return r;
}

void holmes_results_destroy(struct holmes_results *r)
{
    if (!r)
        return;
    for (int m = 0; m < r->nmeasures; m++)
        for (int s = 0; s < r->nsizes; s++)
            for (int v = 0; v < r->nvariants; v++)
                free(r->cells[m][s][v].us);
    free(r);
}

const char *holmes_reference_name(enum holmes_reference_kind kind)
{
    static const char *const names[] = {"TCP", "poll", "reference"};

    return names[kind];
}

static bool is_of_kind(const struct holmes_variant *v, enum holmes_reference_kind kind)
{
    if (v->streams == 0)
        return false;
    return kind == HOLMES_REFERENCE_ANY || (kind == HOLMES_REFERENCE_POLLS) == (v->threads > 0);
}

bool holmes_results_has(const struct holmes_results *r, enum holmes_reference_kind kind)
{
    for (int v = 0; v < r->nvariants; v++)
        if (is_of_kind(&r->variants[v], kind))
            return true;
    return false;
}

int holmes_results_best_reference(const struct holmes_results *r, enum holmes_reference_kind kind,
                                  int measure, int size)
{
    double best_us = INFINITY;
    int best = -1;

    for (int v = 0; v < r->nvariants; v++) {
        const struct holmes_cell *c = &r->cells[measure][size][v];
        double us = holmes_stats_of(c->us, (size_t)c->rounds).median;

        if (is_of_kind(&r->variants[v], kind) && us < best_us) {
            best = v;
            best_us = us;
        }
    }
    return best;
}

static double speedup(const struct holmes_cell *ours, const struct holmes_cell *base)
{
    int rounds = ours->rounds < base->rounds ? ours->rounds : base->rounds;

    return holmes_stats_speedup(ours->us, base->us, (size_t)rounds);
}

static struct holmes_stats bandwidth(struct holmes_stats us, double bytes)
{
    return (struct holmes_stats){.median = bytes / us.median / 1e3,
                                 .min = bytes / us.max / 1e3,
                                 .max = bytes / us.min / 1e3,
                                 .q1 = bytes / us.q3 / 1e3,
                                 .q3 = bytes / us.q1 / 1e3};
}

double holmes_results_link_bytes(const struct holmes_results *r, int measure, int size, int iters)
{
    const struct holmes_bench_options *o = r->options;
    double bytes = (double)r->shapes[size].size_bytes * iters;

    if (o->collective != HOLMES_SENDRECV)
        return bytes * holmes_collective_factor(o->collective, o->nranks) * o->nranks;
    if (r->measures[measure] == HOLMES_BENCH_LATENCY || o->both_ways)
        bytes *= 2;
    return bytes * (o->nranks / 2.0);
}

struct holmes_figures holmes_results_figures(const struct holmes_results *r, int measure, int size,
                                             int variant)
{
    const struct holmes_bench_options *o = r->options;
    const struct holmes_cell *cells = r->cells[measure][size], *c = &cells[variant];
    double bytes = (double)r->shapes[size].size_bytes;
    struct holmes_figures f = {.wire = NAN, .vs_first = NAN};
    double rate = (double)holmes_link_total_rate(&o->link);

    f.us = holmes_stats_of(c->us, (size_t)c->rounds);
    f.cpu = holmes_stats_of(c->cpu, (size_t)c->rounds);
    f.p50 = holmes_stats_of(c->p50, (size_t)c->rounds).median;
    f.p99 = holmes_stats_of(c->p99, (size_t)c->rounds).median;
    f.max = holmes_stats_of(c->max, (size_t)c->rounds).max;
    f.spread = (f.us.max - f.us.min) / f.us.median;
    f.algbw = bandwidth(f.us, bytes);
    f.busbw = bandwidth(f.us, bytes * holmes_collective_factor(o->collective, o->nranks));
    if (rate > 0 && r->measures[measure] != HOLMES_BENCH_LATENCY)
        f.wire = f.busbw.median * 8e9 / rate;
    if (o->nplugins > 0 && variant != 0)
        f.vs_first = speedup(c, &cells[0]);
    for (int kind = 0; kind <= HOLMES_REFERENCE_ANY; kind++) {
        int best =
            holmes_results_best_reference(r, (enum holmes_reference_kind)kind, measure, size);

        f.vs_reference[kind] = best >= 0 && best != variant ? speedup(c, &cells[best]) : NAN;
    }
    return f;
}

uint64_t holmes_results_wrong(const struct holmes_results *r)
{
    uint64_t wrong = 0;

    for (int s = 0; s < r->nsizes; s++)
        for (int v = 0; v < r->nvariants; v++)
            wrong += r->cells[0][s][v].wrong;
    return wrong;
}
