/* Every layer of the cpu table against the reference, over sizes that are multiples of nothing,
 * with one thread and several. */
#include "layers.h"
#include "numeric.h"

#include <stdbool.h>

#define TOLERANCE 2e-5 /* of the largest number of the same array */

/* Around one vector, around the block of attention (64), one row, one column, and the sizes of a
 * real model; the last ones are large enough to be shared out over threads. */
static const struct shape shapes[] = {
    {.B = 1, .T = 1, .C = 1, .H = 1, .V = 2, .OC = 1},
    {.B = 2, .T = 3, .C = 5, .H = 1, .V = 7, .OC = 3},
    {.B = 1, .T = 17, .C = 24, .H = 3, .V = 33, .OC = 31},
    {.B = 3, .T = 8, .C = 16, .H = 2, .V = 15, .OC = 8},
    {.B = 1, .T = 1, .C = 129, .H = 3, .V = 1000, .OC = 77},
    {.B = 5, .T = 64, .C = 64, .H = 4, .V = 256, .OC = 192},
    {.B = 2, .T = 65, .C = 40, .H = 5, .V = 257, .OC = 129},
    {.B = 1, .T = 130, .C = 33, .H = 3, .V = 50, .OC = 17},
    {.B = 4, .T = 63, .C = 252, .H = 7, .V = 300, .OC = 257},
    {.B = 1, .T = 1, .C = 3, .H = 3, .V = 50257, .OC = 1},
    {.B = 1, .T = 3, .C = 70, .H = 1, .V = 50257, .OC = 5},
    {.B = 1, .T = 300, .C = 128, .H = 2, .V = 2, .OC = 16},
};

static void run(const struct holmes_kernels *k, const struct layer *l, const struct shape *s,
                struct layer_buffers *b, double *loss)
{
    layer_buffers_init(l, s, b);
    *loss = l->forward(k, s, b);
    l->backward(k, s, b);
}

static void expect_close(const char *layer, int shape, const char *array, const float *got,
                         const float *want, size_t n)
{
    const double d = numeric_distance(got, want, n);

    cr_expect(d <= TOLERANCE, "%s, shape %d: %s differs by %g of its size", layer, shape, array, d);
}

static void compare(const struct layer *l, int shape)
{
    struct layer_buffers ref, cpu;
    double ref_loss, cpu_loss;

    run(holmes_kernels_find("ref"), l, &shapes[shape], &ref, &ref_loss);
    run(holmes_kernels_find("cpu"), l, &shapes[shape], &cpu, &cpu_loss);
    cr_expect_float_eq(cpu_loss, ref_loss, 1e-6 * fabs(ref_loss), "%s, shape %d: loss %.9g, %.9g",
                       l->name, shape, cpu_loss, ref_loss);
    expect_close(l->name, shape, "output", cpu.out, ref.out, ref.n_out);
    for (int i = 0; i < LAYER_SAVED; i++)
        expect_close(l->name, shape, i == 0 ? "saved 0" : "saved 1", cpu.saved[i], ref.saved[i],
                     ref.n_saved[i]);
    for (int i = 0; i < LAYER_INPUTS; i++)
        if (ref.n_in[i] > 0)
            expect_close(l->name, shape, "gradient", cpu.grad[i], ref.grad[i], ref.n_in[i]);
    layer_buffers_fini(&ref);
    layer_buffers_fini(&cpu);
}

static void compare_all(int threads)
{
    holmes_kernels_set_threads(threads);
    for (size_t i = 0; i < nlayers; i++)
        for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++)
            compare(&layers[i], (int)j);
}

Test(parity, cpu_layers_agree_with_ref_on_one_thread)
{
    compare_all(1);
}

Test(parity, cpu_layers_agree_with_ref_on_several_threads)
{
    compare_all(2);
    compare_all(3);
}

/* Both have been through the same layer; true when every bit is the same. */
static bool buffers_equal(const struct layer_buffers *a, const struct layer_buffers *b)
{
    bool equal = memcmp(a->out, b->out, a->n_out * sizeof(float)) == 0;

    for (int i = 0; i < LAYER_SAVED; i++)
        equal = equal && memcmp(a->saved[i], b->saved[i], a->n_saved[i] * sizeof(float)) == 0;
    for (int i = 0; i < LAYER_INPUTS; i++)
        equal = equal && (a->n_in[i] == 0 ||
                          memcmp(a->grad[i], b->grad[i], a->n_in[i] * sizeof(float)) == 0);
    return equal;
}

Test(parity, same_number_of_threads_gives_the_same_bits)
{
    const int last = (int)(sizeof shapes / sizeof shapes[0]);

    for (int threads = 1; threads <= 3; threads++) {
        holmes_kernels_set_threads(threads);
        for (size_t i = 0; i < nlayers; i++) {
            for (int j = 5; j < last; j++) {
                struct layer_buffers a, b;
                double a_loss, b_loss;

                run(holmes_kernels_find("cpu"), &layers[i], &shapes[j], &a, &a_loss);
                run(holmes_kernels_find("cpu"), &layers[i], &shapes[j], &b, &b_loss);
                cr_expect(buffers_equal(&a, &b) && a_loss == b_loss,
                          "%s, shape %d, %d threads: two runs differ", layers[i].name, j, threads);
                layer_buffers_fini(&a);
                layer_buffers_fini(&b);
            }
        }
    }
}

struct xent_result {
    double loss;
    float *lse, *dlogits; /* (N), (N, V) */
};

/* Cross entropy over a vocabulary in `parts`, each with its own columns. */
static struct xent_result xent_in_parts(const struct holmes_kernels *k, const float *logits,
                                        const int32_t *targets, int N, int V, int parts)
{
    const size_t rows = (size_t)N, width = (size_t)V;
    struct xent_result r = {0, calloc(rows, sizeof(float)), calloc(rows * width, sizeof(float))};
    float *part = calloc(rows * width, sizeof *part);
    float *stats = calloc((size_t)parts * 3 * rows, sizeof *stats);

    cr_assert(r.lse && r.dlogits && part && stats);
    for (int backward = 0; backward < 2; backward++) {
        for (int p = 0; p < parts; p++) {
            const size_t first = width * (size_t)p / (size_t)parts;
            const size_t n = width * (size_t)(p + 1) / (size_t)parts - first;

            for (size_t i = 0; i < rows; i++)
                memcpy(part + i * n, logits + i * width + first, n * sizeof *part);
            if (!backward) {
                k->xent_stats(stats + (size_t)p * 3 * rows, part, targets, N, (int)n, (int)first);
                continue;
            }
            k->xent_backward(part, part, r.lse, targets, 0.5f, N, (int)n, (int)first);
            for (size_t i = 0; i < rows; i++)
                memcpy(r.dlogits + i * width + first, part + i * n, n * sizeof *part);
        }
        if (!backward)
            k->xent_combine(&r.loss, r.lse, stats, parts, N);
    }
    free(part);
    free(stats);
    return r;
}

static void xent_result_destroy(struct xent_result *r)
{
    free(r->lse);
    free(r->dlogits);
}

static void compare_parts(const struct holmes_kernels *k, int N, int V)
{
    float *logits = numeric_noise("logits", (size_t)N * V, 1, 3);
    int32_t *targets = numeric_tokens("targets", (size_t)N, V);
    struct xent_result whole = xent_in_parts(k, logits, targets, N, V, 1);

    for (int parts = 2; parts <= 3 && parts <= V; parts++) {
        struct xent_result r = xent_in_parts(k, logits, targets, N, V, parts);

        cr_expect_float_eq(r.loss, whole.loss, 1e-6 * (fabs(whole.loss) + N),
                           "%s, %d x %d in %d parts: loss %.9g, %.9g", k->name, N, V, parts, r.loss,
                           whole.loss);
        cr_expect_leq(numeric_distance(r.lse, whole.lse, (size_t)N), 1e-6);
        cr_expect_leq(numeric_distance(r.dlogits, whole.dlogits, (size_t)N * V), 3e-6,
                      "%s, %d x %d in %d parts", k->name, N, V, parts);
        xent_result_destroy(&r);
    }
    xent_result_destroy(&whole);
    free(logits);
    free(targets);
}

Test(parity, parts_of_a_vocabulary_add_up_to_the_whole)
{
    static const int sizes[][2] = {{1, 1}, {1, 2}, {1, 7}, {17, 7}, {1, 50257}, {3, 50257}};
    const char *names[] = {"ref", "cpu"};

    for (int i = 0; i < 2; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++)
            compare_parts(holmes_kernels_find(names[i]), sizes[j][0], sizes[j][1]);
}

Test(parity, a_vocabulary_of_one_costs_nothing)
{
    const char *names[] = {"ref", "cpu"};

    for (int i = 0; i < 2; i++) {
        const float logit = 3.5f;
        const int32_t target = 0;
        struct xent_result r =
            xent_in_parts(holmes_kernels_find(names[i]), &logit, &target, 1, 1, 1);

        cr_expect_float_eq(r.loss, 0, 1e-6);
        cr_expect_float_eq(r.dlogits[0], 0, 1e-6);
        xent_result_destroy(&r);
    }
}

Test(parity, comparison_finds_one_wrong_element)
{
    float *a = numeric_noise("a", 1000, 0, 1), *b = numeric_noise("a", 1000, 0, 1);

    cr_expect_eq(numeric_distance(a, b, 1000), 0);
    b[999] += 1e-3f;
    cr_expect_gt(numeric_distance(a, b, 1000), TOLERANCE);
    b[999] = NAN;
    cr_expect_gt(numeric_distance(a, b, 1000), TOLERANCE);
    free(a);
    free(b);
}

Test(parity, attention_looks_at_no_later_position)
{
    const struct shape s = {.B = 2, .T = 70, .C = 12, .H = 3};
    const size_t row = (size_t)s.C;
    const char *names[] = {"ref", "cpu"};

    for (int i = 0; i < 2; i++) {
        const struct holmes_kernels *k = holmes_kernels_find(names[i]);
        float *qkv = numeric_noise("qkv", (size_t)s.B * s.T * 3 * s.C, 0, 1);
        float *lse = numeric_noise("lse", (size_t)s.B * s.H * s.T, 0, 1);
        float *before = numeric_noise("out", (size_t)s.B * s.T * s.C, 0, 1);
        float *after = numeric_noise("out", (size_t)s.B * s.T * s.C, 0, 1);

        k->attention_forward(before, lse, qkv, s.B, s.T, s.C, s.H);
        for (size_t j = 66 * 3 * row; j < (size_t)s.T * 3 * row; j++) /* of the first sequence */
            qkv[j] += 1;
        k->attention_forward(after, lse, qkv, s.B, s.T, s.C, s.H);
        cr_expect_arr_eq(after, before, 66 * row * sizeof(float), "%s", names[i]);
        cr_expect_gt(numeric_distance(after + 66 * row, before + 66 * row, row), 0.01);
        cr_expect_arr_eq(after + s.T * row, before + s.T * row, s.T * row * sizeof(float));
        free(qkv);
        free(lse);
        free(before);
        free(after);
    }
}

/* Loss and gradient of one row. */
static double xent(const struct holmes_kernels *k, float *dlogits, const float *logits,
                   int32_t target, int V)
{
    float stats[3], lse;
    double loss = 0;

    k->xent_stats(stats, logits, &target, 1, V, 0);
    k->xent_combine(&loss, &lse, stats, 1, 1);
    k->xent_backward(dlogits, logits, &lse, &target, 1, 1, V, 0);
    return loss;
}

Test(parity, far_values_saturate_as_the_reference_does)
{
    static const float x[] = {-1e6f, -1e3f, -88, -30, -10, -6,   -1e-6f, 0,   1e-6f,
                              6,     10,    30,  88,  100, 1e3f, 1e6f,   1e9f};
    const size_t n = sizeof x / sizeof x[0];
    float ones[sizeof x / sizeof x[0]], ref[sizeof x / sizeof x[0]], cpu[sizeof x / sizeof x[0]];
    const struct holmes_kernels *r = holmes_kernels_find("ref"), *c = holmes_kernels_find("cpu");

    for (size_t i = 0; i < n; i++)
        ones[i] = 1;
    r->gelu_forward(ref, x, n);
    c->gelu_forward(cpu, x, n);
    for (size_t i = 0; i < n; i++)
        cr_expect_float_eq(cpu[i], ref[i], 1e-6 * fabs(ref[i]) + 1e-7, "gelu(%g): %g, %g", x[i],
                           cpu[i], ref[i]);
    r->gelu_backward(ref, ones, x, n);
    c->gelu_backward(cpu, ones, x, n);
    for (size_t i = 0; i < n; i++)
        cr_expect_float_eq(cpu[i], ref[i], 1e-5, "gelu'(%g): %g, %g", x[i], cpu[i], ref[i]);

    for (size_t i = 0; i < n; i++) {
        const double r_loss = xent(r, ref, x, (int32_t)i, (int)n);
        const double c_loss = xent(c, cpu, x, (int32_t)i, (int)n);

        cr_expect_float_eq(c_loss, r_loss, 1e-6 * fabs(r_loss) + 1e-7, "target %zu: %g, %g", i,
                           c_loss, r_loss);
        cr_expect_leq(numeric_distance(cpu, ref, n), TOLERANCE, "target %zu", i);
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

struct adamw_arrays {
    float *w, *m, *v, *g;
};

static struct adamw_arrays adamw_arrays_create(size_t n)
{
    struct adamw_arrays a = {numeric_noise("w", n, 0, 1), numeric_noise("m", n, 0, 1),
                             numeric_noise("v", n, 0, 1), numeric_noise("g", n, 0, 1)};

    for (size_t i = 0; i < n; i++)
        a.v[i] *= a.v[i];
    return a;
}

static void adamw_arrays_destroy(struct adamw_arrays *a)
{
    free(a->w);
    free(a->m);
    free(a->v);
    free(a->g);
}

Test(parity, adamw_follows_its_formula)
{
    static const size_t sizes[] = {0, 1, 7, 8, 31, 1000, 100003};
    const char *names[] = {"ref", "cpu"};

    holmes_kernels_set_threads(2);
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof sizes[0]; i++) {
        const size_t n = sizes[i / 4];
        struct adamw_arrays a = adamw_arrays_create(n), b = adamw_arrays_create(n);
        float *real = numeric_noise("real", n, 0, 1);

        holmes_kernels_find(names[i % 2])->adamw(a.w, i & 2 ? real : NULL, a.m, a.v, a.g, n, &step);
        if (i & 2)
            cr_expect_arr_eq(real, a.w, n * sizeof(float));
        for (size_t j = 0; j < n; j++) {
            const double g = 0.5 * b.g[j], m = 0.9 * b.m[j] + 0.1 * g;
            const double v = 0.95 * b.v[j] + 0.05 * g * g;
            const double w =
                b.w[j] - 0.01 * (m / 0.271 / (sqrt(v / 0.142625) + 1e-8) + 0.1 * b.w[j]);

            if (fabs(a.m[j] - m) > 1e-6 || fabs(a.v[j] - v) > 1e-6 * (1 + v) ||
                fabs(a.w[j] - w) > 1e-5 * (1 + fabs(w)))
                cr_assert_fail("%s, element %zu of %zu: w %g m %g v %g, want %g %g %g",
                               names[i % 2], j, n, a.w[j], a.m[j], a.v[j], w, m, v);
        }
        adamw_arrays_destroy(&a);
        adamw_arrays_destroy(&b);
        free(real);
    }
}

Test(parity, adamw_gives_an_element_the_same_bits_at_any_place)
{
    const size_t n = 70001, cuts[] = {0, 1, 6, 4099, 40000, n};
    const struct holmes_kernels *k = holmes_kernels_find("cpu");
    struct adamw_arrays a = adamw_arrays_create(n), b = adamw_arrays_create(n);

    holmes_kernels_set_threads(2);
    k->adamw(a.w, NULL, a.m, a.v, a.g, n, &step);
    holmes_kernels_set_threads(1);
    for (size_t i = 0; i + 1 < sizeof cuts / sizeof cuts[0]; i++)
        k->adamw(b.w + cuts[i], NULL, b.m + cuts[i], b.v + cuts[i], b.g + cuts[i],
                 cuts[i + 1] - cuts[i], &step);
    cr_expect_arr_eq(a.w, b.w, n * sizeof(float));
    cr_expect_arr_eq(a.m, b.m, n * sizeof(float));
    cr_expect_arr_eq(a.v, b.v, n * sizeof(float));
    adamw_arrays_destroy(&a);
    adamw_arrays_destroy(&b);
}

Test(parity, sum_of_squares_does_not_depend_on_the_cut)
{
    const size_t n = 300007, cuts[] = {0, 1, 77, 1000, 150000, 299999, n};
    const char *names[] = {"ref", "cpu"};
    float *x = numeric_noise("x", n, 0.5, 3);
    long double want = 0;

    holmes_kernels_set_threads(2);
    for (size_t i = 0; i < n; i++)
        want += (long double)x[i] * x[i];
    for (int j = 0; j < 2; j++) {
        const struct holmes_kernels *k = holmes_kernels_find(names[j]);
        double whole = 0, parts = 0;

        k->sum_squares(&whole, x, n);

        for (size_t i = 0; i + 1 < sizeof cuts / sizeof cuts[0]; i++)
            k->sum_squares(&parts, x + cuts[i], cuts[i + 1] - cuts[i]);
        cr_expect_float_eq(whole, (double)want, 1e-12 * (double)want, "%s: %.17g", names[j], whole);
        cr_expect_float_eq(parts, whole, 1e-12 * whole, "%s: %.17g, %.17g", names[j], parts, whole);
        k->sum_squares(&parts, x, 0);
        cr_expect_float_eq(parts, whole, 1e-12 * whole);
    }
    free(x);
}

Test(parity, converted_weights_are_the_masters_where_both_are_float32)
{
    const char *names[] = {"ref", "cpu"};

    for (int i = 0; i < 2; i++) {
        const struct holmes_kernels *k = holmes_kernels_find(names[i]);
        float *w = numeric_noise("w", 1001, 0, 1), *real = numeric_noise("real", 1001, 0, 1);

        cr_expect_eq(k->dtype, HOLMES_FLOAT32);
        k->convert(real, w, 1001);
        k->convert(w, w, 1001);
        cr_expect_arr_eq(real, w, 1001 * sizeof(float), "%s", names[i]);
        free(w);
        free(real);
    }
}

Test(parity, tables_are_found_by_name)
{
    cr_expect_str_eq(holmes_kernels_find("ref")->name, "ref");
    cr_expect_str_eq(holmes_kernels_find("cpu")->name, "cpu");
    cr_expect_str_eq(holmes_kernels_find(NULL)->name, "cpu");
    cr_expect_null(holmes_kernels_find("tpu"));
    cr_expect_not_null(strstr(holmes_kernels_names(), "ref"));
}
