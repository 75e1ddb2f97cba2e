/* What the files of the cpu table share: how a loop is cut over threads, how a function is built
 * for several instruction sets, and an exponential that vectorises. */
#ifndef HOLMES_KERNELS_CPU_H
#define HOLMES_KERNELS_CPU_H

#include "kernels.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* Built once for any CPU of the family and once for AVX2; the loader picks. The attribute does not
 * reach the functions OpenMP makes of parallel regions, so vector loops live in functions of their
 * own, called from those. */
#ifdef HOLMES_TARGET_CLONES
#define CPU_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CPU_CLONES
#endif

/* Threads worth starting for a loop of `work` elements or so. */
int holmes_cpu_threads_for(size_t work);

struct cpu_range {
    size_t first, count;
};

/* The calling thread's share of [0, n) in the enclosing parallel region, cut at multiples of
 * `align`; all of it outside of one, or without OpenMP. */
static inline struct cpu_range cpu_my_range(size_t n, size_t align)
{
#ifdef _OPENMP
    const size_t threads = (size_t)omp_get_num_threads(), me = (size_t)omp_get_thread_num();
#else
    const size_t threads = 1, me = 0;
#endif
    const size_t blocks = (n + align - 1) / align;
    size_t first = blocks * me / threads * align;
    size_t end = blocks * (me + 1) / threads * align;

    end = end < n ? end : n;
    first = first < end ? first : end;
    return (struct cpu_range){first, end - first};
}

/* Where cpu_exp stops: e^-87 is still a normal number. Read by each loop, not known to the
 * compiler, which would else compute with these constants too and choose between three results at
 * the end. */
struct cpu_exp_range {
    float low, high;
};

static inline struct cpu_exp_range cpu_exp_range(void)
{
    static const volatile struct cpu_exp_range range = {-87, 88};

    return (struct cpu_exp_range){range.low, range.high};
}

/* e^x for float, within 3 units in the last place inside the range, its ends outside: 2^k e^r with
 * |r| <= ln(2)/2, and for e^r the polynomial 1 + r + r^2 q(r) with the least relative
 * error, 1.1e-7.
 */
__attribute__((always_inline)) static inline float cpu_exp(float x, struct cpu_exp_range range)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    const float above = range.low > x ? range.low : x;
    const float clamped = range.high < above ? range.high : above;
    const float k = (clamped * 1.44269504f + magic) - magic;
    const float r = (clamped - k * 0.693359375f) + k * 2.12194440e-4f; /* ln 2 in two parts */
    const float q = 0.49999230f + r * (0.16667116f + r * (0.041890332f + r * 0.0083125014f));
    const uint32_t bits = ((uint32_t)(int32_t)k + 127u) << 23;
    float power;

    memcpy(&power, &bits, sizeof power);
    return (1 + r * (1 + r * q)) * power;
}

/* Defined one file per layer, put into the table by cpu.c. */
void holmes_cpu_matmul_forward(void *out, const void *in, const void *weight, const void *bias,
                               int N, int C, int OC);
void holmes_cpu_matmul_gelu_forward(void *out, void *pre, const void *in, const void *weight,
                                    const void *bias, int N, int C, int OC);
void holmes_cpu_matmul_backward(void *din, float *dweight, float *dbias, const void *dout,
                                const void *in, const void *weight, int N, int C, int OC);
void holmes_cpu_attention_forward(void *out, float *lse, const void *qkv, int B, int T, int C,
                                  int H);
size_t holmes_cpu_attention_scratch(int B, int T, int C, int H);
void holmes_cpu_attention_backward(void *dqkv, void *scratch, const void *dout, const void *out,
                                   const float *lse, const void *qkv, int B, int T, int C, int H);
void holmes_cpu_layernorm_forward(void *out, float *mean, float *rstd, const void *in,
                                  const void *weight, const void *bias, int N, int C);
void holmes_cpu_layernorm_backward(void *din, float *dweight, float *dbias, const void *dout,
                                   const void *in, const float *mean, const float *rstd,
                                   const void *weight, int N, int C);
void holmes_cpu_xent_stats(float *stats, const void *logits, const int32_t *targets, int N, int V,
                           int first);
void holmes_cpu_xent_combine(double *loss, float *lse, const float *stats, int parts, int N);
void holmes_cpu_xent_backward(void *dlogits, const void *logits, const float *lse,
                              const int32_t *targets, float scale, int N, int V, int first);
void holmes_cpu_embedding_forward(void *out, const int32_t *tokens, const void *wte,
                                  const void *wpe, int B, int T, int C, int first, int V);
void holmes_cpu_embedding_backward(float *dwte, float *dwpe, const void *dout,
                                   const int32_t *tokens, int B, int T, int C, int first, int V);
void holmes_cpu_gelu_forward(void *out, const void *in, size_t n);
void holmes_cpu_gelu_backward(void *din, const void *dout, const void *in, size_t n);
void holmes_cpu_residual_forward(void *out, const void *a, const void *b, const void *bias, int N,
                                 int C);
void holmes_cpu_adamw(float *w, void *real, float *m, float *v, const float *g, size_t n,
                      const struct holmes_adamw_step *step);
void holmes_cpu_sum_squares(double *sum, const float *x, size_t n);

float holmes_cpu_max(const float *x, size_t n); /* n at least 1 */
/* p = e^(scale x + add), n may be 0; p may be x. Returns their sum. */
float holmes_cpu_exponentials(float *p, const float *x, float scale, float add, size_t n);
void holmes_cpu_scale(float *x, float a, size_t n); /* x = a x */

#endif
