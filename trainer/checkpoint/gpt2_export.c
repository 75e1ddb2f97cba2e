#include "gpt2.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_folder.h"
#include "clock.h"
#include "launch.h"
#include "progress.h"

#define PUT_FLOATS HOLMES_SHARD_BLOCK /* written at a time */

#define FAIL(rc, ...)                                                                              \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return rc;                                                                                 \
    } while (0)

struct exporter {
    struct holmes_ckpt *ckpt;
    const struct holmes_manifest *m;
    struct holmes_st_tensor *tensors; /* [m->ntensors] in the manifest's order */
    char (*names)[96];
    bool *transposed;
    struct holmes_st_writer *out;
    struct holmes_progress *progress;
    uint64_t done; /* elements */
    char *why;
    size_t why_len;
};

static int describe(struct exporter *e)
{
    for (int i = 0; i < e->m->ntensors; i++) {
        const struct holmes_manifest_tensor *t = &e->m->tensors[i];
        struct holmes_st_tensor *st = &e->tensors[i];
        const bool matrix = t->rows > 0;
        char name[80];

        if (holmes_gpt2_name(t->name, name, sizeof name, &e->transposed[i]) != 0) {
            snprintf(e->why, e->why_len, "%s: tensor %s has no place in a GPT-2",
                     holmes_ckpt_path(e->ckpt), t->name);
            return -EINVAL;
        }
        snprintf(e->names[i], sizeof e->names[i], "%s%s",
                 strcmp(name, "lm_head.weight") == 0 ? "" : "transformer.", name);
        *st = (struct holmes_st_tensor){
            .name = e->names[i], .dtype = HOLMES_ST_F32, .ndim = matrix ? 2 : 1};
        st->shape[0] = (uint64_t)(matrix && !e->transposed[i] ? t->rows : t->cols);
        st->shape[1] = (uint64_t)(e->transposed[i] ? t->rows : t->cols);
    }
    return 0;
}

/* Rows of the transposed matrix that fit a buffer, one buffer after the other. */
static int put_transposed(struct exporter *e, const struct holmes_manifest_tensor *t,
                          const float *w, float *buffer)
{
    const size_t rows = (size_t)t->rows, cols = (size_t)t->cols;
    size_t n = 0;
    int rc = 0;

    for (size_t c = 0; c < cols && rc == 0; c++) {
        for (size_t r = 0; r < rows && rc == 0; r++) {
            buffer[n++] = w[r * cols + c];
            if (n == PUT_FLOATS) {
                rc = holmes_st_put(e->out, buffer, n * sizeof *buffer);
                n = 0;
            }
        }
    }
    return rc ? rc : holmes_st_put(e->out, buffer, n * sizeof *buffer);
}

static int put_tensor(struct exporter *e, int i, float *buffer)
{
    const struct holmes_manifest_tensor *t = &e->m->tensors[i];
    float *w = malloc(t->count * sizeof *w);
    int rc = holmes_ckpt_select(e->ckpt, t->name, HOLMES_PART_WEIGHTS, t->rows, t->cols, e->why,
                                e->why_len);
    bool told = rc != 0;

    if (!w && rc == 0)
        rc = -ENOMEM;
    if (rc == 0) {
        rc = holmes_ckpt_read(e->ckpt, 0, t->count, w, e->why, e->why_len);
        told = rc != 0;
    }
    if (rc == 0)
        rc = e->transposed[i] ? put_transposed(e, t, w, buffer)
                              : holmes_st_put(e->out, w, t->count * sizeof *w);
    free(w);
    if (rc != 0 && !told)
        snprintf(e->why, e->why_len, "tensor %s cannot be written: %s", t->name, strerror(-rc));
    e->done += t->count;
    return rc;
}

static int put_all(struct exporter *e)
{
    float *buffer = malloc(PUT_FLOATS * sizeof *buffer);
    int rc = buffer ? 0 : -ENOMEM;

    if (rc != 0)
        snprintf(e->why, e->why_len, "out of memory");
    for (int i = 0; i < e->m->ntensors && rc == 0; i++) {
        rc = put_tensor(e, i, buffer);
        if (e->progress)
            holmes_progress_update(e->progress, e->done, "%.1f MB", (double)e->done * 4 / 1e6);
    }
    free(buffer);
    return rc;
}

/* `path` gets its name when all of it is on the disk: a run that is killed leaves none that looks
 * whole. */
static int write_weights(struct exporter *e, const char *dir, const char *path)
{
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    char partial[HOLMES_CKPT_PATH_MAX + 64];
    int rc = describe(e);

    snprintf(partial, sizeof partial, "%s/model.partial", dir);
    if (rc == 0 && access(path, F_OK) == 0) {
        snprintf(e->why, e->why_len, "cannot make %s: %s", path, strerror(EEXIST));
        rc = -EEXIST;
    }
    if (rc == 0) {
        unlink(partial); /* of a run that was killed */
        /* NOLINTNEXTLINE: the analyzer takes e's memory for lost; the caller frees it */
        rc = holmes_st_create(partial, e->tensors, e->m->ntensors, metadata, &e->out);
        if (rc != 0)
            snprintf(e->why, e->why_len, "cannot make %s: %s", partial, strerror(-rc));
    }
    json_decref(metadata);
    if (rc != 0)
        return rc;
    rc = put_all(e);
    if (rc != 0) {
        holmes_st_abandon(e->out);
        return rc;
    }
    rc = holmes_st_finish(e->out);
    if (rc == 0 && rename(partial, path) != 0)
        rc = -errno;
    if (rc == 0)
        rc = holmes_ckpt_sync_folder(dir);
    if (rc != 0)
        snprintf(e->why, e->why_len, "cannot write %s: %s", path, strerror(-rc));
    return rc;
}

/* What transformers wants to know; dropout is none, as in training here. */
static int write_config(const struct holmes_model *m, const char *path, char *why, size_t why_len)
{
    json_t *o = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:f, s:b, s:f, s:f, s:f, s:b, s:s}",
        "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "vocab_size", m->vocab,
        "n_positions", m->seq_len, "n_ctx", m->seq_len, "n_embd", m->channels, "n_layer", m->layers,
        "n_head", m->heads, "activation_function", "gelu_new", "layer_norm_epsilon", 1e-5,
        "initializer_range", 0.02, "tie_word_embeddings", m->tied, "resid_pdrop", 0.0, "embd_pdrop",
        0.0, "attn_pdrop", 0.0, "scale_attn_weights", 1, "torch_dtype", "float32");
    const int rc = o ? json_dump_file(o, path, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : -1;

    json_decref(o);
    if (rc != 0)
        FAIL(-EIO, "cannot write %s", path);
    return 0;
}

int holmes_gpt2_export(struct holmes_ckpt *c, const char *dir, struct holmes_progress *progress,
                       uint64_t *bytes, char *why, size_t why_len)
{
    const struct holmes_manifest *m = holmes_ckpt_manifest(c);
    const size_t n = (size_t)m->ntensors;
    struct exporter e = {.ckpt = c,
                         .m = m,
                         .tensors = calloc(n, sizeof *e.tensors),
                         .names = calloc(n, sizeof *e.names),
                         .transposed = calloc(n, sizeof *e.transposed),
                         .progress = progress,
                         .why = why,
                         .why_len = why_len};
    char path[HOLMES_CKPT_PATH_MAX + 64];
    int rc = e.tensors && e.names && e.transposed ? 0 : -ENOMEM;

    if (rc != 0) {
        snprintf(why, why_len, "out of memory");
    } else if (mkdir(dir, 0777) != 0 && errno != EEXIST) {
        rc = -errno;
        snprintf(why, why_len, "cannot make the folder %s: %s", dir, strerror(-rc));
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (rc == 0)
        rc = write_weights(&e, dir, path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (rc == 0)
        rc = write_config(&m->model, path, why, why_len);
    *bytes = e.done * sizeof(float);
    free(e.tensors);
    free(e.names);
    free(e.transposed);
    return rc;
}

/* --- the verb ----------------------------------------------------------------------------------
 */

struct args {
    const char *checkpoint, *out;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    switch (key) {
    case 'o':
        a->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->checkpoint)
            argp_error(state, "\"%s\": one checkpoint at a time", arg);
        a->checkpoint = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->checkpoint)
            argp_error(state, "name a checkpoint, or a folder of them whose newest is taken");
        if (!a->out)
            argp_error(state, "-o DIR is missing: where the model is to go");
        else if (strlen(a->out) >= HOLMES_CKPT_PATH_MAX)
            argp_error(state, "-o %.60s...: the path is too long", a->out);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void parse(int argc, char **argv, struct args *a)
{
    static const struct argp_option options[] = {
        {"output", 'o', "DIR", 0, "folder for model.safetensors and config.json", 0}, {0}};
    static const struct argp argp = {
        options,
        parse_option,
        "CHECKPOINT",
        "Writes the whole model of a checkpoint of holmes-train, whatever split it was trained "
        "under, as a GPT-2 that Hugging Face's transformers reads: "
        "GPT2LMHeadModel.from_pretrained(DIR). float32, one tensor in memory at a time."
        "\vExamples:\n"
        "  holmes-train export checkpoints -o model\n"
        "      the newest in this folder\n"
        "  holmes-train export checkpoints/step-00001000 -o model\n"
        "  holmes-train --data FILE --init model ...\n"
        "      trains on from these weights, or those of another GPT-2",
        NULL,
        NULL,
        NULL};
    char name[] = "holmes-train export";

    argv[0] = name;
    argp_err_exit_status = HOLMES_EXIT_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, a);
}

int holmes_export_main(int argc, char **argv)
{
    const uint64_t started = holmes_now_ns();
    char path[HOLMES_CKPT_PATH_MAX + 64], why[1500] = "";
    struct holmes_ckpt *c = NULL;
    struct holmes_progress progress;
    struct args a = {0};
    uint64_t bytes = 0;
    const char *text;
    int rc;

    parse(argc, argv, &a);
    rc = holmes_ckpt_locate(a.checkpoint, NULL, path, sizeof path, why, sizeof why);
    if (rc == 0)
        rc = holmes_ckpt_open(path, &c, why, sizeof why);
    if (rc == 0) {
        holmes_progress_init(&progress, stderr, "export",
                             holmes_model_params(&holmes_ckpt_manifest(c)->model), false);
        rc = holmes_gpt2_export(c, a.out, &progress, &bytes, why, sizeof why);
        holmes_progress_finish(&progress);
    }
    if (rc == 0)
        printf("%s, step %d: %.2f million parameters as %s/model.safetensors, %.1f MB in %.1f s\n",
               path, holmes_ckpt_manifest(c)->step,
               (double)holmes_model_params(&holmes_ckpt_manifest(c)->model) / 1e6, a.out,
               (double)bytes / 1e6, (double)(holmes_now_ns() - started) / 1e9);
    holmes_ckpt_close(c);
    if (rc == 0)
        return fflush(stdout) == 0 ? HOLMES_EXIT_OK : HOLMES_EXIT_FAILED;
    text = strncmp(why, "--resume ", 9) == 0 ? why + 9 : why; /* here it is an argument */
    fprintf(stderr, "holmes-train export: %s\n", text);
    return rc == -EINVAL || rc == -EBADMSG || rc == -ENOENT || rc == -ENOTDIR || rc == -EEXIST
               ? HOLMES_EXIT_USAGE
               : HOLMES_EXIT_FAILED;
}
