/* PREFIX.json: what holmes-data notes beside PREFIX.bin and PREFIX.idx about the tokens in them.
 * Megatron-LM does not read it. */
#ifndef HOLMES_DATANOTE_H
#define HOLMES_DATANOTE_H

#include <stddef.h>
#include <stdint.h>

struct holmes_datanote {
    char tokenizer[32]; /* "byte", "gpt2" */
    int vocab;          /* tokens are below it */
    int64_t eod;        /* token that ends documents; -1: there is none */
    uint64_t documents, tokens;
    uint64_t text_bytes; /* that were encoded */
};

/* 0; -ENOENT when there is no such file; -EINVAL, or -errno, with a sentence. */
int holmes_datanote_read(const char *path, struct holmes_datanote *out, char *why, size_t why_len);
/* The same from memory; `name` is for the sentence. */
int holmes_datanote_parse(const char *name, const void *bytes, size_t size,
                          struct holmes_datanote *out, char *why, size_t why_len);
/* The note as text, which the caller frees; NULL without memory. */
char *holmes_datanote_text(const struct holmes_datanote *n);

#endif
