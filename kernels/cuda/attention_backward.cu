/* Attention, backward. With p = e^(scale q.k - lse) and delta = dout . out, row by row:
 *   dv = p' dout;  ds = p (dout v' - delta);  dq = scale ds k;  dk = scale ds' q
 * One kernel has rows of keys and walks over the queries that see them, one has rows of queries and
 * walks over the keys: scores are made twice, and no two blocks add to the same place, which would
 * make the order of the sums, and so their bits, a matter of chance. */
#include "attention.cuh"

#include "table.h"

#define COLS (TILE / FRAGMENT_COLS)

size_t attention_scratch(int B, int length, int C, int H)
{
    return holmes_cuda_attention_scratch(B, length, C, H);
}

/* delta (B, H, length): a warp has one row of one head. */
template <typename T>
__global__ void attention_delta_kernel(float *delta, const T *dout, const T *out, int rows,
                                       int length, int C, int H)
{
    const int row = (int)(blockIdx.x * BLOCK_WARPS + threadIdx.x / WARP);
    float sum = 0;

    if (row >= rows)
        return;
    const struct head d = head_at(row / length, length, C, H);
    const size_t at = d.out + (size_t)(row % length) * C;

    for (int i = (int)threadIdx.x % WARP; i < d.width; i += WARP)
        sum += to_float(dout[at + i]) * to_float(out[at + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        delta[row] = sum;
}

/* s, the scores, becomes p, and dp becomes ds without its scale. query and key are the row and the
 * column where the fragment begins if `rows_are_queries`, else the column and the row. */
template <bool rows_are_queries>
__device__ static void scores_backward(float s[COLS][4], float dp[COLS][4], const float *lse,
                                       const float *delta, float scale, int query, int key,
                                       int length)
{
    const int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4 * 2;

#pragma unroll
    for (int j = 0; j < COLS; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = g + i / 2 * 8, column = j * FRAGMENT_COLS + t + i % 2;
            const int q = query + (rows_are_queries ? row : column);
            const int k = key + (rows_are_queries ? column : row);
            const bool seen = k <= q && q < length;
            const float p = seen ? expf(scale * s[j][i] - lse[seen ? q : 0]) : 0;

            s[j][i] = p;
            dp[j][i] = seen ? p * (dp[j][i] - delta[seen ? q : 0]) : 0;
        }
    }
}

/* grid: (rows of keys, B * H) */
template <typename T, int D>
__global__ void __launch_bounds__(attention_tile<T, D>::threads)
    attention_keys_kernel(T *dqkv, const T *dout, const float *lse, const float *delta,
                          const T *qkv, int length, int C, int H)
{
    using tile = attention_tile<T, D>;
    DYNAMIC_SHARED(memory);
    T *const keys = (T *)memory, *const values = keys + tile::rows * tile::stride;
    T *const queries = values + tile::rows * tile::stride;
    T *const douts = queries + TILE * tile::stride, *const scores = douts + TILE * tile::stride;
    const struct head d = head_at((int)blockIdx.y, length, C, H);
    const T *q = qkv + d.qkv, *k = q + C, *v = k + C;
    const size_t apart = (size_t)3 * C;
    const int warp = (int)threadIdx.x / WARP;
    const int first = (int)blockIdx.x * tile::rows, mine = first + warp * FRAGMENT_ROWS;
    const float scale = rsqrtf((float)d.width);
    const T *const my_keys = keys + warp * FRAGMENT_ROWS * tile::stride;
    const T *const my_values = values + warp * FRAGMENT_ROWS * tile::stride;
    T *const own = scores + warp * FRAGMENT_ROWS * tile::score_stride;
    float dk[D / FRAGMENT_COLS][4] = {}, dv[D / FRAGMENT_COLS][4] = {};

    load_tile<tile::rows, D, tile::stride>(keys, k, apart, first, length, d.width);
    load_tile<tile::rows, D, tile::stride>(values, v, apart, first, length, d.width);
    /* The first query that sees one of these keys is the one at the first key. */
    for (int query = first / TILE * TILE; query < length; query += TILE) {
        float s[COLS][4] = {}, dp[COLS][4] = {};

        __syncthreads();
        load_tile<TILE, D, tile::stride>(queries, q, apart, query, length, d.width);
        load_tile<TILE, D, tile::stride>(douts, dout + d.out, (size_t)C, query, length, d.width);
        __syncthreads();
        if (query + TILE <= mine)
            continue; /* none of these sees this warp's keys */
        warp_product<D, COLS, BY_COLUMN>(s, my_keys, tile::stride, queries, tile::stride);
        warp_product<D, COLS, BY_COLUMN>(dp, my_values, tile::stride, douts, tile::stride);
        scores_backward<false>(s, dp, lse + d.row, delta + d.row, scale, query, mine, length);
        store_fragments<COLS>(own, tile::score_stride, s);
        warp_product<TILE, D / FRAGMENT_COLS, BY_ROW>(dv, own, tile::score_stride, douts,
                                                      tile::stride);
        store_fragments<COLS>(own, tile::score_stride, dp);
        warp_product<TILE, D / FRAGMENT_COLS, BY_ROW>(dk, own, tile::score_stride, queries,
                                                      tile::stride);
    }
    write_fragments<D / FRAGMENT_COLS>(dqkv + d.qkv + C, apart, mine, length, d.width, dk, scale);
    write_fragments<D / FRAGMENT_COLS>(dqkv + d.qkv + 2 * C, apart, mine, length, d.width, dv, 1);
}

/* grid: (rows of queries, B * H) */
template <typename T, int D>
__global__ void __launch_bounds__(attention_tile<T, D>::threads)
    attention_queries_kernel(T *dqkv, const T *dout, const float *lse, const float *delta,
                             const T *qkv, int length, int C, int H)
{
    using tile = attention_tile<T, D>;
    DYNAMIC_SHARED(memory);
    T *const queries = (T *)memory, *const douts = queries + tile::rows * tile::stride;
    T *const keys = douts + tile::rows * tile::stride;
    T *const values = keys + TILE * tile::stride, *const scores = values + TILE * tile::stride;
    const struct head d = head_at((int)blockIdx.y, length, C, H);
    const T *q = qkv + d.qkv, *k = q + C, *v = k + C;
    const size_t apart = (size_t)3 * C;
    const int warp = (int)threadIdx.x / WARP;
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * tile::rows;
    const int mine = first + warp * FRAGMENT_ROWS;
    const int end = first + tile::rows < length ? first + tile::rows : length;
    const float scale = rsqrtf((float)d.width);
    const T *const my_queries = queries + warp * FRAGMENT_ROWS * tile::stride;
    const T *const my_douts = douts + warp * FRAGMENT_ROWS * tile::stride;
    T *const own = scores + warp * FRAGMENT_ROWS * tile::score_stride;
    float dq[D / FRAGMENT_COLS][4] = {};

    load_tile<tile::rows, D, tile::stride>(queries, q, apart, first, length, d.width);
    load_tile<tile::rows, D, tile::stride>(douts, dout + d.out, (size_t)C, first, length, d.width);
    for (int key = 0; key < end; key += TILE) {
        float s[COLS][4] = {}, dp[COLS][4] = {};

        __syncthreads();
        load_tile<TILE, D, tile::stride>(keys, k, apart, key, length, d.width);
        load_tile<TILE, D, tile::stride>(values, v, apart, key, length, d.width);
        __syncthreads();
        if (key >= mine + FRAGMENT_ROWS)
            continue;
        warp_product<D, COLS, BY_COLUMN>(s, my_queries, tile::stride, keys, tile::stride);
        warp_product<D, COLS, BY_COLUMN>(dp, my_douts, tile::stride, values, tile::stride);
        scores_backward<true>(s, dp, lse + d.row, delta + d.row, scale, mine, key, length);
        store_fragments<COLS>(own, tile::score_stride, dp);
        warp_product<TILE, D / FRAGMENT_COLS, BY_ROW>(dq, own, tile::score_stride, keys,
                                                      tile::stride);
    }
    write_fragments<D / FRAGMENT_COLS>(dqkv + d.qkv, apart, mine, length, d.width, dq, scale);
}

template <typename T> struct backward_call {
    T *dqkv;
    const T *dout;
    const float *lse, *delta;
    const T *qkv;
    int B, length, C, H;

    template <int D> void run(void)
    {
        using tile = attention_tile<T, D>;
        const dim3 grid(ceil_div((size_t)length, tile::rows), (unsigned)(B * H));

        allow_shared("attention_backward", attention_keys_kernel<T, D>, tile::bytes);
        allow_shared("attention_backward", attention_queries_kernel<T, D>, tile::bytes);
        launch("attention_backward", attention_keys_kernel<T, D>, grid, tile::threads, tile::bytes,
               dqkv, dout, lse, delta, qkv, length, C, H);
        launch("attention_backward", attention_queries_kernel<T, D>, grid, tile::threads,
               tile::bytes, dqkv, dout, lse, delta, qkv, length, C, H);
    }
};

template <typename T>
void attention_backward(void *dqkv, void *scratch, const void *dout, const void *out,
                        const float *lse, const void *qkv, int B, int length, int C, int H)
{
    float *delta = (float *)scratch;
    const int rows = B * H * length;

    launch("attention_backward", attention_delta_kernel<T>, ceil_div((size_t)rows, BLOCK_WARPS),
           BLOCK, 0, delta, (const T *)dout, (const T *)out, rows, length, C, H);
    for_width(
        "attention_backward", C / H,
        backward_call<T>{(T *)dqkv, (const T *)dout, lse, delta, (const T *)qkv, B, length, C, H});
}

template void attention_backward<float>(void *, void *, const void *, const void *, const float *,
                                        const void *, int, int, int, int);
template void attention_backward<bf16>(void *, void *, const void *, const void *, const float *,
                                       const void *, int, int, int, int);
