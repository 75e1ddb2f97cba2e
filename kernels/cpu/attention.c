/* Attention head by head: the products by OpenBLAS, heads shared out over the threads. Rows are
 * taken in blocks, and a block multiplies only the columns up to its last row, so that little of
 * the half above the diagonal is computed. */
#include "cpu.h"

#include <cblas.h>
#include <math.h>

#define ATTENTION_BLOCK 64

struct head {
    int T, width;
    int ld_qkv, ld_out;     /* distance of rows: 3C and C */
    float scale;            /* of the scores */
    const float *q, *k, *v; /* (T, width), ld_qkv */
    const float *probs;     /* (T, T) */
};

static struct head head_at(const float *qkv, const float *probs, size_t index, int T, int C, int H)
{
    const size_t b = index / (size_t)H, h = index % (size_t)H;
    const int width = C / H;
    const float *q = qkv + b * (size_t)T * 3 * (size_t)C + h * (size_t)width;

    return (struct head){
        .T = T,
        .width = width,
        .ld_qkv = 3 * C,
        .ld_out = C,
        .scale = 1 / sqrtf((float)width),
        .q = q,
        .k = q + C,
        .v = q + 2 * (size_t)C,
        .probs = probs + index * (size_t)T * (size_t)T,
    };
}

/* Offset of the head's first element in an array (B, T, C). */
static size_t head_out(const struct head *d, size_t index, int H)
{
    const size_t b = index / (size_t)H, h = index % (size_t)H;

    return b * (size_t)d->T * (size_t)d->ld_out + h * (size_t)d->width;
}

static int block_first(int T)
{
    return (T - 1) / ATTENTION_BLOCK * ATTENTION_BLOCK; /* of the last block */
}

static void head_forward(const struct head *d, float *out, float *probs)
{
    const size_t T = (size_t)d->T;

    for (int i = 0; i < d->T; i += ATTENTION_BLOCK) {
        const int rows = d->T - i < ATTENTION_BLOCK ? d->T - i : ATTENTION_BLOCK;
        const int cols = i + rows;
        float *p = probs + (size_t)i * T;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, cols, d->width, 1,
                    d->q + (size_t)i * d->ld_qkv, d->ld_qkv, d->k, d->ld_qkv, 0, p, d->T);
        for (size_t r = 0; r < (size_t)rows; r++) {
            const size_t valid = (size_t)i + r + 1;

            holmes_cpu_softmax(p + r * T, p + r * T, d->scale, valid);
            memset(p + r * T + valid, 0, (T - valid) * sizeof(float));
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d->width, cols, 1, p, d->T,
                    d->v, d->ld_qkv, 0, out + (size_t)i * d->ld_out, d->ld_out);
    }
}

void holmes_cpu_attention_forward(float *out, float *probs, const float *qkv, int B, int T, int C,
                                  int H)
{
    const size_t heads = (size_t)B * (size_t)H;

#pragma omp parallel num_threads(holmes_cpu_threads_for(heads *(size_t)T *(size_t)T))
    {
        const struct cpu_range r = cpu_my_range(heads, 1);

        for (size_t i = r.first; i < r.first + r.count; i++) {
            const struct head d = head_at(qkv, probs, i, T, C, H);

            head_forward(&d, out + head_out(&d, i, H), probs + i * (size_t)T * (size_t)T);
        }
    }
}

/* dx = scale p (dp - sum(p dp)), in place over dp */
CPU_CLONES
static void softmax_backward(float *restrict dp, const float *restrict p, float scale, size_t n)
{
    float mean = 0;

#pragma omp simd reduction(+ : mean)
    for (size_t i = 0; i < n; i++)
        mean += p[i] * dp[i];
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        dp[i] = scale * p[i] * (dp[i] - mean);
}

static void head_backward(const struct head *d, const float *dout, float *dprobs, float *dq,
                          float *dk, float *dv)
{
    const size_t T = (size_t)d->T;
    float beta = 0; /* the last block has every column, so it writes dk and dv and others add */

    for (int i = block_first(d->T); i >= 0; i -= ATTENTION_BLOCK, beta = 1) {
        const int rows = d->T - i < ATTENTION_BLOCK ? d->T - i : ATTENTION_BLOCK;
        const int cols = i + rows;
        const float *p = d->probs + (size_t)i * T;
        const float *dy = dout + (size_t)i * d->ld_out;
        float *dp = dprobs + (size_t)i * T;

        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, cols, d->width, rows, 1, p, d->T, dy,
                    d->ld_out, beta, dv, d->ld_qkv);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, cols, d->width, 1, dy, d->ld_out,
                    d->v, d->ld_qkv, 0, dp, d->T);
        for (size_t r = 0; r < (size_t)rows; r++) {
            const size_t valid = (size_t)i + r + 1;

            softmax_backward(dp + r * T, p + r * T, d->scale, valid);
            memset(dp + r * T + valid, 0, ((size_t)cols - valid) * sizeof(float));
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d->width, cols, 1, dp, d->T,
                    d->k, d->ld_qkv, 0, dq + (size_t)i * d->ld_qkv, d->ld_qkv);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, cols, d->width, rows, 1, dp, d->T,
                    d->q + (size_t)i * d->ld_qkv, d->ld_qkv, beta, dk, d->ld_qkv);
    }
}

void holmes_cpu_attention_backward(float *dqkv, float *dprobs, const float *dout,
                                   const float *probs, const float *qkv, int B, int T, int C, int H)
{
    const size_t heads = (size_t)B * (size_t)H;

#pragma omp parallel num_threads(holmes_cpu_threads_for(heads *(size_t)T *(size_t)T))
    {
        const struct cpu_range r = cpu_my_range(heads, 1);

        for (size_t i = r.first; i < r.first + r.count; i++) {
            const struct head d = head_at(qkv, probs, i, T, C, H);
            float *dq = dqkv + (d.q - qkv);

            head_backward(&d, dout + head_out(&d, i, H), dprobs + i * (size_t)T * (size_t)T, dq,
                          dq + C, dq + 2 * (size_t)C);
        }
    }
}
