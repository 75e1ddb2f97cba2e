/* holmes-data decode: tokens back into text. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "datanote.h"
#include "indexed.h"
#include "tokenizer.h"

enum { KEY_TOKENIZER = 1000, KEY_VOCAB, KEY_EOD_TOKEN, KEY_DOCUMENT, KEY_JSON };

struct decode {
    const char *prefix, *document;
    struct holmes_tokenizer_files files;
    bool json;

    struct holmes_indexed data;
    struct holmes_tokenizer tokenizer;
    char *text; /* of a document */
    size_t len, room;
    char why[600];
};

static const struct argp_option options[] = {
    {"tokenizer", KEY_TOKENIZER, "byte|gpt2", 0, "(what PREFIX.json says)", 1},
    {"vocab-file", KEY_VOCAB, "FILE", 0, "vocab.json that gpt2 encoded with", 1},
    {"eod-token", KEY_EOD_TOKEN, "TOKEN", 0, "ends documents, is not printed (<|endoftext|>)", 1},
    {"document", KEY_DOCUMENT, "N", 0, "only document N, counted from 0", 2},
    {"json", KEY_JSON, NULL, 0,
     "a line of JSON for each document, as encode --documents json reads it", 2},
    {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct decode *d = state->input;

    switch (key) {
    case KEY_TOKENIZER:
        d->files.name = arg;
        break;
    case KEY_VOCAB:
        d->files.vocab_file = arg;
        break;
    case KEY_EOD_TOKEN:
        d->files.eod_token = arg;
        break;
    case KEY_DOCUMENT:
        d->document = arg;
        break;
    case KEY_JSON:
        d->json = true;
        break;
    case ARGP_KEY_ARG:
        if (d->prefix)
            argp_error(state, "one PREFIX is right");
        d->prefix = arg;
        break;
    case ARGP_KEY_END:
        if (!d->prefix)
            argp_error(state, "PREFIX is missing");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* What the note says, unless the options do. */
static int open_tokenizer(struct decode *d)
{
    struct holmes_datanote note = {.eod = -1};
    char path[PATH_MAX], why[400] = "";
    bool want_eod = false;
    int rc;

    snprintf(path, sizeof path, "%s.json", d->prefix);
    rc = holmes_datanote_read(path, &note, why, sizeof why);
    if (rc != 0 && rc != -ENOENT) {
        snprintf(d->why, sizeof d->why, "%s", why);
        return rc;
    }
    if (rc == 0) {
        want_eod = note.eod >= 0 && strcmp(note.tokenizer, "byte") == 0;
        if (!d->files.name)
            d->files.name = strcmp(note.tokenizer, "gpt2") == 0 ? "gpt2" : "byte";
    } else if (!d->files.name && !d->files.vocab_file) {
        snprintf(d->why, sizeof d->why, "%s: --tokenizer says what made the tokens", why);
        return rc;
    }
    return holmes_tokenizer_open(&d->tokenizer, &d->files, false, want_eod, d->why, sizeof d->why);
}

static int append(struct decode *d, const char *bytes, size_t n)
{
    if (d->room - d->len < n) {
        const size_t more = 2 * (d->len + n);
        char *text = realloc(d->text, more);

        if (!text) {
            snprintf(d->why, sizeof d->why, "out of memory");
            return -ENOMEM;
        }
        d->text = text;
        d->room = more;
    }
    if (n > 0)
        memcpy(d->text + d->len, bytes, n);
    d->len += n;
    return 0;
}

static int write_document(struct decode *d, uint64_t number)
{
    json_t *o;
    int rc = 0;

    if (!d->json) {
        if (fwrite(d->text, 1, d->len, stdout) != d->len)
            rc = -EIO;
    } else {
        o = json_pack("{s:s%}", "text", d->len ? d->text : "", d->len);
        if (!o) {
            snprintf(d->why, sizeof d->why,
                     "document %" PRIu64 " is no UTF-8, and JSON holds nothing else", number);
            return -EILSEQ;
        }
        if (json_dumpf(o, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF)
            rc = -EIO;
        json_decref(o);
    }
    if (rc != 0)
        snprintf(d->why, sizeof d->why, "stdout: %s", strerror(errno));
    return rc;
}

static int decode_document(struct decode *d, uint64_t number)
{
    const uint64_t first = holmes_indexed_start(&d->data, number);
    const uint64_t end = holmes_indexed_start(&d->data, number + 1);

    d->len = 0;
    for (uint64_t i = first; i < end; i++) {
        const int64_t token = holmes_tokens_at(&d->data.tokens, i);
        size_t len = 0;
        const char *text = holmes_tokenizer_text(&d->tokenizer, token, &len);
        int rc;

        if (!text) {
            snprintf(d->why, sizeof d->why,
                     "%s.bin: token %" PRIu64 " of document %" PRIu64 " is %" PRId64
                     ", which the tokenizer %s does not have",
                     d->prefix, i - first, number, token, d->tokenizer.name);
            return -EINVAL;
        }
        rc = append(d, text, len);
        if (rc != 0)
            return rc;
    }
    return write_document(d, number);
}

static int run(struct decode *d)
{
    uint64_t from = 0, to;
    char *end;
    int rc = holmes_indexed_open(d->prefix, &d->data, d->why, sizeof d->why);

    if (rc == 0)
        rc = open_tokenizer(d);
    if (rc != 0)
        return rc;
    to = d->data.documents;
    if (d->document) {
        errno = 0;
        from = strtoull(d->document, &end, 10);
        if (*d->document < '0' || *d->document > '9' || *end || errno || from >= to) {
            snprintf(d->why, sizeof d->why, "--document \"%s\": 0 to %" PRIu64 " is right",
                     d->document, to - 1);
            return -EINVAL;
        }
        to = from + 1;
    }
    for (; from < to && rc == 0; from++)
        rc = holmes_data_signal ? -EINTR : decode_document(d, from);
    if (rc == 0 && fflush(stdout) != 0) {
        snprintf(d->why, sizeof d->why, "stdout: %s", strerror(errno));
        rc = -EIO;
    }
    return rc;
}

int holmes_data_decode(int argc, char **argv)
{
    static const char doc[] =
        "Prints the text of PREFIX.bin and PREFIX.idx, document after document, with nothing "
        "between them.";
    const struct argp argp = {options, parse_option, "PREFIX", doc};
    struct decode d = {.files.eod_token = "<|endoftext|>"};
    char name[] = "holmes-data decode";
    int rc;

    argv[0] = name;
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &d);
    rc = run(&d);
    holmes_tokenizer_close(&d.tokenizer);
    holmes_indexed_close(&d.data);
    free(d.text);
    return rc == 0 ? 0 : holmes_data_fail(rc, d.why);
}
