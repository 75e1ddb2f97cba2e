/* Reads the header, checks it completely, then hands out names, shapes and bytes. Bytes are read by
 * pread: a mapping of a file that shrinks would end the process. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc32c.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[HOLMES_ST_DTYPES] = {
    [HOLMES_ST_F32] = {"F32", 4},         [HOLMES_ST_F16] = {"F16", 2},
    [HOLMES_ST_BF16] = {"BF16", 2},       [HOLMES_ST_F64] = {"F64", 8},
    [HOLMES_ST_I64] = {"I64", 8},         [HOLMES_ST_I32] = {"I32", 4},
    [HOLMES_ST_I16] = {"I16", 2},         [HOLMES_ST_I8] = {"I8", 1},
    [HOLMES_ST_U64] = {"U64", 8},         [HOLMES_ST_U32] = {"U32", 4},
    [HOLMES_ST_U16] = {"U16", 2},         [HOLMES_ST_U8] = {"U8", 1},
    [HOLMES_ST_BOOL] = {"BOOL", 1},       [HOLMES_ST_F8_E4M3] = {"F8_E4M3", 1},
    [HOLMES_ST_F8_E5M2] = {"F8_E5M2", 1},
};

struct holmes_st {
    char *path;
    int fd; /* -1: parsed from memory */
    uint64_t file_bytes, header_bytes;
    uint32_t header_crc;
    json_t *root;                     /* owns all names */
    struct holmes_st_tensor *tensors; /* by place */
    int *by_name;                     /* [count] */
    int count;
};

struct reader {
    struct holmes_st *s;
    char *why;
    size_t why_len;
};

const char *holmes_st_dtype_name(enum holmes_st_dtype t)
{
    return dtypes[t].name;
}

size_t holmes_st_dtype_size(enum holmes_st_dtype t)
{
    return dtypes[t].size;
}

const char *holmes_st_shape_text(const struct holmes_st_tensor *t, char *out, size_t len)
{
    size_t n = 0;

    snprintf(out, len, "[");
    for (int i = 0; i < t->ndim && n < len; i++) {
        n = strlen(out);
        snprintf(out + n, len - n, "%s%llu", i ? ", " : "", (unsigned long long)t->shape[i]);
    }
    n = strlen(out);
    snprintf(out + n, len - n, "]");
    return out;
}

static int refuse(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int refuse(struct reader *r, const char *fmt, ...)
{
    va_list ap;
    size_t n;

    snprintf(r->why, r->why_len, "%s: ", r->s->path);
    n = strlen(r->why);
    va_start(ap, fmt);
    vsnprintf(r->why + n, r->why_len - n, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

/* --- header ------------------------------------------------------------------------------------
 */

static uint64_t load_le64(const uint8_t *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* Where the header ends; *bytes includes its length. */
static int header_extent(struct reader *r, const uint8_t *data, size_t len, uint64_t file_bytes)
{
    uint64_t n;

    if (file_bytes < 8 || len < 8)
        return refuse(r, "its %llu bytes are no safetensors file: a header's length comes first",
                      (unsigned long long)file_bytes);
    n = load_le64(data);
    if (n > HOLMES_ST_HEADER_MAX)
        return refuse(r, "a header of %llu bytes is told, %d are the most: no safetensors file",
                      (unsigned long long)n, HOLMES_ST_HEADER_MAX);
    if (n > file_bytes - 8)
        return refuse(r, "the header needs %llu bytes, the file has %llu: cut short",
                      (unsigned long long)n + 8, (unsigned long long)file_bytes);
    if (n < 2)
        return refuse(r, "a header of %llu bytes is no JSON object", (unsigned long long)n);
    r->s->file_bytes = file_bytes;
    r->s->header_bytes = n + 8;
    return 0;
}

static int dtype_parse(const char *name, enum holmes_st_dtype *out)
{
    for (int i = 0; name && i < HOLMES_ST_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (enum holmes_st_dtype)i;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_shape(struct reader *r, const json_t *shape, struct holmes_st_tensor *t)
{
    if (!json_is_array(shape))
        return refuse(r, "tensor %.200s has no \"shape\" that is a list", t->name);
    if (json_array_size(shape) > HOLMES_ST_DIMS_MAX)
        return refuse(r, "tensor %.200s has %zu dimensions, %d are the most", t->name,
                      json_array_size(shape), HOLMES_ST_DIMS_MAX);
    t->ndim = (int)json_array_size(shape);
    t->count = 1;
    for (int i = 0; i < t->ndim; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);

        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return refuse(r, "tensor %.200s: dimension %d of its shape is no whole number >= 0",
                          t->name, i);
        t->shape[i] = (uint64_t)json_integer_value(dim);
        if (__builtin_mul_overflow(t->count, t->shape[i], &t->count))
            return refuse(r, "tensor %.200s: its shape has more elements than can be counted",
                          t->name);
    }
    return 0;
}

static int parse_offsets(struct reader *r, const json_t *offsets, struct holmes_st_tensor *t)
{
    const uint64_t data_bytes = r->s->file_bytes - r->s->header_bytes;
    const json_t *a = json_array_get(offsets, 0), *b = json_array_get(offsets, 1);
    uint64_t begin, end, needed;
    char shape[200];

    if (json_array_size(offsets) != 2 || !json_is_integer(a) || !json_is_integer(b) ||
        json_integer_value(a) < 0 || json_integer_value(b) < json_integer_value(a))
        return refuse(r, "tensor %.200s has no \"data_offsets\" that are [begin, end]", t->name);
    begin = (uint64_t)json_integer_value(a);
    end = (uint64_t)json_integer_value(b);
    if (end > data_bytes)
        return refuse(r,
                      "tensor %.200s ends at byte %llu of the data, of which there are %llu: cut "
                      "short",
                      t->name, (unsigned long long)end, (unsigned long long)data_bytes);
    if (__builtin_mul_overflow(t->count, dtypes[t->dtype].size, &needed) || needed != end - begin)
        return refuse(r, "tensor %.200s: %s of shape %s does not have the %llu bytes told", t->name,
                      dtypes[t->dtype].name, holmes_st_shape_text(t, shape, sizeof shape),
                      (unsigned long long)(end - begin));
    t->begin = r->s->header_bytes + begin;
    t->bytes = end - begin;
    return 0;
}

static int parse_tensor(struct reader *r, const char *name, const json_t *o,
                        struct holmes_st_tensor *t)
{
    const char *dtype = json_string_value(json_object_get(o, "dtype"));
    int rc;

    t->name = name;
    if (!json_is_object(o))
        return refuse(r, "tensor %.200s is described by no object", name);
    if (!dtype)
        return refuse(r, "tensor %.200s has no \"dtype\"", name);
    if (dtype_parse(dtype, &t->dtype) != 0)
        return refuse(r, "tensor %.200s: dtype \"%.40s\" is not known", name, dtype);
    rc = parse_shape(r, json_object_get(o, "shape"), t);
    return rc ? rc : parse_offsets(r, json_object_get(o, "data_offsets"), t);
}

static int parse_metadata(struct reader *r, const json_t *metadata)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return refuse(r, "__metadata__ is no object");
    json_object_foreach((json_t *)metadata, key, value) if (!json_is_string(value)) return refuse(
        r, "__metadata__: the value of \"%.80s\" is no text", key);
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct holmes_st_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes) /* empty ones come first */
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct holmes_st_tensor *t = tensors;

    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

/* Every byte of the data belongs to exactly one tensor. */
static int check_places(struct reader *r)
{
    const struct holmes_st *s = r->s;
    uint64_t end = s->header_bytes;

    for (int i = 0; i < s->count; i++) {
        const struct holmes_st_tensor *t = &s->tensors[i];

        if (t->begin < end)
            return refuse(r, "tensors %.200s and %.200s overlap", s->tensors[i - 1].name, t->name);
        if (t->begin > end)
            return refuse(r, "%llu bytes before tensor %.200s belong to no tensor",
                          (unsigned long long)(t->begin - end), t->name);
        end = t->begin + t->bytes;
    }
    if (end != s->file_bytes)
        return refuse(r, "the last %llu bytes belong to no tensor",
                      (unsigned long long)(s->file_bytes - end));
    return 0;
}

static int parse_root(struct reader *r)
{
    struct holmes_st *s = r->s;
    const size_t max = json_object_size(s->root);
    const char *name;
    json_t *value;
    int rc = 0;

    s->tensors = calloc(max + 1, sizeof *s->tensors);
    s->by_name = calloc(max + 1, sizeof *s->by_name);
    if (!s->tensors || !s->by_name) {
        refuse(r, "out of memory");
        return -ENOMEM;
    }
    json_object_foreach(s->root, name, value)
    {
        if (rc != 0)
            break;
        if (strcmp(name, "__metadata__") == 0)
            rc = parse_metadata(r, value);
        else
            rc = parse_tensor(r, name, value, &s->tensors[s->count++]);
    }
    if (rc != 0)
        return rc;
    qsort(s->tensors, (size_t)s->count, sizeof *s->tensors, by_place);
    for (int i = 0; i < s->count; i++)
        s->by_name[i] = i;
    qsort_r(s->by_name, (size_t)s->count, sizeof *s->by_name, by_name, s->tensors);
    return check_places(r);
}

static int parse_header(struct reader *r, const uint8_t *data)
{
    struct holmes_st *s = r->s;
    const char *text = (const char *)data + 8;
    json_error_t error;

    if (*text != '{')
        return refuse(r, "the header is no JSON object: no safetensors file");
    s->root = json_loadb(text, s->header_bytes - 8, JSON_REJECT_DUPLICATES, &error);
    if (!s->root)
        return refuse(r, "the header, byte %d: %s", error.position, error.text);
    s->header_crc = holmes_crc32c(0, data, s->header_bytes);
    return parse_root(r);
}

static struct holmes_st *st_new(const char *path)
{
    struct holmes_st *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->fd = -1;
    s->path = strdup(path);
    if (s->path)
        return s;
    free(s);
    return NULL;
}

int holmes_st_parse(const char *path, const void *data, size_t len, uint64_t file_bytes,
                    struct holmes_st **out, char *why, size_t why_len)
{
    struct reader r = {st_new(path), why, why_len};
    int rc;

    if (!r.s) {
        snprintf(why, why_len, "%s: out of memory", path);
        return -ENOMEM;
    }
    rc = header_extent(&r, data, len, file_bytes);
    if (rc == 0 && r.s->header_bytes > len)
        rc = refuse(&r, "the header needs %llu bytes, here are %zu",
                    (unsigned long long)r.s->header_bytes, len);
    if (rc == 0)
        rc = parse_header(&r, data);
    if (rc != 0)
        holmes_st_close(r.s);
    else
        *out = r.s;
    return rc;
}

/* --- files -------------------------------------------------------------------------------------
 */

/* All of it or an error; the end of the file is one. */
static int pread_all(int fd, void *out, size_t bytes, uint64_t at)
{
    char *p = out;

    while (bytes > 0) {
        ssize_t n = pread(fd, p, bytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int open_regular(struct reader *r, uint64_t *bytes)
{
    struct stat st;

    r->s->fd = open(r->s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->s->fd < 0 || fstat(r->s->fd, &st) != 0) {
        int rc = -errno;

        refuse(r, "%s", strerror(-rc));
        return rc;
    }
    if (!S_ISREG(st.st_mode))
        return refuse(r, "no regular file");
    *bytes = (uint64_t)st.st_size;
    return 0;
}

static int read_header(struct reader *r)
{
    uint64_t bytes = 0;
    uint8_t *data, length[8] = {0};
    int rc = open_regular(r, &bytes);

    if (rc == 0 && bytes >= sizeof length)
        rc = pread_all(r->s->fd, length, sizeof length, 0);
    if (rc == 0)
        rc = header_extent(r, length, sizeof length, bytes);
    if (rc != 0)
        return rc;
    data = malloc(r->s->header_bytes);
    if (!data) {
        refuse(r, "out of memory");
        return -ENOMEM;
    }
    rc = pread_all(r->s->fd, data, r->s->header_bytes, 0);
    if (rc != 0)
        refuse(r, "%s", strerror(-rc));
    else
        rc = parse_header(r, data);
    free(data);
    return rc;
}

int holmes_st_open(const char *path, struct holmes_st **out, char *why, size_t why_len)
{
    struct reader r = {st_new(path), why, why_len};
    int rc;

    if (!r.s) {
        snprintf(why, why_len, "%s: out of memory", path);
        return -ENOMEM;
    }
    rc = read_header(&r);
    if (rc != 0)
        holmes_st_close(r.s);
    else
        *out = r.s;
    return rc;
}

void holmes_st_close(struct holmes_st *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    json_decref(s->root);
    free(s->tensors);
    free(s->by_name);
    free(s->path);
    free(s);
}

uint64_t holmes_st_file_bytes(const struct holmes_st *s)
{
    return s->file_bytes;
}

uint64_t holmes_st_header_bytes(const struct holmes_st *s)
{
    return s->header_bytes;
}

uint32_t holmes_st_header_crc(const struct holmes_st *s)
{
    return s->header_crc;
}

int holmes_st_count(const struct holmes_st *s)
{
    return s->count;
}

const struct holmes_st_tensor *holmes_st_tensor(const struct holmes_st *s, int i)
{
    return &s->tensors[i];
}

const struct holmes_st_tensor *holmes_st_find(const struct holmes_st *s, const char *name)
{
    int a = 0, b = s->count;

    while (a < b) {
        const int mid = a + (b - a) / 2;
        const struct holmes_st_tensor *t = &s->tensors[s->by_name[mid]];
        const int order = strcmp(name, t->name);

        if (order == 0)
            return t;
        if (order < 0)
            b = mid;
        else
            a = mid + 1;
    }
    return NULL;
}

const json_t *holmes_st_metadata(const struct holmes_st *s)
{
    return json_object_get(s->root, "__metadata__");
}

int holmes_st_read(const struct holmes_st *s, const struct holmes_st_tensor *t, uint64_t from,
                   void *out, size_t bytes)
{
    if (s->fd < 0 || from > t->bytes || bytes > t->bytes - from)
        return -EINVAL;
    return pread_all(s->fd, out, bytes, t->begin + from);
}
