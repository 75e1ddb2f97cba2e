/* A whole model in one stage, cut into stages, with each table of kernels. */
#include "numeric.h"

#include "optimizer.h"
#include "stage.h"

#include <errno.h>

#define STAGES_MAX 4

/* A model cut into stages that run one after the other in this process. */
struct chain {
    struct holmes_model model;
    int batch, nstages;
    struct holmes_stage *stages[STAGES_MAX];
    float *between[STAGES_MAX]; /* (B, T, C): activations, then their gradients, after stage i */
};

static const struct holmes_model small = {
    .layers = 4, .channels = 36, .heads = 3, .seq_len = 13, .vocab = 61};

static void chain_create(struct chain *c, const struct holmes_model *m, int batch, int slots,
                         int nstages, const char *kernels)
{
    *c = (struct chain){.model = *m, .batch = batch, .nstages = nstages};
    for (int i = 0; i < nstages; i++) {
        const struct holmes_stage_attr attr = {
            .model = *m,
            .first_layer = m->layers * i / nstages,
            .last_layer = m->layers * (i + 1) / nstages,
            .is_first = i == 0,
            .is_last = i == nstages - 1,
            .batch = batch,
            .slots = slots,
            .kernels = holmes_kernels_find(kernels),
        };

        cr_assert_eq(holmes_stage_create(&attr, &c->stages[i]), 0);
        holmes_stage_init_params(c->stages[i], 7);
        c->between[i] = numeric_noise("between", (size_t)batch * m->seq_len * m->channels, 0, 1);
    }
}

static void chain_destroy(struct chain *c)
{
    for (int i = 0; i < c->nstages; i++) {
        holmes_stage_destroy(c->stages[i]);
        free(c->between[i]);
    }
}

static double chain_forward(struct chain *c, int slot, const int32_t *tokens,
                            const int32_t *targets)
{
    double loss = 0;

    for (int i = 0; i < c->nstages; i++) {
        cr_assert_eq(holmes_stage_forward(c->stages[i], slot, tokens, targets,
                                          i == 0 ? NULL : c->between[i - 1], c->between[i]),
                     0);
        holmes_stage_take_loss(c->stages[i], &loss);
    }
    return loss;
}

static void chain_backward(struct chain *c, int slot, float loss_scale)
{
    for (int i = c->nstages - 1; i >= 0; i--)
        cr_assert_eq(holmes_stage_backward(c->stages[i], slot, c->between[i],
                                           i == 0 ? NULL : c->between[i - 1], loss_scale),
                     0);
}

static void chain_zero_grads(struct chain *c)
{
    for (int i = 0; i < c->nstages; i++)
        memset(holmes_stage_grads(c->stages[i]), 0,
               holmes_stage_nparams(c->stages[i]) * sizeof(float));
}

/* The sum over stages of the named tensor's values in `of` (holmes_stage_grads, _params); a tensor
 * that is on two stages is a tied one, whose gradients add up. */
static float *chain_tensor(struct chain *c, const char *name, float *(*of)(struct holmes_stage *s),
                           size_t *count)
{
    float *sum = NULL;

    for (int i = 0; i < c->nstages; i++) {
        for (int j = 0; j < holmes_stage_ntensors(c->stages[i]); j++) {
            const struct holmes_tensor *t = holmes_stage_tensor(c->stages[i], j);

            if (strcmp(t->name, name) != 0)
                continue;
            if (!sum)
                sum = calloc(t->count, sizeof *sum);
            for (size_t k = 0; k < t->count; k++)
                sum[k] += of(c->stages[i])[t->offset + k];
            *count = t->count;
        }
    }
    cr_assert_not_null(sum, "no stage has %s", name);
    return sum;
}

/* Every tensor of `a`, which is one stage, against the same one of `b`. */
static void assert_same_grads(struct chain *a, struct chain *b, double tolerance)
{
    struct holmes_stage *whole = a->stages[0];

    for (int i = 0; i < holmes_stage_ntensors(whole); i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(whole, i);
        size_t count = 0;
        float *other = chain_tensor(b, t->name, holmes_stage_grads, &count);
        const double d = numeric_distance(other, holmes_stage_grads(whole) + t->offset, count);

        cr_assert_eq(count, t->count);
        cr_expect(d <= tolerance, "%s: gradients differ by %g of their size", t->name, d);
        free(other);
    }
}

/* Loss and gradients of two microbatches, in two slots with interleaved passes. */
static double run_two_microbatches(struct chain *c)
{
    const size_t n = (size_t)c->batch * c->model.seq_len;
    int32_t *tokens = numeric_tokens("tokens", 2 * n, c->model.vocab);
    int32_t *targets = numeric_tokens("targets", 2 * n, c->model.vocab);
    double loss;

    chain_zero_grads(c);
    loss = chain_forward(c, 0, tokens, targets);
    if (c->nstages == 1) {
        loss += chain_forward(c, 1, tokens + n, targets + n);
        chain_backward(c, 0, 0.5f);
        chain_backward(c, 1, 0.5f);
    } else { /* `between` holds one microbatch */
        chain_backward(c, 0, 0.5f);
        loss += chain_forward(c, 1, tokens + n, targets + n);
        chain_backward(c, 1, 0.5f);
    }
    free(tokens);
    free(targets);
    return loss / 2;
}

static void compare_split(bool tied, const char *kernels)
{
    struct holmes_model m = small;
    struct chain whole, split;

    m.tied = tied;
    chain_create(&whole, &m, 2, 2, 1, kernels);
    const double loss = run_two_microbatches(&whole);

    for (int n = 2; n <= STAGES_MAX; n++) {
        chain_create(&split, &m, 2, 2, n, kernels);
        const double other = run_two_microbatches(&split);

        cr_expect_float_eq(other, loss, 1e-6 * loss, "%d stages: loss %.9g, 1 stage: %.9g", n,
                           other, loss);
        assert_same_grads(&whole, &split, 1e-6);
        chain_destroy(&split);
    }
    chain_destroy(&whole);
}

Test(stage, split_model_has_the_loss_and_gradients_of_the_whole)
{
    compare_split(false, "ref");
    compare_split(false, "cpu");
}

Test(stage, split_tied_model_has_the_loss_and_summed_gradients_of_the_whole)
{
    compare_split(true, "ref");
    compare_split(true, "cpu");
}

Test(stage, cpu_kernels_give_the_loss_and_gradients_of_the_reference)
{
    struct chain ref, cpu;

    chain_create(&ref, &small, 3, 2, 1, "ref");
    chain_create(&cpu, &small, 3, 2, 1, "cpu");
    const double loss = run_two_microbatches(&ref), other = run_two_microbatches(&cpu);

    cr_expect_float_eq(other, loss, 1e-6 * loss, "cpu %.9g, ref %.9g", other, loss);
    assert_same_grads(&ref, &cpu, 2e-5);
    chain_destroy(&ref);
    chain_destroy(&cpu);
}

static void repeat_bits(int threads)
{
    const struct holmes_model m = {
        .layers = 2, .channels = 96, .heads = 4, .seq_len = 70, .vocab = 256};
    struct chain a, b;

    holmes_kernels_set_threads(threads);
    chain_create(&a, &m, 4, 2, 1, "cpu");
    chain_create(&b, &m, 4, 2, 1, "cpu");
    const double loss_a = run_two_microbatches(&a), loss_b = run_two_microbatches(&b);

    cr_expect(loss_a == loss_b);
    cr_expect_arr_eq(holmes_stage_grads(a.stages[0]), holmes_stage_grads(b.stages[0]),
                     holmes_stage_nparams(a.stages[0]) * sizeof(float));
    chain_destroy(&a);
    chain_destroy(&b);
}

Test(stage, same_threads_give_the_same_bits)
{
    repeat_bits(1);
    repeat_bits(2);
    repeat_bits(3);
}

Test(stage, learns_a_repeated_text)
{
    static const char text[] = "the quick brown fox jumps over the lazy dog, ";
    const struct holmes_model m = {
        .layers = 2, .channels = 64, .heads = 4, .seq_len = 32, .vocab = 256, .tied = true};
    const struct holmes_adamw hp = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    const int batch = 4, n = batch * m.seq_len;
    struct holmes_optimizer *opt;
    struct chain c;
    int32_t tokens[4 * 32], targets[4 * 32];
    double first = 0, loss = 0;

    chain_create(&c, &m, batch, 1, 1, "cpu");
    cr_assert_eq(
        holmes_optimizer_create(c.stages[0], &hp, 0, holmes_stage_nparams(c.stages[0]), &opt), 0);
    for (int step = 1; step <= 60; step++) {
        for (int i = 0; i < n; i++) {
            const size_t at = (size_t)(step * 7 + i / m.seq_len * 11 + i % m.seq_len);

            tokens[i] = text[at % (sizeof text - 1)];
            targets[i] = text[(at + 1) % (sizeof text - 1)];
        }
        chain_zero_grads(&c);
        loss = chain_forward(&c, 0, tokens, targets);
        chain_backward(&c, 0, 1);
        holmes_optimizer_step(opt, 3e-3f, 1, step);
        if (step == 1)
            first = loss;
    }
    cr_expect_float_eq(first, log(256), 0.2, "untrained loss %g, ln 256 is %g", first, log(256));
    cr_expect_lt(loss, 0.5, "loss %g after 60 steps", loss);
    holmes_optimizer_destroy(opt);
    chain_destroy(&c);
}
