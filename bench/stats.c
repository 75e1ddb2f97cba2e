/* Medians and ratios. The number of rounds is small: sorting a copy is cheap. */
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The value at that part of the way from the least to the greatest. */
static double value_at(const double *sorted, size_t n, double part)
{
    double at = part * (double)(n - 1);
    size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;

    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

struct holmes_stats holmes_stats_of(const double *values, size_t n)
{
    struct holmes_stats s = {NAN, NAN, NAN, NAN, NAN};
    double *sorted = n ? malloc(n * sizeof *sorted) : NULL;

    if (!sorted)
        return s;
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    s.min = sorted[0];
    s.max = sorted[n - 1];
    s.median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    s.q1 = value_at(sorted, n, 0.25);
    s.q3 = value_at(sorted, n, 0.75);
    free(sorted);
    return s;
}

double holmes_stats_speedup(const double *ours, const double *base, size_t rounds)
{
    double *ratios = rounds ? malloc(rounds * sizeof *ratios) : NULL, median;

    if (!ratios)
        return NAN;
    for (size_t i = 0; i < rounds; i++)
        ratios[i] = base[i] / ours[i];
    median = holmes_stats_of(ratios, rounds).median;
    free(ratios);
    return median;
}

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

struct holmes_percentiles holmes_percentiles_of(float *values, size_t n)
{
    if (n == 0)
        return (struct holmes_percentiles){NAN, NAN, NAN};
    qsort(values, n, sizeof *values, compare_float);
    return (struct holmes_percentiles){values[(n * 50 + 99) / 100 - 1],
                                       values[(n * 99 + 99) / 100 - 1], values[n - 1]};
}
