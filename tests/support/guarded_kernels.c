#include "guarded_kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REGION_BYTES ((size_t)256 << 20) /* of addresses; pages come as they are used */
#define PAGE         ((size_t)4096)

/* Of one thread. Blocks are not used again: whoever keeps a pointer is caught. */
struct region {
    char *base;
    size_t used;
    int blocks; /* not freed yet; with the last one the region goes */
    bool open;
    struct region *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct region *regions;
static unsigned long calls;
static _Thread_local struct region *mine;
static const struct holmes_kernels *base; /* does the work */

static void fail(const char *what)
{
    fprintf(stderr, "guarded kernels: %s\n", what);
    abort();
}

static void protect(struct region *r, int how)
{
    if (r && r->used > 0 && mprotect(r->base, r->used, how) != 0)
        fail("mprotect");
}

static void set_open(bool open)
{
    pthread_mutex_lock(&lock);
    calls += open;
    if (mine)
        mine->open = open;
    protect(mine, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    pthread_mutex_unlock(&lock);
}

void guarded_open(bool open)
{
    if (open)
        pthread_mutex_lock(&lock);
    for (struct region *r = regions; r; r = r->next)
        if (!r->open)
            protect(r, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    if (!open)
        pthread_mutex_unlock(&lock);
}

bool guarded_has(const void *p)
{
    return mine && (const char *)p >= mine->base && (const char *)p < mine->base + mine->used;
}

unsigned long guarded_calls(void)
{
    unsigned long n;

    pthread_mutex_lock(&lock);
    n = calls;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Memory */

static struct region *region_create(void)
{
    struct region *r = calloc(1, sizeof *r);
    void *p =
        mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (!r || p == MAP_FAILED)
        fail("no memory");
    r->base = p;
    r->next = regions;
    regions = r;
    return r;
}

static void region_destroy(struct region *r)
{
    struct region **at = &regions;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    munmap(r->base, REGION_BYTES);
    free(r);
}

static void *guarded_alloc(size_t bytes)
{
    const size_t pages = (bytes + PAGE - 1) / PAGE * PAGE + PAGE; /* the last is nobody's */
    void *p = NULL;

    pthread_mutex_lock(&lock);
    if (!mine)
        mine = region_create();
    if (bytes <= REGION_BYTES && pages <= REGION_BYTES - mine->used) {
        p = mine->base + mine->used;
        mine->used += pages;
        mine->blocks++;
    }
    pthread_mutex_unlock(&lock);
    return p;
}

static void guarded_free(void *p)
{
    if (!p)
        return;
    if (!guarded_has(p))
        fail("free: memory of another thread, or of the host");
    pthread_mutex_lock(&lock);
    if (--mine->blocks == 0) {
        region_destroy(mine);
        mine = NULL;
    }
    pthread_mutex_unlock(&lock);
}

/* Calls */

static void check(const char *call, const char *argument, const void *p)
{
    char what[120];

    if (!p || guarded_has(p))
        return;
    snprintf(what, sizeof what, "%s: %s is not memory of the table", call, argument);
    fail(what);
}

#define OURS(p) check(__func__, #p, p)
#define CALL(call)                                                                                 \
    do {                                                                                           \
        set_open(true);                                                                            \
        base->call;                                                                                \
        set_open(false);                                                                           \
    } while (0)

/* Either side may be the host's. */
static void guarded_copy(void *to, const void *from, size_t bytes)
{
    if (!guarded_has(to) && !guarded_has(from))
        fail("copy: both sides are the host's");
    CALL(copy(to, from, bytes));
}

static void guarded_zero(void *p, size_t bytes)
{
    OURS(p);
    CALL(zero(p, bytes));
}

static void guarded_embedding_forward(void *out, const int32_t *tokens, const void *wte,
                                      const void *wpe, int B, int T, int C, int first, int V)
{
    OURS(out);
    OURS(tokens);
    OURS(wte);
    OURS(wpe);
    CALL(embedding_forward(out, tokens, wte, wpe, B, T, C, first, V));
}

static void guarded_embedding_backward(float *dwte, float *dwpe, const void *dout,
                                       const int32_t *tokens, int B, int T, int C, int first, int V)
{
    OURS(dwte);
    OURS(dwpe);
    OURS(dout);
    OURS(tokens);
    CALL(embedding_backward(dwte, dwpe, dout, tokens, B, T, C, first, V));
}

static void guarded_layernorm_forward(void *out, float *mean, float *rstd, const void *in,
                                      const void *weight, const void *bias, int N, int C)
{
    OURS(out);
    OURS(mean);
    OURS(rstd);
    OURS(in);
    OURS(weight);
    OURS(bias);
    CALL(layernorm_forward(out, mean, rstd, in, weight, bias, N, C));
}

static void guarded_layernorm_backward(void *din, float *dweight, float *dbias, const void *dout,
                                       const void *in, const float *mean, const float *rstd,
                                       const void *weight, int N, int C)
{
    OURS(din);
    OURS(dweight);
    OURS(dbias);
    OURS(dout);
    OURS(in);
    OURS(mean);
    OURS(rstd);
    OURS(weight);
    CALL(layernorm_backward(din, dweight, dbias, dout, in, mean, rstd, weight, N, C));
}

static void guarded_matmul_forward(void *out, const void *in, const void *weight, const void *bias,
                                   int N, int C, int OC)
{
    OURS(out);
    OURS(in);
    OURS(weight);
    OURS(bias);
    CALL(matmul_forward(out, in, weight, bias, N, C, OC));
}

static void guarded_matmul_gelu_forward(void *out, void *pre, const void *in, const void *weight,
                                        const void *bias, int N, int C, int OC)
{
    OURS(out);
    OURS(pre);
    OURS(in);
    OURS(weight);
    OURS(bias);
    CALL(matmul_gelu_forward(out, pre, in, weight, bias, N, C, OC));
}

static void guarded_matmul_backward(void *din, float *dweight, float *dbias, const void *dout,
                                    const void *in, const void *weight, int N, int C, int OC)
{
    OURS(din);
    OURS(dweight);
    OURS(dbias);
    OURS(dout);
    OURS(in);
    OURS(weight);
    CALL(matmul_backward(din, dweight, dbias, dout, in, weight, N, C, OC));
}

static void guarded_attention_forward(void *out, float *lse, const void *qkv, int B, int T, int C,
                                      int H)
{
    OURS(out);
    OURS(lse);
    OURS(qkv);
    CALL(attention_forward(out, lse, qkv, B, T, C, H));
}

static void guarded_attention_backward(void *dqkv, void *scratch, const void *dout, const void *out,
                                       const float *lse, const void *qkv, int B, int T, int C,
                                       int H)
{
    OURS(dqkv);
    OURS(scratch);
    OURS(dout);
    OURS(out);
    OURS(lse);
    OURS(qkv);
    CALL(attention_backward(dqkv, scratch, dout, out, lse, qkv, B, T, C, H));
}

static void guarded_gelu_forward(void *out, const void *in, size_t n)
{
    OURS(out);
    OURS(in);
    CALL(gelu_forward(out, in, n));
}

static void guarded_gelu_backward(void *din, const void *dout, const void *in, size_t n)
{
    OURS(din);
    OURS(dout);
    OURS(in);
    CALL(gelu_backward(din, dout, in, n));
}

static void guarded_residual_forward(void *out, const void *a, const void *b, const void *bias,
                                     int N, int C)
{
    OURS(out);
    OURS(a);
    OURS(b);
    OURS(bias);
    CALL(residual_forward(out, a, b, bias, N, C));
}

static void guarded_xent_stats(float *stats, const void *logits, const int32_t *targets, int N,
                               int V, int first)
{
    OURS(stats);
    OURS(logits);
    OURS(targets);
    CALL(xent_stats(stats, logits, targets, N, V, first));
}

static void guarded_xent_combine(double *loss, float *lse, const float *stats, int parts, int N)
{
    OURS(loss);
    OURS(lse);
    OURS(stats);
    CALL(xent_combine(loss, lse, stats, parts, N));
}

static void guarded_xent_backward(void *dlogits, const void *logits, const float *lse,
                                  const int32_t *targets, float scale, int N, int V, int first)
{
    OURS(dlogits);
    OURS(logits);
    OURS(lse);
    OURS(targets);
    CALL(xent_backward(dlogits, logits, lse, targets, scale, N, V, first));
}

static void guarded_adamw(float *w, void *real, float *m, float *v, const float *g, size_t n,
                          const struct holmes_adamw_step *step)
{
    OURS(w);
    OURS(real);
    OURS(m);
    OURS(v);
    OURS(g);
    CALL(adamw(w, real, m, v, g, n, step));
}

static void guarded_convert(void *real, const float *w, size_t n)
{
    OURS(real);
    OURS(w);
    CALL(convert(real, w, n));
}

static void guarded_sum_squares(double *sum, const float *x, size_t n)
{
    OURS(sum);
    OURS(x);
    CALL(sum_squares(sum, x, n));
}

const struct holmes_kernels *guarded_kernels(const struct holmes_kernels *of)
{
    static struct holmes_kernels table;

    pthread_mutex_lock(&lock);
    if (base && base != of)
        fail("another table is guarded");
    if (!base) {
        base = of;
        table = *base; /* what touches no memory stays */
        table.name = "guarded";
        table.alloc = guarded_alloc;
        table.free = guarded_free;
        table.copy = guarded_copy;
        table.zero = guarded_zero;
        table.embedding_forward = guarded_embedding_forward;
        table.embedding_backward = guarded_embedding_backward;
        table.layernorm_forward = guarded_layernorm_forward;
        table.layernorm_backward = guarded_layernorm_backward;
        table.matmul_forward = guarded_matmul_forward;
        table.matmul_gelu_forward = guarded_matmul_gelu_forward;
        table.matmul_backward = guarded_matmul_backward;
        table.attention_forward = guarded_attention_forward;
        table.attention_backward = guarded_attention_backward;
        table.gelu_forward = guarded_gelu_forward;
        table.gelu_backward = guarded_gelu_backward;
        table.residual_forward = guarded_residual_forward;
        table.xent_stats = guarded_xent_stats;
        table.xent_combine = guarded_xent_combine;
        table.xent_backward = guarded_xent_backward;
        table.adamw = guarded_adamw;
        table.convert = guarded_convert;
        table.sum_squares = guarded_sum_squares;
    }
    pthread_mutex_unlock(&lock);
    return &table;
}
