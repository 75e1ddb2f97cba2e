/* Bytes, or byte-level BPE. */
#include "tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return -EINVAL;                                                                            \
    } while (0)

static int open_bpe(struct holmes_tokenizer *t, const struct holmes_tokenizer_files *f, bool encode,
                    bool want_eod, char *why, size_t why_len)
{
    int rc;

    if (!f->vocab_file || (encode && !f->merge_file))
        REFUSE("--tokenizer gpt2 needs --vocab-file vocab.json%s",
               encode ? " and --merge-file merges.txt" : "");
    rc = holmes_bpe_load(f->vocab_file, encode ? f->merge_file : NULL, &t->bpe, why, why_len);
    if (rc != 0)
        return rc;
    t->vocab = holmes_bpe_vocab(t->bpe);
    t->eod = holmes_bpe_find(t->bpe, f->eod_token);
    if (want_eod && t->eod < 0)
        REFUSE("%s has no token \"%s\" to end documents with: --eod-token names another one",
               f->vocab_file, f->eod_token);
    return 0;
}

int holmes_tokenizer_open(struct holmes_tokenizer *t, const struct holmes_tokenizer_files *f,
                          bool encode, bool want_eod, char *why, size_t why_len)
{
    const char *name = f->name ? f->name : f->vocab_file ? "gpt2" : "byte";

    *t = (struct holmes_tokenizer){.name = name, .vocab = want_eod ? 257 : 256, .eod = -1};
    if (strcmp(name, "byte") == 0) {
        if (f->vocab_file || f->merge_file)
            REFUSE("--tokenizer byte has no files: leave out --vocab-file and --merge-file");
        t->eod = want_eod ? 256 : -1;
        return 0;
    }
    if (strcmp(name, "gpt2") != 0)
        REFUSE("--tokenizer \"%s\": byte or gpt2 is right", name);
    return open_bpe(t, f, encode, want_eod, why, why_len);
}

void holmes_tokenizer_close(struct holmes_tokenizer *t)
{
    holmes_bpe_destroy(t->bpe);
    *t = (struct holmes_tokenizer){0};
}

int holmes_tokenizer_encode(struct holmes_tokenizer *t, const char *text, size_t len,
                            bool keep_invalid, struct holmes_ids *ids, size_t *bad)
{
    int rc = 0;

    if (t->bpe)
        return holmes_bpe_encode(t->bpe, text, len, keep_invalid, ids, bad);
    for (size_t i = 0; i < len && rc == 0; i++)
        rc = holmes_ids_push(ids, (uint8_t)text[i]);
    return rc;
}

const char *holmes_tokenizer_text(struct holmes_tokenizer *t, int64_t id, size_t *len)
{
    static char byte;

    if (id >= 0 && id == t->eod) {
        *len = 0;
        return "";
    }
    if (t->bpe)
        return holmes_bpe_token(t->bpe, id, len);
    if (id < 0 || id >= 256)
        return NULL;
    byte = (char)id;
    *len = 1;
    return &byte;
}
