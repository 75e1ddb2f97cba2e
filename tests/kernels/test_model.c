/* The shape check of a model, its size, and the layout of a stage that follows from both. */
#include "log.h"
#include "model.h"
#include "stage.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct holmes_model good = {
    .layers = 3, .channels = 12, .heads = 4, .seq_len = 5, .vocab = 256};

Test(model, check_names_the_value_and_what_is_right)
{
    const struct {
        struct holmes_model m;
        const char *says[3];
    } cases[] = {
        {{.layers = 0, .channels = 12, .heads = 4, .seq_len = 5, .vocab = 256},
         {"layers is 0", "between 1 and"}},
        {{.layers = 3, .channels = -8, .heads = 4, .seq_len = 5, .vocab = 256},
         {"channels is -8", "between 1 and"}},
        {{.layers = 3, .channels = 12, .heads = 0, .seq_len = 5, .vocab = 256},
         {"heads is 0", "between 1 and"}},
        {{.layers = 3, .channels = 14, .heads = 4, .seq_len = 5, .vocab = 256},
         {"channels is 14", "multiple of heads (4)"}},
        {{.layers = 3, .channels = 12, .heads = 4, .seq_len = 0, .vocab = 256},
         {"seq_len is 0", "between 1 and"}},
        {{.layers = 3, .channels = 12, .heads = 4, .seq_len = 5, .vocab = 1},
         {"vocab is 1", "between 2 and"}},
        {{.layers = 3, .channels = 12, .heads = 4, .seq_len = 5, .vocab = 1 << 30},
         {"vocab is 1073741824", "1048576"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[160] = "";

        cr_expect_eq(holmes_model_check(&cases[i].m, why, sizeof why), -EINVAL);
        for (int j = 0; cases[i].says[j]; j++)
            cr_expect_not_null(strstr(why, cases[i].says[j]), "case %zu: \"%s\" lacks \"%s\"", i,
                               why, cases[i].says[j]);
    }
}

Test(model, check_accepts_a_good_shape_and_leaves_the_sentence_alone)
{
    char why[16] = "as before";

    cr_expect_eq(holmes_model_check(&good, why, sizeof why), 0);
    cr_expect_str_eq(why, "as before");
}

/* GPT-2 small has 124,439,808 parameters. */
Test(model, counts_the_parameters_of_gpt2_small)
{
    const struct holmes_model m = {
        .layers = 12, .channels = 768, .heads = 12, .seq_len = 1024, .vocab = 50257, .tied = true};

    cr_expect_eq(holmes_model_params(&m), 124439808u);
}

static struct holmes_stage *stage_of(bool tied, int first, int last)
{
    struct holmes_stage_attr attr = {.model = good,
                                     .first_layer = first,
                                     .last_layer = last,
                                     .is_first = first == 0,
                                     .is_last = last == good.layers,
                                     .batch = 2,
                                     .slots = 1,
                                     .kernels = holmes_kernels_find("cpu")};
    struct holmes_stage *s = NULL;

    attr.model.tied = tied;
    cr_assert_eq(holmes_stage_create(&attr, &s), 0);
    return s;
}

/* Equation 3 of arXiv 2104.04473 has 96 B s l h^2 (1 + s/6h + V/16lh) for a step in which layers
 * are computed four times; forward and backward alone are three quarters of its first two terms,
 * and the head, which it counts three times, as it stands. */
Test(model, counts_operations_as_the_paper_does)
{
    const struct holmes_model m = {
        .layers = 30, .channels = 3072, .heads = 32, .seq_len = 2048, .vocab = 51200};
    const double l = m.layers, h = m.channels, s = m.seq_len, V = m.vocab;
    const double layers = 0.75 * 96 * l * h * h * (1 + s / (6 * h)), head = 6 * h * V;

    cr_assert_float_eq(holmes_model_flops_per_token(&m) / (layers + head), 1, 1e-12);
}

Test(model, stages_hold_its_parameters_without_gaps)
{
    for (int tied = 0; tied < 2; tied++) {
        struct holmes_model m = good;
        size_t sum = 0;

        m.tied = tied;
        for (int layer = 0; layer < good.layers; layer++) {
            struct holmes_stage *s = stage_of(tied, layer, layer + 1);
            size_t end = 0;

            for (int i = 0; i < holmes_stage_ntensors(s); i++) {
                cr_expect_eq(holmes_stage_tensor(s, i)->offset, end);
                end += holmes_stage_tensor(s, i)->count;
            }
            cr_expect_eq(end, holmes_stage_nparams(s));
            cr_expect_eq(holmes_stage_tied(s) != NULL, tied && layer != 1);
            sum += end;
            holmes_stage_destroy(s);
        }
        if (tied) /* first and last stage have a copy each */
            sum -= (size_t)m.vocab * (size_t)m.channels;
        cr_expect_eq(sum, holmes_model_params(&m), "%zu in stages, %zu in the model", sum,
                     holmes_model_params(&m));
    }
}

static const struct holmes_tensor *find(struct holmes_stage *s, const char *name)
{
    for (int i = 0; i < holmes_stage_ntensors(s); i++)
        if (strcmp(holmes_stage_tensor(s, i)->name, name) == 0)
            return holmes_stage_tensor(s, i);
    return NULL;
}

static void moments(struct holmes_stage *s, const char *name, double *mean, double *std)
{
    const struct holmes_tensor *t = find(s, name);
    const float *weights = holmes_stage_weights(s);
    double sum = 0, squares = 0;

    cr_assert_not_null(t, "no %s", name);
    for (size_t i = 0; i < t->count; i++) {
        const double x = weights[t->offset + i];

        sum += x;
        squares += x * x;
    }
    *mean = sum / (double)t->count;
    *std = sqrt(squares / (double)t->count - *mean * *mean);
}

Test(model, initial_values_have_the_stated_spread)
{
    const double residual = 0.02 / sqrt(2.0 * good.layers);
    const struct {
        const char *name;
        double mean, std;
        bool decay;
    } want[] = {
        {"wte.weight", 0, 0.02, true},
        {"h.1.attn.qkv.weight", 0, 0.02, true},
        {"h.1.attn.proj.weight", 0, residual, true},
        {"h.2.mlp.fc.weight", 0, 0.02, true},
        {"h.2.mlp.proj.weight", 0, residual, true},
        {"h.0.mlp.fc.bias", 0, 0, false},
        {"h.0.ln_1.weight", 1, 0, false},
        {"ln_f.bias", 0, 0, false},
        {"lm_head.weight", 0, 0.02, true},
    };
    struct holmes_stage *s = stage_of(false, 0, good.layers);

    holmes_stage_init_params(s, 3);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        double mean, std;

        moments(s, want[i].name, &mean, &std);
        cr_expect_float_eq(mean, want[i].mean, 0.3 * want[i].std + 1e-12, "%s", want[i].name);
        cr_expect_float_eq(std, want[i].std, 0.2 * want[i].std + 1e-12, "%s: %g", want[i].name,
                           std);
        cr_expect_eq(find(s, want[i].name)->decay, want[i].decay, "%s", want[i].name);
    }
    holmes_stage_destroy(s);
}

Test(model, initial_values_do_not_depend_on_the_split)
{
    struct holmes_stage *whole = stage_of(true, 0, good.layers);
    const float *all = holmes_stage_weights(whole);

    holmes_stage_init_params(whole, 9);
    for (int layer = 0; layer < good.layers; layer++) {
        struct holmes_stage *part = stage_of(true, layer, layer + 1);
        const float *mine = holmes_stage_weights(part);

        holmes_stage_init_params(part, 9);
        for (int i = 0; i < holmes_stage_ntensors(part); i++) {
            const struct holmes_tensor *t = holmes_stage_tensor(part, i);
            const struct holmes_tensor *w = find(whole, t->name);

            cr_assert_not_null(w, "%s", t->name);
            cr_expect_arr_eq(mine + t->offset, all + w->offset, t->count * sizeof(float), "%s",
                             t->name);
        }
        holmes_stage_destroy(part);
    }
    holmes_stage_destroy(whole);
}

Test(model, another_seed_gives_other_values)
{
    struct holmes_stage *a = stage_of(false, 0, 1), *b = stage_of(false, 0, 1);

    holmes_stage_init_params(a, 1);
    holmes_stage_init_params(b, 2);
    cr_expect_neq(*(float *)holmes_stage_weights(a), *(float *)holmes_stage_weights(b));
    holmes_stage_destroy(a);
    holmes_stage_destroy(b);
}

static char last_log[512];

static void keep_log(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                     const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)level, (void)subsys, (void)file, (void)line, (void)func;
    snprintf(last_log, sizeof last_log, "%s", msg);
}

Test(model, stage_refuses_attributes_that_contradict_each_other)
{
    const struct holmes_kernels *k = holmes_kernels_find("cpu");
    const struct holmes_stage_attr base = {.model = good,
                                           .last_layer = 3,
                                           .is_first = true,
                                           .is_last = true,
                                           .batch = 1,
                                           .slots = 1,
                                           .kernels = k};
    struct {
        struct holmes_stage_attr attr;
        const char *says;
    } cases[] = {{base, "[2, 1)"},
                 {base, "[0, 4)"},
                 {base, "starts at layer 1"},
                 {base, "ends at layer 2"},
                 {base, "batch is 0"},
                 {base, "slots is 0"},
                 {base, "heads"},
                 {base, "batch is 2147483647"}};

    cases[0].attr.first_layer = 2, cases[0].attr.last_layer = 1;
    cases[1].attr.last_layer = 4;
    cases[2].attr.first_layer = 1;
    cases[3].attr.last_layer = 2;
    cases[4].attr.batch = 0;
    cases[5].attr.slots = 0;
    cases[6].attr.model.heads = 5;
    cases[7].attr.batch = INT32_MAX;
    holmes_log_set_sink(keep_log, NULL, HOLMES_LOG_WARN);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct holmes_stage *s = NULL;

        cr_expect_eq(holmes_stage_create(&cases[i].attr, &s), -EINVAL);
        cr_expect_null(s);
        cr_expect_not_null(strstr(last_log, cases[i].says), "\"%s\" lacks \"%s\"", last_log,
                           cases[i].says);
    }
}

Test(model, stage_too_large_for_memory_is_refused)
{
    struct holmes_stage_attr attr = {.model = {.layers = 1 << 20,
                                               .channels = 1 << 20,
                                               .heads = 1 << 20,
                                               .seq_len = 1 << 20,
                                               .vocab = 1 << 20},
                                     .first_layer = 0,
                                     .last_layer = 1 << 10,
                                     .is_first = true,
                                     .batch = 1 << 10,
                                     .slots = 1,
                                     .kernels = holmes_kernels_find("cpu")};
    struct holmes_stage *s = NULL;

    holmes_log_set_sink(keep_log, NULL, HOLMES_LOG_WARN);
    cr_expect_eq(holmes_stage_create(&attr, &s), -ENOMEM);
    cr_expect_null(s);
    cr_expect_not_null(strstr(last_log, "no memory"), "%s", last_log);
}

Test(model, stage_refuses_tokens_outside_the_vocabulary_and_slots_out_of_order)
{
    struct holmes_stage *s = stage_of(false, 0, good.layers);
    int32_t tokens[10] = {0}, bad[10] = {[9] = 256}, negative[10] = {[3] = -1};
    double loss;

    cr_expect_eq(holmes_stage_forward(s, 0, bad, tokens, NULL, NULL), -EINVAL);
    cr_expect_eq(holmes_stage_forward(s, 0, tokens, negative, NULL, NULL), -EINVAL);
    cr_expect_eq(holmes_stage_forward(s, 1, tokens, tokens, NULL, NULL), -EINVAL);
    cr_expect_eq(holmes_stage_forward(s, -1, tokens, tokens, NULL, NULL), -EINVAL);
    cr_expect_eq(holmes_stage_forward(s, 0, NULL, tokens, NULL, NULL), -EINVAL);
    holmes_stage_take_loss(s, &loss);
    cr_expect_eq(loss, 0, "a refused forward has no loss");
    cr_expect_eq(holmes_stage_backward(s, 0, NULL, NULL, 1), -EINVAL);
    cr_expect_eq(holmes_stage_forward(s, 0, tokens, tokens, NULL, NULL), 0);
    cr_expect_eq(holmes_stage_backward(s, 0, NULL, NULL, 1), 0);
    cr_expect_eq(holmes_stage_backward(s, 0, NULL, NULL, 1), -EINVAL);
    holmes_stage_destroy(s);
}
