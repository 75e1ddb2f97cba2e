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
    k->embedding_forward(b->out, b->tokens, b->in[0], b->in[1], s->B, s->T, s->C);
    return 0;
}

static void embedding_backward(const struct holmes_kernels *k, const struct shape *s,
                               struct layer_buffers *b)
{
    k->embedding_backward(b->grad[0], b->grad[1], b->dout, b->tokens, s->B, s->T, s->C);
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

static void attention_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = rows(s) * 3 * s->C;
    b->n_out = rows(s) * s->C;
    b->n_saved[0] = rows(s) * s->H * s->T; /* probs */
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
    k->attention_backward(b->grad[0], b->scratch, b->dout, b->saved[0], b->in[0], s->B, s->T, s->C,
                          s->H);
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
}

static double residual_forward(const struct holmes_kernels *k, const struct shape *s,
                               struct layer_buffers *b)
{
    (void)s;
    k->residual_forward(b->out, b->in[0], b->in[1], b->n_out);
    return 0;
}

/* The gradient of a sum passes to both sides; no kernel is called. */
static void residual_backward(const struct holmes_kernels *k, const struct shape *s,
                              struct layer_buffers *b)
{
    (void)s;
    k->copy(b->grad[0], b->dout, b->n_out * sizeof(float));
    k->copy(b->grad[1], b->dout, b->n_out * sizeof(float));
}

static void xent_sizes(const struct shape *s, struct layer_buffers *b)
{
    b->n_in[0] = rows(s) * s->V;
    b->n_saved[0] = rows(s) * s->V; /* probs */
}

static double xent_forward(const struct holmes_kernels *k, const struct shape *s,
                           struct layer_buffers *b)
{
    return 0.25 * k->xent_forward(b->saved[0], b->in[0], b->tokens, s->B * s->T, s->V);
}

static void xent_backward(const struct holmes_kernels *k, const struct shape *s,
                          struct layer_buffers *b)
{
    k->xent_backward(b->grad[0], b->saved[0], b->tokens, 0.25f, s->B * s->T, s->V);
}

static double xent_forward_in_place(const struct holmes_kernels *k, const struct shape *s,
                                    struct layer_buffers *b)
{
    memcpy(b->saved[0], b->in[0], b->n_in[0] * sizeof(float));
    return 0.25 * k->xent_forward(b->saved[0], b->saved[0], b->tokens, s->B * s->T, s->V);
}

static void xent_backward_in_place(const struct holmes_kernels *k, const struct shape *s,
                                   struct layer_buffers *b)
{
    memcpy(b->grad[0], b->saved[0], b->n_in[0] * sizeof(float));
    k->xent_backward(b->grad[0], b->grad[0], b->tokens, 0.25f, s->B * s->T, s->V);
}

const struct layer layers[] = {
    {"embedding", {true, true}, embedding_sizes, embedding_forward, embedding_backward},
    {"layernorm", {true, true, true}, layernorm_sizes, layernorm_forward, layernorm_backward},
    {"matmul", {false, true, true}, matmul_sizes, matmul_forward, matmul_backward},
    {"matmul without bias", {false, true}, matmul_no_bias_sizes, matmul_forward, matmul_backward},
    {"attention", {false}, attention_sizes, attention_forward, attention_backward},
    {"gelu", {false}, gelu_sizes, gelu_forward, gelu_backward},
    {"gelu in place", {false}, gelu_sizes, gelu_forward, gelu_backward_in_place},
    {"residual", {false}, residual_sizes, residual_forward, residual_backward},
    {"xent", {false}, xent_sizes, xent_forward, xent_backward},
    {"xent in place", {false}, xent_sizes, xent_forward_in_place, xent_backward_in_place},
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
    b->scratch = numeric_noise("scratch", b->n_saved[0], 0, 1);
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
    free(b->scratch);
    free(b->tokens);
}
