/* Exponentials and their sums: the pieces of a softmax, and the cross entropy of the head made of
 * them. Rows are independent. */
#include "cpu.h"

#include <math.h>

CPU_CLONES
float holmes_cpu_max(const float *x, size_t n)
{
    float max = x[0];

#pragma omp simd reduction(max : max)
    for (size_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

CPU_CLONES
float holmes_cpu_exponentials(float *p, const float *x, float scale, float add, size_t n)
{
    const struct cpu_exp_range range = cpu_exp_range();
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        const float e = cpu_exp(scale * x[i] + add, range);

        p[i] = e;
        sum += e;
    }
    return sum;
}

CPU_CLONES
void holmes_cpu_scale(float *x, float a, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] *= a;
}

/* The sum of e^(x - max) */
CPU_CLONES
static float sum_exponentials(const float *x, float max, size_t n)
{
    const struct cpu_exp_range range = cpu_exp_range();
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += cpu_exp(x[i] - max, range);
    return sum;
}

/* The same for the many columns of a vocabulary: blocks in double, so that the rounding does not
 * grow with their number, nor differ between a whole vocabulary and its parts. */
static float sum_row(const float *x, float max, size_t n)
{
    const size_t block = 1024;
    double sum = 0;

    for (size_t i = 0; i < n; i += block)
        sum += (double)sum_exponentials(x + i, max, n - i < block ? n - i : block);
    return (float)sum;
}

void holmes_cpu_xent_stats(float *stats, const void *logits, const int32_t *targets, int N, int V,
                           int first)
{
    const size_t rows = (size_t)N, width = (size_t)V;

#pragma omp parallel num_threads(holmes_cpu_threads_for(rows *width))
    {
        const struct cpu_range r = cpu_my_range(rows, 1);

        for (size_t i = r.first; i < r.first + r.count; i++) {
            const float *x = (const float *)logits + i * width;
            const int target = targets[i] - first;

            stats[i] = holmes_cpu_max(x, width);
            stats[rows + i] = sum_row(x, stats[i], width);
            stats[2 * rows + i] = target >= 0 && target < V ? x[target] : 0;
        }
    }
}

/* A few numbers per row: not worth threads, and one order of summing. */
void holmes_cpu_xent_combine(double *loss, float *lse, const float *stats, int parts, int N)
{
    const size_t rows = (size_t)N;

    for (size_t n = 0; n < rows; n++) {
        const float *max = stats + n, *sum = max + rows, *logit = sum + rows;
        double row_max = max[0], row_sum = 0, target = 0;

        for (size_t i = 1; i < (size_t)parts; i++)
            row_max = fmax(row_max, max[i * 3 * rows]);
        for (size_t i = 0; i < (size_t)parts; i++) {
            row_sum += sum[i * 3 * rows] * exp(max[i * 3 * rows] - row_max);
            target += logit[i * 3 * rows];
        }
        lse[n] = (float)(row_max + log(row_sum));
        *loss += row_max + log(row_sum) - target;
    }
}

/* dx = scale e^(x - lse) */
CPU_CLONES
static void scaled_exponentials(float *dx, const float *x, float lse, float scale, size_t n)
{
    const struct cpu_exp_range range = cpu_exp_range();

#pragma omp simd
    for (size_t i = 0; i < n; i++)
        dx[i] = scale * cpu_exp(x[i] - lse, range);
}

void holmes_cpu_xent_backward(void *dlogits, const void *logits, const float *lse,
                              const int32_t *targets, float scale, int N, int V, int first)
{
    const size_t width = (size_t)V;

#pragma omp parallel num_threads(holmes_cpu_threads_for((size_t)N *width))
    {
        const struct cpu_range r = cpu_my_range((size_t)N, 1);

        for (size_t i = r.first; i < r.first + r.count; i++) {
            float *dx = (float *)dlogits + i * width;
            const int target = targets[i] - first;

            scaled_exponentials(dx, (const float *)logits + i * width, lse[i], scale, width);
            if (target >= 0 && target < V)
                dx[target] -= scale;
        }
    }
}
