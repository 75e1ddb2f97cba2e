/* Files of named tensors in the safetensors format: the length of a header (u64, little endian),
 * the header (JSON: name -> dtype, shape, data_offsets; "__metadata__": name -> text), then the
 * bytes of all tensors, end to end. Own reader and writer; a file may be anybody's.
 *
 * What is refused: a header above 100 MB or beyond the file's end, what is no JSON object, a name
 * that comes twice, an unknown dtype, a shape whose size is not that of its data_offsets, tensors
 * that overlap or leave bytes between them or behind the last, metadata that is no text. Headers of
 * any alignment are read; those written here end on a multiple of 8. Sizes are those of a little
 * endian machine. Not thread safe.
 */
#ifndef HOLMES_SAFETENSORS_H
#define HOLMES_SAFETENSORS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOLMES_ST_DIMS_MAX   8
#define HOLMES_ST_HEADER_MAX 100000000 /* bytes, as the format's own library has it */

enum holmes_st_dtype {
    HOLMES_ST_F32,
    HOLMES_ST_F16,
    HOLMES_ST_BF16,
    HOLMES_ST_F64,
    HOLMES_ST_I64,
    HOLMES_ST_I32,
    HOLMES_ST_I16,
    HOLMES_ST_I8,
    HOLMES_ST_U64,
    HOLMES_ST_U32,
    HOLMES_ST_U16,
    HOLMES_ST_U8,
    HOLMES_ST_BOOL,
    HOLMES_ST_F8_E4M3,
    HOLMES_ST_F8_E5M2,
    HOLMES_ST_DTYPES
};
const char *holmes_st_dtype_name(enum holmes_st_dtype t);
size_t holmes_st_dtype_size(enum holmes_st_dtype t);

struct holmes_st_tensor {
    const char *name;
    enum holmes_st_dtype dtype;
    int ndim; /* 0: a single number */
    uint64_t shape[HOLMES_ST_DIMS_MAX];
    uint64_t count;        /* elements */
    uint64_t begin, bytes; /* in the file */
};

/* "[3, 4]", "[]". Returns `out`. */
const char *holmes_st_shape_text(const struct holmes_st_tensor *t, char *out, size_t len);

struct holmes_st;

/* `why` gets a sentence that begins with the path: -EINVAL for what is no good file, else the errno
 * of opening or reading it. The file stays open until holmes_st_close. */
int holmes_st_open(const char *path, struct holmes_st **out, char *why, size_t why_len);
/* The same for a header in memory: `data` begins with the length; `file_bytes` is the size of the
 * whole file, of which `len` bytes are here. Nothing can be read from it but names and shapes. */
int holmes_st_parse(const char *path, const void *data, size_t len, uint64_t file_bytes,
                    struct holmes_st **out, char *why, size_t why_len);
void holmes_st_close(struct holmes_st *s); /* NULL is fine */

uint64_t holmes_st_file_bytes(const struct holmes_st *s);
uint64_t holmes_st_header_bytes(const struct holmes_st *s); /* with its length */
uint32_t holmes_st_header_crc(const struct holmes_st *s);   /* CRC-32C of those bytes */

int holmes_st_count(const struct holmes_st *s);
const struct holmes_st_tensor *holmes_st_tensor(const struct holmes_st *s, int i); /* by place */
const struct holmes_st_tensor *holmes_st_find(const struct holmes_st *s, const char *name);
/* "__metadata__", an object whose values are all text; NULL when there is none. */
const json_t *holmes_st_metadata(const struct holmes_st *s);

/* `bytes` of the tensor from byte `from` on. A file that has shrunk is -EIO. */
int holmes_st_read(const struct holmes_st *s, const struct holmes_st_tensor *t, uint64_t from,
                   void *out, size_t bytes);

struct holmes_st_writer;

/* Makes the file (-EEXIST when it is there) and its header; the tensors' bytes then follow in the
 * order of `tensors`, whose name, dtype, ndim and shape count. metadata: an object of texts, or
 * NULL; not kept. Nothing is left of the file after a failure. */
int holmes_st_create(const char *path, const struct holmes_st_tensor *tensors, int count,
                     const json_t *metadata, struct holmes_st_writer **out);
int holmes_st_put(struct holmes_st_writer *w, const void *data, size_t bytes);
/* Writes the header again with other texts of the same lengths (-EINVAL when it does not fit), such
 * as checksums of what was put since. */
int holmes_st_set_metadata(struct holmes_st_writer *w, const json_t *metadata);
/* fsync and close. -EINVAL when the bytes that were put are not those of the tensors. Frees `w` in
 * any case, and removes the file after a failure. */
int holmes_st_finish(struct holmes_st_writer *w);
void holmes_st_abandon(struct holmes_st_writer *w); /* removes the file; NULL is fine */

#endif
