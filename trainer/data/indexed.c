/* Reads an index field by field; nothing is believed before it was held against the sizes of the
 * two files. */
#include "indexed.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return -EINVAL;                                                                            \
    } while (0)

static const struct {
    const char *name;
    size_t size; /* 0: no type of tokens */
    int64_t max;
} types[] = {
    [HOLMES_TOKEN_UINT8] = {"uint8", 1, UINT8_MAX},
    [HOLMES_TOKEN_INT8] = {"int8", 1, INT8_MAX},
    [HOLMES_TOKEN_INT16] = {"int16", 2, INT16_MAX},
    [HOLMES_TOKEN_INT32] = {"int32", 4, INT32_MAX},
    [HOLMES_TOKEN_INT64] = {"int64", 8, INT64_MAX},
    [6] = {"float64", 0, 0},
    [7] = {"float32", 0, 0},
    [HOLMES_TOKEN_UINT16] = {"uint16", 2, UINT16_MAX},
};
#define NTYPES (sizeof types / sizeof *types)

size_t holmes_token_size(enum holmes_token_type t)
{
    return (unsigned)t < NTYPES ? types[t].size : 0;
}

const char *holmes_token_type_name(unsigned code)
{
    return code < NTYPES ? types[code].name : NULL;
}

int64_t holmes_token_max(enum holmes_token_type t)
{
    return types[t].max;
}

int holmes_token_type_parse(const char *name, enum holmes_token_type *out)
{
    for (unsigned i = 1; i < NTYPES; i++) {
        if (types[i].size > 0 && strcmp(types[i].name, name) == 0) {
            *out = (enum holmes_token_type)i;
            return 0;
        }
    }
    return -EINVAL;
}

static uint64_t u64_at(const uint8_t *bytes, uint64_t i)
{
    uint64_t v;

    memcpy(&v, bytes + 8 * i, sizeof v);
    return le64toh(v);
}

static int32_t i32_at(const uint8_t *bytes, uint64_t i)
{
    uint32_t v;

    memcpy(&v, bytes + 4 * i, sizeof v);
    return (int32_t)le32toh(v);
}

static uint16_t u16_at(const uint8_t *bytes, uint64_t i)
{
    uint16_t v;

    memcpy(&v, bytes + 2 * i, sizeof v);
    return le16toh(v);
}

int64_t holmes_tokens_at(const struct holmes_tokens *t, uint64_t i)
{
    switch (t->type) {
    case HOLMES_TOKEN_UINT8:
        return t->bytes[i];
    case HOLMES_TOKEN_INT8:
        return (int8_t)t->bytes[i];
    case HOLMES_TOKEN_INT16:
        return (int16_t)u16_at(t->bytes, i);
    case HOLMES_TOKEN_UINT16:
        return u16_at(t->bytes, i);
    case HOLMES_TOKEN_INT32:
        return i32_at(t->bytes, i);
    case HOLMES_TOKEN_INT64:
        return (int64_t)u64_at(t->bytes, i);
    }
    return -1;
}

int holmes_tokens_read(const struct holmes_tokens *t, uint64_t first, size_t n, int vocab,
                       int32_t *out, uint64_t *bad)
{
    if (first > t->count || n > t->count - first)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        const int64_t token = holmes_tokens_at(t, first + i);

        if (token < 0 || token >= vocab) {
            *bad = first + i;
            return -ERANGE;
        }
        out[i] = (int32_t)token;
    }
    return 0;
}

static int parse_header(const char *name, const uint8_t *bytes, size_t size,
                        struct holmes_indexed *x, char *why, size_t why_len)
{
    uint64_t version, entries;
    unsigned code;

    if (size < HOLMES_INDEX_HEADER)
        REFUSE("%s has %zu bytes; an index has %d at least", name, size, HOLMES_INDEX_HEADER);
    if (memcmp(bytes, HOLMES_INDEX_MAGIC, HOLMES_INDEX_MAGIC_SIZE) != 0)
        REFUSE("%s is no index: it does not begin with MMIDIDX", name);
    version = u64_at(bytes + 9, 0);
    if (version != 1)
        REFUSE("%s: version is %" PRIu64 "; 1 is right", name, version);
    code = bytes[17];
    if (!holmes_token_type_name(code))
        REFUSE("%s: code of the token type is %u; 1 to 5 or 8 is right", name, code);
    x->tokens.type = (enum holmes_token_type)code;
    x->item = holmes_token_size(x->tokens.type);
    if (x->item == 0)
        REFUSE("%s: code of the token type is %u, %s, which is no type of tokens; uint8, int8, "
               "int16, int32, int64 or uint16 is right",
               name, code, holmes_token_type_name(code));
    x->sequences = u64_at(bytes + 18, 0);
    entries = u64_at(bytes + 26, 0);
    if (x->sequences < 1)
        REFUSE("%s: number of sequences is 0; 1 at least is right", name);
    if (entries < 2)
        REFUSE("%s: entries of the document index are %" PRIu64 "; 2 at least are right", name,
               entries);
    if (x->sequences > size / 12)
        REFUSE("%s: number of sequences is %" PRIu64 ", but %zu bytes have place for %zu at most",
               name, x->sequences, size, (size - HOLMES_INDEX_HEADER) / 12);
    if (entries > size / 8)
        REFUSE("%s: entries of the document index are %" PRIu64
               ", but %zu bytes have place for %zu at most",
               name, entries, size, (size - HOLMES_INDEX_HEADER) / 8);
    x->documents = entries - 1;
    return 0;
}

/* Lengths and pointers; the tokens' number comes out. */
static int check_sequences(const char *name, struct holmes_indexed *x, char *why, size_t why_len)
{
    uint64_t at = 0; /* no overflow: below 2^31 times fewer sequences than the file has bytes */

    for (uint64_t s = 0; s < x->sequences; s++) {
        const int32_t length = i32_at(x->lengths, s);
        const int64_t pointer = (int64_t)u64_at(x->pointers, s);

        if (length < 0)
            REFUSE("%s: length of sequence %" PRIu64 " is %" PRId32 "; 0 or more is right", name, s,
                   length);
        if (pointer < 0 || (uint64_t)pointer != at)
            REFUSE("%s: pointer of sequence %" PRIu64 " is %" PRId64 "; %" PRIu64
                   ", the end of the one before it, is right",
                   name, s, pointer, at);
        at += (uint64_t)length * x->item;
    }
    x->tokens.count = at / x->item;
    return 0;
}

static int check_documents(const char *name, const struct holmes_indexed *x, char *why,
                           size_t why_len)
{
    uint64_t before = 0;

    for (uint64_t d = 0; d <= x->documents; d++) {
        const uint64_t first = u64_at(x->starts, d);

        if (d == 0 && first != 0)
            REFUSE("%s: document 0 begins with sequence %" PRId64 "; 0 is right", name,
                   (int64_t)first);
        if (first < before || first > x->sequences)
            REFUSE("%s: entry %" PRIu64 " of the document index is %" PRId64 "; %" PRIu64
                   " to %" PRIu64 " is right",
                   name, d, (int64_t)first, before, x->sequences);
        before = first;
    }
    if (before != x->sequences)
        REFUSE("%s: the document index ends with %" PRIu64 "; %" PRIu64
               ", the number of sequences, is right",
               name, before, x->sequences);
    return 0;
}

int holmes_indexed_parse(const char *name, const uint8_t *bytes, size_t size, uint64_t bin_size,
                         struct holmes_indexed *out, char *why, size_t why_len)
{
    struct holmes_indexed x = {0};
    uint64_t need;
    int rc = parse_header(name, bytes, size, &x, why, why_len);

    if (rc != 0)
        return rc;
    need = HOLMES_INDEX_HEADER + 12 * x.sequences + 8 * (x.documents + 1);
    if (size != need && size != need + x.sequences)
        REFUSE("%s has %zu bytes; with %" PRIu64 " sequences and %" PRIu64
               " entries of the document index %" PRIu64 " are right, or %" PRIu64 " with modes",
               name, size, x.sequences, x.documents + 1, need, need + x.sequences);
    x.lengths = bytes + HOLMES_INDEX_HEADER;
    x.pointers = x.lengths + 4 * x.sequences;
    x.starts = x.pointers + 8 * x.sequences;
    x.modes = size > need ? x.starts + 8 * (x.documents + 1) : NULL;
    rc = check_sequences(name, &x, why, why_len);
    if (rc == 0)
        rc = check_documents(name, &x, why, why_len);
    if (rc != 0)
        return rc;
    need = x.tokens.count * x.item;
    if (bin_size != need)
        REFUSE("%s lists %" PRIu64 " tokens of type %s, %" PRIu64
               " bytes, but its .bin has %" PRIu64 ": they are not of one make",
               name, x.tokens.count, holmes_token_type_name(x.tokens.type), need, bin_size);
    *out = x;
    return 0;
}

int holmes_indexed_open(const char *prefix, struct holmes_indexed *out, char *why, size_t why_len)
{
    char path[PATH_MAX];
    struct holmes_filemap idx = {0}, bin = {0};
    int rc;

    if (strlen(prefix) + sizeof ".idx" > sizeof path) {
        snprintf(why, why_len, "a path of %zu characters is too long", strlen(prefix));
        return -ENAMETOOLONG;
    }
    snprintf(path, sizeof path, "%s.bin", prefix);
    rc = holmes_filemap_open(path, &bin, why, why_len);
    snprintf(path, sizeof path, "%s.idx", prefix);
    if (rc == 0)
        rc = holmes_filemap_open(path, &idx, why, why_len);
    if (rc == 0)
        rc = holmes_indexed_parse(path, idx.bytes, idx.size, bin.size, out, why, why_len);
    if (rc != 0) {
        holmes_filemap_close(&idx);
        holmes_filemap_close(&bin);
        return rc;
    }
    out->idx = idx;
    out->bin = bin;
    out->tokens.bytes = bin.bytes;
    return 0;
}

void holmes_indexed_close(struct holmes_indexed *x)
{
    holmes_filemap_close(&x->idx);
    holmes_filemap_close(&x->bin);
    *x = (struct holmes_indexed){0};
}

uint64_t holmes_indexed_start(const struct holmes_indexed *x, uint64_t d)
{
    const uint64_t sequence = u64_at(x->starts, d);

    if (sequence >= x->sequences)
        return x->tokens.count;
    return u64_at(x->pointers, sequence) / x->item;
}

uint64_t holmes_indexed_document(const struct holmes_indexed *x, uint64_t i)
{
    uint64_t low = 0, high = x->documents; /* the last document that begins at i or before */

    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;

        if (holmes_indexed_start(x, middle) <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}
