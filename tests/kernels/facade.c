/* Arrays that one call mentions more than once are one array on the other side too. */
#include "facade.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define ARRAYS_MAX 12

enum kind { REAL, RAW }; /* of the table's type, or the same on both sides */

struct mirror {
    void *host, *base, *device; /* device lies in base */
    size_t n, size;             /* elements, and bytes of one */
    enum kind kind;
};

static struct {
    const struct holmes_kernels *k;
    size_t shift;
    struct mirror arrays[ARRAYS_MAX];
    int count;
} facade;

static uint16_t bf16_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bf16_value(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

void facade_round(const struct holmes_kernels *device, float *x, size_t n)
{
    for (size_t i = 0; i < n && device->dtype == HOLMES_BFLOAT16; i++)
        x[i] = bf16_value(bf16_bits(x[i]));
}

static bool converted(const struct mirror *m)
{
    return m->kind == REAL && facade.k->dtype == HOLMES_BFLOAT16;
}

static void bring(const struct mirror *m)
{
    uint16_t *half;

    if (!converted(m)) {
        facade.k->copy(m->device, m->host, m->n * m->size);
        return;
    }
    half = malloc(m->n * sizeof *half + 1);
    cr_assert_not_null(half);
    for (size_t i = 0; i < m->n; i++)
        half[i] = bf16_bits(((float *)m->host)[i]);
    facade.k->copy(m->device, half, m->n * sizeof *half);
    free(half);
}

static void fetch(const struct mirror *m)
{
    uint16_t *half;

    if (!converted(m)) {
        facade.k->copy(m->host, m->device, m->n * m->size);
        return;
    }
    half = malloc(m->n * sizeof *half + 1);
    cr_assert_not_null(half);
    facade.k->copy(half, m->device, m->n * sizeof *half);
    for (size_t i = 0; i < m->n; i++)
        ((float *)m->host)[i] = bf16_value(half[i]);
    free(half);
}

static void *mirror(const void *host, size_t n, size_t size, enum kind kind)
{
    struct mirror *m = &facade.arrays[facade.count];
    size_t shift;

    if (!host)
        return NULL;
    for (int i = 0; i < facade.count; i++)
        if (facade.arrays[i].host == host)
            return facade.arrays[i].device;
    cr_assert_lt(facade.count++, ARRAYS_MAX);
    *m = (struct mirror){.host = (void *)(uintptr_t)host, .n = n, .size = size, .kind = kind};
    if (converted(m))
        m->size = sizeof(uint16_t);
    shift = size > 1 ? facade.shift : 0; /* bytes are scratch, which is memory of `alloc` */
    m->base = facade.k->alloc((n + shift) * m->size);
    cr_assert_not_null(m->base);
    m->device = (char *)m->base + shift * m->size;
    bring(m);
    return m->device;
}

static void *real(const void *host, size_t n)
{
    return mirror(host, n, sizeof(float), REAL);
}

static void *raw(const void *host, size_t n)
{
    return mirror(host, n, sizeof(float), RAW);
}

/* After the call. Arrays that it only read come back as they were, rounded to the table's type;
 * tests compare outputs and gradients, and inputs are rounded already. */
static void finish(void)
{
    facade.k->sync();
    cr_assert_null(facade.k->error(), "%s", facade.k->error());
    for (int i = 0; i < facade.count; i++) {
        fetch(&facade.arrays[i]);
        facade.k->free(facade.arrays[i].base);
    }
    cr_assert_null(facade.k->error(), "%s", facade.k->error());
    facade.count = 0;
}

static size_t area(int a, int b)
{
    return (size_t)a * (size_t)b;
}

static void *host_alloc(size_t bytes)
{
    return calloc(1, bytes + 1);
}

static void host_zero(void *p, size_t bytes)
{
    memset(p, 0, bytes);
}

static void host_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static void host_sync(void)
{
}

static void embedding_forward(void *out, const int32_t *tokens, const void *wte, const void *wpe,
                              int B, int T, int C, int first, int V)
{
    const size_t N = area(B, T);

    facade.k->embedding_forward(real(out, N * C), raw(tokens, N), real(wte, area(V, C)),
                                real(wpe, area(T, C)), B, T, C, first, V);
    finish();
}

static void embedding_backward(float *dwte, float *dwpe, const void *dout, const int32_t *tokens,
                               int B, int T, int C, int first, int V)
{
    const size_t N = area(B, T);

    facade.k->embedding_backward(raw(dwte, area(V, C)), raw(dwpe, area(T, C)), real(dout, N * C),
                                 raw(tokens, N), B, T, C, first, V);
    finish();
}

static void layernorm_forward(void *out, float *mean, float *rstd, const void *in,
                              const void *weight, const void *bias, int N, int C)
{
    facade.k->layernorm_forward(real(out, area(N, C)), raw(mean, N), raw(rstd, N),
                                real(in, area(N, C)), real(weight, C), real(bias, C), N, C);
    finish();
}

static void layernorm_backward(void *din, float *dweight, float *dbias, const void *dout,
                               const void *in, const float *mean, const float *rstd,
                               const void *weight, int N, int C)
{
    facade.k->layernorm_backward(real(din, area(N, C)), raw(dweight, C), raw(dbias, C),
                                 real(dout, area(N, C)), real(in, area(N, C)), raw(mean, N),
                                 raw(rstd, N), real(weight, C), N, C);
    finish();
}

static void matmul_forward(void *out, const void *in, const void *weight, const void *bias, int N,
                           int C, int OC)
{
    facade.k->matmul_forward(real(out, area(N, OC)), real(in, area(N, C)),
                             real(weight, area(OC, C)), real(bias, OC), N, C, OC);
    finish();
}

static void matmul_gelu_forward(void *out, void *pre, const void *in, const void *weight,
                                const void *bias, int N, int C, int OC)
{
    facade.k->matmul_gelu_forward(real(out, area(N, OC)), real(pre, area(N, OC)),
                                  real(in, area(N, C)), real(weight, area(OC, C)), real(bias, OC),
                                  N, C, OC);
    finish();
}

static void matmul_backward(void *din, float *dweight, float *dbias, const void *dout,
                            const void *in, const void *weight, int N, int C, int OC)
{
    facade.k->matmul_backward(real(din, area(N, C)), raw(dweight, area(OC, C)), raw(dbias, OC),
                              real(dout, area(N, OC)), real(in, area(N, C)),
                              real(weight, area(OC, C)), N, C, OC);
    finish();
}

static void attention_forward(void *out, float *lse, const void *qkv, int B, int T, int C, int H)
{
    const size_t N = area(B, T);

    facade.k->attention_forward(real(out, N * C), raw(lse, N * H), real(qkv, 3 * N * C), B, T, C,
                                H);
    finish();
}

static size_t attention_scratch(int B, int T, int C, int H)
{
    return facade.k->attention_scratch(B, T, C, H);
}

static void attention_backward(void *dqkv, void *scratch, const void *dout, const void *out,
                               const float *lse, const void *qkv, int B, int T, int C, int H)
{
    const size_t N = area(B, T);

    facade.k->attention_backward(
        real(dqkv, 3 * N * C), mirror(scratch, facade.k->attention_scratch(B, T, C, H), 1, RAW),
        real(dout, N * C), real(out, N * C), raw(lse, N * H), real(qkv, 3 * N * C), B, T, C, H);
    finish();
}

static void gelu_forward(void *out, const void *in, size_t n)
{
    facade.k->gelu_forward(real(out, n), real(in, n), n);
    finish();
}

static void gelu_backward(void *din, const void *dout, const void *in, size_t n)
{
    facade.k->gelu_backward(real(din, n), real(dout, n), real(in, n), n);
    finish();
}

static void residual_forward(void *out, const void *a, const void *b, const void *bias, int N,
                             int C)
{
    facade.k->residual_forward(real(out, area(N, C)), real(a, area(N, C)), real(b, area(N, C)),
                               real(bias, C), N, C);
    finish();
}

static void xent_stats(float *stats, const void *logits, const int32_t *targets, int N, int V,
                       int first)
{
    facade.k->xent_stats(raw(stats, area(3, N)), real(logits, area(N, V)), raw(targets, N), N, V,
                         first);
    finish();
}

static void xent_combine(double *loss, float *lse, const float *stats, int parts, int N)
{
    facade.k->xent_combine(mirror(loss, 1, sizeof *loss, RAW), raw(lse, N),
                           raw(stats, 3 * area(parts, N)), parts, N);
    finish();
}

static void xent_backward(void *dlogits, const void *logits, const float *lse,
                          const int32_t *targets, float scale, int N, int V, int first)
{
    facade.k->xent_backward(real(dlogits, area(N, V)), real(logits, area(N, V)), raw(lse, N),
                            raw(targets, N), scale, N, V, first);
    finish();
}

static void adamw(float *w, void *to, float *m, float *v, const float *g, size_t n,
                  const struct holmes_adamw_step *step)
{
    facade.k->adamw(raw(w, n), real(to, n), raw(m, n), raw(v, n), raw(g, n), n, step);
    finish();
}

static void convert(void *to, const float *w, size_t n)
{
    facade.k->convert(real(to, n), raw(w, n), n);
    finish();
}

static void sum_squares(double *sum, const float *x, size_t n)
{
    facade.k->sum_squares(mirror(sum, 1, sizeof *sum, RAW), raw(x, n), n);
    finish();
}

const struct holmes_kernels *facade_of(const struct holmes_kernels *device, size_t shift)
{
    static struct holmes_kernels k;

    facade.k = device;
    facade.shift = shift;
    k = (struct holmes_kernels){
        .name = device->name,
        .alloc = host_alloc,
        .free = free,
        .zero = host_zero,
        .copy = host_copy,
        .sync = host_sync,
        .on_wait = device->on_wait,
        .stream = device->stream,
        .error = device->error,
        .embedding_forward = embedding_forward,
        .embedding_backward = embedding_backward,
        .layernorm_forward = layernorm_forward,
        .layernorm_backward = layernorm_backward,
        .matmul_forward = matmul_forward,
        .matmul_gelu_forward = matmul_gelu_forward,
        .matmul_backward = matmul_backward,
        .attention_forward = attention_forward,
        .attention_scratch = attention_scratch,
        .attention_backward = attention_backward,
        .gelu_forward = gelu_forward,
        .gelu_backward = gelu_backward,
        .residual_forward = residual_forward,
        .xent_stats = xent_stats,
        .xent_combine = xent_combine,
        .xent_backward = xent_backward,
        .adamw = adamw,
        .convert = convert,
        .sum_squares = sum_squares,
    };
    return &k;
}
