/* Layer norm. Rows are shared out for what belongs to a row, columns for the gradients of weight
 * and bias, which are sums over rows: no thread ever adds to what another one does. */
#include "cpu.h"

#include <math.h>

#define LAYERNORM_EPS 1e-5f

CPU_CLONES
static void row_forward(float *restrict out, float *mean, float *rstd, const float *restrict in,
                        const float *restrict weight, const float *restrict bias, size_t C)
{
    float sum = 0, squares = 0;

#pragma omp simd reduction(+ : sum)
    for (size_t c = 0; c < C; c++)
        sum += in[c];

    const float m = sum / (float)C;
#pragma omp simd reduction(+ : squares)
    for (size_t c = 0; c < C; c++)
        squares += (in[c] - m) * (in[c] - m);

    const float s = 1 / sqrtf(squares / (float)C + LAYERNORM_EPS);
#pragma omp simd
    for (size_t c = 0; c < C; c++)
        out[c] = (in[c] - m) * s * weight[c] + bias[c];
    *mean = m;
    *rstd = s;
}

void holmes_cpu_layernorm_forward(void *out_real, float *mean, float *rstd, const void *in_real,
                                  const void *weight, const void *bias, int N, int C)
{
    float *out = out_real;
    const float *in = in_real;
    const size_t width = (size_t)C;

#pragma omp parallel num_threads(holmes_cpu_threads_for((size_t)N *width))
    {
        const struct cpu_range r = cpu_my_range((size_t)N, 1);

        for (size_t n = r.first; n < r.first + r.count; n++)
            row_forward(out + n * width, mean + n, rstd + n, in + n * width, weight, bias, width);
    }
}

CPU_CLONES
static void row_backward(float *restrict din, const float *restrict dout, const float *restrict in,
                         float m, float s, const float *restrict weight, size_t C)
{
    float sum = 0, sum_xhat = 0;

#pragma omp simd reduction(+ : sum, sum_xhat)
    for (size_t c = 0; c < C; c++) {
        const float dxhat = dout[c] * weight[c];

        sum += dxhat;
        sum_xhat += dxhat * ((in[c] - m) * s);
    }

    const float mean_dxhat = sum / (float)C, mean_dxhat_xhat = sum_xhat / (float)C;
#pragma omp simd
    for (size_t c = 0; c < C; c++)
        din[c] += s * (dout[c] * weight[c] - mean_dxhat - (in[c] - m) * s * mean_dxhat_xhat);
}

/* One row's part of the gradients of `n` columns. */
CPU_CLONES
static void row_backward_params(float *restrict dweight, float *restrict dbias,
                                const float *restrict dout, const float *restrict in, float m,
                                float s, size_t n)
{
#pragma omp simd
    for (size_t c = 0; c < n; c++) {
        dweight[c] += dout[c] * ((in[c] - m) * s);
        dbias[c] += dout[c];
    }
}

void holmes_cpu_layernorm_backward(void *din_real, float *dweight, float *dbias,
                                   const void *dout_real, const void *in_real, const float *mean,
                                   const float *rstd, const void *weight, int N, int C)
{
    float *din = din_real;
    const float *dout = dout_real, *in = in_real;
    const size_t width = (size_t)C, rows = (size_t)N;

#pragma omp parallel num_threads(holmes_cpu_threads_for(rows *width))
    {
        const struct cpu_range r = cpu_my_range(rows, 1), cols = cpu_my_range(width, 16);

        for (size_t n = r.first; n < r.first + r.count; n++)
            row_backward(din + n * width, dout + n * width, in + n * width, mean[n], rstd[n],
                         weight, width);
        for (size_t n = 0; n < rows; n++)
            row_backward_params(dweight + cols.first, dbias + cols.first,
                                dout + n * width + cols.first, in + n * width + cols.first, mean[n],
                                rstd[n], cols.count);
    }
}
