/* Buffers tokens, keeps the lengths in memory, and renames. */
#include "index_write.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER 65536 /* bytes of tokens put together before they are written */

struct output {
    char temporary[PATH_MAX]; /* "": there is none */
    char path[PATH_MAX];
    FILE *f;
};

enum { BIN, NOTE, IDX, OUTPUTS };
static const char *const ends[OUTPUTS] = {[BIN] = ".bin", [NOTE] = ".json", [IDX] = ".idx"};

struct holmes_index_writer {
    struct output out[OUTPUTS];
    enum holmes_token_type type;
    int32_t *lengths;
    uint64_t documents, capacity, tokens;
    uint8_t buffer[BUFFER];
};

static int fail(const char *path, int rc, char *why, size_t why_len)
{
    snprintf(why, why_len, "%s: %s", path, strerror(-rc));
    return rc;
}

static int output_open(struct output *o, const char *prefix, const char *end, char *why,
                       size_t why_len)
{
    const mode_t mask = umask(0);
    int fd;

    umask(mask);
    if (strlen(prefix) + sizeof ".json.XXXXXX" > sizeof o->path)
        return fail(prefix, -ENAMETOOLONG, why, why_len);
    snprintf(o->path, sizeof o->path, "%s%s", prefix, end);
    snprintf(o->temporary, sizeof o->temporary, "%.*s.XXXXXX", PATH_MAX - 8, o->path);
    fd = mkostemp(o->temporary, O_CLOEXEC);
    if (fd < 0) {
        o->temporary[0] = '\0';
        return fail(o->path, -errno, why, why_len);
    }
    o->f = fchmod(fd, 0666 & ~mask) == 0 ? fdopen(fd, "w") : NULL;
    if (!o->f) {
        const int rc = -errno;

        close(fd);
        return fail(o->path, rc, why, why_len);
    }
    return 0;
}

int holmes_index_create(const char *prefix, enum holmes_token_type type,
                        struct holmes_index_writer **out, char *why, size_t why_len)
{
    struct holmes_index_writer *w = calloc(1, sizeof *w);
    int rc = 0;

    if (!w)
        return fail(prefix, -ENOMEM, why, why_len);
    w->type = type;
    for (int i = 0; i < OUTPUTS && rc == 0; i++)
        rc = output_open(&w->out[i], prefix, ends[i], why, why_len);
    if (rc == 0)
        *out = w;
    else
        holmes_index_abort(w);
    return rc;
}

void holmes_index_abort(struct holmes_index_writer *w)
{
    for (int i = 0; w && i < OUTPUTS; i++) {
        if (w->out[i].f)
            fclose(w->out[i].f);
        if (w->out[i].temporary[0])
            unlink(w->out[i].temporary);
    }
    if (w)
        free(w->lengths);
    free(w);
}

static void put_token(uint8_t *at, int32_t token, size_t size)
{
    const uint64_t v = htole64((uint64_t)(int64_t)token);

    memcpy(at, &v, size);
}

static int keep_length(struct holmes_index_writer *w, size_t n)
{
    if (w->documents == w->capacity) {
        const uint64_t more = w->capacity ? 2 * w->capacity : 1024;
        int32_t *lengths = realloc(w->lengths, more * sizeof *lengths);

        if (!lengths)
            return -ENOMEM;
        w->lengths = lengths;
        w->capacity = more;
    }
    w->lengths[w->documents++] = (int32_t)n;
    w->tokens += n;
    return 0;
}

int holmes_index_add(struct holmes_index_writer *w, const int32_t *tokens, size_t n, char *why,
                     size_t why_len)
{
    const size_t size = holmes_token_size(w->type);
    struct output *bin = &w->out[BIN];
    size_t used = 0;

    if (n > INT32_MAX) {
        snprintf(why, why_len, "document %" PRIu64 " has %zu tokens; 2^31-1 at most are right",
                 w->documents, n);
        return -EFBIG;
    }
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] > holmes_token_max(w->type)) {
            snprintf(why, why_len,
                     "token %zu of document %" PRIu64 " is %" PRId32
                     ", which type %s does not hold",
                     i, w->documents, tokens[i], holmes_token_type_name(w->type));
            return -ERANGE;
        }
        put_token(w->buffer + used, tokens[i], size);
        used += size;
        if (used == BUFFER || i + 1 == n) {
            if (fwrite(w->buffer, 1, used, bin->f) != used)
                return fail(bin->path, -errno, why, why_len);
            used = 0;
        }
    }
    if (keep_length(w, n) != 0)
        return fail(bin->path, -ENOMEM, why, why_len);
    return 0;
}

uint64_t holmes_index_documents(const struct holmes_index_writer *w)
{
    return w->documents;
}

uint64_t holmes_index_tokens(const struct holmes_index_writer *w)
{
    return w->tokens;
}

static void put64(FILE *f, uint64_t v)
{
    v = htole64(v);
    fwrite(&v, sizeof v, 1, f);
}

/* Errors stay in the stream. */
static void write_index(const struct holmes_index_writer *w, FILE *f)
{
    uint64_t at = 0;

    fwrite(HOLMES_INDEX_MAGIC, 1, HOLMES_INDEX_MAGIC_SIZE, f);
    put64(f, 1);
    fputc((int)w->type, f);
    put64(f, w->documents); /* sequences: one a document */
    put64(f, w->documents + 1);
    for (uint64_t d = 0; d < w->documents; d++) {
        const uint32_t length = htole32((uint32_t)w->lengths[d]);

        fwrite(&length, sizeof length, 1, f);
    }
    for (uint64_t d = 0; d < w->documents; d++) {
        put64(f, at);
        at += (uint64_t)w->lengths[d] * holmes_token_size(w->type);
    }
    for (uint64_t d = 0; d <= w->documents; d++)
        put64(f, d);
}

static int close_synced(struct output *o, char *why, size_t why_len)
{
    int rc = 0;

    if (fflush(o->f) != 0 || ferror(o->f) || fsync(fileno(o->f)) != 0)
        rc = errno ? -errno : -EIO;
    if (fclose(o->f) != 0 && rc == 0)
        rc = -errno;
    o->f = NULL;
    return rc == 0 ? 0 : fail(o->path, rc, why, why_len);
}

static int sync_folder(const char *path, char *why, size_t why_len)
{
    char copy[PATH_MAX];
    int fd, rc = 0;

    snprintf(copy, sizeof copy, "%s", path);
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0)
        rc = fail(path, -errno, why, why_len);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* The old index goes first: between the renames nobody finds the new tokens under it. */
static int take_places(struct holmes_index_writer *w, char *why, size_t why_len)
{
    if (unlink(w->out[IDX].path) != 0 && errno != ENOENT)
        return fail(w->out[IDX].path, -errno, why, why_len);
    for (int i = 0; i < OUTPUTS; i++) {
        if (rename(w->out[i].temporary, w->out[i].path) != 0)
            return fail(w->out[i].path, -errno, why, why_len);
        w->out[i].temporary[0] = '\0';
    }
    return sync_folder(w->out[IDX].path, why, why_len);
}

int holmes_index_finish(struct holmes_index_writer *w, struct holmes_datanote *note, char *why,
                        size_t why_len)
{
    char *text;
    int rc = 0;

    note->documents = w->documents;
    note->tokens = w->tokens;
    text = holmes_datanote_text(note);
    if (text)
        fprintf(w->out[NOTE].f, "%s\n", text);
    else
        rc = fail(w->out[NOTE].path, -ENOMEM, why, why_len);
    free(text);
    write_index(w, w->out[IDX].f);
    for (int i = 0; i < OUTPUTS && rc == 0; i++)
        rc = close_synced(&w->out[i], why, why_len);
    if (rc == 0)
        rc = take_places(w, why, why_len);
    holmes_index_abort(w);
    return rc;
}
