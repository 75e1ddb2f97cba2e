/* What was measured, and the figures made of it. Times are microseconds of one operation by the
 * slowest rank. */
#ifndef HOLMES_BENCH_RESULTS_H
#define HOLMES_BENCH_RESULTS_H

#include "options.h"
#include "stats.h"

#define HOLMES_BENCH_SIZES_MAX    48
#define HOLMES_BENCH_MEASURES_MAX 2
#define HOLMES_BENCH_VARIANTS_MAX                                                                  \
    (HOLMES_BENCH_PLUGINS_MAX + HOLMES_BENCH_STREAMS_MAX * HOLMES_BENCH_THREADS_MAX)

/* A plugin, or the reference with numbers of streams and threads. */
struct holmes_variant {
    char label[64]; /* "holmes", "TCP x4", "poll x4", "poll x4/2" */
    char about[400];
    int team;                              /* index of the side whose processes run it */
    int streams;                           /* 0: a plugin */
    int threads;                           /* of a reference that polls; 0: it blocks */
    uint64_t link_bytes[HOLMES_LINKS_MAX]; /* all ranks sent in its rounds, with headers */
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
    const char *delayed_by;  /* holmes_link_delayed_by */
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

enum holmes_reference_kind {
    HOLMES_REFERENCE_BLOCKS,
    HOLMES_REFERENCE_POLLS,
    HOLMES_REFERENCE_ANY,
};

struct holmes_figures {
    struct holmes_stats us;           /* of one operation */
    struct holmes_stats algbw, busbw; /* GB/s; min is that of the slowest round */
    double spread;                    /* (max - min) / median of the time */
    struct holmes_stats cpu;          /* seconds for each GB moved */
    double p50, p99;                  /* medians of the rounds'; NaN where there are none */
    double max;                       /* of all rounds */
    double wire;                      /* busbw's share of the links' rate; NaN without one */
    double vs_first;                  /* NaN where there is nothing to compare with */
    double vs_reference[HOLMES_REFERENCE_ANY + 1]; /* the fastest of each kind; likewise */
};
struct holmes_figures holmes_results_figures(const struct holmes_results *r, int measure, int size,
                                             int variant);

/* Bytes that cross all links of all ranks in `iters` operations. */
double holmes_results_link_bytes(const struct holmes_results *r, int measure, int size, int iters);

/* The reference with the least median time for this size; -1 without one of the kind. */
int holmes_results_best_reference(const struct holmes_results *r, enum holmes_reference_kind kind,
                                  int measure, int size);
bool holmes_results_has(const struct holmes_results *r, enum holmes_reference_kind kind);
/* "TCP", "poll", "reference". */
const char *holmes_reference_name(enum holmes_reference_kind kind);

uint64_t holmes_results_wrong(const struct holmes_results *r); /* all of it */

/* "time", "latency", "bandwidth". */
const char *holmes_measure_name(enum holmes_bench_measure m);

#endif
