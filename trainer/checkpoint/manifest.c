/* The checksum is that of the document without it, compact and with sorted keys: indentation may
 * change, nothing else. */
#include "manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"

#define SUM_KEY     "crc32c"
#define VERSION_KEY "holmes_checkpoint"
#define SHARDS_MAX  (1 << 20)
#define TENSORS_MAX (1 << 20)

struct reader {
    const char *path;
    struct holmes_manifest *m;
    char *why;
    size_t why_len;
};

void holmes_manifest_shard_name(int i, int n, char *out, size_t len)
{
    snprintf(out, len, "shard-%05d-of-%05d.safetensors", i, n);
}

static int refuse(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int refuse(struct reader *r, const char *fmt, ...)
{
    va_list ap;
    size_t n;

    snprintf(r->why, r->why_len, "%s: ", r->path);
    n = strlen(r->why);
    va_start(ap, fmt);
    vsnprintf(r->why + n, r->why_len - n, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static int no_memory(struct reader *r)
{
    refuse(r, "out of memory");
    return -ENOMEM;
}

/* --- fields ------------------------------------------------------------------------------------
 */

static int take_int(struct reader *r, const json_t *o, const char *what, const char *key,
                    int64_t min, int64_t max, int64_t *out)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_integer(v))
        return refuse(r, "%s has no \"%s\" that is a whole number", what, key);
    if (json_integer_value(v) < min || json_integer_value(v) > max)
        return refuse(r, "%s: \"%s\" is %lld; from %lld to %lld is right", what, key,
                      (long long)json_integer_value(v), (long long)min, (long long)max);
    *out = json_integer_value(v);
    return 0;
}

static int take_text(struct reader *r, const json_t *o, const char *what, const char *key,
                     char *out, size_t len)
{
    const char *text = json_string_value(json_object_get(o, key));

    if (!text || strlen(text) >= len || !*text)
        return refuse(r, "%s has no \"%s\" that is a text of 1 to %zu bytes", what, key, len - 1);
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static int take_crc(struct reader *r, const json_t *o, const char *what, const char *key,
                    uint32_t *out)
{
    const char *text = json_string_value(json_object_get(o, key));

    if (!text || strlen(text) != 8 || strspn(text, "0123456789abcdef") != 8)
        return refuse(r, "%s has no \"%s\" of eight hexadecimal digits", what, key);
    *out = (uint32_t)strtoul(text, NULL, 16);
    return 0;
}

static int take_model(struct reader *r, const json_t *o)
{
    struct holmes_model *m = &r->m->model;
    const struct {
        const char *key;
        int *out;
    } fields[] = {{"layers", &m->layers},
                  {"channels", &m->channels},
                  {"heads", &m->heads},
                  {"seq_len", &m->seq_len},
                  {"vocab", &m->vocab}};
    const json_t *tied = json_object_get(o, "tied");
    char why[200];
    int64_t v = 0;
    int rc = 0;

    if (!json_is_object(o) || !json_is_boolean(tied))
        return refuse(r, "it has no \"model\" with its \"tied\"");
    for (size_t i = 0; i < sizeof fields / sizeof *fields && rc == 0; i++) {
        rc = take_int(r, o, "\"model\"", fields[i].key, 1, INT32_MAX, &v);
        if (rc == 0)
            *fields[i].out = (int)v;
    }
    m->tied = json_is_true(tied);
    if (rc == 0 && holmes_model_check(m, why, sizeof why) != 0)
        rc = refuse(r, "its \"model\": %s", why);
    return rc;
}

static int take_options(struct reader *r, json_t *o)
{
    const char *key;
    json_t *value;

    if (!json_is_object(o))
        return refuse(r, "it has no \"options\"");
    json_object_foreach(o, key, value) if (!json_is_string(value)) return refuse(
        r, "its option \"%.60s\" is no text", key);
    r->m->options = json_incref(o);
    return 0;
}

static int take_shards(struct reader *r, const json_t *list)
{
    const size_t n = json_array_size(list);

    if (!json_is_array(list) || n == 0 || n > SHARDS_MAX)
        return refuse(r, "it has no list of 1 to %d \"shards\"", SHARDS_MAX);
    r->m->shards = calloc(n, sizeof *r->m->shards);
    if (!r->m->shards)
        return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        struct holmes_manifest_shard *s = &r->m->shards[r->m->nshards++];
        const json_t *o = json_array_get(list, i);
        char what[40], name[sizeof s->file];
        int64_t bytes = 0;
        int rc;

        snprintf(what, sizeof what, "shard %zu", i);
        holmes_manifest_shard_name((int)i, (int)n, name, sizeof name);
        rc = take_text(r, o, what, "file", s->file, sizeof s->file);
        if (rc == 0 && strcmp(s->file, name) != 0)
            rc = refuse(r, "%s is \"%s\"; %s is right", what, s->file, name);
        if (rc == 0)
            rc = take_int(r, o, what, "bytes", 8, INT64_MAX, &bytes);
        if (rc == 0)
            rc = take_crc(r, o, what, "header_crc32c", &s->header_crc);
        if (rc != 0)
            return rc;
        s->bytes = (uint64_t)bytes;
    }
    return 0;
}

static int take_places(struct reader *r, const json_t *list, struct holmes_manifest_tensor *t)
{
    const size_t n = json_array_size(list);

    if (!json_is_array(list) || n == 0 || n > (size_t)r->m->nshards)
        return refuse(r, "tensor %s has no list of the \"shards\" it lies in", t->name);
    t->shards = calloc(n, sizeof *t->shards);
    if (!t->shards)
        return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const int64_t least = i == 0 ? 0 : t->shards[i - 1] + 1;

        if (!json_is_integer(v) || json_integer_value(v) < least ||
            json_integer_value(v) >= r->m->nshards)
            return refuse(r, "tensor %s: its \"shards\" are no rising numbers below %d", t->name,
                          r->m->nshards);
        t->shards[t->nshards++] = (int)json_integer_value(v);
    }
    return 0;
}

static int take_shape(struct reader *r, const json_t *shape, struct holmes_manifest_tensor *t)
{
    const size_t n = json_array_size(shape);
    int64_t dims[2] = {1, 1};

    if (!json_is_array(shape) || n < 1 || n > 2)
        return refuse(r, "tensor %s has no \"shape\" of one or two numbers", t->name);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(shape, i);

        if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > INT32_MAX)
            return refuse(r, "tensor %s: number %zu of its shape is none from 1 to %d", t->name, i,
                          INT32_MAX);
        dims[i] = json_integer_value(v);
    }
    t->rows = n == 2 ? (int)dims[0] : 0;
    t->cols = n == 2 ? (int)dims[1] : (int)dims[0];
    t->count = (uint64_t)dims[0] * (uint64_t)dims[1];
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct holmes_manifest_tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static int take_tensors(struct reader *r, const json_t *list)
{
    const size_t n = json_array_size(list);
    const uint64_t params = holmes_model_params(&r->m->model);
    uint64_t total = 0;

    if (!json_is_array(list) || n == 0 || n > TENSORS_MAX)
        return refuse(r, "it has no list of \"tensors\"");
    r->m->tensors = calloc(n, sizeof *r->m->tensors);
    if (!r->m->tensors)
        return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        struct holmes_manifest_tensor *t = &r->m->tensors[r->m->ntensors++];
        const json_t *o = json_array_get(list, i);
        char what[40];
        int rc;

        snprintf(what, sizeof what, "tensor %zu", i);
        rc = take_text(r, o, what, "name", t->name, sizeof t->name);
        if (rc == 0)
            rc = take_shape(r, json_object_get(o, "shape"), t);
        if (rc == 0)
            rc = take_places(r, json_object_get(o, "shards"), t);
        if (rc != 0)
            return rc;
        total = total + t->count < total ? UINT64_MAX : total + t->count;
    }
    qsort(r->m->tensors, n, sizeof *r->m->tensors, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(r->m->tensors[i - 1].name, r->m->tensors[i].name) == 0)
            return refuse(r, "tensor %s comes twice", r->m->tensors[i].name);
    if (total != params)
        return refuse(r, "its tensors have %" PRIu64 " elements, its model %" PRIu64 " parameters",
                      total, params);
    return 0;
}

/* --- the document ------------------------------------------------------------------------------
 */

static int unpack(struct reader *r, const json_t *root)
{
    const json_t *data = json_object_get(root, "data");
    int64_t version = 0, step = 0, bytes = 0;
    int rc;

    if (!json_is_object(root) || !json_object_get(root, VERSION_KEY))
        return refuse(r, "it has no \"%s\": no manifest of a checkpoint", VERSION_KEY);
    rc = take_int(r, root, "it", VERSION_KEY, 1, INT32_MAX, &version);
    if (rc == 0 && version != HOLMES_MANIFEST_VERSION)
        return refuse(r, "version %lld of the format; this program reads version %d",
                      (long long)version, HOLMES_MANIFEST_VERSION);
    if (rc == 0)
        rc = take_int(r, root, "it", "step", 1, INT32_MAX, &step);
    if (rc == 0)
        rc = take_model(r, json_object_get(root, "model"));
    if (rc == 0)
        rc = take_int(r, data, "\"data\"", "bytes", 0, INT64_MAX, &bytes);
    if (rc == 0)
        rc = take_text(r, data, "\"data\"", "sum", r->m->data_sum, sizeof r->m->data_sum);
    if (rc == 0)
        rc = take_options(r, json_object_get(root, "options"));
    if (rc == 0)
        rc = take_shards(r, json_object_get(root, "shards"));
    if (rc == 0)
        rc = take_tensors(r, json_object_get(root, "tensors"));
    r->m->step = (int)step;
    r->m->data_bytes = (uint64_t)bytes;
    return rc;
}

int holmes_manifest_unpack(const char *path, const json_t *root, struct holmes_manifest *out,
                           char *why, size_t why_len)
{
    struct holmes_manifest m = {0};
    struct reader r = {path, &m, why, why_len};
    const int rc = unpack(&r, root);

    if (rc != 0)
        holmes_manifest_fini(&m);
    else
        *out = m;
    return rc;
}

/* "xxxxxxxx" of the document without its checksum, which is taken out of `root`. */
static int document_sum(json_t *root, char out[9])
{
    char *text;

    json_object_del(root, SUM_KEY);
    text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    if (!text)
        return -ENOMEM;
    snprintf(out, 9, "%08x", holmes_crc32c(0, text, strlen(text)));
    free(text);
    return 0;
}

static int check_sum(struct reader *r, json_t *root, char told[9])
{
    char is[9];
    int rc = 0;

    if (json_object_get(root, VERSION_KEY)) /* else it is something else altogether */
        rc = take_text(r, root, "it", SUM_KEY, told, sizeof is);
    else
        return 0;
    if (rc == 0 && document_sum(root, is) != 0)
        return no_memory(r);
    if (rc == 0 && strcmp(told, is) != 0)
        return refuse(r, "its checksum is %s, it says %s: damaged, or changed by hand", is, told);
    return rc;
}

int holmes_manifest_parse(const char *path, const char *text, size_t len,
                          struct holmes_manifest *out, char *why, size_t why_len)
{
    struct reader r = {path, NULL, why, why_len};
    json_error_t error;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    char sum[9] = "";
    int rc;

    if (!root)
        return refuse(&r, "line %d: %s", error.line, error.text);
    rc = check_sum(&r, root, sum);
    if (rc == 0)
        rc = holmes_manifest_unpack(path, root, out, why, why_len);
    if (rc == 0)
        memcpy(out->sum, sum, sizeof sum);
    json_decref(root);
    return rc;
}

static json_t *shape_of(const struct holmes_manifest_tensor *t)
{
    return t->rows > 0 ? json_pack("[i, i]", t->rows, t->cols) : json_pack("[i]", t->cols);
}

static json_t *shards_array(const struct holmes_manifest *m)
{
    json_t *list = json_array();

    for (int i = 0; i < m->nshards; i++) {
        char crc[9];

        snprintf(crc, sizeof crc, "%08x", m->shards[i].header_crc);
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:s}", "file", m->shards[i].file, "bytes",
                                        (json_int_t)m->shards[i].bytes, "header_crc32c", crc));
    }
    return list;
}

static json_t *tensors_array(const struct holmes_manifest *m)
{
    json_t *list = json_array();

    for (int i = 0; i < m->ntensors; i++) {
        const struct holmes_manifest_tensor *t = &m->tensors[i];
        json_t *places = json_array();

        for (int j = 0; j < t->nshards; j++)
            json_array_append_new(places, json_integer(t->shards[j]));
        json_array_append_new(list, json_pack("{s:s, s:o, s:o}", "name", t->name, "shape",
                                              shape_of(t), "shards", places));
    }
    return list;
}

char *holmes_manifest_text(const struct holmes_manifest *m, size_t *len)
{
    const struct holmes_model *d = &m->model;
    json_t *root = json_pack(
        "{s:i, s:i, s:{s:i, s:i, s:i, s:i, s:i, s:b}, s:{s:I, s:s}, s:O, s:o, s:o}", VERSION_KEY,
        HOLMES_MANIFEST_VERSION, "step", m->step, "model", "layers", d->layers, "channels",
        d->channels, "heads", d->heads, "seq_len", d->seq_len, "vocab", d->vocab, "tied", d->tied,
        "data", "bytes", (json_int_t)m->data_bytes, "sum", m->data_sum, "options", m->options,
        "shards", shards_array(m), "tensors", tensors_array(m));
    char sum[9], *text = NULL;

    if (root && document_sum(root, sum) == 0 &&
        json_object_set_new(root, SUM_KEY, json_string(sum)) == 0)
        text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (text)
        *len = strlen(text);
    return text;
}

void holmes_manifest_fini(struct holmes_manifest *m)
{
    for (int i = 0; i < m->ntensors; i++)
        free(m->tensors[i].shards);
    free(m->tensors);
    free(m->shards);
    json_decref(m->options);
    *m = (struct holmes_manifest){0};
}

const struct holmes_manifest_tensor *holmes_manifest_find(const struct holmes_manifest *m,
                                                          const char *name)
{
    int a = 0, b = m->ntensors;

    while (a < b) {
        const int mid = a + (b - a) / 2;
        const int order = strcmp(name, m->tensors[mid].name);

        if (order == 0)
            return &m->tensors[mid];
        if (order < 0)
            b = mid;
        else
            a = mid + 1;
    }
    return NULL;
}
