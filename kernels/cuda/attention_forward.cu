/* Attention, forward: a block has some rows of queries and walks over the keys before them, with
 * the running maximum and sum of each row. */
#include "attention.cuh"

#include <math.h>

#define COLS (TILE / FRAGMENT_COLS)

/* Of a lane's two rows. */
struct softmax_rows {
    float max[2], sum[2];
};

/* s becomes e^(scale s - new maximum), zero where key > query; `out` follows the maximum. */
template <int n>
__device__ static void softmax_step(struct softmax_rows *rows, float s[COLS][4], float out[n][4],
                                    float scale, int query, int key, int length)
{
    const int t = (int)threadIdx.x % 4 * 2;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = rows->max[half], sum = 0;

#pragma unroll
        for (int j = 0; j < COLS; j++) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                const int k = key + j * FRAGMENT_COLS + t + i % 2;

                s[j][i] = k <= query + 8 * half && k < length ? scale * s[j][i] : -INFINITY;
                max = fmaxf(max, s[j][i]);
            }
        }
        max = row_max(max);

        /* The first key is seen by every row, so that max is finite from the first tile on. */
        const float shrink = expf(rows->max[half] - max);
#pragma unroll
        for (int j = 0; j < COLS; j++) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[j][i] = expf(s[j][i] - max);
                sum += s[j][i];
            }
        }
        rows->sum[half] = rows->sum[half] * shrink + row_sum(sum);
        rows->max[half] = max;
#pragma unroll
        for (int j = 0; j < n; j++) {
            out[j][2 * half] *= shrink;
            out[j][2 * half + 1] *= shrink;
        }
    }
}

/* grid: (rows of queries, B * H) */
template <typename T, int D>
__global__ void __launch_bounds__(attention_tile<T, D>::threads)
    attention_forward_kernel(T *out, float *lse, const T *qkv, int length, int C, int H)
{
    using tile = attention_tile<T, D>;
    DYNAMIC_SHARED(memory);
    T *const queries = (T *)memory, *const keys = queries + tile::rows * tile::stride;
    T *const values = keys + TILE * tile::stride, *const probs = values + TILE * tile::stride;
    const struct head d = head_at((int)blockIdx.y, length, C, H);
    const T *q = qkv + d.qkv, *k = q + C, *v = k + C;
    const size_t apart = (size_t)3 * C;
    const int warp = (int)threadIdx.x / WARP, g = (int)threadIdx.x % WARP / 4;
    /* The last rows, which have most to do, come first. */
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * tile::rows;
    const int mine = first + warp * FRAGMENT_ROWS;
    const int end = first + tile::rows < length ? first + tile::rows : length;
    const float scale = rsqrtf((float)d.width);
    T *const own = probs + warp * FRAGMENT_ROWS * tile::score_stride;
    struct softmax_rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[D / FRAGMENT_COLS][4] = {};

    load_tile<tile::rows, D, tile::stride>(queries, q, apart, first, length, d.width);
    for (int key = 0; key < end; key += TILE) {
        float s[COLS][4] = {};

        __syncthreads(); /* the tile before has been used */
        load_tile<TILE, D, tile::stride>(keys, k, apart, key, length, d.width);
        load_tile<TILE, D, tile::stride>(values, v, apart, key, length, d.width);
        __syncthreads();
        if (key >= mine + FRAGMENT_ROWS)
            continue; /* this warp's rows see none of these keys */
        warp_product<D, COLS, BY_COLUMN>(s, queries + warp * FRAGMENT_ROWS * tile::stride,
                                         tile::stride, keys, tile::stride);
        softmax_step<D / FRAGMENT_COLS>(&rows, s, o, scale, mine + g, key, length);
        store_fragments<COLS>(own, tile::score_stride, s);
        warp_product<TILE, D / FRAGMENT_COLS, BY_ROW>(o, own, tile::score_stride, values,
                                                      tile::stride);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = mine + g + 8 * half;
        const float share = 1 / rows.sum[half];

#pragma unroll
        for (int j = 0; j < D / FRAGMENT_COLS; j++) {
            o[j][2 * half] *= share;
            o[j][2 * half + 1] *= share;
        }
        if (threadIdx.x % 4 == 0 && row < length)
            lse[d.row + row] = rows.max[half] + logf(rows.sum[half]);
    }
    write_fragments<D / FRAGMENT_COLS>(out + d.out, (size_t)C, mine, length, d.width, o, 1);
}

template <typename T> struct forward_call {
    T *out;
    float *lse;
    const T *qkv;
    int B, length, C, H;

    template <int D> void run(void)
    {
        using tile = attention_tile<T, D>;
        const dim3 grid(ceil_div((size_t)length, tile::rows), (unsigned)(B * H));

        allow_shared("attention_forward", attention_forward_kernel<T, D>, tile::bytes);
        launch("attention_forward", attention_forward_kernel<T, D>, grid, tile::threads,
               tile::bytes, out, lse, qkv, length, C, H);
    }
};

template <typename T>
void attention_forward(void *out, float *lse, const void *qkv, int B, int length, int C, int H)
{
    for_width("attention_forward", C / H,
              forward_call<T>{(T *)out, lse, (const T *)qkv, B, length, C, H});
}

template void attention_forward<float>(void *, float *, const void *, int, int, int, int);
template void attention_forward<bf16>(void *, float *, const void *, int, int, int, int);
