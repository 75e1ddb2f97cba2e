/* What is made of repeated measurements. Pure. */
#ifndef HOLMES_BENCH_STATS_H
#define HOLMES_BENCH_STATS_H

#include <stddef.h>

struct holmes_stats {
    double median, min, max;
    double q1,
        q3; /* a quarter of the values lie below, or above; between two values in proportion */
};

/* Of n >= 1 values, in any order; the mean of the middle two when n is even. All NaN for n == 0. */
struct holmes_stats holmes_stats_of(const double *values, size_t n);

struct holmes_percentiles {
    double p50, p99, max;
};

/* Of n >= 1 values, which are sorted: pN is the least value that N in 100 do not exceed. All NaN
 * for n == 0. */
struct holmes_percentiles holmes_percentiles_of(float *values, size_t n);

/* How many times faster `ours` was than `base`: the median over the rounds of base[i] / ours[i],
 * both being times of the same round. Pairing by round takes the machine's drift out. */
double holmes_stats_speedup(const double *ours, const double *base, size_t rounds);

#endif
