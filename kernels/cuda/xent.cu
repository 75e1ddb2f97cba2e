/* Softmax and cross entropy over a vocabulary that ranks may share: no probabilities in memory, a
 * block has a row at a time. */
#include "ops.cuh"

#include <math.h>

/* Of a thread's numbers so far: the largest, and the sum of e^(x - largest). */
template <typename T>
__global__ void xent_stats_kernel(float *stats, const T *logits, const int32_t *targets, int N,
                                  int V, int first)
{
    for (size_t row = blockIdx.x; row < (size_t)N; row += gridDim.x) {
        const T *x = logits + row * V;
        float max = -INFINITY, sum = 0;

        for (int i = (int)threadIdx.x; i < V; i += BLOCK) {
            const float a = to_float(x[i]);

            if (a > max) {
                sum = sum * expf(max - a) + 1; /* e^-inf is 0 */
                max = a;
            } else if (a != -INFINITY) {
                sum += expf(a - max);
            }
        }
        const float whole = block_max(max);

        sum = block_sum(max == -INFINITY ? sum : sum * expf(max - whole));
        if (threadIdx.x == 0) {
            const int target = targets[row] - first;

            stats[row] = whole;
            stats[N + row] = sum;
            stats[(size_t)2 * N + row] = target >= 0 && target < V ? to_float(x[target]) : 0.0f;
        }
    }
}

template <typename T>
void xent_stats(float *stats, const void *logits, const int32_t *targets, int N, int V, int first)
{
    launch("xent_stats", xent_stats_kernel<T>, N < 65536 ? (unsigned)N : 65536, BLOCK, 0, stats,
           (const T *)logits, targets, N, V, first);
}

/* One block: the order of the sum depends on nothing. */
__global__ void xent_combine_kernel(double *loss, float *lse, const float *stats, int parts, int N)
{
    double sum = 0;

    for (size_t n = threadIdx.x; n < (size_t)N; n += BLOCK) {
        float max = -INFINITY;
        double exps = 0, target = 0;

        for (int p = 0; p < parts; p++)
            max = fmaxf(max, stats[(size_t)p * 3 * N + n]);
        for (int p = 0; p < parts; p++) {
            const float *part = stats + (size_t)p * 3 * N;

            exps += (double)part[N + n] * exp((double)part[n] - max);
            target += part[(size_t)2 * N + n];
        }
        const double whole = max + log(exps);

        lse[n] = (float)whole;
        sum += whole - target;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *loss += sum;
}

void xent_combine(double *loss, float *lse, const float *stats, int parts, int N)
{
    launch("xent_combine", xent_combine_kernel, 1, BLOCK, 0, loss, lse, stats, parts, N);
}

template <typename T>
__global__ void xent_backward_kernel(T *dlogits, const T *logits, const float *lse,
                                     const int32_t *targets, float scale, int N, int V, int first)
{
    for (size_t row = blockIdx.x; row < (size_t)N; row += gridDim.x) {
        const int target = targets[row] - first;
        const float whole = lse[row];

        for (int i = (int)threadIdx.x; i < V; i += BLOCK) {
            const float p = expf(to_float(logits[row * V + i]) - whole);

            dlogits[row * V + i] = from_float<T>(scale * (i == target ? p - 1 : p));
        }
    }
}

template <typename T>
void xent_backward(void *dlogits, const void *logits, const float *lse, const int32_t *targets,
                   float scale, int N, int V, int first)
{
    launch("xent_backward", xent_backward_kernel<T>, N < 65536 ? (unsigned)N : 65536, BLOCK, 0,
           (T *)dlogits, (const T *)logits, lse, targets, scale, N, V, first);
}

#define INSTANTIATE(T)                                                                             \
    template void xent_stats<T>(float *, const void *, const int32_t *, int, int, int);            \
    template void xent_backward<T>(void *, const void *, const float *, const int32_t *, float,    \
                                   int, int, int);
INSTANTIATE(float)
INSTANTIATE(bf16)
#undef INSTANTIATE
