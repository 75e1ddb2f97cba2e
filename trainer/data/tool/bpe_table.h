/* The tables of a tokenizer, filled by bpe_load.c and used by bpe.c. */
#ifndef HOLMES_BPE_TABLE_H
#define HOLMES_BPE_TABLE_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>

#include "bpe.h"

#define BPE_VOCAB_MAX (1 << 20) /* tokens, as in model.c */

/* Both parts in the key; id -1: an empty place. */
struct bpe_merge {
    uint64_t pair;
    int32_t rank, id;
};

struct bpe_pair; /* of the heap in bpe.c */
struct bpe_symbol;
struct bpe_word;

struct holmes_bpe {
    int vocab;
    char *bytes;      /* of all tokens */
    uint32_t *starts; /* [vocab], in bytes */
    int32_t *lengths; /* [vocab]; -1: no token has this number */
    bool *special;    /* [vocab]: written with characters that stand for no byte */
    int32_t of_byte[256];

    struct bpe_merge *merges; /* hash table */
    uint32_t merges_mask;     /* its size - 1 */

    pcre2_code *pattern;
    pcre2_match_data *match;

    struct bpe_symbol *symbols; /* scratch of one word */
    struct bpe_pair *heap;
    size_t scratch;         /* bytes of a word that it suffices for */
    struct bpe_word *words; /* cache; NULL before its time */
    size_t uncached;        /* words until then */
};

static inline uint32_t bpe_hash(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32);
}

static inline uint64_t bpe_pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The merge of a pair; NULL: there is none. */
static inline const struct bpe_merge *bpe_merge_find(const struct holmes_bpe *b, int32_t left,
                                                     int32_t right)
{
    const uint64_t pair = bpe_pair_of(left, right);

    if (!b->merges)
        return NULL;
    for (uint32_t i = bpe_hash(pair);; i++) {
        const struct bpe_merge *m = &b->merges[i & b->merges_mask];

        if (m->id < 0)
            return NULL;
        if (m->pair == pair)
            return m;
    }
}

#endif
