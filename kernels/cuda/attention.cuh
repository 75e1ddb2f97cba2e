/* Attention in tiles, after FlashAttention-2 (Dao, "FlashAttention-2", 2023): a block has some rows
 * of one head and walks over the tiles of the other side that causality leaves, so that scores are
 * never in memory. Scores are recomputed in backward from the rows' logarithms of sums.
 *
 * A warp has 16 rows. Its products are of 16 rows by 8 columns, held by the lanes as mma.m16n8k16
 * holds them (device.cuh): lane / 4 and lane / 4 + 8 are the rows of a lane, 2 (lane % 4) and the
 * next its columns. bf16 uses tensor cores; float the same places with plain arithmetic, so that
 * softmax and masks are written once. */
#ifndef HOLMES_CUDA_ATTENTION_CUH
#define HOLMES_CUDA_ATTENTION_CUH

#include "ops.cuh"

#define FRAGMENT_ROWS 16
#define FRAGMENT_COLS 8
#define TILE          32 /* rows of the side that is walked over */

#ifdef HOLMES_CUDA_EMULATION
#define DYNAMIC_SHARED(name) unsigned char *const name = emulated_shared()
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

/* Sizes for heads of up to D channels; narrower ones are filled up with zeros. */
template <typename T, int D> struct attention_tile {
    /* Four warps; two where the tiles of a block would not fit into the shared memory of GPUs
     * that have 100 KB. */
    static constexpr int warps = sizeof(T) * D > 256 ? 2 : 4;
    static constexpr int threads = warps * WARP;
    static constexpr int rows = warps * FRAGMENT_ROWS; /* of the block's own side */
    /* Strides in elements: 16 bytes more than the row, so that the rows of a fragment lie in
     * different banks. */
    static constexpr int stride = D + 16 / (int)sizeof(T);
    static constexpr int score_stride = TILE + 16 / (int)sizeof(T);
    /* Two arrays of the own side, two of the other, the scores of each warp. */
    static constexpr size_t bytes =
        sizeof(T) * (2 * rows * stride + 2 * TILE * stride + rows * score_stride);
};

/* One head of one sequence: rows of query, key, value are 3C apart, rows of the output C. */
struct head {
    size_t qkv, out, row; /* offset of the first element in qkv, in out, and in lse */
    int width;
};

__device__ inline struct head head_at(int bh, int length, int C, int H)
{
    const int b = bh / H, h = bh % H, width = C / H;

    return (struct head){(size_t)b * length * 3 * C + (size_t)h * width,
                         (size_t)b * length * C + (size_t)h * width, (size_t)bh * length, width};
}

/* to (rows, stride) in shared memory = rows [first, first + rows) of from, whose rows are `apart`;
 * zeros beyond `length` and beyond `width`. By all threads of the block. */
template <int rows, int D, int stride, typename T>
__device__ inline void load_tile(T *to, const T *from, size_t apart, int first, int length,
                                 int width)
{
    constexpr int V = 16 / (int)sizeof(T);
    const bool wide = width % V == 0 && apart % V == 0 && (uintptr_t)from % 16 == 0;

    if (wide) {
        for (int i = (int)threadIdx.x; i < rows * (D / V); i += (int)blockDim.x) {
            const int r = i / (D / V), d = i % (D / V) * V;
            pack<T, V> p = {};

            if (first + r < length && d < width)
                p = *(const pack<T, V> *)(from + (size_t)(first + r) * apart + d);
            *(pack<T, V> *)(to + r * stride + d) = p;
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < rows * D; i += (int)blockDim.x) {
        const int r = i / D, d = i % D;

        to[r * stride + d] = first + r < length && d < width ? from[(size_t)(first + r) * apart + d]
                                                             : from_float<T>(0);
    }
}

__device__ inline uint32_t two(const bf16 *x)
{
    return *(const uint32_t *)x;
}

__device__ inline uint32_t two(bf16 low, bf16 high)
{
    const bf16 pair[2] = {low, high};
    uint32_t bits;

    memcpy(&bits, pair, sizeof bits);
    return bits;
}

/* How the second factor lies in memory: column after column, or row after row. */
enum layout { BY_COLUMN, BY_ROW };

/* c (16, 8 n) += a (16, K) b (K, 8 n); a has row i at a + i lda. b's element (k, j) is at
 * j ldb + k BY_COLUMN, at k ldb + j BY_ROW. Everything in shared memory, one warp together. */
template <int K, int n, enum layout L>
__device__ inline void warp_product(float c[n][4], const bf16 *a, int lda, const bf16 *b, int ldb)
{
    const int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4 * 2;

#pragma unroll(K > 64 ? 2 : K / 16)
    for (int k = 0; k < K; k += 16) {
        const bf16 *top = a + g * lda + k + t, *low = top + 8 * lda;
        const uint32_t fa[4] = {two(top), two(low), two(top + 8), two(low + 8)};

#pragma unroll
        for (int j = 0; j < n; j++) {
            const bf16 *p = L == BY_COLUMN ? b + (j * FRAGMENT_COLS + g) * ldb + k + t
                                           : b + (k + t) * ldb + j * FRAGMENT_COLS + g;
            uint32_t fb[2];

            if (L == BY_COLUMN) {
                fb[0] = two(p);
                fb[1] = two(p + 8);
            } else {
                fb[0] = two(p[0], p[ldb]);
                fb[1] = two(p[8 * ldb], p[9 * ldb]);
            }
            mma_bf16(c[j], fa, fb);
        }
    }
}

template <int K, int n, enum layout L>
__device__ inline void warp_product(float c[n][4], const float *a, int lda, const float *b, int ldb)
{
    const int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4 * 2;

#pragma unroll 2
    for (int k = 0; k < K; k++) {
        const float top = a[g * lda + k], low = a[(g + 8) * lda + k];

#pragma unroll
        for (int j = 0; j < n; j++) {
            const int column = j * FRAGMENT_COLS + t;
            const float left = L == BY_COLUMN ? b[column * ldb + k] : b[k * ldb + column];
            const float right =
                L == BY_COLUMN ? b[(column + 1) * ldb + k] : b[k * ldb + column + 1];

            c[j][0] += top * left;
            c[j][1] += top * right;
            c[j][2] += low * left;
            c[j][3] += low * right;
        }
    }
}

/* The warp's own (16, 8 n) in shared memory, as the first factor of its next product. */
template <int n, typename T>
__device__ inline void store_fragments(T *to, int stride, const float c[n][4])
{
    const int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4 * 2;

    __syncwarp(); /* the product before has read what lay here */
#pragma unroll
    for (int j = 0; j < n; j++) {
        T *at = to + g * stride + j * FRAGMENT_COLS + t;

        at[0] = from_float<T>(c[j][0]);
        at[1] = from_float<T>(c[j][1]);
        at[8 * stride] = from_float<T>(c[j][2]);
        at[8 * stride + 1] = from_float<T>(c[j][3]);
    }
    __syncwarp();
}

/* scale * c to the rows [first, first + 16) of an array whose rows are `apart`, where they are
 * below `length` and the columns below `width`. */
template <int n, typename T>
__device__ inline void write_fragments(T *to, size_t apart, int first, int length, int width,
                                       const float c[n][4], float scale)
{
    const int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4 * 2;

#pragma unroll
    for (int j = 0; j < n; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = first + g + (i / 2) * 8, d = j * FRAGMENT_COLS + t + i % 2;

            if (row < length && d < width)
                to[(size_t)row * apart + d] = from_float<T>(scale * c[j][i]);
        }
    }
}

/* Over the four lanes that share a row of a fragment. */
__device__ inline float row_sum(float x)
{
    x += __shfl_xor_sync(WHOLE, x, 1);
    return x + __shfl_xor_sync(WHOLE, x, 2);
}

__device__ inline float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(WHOLE, x, 1));
    return fmaxf(x, __shfl_xor_sync(WHOLE, x, 2));
}

/* Runs f.template run<D>() for the smallest D that a head of that width fits into. */
template <typename F> static void for_width(const char *what, int width, F f)
{
    if (width <= 64)
        f.template run<64>();
    else if (width <= 128)
        f.template run<128>();
    else
        holmes_cuda_fail(what, "heads are wider than the 128 channels that fit");
}

#endif
