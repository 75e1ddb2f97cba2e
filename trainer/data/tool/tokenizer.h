/* The tokenizers of holmes-data behind one face. */
#ifndef HOLMES_TOKENIZER_H
#define HOLMES_TOKENIZER_H

#include "bpe.h"

struct holmes_tokenizer {
    const char *name;       /* "byte" or "gpt2" */
    struct holmes_bpe *bpe; /* NULL: bytes are tokens */
    int vocab;
    int32_t eod; /* ends documents; -1: none */
};

struct holmes_tokenizer_files {
    const char *name;                    /* NULL: gpt2 if there is a vocab_file, else byte */
    const char *vocab_file, *merge_file; /* of gpt2; merge_file is needed to encode only */
    const char *eod_token;
};

/* With want_eod documents are to be ended: byte has 256 for it, gpt2 the token eod_token. -EINVAL
 * or -errno with a sentence. */
int holmes_tokenizer_open(struct holmes_tokenizer *t, const struct holmes_tokenizer_files *f,
                          bool encode, bool want_eod, char *why, size_t why_len);
void holmes_tokenizer_close(struct holmes_tokenizer *t); /* of a zeroed one: nothing */

/* As holmes_bpe_encode; bytes need not be UTF-8 to be byte tokens. */
int holmes_tokenizer_encode(struct holmes_tokenizer *t, const char *text, size_t len,
                            bool keep_invalid, struct holmes_ids *ids, size_t *bad);
/* Bytes of a token, none for eod; valid until the next call. NULL: there is no such token. */
const char *holmes_tokenizer_text(struct holmes_tokenizer *t, int64_t id, size_t *len);

#endif
