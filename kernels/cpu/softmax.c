/* Softmax, alone and with the cross entropy of the head. Rows are independent; the sum of their
 * losses is made over a fixed number of parts, so that it does not depend on the threads. */
#include "cpu.h"

#include <math.h>

#define XENT_PARTS 64

CPU_CLONES
static float max_of(const float *x, size_t n)
{
    float max = x[0];

#pragma omp simd reduction(max : max)
    for (size_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* p = e^(scale (x - max)), returns their sum */
CPU_CLONES
static float exponentials(float *p, const float *x, float max, float scale, size_t n)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        const float e = cpu_exp(scale * (x[i] - max));

        p[i] = e;
        sum += e;
    }
    return sum;
}

CPU_CLONES
static void multiply_by(float *x, float a, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        x[i] *= a;
}

double holmes_cpu_softmax(float *p, const float *x, float scale, size_t n)
{
    const float max = max_of(x, n);
    const float sum = exponentials(p, x, max, scale, n);

    multiply_by(p, 1 / sum, n);
    return (double)scale * max + log(sum);
}

/* Rows of one part; returns the sum of their losses. */
static double xent_rows(float *probs, const float *logits, const int32_t *targets, size_t rows,
                        size_t V)
{
    double loss = 0;

    for (size_t i = 0; i < rows; i++) {
        const double target = logits[i * V + (size_t)targets[i]]; /* probs may be logits */

        loss += holmes_cpu_softmax(probs + i * V, logits + i * V, 1, V) - target;
    }
    return loss;
}

double holmes_cpu_xent_forward(float *probs, const float *logits, const int32_t *targets, int N,
                               int V)
{
    double part[XENT_PARTS], loss = 0;
    const size_t rows = (size_t)N, width = (size_t)V;

#pragma omp parallel for schedule(static) num_threads(holmes_cpu_threads_for(rows *width))
    for (size_t i = 0; i < XENT_PARTS; i++) {
        const size_t first = rows * i / XENT_PARTS, end = rows * (i + 1) / XENT_PARTS;

        part[i] = xent_rows(probs + first * width, logits + first * width, targets + first,
                            end - first, width);
    }
    for (size_t i = 0; i < XENT_PARTS; i++)
        loss += part[i];
    return loss;
}

CPU_CLONES
static void scaled_copy(float *out, const float *in, float a, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        out[i] = a * in[i];
}

void holmes_cpu_xent_backward(float *dlogits, const float *probs, const int32_t *targets,
                              float scale, int N, int V)
{
    const size_t width = (size_t)V;

#pragma omp parallel num_threads(holmes_cpu_threads_for((size_t)N *width))
    {
        const struct cpu_range r = cpu_my_range((size_t)N, 1);

        for (size_t i = r.first; i < r.first + r.count; i++) {
            const size_t target = i * width + (size_t)targets[i];
            const float at_target = scale * (probs[target] - 1); /* dlogits may be probs */

            scaled_copy(dlogits + i * width, probs + i * width, scale, width);
            dlogits[target] = at_target;
        }
    }
}
