/* An index with its tokens, and a note: what is accepted can be read to the last token. The first
 * two bytes tell how many of the rest are PREFIX.bin. */
#include <errno.h>
#include <stdio.h>

#include "datanote.h"
#include "indexed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const struct holmes_indexed *x)
{
    uint64_t before = 0, bad = 0;
    int32_t token;

    for (uint64_t d = 0; d <= x->documents; d++) {
        const uint64_t start = holmes_indexed_start(x, d);

        if (start < before || start > x->tokens.count)
            __builtin_trap();
        before = start;
    }
    if (before != x->tokens.count || holmes_indexed_start(x, 0) != 0)
        __builtin_trap();
    for (uint64_t i = 0; i < x->tokens.count; i++) {
        const uint64_t d = holmes_indexed_document(x, i);
        const int rc = holmes_tokens_read(&x->tokens, i, 1, 300, &token, &bad);

        if (holmes_indexed_start(x, d) > i || holmes_indexed_start(x, d + 1) <= i)
            __builtin_trap();
        if (rc == 0 ? token < 0 || token >= 300 : rc != -ERANGE || bad != i)
            __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_indexed x;
    struct holmes_datanote note;
    char why[300] = "";
    size_t bin;

    if (holmes_datanote_parse("x.json", data, size, &note, why, sizeof why) != 0 && !why[0])
        __builtin_trap();
    if (size < 2)
        return 0;
    bin = data[0] | (size_t)data[1] << 8;
    bin = bin < size - 2 ? bin : size - 2;
    why[0] = '\0';
    if (holmes_indexed_parse("x.idx", data + 2 + bin, size - 2 - bin, bin, &x, why, sizeof why) !=
        0) {
        if (!why[0])
            __builtin_trap();
        return 0;
    }
    x.tokens.bytes = data + 2;
    read_all(&x);
    return 0;
}
