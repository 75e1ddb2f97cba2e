/* A GPT's arithmetic against figures that others published or that follow by hand. */
#include <math.h>

#include "topology/plan/gpt.h"
#include "world_of.h"

Test(gpt, has_as_many_parameters_as_published)
{
    static const struct {
        const char *name;
        double parameters, error;
    } rows[] = {
        {"gpt2-124m", 124439808, 0}, /* the released weights */
        {"gpt2-355m", 354823168, 0}, {"gpt2-774m", 774030080, 0}, {"gpt2-1.5b", 1557611200, 0},
        {"gpt-3.6b", 3.6e9, 0.02}, /* arXiv 2104.04473, table 1 */
        {"gpt-7.5b", 7.5e9, 0.02},   {"gpt-39.1b", 39.1e9, 0.02}, {"gpt-175b", 175e9, 0.02},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct holmes_plan_request r = request_of(rows[i].name, 1);
        double n = holmes_gpt_parameters(&r.model);

        cr_expect_leq(fabs(n - rows[i].parameters), rows[i].error * rows[i].parameters,
                      "%s: %.0f parameters", rows[i].name, n);
    }
}

/* 96 B s l h^2 (1 + s/6h + V/16lh): arXiv 2104.04473, equation 3, with recomputation. */
Test(gpt, flops_are_those_of_the_megatron_paper)
{
    static const char *const names[] = {"gpt2-124m", "gpt-3.6b", "gpt-39.1b"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct holmes_plan_request r = request_of(names[i], 1);
        double s = r.model.sequence, l = r.model.layers, h = r.model.hidden, v = r.model.vocabulary;
        double paper = 96 * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));

        r.model.recompute = true;
        cr_expect_float_eq(holmes_gpt_sequence_flops(&r.model) / paper, 1, 1e-12, "%s", names[i]);
        r.model.recompute = false;
        cr_expect_lt(holmes_gpt_sequence_flops(&r.model), paper);
    }
}

/* arXiv 2205.05198, equations 1, 2, 4 and table 2, with s = 2048, b = 2, h = 3072, a = 32, t = 4.
 */
Test(gpt, activations_are_those_of_the_recomputation_paper)
{
    struct holmes_plan_request r = request_of("gpt-3.6b", 1);
    struct holmes_gpt *g = &r.model;
    double sbh = 2048.0 * 2 * 3072, scores = 5.0 * 32 * 2048 / 3072;

    g->scores_stored = true;
    g->sequence_parallel = false;
    cr_expect_float_eq(holmes_gpt_layer_activation(g, 2, 1), sbh * (34 + scores), 1);
    cr_expect_float_eq(holmes_gpt_layer_activation(g, 2, 4), sbh * (10 + 24 / 4.0 + scores / 4), 1);
    g->sequence_parallel = true;
    cr_expect_float_eq(holmes_gpt_layer_activation(g, 2, 4), sbh / 4 * (34 + scores), 1);
    g->scores_stored = false;
    cr_expect_float_eq(holmes_gpt_layer_activation(g, 2, 4), sbh / 4 * 34, 1);
    g->recompute = true;
    g->sequence_parallel = false;
    cr_expect_float_eq(holmes_gpt_layer_activation(g, 2, 4), 2 * sbh, 1);
}

/* Megatron-LM, dist_optimizer.md. */
Test(gpt, bytes_per_parameter_are_megatrons)
{
    static const struct {
        int bytes_per_weight;
        bool half_gradients;
        double whole, fixed, divided;
    } rows[] = {{2, false, 18, 6, 12}, {2, true, 20, 4, 16}, {4, false, 16, 8, 8}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct holmes_gpt g = {.bytes_per_weight = rows[i].bytes_per_weight,
                               .half_gradients = rows[i].half_gradients};

        cr_expect_float_eq(holmes_gpt_parameter_bytes(&g, 8), rows[i].whole, 1e-12);
        g.distributed_optimizer = true;
        cr_expect_float_eq(holmes_gpt_parameter_bytes(&g, 8), rows[i].fixed + rows[i].divided / 8,
                           1e-12);
    }
}

Test(gpt, stages_hold_all_parameters_between_them)
{
    struct holmes_plan_request r = request_of("gpt-3.6b", 1);
    double table = (double)r.model.vocabulary * r.model.hidden, sum;

    sum = holmes_gpt_stage_parameters(&r.model, 16, true, false, 1) +
          holmes_gpt_stage_parameters(&r.model, 14, false, true, 1);
    /* Tied, both ends have the table. */
    cr_expect_float_eq(sum, holmes_gpt_parameters(&r.model) + table, 1);
    r.model.tied = false;
    cr_expect_float_eq(sum, holmes_gpt_parameters(&r.model), 1);
}

Test(gpt, refuses_sizes_that_do_not_fit_each_other)
{
    static const struct {
        struct holmes_gpt model;
        const char *word;
    } rows[] = {
        {{.layers = 0, .hidden = 64, .heads = 4, .sequence = 8, .bytes_per_weight = 2}, "layers"},
        {{.layers = 2, .hidden = 64, .heads = 5, .sequence = 8, .bytes_per_weight = 2}, "heads 5"},
        {{.layers = 2, .hidden = 64, .heads = 4, .sequence = -1, .bytes_per_weight = 2},
         "sequence is -1"},
        {{.layers = 2, .hidden = 64, .heads = 4, .sequence = 8, .bytes_per_weight = 3}, "3 bytes"},
        {{.layers = 2,
          .hidden = 64,
          .heads = 4,
          .sequence = 8,
          .bytes_per_weight = 4,
          .half_gradients = true},
         "half_gradients"},
    };
    char why[256];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        cr_expect_neq(holmes_gpt_check(&rows[i].model, why, sizeof(why)), 0);
        cr_expect(strstr(why, rows[i].word), "row %zu: %s", i, why);
    }
    cr_expect_neq(holmes_gpt_preset("gpt-9", &(struct holmes_gpt){0}, why, sizeof(why)), 0);
    cr_expect(strstr(why, "gpt2-124m") && strstr(why, "gpt-175b"), "%s", why);
}
