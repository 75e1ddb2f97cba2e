/* What one rank writes of a checkpoint: pieces of tensors, each with master weights and both
 * moments of AdamW, as one safetensors file. Piece k of tensor NAME is three vectors "NAME/k/w",
 * ".../m" and
 * ".../v" of F32; the metadata say of "NAME/k" which elements of the whole tensor these are
 * ("ROWSxCOLS RUNS", a vector has no rows; runs.h), and of each vector its CRC-32C, block by block.
 */
#ifndef HOLMES_SHARD_H
#define HOLMES_SHARD_H

#include "runs.h"
#include "safetensors.h"

#define HOLMES_SHARD_BLOCK (1 << 18) /* floats that share a checksum: 1 MiB */

enum holmes_part { HOLMES_PART_WEIGHTS, HOLMES_PART_M, HOLMES_PART_V, HOLMES_PARTS };
extern const char *const holmes_part_names[HOLMES_PARTS]; /* for people */

struct holmes_piece {
    const char *tensor;
    int rows, cols; /* of the whole tensor; rows 0: a vector */
    struct holmes_runs runs;
    const float *parts[HOLMES_PARTS]; /* runs.total floats each, in what `copy` reads */
};

/* Writes the file and flushes it to the disk. `copy`: from the pieces' memory to the host's.
 * A negative errno; then nothing is left of it. *bytes: its size. */
int holmes_shard_write(const char *path, const struct holmes_piece *pieces, int count,
                       void (*copy)(void *to, const void *from, size_t bytes), uint64_t *bytes);

struct holmes_shard_piece {
    char tensor[64];
    int rows, cols;
    struct holmes_runs runs;
    const struct holmes_st_tensor *data[HOLMES_PARTS];
    const char *sums[HOLMES_PARTS]; /* eight hexadecimal digits for each block */
};

struct holmes_shard {
    char *path;
    struct holmes_st *st;
    struct holmes_shard_piece *pieces; /* by tensor */
    int npieces;
};

/* The header is checked completely, its bytes are not read yet. -EINVAL with a sentence that names
 * the file, and the tensor where there is one; or the errno of opening it. */
int holmes_shard_open(const char *path, struct holmes_shard **out, char *why, size_t why_len);
/* The same for bytes in memory; only good for looking at. */
int holmes_shard_parse(const char *path, const void *data, size_t len, struct holmes_shard **out,
                       char *why, size_t why_len);
void holmes_shard_close(struct holmes_shard *s); /* NULL is fine */

/* Block `block` of a part into `out`, with *count floats. -EBADMSG with a sentence when the
 * checksum is another, or the errno of reading. */
int holmes_shard_read(const struct holmes_shard *s, const struct holmes_shard_piece *p,
                      enum holmes_part part, uint64_t block, float *out, size_t *count, char *why,
                      size_t why_len);

#endif
