/* Byte-level BPE as GPT-2 has it (Radford et al., "Language Models are Unsupervised Multitask
 * Learners", 2019): text is cut into words by a pattern, and in every word the pair of neighbours
 * that comes first in the list of merges is joined, again and again. Any bytes can be encoded.
 *
 * vocab.json maps each token to its number, merges.txt has a pair per line, the first one joined
 * first. In both, each byte is written as one printable character: those of Latin-1 as themselves,
 * the 68 others, in order, as U+0100 and following ("Ġ" is a blank). Not thread safe. */
#ifndef HOLMES_BPE_H
#define HOLMES_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct holmes_bpe;

struct holmes_ids {
    int32_t *at;
    size_t count, capacity;
};
int holmes_ids_push(struct holmes_ids *ids, int32_t id); /* 0 or -ENOMEM */
void holmes_ids_fini(struct holmes_ids *ids);

/* The names are for the sentence. `merges` may be NULL, for decoding. -EINVAL with a sentence when
 * a file is wrong: every single byte must be a token, and both parts of a merge and what they make.
 */
int holmes_bpe_parse(const char *vocab_name, const void *vocab, size_t vocab_size,
                     const char *merges_name, const void *merges, size_t merges_size,
                     struct holmes_bpe **out, char *why, size_t why_len);
/* From files; merges_path may be NULL. -errno when one cannot be read. */
int holmes_bpe_load(const char *vocab_path, const char *merges_path, struct holmes_bpe **out,
                    char *why, size_t why_len);
void holmes_bpe_destroy(struct holmes_bpe *b); /* NULL is fine */

/* Appends the tokens of `text`. Where it is not UTF-8: with keep_invalid each such byte is a word
 * of its own, else -EILSEQ and *bad is the place of the first. -ENOMEM; -EIO when the pattern's
 * library fails. */
int holmes_bpe_encode(struct holmes_bpe *b, const char *text, size_t len, bool keep_invalid,
                      struct holmes_ids *ids, size_t *bad);

int holmes_bpe_vocab(const struct holmes_bpe *b); /* highest number + 1 */
/* Bytes of a token; NULL when no token has this number. */
const char *holmes_bpe_token(const struct holmes_bpe *b, int64_t id, size_t *len);
/* Number of the token that is these bytes, "<|endoftext|>" for one; -1: none. */
int32_t holmes_bpe_find(const struct holmes_bpe *b, const char *token);

/* The place of the first byte that is not UTF-8, else `len`. */
size_t holmes_utf8_valid(const char *text, size_t len);

#endif
