/* Megatron-LM's indexed dataset: PREFIX.bin has the tokens of all documents one after another,
 * PREFIX.idx says where they begin. All numbers are little-endian, without padding:
 *
 *     PREFIX.idx  9 bytes  "MMIDIDX\0\0"
 *                 u64      version, 1
 *                 u8       code of the token type
 *                 u64      S, sequences
 *                 u64      D, entries of the document index: documents + 1
 *                 i32[S]   tokens of each sequence
 *                 i64[S]   byte of PREFIX.bin where each begins: they follow each other
 *                 i64[D]   sequence that each document begins with, and S at the end
 *                 i8[S]    modes, only in multimodal files
 *
 * Documents may be empty. Both files are hostile: a file that was opened is right in everything but
 * the values of its tokens, which are checked when they are read. */
#ifndef HOLMES_INDEXED_H
#define HOLMES_INDEXED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "filemap.h"

#define HOLMES_INDEX_MAGIC      "MMIDIDX\0" /* and the zero that ends it: 9 bytes */
#define HOLMES_INDEX_MAGIC_SIZE 9
#define HOLMES_INDEX_HEADER     34 /* bytes in front of the lengths */

/* Megatron's codes. 6 and 7, float64 and float32, are no tokens. */
enum holmes_token_type {
    HOLMES_TOKEN_UINT8 = 1,
    HOLMES_TOKEN_INT8 = 2,
    HOLMES_TOKEN_INT16 = 3,
    HOLMES_TOKEN_INT32 = 4,
    HOLMES_TOKEN_INT64 = 5,
    HOLMES_TOKEN_UINT16 = 8,
};

size_t holmes_token_size(enum holmes_token_type t); /* bytes; 0 for what is no type */
const char *holmes_token_type_name(unsigned code);  /* "uint16"; NULL for an unknown code */
int64_t holmes_token_max(enum holmes_token_type t); /* largest value */
int holmes_token_type_parse(const char *name, enum holmes_token_type *out); /* 0 or -EINVAL */

/* Tokens as they lie in a file. */
struct holmes_tokens {
    const uint8_t *bytes; /* not aligned */
    uint64_t count;
    enum holmes_token_type type;
};

int64_t holmes_tokens_at(const struct holmes_tokens *t, uint64_t i); /* i below count */
/* Tokens [first, first + n) into `out`. -ERANGE when one is not in [0, vocab): *bad is its place,
 * and of `out` only what lies before it was written. -EINVAL when there are no such tokens. */
int holmes_tokens_read(const struct holmes_tokens *t, uint64_t first, size_t n, int vocab,
                       int32_t *out, uint64_t *bad);

struct holmes_indexed {
    struct holmes_filemap idx, bin; /* zeroed after holmes_indexed_parse */
    struct holmes_tokens tokens;
    uint64_t item; /* bytes of a token */
    uint64_t sequences, documents;
    const uint8_t *lengths, *pointers, *starts, *modes; /* not aligned; modes may be NULL */
};

/* Checks `size` bytes of an index against `bin_size` bytes of tokens. `name` is for the sentence
 * only; the bytes must live as long as *out; out->tokens.bytes is left to the caller. -EINVAL with
 * a sentence that names file, field, value and what is right. */
int holmes_indexed_parse(const char *name, const uint8_t *bytes, size_t size, uint64_t bin_size,
                         struct holmes_indexed *out, char *why, size_t why_len);
/* Maps PREFIX.idx and PREFIX.bin. Reads the index once. -EINVAL as above, or -errno. */
int holmes_indexed_open(const char *prefix, struct holmes_indexed *out, char *why, size_t why_len);
void holmes_indexed_close(struct holmes_indexed *x); /* of a zeroed one: nothing */

/* First token of document d; for d = documents the number of all tokens. */
uint64_t holmes_indexed_start(const struct holmes_indexed *x, uint64_t d);
/* The document that token i (below tokens.count) lies in. */
uint64_t holmes_indexed_document(const struct holmes_indexed *x, uint64_t i);

#endif
