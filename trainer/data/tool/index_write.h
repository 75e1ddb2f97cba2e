/* Writes PREFIX.bin, PREFIX.idx and PREFIX.json. Everything goes to files of other names beside
 * them, and takes its place only when it is complete and on the disk; the index comes last, so that
 * whatever has one is whole. */
#ifndef HOLMES_INDEX_WRITE_H
#define HOLMES_INDEX_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "datanote.h"
#include "indexed.h"

struct holmes_index_writer;

/* `prefix` is kept, not copied. -errno with a sentence. */
int holmes_index_create(const char *prefix, enum holmes_token_type type,
                        struct holmes_index_writer **out, char *why, size_t why_len);
/* A document that is one sequence, as Megatron-LM's preprocess_data.py writes it. -ERANGE when a
 * token does not fit the type, -EFBIG from 2^31 tokens on, -errno of the disk; sentences follow. */
int holmes_index_add(struct holmes_index_writer *w, const int32_t *tokens, size_t n, char *why,
                     size_t why_len);
uint64_t holmes_index_documents(const struct holmes_index_writer *w);
uint64_t holmes_index_tokens(const struct holmes_index_writer *w);
/* Puts the files in their places; `note` is completed with the counts. Destroys the writer, also
 * when it fails: the old files are then as they were, unless the disk failed in the middle. */
int holmes_index_finish(struct holmes_index_writer *w, struct holmes_datanote *note, char *why,
                        size_t why_len);
void holmes_index_abort(struct holmes_index_writer *w); /* leaves nothing; NULL is fine */

#endif
