/* vocab.json, a zero byte, merges.txt, a zero byte, text: what is accepted encodes the text, and
 * the tokens are the text again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Takes what lies before the next zero. */
static const char *part(const uint8_t **data, size_t *size, size_t *len)
{
    const char *start = (const char *)*data;
    const char *zero = *size ? memchr(start, '\0', *size) : NULL;

    *len = zero ? (size_t)(zero - start) : *size;
    *data += *len + (zero != NULL);
    *size -= *len + (zero != NULL);
    return start;
}

static void there_and_back(struct holmes_bpe *b, const char *text, size_t len)
{
    struct holmes_ids ids = {0};
    size_t bad = 0, at = 0, n;

    if (holmes_bpe_encode(b, text, len, true, &ids, &bad) != 0)
        __builtin_trap();
    for (size_t i = 0; i < ids.count; i++) {
        const char *bytes = holmes_bpe_token(b, ids.at[i], &n);

        if (!bytes || n > len - at || memcmp(bytes, text + at, n) != 0)
            __builtin_trap();
        at += n;
    }
    if (at != len)
        __builtin_trap();
    holmes_ids_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_bpe *b = NULL;
    char why[400] = "";
    size_t vocab_len, merges_len;
    const char *vocab = part(&data, &size, &vocab_len);
    const char *merges = part(&data, &size, &merges_len);

    if (holmes_bpe_parse("vocab.json", vocab, vocab_len, "merges.txt", merges, merges_len, &b, why,
                         sizeof why) != 0) {
        if (!why[0])
            __builtin_trap();
        return 0;
    }
    there_and_back(b, (const char *)data, size);
    holmes_bpe_destroy(b);
    return 0;
}
