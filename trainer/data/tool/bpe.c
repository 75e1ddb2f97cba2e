/* Encoding. A word's bytes are a list; the pairs that can be joined are in a heap, the first in the
 * list of merges on top, of equal ones the leftmost. What a short word came to is kept. */
#include "bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bpe_table.h"

#define WORDS      (1 << 16)
#define WORD_BYTES 30
#define WORD_IDS   8

struct bpe_symbol {
    int32_t id;
    uint32_t prev, next; /* NONE at the ends; a joined one keeps its left place */
};
#define NONE UINT32_MAX

/* A pair as it was when it came into the heap. */
struct bpe_pair {
    int32_t rank;
    uint32_t left, right; /* symbols */
    int32_t left_id, right_id, id;
};

struct bpe_word { /* a line of the cache */
    uint8_t len, count;
    char bytes[WORD_BYTES];
    int32_t ids[WORD_IDS];
};

int holmes_ids_push(struct holmes_ids *ids, int32_t id)
{
    if (ids->count == ids->capacity) {
        const size_t more = ids->capacity ? 2 * ids->capacity : 1024;
        int32_t *at = realloc(ids->at, more * sizeof *at);

        if (!at)
            return -ENOMEM;
        ids->at = at;
        ids->capacity = more;
    }
    ids->at[ids->count++] = id;
    return 0;
}

void holmes_ids_fini(struct holmes_ids *ids)
{
    free(ids->at);
    *ids = (struct holmes_ids){0};
}

void holmes_bpe_destroy(struct holmes_bpe *b)
{
    if (!b)
        return;
    pcre2_match_data_free(b->match);
    pcre2_code_free(b->pattern);
    free(b->bytes);
    free(b->starts);
    free(b->lengths);
    free(b->special);
    free(b->merges);
    free(b->symbols);
    free(b->heap);
    free(b->words);
    free(b);
}

int holmes_bpe_vocab(const struct holmes_bpe *b)
{
    return b->vocab;
}

const char *holmes_bpe_token(const struct holmes_bpe *b, int64_t id, size_t *len)
{
    if (id < 0 || id >= b->vocab || b->lengths[id] < 0)
        return NULL;
    *len = (size_t)b->lengths[id];
    return b->bytes + b->starts[id];
}

int32_t holmes_bpe_find(const struct holmes_bpe *b, const char *token)
{
    const size_t len = strlen(token);

    for (int32_t id = 0; id < b->vocab; id++)
        if (b->lengths[id] >= 0 && (size_t)b->lengths[id] == len &&
            memcmp(b->bytes + b->starts[id], token, len) == 0)
            return id;
    return -1;
}

/* --- one word --------------------------------------------------------------------------------- */

/* A word of n bytes has n symbols and, over its life, fewer than 3 n pairs: n - 1 at the start, and
 * two more for each of at most n - 1 joins. */
static int reserve(struct holmes_bpe *b, size_t n)
{
    size_t more = b->scratch ? b->scratch : 256;
    struct bpe_symbol *symbols;
    struct bpe_pair *heap;

    if (n <= b->scratch)
        return 0;
    if (n >= NONE)
        return -ENOMEM;
    while (more < n)
        more *= 2;
    symbols = realloc(b->symbols, more * sizeof *symbols);
    if (symbols)
        b->symbols = symbols;
    heap = realloc(b->heap, 3 * more * sizeof *heap);
    if (heap)
        b->heap = heap;
    if (!symbols || !heap)
        return -ENOMEM;
    b->scratch = more;
    return 0;
}

static bool before(const struct bpe_pair *a, const struct bpe_pair *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->left < b->left);
}

static void heap_push(struct bpe_pair *heap, size_t *n, struct bpe_pair p)
{
    size_t i = (*n)++;

    while (i > 0 && before(&p, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = p;
}

static struct bpe_pair heap_pop(struct bpe_pair *heap, size_t *n)
{
    const struct bpe_pair top = heap[0], last = heap[--*n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < *n) {
        if (child + 1 < *n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void offer(struct holmes_bpe *b, size_t *n, uint32_t left, uint32_t right)
{
    const struct bpe_symbol *s = b->symbols;
    const struct bpe_merge *m;

    if (left == NONE || right == NONE)
        return;
    m = bpe_merge_find(b, s[left].id, s[right].id);
    if (m)
        heap_push(b->heap, n,
                  (struct bpe_pair){m->rank, left, right, s[left].id, s[right].id, m->id});
}

static int encode_word(struct holmes_bpe *b, const char *word, size_t len, struct holmes_ids *ids)
{
    struct bpe_symbol *s;
    size_t pairs = 0;
    int rc = reserve(b, len);

    if (rc != 0)
        return rc;
    s = b->symbols;
    for (size_t i = 0; i < len; i++)
        s[i] = (struct bpe_symbol){b->of_byte[(uint8_t)word[i]], i ? (uint32_t)i - 1 : NONE,
                                   i + 1 < len ? (uint32_t)i + 1 : NONE};
    for (size_t i = 0; i + 1 < len; i++)
        offer(b, &pairs, (uint32_t)i, (uint32_t)i + 1);
    while (pairs > 0) {
        const struct bpe_pair p = heap_pop(b->heap, &pairs);

        /* a symbol that was joined into its left one has no id, a changed one another */
        if (s[p.left].id != p.left_id || s[p.right].id != p.right_id || s[p.left].next != p.right)
            continue;
        s[p.left].id = p.id;
        s[p.left].next = s[p.right].next;
        s[p.right].id = -1;
        if (s[p.right].next != NONE)
            s[s[p.right].next].prev = p.left;
        offer(b, &pairs, s[p.left].prev, p.left);
        offer(b, &pairs, p.left, s[p.left].next);
    }
    for (uint32_t i = 0; i != NONE && rc == 0; i = s[i].next)
        rc = holmes_ids_push(ids, s[i].id);
    return rc;
}

static uint32_t hash_word(const char *word, size_t len)
{
    uint64_t h = len, part;

    for (; len >= 8; len -= 8, word += 8) {
        memcpy(&part, word, 8);
        h = (h ^ part) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    part = 0;
    memcpy(&part, word, len);
    return bpe_hash(h ^ part);
}

static int encode_cached(struct holmes_bpe *b, const char *word, size_t len, struct holmes_ids *ids)
{
    const size_t first = ids->count;
    struct bpe_word *w;
    int rc = 0;

    if (!b->words && ++b->uncached > WORDS / 16) /* a short text is not worth the memory */
        b->words = calloc(WORDS, sizeof *b->words);
    if (len > WORD_BYTES || !b->words)
        return encode_word(b, word, len, ids);
    w = &b->words[hash_word(word, len) % WORDS];
    if (w->len == len && memcmp(w->bytes, word, len) == 0) {
        for (int i = 0; i < w->count && rc == 0; i++)
            rc = holmes_ids_push(ids, w->ids[i]);
        return rc;
    }
    rc = encode_word(b, word, len, ids);
    if (rc == 0 && ids->count - first <= WORD_IDS) {
        w->len = (uint8_t)len;
        w->count = (uint8_t)(ids->count - first);
        memcpy(w->bytes, word, len);
        memcpy(w->ids, ids->at + first, w->count * sizeof *w->ids);
    }
    return rc;
}

/* --- text ------------------------------------------------------------------------------------- */

/* Bytes of the character at `s`, of which `left` bytes are there; 0: it is none. */
static size_t character(const unsigned char *s, size_t left)
{
    const size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

    if (n == 0 || s[0] > 0xf4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

size_t holmes_utf8_valid(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0, n;
    uint64_t eight;

    while (i < len) {
        if (len - i >= 8) {
            memcpy(&eight, s + i, 8);
            if (!(eight & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        n = character(s + i, len - i);
        if (n == 0)
            break;
        i += n;
    }
    return i;
}

/* All of `text` is UTF-8. */
static int encode_valid(struct holmes_bpe *b, const char *text, size_t len, struct holmes_ids *ids)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(b->match);
    size_t at = 0;

    while (at < len) {
        const int n =
            pcre2_match(b->pattern, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, b->match, NULL);
        int rc;

        if (n < 0 || found[0] != at || found[1] <= at)
            return n == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -EIO;
        rc = encode_cached(b, text + at, found[1] - at, ids);
        if (rc != 0)
            return rc;
        at = found[1];
    }
    return 0;
}

int holmes_bpe_encode(struct holmes_bpe *b, const char *text, size_t len, bool keep_invalid,
                      struct holmes_ids *ids, size_t *bad)
{
    size_t at = 0;
    int rc = 0;

    while (at < len && rc == 0) {
        const size_t n = holmes_utf8_valid(text + at, len - at);

        if (at + n < len && !keep_invalid) {
            *bad = at + n;
            return -EILSEQ;
        }
        rc = encode_valid(b, text + at, n, ids);
        at += n;
        if (at < len && rc == 0)
            rc = holmes_ids_push(ids, b->of_byte[(uint8_t)text[at++]]);
    }
    return rc;
}
