/* Backward of every reference layer, and of whole stages, against central finite differences of
 * the forward. The differences use four points, whose error falls with the fourth power of the
 * distance, so that the distance can be wide enough for float32. */
#include "layers.h"
#include "numeric.h"
#include "stage.h"

#include <stdio.h>

/* Of the largest gradient of the same tensor. What is measured is some 1e-4. */
#define TOLERANCE 1e-3

static const struct shape shapes[] = {
    {.B = 1, .T = 1, .C = 1, .H = 1, .V = 2, .OC = 1},
    {.B = 2, .T = 5, .C = 6, .H = 3, .V = 7, .OC = 5},
    {.B = 1, .T = 9, .C = 10, .H = 2, .V = 11, .OC = 13},
    {.B = 3, .T = 4, .C = 13, .H = 1, .V = 5, .OC = 3},
    {.B = 2, .T = 3, .C = 8, .H = 8, .V = 17, .OC = 24},
};

/* d f / d *x by finite differences. */
static double difference(double (*f)(void *ctx), void *ctx, float *x, float h)
{
    const float at = *x;
    double v[4];
    static const float points[4] = {-2, -1, 1, 2};

    for (int i = 0; i < 4; i++) {
        *x = at + points[i] * h;
        v[i] = f(ctx);
    }
    *x = at;
    return (8 * (v[2] - v[1]) - (v[3] - v[0])) / (12 * (double)h);
}

struct check {
    const struct holmes_kernels *k;
    const struct layer *l;
    const struct shape *s;
    struct layer_buffers b;
};

/* sum(out dout), whose gradient in the inputs is what backward gives. */
static double layer_objective(void *ctx)
{
    struct check *c = ctx;
    double sum = c->l->forward(c->k, c->s, &c->b);

    for (size_t i = 0; i < c->b.n_out; i++)
        sum += (double)c->b.out[i] * c->b.dout[i];
    return sum;
}

/* Worst disagreement over all inputs of the layer, relative to the largest gradient of its tensor
 * (or 0.1 where all are tiny). */
static double layer_disagreement(const struct holmes_kernels *k, const struct layer *l,
                                 const struct shape *s)
{
    struct check c = {.k = k, .l = l, .s = s};
    double worst = 0;

    layer_buffers_init(l, s, &c.b);
    layer_objective(&c);
    l->backward(k, s, &c.b);
    for (int i = 0; i < LAYER_INPUTS; i++) {
        float *before = numeric_noise("gradient", c.b.n_in[i], 0, 1);
        double diff = 0, size = 0.1;

        for (size_t j = 0; j < c.b.n_in[i]; j++) {
            const double got = (double)c.b.grad[i][j] - (l->adds[i] ? before[j] : 0);
            const double want = difference(layer_objective, &c, &c.b.in[i][j], 1.0f / 32);

            size = fmax(size, fabs(want));
            diff = isfinite(got) ? fmax(diff, fabs(got - want)) : INFINITY;
        }
        worst = fmax(worst, diff / size);
        free(before);
    }
    layer_buffers_fini(&c.b);
    return worst;
}

Test(gradients, every_layer_agrees_with_finite_differences)
{
    const struct holmes_kernels *ref = holmes_kernels_find("ref");

    for (size_t i = 0; i < nlayers; i++) {
        for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++) {
            const double d = layer_disagreement(ref, &layers[i], &shapes[j]);

            cr_expect(d < TOLERANCE, "%s, shape %zu: backward is off by %g of its size",
                      layers[i].name, j, d);
        }
    }
}

/* Backwards that are wrong in one place each, on top of the reference's. */

static void wrong_embedding(float *dwte, float *dwpe, const void *dout, const int32_t *tokens,
                            int B, int T, int C, int first, int V)
{
    const int last = tokens[B * T - 1] - first;

    /* the last token is forgotten */
    holmes_kernels_find("ref")->embedding_backward(dwte, dwpe, dout, tokens, B, T, C, first, V);
    for (int c = 0; c < C && last >= 0 && last < V; c++)
        dwte[(size_t)last * C + c] -= ((const float *)dout)[((size_t)B * T - 1) * C + c];
}

static void wrong_layernorm(void *din, float *dweight, float *dbias, const void *dout,
                            const void *in, const float *mean, const float *rstd,
                            const void *weight, int N, int C)
{
    /* dweight without the mean's removal in one row */
    holmes_kernels_find("ref")->layernorm_backward(din, dweight, dbias, dout, in, mean, rstd,
                                                   weight, N, C);
    for (int c = 0; c < C; c++)
        dweight[c] += ((const float *)dout)[c] * mean[0] * rstd[0];
}

static void wrong_matmul(void *din, float *dweight, float *dbias, const void *dout, const void *in,
                         const void *weight, int N, int C, int OC)
{
    /* din one percent too large */
    holmes_kernels_find("ref")->matmul_backward(din, dweight, dbias, dout, in, weight, N, C, OC);
    for (size_t i = 0; i < (size_t)N * C; i++)
        ((float *)din)[i] *= 1.01f;
}

static void wrong_attention(void *dqkv, void *scratch, const void *dout, const void *out,
                            const float *lse, const void *qkv, int B, int T, int C, int H)
{
    /* the gradient of the keys ten percent too large */
    holmes_kernels_find("ref")->attention_backward(dqkv, scratch, dout, out, lse, qkv, B, T, C, H);
    for (size_t row = 0; row < (size_t)B * T; row++)
        for (int c = C; c < 2 * C; c++)
            ((float *)dqkv)[row * 3 * C + c] *= 1.1f;
}

static void wrong_gelu(void *din_real, const void *dout, const void *in, size_t n)
{
    float *din = din_real;
    size_t largest = 0;

    /* one element one percent too large */
    holmes_kernels_find("ref")->gelu_backward(din, dout, in, n);

    for (size_t i = 0; i < n; i++)
        largest = fabsf(din[i]) > fabsf(din[largest]) ? i : largest;
    din[largest] *= 1.01f;
}

static void wrong_xent(void *dlogits, const void *logits, const float *lse, const int32_t *targets,
                       float scale, int N, int V, int first)
{
    const int last = targets[N - 1] - first;

    /* no target in the last row */
    holmes_kernels_find("ref")->xent_backward(dlogits, logits, lse, targets, scale, N, V, first);
    if (last >= 0 && last < V)
        ((float *)dlogits)[(size_t)(N - 1) * V + last] += scale;
}

static struct holmes_kernels wrong_kernels(void)
{
    struct holmes_kernels k = *holmes_kernels_find("ref");

    k.embedding_backward = wrong_embedding;
    k.layernorm_backward = wrong_layernorm;
    k.matmul_backward = wrong_matmul;
    k.attention_backward = wrong_attention;
    k.gelu_backward = wrong_gelu;
    k.xent_backward = wrong_xent;
    return k;
}

Test(gradients, check_of_a_layer_finds_a_small_mistake)
{
    const struct holmes_kernels wrong = wrong_kernels();

    for (size_t i = 0; i < nlayers; i++) {
        if (strncmp(layers[i].name, "residual", 8) == 0)
            continue; /* its backward has no kernel */

        const double d = layer_disagreement(&wrong, &layers[i], &shapes[1]);

        cr_expect(d > 3 * TOLERANCE, "%s: a wrong backward passes with %g", layers[i].name, d);
    }
}

/* Whole stages */

struct stage_check {
    struct holmes_stage *stage;
    int32_t *tokens, *targets;
    float *in, *out, *dout; /* (B, T, C) of a stage in the middle */
    size_t n;
};

static double stage_objective(void *ctx)
{
    struct stage_check *c = ctx;
    double loss, sum = 0;

    cr_assert_eq(holmes_stage_forward(c->stage, 0, c->tokens, c->targets, c->in, c->out), 0);
    holmes_stage_take_loss(c->stage, &loss);
    if (c->out)
        for (size_t i = 0; i < c->n; i++)
            sum += (double)c->out[i] * c->dout[i];
    return loss + sum;
}

/* Worst disagreement of `n` gradients with differences of the values, at the largest gradient and
 * some others. */
static double array_disagreement(struct stage_check *c, float *values, const float *grads, size_t n,
                                 const char *name)
{
    const uint64_t key = holmes_random_key(3, name, strlen(name));
    size_t largest = 0;
    double worst = 0;

    for (size_t i = 0; i < n; i++)
        largest = fabsf(grads[i]) > fabsf(grads[largest]) ? i : largest;
    for (int i = 0; i < 8; i++) {
        const size_t at = i == 0 ? largest : (size_t)holmes_random_below(key, (uint64_t)i, n);
        const double want = difference(stage_objective, c, &values[at], 1.0f / 64);
        const double size = fmax(fabs((double)grads[largest]), 1e-3);

        worst = fmax(worst, fabs(grads[at] - want) / size);
    }
    return worst;
}

/* Worst over all tensors and, for a stage that has one, the input. */
static double stage_disagreement(const struct holmes_kernels *k, bool first, bool last, bool tied,
                                 char *where, size_t where_len)
{
    const struct holmes_model m = {
        .layers = 3, .channels = 10, .heads = 2, .seq_len = 7, .vocab = 19, .tied = tied};
    const struct holmes_stage_attr attr = {.model = m,
                                           .first_layer = first ? 0 : 1,
                                           .last_layer = last ? 3 : 2,
                                           .is_first = first,
                                           .is_last = last,
                                           .batch = 2,
                                           .slots = 1,
                                           .kernels = k};
    struct stage_check c = {.n = (size_t)attr.batch * m.seq_len * m.channels};
    float *din = first ? NULL : numeric_noise("din", c.n, 0, 1);
    double worst = 0;

    cr_assert_eq(holmes_stage_create(&attr, &c.stage), 0);
    c.tokens = numeric_tokens("tokens", c.n, m.vocab);
    c.targets = numeric_tokens("targets", c.n, m.vocab);
    c.in = first ? NULL : numeric_noise("in", c.n, 0, 1);
    c.out = last ? NULL : numeric_noise("out", c.n, 0, 1);
    c.dout = last ? NULL : numeric_noise("dout", c.n, 0, 1);

    /* Larger values than a fresh model's, so that no gradient drowns in rounding. */
    float *params = holmes_stage_weights(c.stage), *grads = holmes_stage_grads(c.stage);
    float *noise = numeric_noise("params", holmes_stage_nparams(c.stage), 0, 0.3);
    holmes_stage_init_params(c.stage, 1);
    for (size_t i = 0; i < holmes_stage_nparams(c.stage); i++)
        params[i] += noise[i];

    stage_objective(&c);
    cr_assert_eq(holmes_stage_backward(c.stage, 0, c.dout, din, 1), 0);
    for (int i = 0; i < holmes_stage_ntensors(c.stage); i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(c.stage, i);
        const double d =
            array_disagreement(&c, params + t->offset, grads + t->offset, t->count, t->name);

        if (d > worst)
            snprintf(where, where_len, "%s", t->name);
        worst = fmax(worst, d);
    }
    if (din)
        worst = fmax(worst, array_disagreement(&c, c.in, din, c.n, "din"));
    holmes_stage_destroy(c.stage);
    free(c.tokens);
    free(c.targets);
    free(c.in);
    free(c.out);
    free(c.dout);
    free(din);
    free(noise);
    return worst;
}

Test(gradients, every_tensor_of_a_stage_agrees_with_finite_differences)
{
    const struct holmes_kernels *ref = holmes_kernels_find("ref");

    for (int i = 0; i < 8; i++) {
        char where[64] = "";
        const double d = stage_disagreement(ref, i & 1, i & 2, i & 4, where, sizeof where);

        cr_expect(d < TOLERANCE, "first %d, last %d, tied %d: %s is off by %g of its size", i & 1,
                  !!(i & 2), !!(i & 4), where, d);
    }
}

Test(gradients, check_of_a_stage_finds_a_small_mistake)
{
    char where[64] = "";
    struct holmes_kernels wrong = *holmes_kernels_find("ref");

    wrong.attention_backward = wrong_attention;
    cr_expect_gt(stage_disagreement(&wrong, true, true, false, where, sizeof where), 3 * TOLERANCE);
    wrong = *holmes_kernels_find("ref");
    wrong.matmul_backward = wrong_matmul;
    cr_expect_gt(stage_disagreement(&wrong, true, true, false, where, sizeof where), 3 * TOLERANCE);
}
