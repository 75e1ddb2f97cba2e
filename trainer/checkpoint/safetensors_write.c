/* Writes the header first, since the sizes are known, and the bytes behind it as they come. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct holmes_st_writer {
    char *path;
    int fd;
    json_t *tensors; /* the header without metadata */
    size_t header_bytes;
    uint64_t at, end; /* where the next byte goes, where the last one ends */
};

static int pwrite_all(int fd, const void *data, size_t bytes, uint64_t at)
{
    const char *p = data;

    while (bytes > 0) {
        ssize_t n = pwrite(fd, p, bytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static json_t *shape_array(const struct holmes_st_tensor *t)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    return shape;
}

/* *bytes: of all tensors. */
static json_t *describe(const struct holmes_st_tensor *tensors, int count, uint64_t *bytes)
{
    json_t *root = json_object();

    *bytes = 0;
    for (int i = 0; i < count && root; i++) {
        const struct holmes_st_tensor *t = &tensors[i];
        uint64_t begin = *bytes, size = holmes_st_dtype_size(t->dtype);

        for (int d = 0; d < t->ndim; d++)
            size *= t->shape[d];
        *bytes += size;
        if (json_object_set_new(root, t->name,
                                json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                          holmes_st_dtype_name(t->dtype), "shape", shape_array(t),
                                          "data_offsets", (json_int_t)begin, (json_int_t)*bytes)) !=
            0) {
            json_decref(root);
            root = NULL;
        }
    }
    return root;
}

/* The header as it stands in the file: length, text, blanks up to a multiple of 8. */
static char *header_make(const json_t *tensors, const json_t *metadata, size_t *len)
{
    json_t *root = json_object();
    size_t n, room;
    char *text;

    if (metadata && root)
        json_object_set(root, "__metadata__", (json_t *)metadata);
    if (!root || json_object_update(root, (json_t *)tensors) != 0) {
        json_decref(root);
        return NULL;
    }
    n = json_dumpb(root, NULL, 0, JSON_COMPACT);
    room = (n + 7) / 8 * 8;
    text = n > 0 && room <= HOLMES_ST_HEADER_MAX ? malloc(room + 8) : NULL;
    if (text) {
        for (int i = 0; i < 8; i++)
            text[i] = (char)(room >> (8 * i));
        json_dumpb(root, text + 8, n, JSON_COMPACT);
        memset(text + 8 + n, ' ', room - n);
        *len = room + 8;
    }
    json_decref(root);
    return text;
}

static int write_header(struct holmes_st_writer *w, const json_t *metadata)
{
    size_t len = 0;
    char *text = header_make(w->tensors, metadata, &len);
    int rc;

    if (!text)
        return -ENOMEM;
    if (w->header_bytes > 0 && len != w->header_bytes)
        rc = -EINVAL;
    else
        rc = pwrite_all(w->fd, text, len, 0);
    if (rc == 0)
        w->header_bytes = len;
    free(text);
    return rc;
}

int holmes_st_create(const char *path, const struct holmes_st_tensor *tensors, int count,
                     const json_t *metadata, struct holmes_st_writer **out)
{
    struct holmes_st_writer *w = calloc(1, sizeof *w);
    uint64_t bytes;
    int rc;

    if (!w)
        return -ENOMEM;
    w->path = strdup(path);
    w->tensors = describe(tensors, count, &bytes);
    w->fd = w->path && w->tensors ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (w->fd < 0) {
        rc = w->path && w->tensors ? -errno : -ENOMEM;
        json_decref(w->tensors);
        free(w->path);
        free(w);
        return rc;
    }
    rc = write_header(w, metadata);
    w->at = w->header_bytes;
    w->end = w->at + bytes;
    if (rc != 0)
        holmes_st_abandon(w);
    else
        *out = w;
    return rc;
}

int holmes_st_put(struct holmes_st_writer *w, const void *data, size_t bytes)
{
    int rc;

    if (bytes > w->end - w->at)
        return -EINVAL;
    rc = pwrite_all(w->fd, data, bytes, w->at);
    w->at += bytes;
    return rc;
}

int holmes_st_set_metadata(struct holmes_st_writer *w, const json_t *metadata)
{
    return write_header(w, metadata);
}

static void writer_free(struct holmes_st_writer *w)
{
    json_decref(w->tensors);
    free(w->path);
    free(w);
}

int holmes_st_finish(struct holmes_st_writer *w)
{
    int rc = w->at == w->end ? 0 : -EINVAL;

    if (rc == 0 && fsync(w->fd) != 0)
        rc = -errno;
    if (close(w->fd) != 0 && rc == 0) /* where network file systems tell of a full disk */
        rc = -errno;
    if (rc != 0)
        unlink(w->path);
    writer_free(w);
    return rc;
}

void holmes_st_abandon(struct holmes_st_writer *w)
{
    if (!w)
        return;
    close(w->fd);
    unlink(w->path);
    writer_free(w);
}
