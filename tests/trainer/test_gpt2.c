/* Models as others have them: what is exported is taken in again bit for bit under any split, half
 * precision is read, and what is no such model is refused by name. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "ckpt_job.h"

static char dir[TEST_FOLDER_MAX], text[128], folder[128], step[160], model[128], weights[160];

static void train(bool tied)
{
    struct ckpt_job job = {.split = {.stages = 2, .replicas = 1, .tensors = 2, .chunks = 1},
                           .tied = tied,
                           .text = text,
                           .first = 1,
                           .last = 2,
                           .save = folder,
                           .save_at = 2};

    ckpt_job_ok(&job);
}

static void export_it(void)
{
    struct holmes_ckpt *c;
    char why[600] = "";
    uint64_t bytes;

    cr_assert_eq(holmes_ckpt_open(step, &c, why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_gpt2_export(c, model, NULL, &bytes, why, sizeof why), 0, "%s", why);
    cr_expect_eq(bytes, 4 * holmes_model_params(&holmes_ckpt_manifest(c)->model));
    holmes_ckpt_close(c);
}

static void set_up(void)
{
    test_folder_make(dir, "gpt2");
    snprintf(text, sizeof text, "%s/text", dir);
    snprintf(folder, sizeof folder, "%s/checkpoints", dir);
    snprintf(step, sizeof step, "%s/step-00000002", folder);
    snprintf(model, sizeof model, "%s/model", dir);
    snprintf(weights, sizeof weights, "%s/model.safetensors", model);
    ckpt_job_text(text);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(gpt2, .init = set_up, .fini = tear_down, .timeout = 300);

Test(gpt2, names_are_translated_both_ways)
{
    static const struct {
        const char *ours, *theirs;
        bool transposed;
    } cases[] = {
        {"wte.weight", "wte.weight", false},
        {"wpe.weight", "wpe.weight", false},
        {"ln_f.bias", "ln_f.bias", false},
        {"lm_head.weight", "lm_head.weight", false},
        {"h.0.ln_1.weight", "h.0.ln_1.weight", false},
        {"h.11.attn.qkv.weight", "h.11.attn.c_attn.weight", true},
        {"h.11.attn.qkv.bias", "h.11.attn.c_attn.bias", false},
        {"h.3.attn.proj.weight", "h.3.attn.c_proj.weight", true},
        {"h.3.mlp.fc.weight", "h.3.mlp.c_fc.weight", true},
        {"h.3.mlp.proj.weight", "h.3.mlp.c_proj.weight", true},
    };
    static const char *const strangers[] = {"score.weight",  "h.0.attn.bias", "h.attn.c_attn.bias",
                                            "h.0.mlp.c_fc.", "transformer.",  ""};
    char name[80], prefixed[100];
    bool transposed;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(holmes_gpt2_name(cases[i].ours, name, sizeof name, &transposed), 0);
        cr_expect_str_eq(name, cases[i].theirs);
        cr_expect_eq(transposed, cases[i].transposed, "%s", name);
        cr_expect_eq(holmes_gpt2_ours(cases[i].theirs, name, sizeof name), 0);
        cr_expect_str_eq(name, cases[i].ours);
        snprintf(prefixed, sizeof prefixed, "transformer.%s", cases[i].theirs);
        cr_expect_eq(holmes_gpt2_ours(prefixed, name, sizeof name), 0);
        cr_expect_str_eq(name, cases[i].ours);
    }
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        cr_expect_eq(holmes_gpt2_ours(strangers[i], name, sizeof name), -ENOENT, "%s",
                     strangers[i]);
}

/* Begins with the exported model and saves at once. */
static struct ckpt_job begin_with(const struct ckpt_split *split, bool tied, const char *save)
{
    struct ckpt_job job = {.split = *split,
                           .tied = tied,
                           .text = text,
                           .first = 1,
                           .last = 0,
                           .save = save,
                           .save_at = 0,
                           .init = model};

    return job;
}

static void check_round_trip(bool tied)
{
    static const struct ckpt_split splits[] = {{1, 1, 1, 1, false, false},
                                               {2, 2, 2, 1, false, false},
                                               {1, 1, 4, 1, false, false},
                                               {2, 1, 1, 2, false, false}};

    train(tied);
    export_it();
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        char save[128], again[160];
        struct ckpt_job job;

        snprintf(save, sizeof save, "%s/again-%zu", dir, i);
        snprintf(again, sizeof again, "%s/step-00000001", save);
        job = begin_with(&splits[i], tied, save);
        job.first = 2; /* none are trained: step 1 is saved at once */
        job.last = 1;
        job.save_at = 1;
        ckpt_job_ok(&job);
        ckpt_job_same_part(step, again, HOLMES_PART_WEIGHTS);
    }
}

Test(gpt2, what_is_exported_is_taken_in_bit_for_bit)
{
    check_round_trip(false);
}

Test(gpt2, what_is_exported_is_taken_in_bit_for_bit_with_tied_weights)
{
    check_round_trip(true);
}

Test(gpt2, the_export_is_in_the_shape_and_order_of_others)
{
    struct holmes_st *st = NULL;
    struct holmes_ckpt *c = NULL;
    const struct holmes_st_tensor *t;
    char why[600] = "";
    float ours[96 * 24], theirs[24 * 96];
    char partial[300];
    FILE *leftover;

    train(false);
    snprintf(partial, sizeof partial, "%s/model.partial", model);
    mkdir(model, 0777);
    leftover = fopen(partial, "w");
    cr_assert_not_null(leftover);
    fclose(leftover);
    export_it();
    cr_assert_eq(holmes_st_open(weights, &st, why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_ckpt_open(step, &c, why, sizeof why), 0, "%s", why);
    cr_expect_str_eq(json_string_value(json_object_get(holmes_st_metadata(st), "format")), "pt");
    t = holmes_st_find(st, "transformer.h.1.mlp.c_fc.weight");
    cr_assert_not_null(t);
    cr_assert_eq(t->ndim, 2);
    cr_assert_eq(t->shape[0], 24);
    cr_assert_eq(t->shape[1], 96);
    cr_assert_eq(holmes_st_read(st, t, 0, theirs, sizeof theirs), 0);
    cr_assert_eq(
        holmes_ckpt_select(c, "h.1.mlp.fc.weight", HOLMES_PART_WEIGHTS, 96, 24, why, sizeof why),
        0);
    cr_assert_eq(holmes_ckpt_read(c, 0, 96 * 24, ours, why, sizeof why), 0);
    for (int r = 0; r < 96; r++)
        for (int k = 0; k < 24; k++)
            cr_assert_eq(theirs[k * 96 + r], ours[r * 24 + k]);
    holmes_st_close(st);
    holmes_ckpt_close(c);
    cr_expect_eq(access(weights, F_OK), 0);
    cr_expect_neq(access(partial, F_OK), 0, "a leftover of a killed run is taken and goes");
    cr_assert_eq(holmes_ckpt_open(step, &c, why, sizeof why), 0);
    {
        uint64_t bytes;

        cr_expect_eq(holmes_gpt2_export(c, model, NULL, &bytes, why, sizeof why), -EEXIST);
    }
    holmes_ckpt_close(c);
}

/* --- other precisions and strange models -------------------------------------------------------
 */

/* The upper half of each number is its bfloat16; `type` says so or something else. */
static void rewrite(enum holmes_st_dtype type, uint16_t (*half)(float))
{
    struct holmes_st *st = NULL;
    struct holmes_st_writer *w;
    struct holmes_st_tensor *all;
    char why[600] = "", path[200];
    int n;

    cr_assert_eq(holmes_st_open(weights, &st, why, sizeof why), 0, "%s", why);
    n = holmes_st_count(st);
    all = calloc((size_t)n, sizeof *all);
    for (int i = 0; i < n; i++) {
        all[i] = *holmes_st_tensor(st, i);
        all[i].dtype = type;
    }
    snprintf(path, sizeof path, "%s.new", weights);
    cr_assert_eq(holmes_st_create(path, all, n, NULL, &w), 0);
    for (int i = 0; i < n; i++) {
        const struct holmes_st_tensor *t = holmes_st_tensor(st, i);
        float *x = malloc(t->bytes);
        uint16_t *h = malloc(t->count * sizeof *h);

        cr_assert_eq(holmes_st_read(st, t, 0, x, t->bytes), 0);
        for (uint64_t j = 0; j < t->count; j++)
            h[j] = half(x[j]);
        cr_assert_eq(holmes_st_put(w, h, t->count * sizeof *h), 0);
        free(x);
        free(h);
    }
    cr_assert_eq(holmes_st_finish(w), 0);
    holmes_st_close(st);
    free(all);
    cr_assert_eq(rename(path, weights), 0);
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint16_t to_f16(float x)
{
    _Float16 h = (_Float16)x;
    uint16_t bits;

    memcpy(&bits, &h, sizeof bits);
    return bits;
}

static void check_half(enum holmes_st_dtype type, uint16_t (*half)(float), float (*back)(uint16_t))
{
    struct ckpt_job job;
    struct holmes_ckpt *a, *b;
    char save[128], again[160], why[600] = "";
    const struct holmes_manifest *m;

    train(false);
    export_it();
    rewrite(type, half);
    snprintf(save, sizeof save, "%s/half", dir);
    snprintf(again, sizeof again, "%s/step-00000001", save);
    job = begin_with(&(struct ckpt_split){1, 1, 2, 1, false, false}, false, save);
    job.first = 2;
    job.last = job.save_at = 1;
    ckpt_job_ok(&job);
    cr_assert_eq(holmes_ckpt_open(step, &a, why, sizeof why), 0);
    cr_assert_eq(holmes_ckpt_open(again, &b, why, sizeof why), 0);
    m = holmes_ckpt_manifest(a);
    for (int i = 0; i < m->ntensors; i++) {
        const struct holmes_manifest_tensor *t = &m->tensors[i];
        float *x = malloc(t->count * sizeof *x), *y = malloc(t->count * sizeof *y);

        cr_assert_eq(
            holmes_ckpt_select(a, t->name, HOLMES_PART_WEIGHTS, t->rows, t->cols, why, sizeof why),
            0);
        cr_assert_eq(holmes_ckpt_read(a, 0, t->count, x, why, sizeof why), 0);
        cr_assert_eq(
            holmes_ckpt_select(b, t->name, HOLMES_PART_WEIGHTS, t->rows, t->cols, why, sizeof why),
            0);
        cr_assert_eq(holmes_ckpt_read(b, 0, t->count, y, why, sizeof why), 0);
        for (uint64_t j = 0; j < t->count; j++)
            cr_assert_eq(y[j], back(half(x[j])), "%s, element %llu: %g from %g", t->name,
                         (unsigned long long)j, y[j], x[j]);
        free(x);
        free(y);
    }
    holmes_ckpt_close(a);
    holmes_ckpt_close(b);
}

static float of_bf16(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static float of_f16(uint16_t bits)
{
    _Float16 h;

    memcpy(&h, &bits, sizeof h);
    return (float)h;
}

Test(gpt2, bfloat16_is_read)
{
    check_half(HOLMES_ST_BF16, to_bf16, of_bf16);
}

Test(gpt2, float16_is_read)
{
    check_half(HOLMES_ST_F16, to_f16, of_f16);
}

static void replace(const char *path, const char *from, const char *to)
{
    static char data[1 << 20];
    FILE *f = fopen(path, "r+e");
    size_t len;
    char *at;

    cr_assert_not_null(f, "%s", path);
    len = fread(data, 1, sizeof data, f);
    at = memmem(data, len, from, strlen(from));
    cr_assert_not_null(at, "no %s", from);
    cr_assert_eq(strlen(from), strlen(to));
    cr_assert_eq(fseek(f, at - data, SEEK_SET), 0);
    cr_assert_eq(fwrite(to, 1, strlen(to), f), strlen(to));
    cr_assert_eq(fclose(f), 0);
}

Test(gpt2, other_models_are_refused_by_name)
{
    static const struct {
        const char *file, *from, *to, *says;
    } cases[] = {
        {"model.safetensors", "transformer.h.2.ln_1.bias", "transformer.h.2.ln_9.bias",
         "transformer.h.2.ln_9.bias has no place in a GPT-2"},
        {"model.safetensors", "transformer.h.2.ln_1.bias", "transformer.h.7.ln_1.bias",
         "transformer.h.7.ln_1.bias is of a layer that --layers 4 does not have"},
        {"model.safetensors", "\"F32\",\"shape\":[24,96]", "\"I32\",\"shape\":[24,96]",
         "is I32; F32, F16 or BF16 is right"},
        {"model.safetensors", "\"shape\":[24,96]", "\"shape\":[96,24]",
         "has the shape [96, 24], the model needs [24, 96]"},
        {"model.safetensors", "{", "x", "no JSON object"},
        {"config.json", "\"n_head\": 4", "\"n_head\": 8", "n_head 8, --heads is 4"},
        {"config.json", "gelu_new", "gelu_old", "activation_function gelu_old; gelu_new"},
        {"config.json", "{", "x", "config.json, line 1: "},
        {"config.json", "\"layer_norm_epsilon\": 1e-5", "\"layer_norm_epsilon\": 1e-6",
         "layer_norm_epsilon 1e-06; 1e-05 is right"},
        {"config.json", "\"scale_attn_weights\": true", "\"scale_attn_weights\":false",
         "scales attention otherwise"},
    };

    train(false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ckpt_job job =
            begin_with(&(struct ckpt_split){1, 1, 1, 1, false, false}, false, NULL);
        char command[400], path[200];

        snprintf(command, sizeof command, "rm -rf %s", model);
        cr_assert_eq(system(command), 0);
        export_it();
        snprintf(path, sizeof path, "%s/%s", model, cases[i].file);
        replace(path, cases[i].from, cases[i].to);
        ckpt_job_run(&job);
        cr_expect_neq(job.rc[0], 0, "%s: taken", cases[i].says);
        cr_expect_not_null(strstr(job.why[0], cases[i].says), "\"%s\" expected: %s", cases[i].says,
                           job.why[0]);
        cr_expect_not_null(strstr(job.why[0], "--init "), "%s", job.why[0]);
    }
}

Test(gpt2, a_head_is_neither_lost_nor_made_up)
{
    struct ckpt_job job;
    const struct ckpt_split one = {1, 1, 1, 1, false, false};

    train(false);
    export_it();
    job = begin_with(&one, true, NULL);
    ckpt_job_run(&job);
    cr_expect_not_null(strstr(job.why[0], "--tied would lose it"), "%s", job.why[0]);
}

/* They are compared before the model's own tensors are looked at. */
Test(gpt2, a_head_beside_a_tied_embedding_may_be_of_any_type)
{
    const struct holmes_st_tensor tensors[] = {
        {.name = "lm_head.weight", .dtype = HOLMES_ST_I8, .ndim = 1, .shape = {4 << 20}},
        {.name = "wte.weight", .dtype = HOLMES_ST_I8, .ndim = 1, .shape = {4 << 20}}};
    const struct ckpt_split one = {1, 1, 1, 1, false, false};
    struct ckpt_job job = begin_with(&one, true, NULL);
    struct holmes_st_writer *w;
    char *zeros = calloc(1, 8 << 20);

    cr_assert_eq(mkdir(model, 0777), 0);
    cr_assert_eq(holmes_st_create(weights, tensors, 2, NULL, &w), 0);
    cr_assert_eq(holmes_st_put(w, zeros, 8 << 20), 0);
    cr_assert_eq(holmes_st_finish(w), 0);
    free(zeros);
    ckpt_job_run(&job);
    cr_expect_not_null(strstr(job.why[0], "lm_head.weight is I8; F32, F16 or BF16 is right"), "%s",
                       job.why[0]);
}

Test(gpt2, a_head_that_is_the_embedding_asks_for_tied)
{
    struct ckpt_job job;
    const struct ckpt_split one = {1, 1, 1, 1, false, false};

    train(true);
    export_it();
    job = begin_with(&one, false, NULL);
    ckpt_job_run(&job);
    cr_expect_not_null(strstr(job.why[0], "--tied is right"), "%s", job.why[0]);
}
