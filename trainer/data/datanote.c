/* The note as JSON, both ways. */
#include "datanote.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "filemap.h"

#define VOCAB_MAX (1 << 20) /* as in model.c */

/* A whole number from `least` to `most` under `key`. */
static int take(const char *name, const json_t *o, const char *key, int64_t least, int64_t most,
                int64_t *out, char *why, size_t why_len)
{
    const json_t *v = json_object_get(o, key);

    if (json_is_integer(v) && json_integer_value(v) >= least && json_integer_value(v) <= most) {
        *out = json_integer_value(v);
        return 0;
    }
    if (json_is_integer(v))
        snprintf(why, why_len,
                 "%s: \"%s\" is %" JSON_INTEGER_FORMAT "; %" PRId64 " to %" PRId64 " is right",
                 name, key, json_integer_value(v), least, most);
    else
        snprintf(why, why_len, "%s: \"%s\" is %s; a whole number from %" PRId64 " is right", name,
                 key, v ? "something else" : "missing", least);
    return -EINVAL;
}

static int from_object(const char *name, const json_t *o, struct holmes_datanote *out, char *why,
                       size_t why_len)
{
    const char *tokenizer = json_string_value(json_object_get(o, "tokenizer"));
    int64_t version, vocab, eod = -1, documents, tokens, text_bytes;
    int rc = take(name, o, "version", 1, 1, &version, why, why_len);

    if (rc == 0)
        rc = take(name, o, "vocab", 2, VOCAB_MAX, &vocab, why, why_len);
    if (rc == 0 && !json_is_null(json_object_get(o, "eod")))
        rc = take(name, o, "eod", 0, vocab - 1, &eod, why, why_len);
    if (rc == 0)
        rc = take(name, o, "documents", 1, INT64_MAX, &documents, why, why_len);
    if (rc == 0)
        rc = take(name, o, "tokens", 1, INT64_MAX, &tokens, why, why_len);
    if (rc == 0)
        rc = take(name, o, "text_bytes", 0, INT64_MAX, &text_bytes, why, why_len);
    if (rc != 0)
        return rc;
    if (!tokenizer || !*tokenizer || strlen(tokenizer) >= sizeof out->tokenizer) {
        snprintf(why, why_len, "%s: \"tokenizer\" is no name of 1 to %zu characters", name,
                 sizeof out->tokenizer - 1);
        return -EINVAL;
    }
    *out = (struct holmes_datanote){.vocab = (int)vocab,
                                    .eod = eod,
                                    .documents = (uint64_t)documents,
                                    .tokens = (uint64_t)tokens,
                                    .text_bytes = (uint64_t)text_bytes};
    snprintf(out->tokenizer, sizeof out->tokenizer, "%s", tokenizer);
    return 0;
}

int holmes_datanote_parse(const char *name, const void *bytes, size_t size,
                          struct holmes_datanote *out, char *why, size_t why_len)
{
    json_error_t error;
    json_t *o = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &error);
    int rc = -EINVAL;

    if (!o)
        snprintf(why, why_len, "%s: line %d: %s", name, error.line, error.text);
    else if (!json_is_object(o))
        snprintf(why, why_len, "%s: an object of JSON is right", name);
    else
        rc = from_object(name, o, out, why, why_len);
    json_decref(o);
    return rc;
}

int holmes_datanote_read(const char *path, struct holmes_datanote *out, char *why, size_t why_len)
{
    struct holmes_filemap m = {0};
    int rc = holmes_filemap_open(path, &m, why, why_len);

    if (rc == 0)
        rc = holmes_datanote_parse(path, m.bytes, m.size, out, why, why_len);
    holmes_filemap_close(&m);
    return rc;
}

char *holmes_datanote_text(const struct holmes_datanote *n)
{
    json_t *eod = n->eod >= 0 ? json_integer(n->eod) : json_null();
    json_t *o =
        json_pack("{s:i, s:s, s:i, s:o, s:I, s:I, s:I}", "version", 1, "tokenizer", n->tokenizer,
                  "vocab", n->vocab, "eod", eod, "documents", (json_int_t)n->documents, "tokens",
                  (json_int_t)n->tokens, "text_bytes", (json_int_t)n->text_bytes);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;

    json_decref(o);
    return text;
}
