/* AdamW over the tensors of a stage: the formula, weight decay by tensor, ranges, and masters. */
#include "../support/bf16_kernels.h"

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
    const float *stepped = holmes_stage_weights(s), *initial = holmes_stage_weights(start);
    double *m = calloc(n, sizeof *m), *v = calloc(n, sizeof *v), *w = calloc(n, sizeof *w);
    struct holmes_optimizer *o;

    for (size_t i = 0; i < n; i++)
        w[i] = initial[i];
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
                if (fabs(stepped[i] - w[i]) > 3e-6 * (1 + fabs(w[i])))
                    cr_assert_fail("step %d, %s: %.9g, want %.9g", t, tensor->name, stepped[i],
                                   w[i]);
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
    cr_expect_arr_eq(holmes_stage_weights(whole), holmes_stage_weights(cut), n * sizeof(float));
    for (int i = 0; i < parts; i++)
        holmes_optimizer_destroy(part[i]);
    holmes_optimizer_destroy(all);
    holmes_stage_destroy(whole);
    holmes_stage_destroy(cut);
}

struct masters {
    struct holmes_optimizer *o;
    size_t first, count;
};

static void follow(void *ctx, size_t offset, size_t count, const float *values)
{
    holmes_optimizer_set_masters(((struct masters *)ctx)->o, offset, count, values);
}

/* Two stages with equal gradients, one in bfloat16 and one in float32, are updated by one operation
 * on the same float32 weights. */
Test(optimizer, masters_of_bfloat16_are_the_weights_of_float32)
{
    const struct holmes_kernels *tables[] = {bf16_kernels(), holmes_kernels_find("ref")};
    struct holmes_stage_attr attr = {
        .model = {.layers = 2, .channels = 15, .heads = 3, .seq_len = 6, .vocab = 31},
        .last_layer = 2,
        .is_first = true,
        .is_last = true,
        .batch = 1,
        .slots = 1};
    struct masters part[2] = {{.first = 333, .count = 1000}, {.first = 333, .count = 1000}};
    struct holmes_stage *s[2];
    const uint16_t *rounded;
    const float *whole, *masters;
    size_t n;

    for (int i = 0; i < 2; i++) {
        attr.kernels = tables[i];
        cr_assert_eq(holmes_stage_create(&attr, &s[i]), 0);
        cr_assert_eq(holmes_optimizer_create(s[i], &hp, part[i].first, part[i].count, &part[i].o),
                     0);
        holmes_stage_set_hooks(s[i], &(struct holmes_stage_hooks){.set = follow, .ctx = &part[i]});
        holmes_stage_init_params(s[i], 1);
    }
    n = holmes_stage_nparams(s[0]);
    rounded = holmes_stage_weights(s[0]);
    whole = holmes_stage_weights(s[1]);
    masters = holmes_optimizer_masters(part[0].o);
    cr_expect_eq(holmes_optimizer_masters(part[1].o), whole + part[1].first, "no second array");
    for (int t = 0; t <= 3; t++) {
        for (int i = 0; i < 2 && t > 0; i++) {
            set_gradients(s[i], t == 2 ? "two" : "other");
            holmes_optimizer_step(part[i].o, 0.01f, 0.5f, t);
        }
        cr_expect_arr_eq(masters, whole + part[0].first, part[0].count * sizeof *masters, "step %d",
                         t);
        for (size_t i = 0; i < n; i++)
            cr_assert_eq(rounded[i], bf16_round(whole[i]), "step %d, weight %zu", t, i);
    }
    for (int i = 0; i < 2; i++) {
        holmes_optimizer_destroy(part[i].o);
        holmes_stage_destroy(s[i]);
    }
}

Test(optimizer, touches_nothing_outside_its_range)
{
    struct holmes_stage *s = stage_with_gradients(), *before = stage_with_gradients();
    const size_t n = holmes_stage_nparams(s), first = 333, count = 1000;
    const float *now = holmes_stage_weights(s), *then = holmes_stage_weights(before);
    struct holmes_optimizer *o;

    set_gradients(s, "g");
    cr_assert_eq(holmes_optimizer_create(s, &hp, first, count, &o), 0);
    holmes_optimizer_step(o, 0.01f, 1, 1);
    cr_expect_arr_eq(now, then, first * sizeof(float));
    cr_expect_arr_eq(now + first + count, then + first + count,
                     (n - first - count) * sizeof(float));
    for (size_t i = first; i < first + count; i++)
        cr_expect_neq(now[i], then[i]);
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
