/* Sums over many rows and over whole arrays, without atomics: blocks leave their parts in the
 * workspace and one more kernel adds those up in order. */
#include "ops.cuh"

#define SUM_BLOCKS 512 /* parts of sum_squares: what is summed where depends on n alone */
#define ROWS_MIN   64  /* a part of fewer rows is not worth its write */

__global__ void sum_squares_kernel(double *parts, const float *x, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;
    double sum = 0;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        sum += (double)x[i] * x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void sum_parts_kernel(double *sum, const double *parts, int n)
{
    double mine = 0;

    for (int i = (int)threadIdx.x; i < n; i += BLOCK)
        mine += parts[i];
    mine = block_sum(mine);
    if (threadIdx.x == 0)
        *sum += mine;
}

void sum_squares(double *sum, const float *x, size_t n)
{
    const unsigned blocks = ceil_div(n, BLOCK) < SUM_BLOCKS ? ceil_div(n, BLOCK) : SUM_BLOCKS;
    double *parts = (double *)holmes_cuda_workspace();

    if (n == 0)
        return;
    launch("sum_squares", sum_squares_kernel, blocks, BLOCK, 0, parts, x, n);
    launch("sum_squares", sum_parts_kernel, 1, BLOCK, 0, sum, parts, (int)blocks);
}

/* parts (gridDim.y, C): block (x, y) has columns [32x, 32x + 32) of its share of the rows. */
template <typename T>
__global__ void column_sums_kernel(float *parts, const T *x, int N, int C, int rows)
{
    __shared__ float lanes[COLUMN_LANES][COLUMN_TILE];
    const int column = (int)threadIdx.x % COLUMN_TILE, lane = (int)threadIdx.x / COLUMN_TILE;
    const int c = (int)blockIdx.x * COLUMN_TILE + column;
    const int from = (int)blockIdx.y * rows, to = from + rows < N ? from + rows : N;
    float sum = 0;

    if (c < C)
        for (int n = from + lane; n < to; n += COLUMN_LANES)
            sum += to_float(x[(size_t)n * C + c]);
    lanes[lane][column] = sum;
    __syncthreads();
    if (lane != 0 || c >= C)
        return;
    for (int i = 1; i < COLUMN_LANES; i++)
        sum += lanes[i][column];
    parts[(size_t)blockIdx.y * C + c] = sum;
}

__global__ void add_parts_kernel(float *out, const float *parts, int nparts, int C)
{
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    float sum = 0;

    if (c >= C)
        return;
    for (int i = 0; i < nparts; i++)
        sum += parts[(size_t)i * C + c];
    out[c] += sum;
}

struct column_split split_rows(int N, int C, int sums)
{
    const size_t room = HOLMES_CUDA_WORKSPACE_BYTES / sizeof(float) / ((size_t)C * sums);
    const size_t wanted = ceil_div((size_t)N, ROWS_MIN);
    const size_t most = room < 1 ? 1 : room < 256 ? room : 256;
    const unsigned rows = ceil_div((size_t)N, wanted < most ? wanted : most);

    return (struct column_split){(int)rows, (int)ceil_div((size_t)N, rows)};
}

void add_parts(float *out, const float *parts, int nparts, int C)
{
    launch("sum of rows", add_parts_kernel, ceil_div((size_t)C, BLOCK), BLOCK, 0, out, parts,
           nparts, C);
}

template <typename T> void add_column_sums(float *out, const T *x, int N, int C)
{
    const struct column_split split = split_rows(N, C, 1);
    float *parts = (float *)holmes_cuda_workspace();

    launch("sum of rows", column_sums_kernel<T>,
           dim3(ceil_div((size_t)C, COLUMN_TILE), (unsigned)split.nparts), BLOCK, 0, parts, x, N, C,
           split.rows);
    add_parts(out, parts, split.nparts, C);
}

template void add_column_sums<float>(float *, const float *, int, int);
template void add_column_sums<bf16>(float *, const bf16 *, int, int);
