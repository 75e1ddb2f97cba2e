/* The reference: every layer as its paper states it, one loop per sum, sums in double. Written to
 * be read and to be checked against finite differences; the other tables are compared with it. */
#include "backends.h"

#include <math.h>
#include <stdlib.h>

#define LAYERNORM_EPS 1e-5

static void embedding_forward(void *out_real, const int32_t *tokens, const void *wte_real,
                              const void *wpe_real, int B, int T, int C, int first, int V)
{
    float *out = out_real;
    const float *wte = wte_real, *wpe = wpe_real;

    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            const size_t row = (size_t)b * T + t;
            const int token = tokens[row] - first;

            for (int c = 0; c < C; c++)
                out[row * C + c] = (token >= 0 && token < V ? wte[(size_t)token * C + c] : 0) +
                                   (wpe ? wpe[(size_t)t * C + c] : 0);
        }
    }
}

static void embedding_backward(float *dwte, float *dwpe, const void *dout_real,
                               const int32_t *tokens, int B, int T, int C, int first, int V)
{
    const float *dout = dout_real;

    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            const size_t row = (size_t)b * T + t;
            const int token = tokens[row] - first;

            for (int c = 0; c < C; c++) {
                if (token >= 0 && token < V)
                    dwte[(size_t)token * C + c] += dout[row * C + c];
                if (dwpe)
                    dwpe[(size_t)t * C + c] += dout[row * C + c];
            }
        }
    }
}

static void layernorm_forward(void *out_real, float *mean, float *rstd, const void *in,
                              const void *weight_real, const void *bias_real, int N, int C)
{
    float *out = out_real;
    const float *weight = weight_real, *bias = bias_real;

    for (int n = 0; n < N; n++) {
        const float *x = (const float *)in + (size_t)n * C;
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
static void layernorm_backward(void *din_real, float *dweight, float *dbias, const void *dout,
                               const void *in, const float *mean, const float *rstd,
                               const void *weight_real, int N, int C)
{
    float *din = din_real;
    const float *weight = weight_real;

    for (int n = 0; n < N; n++) {
        const float *x = (const float *)in + (size_t)n * C;
        const float *dy = (const float *)dout + (size_t)n * C;
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

static void matmul_forward(void *out_real, const void *in_real, const void *weight_real,
                           const void *bias_real, int N, int C, int OC)
{
    float *out = out_real;
    const float *in = in_real, *weight = weight_real, *bias = bias_real;

    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) {
            double sum = bias ? bias[o] : 0;

            for (int c = 0; c < C; c++)
                sum += (double)in[(size_t)n * C + c] * weight[(size_t)o * C + c];
            out[(size_t)n * OC + o] = (float)sum;
        }
    }
}

static void matmul_backward(void *din_real, float *dweight, float *dbias, const void *dout_real,
                            const void *in_real, const void *weight_real, int N, int C, int OC)
{
    float *din = din_real;
    const float *dout = dout_real, *in = in_real, *weight = weight_real;

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
    const float *q, *k, *v; /* (T, width) */
    size_t qkv, out, lse;   /* offset of the head's first element in each array */
    size_t row, out_row;    /* 3C, C */
    int width;              /* C/H */
    double scale;           /* of the scores */
};

static struct head head_at(const float *qkv, int b, int h, int T, int C, int H)
{
    const int width = C / H;
    const size_t first = (size_t)b * T * 3 * C + (size_t)h * width;

    return (struct head){
        .q = qkv + first,
        .k = qkv + first + C,
        .v = qkv + first + 2 * (size_t)C,
        .qkv = first,
        .out = (size_t)b * T * C + (size_t)h * width,
        .lse = ((size_t)b * H + h) * T,
        .row = 3 * (size_t)C,
        .out_row = (size_t)C,
        .width = width,
        .scale = 1 / sqrt(width),
    };
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* How much position t looks at position s, before the softmax. */
static double score(const struct head *d, int t, int s)
{
    return d->scale * dot(d->q + t * d->row, d->k + s * d->row, d->width);
}

/* log(sum(e^score)) over the positions up to t */
static double log_sum_exp(const struct head *d, int t)
{
    double max = score(d, t, 0), sum = 0;

    for (int s = 1; s <= t; s++)
        max = fmax(max, score(d, t, s));
    for (int s = 0; s <= t; s++)
        sum += exp(score(d, t, s) - max);
    return max + log(sum);
}

/* out = sum(p v) over the positions up to t, as many columns at a time as have room here. */
static void weighted_values(const struct head *d, float *out, int t, double lse)
{
    double sum[64];
    const int columns = sizeof sum / sizeof sum[0];

    for (int first = 0; first < d->width; first += columns) {
        const int n = d->width - first < columns ? d->width - first : columns;

        for (int i = 0; i < n; i++)
            sum[i] = 0;
        for (int s = 0; s <= t; s++) {
            const double p = exp(score(d, t, s) - lse);

            for (int i = 0; i < n; i++)
                sum[i] += p * d->v[s * d->row + first + i];
        }
        for (int i = 0; i < n; i++)
            out[first + i] = (float)sum[i];
    }
}

static void attention_forward(void *out, float *lse, const void *qkv, int B, int T, int C, int H)
{
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            const struct head d = head_at(qkv, b, h, T, C, H);

            for (int t = 0; t < T; t++) {
                const double row_lse = log_sum_exp(&d, t);

                weighted_values(&d, (float *)out + d.out + t * d.out_row, t, row_lse);
                lse[d.lse + t] = (float)row_lse;
            }
        }
    }
}

/* Gradients of one head, (T, width) each. */
struct head_sums {
    double *dq, *dk, *dv;
};

/* What position t adds. With p = e^(score - lse), dp = dout v and out = sum(p v):
 *   dscore = p (dp - sum(p dp)), where sum(p dp) = dout out */
static void add_position(const struct head *d, const struct head_sums *sums, int t, double lse,
                         const float *dout, const float *out)
{
    const double mean = dot(dout, out, d->width);
    const size_t width = (size_t)d->width;

    for (int s = 0; s <= t; s++) {
        const double p = exp(score(d, t, s) - lse);
        const double dp = dot(dout, d->v + s * d->row, d->width);
        const double dscore = p * (dp - mean);

        for (size_t i = 0; i < width; i++) {
            sums->dv[s * width + i] += p * dout[i];
            sums->dq[t * width + i] += d->scale * dscore * d->k[s * d->row + i];
            sums->dk[s * width + i] += d->scale * dscore * d->q[t * d->row + i];
        }
    }
}

static size_t attention_scratch(int B, int T, int C, int H)
{
    (void)B; /* one head at a time */
    return 3 * (size_t)T * (size_t)(C / H) * sizeof(double);
}

static void attention_backward(void *dqkv, void *scratch, const void *dout, const void *out,
                               const float *lse, const void *qkv, int B, int T, int C, int H)
{
    const size_t width = (size_t)(C / H), n = (size_t)T * width;
    const struct head_sums sums = {scratch, (double *)scratch + n, (double *)scratch + 2 * n};

    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            const struct head d = head_at(qkv, b, h, T, C, H);
            float *dq = (float *)dqkv + d.qkv;

            for (size_t i = 0; i < 3 * n; i++)
                sums.dq[i] = 0;
            for (int t = 0; t < T; t++)
                add_position(&d, &sums, t, lse[d.lse + t],
                             (const float *)dout + d.out + t * d.out_row,
                             (const float *)out + d.out + t * d.out_row);
            for (int t = 0; t < T; t++) {
                for (size_t i = 0; i < width; i++) {
                    dq[t * d.row + i] = (float)sums.dq[t * width + i];
                    dq[t * d.row + C + i] = (float)sums.dk[t * width + i];
                    dq[t * d.row + 2 * (size_t)C + i] = (float)sums.dv[t * width + i];
                }
            }
        }
    }
}

/* gelu(x) = x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3) */
static void gelu_forward(void *out, const void *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = ((const float *)in)[i], u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);

        ((float *)out)[i] = (float)(0.5 * x * (1 + tanh(u)));
    }
}

static void gelu_backward(void *din, const void *dout, const void *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double x = ((const float *)in)[i], u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        const double du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        const double th = tanh(u), dy = ((const float *)dout)[i];

        ((float *)din)[i] = (float)(dy * (0.5 * (1 + th) + 0.5 * x * (1 - th * th) * du));
    }
}

static void matmul_gelu_forward(void *out, void *pre, const void *in, const void *weight,
                                const void *bias, int N, int C, int OC)
{
    matmul_forward(pre, in, weight, bias, N, C, OC);
    gelu_forward(out, pre, (size_t)N * (size_t)OC);
}

static void residual_forward(void *out, const void *a_real, const void *b_real,
                             const void *bias_real, int N, int C)
{
    const float *a = a_real, *b = b_real, *bias = bias_real;

    for (size_t n = 0; n < (size_t)N; n++)
        for (size_t c = 0; c < (size_t)C; c++)
            ((float *)out)[n * C + c] =
                (float)((double)a[n * C + c] + b[n * C + c] + (bias ? bias[c] : 0));
}

static void xent_stats(float *stats, const void *logits, const int32_t *targets, int N, int V,
                       int first)
{
    for (int n = 0; n < N; n++) {
        const float *x = (const float *)logits + (size_t)n * V;
        const int target = targets[n] - first;
        double sum = 0;
        float max = x[0];

        for (int i = 1; i < V; i++)
            max = x[i] > max ? x[i] : max;
        for (int i = 0; i < V; i++)
            sum += exp((double)x[i] - max);
        stats[n] = max;
        stats[(size_t)N + n] = (float)sum;
        stats[2 * (size_t)N + n] = target >= 0 && target < V ? x[target] : 0;
    }
}

/* log(sum(e^x)) over a row of which each part knows its largest x and its sum(e^(x - largest)) */
static void xent_combine(double *loss, float *lse, const float *stats, int parts, int N)
{
    const size_t part = 3 * (size_t)N;

    for (int n = 0; n < N; n++) {
        const float *max = stats + n, *sum = max + N, *logit = sum + N;
        double row_max = max[0], row_sum = 0, target = 0;

        for (int i = 1; i < parts; i++)
            row_max = fmax(row_max, max[i * part]);
        for (int i = 0; i < parts; i++) {
            row_sum += sum[i * part] * exp(max[i * part] - row_max);
            target += logit[i * part];
        }
        lse[n] = (float)(row_max + log(row_sum));
        *loss += row_max + log(row_sum) - target;
    }
}

static void xent_backward(void *dlogits, const void *logits, const float *lse,
                          const int32_t *targets, float scale, int N, int V, int first)
{
    for (int n = 0; n < N; n++) {
        const float *x = (const float *)logits + (size_t)n * V;
        float *dx = (float *)dlogits + (size_t)n * V;

        for (int i = 0; i < V; i++)
            dx[i] =
                (float)(scale * (exp((double)x[i] - lse[n]) - (i == targets[n] - first ? 1 : 0)));
    }
}

static void adamw(float *w, void *real, float *m, float *v, const float *g, size_t n,
                  const struct holmes_adamw_step *s)
{
    for (size_t i = 0; i < n; i++) {
        const float grad = s->grad_scale * g[i];

        m[i] = s->beta1 * m[i] + (1 - s->beta1) * grad;
        v[i] = s->beta2 * v[i] + (1 - s->beta2) * grad * grad;
        w[i] -= s->lr * (m[i] / s->correction1 / (sqrtf(v[i] / s->correction2) + s->eps) +
                         s->weight_decay * w[i]);
        if (real)
            ((float *)real)[i] = w[i];
    }
}

static void sum_squares(double *sum, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        *sum += (double)x[i] * x[i];
}

const struct holmes_kernels holmes_kernels_ref = {
    .name = "ref",
    .dtype = HOLMES_FLOAT32,
    .alloc = holmes_host_alloc,
    .free = free,
    .zero = holmes_host_zero,
    .copy = holmes_host_copy,
    .sync = holmes_host_sync,
    .on_wait = holmes_host_on_wait,
    .stream = holmes_host_stream,
    .error = holmes_host_error,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .matmul_forward = matmul_forward,
    .matmul_gelu_forward = matmul_gelu_forward,
    .matmul_backward = matmul_backward,
    .attention_forward = attention_forward,
    .attention_scratch = attention_scratch,
    .attention_backward = attention_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .residual_forward = residual_forward,
    .xent_stats = xent_stats,
    .xent_combine = xent_combine,
    .xent_backward = xent_backward,
    .adamw = adamw,
    .convert = holmes_host_convert,
    .sum_squares = sum_squares,
};
