/* Layer norm: a warp has a row, and reads it again rather than keep it, since it is in the cache.
 * With xhat = (x - mean) rstd and dxhat = dout weight:
 *   dx = rstd (dxhat - mean(dxhat) - xhat mean(dxhat xhat)) */
#include "ops.cuh"

#define LAYERNORM_EPS 1e-5f

/* The row of this warp; at N or beyond it there is none. */
__device__ static size_t warp_row(void)
{
    return (size_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / WARP;
}

template <int V, typename T>
__global__ void layernorm_forward_kernel(T *out, float *mean, float *rstd, const T *in,
                                         const T *weight, const T *bias, int N, int C)
{
    const size_t row = warp_row();
    const int lane = (int)threadIdx.x % WARP * V;
    const T *x = in + row * C;
    float a[V], w[V], b[V], m = 0, var = 0;

    if (row >= (size_t)N)
        return;
    for (int c = lane; c < C; c += WARP * V) {
        load<V>(a, x + c);
#pragma unroll
        for (int i = 0; i < V; i++)
            m += a[i];
    }
    m = warp_sum(m) / C;
    for (int c = lane; c < C; c += WARP * V) {
        load<V>(a, x + c);
#pragma unroll
        for (int i = 0; i < V; i++)
            var += (a[i] - m) * (a[i] - m);
    }
    const float s = 1 / sqrtf(warp_sum(var) / C + LAYERNORM_EPS);

    for (int c = lane; c < C; c += WARP * V) {
        load<V>(a, x + c);
        load<V>(w, weight + c);
        load<V>(b, bias + c);
#pragma unroll
        for (int i = 0; i < V; i++)
            a[i] = (a[i] - m) * s * w[i] + b[i];
        store<V>(out + row * C + c, a);
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

template <typename T>
void layernorm_forward(void *out, float *mean, float *rstd, const void *in, const void *weight,
                       const void *bias, int N, int C)
{
    constexpr int V = 16 / sizeof(T);
    const bool wide = C % V == 0 && aligned(16, out, in, weight, bias);

    launch("layernorm_forward",
           wide ? layernorm_forward_kernel<V, T> : layernorm_forward_kernel<1, T>,
           ceil_div((size_t)N, BLOCK_WARPS), BLOCK, 0, (T *)out, mean, rstd, (const T *)in,
           (const T *)weight, (const T *)bias, N, C);
}

template <int V, typename T>
__global__ void layernorm_backward_kernel(T *din, const T *dout, const T *in, const float *mean,
                                          const float *rstd, const T *weight, int N, int C)
{
    const size_t row = warp_row();
    const int lane = (int)threadIdx.x % WARP * V;
    const T *x = in + row * C, *dy = dout + row * C;
    float a[V], d[V], w[V], r[V], mean_dxhat = 0, mean_dxhat_xhat = 0;

    if (row >= (size_t)N)
        return;
    const float m = mean[row], s = rstd[row];

    for (int c = lane; c < C; c += WARP * V) {
        load<V>(a, x + c);
        load<V>(d, dy + c);
        load<V>(w, weight + c);
#pragma unroll
        for (int i = 0; i < V; i++) {
            mean_dxhat += d[i] * w[i];
            mean_dxhat_xhat += d[i] * w[i] * (a[i] - m) * s;
        }
    }
    mean_dxhat = warp_sum(mean_dxhat) / C;
    mean_dxhat_xhat = warp_sum(mean_dxhat_xhat) / C;
    for (int c = lane; c < C; c += WARP * V) {
        load<V>(a, x + c);
        load<V>(d, dy + c);
        load<V>(w, weight + c);
        load<V>(r, din + row * C + c);
#pragma unroll
        for (int i = 0; i < V; i++)
            r[i] += s * (d[i] * w[i] - mean_dxhat - (a[i] - m) * s * mean_dxhat_xhat);
        store<V>(din + row * C + c, r);
    }
}

/* weights, biases (gridDim.y, C): sums of dout xhat and of dout over the rows of a part. */
template <typename T>
__global__ void layernorm_columns_kernel(float *weights, float *biases, const T *dout, const T *in,
                                         const float *mean, const float *rstd, int N, int C,
                                         int rows)
{
    __shared__ float lanes[2][COLUMN_LANES][COLUMN_TILE];
    const int column = (int)threadIdx.x % COLUMN_TILE, lane = (int)threadIdx.x / COLUMN_TILE;
    const int c = (int)blockIdx.x * COLUMN_TILE + column;
    const int from = (int)blockIdx.y * rows, to = from + rows < N ? from + rows : N;
    float weight = 0, bias = 0;

    if (c < C) {
        for (int n = from + lane; n < to; n += COLUMN_LANES) {
            const float dy = to_float(dout[(size_t)n * C + c]);

            weight += dy * (to_float(in[(size_t)n * C + c]) - mean[n]) * rstd[n];
            bias += dy;
        }
    }
    lanes[0][lane][column] = weight;
    lanes[1][lane][column] = bias;
    __syncthreads();
    if (lane != 0 || c >= C)
        return;
    for (int i = 1; i < COLUMN_LANES; i++) {
        weight += lanes[0][i][column];
        bias += lanes[1][i][column];
    }
    weights[(size_t)blockIdx.y * C + c] = weight;
    biases[(size_t)blockIdx.y * C + c] = bias;
}

template <typename T>
void layernorm_backward(void *din, float *dweight, float *dbias, const void *dout, const void *in,
                        const float *mean, const float *rstd, const void *weight, int N, int C)
{
    constexpr int V = 16 / sizeof(T);
    const bool wide = C % V == 0 && aligned(16, din, dout, in, weight);
    const struct column_split split = split_rows(N, C, 2);
    float *weights = (float *)holmes_cuda_workspace();
    float *biases = weights + (size_t)split.nparts * C;

    launch("layernorm_backward",
           wide ? layernorm_backward_kernel<V, T> : layernorm_backward_kernel<1, T>,
           ceil_div((size_t)N, BLOCK_WARPS), BLOCK, 0, (T *)din, (const T *)dout, (const T *)in,
           mean, rstd, (const T *)weight, N, C);
    launch("layernorm_backward", layernorm_columns_kernel<T>,
           dim3(ceil_div((size_t)C, COLUMN_TILE), (unsigned)split.nparts), BLOCK, 0, weights,
           biases, (const T *)dout, (const T *)in, mean, rstd, N, C, split.rows);
    add_parts(dweight, weights, split.nparts, C);
    add_parts(dbias, biases, split.nparts, C);
}

#define INSTANTIATE(T)                                                                             \
    template void layernorm_forward<T>(void *, float *, float *, const void *, const void *,       \
                                       const void *, int, int);                                    \
    template void layernorm_backward<T>(void *, float *, float *, const void *, const void *,      \
                                        const float *, const float *, const void *, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
#undef INSTANTIATE
