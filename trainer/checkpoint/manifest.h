/* What a checkpoint is, as a file of JSON beside its shards: manifest.json. It is written last, and
 * has a checksum of its own: a folder with a manifest that reads is a whole checkpoint.
 * docs/checkpoint.md describes the fields. */
#ifndef HOLMES_MANIFEST_H
#define HOLMES_MANIFEST_H

#include <jansson.h>
#include <stdint.h>

#include "model.h"

#define HOLMES_MANIFEST_NAME    "manifest.json"
#define HOLMES_MANIFEST_VERSION 1
#define HOLMES_MANIFEST_MAX     (256 << 20) /* bytes */

struct holmes_manifest_shard {
    char file[48];
    uint64_t bytes;      /* of the file */
    uint32_t header_crc; /* of its header, which has the checksums of its data */
};

struct holmes_manifest_tensor {
    char name[64];
    int rows, cols; /* of the whole tensor; rows 0: a vector */
    uint64_t count;
    int *shards; /* [nshards] which of the shards have pieces of it, ascending */
    int nshards;
};

struct holmes_manifest {
    char sum[9]; /* the checksum that it has; "" when it comes from none */
    int step;
    struct holmes_model model;
    uint64_t data_bytes;
    char data_sum[17];
    json_t *options; /* option name -> its value as text: all that the run was told */
    struct holmes_manifest_shard *shards;
    int nshards;
    struct holmes_manifest_tensor *tensors;
    int ntensors;
};

/* The name of shard `i` of `n`. */
void holmes_manifest_shard_name(int i, int n, char *out, size_t len);

/* `path` begins the sentence in `why`: -EINVAL, or -ENOMEM. holmes_manifest_fini frees what *out
 * holds; after a failure there is nothing to free. */
int holmes_manifest_parse(const char *path, const char *text, size_t len,
                          struct holmes_manifest *out, char *why, size_t why_len);
/* The same without the checksum. */
int holmes_manifest_unpack(const char *path, const json_t *root, struct holmes_manifest *out,
                           char *why, size_t why_len);
/* The text with its checksum, malloc'ed; NULL: no memory. */
char *holmes_manifest_text(const struct holmes_manifest *m, size_t *len);
void holmes_manifest_fini(struct holmes_manifest *m);

const struct holmes_manifest_tensor *holmes_manifest_find(const struct holmes_manifest *m,
                                                          const char *name);

#endif
