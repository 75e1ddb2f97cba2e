/* The checksums stand in the header, which is written before the data: it is written with zeros
 * first, and again at the end. */
#include "shard.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"

#define SUM_DIGITS  8
#define BLOCK_BYTES (HOLMES_SHARD_BLOCK * sizeof(float))

const char *const holmes_part_names[] = {"weights", "first moments", "second moments"};
static const char *const suffixes[] = {"w", "m", "v"};

static uint64_t blocks_of(uint64_t floats)
{
    return (floats + HOLMES_SHARD_BLOCK - 1) / HOLMES_SHARD_BLOCK;
}

/* --- writing -----------------------------------------------------------------------------------
 */

struct writer {
    const struct holmes_piece *pieces;
    int count;
    void (*copy)(void *to, const void *from, size_t bytes);
    json_t *metadata;
    struct holmes_st_tensor *tensors; /* [HOLMES_PARTS * count] */
    char (*names)[112];               /* theirs */
    float *block;                     /* one */
    struct holmes_st_writer *st;
};

static int describe_piece(struct writer *w, int i)
{
    const struct holmes_piece *p = &w->pieces[i];
    const uint64_t digits = SUM_DIGITS * blocks_of(p->runs.total);
    char *runs = holmes_runs_text(&p->runs), *zeros = malloc(digits + 1), key[100];
    int rc = -ENOMEM;

    if (runs && zeros) {
        memset(zeros, '0', digits);
        zeros[digits] = '\0';
        snprintf(key, sizeof key, "%s/%d", p->tensor, i);
        rc = json_object_set_new(w->metadata, key,
                                 p->rows > 0 ? json_sprintf("%dx%d %s", p->rows, p->cols, runs)
                                             : json_sprintf("%d %s", p->cols, runs));
    }
    for (int part = 0; part < HOLMES_PARTS && rc == 0; part++) {
        const int n = HOLMES_PARTS * i + part;

        snprintf(w->names[n], sizeof w->names[n], "%s/%s", key, suffixes[part]);
        w->tensors[n] = (struct holmes_st_tensor){
            .name = w->names[n], .dtype = HOLMES_ST_F32, .ndim = 1, .shape = {p->runs.total}};
        rc = json_object_set_new(w->metadata, w->names[n], json_string(zeros));
    }
    free(runs);
    free(zeros);
    return rc ? -ENOMEM : 0;
}

static int put_part(struct writer *w, int i, int part)
{
    const struct holmes_piece *p = &w->pieces[i];
    const uint64_t blocks = blocks_of(p->runs.total);
    char *sums = malloc(SUM_DIGITS * blocks + 1);
    int rc = sums ? 0 : -ENOMEM;

    for (uint64_t b = 0; b < blocks && rc == 0; b++) {
        const uint64_t at = b * HOLMES_SHARD_BLOCK, left = p->runs.total - at;
        const size_t bytes =
            (left < HOLMES_SHARD_BLOCK ? (size_t)left : HOLMES_SHARD_BLOCK) * sizeof(float);

        w->copy(w->block, p->parts[part] + at, bytes);
        snprintf(sums + SUM_DIGITS * b, SUM_DIGITS + 1, "%08x", holmes_crc32c(0, w->block, bytes));
        rc = holmes_st_put(w->st, w->block, bytes);
    }
    if (rc == 0 &&
        json_object_set_new(w->metadata, w->names[HOLMES_PARTS * i + part], json_string(sums)) != 0)
        rc = -ENOMEM;
    free(sums);
    return rc;
}

static int write_all(struct writer *w, const char *path)
{
    int rc = 0;

    for (int i = 0; i < w->count && rc == 0; i++)
        rc = describe_piece(w, i);
    if (rc == 0) /* NOLINTNEXTLINE: the analyzer takes w's memory for lost; the caller frees it */
        rc = holmes_st_create(path, w->tensors, HOLMES_PARTS * w->count, w->metadata, &w->st);
    if (rc != 0)
        return rc;
    for (int i = 0; i < w->count && rc == 0; i++)
        for (int part = 0; part < HOLMES_PARTS && rc == 0; part++)
            rc = put_part(w, i, part);
    if (rc == 0)
        rc = holmes_st_set_metadata(w->st, w->metadata);
    if (rc == 0)
        return holmes_st_finish(w->st);
    holmes_st_abandon(w->st);
    return rc;
}

int holmes_shard_write(const char *path, const struct holmes_piece *pieces, int count,
                       void (*copy)(void *to, const void *from, size_t bytes), uint64_t *bytes)
{
    const size_t n = (size_t)count * HOLMES_PARTS;
    struct writer w = {.pieces = pieces,
                       .count = count,
                       .copy = copy,
                       .metadata = json_object(),
                       .tensors = calloc(n + 1, sizeof *w.tensors),
                       .names = calloc(n + 1, sizeof *w.names),
                       .block = malloc(BLOCK_BYTES)};
    int rc = -ENOMEM;

    if (w.metadata && w.tensors && w.names && w.block)
        rc = write_all(&w, path);
    *bytes = 0;
    for (int i = 0; i < count; i++)
        *bytes += pieces[i].runs.total * HOLMES_PARTS * sizeof(float);
    json_decref(w.metadata);
    free(w.tensors);
    free(w.names);
    free(w.block);
    return rc;
}

/* --- reading -----------------------------------------------------------------------------------
 */

struct reader {
    struct holmes_shard *s;
    char *why;
    size_t why_len;
};

#define REFUSE(r, ...)                                                                             \
    do {                                                                                           \
        const int refuse_at = snprintf((r)->why, (r)->why_len, "%s: ", (r)->s->path);              \
        if (refuse_at > 0 && (size_t)refuse_at < (r)->why_len)                                     \
            snprintf((r)->why + refuse_at, (r)->why_len - (size_t)refuse_at, __VA_ARGS__);         \
        return -EINVAL;                                                                            \
    } while (0)

/* "768x3072 RUNS" or "768 RUNS". */
static int parse_extent(struct reader *r, const char *text, struct holmes_shard_piece *p)
{
    unsigned long dims[2] = {0, 0};
    char *end;
    int n = 0, rc;

    do {
        if (*text < '0' || *text > '9' || n == 2)
            REFUSE(r, "tensor %s: no shape in \"%.60s\"", p->tensor, text);
        errno = 0;
        dims[n] = strtoul(text, &end, 10);
        if (errno != 0 || dims[n] < 1 || dims[n] > INT_MAX)
            REFUSE(r, "tensor %s: no shape in \"%.60s\"", p->tensor, text);
        text = end + 1;
        n++;
    } while (*end == 'x');
    if (*end != ' ')
        REFUSE(r, "tensor %s: no shape before its runs", p->tensor);
    p->rows = n == 2 ? (int)dims[0] : 0;
    p->cols = n == 2 ? (int)dims[1] : (int)dims[0];
    rc = holmes_runs_parse(text, (uint64_t)p->cols * (uint64_t)(n == 2 ? p->rows : 1), &p->runs);
    if (rc == -EINVAL)
        REFUSE(r, "tensor %s: \"%.60s\" are no runs of its elements", p->tensor, text);
    return rc;
}

static int find_parts(struct reader *r, const char *key, struct holmes_shard_piece *p)
{
    const json_t *metadata = holmes_st_metadata(r->s->st);

    for (int part = 0; part < HOLMES_PARTS; part++) {
        char name[128];

        snprintf(name, sizeof name, "%.120s/%s", key, suffixes[part]);
        p->data[part] = holmes_st_find(r->s->st, name);
        p->sums[part] = json_string_value(json_object_get(metadata, name));
        if (!p->data[part])
            REFUSE(r, "tensor %s: its %s are missing (no %s)", p->tensor, holmes_part_names[part],
                   name);
        if (p->data[part]->dtype != HOLMES_ST_F32)
            REFUSE(r, "tensor %s: its %s are %s; F32 is right", p->tensor, holmes_part_names[part],
                   holmes_st_dtype_name(p->data[part]->dtype));
        if (p->data[part]->count != p->runs.total)
            REFUSE(r, "tensor %s: its %s are %llu numbers; %llu are right", p->tensor,
                   holmes_part_names[part], (unsigned long long)p->data[part]->count,
                   (unsigned long long)p->runs.total);
        if (!p->sums[part] || strlen(p->sums[part]) != SUM_DIGITS * blocks_of(p->runs.total) ||
            strspn(p->sums[part], "0123456789abcdef") != strlen(p->sums[part]))
            REFUSE(r, "tensor %s: its %s have no checksums", p->tensor, holmes_part_names[part]);
    }
    return 0;
}

/* "NAME/k", not "NAME/k/w". Returns the length of NAME, or 0. */
static size_t piece_name(const char *key)
{
    const char *slash = strrchr(key, '/');

    if (!slash || slash[1] < '0' || slash[1] > '9' ||
        slash[1 + strspn(slash + 1, "0123456789")] != '\0')
        return 0;
    return (size_t)(slash - key);
}

static int by_tensor(const void *a, const void *b)
{
    const struct holmes_shard_piece *x = a, *y = b;

    return strcmp(x->tensor, y->tensor);
}

static int parse_pieces(struct reader *r)
{
    json_t *metadata = (json_t *)holmes_st_metadata(r->s->st), *value;
    const char *key;
    int rc = 0;

    r->s->pieces = calloc(json_object_size(metadata) + 1, sizeof *r->s->pieces);
    if (!r->s->pieces) {
        snprintf(r->why, r->why_len, "%s: out of memory", r->s->path);
        return -ENOMEM;
    }
    json_object_foreach(metadata, key, value)
    {
        const size_t len = piece_name(key);
        struct holmes_shard_piece *p = &r->s->pieces[r->s->npieces];

        if (len == 0)
            continue;
        if (len >= sizeof p->tensor)
            REFUSE(r, "\"%.100s\": no tensor has so long a name", key);
        memcpy(p->tensor, key, len);
        r->s->npieces++;
        rc = parse_extent(r, json_string_value(value), p);
        if (rc == 0)
            rc = find_parts(r, key, p);
        if (rc != 0)
            return rc;
    }
    if (holmes_st_count(r->s->st) != HOLMES_PARTS * r->s->npieces)
        REFUSE(r, "%d vectors for %d pieces of tensors: no shard of a checkpoint",
               holmes_st_count(r->s->st), r->s->npieces);
    qsort(r->s->pieces, (size_t)r->s->npieces, sizeof *r->s->pieces, by_tensor);
    return 0;
}

static int open_shard(const char *path, const void *data, size_t len, struct holmes_shard **out,
                      char *why, size_t why_len)
{
    struct holmes_shard *s = calloc(1, sizeof *s);
    struct reader r = {s, why, why_len};
    int rc = -ENOMEM;

    if (s)
        s->path = strdup(path);
    if (!s || !s->path)
        snprintf(why, why_len, "%s: out of memory", path);
    else if (data)
        rc = holmes_st_parse(path, data, len, len, &s->st, why, why_len);
    else
        rc = holmes_st_open(path, &s->st, why, why_len);
    if (rc == 0)
        rc = parse_pieces(&r);
    if (rc != 0)
        holmes_shard_close(s);
    else
        *out = s;
    return rc;
}

int holmes_shard_open(const char *path, struct holmes_shard **out, char *why, size_t why_len)
{
    return open_shard(path, NULL, 0, out, why, why_len);
}

int holmes_shard_parse(const char *path, const void *data, size_t len, struct holmes_shard **out,
                       char *why, size_t why_len)
{
    return open_shard(path, data, len, out, why, why_len);
}

void holmes_shard_close(struct holmes_shard *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->npieces; i++)
        holmes_runs_fini(&s->pieces[i].runs);
    free(s->pieces);
    holmes_st_close(s->st);
    free(s->path);
    free(s);
}

int holmes_shard_read(const struct holmes_shard *s, const struct holmes_shard_piece *p,
                      enum holmes_part part, uint64_t block, float *out, size_t *count, char *why,
                      size_t why_len)
{
    const uint64_t at = block * HOLMES_SHARD_BLOCK, left = p->runs.total - at;
    const size_t n = left < HOLMES_SHARD_BLOCK ? (size_t)left : HOLMES_SHARD_BLOCK;
    char told[SUM_DIGITS + 1], is[SUM_DIGITS + 1];
    int rc = holmes_st_read(s->st, p->data[part], at * sizeof(float), out, n * sizeof(float));

    if (rc != 0) {
        snprintf(why, why_len, "%s: tensor %s: its %s cannot be read: %s", s->path, p->tensor,
                 holmes_part_names[part], strerror(-rc));
        return rc;
    }
    snprintf(told, sizeof told, "%.8s", p->sums[part] + SUM_DIGITS * block);
    snprintf(is, sizeof is, "%08x", holmes_crc32c(0, out, n * sizeof(float)));
    if (strcmp(told, is) != 0) {
        snprintf(why, why_len,
                 "%s: tensor %s: the checksum of its %s, numbers %llu to %llu of this piece, is "
                 "%s, %s was written: damaged",
                 s->path, p->tensor, holmes_part_names[part], (unsigned long long)at,
                 (unsigned long long)(at + n - 1), is, told);
        return -EBADMSG;
    }
    *count = n;
    return 0;
}
