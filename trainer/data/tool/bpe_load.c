/* vocab.json and merges.txt into tables. Both come from anywhere: each token and each line is
 * checked. */
#include "bpe_table.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "filemap.h"
#include "utf8.h"

struct loader {
    struct holmes_bpe *b;
    const char *name;
    int32_t *table; /* tokens by their bytes, -1: empty */
    uint32_t mask;
    int16_t byte_of[512]; /* of a character, -1: none */
    char *why;
    size_t why_len;
};

#define REFUSE(l, ...)                                                                             \
    do {                                                                                           \
        snprintf((l)->why, (l)->why_len, __VA_ARGS__);                                             \
        return -EINVAL;                                                                            \
    } while (0)

static void fill_alphabet(int16_t byte_of[512])
{
    int next = 256;

    for (int i = 0; i < 512; i++)
        byte_of[i] = -1;
    for (int byte = 0; byte < 256; byte++) {
        const bool itself = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);

        byte_of[itself ? byte : next++] = (int16_t)byte;
    }
}

/* What `text` of `len` bytes, with a zero behind, stands for, into `out` of as many; -1 when a
 * character stands for no byte. */
static int64_t to_bytes(const struct loader *l, const char *text, size_t len, char *out)
{
    const char *end = text + len;
    int64_t n = 0;

    while (text < end) {
        size_t step;
        const uint32_t c = holmes_utf8_decode(text, &step);

        if (step == 0 || c >= 512 || l->byte_of[c] < 0)
            return -1;
        out[n++] = (char)(uint8_t)l->byte_of[c];
        text += step;
    }
    return n;
}

static uint32_t hash_bytes(const char *bytes, size_t len)
{
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)bytes[i]) * 1099511628211u;
    return bpe_hash(h);
}

/* The place in the table of the token that is these bytes, or where it would be. */
static int32_t *place_of(const struct loader *l, const char *bytes, size_t len)
{
    const struct holmes_bpe *b = l->b;

    for (uint32_t i = hash_bytes(bytes, len);; i++) {
        int32_t *at = &l->table[i & l->mask];

        if (*at < 0 ||
            ((size_t)b->lengths[*at] == len && memcmp(b->bytes + b->starts[*at], bytes, len) == 0))
            return at;
    }
}

/* --- vocab.json ------------------------------------------------------------------------------- */

/* The number of tokens and the room for their bytes; every number once, and none too high. */
static int measure_vocab(struct loader *l, json_t *o, size_t *room)
{
    const char *key;
    json_t *v;
    json_int_t most = -1;

    *room = 1;
    json_object_foreach(o, key, v)
    {
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

        if (id < 0 || id >= BPE_VOCAB_MAX)
            REFUSE(l, "%s: token \"%.40s\" has no number from 0 to %d", l->name, key,
                   BPE_VOCAB_MAX - 1);
        most = id > most ? id : most;
        *room += strlen(key);
    }
    if (most < 0)
        REFUSE(l, "%s has no tokens", l->name);
    if (*room > UINT32_MAX)
        REFUSE(l, "%s has %zu bytes of tokens; at most 2^32-1 are right", l->name, *room);
    l->b->vocab = (int)most + 1;
    return 0;
}

static int alloc_vocab(struct loader *l, size_t room)
{
    struct holmes_bpe *b = l->b;
    const size_t n = (size_t)b->vocab;
    size_t size = 512;

    while (size < 2 * n)
        size *= 2;
    l->mask = (uint32_t)size - 1;
    l->table = malloc(size * sizeof *l->table);
    b->bytes = malloc(room);
    b->starts = calloc(n, sizeof *b->starts);
    b->lengths = malloc(n * sizeof *b->lengths);
    b->special = calloc(n, sizeof *b->special);
    if (!l->table || !b->bytes || !b->starts || !b->lengths || !b->special) {
        snprintf(l->why, l->why_len, "out of memory");
        return -ENOMEM;
    }
    memset(l->table, 0xff, size * sizeof *l->table);
    memset(b->lengths, 0xff, n * sizeof *b->lengths);
    return 0;
}

static int take_token(struct loader *l, const char *key, int32_t id, uint32_t start)
{
    struct holmes_bpe *b = l->b;
    const size_t len = strlen(key);
    int64_t n = to_bytes(l, key, len, b->bytes + start);
    int32_t *at;

    if (b->lengths[id] >= 0)
        REFUSE(l, "%s: token \"%.40s\" has the number %d of another one", l->name, key, id);
    if (n < 0) { /* added by hand: never made by merges */
        memcpy(b->bytes + start, key, len);
        n = (int64_t)len;
        b->special[id] = true;
    }
    b->starts[id] = start;
    b->lengths[id] = (int32_t)n;
    if (b->special[id] || n == 0)
        return 0;
    at = place_of(l, b->bytes + start, (size_t)n);
    *at = id; /* no two keys stand for the same bytes */
    if (n == 1)
        b->of_byte[(uint8_t)b->bytes[start]] = id;
    return 0;
}

static int take_vocab(struct loader *l, json_t *o)
{
    const char *key;
    json_t *v;
    uint32_t start = 0;
    size_t room;
    int rc = measure_vocab(l, o, &room);

    if (rc == 0)
        rc = alloc_vocab(l, room);
    if (rc != 0)
        return rc;
    memset(l->b->of_byte, 0xff, sizeof l->b->of_byte);
    json_object_foreach(o, key, v)
    {
        const int32_t id = (int32_t)json_integer_value(v);

        rc = take_token(l, key, id, start);
        if (rc != 0)
            return rc;
        start += (uint32_t)l->b->lengths[id];
    }
    for (int byte = 0; byte < 256; byte++)
        if (l->b->of_byte[byte] < 0)
            REFUSE(l, "%s: byte 0x%02x is no token; a vocabulary of byte-level BPE has all 256",
                   l->name, byte);
    return 0;
}

static int parse_vocab(struct loader *l, const void *bytes, size_t size)
{
    json_error_t error;
    json_t *o = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &error);
    int rc = -EINVAL;

    if (!o)
        snprintf(l->why, l->why_len, "%s: line %d: %s", l->name, error.line, error.text);
    else if (!json_is_object(o))
        snprintf(l->why, l->why_len, "%s: an object of JSON, tokens and their numbers, is right",
                 l->name);
    else
        rc = take_vocab(l, o);
    json_decref(o);
    return rc;
}

/* --- merges.txt ------------------------------------------------------------------------------- */

/* Number of the token that is the `n` bytes at `bytes`. */
static int32_t token_of(const struct loader *l, const char *bytes, int64_t n)
{
    return n > 0 ? *place_of(l, bytes, (size_t)n) : -1;
}

static int add_merge(struct loader *l, uint64_t pair, int32_t rank, int32_t id, size_t line)
{
    struct holmes_bpe *b = l->b;

    for (uint32_t i = bpe_hash(pair);; i++) {
        struct bpe_merge *m = &b->merges[i & b->merges_mask];

        if (m->id >= 0 && m->pair == pair)
            REFUSE(l, "%s: line %zu has the pair of merge %d again", l->name, line, m->rank + 1);
        if (m->id >= 0)
            continue;
        *m = (struct bpe_merge){pair, rank, id};
        return 0;
    }
}

/* `text` has a zero behind; `bytes` has as much room. */
static int take_merge(struct loader *l, char *text, char *bytes, size_t line, int32_t rank)
{
    char *blank = strchr(text, ' ');
    int32_t left, right, both;
    int64_t n, m;

    if (!blank || blank == text || !blank[1] || strchr(blank + 1, ' '))
        REFUSE(l, "%s: line %zu is \"%.60s\"; two tokens with a blank between are right", l->name,
               line, text);
    *blank = '\0';
    n = to_bytes(l, text, (size_t)(blank - text), bytes);
    left = token_of(l, bytes, n);
    if (left < 0)
        REFUSE(l, "%s: line %zu: \"%.60s\" is no token of the vocabulary", l->name, line, text);
    m = to_bytes(l, blank + 1, strlen(blank + 1), bytes + n);
    right = token_of(l, bytes + n, m);
    if (right < 0)
        REFUSE(l, "%s: line %zu: \"%.60s\" is no token of the vocabulary", l->name, line,
               blank + 1);
    both = token_of(l, bytes, n + m);
    if (both < 0)
        REFUSE(l, "%s: line %zu: \"%.60s%.60s\", what it makes, is no token of the vocabulary",
               l->name, line, text, blank + 1);
    return add_merge(l, bpe_pair_of(left, right), rank, both, line);
}

static int alloc_merges(struct loader *l, const char *text, size_t size)
{
    struct holmes_bpe *b = l->b;
    size_t lines = 1, places = 16;

    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    if (lines > BPE_VOCAB_MAX)
        REFUSE(l, "%s has %zu lines; at most %d are right", l->name, lines, BPE_VOCAB_MAX);
    while (places < 2 * lines)
        places *= 2;
    b->merges = malloc(places * sizeof *b->merges);
    if (!b->merges) {
        snprintf(l->why, l->why_len, "out of memory");
        return -ENOMEM;
    }
    memset(b->merges, 0xff, places * sizeof *b->merges);
    b->merges_mask = (uint32_t)places - 1;
    return 0;
}

static int parse_merges(struct loader *l, const char *text, size_t size)
{
    char *copy = malloc(2 * size + 2), *bytes, *next;
    int32_t rank = 0;
    size_t line = 1;
    int rc = alloc_merges(l, text, size);

    if (rc == 0 && !copy) {
        snprintf(l->why, l->why_len, "out of memory");
        rc = -ENOMEM;
    }
    if (rc == 0 && memchr(text, '\0', size)) {
        snprintf(l->why, l->why_len, "%s has a zero byte; text is right", l->name);
        rc = -EINVAL;
    }
    if (rc != 0)
        goto done;
    memcpy(copy, text, size);
    copy[size] = '\0';
    bytes = copy + size + 1;
    for (char *at = copy; at && rc == 0; at = next, line++) {
        next = strchr(at, '\n');
        if (next)
            *next++ = '\0';
        at[strcspn(at, "\r")] = '\0';
        if (*at && !(line == 1 && strncmp(at, "#version", 8) == 0))
            rc = take_merge(l, at, bytes, line, rank++);
    }
done:
    free(copy);
    return rc;
}

/* --- all of it -------------------------------------------------------------------------------- */

/* White_Space of Unicode; PCRE's own \s has U+180E too, which is none since Unicode 6.3. */
#define SPACES                                                                                     \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"        \
    "\\x{205f}\\x{3000}"

static int compile_pattern(struct loader *l)
{
    static const char pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                                  " ?[^" SPACES "\\p{L}\\p{N}]+|"
                                  "[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+";
    struct holmes_bpe *b = l->b;
    int error = 0;
    PCRE2_SIZE at = 0;

    b->pattern = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, NULL);
    if (b->pattern)
        b->match = pcre2_match_data_create(1, NULL);
    if (!b->match) {
        snprintf(l->why, l->why_len, "the pattern of words cannot be compiled: error %d of PCRE2",
                 error);
        return -ENOMEM;
    }
    pcre2_jit_compile(b->pattern, PCRE2_JIT_COMPLETE); /* slower where it cannot */
    return 0;
}

int holmes_bpe_parse(const char *vocab_name, const void *vocab, size_t vocab_size,
                     const char *merges_name, const void *merges, size_t merges_size,
                     struct holmes_bpe **out, char *why, size_t why_len)
{
    struct loader l = {.name = vocab_name, .why = why, .why_len = why_len};
    int rc;

    l.b = calloc(1, sizeof *l.b);
    if (!l.b) {
        snprintf(why, why_len, "out of memory");
        return -ENOMEM;
    }
    fill_alphabet(l.byte_of);
    rc = parse_vocab(&l, vocab, vocab_size);
    l.name = merges_name;
    if (rc == 0 && merges)
        rc = parse_merges(&l, merges, merges_size);
    if (rc == 0)
        rc = compile_pattern(&l);
    free(l.table);
    if (rc == 0)
        *out = l.b;
    else
        holmes_bpe_destroy(l.b);
    return rc;
}

int holmes_bpe_load(const char *vocab_path, const char *merges_path, struct holmes_bpe **out,
                    char *why, size_t why_len)
{
    struct holmes_filemap vocab = {0}, merges = {0};
    int rc = holmes_filemap_open(vocab_path, &vocab, why, why_len);

    if (rc == 0 && merges_path)
        rc = holmes_filemap_open(merges_path, &merges, why, why_len);
    if (rc == 0)
        rc = holmes_bpe_parse(vocab_path, vocab.bytes, vocab.size, merges_path, merges.bytes,
                              merges.size, out, why, why_len);
    holmes_filemap_close(&vocab);
    holmes_filemap_close(&merges);
    return rc;
}
