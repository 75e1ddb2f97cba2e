/* Whole models against PyTorch: golden/make.py computed the loss, the gradients and the weights
 * after some clipped AdamW steps of the same weights and batch, and wrote them to files. */
#include "numeric.h"
#include "optimizer.h"
#include "safetensors.h"

#include <stdio.h>

/* Norm of the difference over the norm, of each tensor. */
#define LOSS_TOLERANCE     1e-5
#define GRADIENT_TOLERANCE 1e-4
#define STEPPED_TOLERANCE  1e-4 /* of what the steps changed; see expect_stepped() */

static double metadata(const struct holmes_st *f, const char *key)
{
    const char *text = json_string_value(json_object_get(holmes_st_metadata(f), key));

    cr_assert_not_null(text, "the file says no %s", key);
    return strtod(text, NULL);
}

/* The tensor of that name, `count` numbers of 4 bytes; NULL where the file has none. free() it. */
static void *values(const struct holmes_st *f, const char *name, size_t count)
{
    const struct holmes_st_tensor *t = holmes_st_find(f, name);
    void *out;

    if (!t)
        return NULL;
    cr_assert_eq(t->count, count, "%s has %zu elements, the file %zu", name, count,
                 (size_t)t->count);
    out = malloc(count * 4);
    cr_assert_not_null(out);
    cr_assert_eq(holmes_st_read(f, t, 0, out, count * 4), 0);
    return out;
}

/* Element i of the numbers in [-1, 1) that make.py makes of a name. */
static double hash_value(const char *name, size_t i)
{
    uint32_t x = 2166136261u;

    for (const char *c = name; *c; c++)
        x = (x ^ (unsigned char)*c) * 16777619u;
    x += (uint32_t)i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)(x >> 8) / (1 << 23) - 1;
}

static void set_weights(struct holmes_stage *s)
{
    float *w = holmes_stage_weights(s);

    for (int i = 0; i < holmes_stage_ntensors(s); i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(s, i);
        const bool is_norm = strstr(t->name, "ln_") && strstr(t->name, "weight");

        for (size_t j = 0; j < t->count; j++)
            w[t->offset + j] = (float)(0.25 * hash_value(t->name, j) + is_norm);
    }
}

struct golden {
    struct holmes_st *file;
    struct holmes_stage *stage;
    struct holmes_adamw hp;
    int32_t *tokens, *targets;
};

static void golden_open(struct golden *g, const char *label, const char *kernels)
{
    struct holmes_stage_attr attr = {
        .is_first = true, .is_last = true, .slots = 1, .kernels = holmes_kernels_find(kernels)};
    char path[512], why[256] = "";

    snprintf(path, sizeof path, GOLDEN_DIR "/%s.safetensors", label);
    cr_assert_eq(holmes_st_open(path, &g->file, why, sizeof why), 0, "%s", why);
    attr.model = (struct holmes_model){
        .layers = (int)metadata(g->file, "layers"),
        .channels = (int)metadata(g->file, "channels"),
        .heads = (int)metadata(g->file, "heads"),
        .seq_len = (int)metadata(g->file, "seq_len"),
        .vocab = (int)metadata(g->file, "vocab"),
        .tied = metadata(g->file, "tied") != 0,
    };
    attr.last_layer = attr.model.layers;
    attr.batch = (int)metadata(g->file, "batch");
    g->hp = (struct holmes_adamw){.beta1 = (float)metadata(g->file, "beta1"),
                                  .beta2 = (float)metadata(g->file, "beta2"),
                                  .eps = (float)metadata(g->file, "eps"),
                                  .weight_decay = (float)metadata(g->file, "weight_decay")};
    const size_t rows = (size_t)attr.batch * attr.model.seq_len;

    g->tokens = values(g->file, "tokens", rows);
    g->targets = values(g->file, "targets", rows);
    cr_assert(g->tokens && g->targets);
    cr_assert_eq(holmes_stage_create(&attr, &g->stage), 0);
    set_weights(g->stage);
}

static void golden_close(struct golden *g)
{
    holmes_stage_destroy(g->stage);
    holmes_st_close(g->file);
    free(g->tokens);
    free(g->targets);
}

/* Fresh gradients; returns the loss. */
static double gradients(struct golden *g)
{
    double loss;

    memset(holmes_stage_grads(g->stage), 0, holmes_stage_nparams(g->stage) * sizeof(float));
    cr_assert_eq(holmes_stage_forward(g->stage, 0, g->tokens, g->targets, NULL, NULL), 0);
    cr_assert_eq(holmes_stage_backward(g->stage, 0, NULL, NULL, 1), 0);
    holmes_stage_take_loss(g->stage, &loss);
    return loss;
}

static double gradient_norm(struct golden *g)
{
    double sum = 0;

    holmes_stage_kernels(g->stage)->sum_squares(&sum, holmes_stage_grads(g->stage),
                                                holmes_stage_nparams(g->stage));
    return sqrt(sum);
}

/* Norm of got - want over that of want - base; base may be NULL: zeros. */
static double norm_distance(const float *got, const float *want, const float *base, size_t n)
{
    double diff = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = (double)got[i] - want[i], w = want[i] - (base ? (double)base[i] : 0);

        if (!isfinite(got[i]))
            return INFINITY;
        diff += d * d;
        size += w * w;
    }
    return size > 0 ? sqrt(diff / size) : INFINITY;
}

static const char *const labels[] = {"untied", "tied"};
static const char *const tables[] = {"ref", "cpu"};

static void expect_gradients(const struct golden *g, const char *label, const char *table)
{
    const float *grads = holmes_stage_grads(g->stage);
    double worst = 0;
    char worst_name[64] = "";

    for (int i = 0; i < holmes_stage_ntensors(g->stage); i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(g->stage, i);
        char name[80];

        snprintf(name, sizeof name, "grad.%s", t->name);
        float *want = values(g->file, name, t->count);
        cr_assert_not_null(want, "the %s file has no %s", label, name);

        const double d = norm_distance(grads + t->offset, want, NULL, t->count);
        cr_expect_lt(d, GRADIENT_TOLERANCE, "%s, %s: %s is off by %g of its norm", label, table,
                     name, d);
        if (d > worst)
            snprintf(worst_name, sizeof worst_name, "%s", t->name);
        worst = fmax(worst, d);
        free(want);
    }
    cr_log_info("%s, %s: largest difference of a gradient %.2g of its norm, %s\n", label, table,
                worst, worst_name);
}

Test(golden, loss_and_every_gradient_are_those_of_pytorch)
{
    for (int i = 0; i < 4; i++) {
        const char *label = labels[i / 2], *table = tables[i % 2];
        struct golden g;

        golden_open(&g, label, table);
        const double loss = gradients(&g), want = metadata(g.file, "loss");

        cr_expect_float_eq(loss, want, LOSS_TOLERANCE * want, "%s, %s: loss %.9g, want %.9g", label,
                           table, loss, want);
        cr_log_info("%s, %s: loss %.9g, off by %.2g of it\n", label, table, loss,
                    fabs(loss / want - 1));
        cr_expect_float_eq(gradient_norm(&g), metadata(g.file, "grad_norm"),
                           1e-5 * metadata(g.file, "grad_norm"));
        expect_gradients(&g, label, table);
        golden_close(&g);
    }
}

Test(golden, comparison_sees_one_weight_a_hundredth_off)
{
    struct golden g;

    golden_open(&g, "untied", "ref");
    const struct holmes_tensor *t = holmes_stage_tensor(g.stage, 0);
    float *want = values(g.file, "grad.wte.weight", t->count);

    cr_assert_not_null(want);
    ((float *)holmes_stage_weights(g.stage))[t->offset + (size_t)g.tokens[0] * t->cols] += 0.01f;
    const double loss = gradients(&g), true_loss = metadata(g.file, "loss");

    cr_expect_gt(fabs(loss - true_loss), LOSS_TOLERANCE * true_loss);
    cr_expect_gt(norm_distance(holmes_stage_grads(g.stage) + t->offset, want, NULL, t->count),
                 GRADIENT_TOLERANCE);
    free(want);
    golden_close(&g);
}

/* What the steps changed is some thousandths of the weights, so that rounding of the weights
 * themselves, 6e-8 of them, already is 1e-5 of the change. */
static void expect_stepped(const struct golden *g, const float *before, const char *label,
                           const char *table)
{
    const float *w = holmes_stage_weights(g->stage);
    double worst = 0;
    int compared = 0;

    for (int i = 0; i < holmes_stage_ntensors(g->stage); i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(g->stage, i);
        char name[80];

        snprintf(name, sizeof name, "stepped.%s", t->name);
        float *want = values(g->file, name, t->count);
        if (!want)
            continue;

        const double d = norm_distance(w + t->offset, want, before + t->offset, t->count);
        cr_expect_lt(d, STEPPED_TOLERANCE, "%s, %s: the change of %s is off by %g of its norm",
                     label, table, name, d);
        worst = fmax(worst, d);
        compared++;
        free(want);
    }
    cr_expect_geq(compared, 15);
    cr_log_info("%s, %s: largest difference of a step %.2g of its norm\n", label, table, worst);
}

Test(golden, clipped_adamw_steps_are_those_of_pytorch)
{
    for (int i = 0; i < 4; i++) {
        const char *label = labels[i / 2], *table = tables[i % 2];
        struct holmes_optimizer *o;
        struct golden g;

        golden_open(&g, label, table);
        const size_t n = holmes_stage_nparams(g.stage);
        const double clip = metadata(g.file, "clip");
        float *before = malloc(n * sizeof *before);

        cr_assert_not_null(before);
        memcpy(before, holmes_stage_weights(g.stage), n * sizeof *before);
        cr_assert_eq(holmes_optimizer_create(g.stage, &g.hp, 0, n, &o), 0);
        for (int t = 1; t <= (int)metadata(g.file, "steps"); t++) {
            gradients(&g);
            const double norm = gradient_norm(&g);

            cr_assert_gt(norm, clip, "step %d would not be clipped", t);
            holmes_optimizer_step(o, (float)metadata(g.file, "lr"), (float)(clip / norm), t);
        }
        expect_stepped(&g, before, label, table);
        holmes_optimizer_destroy(o);
        golden_close(&g);
        free(before);
    }
}
