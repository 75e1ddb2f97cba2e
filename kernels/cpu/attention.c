/* Attention head by head, without a matrix of all scores in memory: rows are taken in blocks, and
 * a block walks over its columns in tiles that stay in the core's own cache, up to its last row,
 * so that little of the half above the diagonal is computed. Products by OpenBLAS, heads shared
 * out over the threads. */
#include "cpu.h"

#include <cblas.h>
#include <math.h>

#define TILE_ROWS 64
#define TILE_COLS 256

struct head {
    int T, width;
    int ld_qkv, ld_out;     /* distance of rows: 3C and C */
    float scale;            /* of the scores */
    const float *q, *k, *v; /* (T, width), ld_qkv */
    size_t out;             /* offset of the head's first element in arrays (B, T, C) */
};

/* On the stack of the thread that works on it. */
struct tile {
    float p[TILE_ROWS * TILE_COLS]; /* (rows, cols) */
};

static struct head head_at(const float *qkv, size_t index, int T, int C, int H)
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
        .out = b * (size_t)T * (size_t)C + h * (size_t)width,
    };
}

static inline int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Columns of a tile at `col` that row `row` looks at. */
static inline size_t seen(int row, int col, int cols)
{
    return row < col ? 0 : (size_t)min_int(row - col + 1, cols);
}

/* p (rows, cols) = q k' */
static void scores(const struct head *d, float *p, int row, int rows, int col, int cols)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, cols, d->width, 1,
                d->q + (size_t)row * d->ld_qkv, d->ld_qkv, d->k + (size_t)col * d->ld_qkv,
                d->ld_qkv, 0, p, cols);
}

/* Rows [row, row + rows) of the output: each tile's exponentials are relative to the largest score
 * so far, so that what was summed before is scaled down when a larger one comes. */
static void rows_forward(const struct head *d, float *out, float *lse, int row, int rows)
{
    struct tile tile;
    float max[TILE_ROWS], sum[TILE_ROWS];
    const int end = row + rows;

    for (int col = 0; col < end; col += TILE_COLS) {
        const int cols = min_int(end - col, TILE_COLS);

        scores(d, tile.p, row, rows, col, cols);
        for (int r = 0; r < rows; r++) {
            const size_t valid = seen(row + r, col, cols);
            float *p = tile.p + (size_t)r * cols;

            if (valid > 0) {
                const float here = d->scale * holmes_cpu_max(p, valid);
                const float new_max = col > 0 && max[r] > here ? max[r] : here;
                const float old = col > 0 ? expf(max[r] - new_max) : 0;

                if (col > 0 && old != 1)
                    holmes_cpu_scale(out + (size_t)r * d->ld_out, old, (size_t)d->width);
                sum[r] = (col > 0 ? old * sum[r] : 0) +
                         holmes_cpu_exponentials(p, p, d->scale, -new_max, valid);
                max[r] = new_max;
            }
            memset(p + valid, 0, ((size_t)cols - valid) * sizeof(float));
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d->width, cols, 1, tile.p,
                    cols, d->v + (size_t)col * d->ld_qkv, d->ld_qkv, col > 0, out, d->ld_out);
    }
    for (int r = 0; r < rows; r++) {
        holmes_cpu_scale(out + (size_t)r * d->ld_out, 1 / sum[r], (size_t)d->width);
        lse[r] = max[r] + logf(sum[r]);
    }
}

void holmes_cpu_attention_forward(void *out, float *lse, const void *qkv, int B, int T, int C,
                                  int H)
{
    const size_t heads = (size_t)B * (size_t)H;

#pragma omp parallel num_threads(holmes_cpu_threads_for(heads *(size_t)T *(size_t)T))
    {
        const struct cpu_range mine = cpu_my_range(heads, 1);

        for (size_t i = mine.first; i < mine.first + mine.count; i++) {
            const struct head d = head_at(qkv, i, T, C, H);

            for (int row = 0; row < T; row += TILE_ROWS)
                rows_forward(&d, (float *)out + d.out + (size_t)row * d.ld_out,
                             lse + i * (size_t)T + row, row, min_int(T - row, TILE_ROWS));
        }
    }
}

/* dp = scale p (dp - mean) */
CPU_CLONES
static void softmax_backward(float *restrict dp, const float *restrict p, float scale, float mean,
                             size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        dp[i] = scale * p[i] * (dp[i] - mean);
}

CPU_CLONES
static float dot(const float *a, const float *b, size_t n)
{
    float sum = 0;

#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

struct head_grads {
    float *dq, *dk, *dv; /* (T, width), ld_qkv */
};

/* What rows [row, row + rows) add to the gradients of the columns they look at, tile by tile. dout
 * and out start at the first of the rows. */
static void rows_backward(const struct head *d, const struct head_grads *g, const float *dout,
                          const float *out, const float *lse, int row, int rows)
{
    struct tile tile, dtile;
    float mean[TILE_ROWS]; /* sum(p dp) of each row */
    const int end = row + rows;

    for (int r = 0; r < rows; r++)
        mean[r] = dot(dout + (size_t)r * d->ld_out, out + (size_t)r * d->ld_out, (size_t)d->width);
    for (int col = 0; col < end; col += TILE_COLS) {
        const int cols = min_int(end - col, TILE_COLS);
        const size_t at = (size_t)col * d->ld_qkv;

        scores(d, tile.p, row, rows, col, cols);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, cols, d->width, 1, dout,
                    d->ld_out, d->v + at, d->ld_qkv, 0, dtile.p, cols);
        for (int r = 0; r < rows; r++) {
            const size_t valid = seen(row + r, col, cols), rest = (size_t)cols - valid;
            float *p = tile.p + (size_t)r * cols, *dp = dtile.p + (size_t)r * cols;

            holmes_cpu_exponentials(p, p, d->scale, -lse[r], valid);
            softmax_backward(dp, p, d->scale, mean[r], valid);
            memset(p + valid, 0, rest * sizeof(float));
            memset(dp + valid, 0, rest * sizeof(float));
        }
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, cols, d->width, rows, 1, tile.p, cols,
                    dout, d->ld_out, 1, g->dv + at, d->ld_qkv);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, cols, d->width, rows, 1, dtile.p, cols,
                    d->q + (size_t)row * d->ld_qkv, d->ld_qkv, 1, g->dk + at, d->ld_qkv);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d->width, cols, 1, dtile.p,
                    cols, d->k + at, d->ld_qkv, 1, g->dq + (size_t)row * d->ld_qkv, d->ld_qkv);
    }
}

size_t holmes_cpu_attention_scratch(int B, int T, int C, int H)
{
    (void)B, (void)T, (void)C, (void)H; /* tiles are on the threads' stacks */
    return 0;
}

void holmes_cpu_attention_backward(void *dqkv, void *scratch, const void *dout, const void *out,
                                   const float *lse, const void *qkv, int B, int T, int C, int H)
{
    const size_t heads = (size_t)B * (size_t)H;

    (void)scratch;
#pragma omp parallel num_threads(holmes_cpu_threads_for(heads *(size_t)T *(size_t)T))
    {
        const struct cpu_range mine = cpu_my_range(heads, 1);

        for (size_t i = mine.first; i < mine.first + mine.count; i++) {
            const struct head d = head_at(qkv, i, T, C, H);
            float *dq = (float *)dqkv + (d.q - (const float *)qkv);
            const struct head_grads g = {dq, dq + C, dq + 2 * (size_t)C};

            for (size_t t = 0; t < (size_t)T; t++)
                for (size_t part = 0; part < 3; part++)
                    memset(dq + (3 * t + part) * (size_t)C, 0, (size_t)d.width * sizeof(float));
            for (int row = 0; row < T; row += TILE_ROWS)
                rows_backward(&d, &g, (const float *)dout + d.out + (size_t)row * d.ld_out,
                              (const float *)out + d.out + (size_t)row * d.ld_out,
                              lse + i * (size_t)T + row, row, min_int(T - row, TILE_ROWS));
        }
    }
}
