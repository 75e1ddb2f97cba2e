/* The reference: every layer as its paper states it, one loop per sum, sums in double. Written to
 * be read and to be checked against finite differences; the other tables are compared with it. */
#include "backends.h"

#include <math.h>
#include <stdlib.h>

#define LAYERNORM_EPS 1e-5

static void embedding_forward(float *out, const int32_t *tokens, const float *wte, const float *wpe,
                              int B, int T, int C)
{
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            const size_t row = (size_t)b * T + t;
            const float *token = wte + (size_t)tokens[row] * C;
            const float *position = wpe + (size_t)t * C;

            for (int c = 0; c < C; c++)
                out[row * C + c] = token[c] + position[c];
        }
    }
}

static void embedding_backward(float *dwte, float *dwpe, const float *dout, const int32_t *tokens,
                               int B, int T, int C)
{
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            const size_t row = (size_t)b * T + t;

            for (int c = 0; c < C; c++) {
                dwte[(size_t)tokens[row] * C + c] += dout[row * C + c];
                dwpe[(size_t)t * C + c] += dout[row * C + c];
            }
        }
    }
}

static void layernorm_forward(float *out, float *mean, float *rstd, const float *in,
                              const float *weight, const float *bias, int N, int C)
{
    for (int n = 0; n < N; n++) {
        const float *x = in + (size_t)n * C;
        double m = 0, var = 0;

        for (int c = 0; c < C; c++)
            m += x[c];
        m /= C;
        for (int c = 0; c < C; c++)
            var += (x[c] - m) * (x[c] - m);
        var /= C;

        const double s = 1 / sqrt(var + LAYERNORM_EPS);
        for (int c = 0; c < C; c++)
            out[(size_t)n * C + c] = (float)((x[c] - m) * s * weight[c] + bias[c]);
        mean[n] = (float)m;
        rstd[n] = (float)s;
    }
}

/* With xhat = (x - mean) rstd and dxhat = dout weight:
 *   dx = rstd (dxhat - mean(dxhat) - xhat mean(dxhat xhat)) */
static void layernorm_backward(float *din, float *dweight, float *dbias, const float *dout,
                               const float *in, const float *mean, const float *rstd,
                               const float *weight, int N, int C)
{
    for (int n = 0; n < N; n++) {
        const float *x = in + (size_t)n * C, *dy = dout + (size_t)n * C;
        const double m = mean[n], s = rstd[n];
        double mean_dxhat = 0, mean_dxhat_xhat = 0;

        for (int c = 0; c < C; c++) {
            mean_dxhat += (double)dy[c] * weight[c];
            mean_dxhat_xhat += (double)dy[c] * weight[c] * (x[c] - m) * s;
        }
        mean_dxhat /= C;
        mean_dxhat_xhat /= C;
        for (int c = 0; c < C; c++) {
            const double xhat = (x[c] - m) * s;
            const double dxhat = (double)dy[c] * weight[c];

            din[(size_t)n * C + c] += (float)(s * (dxhat - mean_dxhat - xhat * mean_dxhat_xhat));
            dweight[c] += (float)(dy[c] * xhat);
            dbias[c] += dy[c];
        }
    }
}

static void matmul_forward(float *out, const float *in, const float *weight, const float *bias,
                           int N, int C, int OC)
{
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) {
            double sum = bias ? bias[o] : 0;

            for (int c = 0; c < C; c++)
                sum += (double)in[(size_t)n * C + c] * weight[(size_t)o * C + c];
            out[(size_t)n * OC + o] = (float)sum;
        }
    }
}

static void matmul_backward(float *din, float *dweight, float *dbias, const float *dout,
                            const float *in, const float *weight, int N, int C, int OC)
{
    for (int n = 0; n < N; n++) {
        for (int c = 0; c < C; c++) {
            double sum = 0;

            for (int o = 0; o < OC; o++)
                sum += (double)dout[(size_t)n * OC + o] * weight[(size_t)o * C + c];
            din[(size_t)n * C + c] = (float)sum;
        }
    }
    for (int o = 0; o < OC; o++) {
        double bias_sum = 0;

        for (int c = 0; c < C; c++) {
            double sum = 0;

            for (int n = 0; n < N; n++)
                sum += (double)dout[(size_t)n * OC + o] * in[(size_t)n * C + c];
            dweight[(size_t)o * C + c] += (float)sum;
        }
        for (int n = 0; n < N; n++)
            bias_sum += dout[(size_t)n * OC + o];
        if (dbias)
            dbias[o] += (float)bias_sum;
    }
}

/* One head of one sequence: rows of query, key, value and of their gradients are 3C apart, rows of
 * the output C apart. */
struct head {
    size_t qkv, out, probs; /* offset of the head's first element in each array */
    int width;              /* C/H */
};

static struct head head_at(int b, int h, int T, int C, int H)
{
    const int width = C / H;

    return (struct head){
        .qkv = (size_t)b * T * 3 * C + (size_t)h * width,
        .out = (size_t)b * T * C + (size_t)h * width,
        .probs = ((size_t)b * H + h) * T * T,
        .width = width,
    };
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* softmax of x[0..n); x may be p */
static void softmax(float *p, const float *x, int n)
{
    double max = x[0], sum = 0;

    for (int i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - max);
    for (int i = 0; i < n; i++)
        p[i] = (float)(exp(x[i] - max) / sum);
}

static void attention_forward(float *out, float *probs, const float *qkv, int B, int T, int C,
                              int H)
{
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            const struct head d = head_at(b, h, T, C, H);
            const float *q = qkv + d.qkv, *k = q + C, *v = k + C;
            const double scale = 1 / sqrt(d.width);

            for (int t = 0; t < T; t++) {
                float *p = probs + d.probs + (size_t)t * T;

                for (int s = 0; s < T; s++)
                    p[s] = s > t ? 0
                                 : (float)(scale * dot(q + (size_t)t * 3 * C, k + (size_t)s * 3 * C,
                                                       d.width));
                softmax(p, p, t + 1);
                for (int i = 0; i < d.width; i++) {
                    double sum = 0;

                    for (int s = 0; s <= t; s++)
                        sum += (double)p[s] * v[(size_t)s * 3 * C + i];
                    out[d.out + (size_t)t * C + i] = (float)sum;
                }
            }
        }
    }
}

/* With p = softmax(x): dx[s] = p[s] (dp[s] - sum_r p[r] dp[r]). */
static void softmax_backward(float *dx, const float *dp, const float *p, int n)
{
    const double mean = dot(p, dp, n);

    for (int s = 0; s < n; s++)
        dx[s] = (float)(p[s] * (dp[s] - mean));
}

static void attention_backward(float *dqkv, float *dprobs, const float *dout, const float *probs,
                               const float *qkv, int B, int T, int C, int H)
{
    const size_t row = (size_t)3 * C;

    for (size_t i = 0; i < (size_t)B * T * row; i++)
        dqkv[i] = 0;
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            const struct head d = head_at(b, h, T, C, H);
            const float *q = qkv + d.qkv, *k = q + C, *v = k + C;
            float *dq = dqkv + d.qkv, *dk = dq + C, *dv = dk + C;
            const double scale = 1 / sqrt(d.width);

            for (int t = 0; t < T; t++) {
                const float *p = probs + d.probs + (size_t)t * T;
                const float *dy = dout + d.out + (size_t)t * C;
                float *dp = dprobs + d.probs + (size_t)t * T;

                for (int s = 0; s <= t; s++) {
                    dp[s] = (float)dot(dy, v + s * row, d.width);
                    for (int i = 0; i < d.width; i++)
                        dv[s * row + i] += p[s] * dy[i];
                }
                softmax_backward(dp, dp, p, t + 1);
                for (int s = 0; s <= t; s++) {
                    for (int i = 0; i < d.width; i++) {
                        dq[t * row + i] += (float)(scale * dp[s] * k[s * row + i]);
                        dk[s * row + i] += (float)(scale * dp[s] * q[t * row + i]);
                    }
                }
            }
        }
    }
}

/* gelu(x) = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3) */
static void gelu_forward(float *out, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = in[i], u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);

        out[i] = (float)(0.5 * x * (1 + tanh(u)));
    }
}

static void gelu_backward(float *din, const float *dout, const float *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = in[i], u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        const double du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        const double th = tanh(u);

        din[i] = (float)(dout[i] * (0.5 * (1 + th) + 0.5 * x * (1 - th * th) * du));
    }
}

static void residual_forward(float *out, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static double xent_forward(float *probs, const float *logits, const int32_t *targets, int N, int V)
{
    double loss = 0;

    for (int n = 0; n < N; n++) {
        const float *x = logits + (size_t)n * V;
        const double target = x[targets[n]];
        double max = x[0], sum = 0;

        for (int i = 1; i < V; i++)
            max = x[i] > max ? x[i] : max;
        for (int i = 0; i < V; i++)
            sum += exp(x[i] - max);
        loss += max + log(sum) - target;
        softmax(probs + (size_t)n * V, x, V);
    }
    return loss;
}

static void xent_backward(float *dlogits, const float *probs, const int32_t *targets, float scale,
                          int N, int V)
{
    for (int n = 0; n < N; n++)
        for (int i = 0; i < V; i++)
            dlogits[(size_t)n * V + i] =
                scale * (probs[(size_t)n * V + i] - (i == targets[n] ? 1 : 0));
}

static void adamw(float *w, float *m, float *v, const float *g, size_t n,
                  const struct holmes_adamw_step *s)
{
    for (size_t i = 0; i < n; i++) {
        const float grad = s->grad_scale * g[i];

        m[i] = s->beta1 * m[i] + (1 - s->beta1) * grad;
        v[i] = s->beta2 * v[i] + (1 - s->beta2) * grad * grad;
        w[i] -= s->lr * (m[i] / s->correction1 / (sqrtf(v[i] / s->correction2) + s->eps) +
                         s->weight_decay * w[i]);
    }
}

static double sum_squares(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

const struct holmes_kernels holmes_kernels_ref = {
    .name = "ref",
    .alloc = holmes_host_alloc,
    .free = free,
    .zero = holmes_host_zero,
    .copy = holmes_host_copy,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .matmul_forward = matmul_forward,
    .matmul_backward = matmul_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .residual_forward = residual_forward,
    .xent_forward = xent_forward,
    .xent_backward = xent_backward,
    .adamw = adamw,
    .sum_squares = sum_squares,
};
