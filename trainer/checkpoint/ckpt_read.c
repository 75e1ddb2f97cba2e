/* Reads any range of a tensor out of the pieces that lie in the shards: finds the piece that has an
 * element, reads as far as that piece goes on, and so forth. Of each piece the last block is kept,
 * since neighbouring ranges come one after the other. */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN_SHARDS_MAX 64 /* open files, where one tensor does not need more */
#define BLOCKS_MAX      64 /* blocks kept: 64 MiB */

/* A piece of the selected tensor. */
struct source {
    const struct holmes_shard *shard;
    const struct holmes_shard_piece *piece;
    float *block; /* NULL: none kept */
    uint64_t number;
    size_t count;
};

struct holmes_ckpt {
    char *path;
    struct holmes_manifest m;
    struct holmes_shard **shards; /* [m.nshards], NULL: not open */
    int nopen;
    const struct holmes_manifest_tensor *tensor; /* selected */
    enum holmes_part part;
    struct source *sources;
    int nsources, nblocks, last; /* last: the source that the last range came from */
    uint64_t bytes_read;
};

#define FAIL(rc, ...)                                                                              \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return rc;                                                                                 \
    } while (0)

static void path_of(const struct holmes_ckpt *c, const char *file, char *out, size_t len)
{
    snprintf(out, len, "%s/%s", c->path, file);
}

/* --- opening -----------------------------------------------------------------------------------
 */

static int read_text(const char *path, char **out, size_t *len, char *why, size_t why_len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    struct stat st;
    char *text;

    if (!f || fstat(fd, &st) != 0) {
        const int rc = -errno;

        if (f)
            fclose(f);
        else if (fd >= 0)
            close(fd);
        FAIL(rc, "%s: %s", path, strerror(-rc));
    }
    if (!S_ISREG(st.st_mode) || st.st_size > HOLMES_MANIFEST_MAX) {
        fclose(f);
        FAIL(-EINVAL, "%s: a file of at most %d bytes is right", path, HOLMES_MANIFEST_MAX);
    }
    text = malloc((size_t)st.st_size + 1);
    *len = text ? fread(text, 1, (size_t)st.st_size, f) : 0;
    fclose(f);
    if (!text)
        FAIL(-ENOMEM, "%s: out of memory", path);
    *out = text;
    return 0;
}

int holmes_ckpt_open(const char *path, struct holmes_ckpt **out, char *why, size_t why_len)
{
    struct holmes_ckpt *c = calloc(1, sizeof *c);
    char file[HOLMES_CKPT_PATH_MAX + 64], *text = NULL;
    size_t len = 0;
    int rc;

    if (c)
        c->path = strdup(path);
    if (!c || !c->path) {
        holmes_ckpt_close(c);
        FAIL(-ENOMEM, "%s: out of memory", path);
    }
    path_of(c, HOLMES_MANIFEST_NAME, file, sizeof file);
    rc = read_text(file, &text, &len, why, why_len);
    if (rc == 0)
        rc = holmes_manifest_parse(file, text, len, &c->m, why, why_len);
    free(text);
    if (rc == 0) {
        c->shards = calloc((size_t)c->m.nshards, sizeof *c->shards);
        rc = c->shards ? 0 : -ENOMEM;
        if (rc != 0)
            snprintf(why, why_len, "%s: out of memory", path);
    }
    if (rc != 0)
        holmes_ckpt_close(c);
    else
        *out = c;
    return rc;
}

static void drop_blocks(struct holmes_ckpt *c)
{
    for (int i = 0; i < c->nsources; i++) {
        free(c->sources[i].block);
        c->sources[i].block = NULL;
    }
    c->nblocks = 0;
}

static void unselect(struct holmes_ckpt *c)
{
    drop_blocks(c);
    free(c->sources);
    c->sources = NULL;
    c->nsources = c->last = 0;
    c->tensor = NULL;
}

static void close_shards(struct holmes_ckpt *c)
{
    for (int i = 0; c->shards && i < c->m.nshards; i++) {
        holmes_shard_close(c->shards[i]);
        c->shards[i] = NULL;
    }
    c->nopen = 0;
}

void holmes_ckpt_close(struct holmes_ckpt *c)
{
    if (!c)
        return;
    unselect(c);
    close_shards(c);
    free(c->shards);
    holmes_manifest_fini(&c->m);
    free(c->path);
    free(c);
}

const struct holmes_manifest *holmes_ckpt_manifest(const struct holmes_ckpt *c)
{
    return &c->m;
}

const char *holmes_ckpt_path(const struct holmes_ckpt *c)
{
    return c->path;
}

uint64_t holmes_ckpt_bytes_read(const struct holmes_ckpt *c)
{
    return c->bytes_read;
}

/* `tensor`: what is wanted of it, for the sentence. */
static int open_shard(struct holmes_ckpt *c, int i, const char *tensor, char *why, size_t why_len)
{
    const struct holmes_manifest_shard *told = &c->m.shards[i];
    char path[HOLMES_CKPT_PATH_MAX + 64];
    struct stat st;
    uint32_t crc;
    int rc;

    if (c->shards[i])
        return 0;
    path_of(c, told->file, path, sizeof path);
    if (stat(path, &st) != 0)
        FAIL(-errno, "%s: tensor %s: a piece of it lies there: %s", path, tensor, strerror(errno));
    if ((uint64_t)st.st_size != told->bytes)
        FAIL(-EINVAL, "%s: tensor %s: the file has %lld bytes, %" PRIu64 " were written: %s", path,
             tensor, (long long)st.st_size, told->bytes,
             (uint64_t)st.st_size < told->bytes ? "cut short, or another file" : "another file");
    rc = holmes_shard_open(path, &c->shards[i], why, why_len);
    if (rc != 0)
        return rc;
    crc = holmes_st_header_crc(c->shards[i]->st);
    if (crc == told->header_crc) {
        c->nopen++;
        return 0;
    }
    holmes_shard_close(c->shards[i]);
    c->shards[i] = NULL;
    FAIL(-EBADMSG,
         "%s: tensor %s: the checksum of the header is %08x, %08x was written: damaged, or another "
         "file",
         path, tensor, crc, told->header_crc);
}

/* --- choosing a tensor -------------------------------------------------------------------------
 */

static void shape_text(int rows, int cols, char *out, size_t len)
{
    if (rows > 0)
        snprintf(out, len, "[%d, %d]", rows, cols);
    else
        snprintf(out, len, "[%d]", cols);
}

static int check_shape(const char *path, const char *tensor, int rows, int cols, int want_rows,
                       int want_cols, const char *whose, char *why, size_t why_len)
{
    char is[40], right[40];

    if (rows == want_rows && cols == want_cols)
        return 0;
    shape_text(rows, cols, is, sizeof is);
    shape_text(want_rows, want_cols, right, sizeof right);
    FAIL(-EINVAL, "%s: tensor %s has the shape %s; %s has %s", path, tensor, is, whose, right);
}

static int add_sources(struct holmes_ckpt *c, const struct holmes_shard *s, char *why,
                       size_t why_len)
{
    const struct holmes_manifest_tensor *t = c->tensor;

    for (int i = 0; i < s->npieces; i++) {
        const struct holmes_shard_piece *p = &s->pieces[i];
        struct source *more;
        int rc;

        if (strcmp(p->tensor, t->name) != 0)
            continue;
        rc = check_shape(s->path, p->tensor, p->rows, p->cols, t->rows, t->cols, "the manifest",
                         why, why_len);
        if (rc != 0)
            return rc;
        more = realloc(c->sources, ((size_t)c->nsources + 1) * sizeof *more);
        if (!more)
            FAIL(-ENOMEM, "%s: out of memory", s->path);
        c->sources = more;
        more[c->nsources++] = (struct source){.shard = s, .piece = p};
    }
    return 0;
}

int holmes_ckpt_select(struct holmes_ckpt *c, const char *tensor, enum holmes_part part, int rows,
                       int cols, char *why, size_t why_len)
{
    const struct holmes_manifest_tensor *t = holmes_manifest_find(&c->m, tensor);
    char path[HOLMES_CKPT_PATH_MAX + 64];
    int rc = 0;

    path_of(c, HOLMES_MANIFEST_NAME, path, sizeof path);
    if (!t)
        FAIL(-EINVAL, "%s: tensor %s is missing", path, tensor);
    rc = check_shape(path, tensor, t->rows, t->cols, rows, cols, "the model", why, why_len);
    if (rc != 0)
        return rc;
    if (c->tensor == t) { /* another part of it: the pieces are the same */
        drop_blocks(c);
        c->part = part;
        return 0;
    }
    unselect(c);
    if (c->nopen + t->nshards > OPEN_SHARDS_MAX)
        close_shards(c);
    c->tensor = t;
    c->part = part;
    for (int i = 0; i < t->nshards && rc == 0; i++) {
        rc = open_shard(c, t->shards[i], tensor, why, why_len);
        if (rc == 0)
            rc = add_sources(c, c->shards[t->shards[i]], why, why_len);
    }
    if (rc != 0)
        unselect(c);
    return rc;
}

/* --- reading -----------------------------------------------------------------------------------
 */

static struct source *find_source(struct holmes_ckpt *c, uint64_t element, uint64_t *local,
                                  uint64_t *length)
{
    for (int i = 0; i < c->nsources; i++) {
        const int n = (c->last + i) % c->nsources;

        if (holmes_runs_find(&c->sources[n].piece->runs, element, local, length) == 0) {
            c->last = n;
            return &c->sources[n];
        }
    }
    return NULL;
}

static int load_block(struct holmes_ckpt *c, struct source *s, uint64_t number, char *why,
                      size_t why_len)
{
    int rc;

    if (s->block && s->number == number)
        return 0;
    if (!s->block) {
        if (c->nblocks == BLOCKS_MAX)
            drop_blocks(c);
        s->block = malloc(HOLMES_SHARD_BLOCK * sizeof(float));
        if (!s->block)
            FAIL(-ENOMEM, "%s: out of memory", c->path);
        c->nblocks++;
    }
    s->number = UINT64_MAX; /* until it is here */
    rc = holmes_shard_read(s->shard, s->piece, c->part, number, s->block, &s->count, why, why_len);
    if (rc != 0)
        return rc;
    s->number = number;
    c->bytes_read += s->count * sizeof(float);
    return 0;
}

/* Elements of one piece, from its element `local` on. */
static int read_piece(struct holmes_ckpt *c, struct source *s, uint64_t local, size_t count,
                      float *out, char *why, size_t why_len)
{
    while (count > 0) {
        const size_t in = local % HOLMES_SHARD_BLOCK;
        size_t n;
        int rc = load_block(c, s, local / HOLMES_SHARD_BLOCK, why, why_len);

        if (rc != 0)
            return rc;
        n = s->count - in < count ? s->count - in : count;
        memcpy(out, s->block + in, n * sizeof *out);
        out += n;
        local += n;
        count -= n;
    }
    return 0;
}

int holmes_ckpt_read(struct holmes_ckpt *c, uint64_t first, size_t count, float *out, char *why,
                     size_t why_len)
{
    while (count > 0) {
        uint64_t local, length;
        struct source *s = find_source(c, first, &local, &length);
        const size_t n = s && length < count ? (size_t)length : count;
        int rc;

        if (!s)
            FAIL(-EINVAL, "%s: tensor %s: no shard has element %" PRIu64 " of its %s", c->path,
                 c->tensor->name, first, holmes_part_names[c->part]);
        rc = read_piece(c, s, local, n, out, why, why_len);
        if (rc != 0)
            return rc;
        first += n;
        out += n;
        count -= n;
    }
    return 0;
}
