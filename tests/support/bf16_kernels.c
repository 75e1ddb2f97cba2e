#include "bf16_kernels.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct holmes_kernels *ref;

uint16_t bf16_round(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40); /* quiet, which rounding could make infinite */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static size_t area(int a, int b)
{
    return (size_t)a * (size_t)b;
}

static float *take(size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);

    if (!x) {
        fprintf(stderr, "bf16 kernels: no memory\n");
        abort();
    }
    return x;
}

/* Freed by the caller. NULL stays NULL. */
static float *widen(const void *half, size_t n)
{
    float *x = half ? take(n) : NULL;

    for (size_t i = 0; i < n && x; i++)
        x[i] = holmes_bf16_value(((const uint16_t *)half)[i]);
    return x;
}

static void convert(void *half, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)half)[i] = bf16_round(x[i]);
}

/* What a call wrote; frees it. */
static void give(void *half, float *x, size_t n)
{
    convert(half, x, n);
    free(x);
}

static void embedding_forward(void *out, const int32_t *tokens, const void *wte, const void *wpe,
                              int B, int T, int C, int first, int V)
{
    const size_t n = area(B, T) * (size_t)C;
    float *o = take(n), *we = widen(wte, area(V, C)), *wp = widen(wpe, area(T, C));

    ref->embedding_forward(o, tokens, we, wp, B, T, C, first, V);
    give(out, o, n);
    free(we);
    free(wp);
}

static void embedding_backward(float *dwte, float *dwpe, const void *dout, const int32_t *tokens,
                               int B, int T, int C, int first, int V)
{
    float *d = widen(dout, area(B, T) * (size_t)C);

    ref->embedding_backward(dwte, dwpe, d, tokens, B, T, C, first, V);
    free(d);
}

static void layernorm_forward(void *out, float *mean, float *rstd, const void *in,
                              const void *weight, const void *bias, int N, int C)
{
    float *o = take(area(N, C)), *x = widen(in, area(N, C));
    float *w = widen(weight, (size_t)C), *b = widen(bias, (size_t)C);

    ref->layernorm_forward(o, mean, rstd, x, w, b, N, C);
    give(out, o, area(N, C));
    free(x);
    free(w);
    free(b);
}

static void layernorm_backward(void *din, float *dweight, float *dbias, const void *dout,
                               const void *in, const float *mean, const float *rstd,
                               const void *weight, int N, int C)
{
    float *di = widen(din, area(N, C)), *d = widen(dout, area(N, C));
    float *x = widen(in, area(N, C)), *w = widen(weight, (size_t)C);

    ref->layernorm_backward(di, dweight, dbias, d, x, mean, rstd, w, N, C);
    give(din, di, area(N, C));
    free(d);
    free(x);
    free(w);
}

static void matmul_forward(void *out, const void *in, const void *weight, const void *bias, int N,
                           int C, int OC)
{
    float *o = take(area(N, OC)), *x = widen(in, area(N, C));
    float *w = widen(weight, area(OC, C)), *b = widen(bias, (size_t)OC);

    ref->matmul_forward(o, x, w, b, N, C, OC);
    give(out, o, area(N, OC));
    free(x);
    free(w);
    free(b);
}

static void matmul_gelu_forward(void *out, void *pre, const void *in, const void *weight,
                                const void *bias, int N, int C, int OC)
{
    float *o = take(area(N, OC)), *p = take(area(N, OC)), *x = widen(in, area(N, C));
    float *w = widen(weight, area(OC, C)), *b = widen(bias, (size_t)OC);

    ref->matmul_gelu_forward(o, p, x, w, b, N, C, OC);
    give(out, o, area(N, OC));
    give(pre, p, area(N, OC));
    free(x);
    free(w);
    free(b);
}

static void matmul_backward(void *din, float *dweight, float *dbias, const void *dout,
                            const void *in, const void *weight, int N, int C, int OC)
{
    float *di = take(area(N, C)), *d = widen(dout, area(N, OC));
    float *x = widen(in, area(N, C)), *w = widen(weight, area(OC, C));

    ref->matmul_backward(di, dweight, dbias, d, x, w, N, C, OC);
    give(din, di, area(N, C));
    free(d);
    free(x);
    free(w);
}

static void attention_forward(void *out, float *lse, const void *qkv, int B, int T, int C, int H)
{
    const size_t n = area(B, T) * (size_t)C;
    float *o = take(n), *x = widen(qkv, 3 * n);

    ref->attention_forward(o, lse, x, B, T, C, H);
    give(out, o, n);
    free(x);
}

static void attention_backward(void *dqkv, void *scratch, const void *dout, const void *out,
                               const float *lse, const void *qkv, int B, int T, int C, int H)
{
    const size_t n = area(B, T) * (size_t)C;
    float *dx = take(3 * n), *d = widen(dout, n), *o = widen(out, n), *x = widen(qkv, 3 * n);

    ref->attention_backward(dx, scratch, d, o, lse, x, B, T, C, H);
    give(dqkv, dx, 3 * n);
    free(d);
    free(o);
    free(x);
}

static void gelu_forward(void *out, const void *in, size_t n)
{
    float *o = take(n), *x = widen(in, n);

    ref->gelu_forward(o, x, n);
    give(out, o, n);
    free(x);
}

static void gelu_backward(void *din, const void *dout, const void *in, size_t n)
{
    float *di = take(n), *d = widen(dout, n), *x = widen(in, n);

    ref->gelu_backward(di, d, x, n);
    give(din, di, n);
    free(d);
    free(x);
}

static void residual_forward(void *out, const void *a, const void *b, const void *bias, int N,
                             int C)
{
    float *o = take(area(N, C)), *x = widen(a, area(N, C)), *y = widen(b, area(N, C));
    float *z = widen(bias, (size_t)C);

    ref->residual_forward(o, x, y, z, N, C);
    give(out, o, area(N, C));
    free(x);
    free(y);
    free(z);
}

static void xent_stats(float *stats, const void *logits, const int32_t *targets, int N, int V,
                       int first)
{
    float *x = widen(logits, area(N, V));

    ref->xent_stats(stats, x, targets, N, V, first);
    free(x);
}

static void xent_backward(void *dlogits, const void *logits, const float *lse,
                          const int32_t *targets, float scale, int N, int V, int first)
{
    float *dx = take(area(N, V)), *x = widen(logits, area(N, V));

    ref->xent_backward(dx, x, lse, targets, scale, N, V, first);
    give(dlogits, dx, area(N, V));
    free(x);
}

static void adamw(float *w, void *half, float *m, float *v, const float *g, size_t n,
                  const struct holmes_adamw_step *step)
{
    ref->adamw(w, NULL, m, v, g, n, step);
    if (half)
        convert(half, w, n);
}

static struct holmes_kernels table;

static void make_table(void)
{
    ref = holmes_kernels_find("ref");
    table = *ref; /* what has no activations stays */
    table.name = "ref-bf16";
    table.dtype = HOLMES_BFLOAT16;
    table.embedding_forward = embedding_forward;
    table.embedding_backward = embedding_backward;
    table.layernorm_forward = layernorm_forward;
    table.layernorm_backward = layernorm_backward;
    table.matmul_forward = matmul_forward;
    table.matmul_gelu_forward = matmul_gelu_forward;
    table.matmul_backward = matmul_backward;
    table.attention_forward = attention_forward;
    table.attention_backward = attention_backward;
    table.gelu_forward = gelu_forward;
    table.gelu_backward = gelu_backward;
    table.residual_forward = residual_forward;
    table.xent_stats = xent_stats;
    table.xent_backward = xent_backward;
    table.adamw = adamw;
    table.convert = convert;
}

const struct holmes_kernels *bf16_kernels(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_table);
    return &table;
}
