/* The table of layers: which arrays each has, and how it is called. */
#include "layers.h"

#include "numeric.h"

static size_t rows(const struct shape *s)
{
    return (size_t)s->B * (size_t)s->T;
}

static void embedding_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = (size_t)s->V * s->C; /* wte */
    b->n_in[1] = (size_t)s->T * s->C; /* wpe */
    b->n_out = rows(s) * s->C;
}

static double embedding_forward(const struct holmes_kernels *k, const struct shape *s,
                                struct layer_buffers *b)
{
    k->embedding_forward(b->out, b->tokens, b->in[0], b->in[1], s->B, s->T, s->C, 0, s->V);
    return 0;
}

static void embedding_backward(const struct holmes_kernels *k, const struct shape *s,
                               struct layer_buffers *b)
{
    k->embedding_backward(b->grad[0], b->grad[1], b->dout, b->tokens, s->B, s->T, s->C, 0, s->V);
}

/* The vocabulary in three parts, as ranks would share it, one after the other; a part of no rows
 * is left out. */
#define VOCAB_PARTS 3

static int part_first(const struct shape *s, int part)
{
    return s->V * part / VOCAB_PARTS;
}

static int part_rows(const struct shape *s, int part)
{
    return part_first(s, part + 1) - part_first(s, part);
}

static double embedding_in_parts_forward(const struct holmes_kernels *k, const struct shape *s,
                                         struct layer_buffers *b)
{
    float *part = numeric_noise("part", b->n_out, 0, 1);

    memset(b->out, 0, b->n_out * sizeof(float));
    for (int i = 0; i < VOCAB_PARTS; i++) {
        const int first = part_first(s, i), V = part_rows(s, i);

        if (V == 0)
            continue;
        k->embedding_forward(part, b->tokens, b->in[0] + (size_t)first * s->C,
                             i == VOCAB_PARTS - 1 ? b->in[1] : NULL, s->B, s->T, s->C, first, V);
        for (size_t j = 0; j < b->n_out; j++)
            b->out[j] += part[j];
    }
    free(part);
    return 0;
}

static void embedding_in_parts_backward(const struct holmes_kernels *k, const struct shape *s,
                                        struct layer_buffers *b)
{
    for (int i = 0; i < VOCAB_PARTS; i++) {
        const int first = part_first(s, i), V = part_rows(s, i);

        if (V > 0)
            k->embedding_backward(b->grad[0] + (size_t)first * s->C,
                                  i == VOCAB_PARTS - 1 ? b->grad[1] : NULL, b->dout, b->tokens,
                                  s->B, s->T, s->C, first, V);
    }
}

static void layernorm_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = b->n_out = rows(s) * s->C;
    b->n_in[1] = b->n_in[2] = (size_t)s->C; /* weight, bias */
    b->n_saved[0] = b->n_saved[1] = rows(s);
}

static double layernorm_forward(const struct holmes_kernels *k, const struct shape *s,
                                struct layer_buffers *b)
{
    k->layernorm_forward(b->out, b->saved[0], b->saved[1], b->in[0], b->in[1], b->in[2],
                         s->B * s->T, s->C);
    return 0;
}

static void layernorm_backward(const struct holmes_kernels *k, const struct shape *s,
                               struct layer_buffers *b)
{
    k->layernorm_backward(b->grad[0], b->grad[1], b->grad[2], b->dout, b->in[0], b->saved[0],
                          b->saved[1], b->in[1], s->B * s->T, s->C);
}

static void matmul_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = rows(s) * s->C;
    b->n_in[1] = (size_t)s->OC * s->C; /* weight */
    b->n_in[2] = (size_t)s->OC;        /* bias */
    b->n_out = rows(s) * s->OC;
}

static double matmul_forward(const struct holmes_kernels *k, const struct shape *s,
                             struct layer_buffers *b)
{
    k->matmul_forward(b->out, b->in[0], b->in[1], b->in[2], s->B * s->T, s->C, s->OC);
    return 0;
}

static void matmul_backward(const struct holmes_kernels *k, const struct shape *s,
                            struct layer_buffers *b)
{
    k->matmul_backward(b->grad[0], b->grad[1], b->grad[2], b->dout, b->in[0], b->in[1], s->B * s->T,
                       s->C, s->OC);
}

static void matmul_no_bias_sizes(const struct shape *s, struct layer_buffers *b)
{
    matmul_sizes(s, b);
    b->n_in[2] = 0; /* leaves in[2] and grad[2] NULL */
}

static void matmul_gelu_sizes(const struct shape *s, struct layer_buffers *b)
{
    matmul_sizes(s, b);
    b->n_saved[0] = b->n_out; /* before the gelu */
}

static double matmul_gelu_forward(const struct holmes_kernels *k, const struct shape *s,
                                  struct layer_buffers *b)
{
    k->matmul_gelu_forward(b->out, b->saved[0], b->in[0], b->in[1], b->in[2], s->B * s->T, s->C,
                           s->OC);
    return 0;
}

static void matmul_gelu_backward(const struct holmes_kernels *k, const struct shape *s,
                                 struct layer_buffers *b)
{
    float *dpre = numeric_noise("dpre", b->n_out, 0, 1);

    k->gelu_backward(dpre, b->dout, b->saved[0], b->n_out);
    k->matmul_backward(b->grad[0], b->grad[1], b->grad[2], dpre, b->in[0], b->in[1], s->B * s->T,
                       s->C, s->OC);
    free(dpre);
}

static void attention_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = rows(s) * 3 * s->C;
    b->n_out = rows(s) * s->C;
    b->n_saved[0] = rows(s) * s->H; /* lse */
}

static double attention_forward(const struct holmes_kernels *k, const struct shape *s,
                                struct layer_buffers *b)
{
    k->attention_forward(b->out, b->saved[0], b->in[0], s->B, s->T, s->C, s->H);
    return 0;
}

static void attention_backward(const struct holmes_kernels *k, const struct shape *s,
                               struct layer_buffers *b)
{
    const size_t bytes = k->attention_scratch(s->B, s->T, s->C, s->H);
    void *scratch = malloc(bytes + 1);

    cr_assert_not_null(scratch);
    memset(scratch, 0xff, bytes); /* no number in any format */
    k->attention_backward(b->grad[0], scratch, b->dout, b->out, b->saved[0], b->in[0], s->B, s->T,
                          s->C, s->H);
    free(scratch);
}

static void gelu_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = b->n_out = rows(s) * s->C;
}

static double gelu_forward(const struct holmes_kernels *k, const struct shape *s,
                           struct layer_buffers *b)
{
    (void)s;
    k->gelu_forward(b->out, b->in[0], b->n_out);
    return 0;
}

static void gelu_backward(const struct holmes_kernels *k, const struct shape *s,
                          struct layer_buffers *b)
{
    (void)s;
    k->gelu_backward(b->grad[0], b->dout, b->in[0], b->n_out);
}

static void gelu_backward_in_place(const struct holmes_kernels *k, const struct shape *s,
                                   struct layer_buffers *b)
{
    (void)s;
    memcpy(b->grad[0], b->dout, b->n_out * sizeof(float));
    k->gelu_backward(b->grad[0], b->grad[0], b->in[0], b->n_out);
}

static void residual_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = b->n_in[1] = b->n_out = rows(s) * s->C;
    b->n_in[2] = (size_t)s->C; /* bias */
}

static void residual_no_bias_sizes(const struct shape *s, struct layer_buffers *b)
{
    residual_sizes(s, b);
    b->n_in[2] = 0;
}

static double residual_forward(const struct holmes_kernels *k, const struct shape *s,
                               struct layer_buffers *b)
{
    k->residual_forward(b->out, b->in[0], b->in[1], b->in[2], s->B * s->T, s->C);
    return 0;
}

static double residual_in_place_forward(const struct holmes_kernels *k, const struct shape *s,
                                        struct layer_buffers *b)
{
    memcpy(b->out, b->in[0], b->n_out * sizeof(float));
    k->residual_forward(b->out, b->out, b->in[1], b->in[2], s->B * s->T, s->C);
    return 0;
}

/* The gradient of a sum passes to all of its parts; no kernel is called. */
static void residual_backward(const struct holmes_kernels *k, const struct shape *s,
                              struct layer_buffers *b)
{
    k->copy(b->grad[0], b->dout, b->n_out * sizeof(float));
    k->copy(b->grad[1], b->dout, b->n_out * sizeof(float));
    for (size_t c = 0; c < b->n_in[2]; c++) {
        double sum = 0;

        for (size_t row = 0; row < rows(s); row++)
            sum += b->dout[row * (size_t)s->C + c];
        b->grad[2][c] = (float)sum;
    }
}

static void xent_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = rows(s) * s->V;
    b->n_saved[0] = rows(s); /* lse */
    b->n_saved[1] = VOCAB_PARTS * 3 * rows(s);
}

#define XENT_SCALE 0.25f

static double xent_combine(const struct holmes_kernels *k, const struct shape *s,
                           struct layer_buffers *b, int parts)
{
    double loss = 3; /* is added to */

    k->xent_combine(&loss, b->saved[0], b->saved[1], parts, s->B * s->T);
    return (double)XENT_SCALE * (loss - 3);
}

static double xent_forward(const struct holmes_kernels *k, const struct shape *s,
                           struct layer_buffers *b)
{
    k->xent_stats(b->saved[1], b->in[0], b->tokens, s->B * s->T, s->V, 0);
    return xent_combine(k, s, b, 1);
}

static void xent_backward(const struct holmes_kernels *k, const struct shape *s,
                          struct layer_buffers *b)
{
    k->xent_backward(b->grad[0], b->in[0], b->saved[0], b->tokens, XENT_SCALE, s->B * s->T, s->V,
                     0);
}

static void xent_backward_in_place(const struct holmes_kernels *k, const struct shape *s,
                                   struct layer_buffers *b)
{
    memcpy(b->grad[0], b->in[0], b->n_in[0] * sizeof(float));
    k->xent_backward(b->grad[0], b->grad[0], b->saved[0], b->tokens, XENT_SCALE, s->B * s->T, s->V,
                     0);
}

/* Columns [first, first + n) of x (rows, V), as the rank that has them would hold them. free() it.
 */
static float *columns(const struct shape *s, const float *x, int first, int n)
{
    float *part = malloc((rows(s) * (size_t)n + 1) * sizeof *part);

    cr_assert_not_null(part);
    for (size_t row = 0; row < rows(s); row++)
        memcpy(part + row * (size_t)n, x + row * (size_t)s->V + first, (size_t)n * sizeof *part);
    return part;
}

static double xent_in_parts_forward(const struct holmes_kernels *k, const struct shape *s,
                                    struct layer_buffers *b)
{
    int parts = 0;

    for (int i = 0; i < VOCAB_PARTS; i++) {
        const int first = part_first(s, i), V = part_rows(s, i);
        float *logits = columns(s, b->in[0], first, V);

        if (V > 0)
            k->xent_stats(b->saved[1] + 3 * rows(s) * (size_t)parts++, logits, b->tokens,
                          s->B * s->T, V, first);
        free(logits);
    }
    return xent_combine(k, s, b, parts);
}

static void xent_in_parts_backward(const struct holmes_kernels *k, const struct shape *s,
                                   struct layer_buffers *b)
{
    for (int i = 0; i < VOCAB_PARTS; i++) {
        const int first = part_first(s, i), V = part_rows(s, i);
        float *part = columns(s, b->in[0], first, V);

        if (V > 0)
            k->xent_backward(part, part, b->saved[0], b->tokens, XENT_SCALE, s->B * s->T, V, first);
        for (size_t row = 0; row < rows(s); row++)
            memcpy(b->grad[0] + row * (size_t)s->V + first, part + row * (size_t)V,
                   (size_t)V * sizeof *part);
        free(part);
    }
}

const struct layer layers[] = {
    {"embedding", {true, true}, embedding_sizes, embedding_forward, embedding_backward},
    {"embedding in parts",
     {true, true},
     embedding_sizes,
     embedding_in_parts_forward,
     embedding_in_parts_backward},
    {"layernorm", {true, true, true}, layernorm_sizes, layernorm_forward, layernorm_backward},
    {"matmul", {false, true, true}, matmul_sizes, matmul_forward, matmul_backward},
    {"matmul without bias", {false, true}, matmul_no_bias_sizes, matmul_forward, matmul_backward},
    {"matmul and gelu",
     {false, true, true},
     matmul_gelu_sizes,
     matmul_gelu_forward,
     matmul_gelu_backward},
    {"attention", {false}, attention_sizes, attention_forward, attention_backward},
    {"gelu", {false}, gelu_sizes, gelu_forward, gelu_backward},
    {"gelu in place", {false}, gelu_sizes, gelu_forward, gelu_backward_in_place},
    {"residual", {false}, residual_sizes, residual_forward, residual_backward},
    {"residual without bias", {false}, residual_no_bias_sizes, residual_forward, residual_backward},
    {"residual in place", {false}, residual_sizes, residual_in_place_forward, residual_backward},
    {"xent", {false}, xent_sizes, xent_forward, xent_backward},
    {"xent in place", {false}, xent_sizes, xent_forward, xent_backward_in_place},
    {"xent in parts", {false}, xent_sizes, xent_in_parts_forward, xent_in_parts_backward},
};
const size_t nlayers = sizeof layers / sizeof layers[0];

void layer_buffers_init(const struct layer *l, const struct shape *s, struct layer_buffers *b)
{
    memset(b, 0, sizeof *b);
    l->sizes(s, b);
    for (int i = 0; i < LAYER_INPUTS; i++) {
        const char label[] = {'i', (char)('0' + i), 0};

        if (b->n_in[i] == 0)
            continue;
        b->in[i] = numeric_noise(label, b->n_in[i], 0.3, 1);
        b->grad[i] = numeric_noise("gradient", b->n_in[i], 0, 1);
    }
    b->out = numeric_noise("out", b->n_out, 0, 1);
    b->dout = numeric_noise("dout", b->n_out, 0, 1);
    for (int i = 0; i < LAYER_SAVED; i++)
        b->saved[i] = numeric_noise("saved", b->n_saved[i], 0, 1);
    b->tokens = numeric_tokens("tokens", rows(s), s->V);
}

void layer_buffers_fini(struct layer_buffers *b)
{
    for (int i = 0; i < LAYER_INPUTS; i++) {
        free(b->in[i]);
        free(b->grad[i]);
    }
    for (int i = 0; i < LAYER_SAVED; i++)
        free(b->saved[i]);
    free(b->out);
    free(b->dout);
    free(b->tokens);
}
