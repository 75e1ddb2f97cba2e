/* Numbers for the tests of kernels and stages: repeatable noise, and a comparison whose tolerance
 * is relative to the size of what is compared. */
#ifndef HOLMES_TESTS_NUMERIC_H
#define HOLMES_TESTS_NUMERIC_H

#include "kernels.h"
#include "random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

/* n numbers of normal noise around `mean`, the same for the same label. free() it. */
static inline float *numeric_noise(const char *label, size_t n, double mean, double std)
{
    const uint64_t key = holmes_random_key(1, label, strlen(label));
    float *x = malloc((n + 1) * sizeof *x);

    cr_assert_not_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(mean + std * holmes_random_normal(key, i));
    return x;
}

static inline int32_t *numeric_tokens(const char *label, size_t n, int vocab)
{
    const uint64_t key = holmes_random_key(2, label, strlen(label));
    int32_t *x = malloc((n + 1) * sizeof *x);

    cr_assert_not_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (int32_t)holmes_random_below(key, i, (uint64_t)vocab);
    return x;
}

/* Largest |a - b| over the largest |b|; infinite when a value is none. */
static inline double numeric_distance(const float *a, const float *b, size_t n)
{
    double diff = 0, size = 1e-30;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            return INFINITY;
        diff = fmax(diff, fabs((double)a[i] - b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    return diff / size;
}

#endif
