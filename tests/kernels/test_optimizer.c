/* AdamW over the tensors of a stage: the formula, weight decay by tensor, and ranges. */
#include "log.h"
#include "numeric.h"
#include "optimizer.h"

#include <errno.h>
#include <stdio.h>

static const struct holmes_adamw hp = {
    .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f};

static struct holmes_stage *stage_with_gradients(void)
{
    const struct holmes_stage_attr attr = {
        .model = {.layers = 2, .channels = 15, .heads = 3, .seq_len = 6, .vocab = 31},
        .last_layer = 2,
        .is_first = true,
        .is_last = true,
        .batch = 1,
        .slots = 1,
        .kernels = holmes_kernels_find("cpu")};
    struct holmes_stage *s;

    cr_assert_eq(holmes_stage_create(&attr, &s), 0);
    holmes_stage_init_params(s, 1);
    return s;
}

static void set_gradients(struct holmes_stage *s, const char *label)
{
    const size_t n = holmes_stage_nparams(s);
    float *noise = numeric_noise(label, n, 0, 1);

    memcpy(holmes_stage_grads(s), noise, n * sizeof *noise);
    free(noise);
}

Test(optimizer, steps_follow_adamw_with_decay_on_matrices_only)
{
    struct holmes_stage *s = stage_with_gradients(), *start = stage_with_gradients();
    const size_t n = holmes_stage_nparams(s);
    double *m = calloc(n, sizeof *m), *v = calloc(n, sizeof *v), *w = calloc(n, sizeof *w);
    struct holmes_optimizer *o;

    for (size_t i = 0; i < n; i++)
        w[i] = holmes_stage_params(start)[i];
    cr_assert_eq(holmes_optimizer_create(s, &hp, 0, n, &o), 0);
    for (int t = 1; t <= 3; t++) {
        set_gradients(s, t == 2 ? "two" : "other");
        holmes_optimizer_step(o, 0.01f, 0.5f, t);
        for (int j = 0; j < holmes_stage_ntensors(s); j++) {
            const struct holmes_tensor *tensor = holmes_stage_tensor(s, j);
            const double decay =
                strstr(tensor->name, "bias") || strstr(tensor->name, "ln_") ? 0 : 0.1;

            for (size_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
                const double g = 0.5 * holmes_stage_grads(s)[i];

                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.99 * v[i] + 0.01 * g * g;
                w[i] -=
                    0.01 * (m[i] / (1 - pow(0.9, t)) / (sqrt(v[i] / (1 - pow(0.99, t))) + 1e-8) +
                            decay * w[i]);
                if (fabs(holmes_stage_params(s)[i] - w[i]) > 3e-6 * (1 + fabs(w[i])))
                    cr_assert_fail("step %d, %s: %.9g, want %.9g", t, tensor->name,
                                   holmes_stage_params(s)[i], w[i]);
            }
        }
    }
    holmes_optimizer_destroy(o);
    holmes_stage_destroy(s);
    holmes_stage_destroy(start);
    free(m);
    free(v);
    free(w);
}

Test(optimizer, ranges_add_up_to_the_whole_bit_for_bit)
{
    struct holmes_stage *whole = stage_with_gradients(), *cut = stage_with_gradients();
    const size_t n = holmes_stage_nparams(whole);
    const size_t cuts[] = {0, 1, 470, 471, n / 3, n / 2 + 5, n, n}; /* inside tensors; one empty */
    const int parts = (int)(sizeof cuts / sizeof cuts[0]) - 1;
    struct holmes_optimizer *all, *part[sizeof cuts / sizeof cuts[0]];

    cr_assert_eq(holmes_optimizer_create(whole, &hp, 0, n, &all), 0);
    for (int i = 0; i < parts; i++)
        cr_assert_eq(holmes_optimizer_create(cut, &hp, cuts[i], cuts[i + 1] - cuts[i], &part[i]),
                     0);
    for (int t = 1; t <= 3; t++) {
        set_gradients(whole, t == 2 ? "two" : "other");
        set_gradients(cut, t == 2 ? "two" : "other");
        holmes_optimizer_step(all, 0.01f, 1, t);
        for (int i = 0; i < parts; i++)
            holmes_optimizer_step(part[i], 0.01f, 1, t);
    }
    cr_expect_arr_eq(holmes_stage_params(whole), holmes_stage_params(cut), n * sizeof(float));
    for (int i = 0; i < parts; i++)
        holmes_optimizer_destroy(part[i]);
    holmes_optimizer_destroy(all);
    holmes_stage_destroy(whole);
    holmes_stage_destroy(cut);
}

Test(optimizer, touches_nothing_outside_its_range)
{
    struct holmes_stage *s = stage_with_gradients(), *before = stage_with_gradients();
    const size_t n = holmes_stage_nparams(s), first = 333, count = 1000;
    struct holmes_optimizer *o;

    set_gradients(s, "g");
    cr_assert_eq(holmes_optimizer_create(s, &hp, first, count, &o), 0);
    holmes_optimizer_step(o, 0.01f, 1, 1);
    cr_expect_arr_eq(holmes_stage_params(s), holmes_stage_params(before), first * sizeof(float));
    cr_expect_arr_eq(holmes_stage_params(s) + first + count,
                     holmes_stage_params(before) + first + count,
                     (n - first - count) * sizeof(float));
    for (size_t i = first; i < first + count; i++)
        cr_expect_neq(holmes_stage_params(s)[i], holmes_stage_params(before)[i]);
    holmes_optimizer_destroy(o);
    holmes_stage_destroy(s);
    holmes_stage_destroy(before);
}

static void drop_log(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                     const char *file, int line, const char *func, const char *msg)
{
    (void)level, (void)subsys, (void)file, (void)line, (void)func;
    snprintf(ctx, 256, "%s", msg);
}

Test(optimizer, refuses_bad_ranges_and_constants)
{
    struct holmes_stage *s = stage_with_gradients();
    const size_t n = holmes_stage_nparams(s);
    struct holmes_optimizer *o = NULL;
    struct holmes_adamw bad = hp;
    char log[256] = "";

    holmes_log_set_sink(drop_log, log, HOLMES_LOG_WARN);
    cr_expect_eq(holmes_optimizer_create(s, &hp, 0, n + 1, &o), -EINVAL);
    cr_expect_eq(holmes_optimizer_create(s, &hp, n + 1, 0, &o), -EINVAL);
    cr_expect_eq(holmes_optimizer_create(s, &hp, 1, SIZE_MAX, &o), -EINVAL);
    cr_expect_not_null(strstr(log, "no range"), "%s", log);
    bad.beta2 = 1;
    cr_expect_eq(holmes_optimizer_create(s, &bad, 0, n, &o), -EINVAL);
    cr_expect_not_null(strstr(log, "beta2 1"), "%s", log);
    bad = hp;
    bad.eps = 0;
    cr_expect_eq(holmes_optimizer_create(s, &bad, 0, n, &o), -EINVAL);
    bad = hp;
    bad.weight_decay = NAN;
    cr_expect_eq(holmes_optimizer_create(s, &bad, 0, n, &o), -EINVAL);
    cr_expect_null(o);
    holmes_stage_destroy(s);
}
