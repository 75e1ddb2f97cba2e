/* Checkpoints that are not as they were written, and runs that do not fit them: each is refused by
 * a sentence that names file and tensor, or both values. docs/checkpoint.md has the list. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../support/test_folder.h"
#include "agree.h"
#include "ckpt_job.h"
#include "ckpt_options.h"
#include "config_spec.h"

#define SHARD "shard-00001-of-00002.safetensors"

static char dir[TEST_FOLDER_MAX], text[128], folder[128], step[160];

static void set_up(void)
{
    struct ckpt_job job = {.split = {.stages = 2, .replicas = 1, .tensors = 1, .chunks = 1},
                           .text = text,
                           .first = 1,
                           .last = 1,
                           .save = folder,
                           .save_at = 1};

    test_folder_make(dir, "ckpt-damage");
    snprintf(text, sizeof text, "%s/text", dir);
    snprintf(folder, sizeof folder, "%s/checkpoints", dir);
    snprintf(step, sizeof step, "%s/step-00000001", folder);
    ckpt_job_text(text);
    ckpt_job_ok(&job);
}

static void tear_down(void)
{
    test_folder_remove(dir);
}

TestSuite(ckpt_damage, .init = set_up, .fini = tear_down, .timeout = 300);

static const char *in(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", step, name);
    return path;
}

/* --- bytes -------------------------------------------------------------------------------------
 */

static char *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "re");
    char *data = malloc(1 << 22);

    cr_assert_not_null(f, "%s", path);
    *len = fread(data, 1, 1 << 22, f);
    fclose(f);
    return data;
}

static void write_file(const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "we");

    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, len, f), len);
    cr_assert_eq(fclose(f), 0);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+e");
    int c;

    cr_assert_not_null(f);
    cr_assert_eq(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    c = fgetc(f);
    cr_assert_eq(fseek(f, -1, SEEK_CUR), 0);
    fputc(c ^ 0x10, f);
    cr_assert_eq(fclose(f), 0);
}

/* The first `from` in the file becomes `to`, of the same length. */
static void replace(const char *path, const char *from, const char *to)
{
    size_t len;
    char *data = read_file(path, &len), *at = memmem(data, len, from, strlen(from));

    cr_assert_not_null(at, "no \"%s\" in %s", from, path);
    cr_assert_eq(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    write_file(path, data, len);
    free(data);
}

/* Rewrites the manifest with what `change` does to it, and a right checksum. */
static void edit_manifest(void (*change)(struct holmes_manifest *m))
{
    struct holmes_manifest m;
    char why[600] = "", *data, *again;
    size_t len;

    data = read_file(in("manifest.json"), &len);
    cr_assert_eq(holmes_manifest_parse("m", data, len, &m, why, sizeof why), 0, "%s", why);
    change(&m);
    again = holmes_manifest_text(&m, &len);
    write_file(in("manifest.json"), again, len);
    free(data);
    free(again);
    m.ntensors = m.ntensors < 0 ? 0 : m.ntensors;
    holmes_manifest_fini(&m);
}

/* What a shard's header says has changed, and the manifest agrees with it. */
static void accept_header(struct holmes_manifest *m)
{
    for (int i = 0; i < m->nshards; i++) {
        struct holmes_st *st = NULL;
        char why[600] = "";

        cr_assert_eq(holmes_st_open(in(m->shards[i].file), &st, why, sizeof why), 0, "%s", why);
        m->shards[i].bytes = holmes_st_file_bytes(st);
        m->shards[i].header_crc = holmes_st_header_crc(st);
        holmes_st_close(st);
    }
}

static void other_step(struct holmes_manifest *m)
{
    m->step = 7;
}

static void drop_tensor(struct holmes_manifest *m)
{
    snprintf(m->tensors[0].name, sizeof m->tensors[0].name, "h.9.attn.proj.bias");
}

static struct holmes_manifest_tensor *tensor_of(struct holmes_manifest *m, const char *name)
{
    for (int i = 0; i < m->ntensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    cr_assert_fail("no %s", name);
    return NULL;
}

static void turn_matrix(struct holmes_manifest *m)
{
    struct holmes_manifest_tensor *t = tensor_of(m, "h.3.mlp.fc.weight");
    const int rows = t->rows;

    t->rows = t->cols;
    t->cols = rows;
}

static void forget_shard(struct holmes_manifest *m)
{
    tensor_of(m, "h.3.mlp.fc.weight")->shards[0] = 0; /* it lies in shard 1 */
}

/* --- damage ------------------------------------------------------------------------------------
 */

struct damage {
    const char *what;
    void (*make)(void);
    const char *file, *tensor, *says; /* all in the sentence; "" for none */
};

static void cut_shard(void)
{
    struct stat st;

    cr_assert_eq(stat(in(SHARD), &st), 0);
    cr_assert_eq(truncate(in(SHARD), st.st_size - 100), 0);
}

static void lose_shard(void)
{
    cr_assert_eq(unlink(in(SHARD)), 0);
}

static void flip_data(void)
{
    flip(in(SHARD), -5);
}

static void flip_header(void)
{
    replace(in(SHARD), "\"h.3.ln_2.bias/", "\"h.3.ln_1.bias/");
}

static void garble_header(void)
{
    flip(in(SHARD), 8);
}

static void cut_manifest(void)
{
    cr_assert_eq(truncate(in("manifest.json"), 300), 0);
}

static void empty_manifest(void)
{
    cr_assert_eq(truncate(in("manifest.json"), 0), 0);
}

static void flip_manifest(void)
{
    replace(in("manifest.json"), "\"seed\": \"8\"", "\"seed\": \"9\"");
}

static void version_2(void)
{
    replace(in("manifest.json"), "\"holmes_checkpoint\": 1", "\"holmes_checkpoint\": 2");
    /* a later version has a right checksum */
    {
        size_t len;
        char *data = read_file(in("manifest.json"), &len), *sum;
        struct holmes_manifest m;
        char why[600], *is;

        cr_assert_neq(holmes_manifest_parse("m", data, len, &m, why, sizeof why), 0);
        is = strstr(why, "checksum is ");
        cr_assert_not_null(is, "%s", why);
        sum = memmem(data, len, "\"crc32c\": \"", 11);
        cr_assert_not_null(sum);
        memcpy(sum + 11, is + strlen("checksum is "), 8);
        write_file(in("manifest.json"), data, len);
        free(data);
    }
}

static void other_json(void)
{
    write_file(in("manifest.json"), "{\"a\": 1}", 8);
}

static void wrong_dtype(void)
{
    replace(in(SHARD), "{\"dtype\":\"F32\"", "{\"dtype\":\"I32\"");
    edit_manifest(accept_header);
}

static void wrong_runs(void)
{
    replace(in(SHARD), "\"96 0+96\"", "\"96 0+95\"");
    edit_manifest(accept_header);
}

static void wrong_shape(void)
{
    replace(in(SHARD), "\"96x24 0+2304\"", "\"24x96 0+2304\"");
    edit_manifest(accept_header);
}

static void wrong_sum(void)
{
    replace(in(SHARD), "/w\":\"", "/x\":\"");
    edit_manifest(accept_header);
}

static void swap_shards(void)
{
    cr_assert_eq(rename(in(SHARD), in("x")), 0);
    cr_assert_eq(rename(in("shard-00000-of-00002.safetensors"), in(SHARD)), 0);
    cr_assert_eq(rename(in("x"), in("shard-00000-of-00002.safetensors")), 0);
}

static void miss_tensor(void)
{
    edit_manifest(drop_tensor);
}

static void turn_shape(void)
{
    edit_manifest(turn_matrix);
}

static void miss_piece(void)
{
    edit_manifest(forget_shard);
}

static const struct damage damages[] = {
    {"a shard that is cut short", cut_shard, SHARD, "tensor h.", "cut short"},
    {"a shard that is missing", lose_shard, SHARD, "tensor h.", "No such file"},
    {"a flipped bit in the data", flip_data, SHARD, "tensor ", "checksum of its second moments"},
    {"a flipped bit in a header", flip_header, SHARD, "", ""},
    {"a header that is no JSON", garble_header, SHARD, "", "no JSON object"},
    {"shards that were exchanged", swap_shards, "shard-0000", "tensor ", "were written"},
    {"another dtype", wrong_dtype, SHARD, "tensor ", "are I32; F32 is right"},
    {"runs of another length", wrong_runs, SHARD, "tensor h.", "are 96 numbers; 95 are right"},
    {"another shape than the manifest's", wrong_shape, SHARD, "tensor h.",
     "has the shape [24, 96]; the manifest has [96, 24]"},
    {"no checksums", wrong_sum, SHARD, "tensor ", "have no checksums"},
    {"a manifest that is cut short", cut_manifest, "manifest.json", "", "line "},
    {"an empty manifest", empty_manifest, "manifest.json", "", "line 1"},
    {"a flipped bit in the manifest", flip_manifest, "manifest.json", "", "damaged, or changed"},
    {"a later version", version_2, "manifest.json", "", "this program reads version 1"},
    {"another JSON file", other_json, "manifest.json", "", "no manifest of a checkpoint"},
    {"a tensor that is missing", miss_tensor, "manifest.json", "tensor h.0.attn.proj.bias",
     "is missing"},
    {"another shape than the model's", turn_shape, "manifest.json", "tensor h.3.mlp.fc.weight",
     "has the shape [24, 96]; the model has [96, 24]"},
    {"a piece that is missing", miss_piece, "step-00000001", "tensor h.3.mlp.fc.weight",
     "no shard has element 0 of its weights"},
};

/* What a run on one rank says that goes on from there, as holmes-train does. */
static void check_damage(const struct damage *d)
{
    struct ckpt_job job = {.split = {.stages = 1, .replicas = 1, .tensors = 1, .chunks = 1},
                           .text = text,
                           .first = 2,
                           .last = 2,
                           .resume = step};
    const char *why = job.why[0];

    d->make();
    ckpt_job_run(&job);
    cr_expect_neq(job.rc[0], 0, "%s: taken", d->what);
    cr_expect_eq(strncmp(why, step, strlen(step)), 0, "%s: no file comes first: %s", d->what, why);
    cr_expect_not_null(strstr(why, d->file), "%s: no %s in: %s", d->what, d->file, why);
    cr_expect_not_null(strstr(why, d->tensor), "%s: no \"%s\" in: %s", d->what, d->tensor, why);
    cr_expect_not_null(strstr(why, d->says), "%s: no \"%s\" in: %s", d->what, d->says, why);
    if (getenv("HOLMES_TEST_SHOW"))
        printf("%s\n    %s\n", d->what, why);
}

Test(ckpt_damage, is_found_and_named)
{
    char command[800];

    snprintf(command, sizeof command, "cp -r %s %s/good", step, dir);
    cr_assert_eq(system(command), 0);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        check_damage(&damages[i]);
        snprintf(command, sizeof command, "rm -rf %s && cp -r %s/good %s", step, dir, step);
        cr_assert_eq(system(command), 0);
    }
}

/* Any byte: every bit of every file counts, or is blank space. */
Test(ckpt_damage, of_any_byte_of_a_shard_is_found)
{
    struct ckpt_job job = {.split = {.stages = 1, .replicas = 1, .tensors = 1, .chunks = 1},
                           .text = text,
                           .first = 2,
                           .last = 1,
                           .resume = step};
    struct stat st;

    cr_assert_eq(stat(in(SHARD), &st), 0);
    for (long at = 0; at < st.st_size; at += 1 + st.st_size / 97) {
        flip(in(SHARD), at);
        ckpt_job_run(&job);
        cr_expect_neq(job.rc[0], 0, "byte %ld is flipped and nobody sees it", at);
        cr_expect_not_null(strstr(job.why[0], SHARD), "%s", job.why[0]);
        flip(in(SHARD), at);
    }
    ckpt_job_ok(&job);
}

/* --- runs that do not fit ----------------------------------------------------------------------
 */

static struct holmes_config config_now(void)
{
    struct ckpt_job job = {.split = {.stages = 2, .replicas = 1, .tensors = 1, .chunks = 1},
                           .text = text,
                           .save = folder};

    return ckpt_job_config(&job);
}

static int fits(struct holmes_config *c, json_t **changes, char *why, size_t why_len)
{
    struct holmes_ckpt_data data;
    struct holmes_ckpt *ck;
    int rc;

    cr_assert_eq(holmes_ckpt_open(step, &ck, why, why_len), 0, "%s", why);
    cr_assert_eq(holmes_ckpt_data_of(c->data, &data, why, why_len), 0, "%s", why);
    rc = holmes_ckpt_fits(ck, c, &data, changes, why, why_len);
    holmes_ckpt_close(ck);
    return rc;
}

static void set(struct holmes_config *c, const char *option, const char *value)
{
    char why[300];

    cr_assert_eq(holmes_spec_set(holmes_spec_find(option), value, c, why, sizeof why), 0, "%s",
                 why);
}

Test(ckpt_damage, contradictions_are_refused_with_both_values)
{
    static const struct {
        const char *option, *value, *now, *then;
    } cases[] = {
        {"layers", "5", "--layers 5", "has 4"},
        {"channels", "32", "--channels 32", "has 24"},
        {"heads", "2", "--heads 2", "has 4"},
        {"seq-len", "8", "--seq-len 8", "has 16"},
        {"vocab", "300", "--vocab 300", "has 256"},
        {"tied", "yes", "--tied=yes", "--tied=no"},
        {"seed", "9", "--seed 9", "with 8"},
        {"batch", "24", "--batch 24", "with 12"},
        {"held-out", "0.2", "--held-out 0.2", "with 0.1"},
        {"split", "8,1,1", "--split 8,1,1", "with default"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_config c = config_now();
        char why[600] = "";
        json_t *changes;

        set(&c, cases[i].option, cases[i].value);
        cr_expect_eq(fits(&c, &changes, why, sizeof why), -EINVAL, "--%s", cases[i].option);
        cr_expect_not_null(strstr(why, cases[i].now), "%s", why);
        cr_expect_not_null(strstr(why, cases[i].then), "%s", why);
        cr_expect_not_null(strstr(why, step), "%s", why);
        if (getenv("HOLMES_TEST_SHOW"))
            printf("--%s\n    %s\n", cases[i].option, why);
        holmes_config_fini(&c);
    }
}

Test(ckpt_damage, other_data_are_refused)
{
    struct holmes_config c = config_now();
    char why[600] = "";
    json_t *changes;

    flip(text, 5000);
    cr_expect_eq(fits(&c, &changes, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "has other contents than what"), "%s", why);
    cr_assert_eq(truncate(text, 20000), 0);
    cr_expect_eq(fits(&c, &changes, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "has 20000 bytes, what"), "%s", why);
    holmes_config_fini(&c);
}

/* As the loader has it: a file of the very name is a text, whatever lies beside it. */
Test(ckpt_damage, the_data_compared_are_those_trained_on)
{
    static const char *const ends[] = {".bin", ".idx"};
    struct holmes_config c = config_now();
    char why[600] = "", command[400];
    json_t *changes;

    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "echo another >%s%s", text, ends[i]);
        cr_assert_eq(system(command), 0);
    }
    cr_assert_eq(fits(&c, &changes, why, sizeof why), 0, "%s", why);
    json_decref(changes);
    flip(text, 5000);
    cr_expect_eq(fits(&c, &changes, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "has other contents than what"), "%s", why);
    holmes_config_fini(&c);
}

Test(ckpt_damage, a_recipe_may_change_and_is_told_a_split_may_and_is_not)
{
    struct holmes_config c = config_now();
    char why[600] = "";
    json_t *changes = NULL;

    cr_assert_eq(fits(&c, &changes, why, sizeof why), 0, "%s", why);
    cr_expect_eq(json_object_size(changes), 0);
    json_decref(changes);
    set(&c, "lr", "0.5");
    set(&c, "steps", "99");
    set(&c, "pipeline", "1");
    set(&c, "tensor", "2");
    set(&c, "microbatch", "3");
    set(&c, "recompute", "yes");
    set(&c, "trace", "t.json");
    set(&c, "measure-overlap", "1");
    cr_assert_eq(fits(&c, &changes, why, sizeof why), 0, "%s", why);
    cr_expect_eq(json_object_size(changes), 2);
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(changes, "lr"), 0)), "0.003");
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(changes, "lr"), 1)), "0.5");
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(changes, "steps"), 1)), "99");
    json_decref(changes);
    holmes_config_fini(&c);
}

Test(ckpt_damage, a_checkpoint_beyond_the_last_step_is_refused)
{
    struct holmes_config c = config_now();
    char why[600] = "";
    json_t *changes;

    edit_manifest(other_step);
    c.steps = 6;
    cr_expect_eq(fits(&c, &changes, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "--steps 6: "), "%s", why);
    cr_expect_not_null(strstr(why, "is at step 7 already"), "%s", why);
    holmes_config_fini(&c);
}

/* An option that is renamed must be renamed there, or it would be told or refused no more. */
Test(ckpt_damage, lists_of_options_name_options)
{
    for (const char *const *name = holmes_ckpt_fixed; *name; name++)
        cr_expect_not_null(holmes_spec_find(*name), "there is no --%s", *name);
    for (const char *const *name = holmes_agree_own; *name; name++)
        cr_expect_not_null(holmes_spec_find(*name), "there is no --%s", *name);
    for (const char *const *name = holmes_agree_given; *name; name++)
        cr_expect_not_null(holmes_spec_find(*name), "there is no --%s", *name);
    for (const char *const *name = holmes_ckpt_free; *name; name++)
        cr_expect_not_null(holmes_spec_find(*name), "there is no --%s", *name);
}
