/* What was measured, and the figures made of it. Times are microseconds of one operation by the
 * slowest rank. */
#ifndef HOLMES_BENCH_RESULTS_H
#define HOLMES_BENCH_RESULTS_H

#include "options.h"
#include "stats.h"

#define HOLMES_BENCH_SIZES_MAX    48
#define HOLMES_BENCH_MEASURES_MAX 2
#define HOLMES_BENCH_VARIANTS_MAX (HOLMES_BENCH_PLUGINS_MAX + HOLMES_BENCH_STREAMS_MAX)

/* A line of the charts: a plugin, or the reference with a number of streams. */
struct holmes_variant {
    char label[64]; /* "holmes", "TCP x4" */
    char about[400];
    int team;    /* index of the side whose processes run it */
    int streams; /* 0: a plugin */
};

struct holmes_cell {
    double *us;              /* (rounds), as the next */
    double *cpu;             /* CPU seconds of all ranks for 10^9 bytes over links */
    double *p50, *p99, *max; /* us of one message; NaN but in latency tests */
    int rounds;              /* measured so far */
    int iters;
    uint64_t wrong; /* elements, all ranks */
};

struct holmes_results {
    const struct holmes_bench_options *options;
    struct holmes_shape shapes[HOLMES_BENCH_SIZES_MAX];
    int nsizes, nsizes_done; /* of those done everything is known */
    enum holmes_bench_measure measures[HOLMES_BENCH_MEASURES_MAX];
    int nmeasures;
    struct holmes_variant variants[HOLMES_BENCH_VARIANTS_MAX]; /* plugins first, in their order */
    int nvariants;
    struct holmes_cell cells[HOLMES_BENCH_MEASURES_MAX][HOLMES_BENCH_SIZES_MAX]
                            [HOLMES_BENCH_VARIANTS_MAX];
};

/* Lays out sizes, measures and variants; `options` must outlive it. NULL without memory. */
struct holmes_results *holmes_results_create(const struct holmes_bench_options *options);
void holmes_results_destroy(struct holmes_results *r); /* NULL is fine */

struct holmes_figures {
    struct holmes_stats us;           /* of one operation */
    struct holmes_stats algbw, busbw; /* GB/s; min is that of the slowest round */
    double spread;                    /* (max - min) / median of the time */
    struct holmes_stats cpu;          /* seconds for each GB moved */
    double p50, p99;                  /* medians of the rounds'; NaN where there are none */
    double max;                       /* of all rounds */
    double vs_first, vs_reference;    /* NaN where there is nothing to compare with */
};
struct holmes_figures holmes_results_figures(const struct holmes_results *r, int measure, int size,
                                             int variant);

/* Bytes that cross all links of all ranks in `iters` operations. */
double holmes_results_link_bytes(const struct holmes_results *r, int measure, int size, int iters);

/* The reference with the least median time for this size; -1 without a reference. */
int holmes_results_best_reference(const struct holmes_results *r, int measure, int size);

uint64_t holmes_results_wrong(const struct holmes_results *r); /* all of it */

/* "time", "latency", "bandwidth". */
const char *holmes_measure_name(enum holmes_bench_measure m);

#endif
