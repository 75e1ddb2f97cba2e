/* What a stage promises besides its numbers: which part of each tensor a tensor rank holds, when
 * weights are read and gradients are final, what blocks run again in backward cost and give. */
#include "numeric.h"

#include "log.h"
#include "stage.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define B 2

/* A vocabulary and heads that groups of 1, 2, 3 and 6 share, the vocabulary unevenly. */
static const struct holmes_model model = {
    .layers = 2, .channels = 12, .heads = 6, .seq_len = 5, .vocab = 61};

static struct holmes_stage_attr attr_of(bool tied)
{
    struct holmes_stage_attr a = {.model = model,
                                  .last_layer = model.layers,
                                  .is_first = true,
                                  .is_last = true,
                                  .batch = B,
                                  .slots = 2,
                                  .kernels = holmes_kernels_find("cpu")};

    a.model.tied = tied;
    return a;
}

static struct holmes_stage *create(const struct holmes_stage_attr *a)
{
    struct holmes_stage *s = NULL;

    cr_assert_eq(holmes_stage_create(a, &s), 0);
    holmes_stage_init_params(s, 7);
    return s;
}

static struct holmes_stage *create_part(int rank, int size)
{
    const struct holmes_stage_group group = {.rank = rank, .size = size};
    struct holmes_stage_attr a = attr_of(false);

    a.group = &group;
    return create(&a);
}

/* Adds one to `seen` for every element of the whole that the part has, and compares its value. */
static void check_part(struct holmes_stage *part, struct holmes_stage *whole, int i, int *seen)
{
    const struct holmes_tensor *t = holmes_stage_tensor(part, i),
                               *w = holmes_stage_tensor(whole, i);
    const float *mine = (float *)holmes_stage_weights(part) + t->offset;
    const float *all = (float *)holmes_stage_weights(whole) + w->offset;

    cr_assert_str_eq(t->name, w->name);
    cr_assert_eq(t->rows * t->cols, w->count, "%s: %zu rows, %zu columns", t->name, t->rows,
                 t->cols);
    for (size_t local = 0; local < t->count;) {
        size_t at = SIZE_MAX, run = holmes_tensor_run(t, local, &at);

        cr_assert(run > 0 && run <= t->count - local && at < w->count && run <= w->count - at,
                  "%s: run of %zu from %zu is at %zu", t->name, run, local, at);
        cr_expect_arr_eq(mine + local, all + at, run * sizeof *mine, "%s: other values at %zu",
                         t->name, at);
        for (size_t k = 0; k < run; k++)
            seen[at + k]++;
        local += run;
    }
}

Test(stage_parts, cover_every_tensor_once_with_the_values_of_the_whole)
{
    static const int sizes[] = {1, 2, 3, 6};
    struct holmes_stage *whole = create_part(0, 1);

    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        struct holmes_stage *parts[6];

        for (int r = 0; r < sizes[n]; r++)
            parts[r] = create_part(r, sizes[n]);
        for (int i = 0; i < holmes_stage_ntensors(whole); i++) {
            const struct holmes_tensor *t = holmes_stage_tensor(whole, i);
            const int want = holmes_stage_tensor(parts[0], i)->shared ? sizes[n] : 1;
            int *seen = calloc(t->count, sizeof *seen);

            for (int r = 0; r < sizes[n]; r++)
                check_part(parts[r], whole, i, seen);
            for (size_t k = 0; k < t->count; k++)
                cr_assert_eq(seen[k], want, "%s of %d ranks: element %zu is on %d, not %d", t->name,
                             sizes[n], k, seen[k], want);
            free(seen);
        }
        for (int r = 0; r < sizes[n]; r++)
            holmes_stage_destroy(parts[r]);
    }
    holmes_stage_destroy(whole);
}

Test(stage_parts, of_a_group_of_three_are_cut_as_megatron_cuts)
{
    static const struct {
        const char *name;
        size_t at, whole, run; /* an element of rank 1's part */
    } cases[] = {
        {"h.1.attn.qkv.weight", 0, 4 * 12, 4 * 12},       /* its heads of q: rows 4 to 7 */
        {"h.1.attn.qkv.weight", 4 * 12, 16 * 12, 4 * 12}, /* of k */
        {"h.1.attn.qkv.weight", 8 * 12 + 5, 28 * 12 + 5, 4 * 12 - 5}, /* of v */
        {"h.1.attn.qkv.bias", 9, 29, 3},
        {"h.1.attn.proj.weight", 5, 12 + 4 + 1, 3}, /* columns 4 to 7 */
        {"h.1.attn.proj.bias", 5, 5, 7},
        {"h.1.mlp.fc.weight", 0, 16 * 12, 16 * 12},
        {"h.1.mlp.fc.bias", 15, 31, 1},
        {"h.1.mlp.proj.weight", 16, 48 + 16, 16},
        {"wte.weight", 1, 20 * 12 + 1, 20 * 12 - 1}, /* rows 20 to 39 of 61; rank 2 has 21 */
        {"lm_head.weight", 20 * 12 - 1, 40 * 12 - 1, 1},
        {"ln_f.weight", 3, 3, 9},
    };
    struct holmes_stage *s = create_part(1, 3);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t whole = SIZE_MAX;
        int j = 0;

        while (strcmp(holmes_stage_tensor(s, j)->name, cases[i].name) != 0)
            j++;
        cr_expect_eq(holmes_tensor_run(holmes_stage_tensor(s, j), cases[i].at, &whole),
                     cases[i].run, "case %zu", i);
        cr_expect_eq(whole, cases[i].whole, "case %zu: %zu", i, whole);
    }
    holmes_stage_destroy(s);
}

/* Gradients of the whole, cut into parts: all ranks' squares, each counted over uneven pieces of
 * the flat array, add up to the whole's. */
Test(stage_parts, count_the_squares_of_shared_tensors_once)
{
    struct holmes_stage *whole = create_part(0, 1);
    const size_t all = holmes_stage_nparams(whole);
    float *noise = numeric_noise("gradient", all, 0, 1);
    double want = 0, sum = 0;

    memcpy(holmes_stage_grads(whole), noise, all * sizeof *noise);
    holmes_stage_sum_squares(whole, 0, all, &want);
    for (int r = 0; r < 3; r++) {
        struct holmes_stage *part = create_part(r, 3);
        const size_t n = holmes_stage_nparams(part);

        for (int i = 0; i < holmes_stage_ntensors(part); i++) {
            const struct holmes_tensor *t = holmes_stage_tensor(part, i);
            size_t at, run;

            for (size_t local = 0; local < t->count; local += run) {
                run = holmes_tensor_run(t, local, &at);
                memcpy(holmes_stage_grads(part) + t->offset + local,
                       noise + holmes_stage_tensor(whole, i)->offset + at, run * sizeof *noise);
            }
        }
        for (size_t from = 0, piece; from < n; from += piece) {
            piece = n - from < 37 ? n - from : 37;
            holmes_stage_sum_squares(part, from, piece, &sum);
        }
        holmes_stage_destroy(part);
    }
    cr_expect_float_eq(sum, want, 1e-9 * want, "%.12g in parts, %.12g whole", sum, want);
    holmes_stage_destroy(whole);
    free(noise);
}

/* Two microbatches between forward and backward; gradients start at zero. Returns the loss. */
static double run_two(struct holmes_stage *s)
{
    const size_t n = (size_t)B * model.seq_len;
    int32_t *tokens = numeric_tokens("tokens", 2 * n, model.vocab);
    int32_t *targets = numeric_tokens("targets", 2 * n, model.vocab);
    double loss = 0;

    memset(holmes_stage_grads(s), 0, holmes_stage_nparams(s) * sizeof(float));
    for (int slot = 0; slot < 2; slot++)
        cr_assert_eq(holmes_stage_forward(s, slot, tokens + n * (size_t)slot,
                                          targets + n * (size_t)slot, NULL, NULL),
                     0);
    for (int slot = 0; slot < 2; slot++)
        cr_assert_eq(holmes_stage_backward(s, slot, NULL, NULL, 0.5f), 0);
    holmes_stage_take_loss(s, &loss);
    free(tokens);
    free(targets);
    return loss;
}

Test(stage_parts, blocks_run_again_give_the_same_bits)
{
    for (int tied = 0; tied < 2; tied++) {
        struct holmes_stage_attr a = attr_of(tied);
        struct holmes_stage *kept = create(&a), *again;

        a.recompute = true;
        again = create(&a);
        cr_expect(run_two(kept) == run_two(again));
        cr_expect_arr_eq(holmes_stage_grads(again), holmes_stage_grads(kept),
                         holmes_stage_nparams(kept) * sizeof(float));
        holmes_stage_destroy(kept);
        holmes_stage_destroy(again);
    }
}

Test(stage_parts, blocks_run_again_keep_their_input_alone)
{
    /* One more microbatch in a stage of nothing but blocks: its inputs, (B, T, C) for each. */
    struct holmes_stage_attr a = attr_of(false);
    struct holmes_stage *few, *many;
    size_t stream;

    a.model.channels = 96; /* a multiple of 64 bytes: no padding */
    a.model.layers = 8;
    a.first_layer = 1;
    a.last_layer = 7;
    a.is_first = a.is_last = false;
    a.recompute = true;
    stream = (size_t)B * model.seq_len * 96 * sizeof(float);
    few = create(&a);
    a.slots += 5;
    many = create(&a);
    cr_expect_eq(holmes_stage_memory(many).activations - holmes_stage_memory(few).activations,
                 5 * 6 * stream);
    holmes_stage_destroy(few);
    holmes_stage_destroy(many);
}

/* Hooks */

struct watch {
    struct holmes_stage *s;
    float *weights;        /* what need() lets the stage see */
    float *final;          /* gradients as they were when they were done */
    size_t needed, undone; /* everything below, everything from here on */
    int calls, fail_at;    /* the call that fails, from 1 */
};

static int need(void *ctx, size_t offset, size_t count)
{
    struct watch *w = ctx;

    cr_expect_eq(offset, w->needed, "needed from %zu on, %zu expected", offset, w->needed);
    w->needed = offset + count;
    memcpy((float *)holmes_stage_weights(w->s) + offset, w->weights + offset,
           count * sizeof(float));
    return ++w->calls == w->fail_at ? -ECONNRESET : 0;
}

static int done(void *ctx, size_t offset, size_t count)
{
    struct watch *w = ctx;

    cr_expect_eq(offset + count, w->undone, "done up to %zu, %zu expected", offset + count,
                 w->undone);
    w->undone = offset;
    memcpy(w->final + offset, holmes_stage_grads(w->s) + offset, count * sizeof(float));
    return ++w->calls == w->fail_at ? -ECONNRESET : 0;
}

static struct watch watch(struct holmes_stage *s)
{
    const size_t n = holmes_stage_nparams(s);
    struct watch w = {.s = s, .undone = n};

    w.weights = malloc(n * sizeof(float));
    w.final = calloc(n, sizeof(float));
    memcpy(w.weights, holmes_stage_weights(s), n * sizeof(float));
    return w;
}

static void set_watch(struct watch *w)
{
    holmes_stage_set_hooks(w->s,
                           &(struct holmes_stage_hooks){.need = need, .done = done, .ctx = w});
}

static void unwatch(struct watch *w)
{
    free(w->weights);
    free(w->final);
    holmes_stage_destroy(w->s);
}

static void check_hooks(bool tied, bool recompute)
{
    struct holmes_stage_attr a = attr_of(tied);
    int32_t tokens[B * 5] = {1, 2, 3, 60, 59}, targets[B * 5] = {4};
    struct watch w;
    double loss, want;
    size_t n;

    a.recompute = recompute;
    w = watch(create(&a));
    n = holmes_stage_nparams(w.s);
    cr_assert_eq(holmes_stage_forward(w.s, 0, tokens, targets, NULL, NULL), 0);
    holmes_stage_take_loss(w.s, &want);
    for (size_t i = 0; i < n; i++)
        ((float *)holmes_stage_weights(w.s))[i] = NAN; /* what is read before it is needed shows */
    set_watch(&w);
    cr_assert_eq(holmes_stage_forward(w.s, 0, tokens, targets, NULL, NULL), 0);
    holmes_stage_take_loss(w.s, &loss);
    cr_expect(loss == want, "loss %g, %g without hooks", loss, want);
    cr_expect_eq(w.needed, n);
    cr_assert_eq(holmes_stage_backward(w.s, 0, NULL, NULL, 1), 0);
    cr_expect_eq(w.undone, 0);
    cr_expect_arr_eq(w.final, holmes_stage_grads(w.s), n * sizeof(float),
                     "gradients changed after they were done");
    unwatch(&w);
}

Test(stage_parts, hooks_tell_when_weights_are_read_and_gradients_final)
{
    check_hooks(false, false);
    check_hooks(true, false);
    check_hooks(true, true);
}

Test(stage_parts, a_failing_hook_ends_the_pass)
{
    const struct holmes_stage_attr a = attr_of(false);
    int32_t tokens[B * 5] = {0};

    for (int at = 1; at <= 4; at++) { /* embedding, two blocks, the end; then back */
        struct watch w = watch(create(&a));

        w.fail_at = at;
        set_watch(&w);
        cr_expect_eq(holmes_stage_forward(w.s, 0, tokens, tokens, NULL, NULL), -ECONNRESET);
        cr_expect_eq(w.calls, at);
        cr_expect_eq(holmes_stage_backward(w.s, 0, NULL, NULL, 1), -EINVAL, "nothing to go back");
        holmes_stage_set_hooks(w.s, NULL);
        cr_assert_eq(holmes_stage_forward(w.s, 0, tokens, tokens, NULL, NULL), 0);
        w.calls = 0;
        set_watch(&w);
        cr_expect_eq(holmes_stage_backward(w.s, 0, NULL, NULL, 1), -ECONNRESET);
        cr_expect_eq(w.calls, at);
        unwatch(&w);
    }
}

/* A tensor group whose nth call fails, in a stage that has calls of all kinds. */
static int calls, fail_at;

static int fail_reduce(void *ctx, void *buf, size_t count, enum holmes_dtype t)
{
    (void)ctx, (void)buf, (void)count, (void)t;
    return ++calls == fail_at ? -ETIMEDOUT : 0;
}

static int fail_gather(void *ctx, const float *in, float *out, size_t count)
{
    (void)ctx, (void)in, (void)out, (void)count;
    return ++calls == fail_at ? -ETIMEDOUT : 0;
}

Test(stage_parts, a_failing_tensor_group_ends_the_pass)
{
    const struct holmes_stage_group group = {
        .rank = 1, .size = 2, .all_reduce = fail_reduce, .all_gather = fail_gather};
    /* Embedding, two in each block, one for the loss; the head, two in each block. */
    const int forward = 2 + 2 * model.layers, backward = 1 + 2 * model.layers;
    struct holmes_stage_attr a = attr_of(false);
    int32_t tokens[B * 5] = {0};
    struct holmes_stage *s;

    a.group = &group;
    s = create(&a);
    for (int at = 1; at <= forward + backward; at++) {
        int rc;

        calls = 0;
        fail_at = at;
        rc = holmes_stage_forward(s, 0, tokens, tokens, NULL, NULL);
        cr_expect_eq(rc, at <= forward ? -ETIMEDOUT : 0, "call %d: forward gives %d", at, rc);
        rc = holmes_stage_backward(s, 0, NULL, NULL, 1);
        cr_expect_eq(rc, at <= forward ? -EINVAL : -ETIMEDOUT, "call %d: backward gives %d", at,
                     rc);
        cr_expect_eq(calls, at);
    }
    calls = 0;
    fail_at = 0;
    cr_expect_eq(holmes_stage_forward(s, 0, tokens, tokens, NULL, NULL), 0);
    cr_expect_eq(holmes_stage_backward(s, 0, NULL, NULL, 1), 0);
    cr_expect_eq(calls, forward + backward);
    holmes_stage_destroy(s);
}

/* Embedding and head may be alone on their stages. */
Test(stage_parts, ends_without_layers_give_the_whole_model)
{
    const size_t n = (size_t)B * model.seq_len * model.channels;
    float *x = numeric_noise("x", n, 0, 1), *y = numeric_noise("y", n, 0, 1);
    int32_t *tokens = numeric_tokens("tokens", B * 5, model.vocab);
    struct holmes_stage_attr a = attr_of(false), cut[3] = {a, a, a};
    struct holmes_stage *whole = create(&a), *parts[3];
    double loss, want;
    size_t offset = 0;

    cut[0].last_layer = 0;
    cut[2].first_layer = model.layers;
    cut[0].is_last = cut[1].is_first = cut[1].is_last = cut[2].is_first = false;
    for (int i = 0; i < 3; i++)
        parts[i] = create(&cut[i]);
    cr_assert_eq(holmes_stage_forward(whole, 0, tokens, tokens, NULL, NULL), 0);
    cr_assert_eq(holmes_stage_backward(whole, 0, NULL, NULL, 1), 0);
    cr_assert_eq(holmes_stage_forward(parts[0], 0, tokens, NULL, NULL, x), 0);
    cr_assert_eq(holmes_stage_forward(parts[1], 0, NULL, NULL, x, y), 0);
    cr_assert_eq(holmes_stage_forward(parts[2], 0, NULL, tokens, y, NULL), 0);
    cr_assert_eq(holmes_stage_backward(parts[2], 0, NULL, y, 1), 0);
    cr_assert_eq(holmes_stage_backward(parts[1], 0, y, x, 1), 0);
    cr_assert_eq(holmes_stage_backward(parts[0], 0, x, NULL, 1), 0);
    holmes_stage_take_loss(whole, &want);
    holmes_stage_take_loss(parts[2], &loss);
    cr_expect(loss == want, "loss %.17g, whole %.17g", loss, want);
    for (int i = 0; i < 3; i++) {
        const size_t count = holmes_stage_nparams(parts[i]);

        cr_expect_arr_eq(holmes_stage_grads(parts[i]), holmes_stage_grads(whole) + offset,
                         count * sizeof(float), "part %d has other gradients", i);
        offset += count;
        holmes_stage_destroy(parts[i]);
    }
    cr_expect_eq(offset, holmes_stage_nparams(whole));
    holmes_stage_destroy(whole);
    free(x);
    free(y);
    free(tokens);
}

static char last_log[256];

static void keep_log(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                     const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)level, (void)subsys, (void)file, (void)line, (void)func;
    snprintf(last_log, sizeof last_log, "%s", msg);
}

Test(stage_parts, groups_that_cannot_share_are_refused)
{
    static const struct {
        struct holmes_stage_group group;
        const char *says;
    } cases[] = {{{.rank = 0, .size = 4}, "6 heads cannot be shared by a tensor group of 4"},
                 {{.rank = 2, .size = 2}, "rank 2 is none of a tensor group of 2"},
                 {{.rank = 0, .size = 0}, "rank 0 is none of a tensor group of 0"},
                 {{.rank = 5, .size = 6}, "vocabulary of 5"}};
    struct holmes_stage_attr a = attr_of(false);
    struct holmes_stage *s = NULL;

    holmes_log_set_sink(keep_log, NULL, HOLMES_LOG_WARN);
    a.model.vocab = 5;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        a.group = &cases[i].group;
        cr_expect_eq(holmes_stage_create(&a, &s), -EINVAL);
        cr_expect_not_null(strstr(last_log, cases[i].says), "\"%s\"", last_log);
    }
    a = attr_of(false);
    a.first_layer = a.last_layer = 1;
    a.is_first = a.is_last = false;
    cr_expect_eq(holmes_stage_create(&a, &s), -EINVAL);
    cr_expect_not_null(strstr(last_log, "no layers"), "\"%s\"", last_log);
    cr_expect_null(s);
}
