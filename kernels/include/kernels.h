/* Every layer of the GPT, forward and backward, behind one table of operations.
 *
 * Fillings: `ref`, plain C that reads like the paper and sums in double; `cpu`, OpenBLAS for GEMM
 * and vectorised, threaded loops for the rest. The same call on the same machine with the same
 * number of threads gives the same bits. No call allocates or fails (see `error`
 * for a device that does); every size is at least 1
 * unless it says otherwise; arguments overlap only where a comment allows it. Calls come from one
 * thread at a time. A table may queue its calls: they run in the order they were made, and their
 * results can be read by later calls of the table, by `copy`, or after `sync`.
 *
 * Letters: B sequences, T positions, C channels, H heads, V vocabulary, N = B*T rows, L layers.
 * Arrays are row major. `void *` ones hold numbers of the table's `dtype`: activations, their
 * gradients and the weights a layer computes with. Gradients of parameters, statistics, moments
 * and master weights are always float32. All arrays, tokens and sums too, live in memory of the
 * table's own `alloc`; ref and cpu take any host memory.
 *
 * A backward either writes or adds: gradients of parameters (dweight, dbias, dwte, dwpe) are added
 * to, those of activations are written unless the comment says "adds".
 *
 * Where ranks share a layer, each calls with its own part: C of attention is the width of its own
 * heads; `first` and V are its rows of the vocabulary, [first, first + V).
 */
#ifndef HOLMES_KERNELS_H
#define HOLMES_KERNELS_H

#include "dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One AdamW step; see `adamw` below. */
struct holmes_adamw_step {
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale;               /* gradients are multiplied by it first */
    float correction1, correction2; /* 1 - beta1^t, 1 - beta2^t */
};

struct holmes_kernels {
    const char *name;
    enum holmes_dtype dtype; /* of `void *` arrays; HOLMES_FLOAT32 for ref and cpu */

    /* `bytes` of zeroed memory, 64-byte aligned; NULL when there is none. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *p); /* NULL is fine */
    void (*zero)(void *p, size_t bytes);
    /* Either side may be host memory or memory from alloc. Queued like any call between memory of
     * the table; done when it returns where a side is host memory. */
    void (*copy)(void *to, const void *from, size_t bytes);
    /* Waits for every call made before. */
    void (*sync)(void);
    /* Calls that wait for the queue (`sync`, a copy to the host, any other when much is queued) ask
     * look(ctx) meanwhile, every few milliseconds: nonzero when what the queue stands still for
     * will not come. They give up then, which is an error; later calls do nothing. NULL: nobody is
     * asked. Does nothing where calls are done when they return. */
    void (*on_wait)(int (*look)(void *ctx), void *ctx);
    /* The queue that calls go to (a cudaStream_t), for communication that is to run in its order;
     * NULL where calls are done when they return. */
    void *(*stream)(void);
    /* What went wrong with a call since the table was opened, as a sentence; NULL: nothing, which
     * after `sync`, or a `copy` to the host, is known for every call made before. What such calls
     * wrote is then worth nothing. Tables on the host return NULL always. */
    const char *(*error)(void);

    /* out[b,t] = wte[tokens[b,t]] + wpe[t], where a token outside [first, first + V) has no row
     * and adds nothing. out (B, T, C); tokens (B, T), 0 or more; wte (V, C); wpe (T, C), or NULL:
     * nothing is added */
    void (*embedding_forward)(void *out, const int32_t *tokens, const void *wte, const void *wpe,
                              int B, int T, int C, int first, int V);
    /* dwpe as wpe: NULL when there is none. */
    void (*embedding_backward)(float *dwte, float *dwpe, const void *dout, const int32_t *tokens,
                               int B, int T, int C, int first, int V);

    /* out = (in - mean) * rstd * weight + bias, row by row; eps 1e-5 (Ba et al., "Layer
     * Normalization", 2016). out, in (N, C); mean, rstd (N); weight, bias (C) */
    void (*layernorm_forward)(void *out, float *mean, float *rstd, const void *in,
                              const void *weight, const void *bias, int N, int C);
    /* Adds to din, which in a pre-norm block already holds the gradient of the residual. */
    void (*layernorm_backward)(void *din, float *dweight, float *dbias, const void *dout,
                               const void *in, const float *mean, const float *rstd,
                               const void *weight, int N, int C);

    /* out = in weight' + bias. out (N, OC); in (N, C); weight (OC, C); bias (OC) or NULL */
    void (*matmul_forward)(void *out, const void *in, const void *weight, const void *bias, int N,
                           int C, int OC);
    /* pre = in weight' + bias, out = gelu(pre): matmul_forward and gelu_forward in one pass over
     * memory. pre, out (N, OC); backward is gelu_backward, then matmul_backward */
    void (*matmul_gelu_forward)(void *out, void *pre, const void *in, const void *weight,
                                const void *bias, int N, int C, int OC);
    /* dbias as bias: NULL when there is none. din (N, C); dout (N, OC) */
    void (*matmul_backward)(void *din, float *dweight, float *dbias, const void *dout,
                            const void *in, const void *weight, int N, int C, int OC);

    /* Causal multi-head attention (Vaswani et al., "Attention Is All You Need", 2017), scores
     * scaled by 1/sqrt(C/H), without a matrix of all scores in memory (Dao et al.,
     * "FlashAttention", 2022): a row keeps the logarithm of its sum of exponentials.
     * out (B, T, C); lse (B, H, T), kept for backward with out; qkv (B, T, 3C): query, key, value,
     * each H heads of C/H */
    void (*attention_forward)(void *out, float *lse, const void *qkv, int B, int T, int C, int H);
    /* Bytes that `scratch` of attention_backward must have, 0: none is needed. */
    size_t (*attention_scratch)(int B, int T, int C, int H);
    /* dqkv (B, T, 3C); dout (B, T, C); scratch: memory of the table, contents undefined after */
    void (*attention_backward)(void *dqkv, void *scratch, const void *dout, const void *out,
                               const float *lse, const void *qkv, int B, int T, int C, int H);

    /* tanh form (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016), n elements.
     * din may be dout. */
    void (*gelu_forward)(void *out, const void *in, size_t n);
    void (*gelu_backward)(void *din, const void *dout, const void *in, size_t n);

    /* out = a + b + bias; out may be a or b. out, a, b (N, C); bias (C) or NULL */
    void (*residual_forward)(void *out, const void *a, const void *b, const void *bias, int N,
                             int C);

    /* Cross entropy of the softmax over a vocabulary that ranks may share, in three steps.
     * First, each rank over its own columns: stats (3, N): the row's largest logit, its sum of
     * e^(logit - largest), and the target's logit, 0 where the target is another rank's.
     * logits (N, V); targets (N) in the whole vocabulary */
    void (*xent_stats)(float *stats, const void *logits, const int32_t *targets, int N, int V,
                       int first);
    /* Then from the stats of all parts, (parts, 3, N): lse (N), the logarithm of the sum of
     * e^logit over the whole row, and *loss += the sum over rows of lse - target's logit, in
     * nats. *loss is in memory of the table. */
    void (*xent_combine)(double *loss, float *lse, const float *stats, int parts, int N);
    /* dlogits = scale * (e^(logits - lse) - onehot(targets)); dlogits may be logits. */
    void (*xent_backward)(void *dlogits, const void *logits, const float *lse,
                          const int32_t *targets, float scale, int N, int V, int first);

    /* One step of AdamW on n elements, n may be 0. w, m, v are updated:
     *   g' = grad_scale g;  m = beta1 m + (1-beta1) g';  v = beta2 v + (1-beta2) g'^2
     *   w -= lr (m/correction1 / (sqrt(v/correction2) + eps) + weight_decay w)
     * `real`, unless NULL, is written from the new w: the weights to compute with. Each element's
     * result does not depend on its place in the array: two copies of a tensor stay equal bit for
     * bit. */
    void (*adamw)(float *w, void *real, float *m, float *v, const float *g, size_t n,
                  const struct holmes_adamw_step *step);
    /* real = w, rounded to nearest: n weights to compute with from their masters. n may be 0;
     * real may be w where dtype is float32. */
    void (*convert)(void *real, const float *w, size_t n);

    /* *sum += the sum of x[i]^2 in double, n may be 0: sums over the parts of an array add up to
     * the sum over the whole within a few double roundings. *sum is in memory of the table. */
    void (*sum_squares)(double *sum, const float *x, size_t n);
};

/* The table of that name ("ref", "cpu"; NULL: the fastest built in) or NULL when there is none. */
const struct holmes_kernels *holmes_kernels_find(const char *name);
/* The same, and also tables that need a GPU ("cuda": float32, "cuda-bf16"), which are a library of
 * their own, libholmes-kernels-cuda.so, opened here. local_rank: how many ranks of the job on this
 * machine come before this one; it says which GPU is taken, for the life of the process. NULL with
 * a sentence in `why` when there is no such table, library or GPU. */
const struct holmes_kernels *holmes_kernels_open(const char *name, int local_rank, char *why,
                                                 size_t why_size);
/* What memory is predicted with: of the table of that name, `name`, `dtype` and attention_scratch
 * may be used, and free of NULL. Needs no GPU and opens nothing. NULL when there is no such table.
 */
const struct holmes_kernels *holmes_kernels_sizes(const char *name);
/* Whether that is a name that holmes_kernels_open knows; opens nothing. */
bool holmes_kernels_known(const char *name);
/* Comma-separated names of all tables, for messages. */
const char *holmes_kernels_names(void);

/* Threads that calls may use, OpenMP's and OpenBLAS's; 1 until set. Values below 1 count as 1. Call
 * it between calls of the table, from the thread that makes them. `ref` has one thread. */
void holmes_kernels_set_threads(int threads);

#endif
