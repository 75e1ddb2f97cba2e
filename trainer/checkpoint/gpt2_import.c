/* Every tensor is read whole, one at a time, made float32 and turned to our orientation; a rank
 * then takes its part. */
#include "gpt2.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_state.h"
#include "file.h"

#define READ_BYTES (1 << 20)
#define CONFIG_MAX (1 << 20) /* of a config.json */

#define FAIL(rc, ...)                                                                              \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return rc;                                                                                 \
    } while (0)

struct importer {
    const char *path; /* of the weights */
    const struct holmes_config *config;
    struct holmes_st *st;
    char *why;
    size_t why_len;
};

#define REFUSE(im, rc, ...)                                                                        \
    do {                                                                                           \
        const int refuse_at = snprintf((im)->why, (im)->why_len, "--init %s: ", (im)->path);       \
        if (refuse_at > 0 && (size_t)refuse_at < (im)->why_len)                                    \
            snprintf((im)->why + refuse_at, (im)->why_len - (size_t)refuse_at, __VA_ARGS__);       \
        return rc;                                                                                 \
    } while (0)

/* --- numbers -----------------------------------------------------------------------------------
 */

static float from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, mantissa = h & 0x3ff;
    const int exponent = h >> 10 & 31;
    uint32_t bits;
    float f;

    if (exponent == 0) { /* zero, or below the smallest power */
        f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    if (exponent == 31)
        bits = sign | 0x7f800000 | mantissa << 13;
    else
        bits = sign | (uint32_t)(exponent + 112) << 23 | mantissa << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void convert(enum holmes_st_dtype type, const void *from, size_t count, float *to)
{
    const uint16_t *half = from;

    if (type == HOLMES_ST_F32)
        memcpy(to, from, count * sizeof *to);
    else
        for (size_t i = 0; i < count; i++)
            to[i] = type == HOLMES_ST_F16 ? from_f16(half[i]) : holmes_bf16_value(half[i]);
}

/* The whole tensor as float32, as it lies in the file. */
static int read_tensor(struct importer *im, const struct holmes_st_tensor *t, float *out)
{
    const size_t size = holmes_st_dtype_size(t->dtype);
    void *buffer = malloc(READ_BYTES);
    int rc = buffer ? 0 : -ENOMEM;

    for (uint64_t at = 0; at < t->bytes && rc == 0; at += READ_BYTES) {
        const size_t n = t->bytes - at < READ_BYTES ? (size_t)(t->bytes - at) : READ_BYTES;

        rc = holmes_st_read(im->st, t, at, buffer, n);
        if (rc == 0)
            convert(t->dtype, buffer, n / size, out + at / size);
    }
    free(buffer);
    if (rc != 0)
        REFUSE(im, rc, "tensor %s cannot be read: %s", t->name, strerror(-rc));
    return 0;
}

/* --- what must be there, and what must not -----------------------------------------------------
 */

static const struct holmes_st_tensor *find(const struct importer *im, const char *theirs)
{
    const struct holmes_st_tensor *t = holmes_st_find(im->st, theirs);
    char name[128];

    if (t)
        return t;
    snprintf(name, sizeof name, "transformer.%s", theirs);
    return holmes_st_find(im->st, name);
}

/* Masks that old versions stored beside the weights. */
static bool is_mask(const char *name)
{
    const char *end = strrchr(name, '.');
    const size_t len = end ? (size_t)(end - name) : 0;

    return len >= 5 && strncmp(end - 5, ".attn", 5) == 0 &&
           (strcmp(end, ".bias") == 0 || strcmp(end, ".masked_bias") == 0);
}

static int check_strangers(struct importer *im)
{
    for (int i = 0; i < holmes_st_count(im->st); i++) {
        const char *name = holmes_st_tensor(im->st, i)->name;
        char ours[128];

        if (is_mask(name))
            continue;
        if (holmes_gpt2_ours(name, ours, sizeof ours) != 0)
            REFUSE(im, -EINVAL, "tensor %.100s has no place in a GPT-2", name);
        if (strncmp(ours, "h.", 2) == 0 && atoi(ours + 2) >= im->config->model.layers)
            REFUSE(im, -EINVAL, "tensor %.100s is of a layer that --layers %d does not have", name,
                   im->config->model.layers);
    }
    return 0;
}

static int check_dtype(struct importer *im, const struct holmes_st_tensor *t)
{
    if (t->dtype == HOLMES_ST_F32 || t->dtype == HOLMES_ST_F16 || t->dtype == HOLMES_ST_BF16)
        return 0;
    REFUSE(im, -EINVAL, "tensor %s is %s; F32, F16 or BF16 is right", t->name,
           holmes_st_dtype_name(t->dtype));
}

/* A tied model has no head; a file may have it all the same, as a copy. */
static int check_head(struct importer *im)
{
    const struct holmes_st_tensor *head = find(im, "lm_head.weight"), *wte = find(im, "wte.weight");
    float *a, *b;
    int rc;

    if (!im->config->model.tied) {
        if (!head)
            REFUSE(im, -EINVAL,
                   "lm_head.weight is missing: its head is the embedding, and --tied is right");
        return 0;
    }
    if (!head || !wte || head->count != wte->count)
        return 0; /* shapes are checked elsewhere */
    if (check_dtype(im, head) != 0 || check_dtype(im, wte) != 0)
        return -EINVAL;
    a = malloc(head->count * sizeof *a);
    b = malloc(head->count * sizeof *b);
    rc = a && b ? read_tensor(im, head, a) : -ENOMEM;
    if (!a || !b)
        snprintf(im->why, im->why_len, "out of memory");
    if (rc == 0)
        rc = read_tensor(im, wte, b);
    if (rc == 0 && memcmp(a, b, head->count * sizeof *a) != 0)
        rc = -EBADMSG;
    free(a);
    free(b);
    if (rc == -EBADMSG)
        REFUSE(im, -EINVAL, "lm_head.weight is not wte.weight: --tied would lose it");
    return rc;
}

/* What the shapes do not tell. */
static int check_config(struct importer *im, const char *path)
{
    json_error_t error;
    json_t *o, *heads, *activation, *epsilon;
    char *text;
    size_t len;
    char name[40] = "gelu_new";
    double eps;
    bool scaled;
    int n;

    if (access(path, F_OK) != 0 && errno == ENOENT) /* a file of weights alone */
        return 0;
    n = holmes_file_read(path, CONFIG_MAX, &text, &len);
    if (n != 0)
        REFUSE(im, -EINVAL, "its config.json: %s", holmes_file_strerror(n));
    o = json_loadb(text, len, 0, &error);
    free(text);
    if (!o)
        REFUSE(im, -EINVAL, "its config.json, line %d: %s", error.line, error.text);
    heads = json_object_get(o, "n_head");
    n = json_is_integer(heads) ? (int)json_integer_value(heads) : im->config->model.heads;
    activation = json_object_get(o, "activation_function");
    if (json_is_string(activation))
        snprintf(name, sizeof name, "%s", json_string_value(activation));
    epsilon = json_object_get(o, "layer_norm_epsilon");
    eps = json_is_number(epsilon) ? json_number_value(epsilon) : 1e-5;
    scaled = !json_is_false(json_object_get(o, "scale_attn_weights")) &&
             !json_is_true(json_object_get(o, "scale_attn_by_inverse_layer_idx"));
    json_decref(o);
    if (!(eps > 0.999e-5 && eps < 1.001e-5))
        REFUSE(im, -EINVAL, "its config.json has the layer_norm_epsilon %g; 1e-05 is right", eps);
    if (!scaled)
        REFUSE(im, -EINVAL, "its config.json scales attention otherwise than GPT-2 does");
    if (n != im->config->model.heads)
        REFUSE(im, -EINVAL, "its config.json has n_head %d, --heads is %d", n,
               im->config->model.heads);
    if (strcmp(name, "gelu_new") != 0)
        REFUSE(im, -EINVAL, "its config.json has the activation_function %s; gelu_new is right",
               name);
    return 0;
}

/* --- taking ------------------------------------------------------------------------------------
 */

struct whole {
    const float *w;
};

static int read_whole(void *ctx, uint64_t first, size_t count, float *out, char *why,
                      size_t why_len)
{
    const struct whole *w = ctx;

    (void)why;
    (void)why_len;
    memcpy(out, w->w + first, count * sizeof *out);
    return 0;
}

/* Ours (rows, cols) from theirs (cols, rows). */
static void transpose(const float *theirs, size_t rows, size_t cols, float *ours)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            ours[r * cols + c] = theirs[c * rows + r];
}

static int check_tensor(struct importer *im, const struct holmes_tensor *t, const char *theirs,
                        bool transposed, const struct holmes_st_tensor **out)
{
    const struct holmes_st_tensor *st = find(im, theirs);
    struct holmes_st_tensor right = {.ndim = t->dims};
    char is[100], must[100];

    if (!st)
        REFUSE(im, -EINVAL, "tensor %s is missing", theirs);
    if (check_dtype(im, st) != 0)
        return -EINVAL;
    right.shape[0] = transposed ? t->cols : t->rows;
    right.shape[1] = transposed ? t->rows : t->cols;
    if (st->ndim != right.ndim || st->shape[0] != right.shape[0] ||
        (right.ndim == 2 && st->shape[1] != right.shape[1]))
        REFUSE(im, -EINVAL, "tensor %s has the shape %s, the model needs %s", st->name,
               holmes_st_shape_text(st, is, sizeof is),
               holmes_st_shape_text(&right, must, sizeof must));
    *out = st;
    return 0;
}

static int take_tensor(struct importer *im, struct holmes_stage *s, const struct holmes_tensor *t)
{
    const struct holmes_st_tensor *st;
    float *theirs, *ours = NULL;
    struct whole whole;
    char name[80];
    bool transposed;
    int rc = holmes_gpt2_name(t->name, name, sizeof name, &transposed);

    if (rc != 0)
        REFUSE(im, rc, "our tensor %s has no name in a GPT-2", t->name);
    rc = check_tensor(im, t, name, transposed, &st);
    if (rc != 0)
        return rc;
    theirs = malloc((st->count + 1) * sizeof *theirs);
    if (transposed)
        ours = malloc((st->count + 1) * sizeof *ours);
    if (!theirs || (transposed && !ours)) {
        rc = -ENOMEM;
        snprintf(im->why, im->why_len, "out of memory");
    }
    if (rc == 0)
        rc = read_tensor(im, st, theirs);
    if (rc == 0 && transposed)
        transpose(theirs, t->rows, t->cols, ours);
    whole.w = transposed ? ours : theirs;
    if (rc == 0)
        rc = holmes_state_fill_weights(s, t, read_whole, &whole, im->why, im->why_len);
    free(theirs);
    free(ours);
    return rc;
}

static int take_all(struct importer *im, struct holmes_trainer *t)
{
    int rc = check_strangers(im);

    if (rc == 0)
        rc = check_head(im);
    for (int chunk = 0; chunk < holmes_trainer_nchunks(t) && rc == 0; chunk++) {
        struct holmes_stage *s = holmes_trainer_stage(t, chunk);

        for (int i = 0; i < holmes_stage_ntensors(s) && rc == 0; i++)
            rc = take_tensor(im, s, holmes_stage_tensor(s, i));
    }
    return rc;
}

int holmes_gpt2_import(const char *path, const struct holmes_config *c, struct holmes_trainer *t,
                       char *why, size_t why_len)
{
    char file[HOLMES_CKPT_PATH_MAX + 64], config[HOLMES_CKPT_PATH_MAX + 64], problem[1000];
    struct importer im = {.path = path, .config = c, .why = why, .why_len = why_len};
    struct stat st;
    const size_t len = strlen(path);
    int rc = 0;

    if (len >= HOLMES_CKPT_PATH_MAX)
        FAIL(-ENAMETOOLONG, "--init %.60s...: the path is too long", path);
    memcpy(file, path, len + 1);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        snprintf(file, sizeof file, "%s/model.safetensors", path);
        snprintf(config, sizeof config, "%s/config.json", path);
        rc = check_config(&im, config);
    }
    if (rc != 0)
        return rc;
    rc = holmes_st_open(file, &im.st, problem, sizeof problem);
    if (rc != 0)
        FAIL(rc, "--init %s", problem);
    rc = take_all(&im, t);
    holmes_st_close(im.st);
    return rc;
}
