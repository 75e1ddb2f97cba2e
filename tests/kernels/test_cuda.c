/* The cuda tables against the reference. Without a GPU their kernels run on the emulated one, whose
 * products of matrices are plain loops; with HOLMES_TEST_GPU set, on this machine's first GPU. */
#include "facade.h"
#include "layers.h"
#include "numeric.h"

#include "../support/sample.h"

#include "cuda_emulated.h"

/* Of the largest number of the same array. bf16 has 8 bits: its rounding is 2^-9 of a number, made
 * several times within a layer. */
#define TOLERANCE      2e-5
#define TOLERANCE_BF16 1.6e-2

/* Around the rows of a block of attention (32 or 64), its tiles (32), its widths of heads (64,
 * 128); around a warp, a block, the 8 or 4 numbers that are loaded at once; multiples of all, of
 * none. */
static const struct shape shapes[] = {
    {.B = 1, .T = 1, .C = 1, .H = 1, .V = 2, .OC = 1},
    {.B = 2, .T = 3, .C = 5, .H = 1, .V = 7, .OC = 3},
    {.B = 1, .T = 17, .C = 24, .H = 3, .V = 33, .OC = 31},
    {.B = 3, .T = 8, .C = 16, .H = 2, .V = 15, .OC = 8},
    {.B = 1, .T = 1, .C = 129, .H = 3, .V = 1000, .OC = 77},
    {.B = 2, .T = 64, .C = 64, .H = 2, .V = 256, .OC = 192},
    {.B = 2, .T = 65, .C = 40, .H = 5, .V = 257, .OC = 129},
    {.B = 1, .T = 130, .C = 33, .H = 3, .V = 50, .OC = 17},
    {.B = 1, .T = 33, .C = 256, .H = 4, .V = 300, .OC = 257},
    {.B = 1, .T = 97, .C = 128, .H = 1, .V = 64, .OC = 8},
    {.B = 1, .T = 40, .C = 130, .H = 2, .V = 9, .OC = 5},
    {.B = 1, .T = 35, .C = 101, .H = 1, .V = 520, .OC = 16},
    {.B = 70, .T = 1, .C = 8, .H = 1, .V = 3, .OC = 8},
    {.B = 1, .T = 3, .C = 1030, .H = 10, .V = 5000, .OC = 2},
};

static const char *const tables[] = {"cuda", "cuda-bf16"};

static const struct holmes_kernels *table(int i)
{
    const struct holmes_kernels *k;
    char why[700] = "";

    if (!getenv("HOLMES_TEST_GPU"))
        return emulated_table(tables[i]);
    k = holmes_kernels_open(tables[i], 0, why, sizeof why);
    cr_assert_not_null(k, "%s", why);
    return k;
}

static double tolerance(const struct holmes_kernels *k)
{
    return k->dtype == HOLMES_FLOAT32 ? TOLERANCE : TOLERANCE_BF16;
}

static void run(const struct holmes_kernels *device, const struct holmes_kernels *k,
                const struct layer *l, const struct shape *s, struct layer_buffers *b, double *loss)
{
    layer_buffers_init(l, s, b);
    for (int i = 0; i < LAYER_INPUTS; i++) {
        facade_round(device, b->in[i], b->n_in[i]);
        if (!l->adds[i] || strcmp(l->name, "layernorm") == 0)
            facade_round(device, b->grad[i], b->n_in[i]); /* din of layernorm is an activation */
    }
    facade_round(device, b->dout, b->n_out);
    *loss = l->forward(k, s, b);
    l->backward(k, s, b);
}

static void expect_close(const struct holmes_kernels *k, const char *layer, const struct shape *s,
                         const char *array, const float *got, const float *want, size_t n)
{
    const double d = numeric_distance(got, want, n);

    cr_expect(d <= tolerance(k), "%s, %s, B %d T %d C %d H %d V %d OC %d: %s differs by %g",
              k->name, layer, s->B, s->T, s->C, s->H, s->V, s->OC, array, d);
}

static void compare(const struct holmes_kernels *device, const struct layer *l,
                    const struct shape *s, size_t shift)
{
    const struct holmes_kernels *k = facade_of(device, shift);
    struct layer_buffers want, got;
    double want_loss, got_loss;

    run(device, holmes_kernels_find("ref"), l, s, &want, &want_loss);
    run(device, k, l, s, &got, &got_loss);
    cr_expect_float_eq(got_loss, want_loss, 1e-6 * fabs(want_loss), "%s, %s: loss %.9g, %.9g",
                       device->name, l->name, got_loss, want_loss);
    expect_close(device, l->name, s, "output", got.out, want.out, want.n_out);
    for (int i = 0; i < LAYER_SAVED; i++)
        expect_close(device, l->name, s, i == 0 ? "saved 0" : "saved 1", got.saved[i],
                     want.saved[i], want.n_saved[i]);
    for (int i = 0; i < LAYER_INPUTS; i++)
        if (want.n_in[i] > 0)
            expect_close(device, l->name, s, "gradient", got.grad[i], want.grad[i], want.n_in[i]);
    layer_buffers_fini(&want);
    layer_buffers_fini(&got);
}

/* Every `nth` shape. */
static void compare_all(int i, size_t shift, size_t nth)
{
    for (size_t l = 0; l < nlayers; l++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s += nth * sample_every())
            compare(table(i), &layers[l], &shapes[s], shift);
}

Test(cuda, float32_layers_agree_with_ref)
{
    compare_all(0, 0, 1);
}

Test(cuda, bfloat16_layers_agree_with_ref)
{
    compare_all(1, 0, 1);
}

Test(cuda, arrays_may_start_anywhere)
{
    compare_all(0, 1, 3);
    compare_all(1, 1, 3);
}

/* Everything that a layer leaves, in one array. free() it. */
static float *results(const struct holmes_kernels *k, const struct layer *l, const struct shape *s,
                      size_t *n)
{
    struct layer_buffers b;
    float *all;
    double loss;

    run(k, facade_of(k, 0), l, s, &b, &loss);
    *n = b.n_out + b.n_saved[0] + b.n_saved[1] + b.n_in[0] + b.n_in[1] + b.n_in[2];
    all = malloc((*n + 1) * sizeof *all);
    cr_assert_not_null(all);
    all[0] = (float)loss;
    *n = 1;
    for (int i = 0; i < LAYER_SAVED; i++)
        for (size_t j = 0; j < b.n_saved[i]; j++)
            all[(*n)++] = b.saved[i][j];
    for (int i = 0; i < LAYER_INPUTS; i++)
        for (size_t j = 0; j < b.n_in[i]; j++)
            all[(*n)++] = b.grad[i][j];
    layer_buffers_fini(&b);
    return all;
}

/* On the emulated GPU a missing barrier shows here; on a real one a sum made by chance. */
static void same_bits(const struct holmes_kernels *k, const struct layer *l, const struct shape *s)
{
    size_t n, again;
    float *first, *next;

    emulated_order(EMULATED_ORDER_FORWARD);
    first = results(k, l, s, &n);
    for (int order = EMULATED_ORDER_BACKWARD; order <= EMULATED_ORDER_SHUFFLED; order++) {
        emulated_order(order);
        next = results(k, l, s, &again);
        cr_expect_eq(n, again);
        cr_expect_arr_eq(first, next, n * sizeof *first, "%s, %s, B %d T %d C %d: order %d",
                         k->name, l->name, s->B, s->T, s->C, order);
        free(next);
    }
    free(first);
    emulated_order(EMULATED_ORDER_FORWARD);
}

Test(cuda, same_call_gives_the_same_bits_in_any_order_of_threads_and_blocks)
{
    static const size_t some[] = {2, 7, 9};

    for (int i = 0; i < 2; i++)
        for (size_t l = 0; l < nlayers; l++)
            for (size_t s = 0; s < sizeof some / sizeof some[0]; s += sample_every())
                same_bits(table(i), &layers[l], &shapes[some[s]]);
}

Test(cuda, attention_looks_at_no_later_position)
{
    const struct shape s = {.B = 2, .T = 70, .C = 12, .H = 3};
    const size_t row = (size_t)s.C;

    for (int i = 0; i < 2; i++) {
        const struct holmes_kernels *k = facade_of(table(i), 0);
        float *qkv = numeric_noise("qkv", (size_t)s.B * s.T * 3 * s.C, 0, 1);
        float *lse = numeric_noise("lse", (size_t)s.B * s.H * s.T, 0, 1);
        float *before = numeric_noise("out", (size_t)s.B * s.T * s.C, 0, 1);
        float *after = numeric_noise("out", (size_t)s.B * s.T * s.C, 0, 1);

        k->attention_forward(before, lse, qkv, s.B, s.T, s.C, s.H);
        for (size_t j = 66 * 3 * row; j < (size_t)s.T * 3 * row; j++) /* of the first sequence */
            qkv[j] += 1;
        k->attention_forward(after, lse, qkv, s.B, s.T, s.C, s.H);
        cr_expect_arr_eq(after, before, 66 * row * sizeof(float), "%s", tables[i]);
        cr_expect_gt(numeric_distance(after + 66 * row, before + 66 * row, row), 0.01);
        cr_expect_arr_eq(after + s.T * row, before + s.T * row, s.T * row * sizeof(float));
        free(qkv);
        free(lse);
        free(before);
        free(after);
    }
}

Test(cuda, far_values_saturate_as_the_reference_does)
{
    float x[] = {-1e6f, -1e3f, -88, -30, -10, -6,   -1e-6f, 0,   1e-6f,
                 6,     10,    30,  88,  100, 1e3f, 1e6f,   1e9f};
    const size_t n = sizeof x / sizeof x[0];
    int32_t target = 3; /* the facade writes back what it was given */
    float ones[sizeof x / sizeof x[0]], want[sizeof x / sizeof x[0]], got[sizeof x / sizeof x[0]];
    const struct holmes_kernels *r = holmes_kernels_find("ref"), *k = facade_of(table(0), 0);
    float stats[2][3], lse[2];

    for (size_t i = 0; i < n; i++)
        ones[i] = 1;
    r->gelu_forward(want, x, n);
    k->gelu_forward(got, x, n);
    for (size_t i = 0; i < n; i++)
        cr_expect_float_eq(got[i], want[i], 1e-6 * fabs(want[i]) + 1e-7, "gelu(%g): %g, %g", x[i],
                           got[i], want[i]);
    r->gelu_backward(want, ones, x, n);
    k->gelu_backward(got, ones, x, n);
    for (size_t i = 0; i < n; i++)
        cr_expect_float_eq(got[i], want[i], 1e-5, "gelu'(%g): %g, %g", x[i], got[i], want[i]);
    r->xent_stats(stats[0], x, &target, 1, (int)n, 0);
    k->xent_stats(stats[1], x, &target, 1, (int)n, 0);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(stats[1][i], stats[0][i]);
    for (int i = 0; i < 2; i++) {
        double loss = 0;

        (i == 0 ? r : k)->xent_combine(&loss, &lse[i], stats[i], 1, 1);
        cr_expect_float_eq(loss, 1e9 + 30, 100);
    }
    r->xent_backward(want, x, lse, &target, 1, 1, (int)n, 0);
    k->xent_backward(got, x, lse + 1, &target, 1, 1, (int)n, 0);
    cr_expect_leq(numeric_distance(got, want, n), TOLERANCE);
}

/* What training would not survive must be seen. */
Test(cuda, a_loss_of_no_number_is_none)
{
    float logits[600];
    int32_t target = 5;

    for (int i = 0; i < 600; i++)
        logits[i] = i == 511 ? NAN : 1;
    for (int i = 0; i < 2; i++) {
        const struct holmes_kernels *k = facade_of(table(i), 0);
        float stats[3], lse;
        double loss = 0;

        k->xent_stats(stats, logits, &target, 1, 600, 0);
        k->xent_combine(&loss, &lse, stats, 1, 1);
        cr_expect(isnan(loss), "%s: %g", tables[i], loss);
    }
}

static const struct holmes_adamw_step step = {.lr = 1e-2f,
                                              .beta1 = 0.9f,
                                              .beta2 = 0.95f,
                                              .eps = 1e-8f,
                                              .weight_decay = 0.1f,
                                              .grad_scale = 0.5f,
                                              .correction1 = 0.271f,
                                              .correction2 = 0.142625f};

static void adamw_agrees(const struct holmes_kernels *k, const struct holmes_kernels *device,
                         size_t n)
{
    const struct holmes_kernels *ref = holmes_kernels_find("ref");
    float *want[4], *got[4], *real = numeric_noise("real", n, 0, 1);
    static const char *const names[] = {"w", "m", "v", "g"};

    for (int i = 0; i < 4; i++) {
        want[i] = numeric_noise(names[i], n, 0, 1);
        for (size_t j = 0; j < n && i == 2; j++)
            want[i][j] *= want[i][j];
        got[i] = malloc((n + 1) * sizeof(float));
        cr_assert_not_null(got[i]);
        memcpy(got[i], want[i], n * sizeof(float));
    }
    ref->adamw(want[0], NULL, want[1], want[2], want[3], n, &step);
    k->adamw(got[0], real, got[1], got[2], got[3], n, &step);
    for (int i = 0; i < 3; i++)
        cr_expect_leq(numeric_distance(got[i], want[i], n), 1e-6, "%s: %s of %zu", device->name,
                      names[i], n);
    facade_round(device, got[0], n);
    cr_expect_arr_eq(real, got[0], n * sizeof(float), "%s: %zu weights are not the masters'",
                     device->name, n);
    for (int i = 0; i < 4; i++) {
        free(want[i]);
        free(got[i]);
    }
    free(real);
}

Test(cuda, adamw_agrees_with_ref_and_writes_the_weights)
{
    static const size_t sizes[] = {0, 1, 31, 1000, 100003};

    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++)
            adamw_agrees(facade_of(table(i), 0), table(i), sizes[j]);
}

Test(cuda, conversion_rounds_to_nearest)
{
    const size_t n = 5000;
    float *w = numeric_noise("w", n, 0, 100), *real = numeric_noise("real", n, 0, 1);

    for (int i = 0; i < 2; i++) {
        w[0] = 1.00390625f; /* halfway: to the even one below */
        w[1] = 1.01171875f; /* halfway: to the even one above */
        facade_of(table(i), 0)->convert(real, w, n);
        facade_round(table(i), w, n);
        cr_expect_arr_eq(real, w, n * sizeof(float), "%s", tables[i]);
    }
    cr_expect_eq(w[0], 1);
    cr_expect_eq(w[1], 1.015625f);
    free(w);
    free(real);
}

Test(cuda, sum_of_squares_does_not_depend_on_the_cut)
{
    const size_t n = 70007, cuts[] = {0, 1, 77, 1000, 15000, 69999, n};
    const struct holmes_kernels *k = facade_of(table(0), 0);
    float *x = numeric_noise("x", n, 0.5, 3);
    double whole = 7, parts = 7;
    long double want = 7;

    for (size_t i = 0; i < n; i++)
        want += (long double)x[i] * x[i];
    k->sum_squares(&whole, x, n);
    for (size_t i = 0; i + 1 < sizeof cuts / sizeof cuts[0]; i++)
        k->sum_squares(&parts, x + cuts[i], cuts[i + 1] - cuts[i]);
    cr_expect_float_eq(whole, (double)want, 1e-12 * (double)want);
    cr_expect_float_eq(parts, (double)want, 1e-12 * (double)want);
    k->sum_squares(&whole, x, 0);
    cr_expect_float_eq(whole, (double)want, 1e-12 * (double)want);
    free(x);
}

Test(cuda, heads_that_do_not_fit_are_an_error)
{
    const struct holmes_kernels *k = table(0);
    float *memory = k->alloc(4 * 129 * sizeof(float));

    cr_assert_null(k->error());
    k->attention_forward(memory, memory + 129, memory, 1, 1, 129, 1);
    k->sync();
    cr_assert_not_null(k->error());
    cr_expect_not_null(strstr(k->error(), "128"), "%s", k->error());
    k->free(memory);
    emulated_forget_error();
}
