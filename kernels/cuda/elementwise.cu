/* GELU, the residual, AdamW and the conversion of weights: one thread's elements at a time, as
 * many at once as 16 bytes hold where the pointers allow it. */
#include "ops.cuh"

#define SQRT_2_PI  0.7978845608028654f /* sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

__device__ static float gelu(float x)
{
    return 0.5f * x * (1 + tanhf(SQRT_2_PI * (x + GELU_CUBIC * x * x * x)));
}

__device__ static float gelu_derivative(float at)
{
    /* Beyond 20 it is 0 or 1 to the last bit, and squares cannot overflow. */
    const float x = fminf(fmaxf(at, -20.0f), 20.0f);
    const float th = tanhf(SQRT_2_PI * (x + GELU_CUBIC * x * x * x));

    return 0.5f * (1 + th) + 0.5f * x * (1 - th * th) * SQRT_2_PI * (1 + 3 * GELU_CUBIC * x * x);
}

struct gelu_of {
    __device__ float operator()(float x) const
    {
        return gelu(x);
    }
};

struct gelu_gradient {
    __device__ float operator()(float dout, float x) const
    {
        return dout * gelu_derivative(x);
    }
};

/* out[i] = f(in[i]...). out may be one of in. */
template <int V, typename F, typename T, typename... In>
__global__ void map_kernel(F f, size_t n, T *out, const In *...in)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n / V; i += step) {
        const pack<T, V> p[] = {*(const pack<T, V> *)(in + i * V)...};
        float r[V];

#pragma unroll
        for (int j = 0; j < V; j++) {
            if constexpr (sizeof...(In) == 1)
                r[j] = f(to_float(p[0].x[j]));
            else
                r[j] = f(to_float(p[0].x[j]), to_float(p[1].x[j]));
        }
        store<V>(out + i * V, r);
    }
}

template <typename F, typename T, typename... In>
static void map(const char *what, F f, size_t n, T *out, const In *...in)
{
    constexpr int V = 16 / sizeof(T);
    const size_t whole = aligned(16, out, in...) ? n / V * V : 0;

    if (whole > 0)
        launch(what, map_kernel<V, F, T, In...>, blocks_for(whole / V), BLOCK, 0, f, whole, out,
               in...);
    if (whole < n)
        launch(what, map_kernel<1, F, T, In...>, blocks_for(n - whole), BLOCK, 0, f, n - whole,
               out + whole, (in + whole)...);
}

template <typename T> void gelu_forward(void *out, const void *in, size_t n)
{
    map("gelu_forward", gelu_of(), n, (T *)out, (const T *)in);
}

template <typename T> void gelu_backward(void *din, const void *dout, const void *in, size_t n)
{
    map("gelu_backward", gelu_gradient(), n, (T *)din, (const T *)dout, (const T *)in);
}

/* A block has a row at a time. */
template <int V, typename T>
__global__ void residual_kernel(T *out, const T *a, const T *b, const T *bias, int N, int C)
{
    for (size_t row = blockIdx.x; row < (size_t)N; row += gridDim.x) {
        for (int c = (int)threadIdx.x * V; c < C; c += (int)blockDim.x * V) {
            const size_t at = row * C + c;
            float x[V], y[V], z[V];

            load<V>(x, a + at);
            load<V>(y, b + at);
            if (bias)
                load<V>(z, bias + c);
#pragma unroll
            for (int i = 0; i < V; i++)
                x[i] += bias ? y[i] + z[i] : y[i];
            store<V>(out + at, x);
        }
    }
}

template <typename T>
void residual_forward(void *out, const void *a, const void *b, const void *bias, int N, int C)
{
    constexpr int V = 16 / sizeof(T);
    const bool wide = C % V == 0 && aligned(16, out, a, b, bias);
    const unsigned grid = N < 8192 ? (unsigned)N : 8192;

    launch("residual_forward", wide ? residual_kernel<V, T> : residual_kernel<1, T>, grid, BLOCK, 0,
           (T *)out, (const T *)a, (const T *)b, (const T *)bias, N, C);
}

/* The products are rounded before they are added, as the reference does. */
template <typename T>
__global__ void adamw_kernel(float *w, T *real, float *m, float *v, const float *g, size_t n,
                             struct holmes_adamw_step s)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const float grad = s.grad_scale * g[i];
        const float first = s.beta1 * m[i] + (1 - s.beta1) * grad;
        const float second = s.beta2 * v[i] + (1 - s.beta2) * grad * grad;
        const float to =
            w[i] - s.lr * (first / s.correction1 / (sqrtf(second / s.correction2) + s.eps) +
                           s.weight_decay * w[i]);

        m[i] = first;
        v[i] = second;
        w[i] = to;
        if (real)
            real[i] = from_float<T>(to);
    }
}

template <typename T>
void adamw(float *w, void *real, float *m, float *v, const float *g, size_t n,
           const struct holmes_adamw_step *step)
{
    if (n > 0)
        launch("adamw", adamw_kernel<T>, blocks_for(n), BLOCK, 0, w, (T *)real, m, v, g, n, *step);
}

template <typename T> __global__ void convert_kernel(T *real, const float *w, size_t n)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        real[i] = from_float<T>(w[i]);
}

template <typename T> void convert(void *real, const float *w, size_t n)
{
    if (n > 0)
        launch("convert", convert_kernel<T>, blocks_for(n), BLOCK, 0, (T *)real, w, n);
}

#define INSTANTIATE(T)                                                                             \
    template void gelu_forward<T>(void *, const void *, size_t);                                   \
    template void gelu_backward<T>(void *, const void *, const void *, size_t);                    \
    template void residual_forward<T>(void *, const void *, const void *, const void *, int, int); \
    template void adamw<T>(float *, void *, float *, float *, const float *, size_t,               \
                           const struct holmes_adamw_step *);                                      \
    template void convert<T>(void *, const float *, size_t);
INSTANTIATE(float)
INSTANTIATE(bf16)
#undef INSTANTIATE
