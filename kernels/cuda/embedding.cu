/* The embedding. Its backward adds many rows to one: the block of a token's first occurrence adds
 * all of its rows, in their order, so that no two blocks write the same place. */
#include "ops.cuh"

#define COLUMNS_EACH  4 /* of a row, per thread of embedding_backward */
#define COLUMNS_BLOCK (BLOCK * COLUMNS_EACH)

template <typename T>
__global__ void embedding_forward_kernel(T *out, const int32_t *tokens, const T *wte, const T *wpe,
                                         int N, int length, int C, int first, int V)
{
    for (size_t row = blockIdx.x; row < (size_t)N; row += gridDim.x) {
        const int token = tokens[row] - first;
        const bool here = token >= 0 && token < V;
        const size_t position = row % (size_t)length;

        for (int c = (int)threadIdx.x; c < C; c += (int)blockDim.x) {
            const float x = here ? to_float(wte[(size_t)token * C + c]) : 0.0f;

            out[row * C + c] = from_float<T>(wpe ? x + to_float(wpe[position * C + c]) : x);
        }
    }
}

template <typename T>
void embedding_forward(void *out, const int32_t *tokens, const void *wte, const void *wpe, int B,
                       int length, int C, int first, int V)
{
    const int N = B * length;

    launch("embedding_forward", embedding_forward_kernel<T>, N < 65536 ? (unsigned)N : 65536, BLOCK,
           0, (T *)out, tokens, (const T *)wte, (const T *)wpe, N, length, C, first, V);
}

/* Bit i of mask[j]: tokens[at + 32j + i] is `token`. For all threads of the block. */
__device__ static void find_token(unsigned mask[BLOCK_WARPS], const int32_t *tokens, int at, int N,
                                  int token)
{
    const int i = at + (int)threadIdx.x;
    const unsigned found = __ballot_sync(WHOLE, i < N && tokens[i < N ? i : 0] == token);

    __syncthreads(); /* the mask before has been read */
    if (threadIdx.x % WARP == 0)
        mask[threadIdx.x / WARP] = found;
    __syncthreads();
}

template <typename T>
__global__ void embedding_backward_kernel(float *dwte, const T *dout, const int32_t *tokens, int N,
                                          int C, int first, int V)
{
    __shared__ unsigned mask[BLOCK_WARPS];
    const int row = (int)blockIdx.x, token = tokens[row];
    const int column = (int)blockIdx.y * COLUMNS_BLOCK + (int)threadIdx.x;
    float sum[COLUMNS_EACH] = {0};

    if (token < first || token - first >= V)
        return; /* the whole block */
    for (int at = 0; at < N; at += BLOCK) {
        find_token(mask, tokens, at, N, token);
        for (int w = 0; w < BLOCK_WARPS; w++) {
            for (unsigned left = mask[w]; left != 0; left &= left - 1) {
                const int from = at + w * WARP + __ffs((int)left) - 1;

                if (from < row)
                    return; /* that row's block does it: all threads see the same mask */
                for (int i = 0; i < COLUMNS_EACH; i++)
                    if (column + i * BLOCK < C)
                        sum[i] += to_float(dout[(size_t)from * C + column + i * BLOCK]);
            }
        }
    }
    for (int i = 0; i < COLUMNS_EACH; i++)
        if (column + i * BLOCK < C)
            dwte[(size_t)(token - first) * C + column + i * BLOCK] += sum[i];
}

/* dwpe (length, C) += dout (B, length, C) summed over B */
template <typename T>
__global__ void positions_backward_kernel(float *dwpe, const T *dout, int B, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float sum = 0;

        for (int b = 0; b < B; b++)
            sum += to_float(dout[(size_t)b * n + i]);
        dwpe[i] += sum;
    }
}

template <typename T>
void embedding_backward(float *dwte, float *dwpe, const void *dout, const int32_t *tokens, int B,
                        int length, int C, int first, int V)
{
    const size_t n = (size_t)length * C;

    launch("embedding_backward", embedding_backward_kernel<T>,
           dim3((unsigned)(B * length), ceil_div((size_t)C, COLUMNS_BLOCK)), BLOCK, 0, dwte,
           (const T *)dout, tokens, B * length, C, first, V);
    if (dwpe)
        launch("embedding_backward", positions_backward_kernel<T>, blocks_for(n), BLOCK, 0, dwpe,
               (const T *)dout, B, n);
}

#define INSTANTIATE(T)                                                                             \
    template void embedding_forward<T>(void *, const int32_t *, const void *, const void *, int,   \
                                       int, int, int, int);                                        \
    template void embedding_backward<T>(float *, float *, const void *, const int32_t *, int, int, \
                                        int, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
#undef INSTANTIATE
