/* Every layer of the GPT, forward and backward, behind one table of operations.
 *
 * Fillings: `ref`, plain C that reads like the paper and sums in double; `cpu`, OpenBLAS for GEMM
 * and vectorised, threaded loops for the rest. The same call on the same machine with the same
 * number of threads gives the same bits. No call fails, blocks on anything but its own threads, or
 * allocates; every size is at least 1 unless it says otherwise; arguments overlap only where a
 * comment allows it. Calls come from one thread at a time.
 *
 * Letters: B sequences, T positions, C channels, H heads, V vocabulary, N = B*T rows, L layers.
 * Arrays are float32, row major. All of them, tokens too, live in memory of the table's own
 * `alloc`; ref and cpu take any host memory.
 *
 * A backward either writes or adds: gradients of parameters (dweight, dbias, dwte, dwpe) are added
 * to, those of activations are written unless the comment says "adds".
 */
#ifndef HOLMES_KERNELS_H
#define HOLMES_KERNELS_H

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

    /* `bytes` of zeroed memory, 64-byte aligned; NULL when there is none. */
    void *(*alloc)(size_t bytes);
    void (*free)(void *p); /* NULL is fine */
    void (*zero)(void *p, size_t bytes);
    /* Either side may be host memory or memory from alloc; done when it returns. */
    void (*copy)(void *to, const void *from, size_t bytes);

    /* out[b,t] = wte[tokens[b,t]] + wpe[t].
     * out (B, T, C); tokens (B, T) in [0, V); wte (V, C); wpe (T, C) */
    void (*embedding_forward)(float *out, const int32_t *tokens, const float *wte, const float *wpe,
                              int B, int T, int C);
    void (*embedding_backward)(float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                               int B, int T, int C);

    /* out = (in - mean) * rstd * weight + bias, row by row; eps 1e-5 (Ba et al., "Layer
     * Normalization", 2016). out, in (N, C); mean, rstd (N); weight, bias (C) */
    void (*layernorm_forward)(float *out, float *mean, float *rstd, const float *in,
                              const float *weight, const float *bias, int N, int C);
    /* Adds to din, which in a pre-norm block already holds the gradient of the residual. */
    void (*layernorm_backward)(float *din, float *dweight, float *dbias, const float *dout,
                               const float *in, const float *mean, const float *rstd,
                               const float *weight, int N, int C);

    /* out = in weight' + bias. out (N, OC); in (N, C); weight (OC, C); bias (OC) or NULL */
    void (*matmul_forward)(float *out, const float *in, const float *weight, const float *bias,
                           int N, int C, int OC);
    /* dbias as bias: NULL when there is none. din (N, C); dout (N, OC) */
    void (*matmul_backward)(float *din, float *dweight, float *dbias, const float *dout,
                            const float *in, const float *weight, int N, int C, int OC);

    /* Causal multi-head attention (Vaswani et al., "Attention Is All You Need", 2017), scores
     * scaled by 1/sqrt(C/H). out (B, T, C); probs (B, H, T, T), kept for backward, zero above the
     * diagonal; qkv (B, T, 3C): query, key, value, each H heads of C/H */
    void (*attention_forward)(float *out, float *probs, const float *qkv, int B, int T, int C,
                              int H);
    /* dqkv (B, T, 3C); dout (B, T, C); dprobs (B, H, T, T): scratch, contents undefined after */
    void (*attention_backward)(float *dqkv, float *dprobs, const float *dout, const float *probs,
                               const float *qkv, int B, int T, int C, int H);

    /* tanh form (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016), n elements.
     * din may be dout. */
    void (*gelu_forward)(float *out, const float *in, size_t n);
    void (*gelu_backward)(float *din, const float *dout, const float *in, size_t n);

    /* out = a + b, n elements; out may be a or b. */
    void (*residual_forward)(float *out, const float *a, const float *b, size_t n);

    /* Softmax over V, then the cross entropy of each row's target: returns the sum over the N rows,
     * in nats. probs, logits (N, V), probs may be logits; targets (N) in [0, V) */
    double (*xent_forward)(float *probs, const float *logits, const int32_t *targets, int N, int V);
    /* dlogits = scale * (probs - onehot(targets)); dlogits may be probs. */
    void (*xent_backward)(float *dlogits, const float *probs, const int32_t *targets, float scale,
                          int N, int V);

    /* One step of AdamW on n elements, n may be 0. w, m, v are updated:
     *   g' = grad_scale g;  m = beta1 m + (1-beta1) g';  v = beta2 v + (1-beta2) g'^2
     *   w -= lr (m/correction1 / (sqrt(v/correction2) + eps) + weight_decay w)
     * Each element's result does not depend on its place in the array: two copies of a tensor stay
     * equal bit for bit. */
    void (*adamw)(float *w, float *m, float *v, const float *g, size_t n,
                  const struct holmes_adamw_step *step);

    /* Sum of x[i]^2 in double, n may be 0: sums over the parts of an array add up to the sum over
     * the whole within a few double roundings. */
    double (*sum_squares)(const float *x, size_t n);
};

/* The table of that name ("ref", "cpu"; NULL: the fastest built in) or NULL when there is none. */
const struct holmes_kernels *holmes_kernels_find(const char *name);
/* Comma-separated names of the tables built in, for messages. */
const char *holmes_kernels_names(void);

/* Threads that calls may use, OpenMP's and OpenBLAS's; 1 until set. Values below 1 count as 1. Call
 * it between calls of the table, from the thread that makes them. `ref` has one thread. */
void holmes_kernels_set_threads(int threads);

#endif
