/* Layers without a sum across elements (embedding, GELU, residual), the AdamW update, and the sum
 * of squares for the gradient norm. All are bound by memory; vectors and threads keep them so. */
#include "cpu.h"

#include <math.h>

#define SUM_PARTS 64

CPU_CLONES
static void add(float *out, const float *a, const float *b, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

CPU_CLONES
static void add_with_bias(float *out, const float *a, const float *b, const float *bias, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i] + bias[i];
}

void holmes_cpu_residual_forward(void *out_real, const void *a_real, const void *b_real,
                                 const void *bias, int N, int C)
{
    float *out = out_real;
    const float *a = a_real, *b = b_real;
    const size_t rows = (size_t)N, width = (size_t)C;

#pragma omp parallel num_threads(holmes_cpu_threads_for(rows *width))
    {
        const struct cpu_range r = cpu_my_range(rows, 1);
        const size_t first = r.first * width, end = first + r.count * width;

        if (!bias)
            add(out + first, a + first, b + first, end - first);
        else
            for (size_t i = first; i < end; i += width)
                add_with_bias(out + i, a + i, b + i, bias, width);
    }
}

void holmes_cpu_embedding_forward(void *out_real, const int32_t *tokens, const void *wte,
                                  const void *wpe, int B, int T, int C, int first, int V)
{
    const size_t rows = (size_t)B * (size_t)T, width = (size_t)C;

#pragma omp parallel num_threads(holmes_cpu_threads_for(rows *width))
    {
        const struct cpu_range r = cpu_my_range(rows, 1);

        for (size_t i = r.first; i < r.first + r.count; i++) {
            const int token = tokens[i] - first;
            const float *position = wpe ? (const float *)wpe + i % (size_t)T * width : NULL;
            const float *row =
                token >= 0 && token < V ? (const float *)wte + (size_t)token * width : NULL;
            float *out = (float *)out_real + i * width;

            if (row && position)
                add(out, row, position, width);
            else if (row || position)
                memcpy(out, row ? row : position, width * sizeof(float));
            else
                memset(out, 0, width * sizeof(float));
        }
    }
}

/* Rows of dwte meet when a token repeats, so threads share out the columns. */
void holmes_cpu_embedding_backward(float *dwte, float *dwpe, const void *dout_real,
                                   const int32_t *tokens, int B, int T, int C, int first, int V)
{
    const float *dout = dout_real;
    const size_t rows = (size_t)B * (size_t)T, width = (size_t)C;

#pragma omp parallel num_threads(holmes_cpu_threads_for(rows *width))
    {
        const struct cpu_range r = cpu_my_range(width, 16);

        for (size_t i = 0; i < rows; i++) {
            const int token = tokens[i] - first;
            const float *from = dout + i * width + r.first;

            if (token >= 0 && token < V) {
                float *to = dwte + (size_t)token * width + r.first;

                add(to, to, from, r.count);
            }
            if (dwpe) {
                float *to = dwpe + i % (size_t)T * width + r.first;

                add(to, to, from, r.count);
            }
        }
    }
}

#define GELU_SCALE 0.7978845608f /* sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

/* (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3): a logistic of 2u */
__attribute__((always_inline)) static inline float gelu_gate(float x, struct cpu_exp_range range)
{
    return 1 / (1 + cpu_exp(-2 * GELU_SCALE * (x + GELU_CUBIC * x * x * x), range));
}

CPU_CLONES
static void gelu(float *restrict out, const float *restrict in, size_t n)
{
    const struct cpu_exp_range range = cpu_exp_range();

#pragma omp simd
    for (size_t i = 0; i < n; i++)
        out[i] = in[i] * gelu_gate(in[i], range);
}

/* d(x gate)/dx = gate + x gate (1 - gate) 2 du/dx */
CPU_CLONES
static void gelu_gradient(float *din, const float *dout, const float *in, size_t n)
{
    const struct cpu_exp_range range = cpu_exp_range();

#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float x = in[i], gate = gelu_gate(x, range);
        const float du = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);

        din[i] = dout[i] * (gate + 2 * x * gate * (1 - gate) * du);
    }
}

void holmes_cpu_gelu_forward(void *out, const void *in, size_t n)
{
#pragma omp parallel num_threads(holmes_cpu_threads_for(n))
    {
        const struct cpu_range r = cpu_my_range(n, 16);

        gelu((float *)out + r.first, (const float *)in + r.first, r.count);
    }
}

void holmes_cpu_gelu_backward(void *din, const void *dout, const void *in, size_t n)
{
#pragma omp parallel num_threads(holmes_cpu_threads_for(n))
    {
        const struct cpu_range r = cpu_my_range(n, 16);

        gelu_gradient((float *)din + r.first, (const float *)dout + r.first,
                      (const float *)in + r.first, r.count);
    }
}

CPU_CLONES
static void adamw(float *restrict w, float *restrict m, float *restrict v, const float *restrict g,
                  size_t n, const struct holmes_adamw_step *step)
{
    const struct holmes_adamw_step s = *step;

#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const float grad = s.grad_scale * g[i];

        m[i] = s.beta1 * m[i] + (1 - s.beta1) * grad;
        v[i] = s.beta2 * v[i] + (1 - s.beta2) * grad * grad;
        w[i] -= s.lr * (m[i] / s.correction1 / (sqrtf(v[i] / s.correction2) + s.eps) +
                        s.weight_decay * w[i]);
    }
}

void holmes_cpu_adamw(float *w, void *real, float *m, float *v, const float *g, size_t n,
                      const struct holmes_adamw_step *step)
{
#pragma omp parallel num_threads(holmes_cpu_threads_for(n))
    {
        const struct cpu_range r = cpu_my_range(n, 16);

        adamw(w + r.first, m + r.first, v + r.first, g + r.first, r.count, step);
        if (real)
            memcpy((float *)real + r.first, w + r.first, r.count * sizeof *w);
    }
}

CPU_CLONES
static double squares(const float *x, size_t n)
{
    double sum = 0;

#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

void holmes_cpu_sum_squares(double *sum, const float *x, size_t n)
{
    double part[SUM_PARTS], all = 0;

#pragma omp parallel for schedule(static) num_threads(holmes_cpu_threads_for(n))
    for (size_t i = 0; i < SUM_PARTS; i++) {
        const size_t first = n / SUM_PARTS * i;
        const size_t end = i + 1 < SUM_PARTS ? n / SUM_PARTS * (i + 1) : n;

        part[i] = squares(x + first, end - first);
    }
    for (size_t i = 0; i < SUM_PARTS; i++)
        all += part[i];
    *sum += all;
}
