/* holmes-data encode: documents into tokens into files. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "data.h"
#include "documents.h"
#include "index_write.h"
#include "progress.h"
#include "tokenizer.h"

enum {
    KEY_TOKENIZER = 1000,
    KEY_VOCAB,
    KEY_MERGES,
    KEY_DOCUMENTS,
    KEY_JSON_KEY,
    KEY_APPEND_EOD,
    KEY_EOD_TOKEN,
    KEY_DTYPE,
    KEY_INVALID,
    KEY_FORCE,
    KEY_JSON,
    KEY_QUIET
};

#define CHUNK (1 << 20) /* bytes of text between two looks at the clock */

struct encode {
    /* options */
    const char *prefix, *key;
    char **paths;
    int npaths;
    struct holmes_tokenizer_files files;
    const char *dtype;
    int form; /* -1: by the name of the file */
    bool append_eod, keep_invalid, force, json, quiet;
    /* work */
    struct holmes_tokenizer tokenizer;
    struct holmes_index_writer *writer;
    struct holmes_ids ids;
    struct holmes_progress progress;
    bool show;
    uint64_t started_ns, shown_bytes;
    uint64_t file_bytes; /* of files before this one */
    uint64_t text_bytes;
    char why[600];
};

static const char *const forms[] = {[HOLMES_DOCUMENTS_FILE] = "file",
                                    [HOLMES_DOCUMENTS_BLANK] = "blank",
                                    [HOLMES_DOCUMENTS_LINE] = "line",
                                    [HOLMES_DOCUMENTS_JSON] = "json"};

static const struct argp_option options[] = {
    {"output-prefix", 'o', "PREFIX", 0, "write PREFIX.bin, PREFIX.idx and PREFIX.json", 1},
    {"force", KEY_FORCE, NULL, 0, "replace files that are there", 1},
    {"tokenizer", KEY_TOKENIZER, "byte|gpt2", 0,
     "bytes as they are, or GPT-2's byte-level BPE (gpt2 if --vocab-file is given, else byte)", 2},
    {"vocab-file", KEY_VOCAB, "FILE", 0, "vocab.json: the tokens and their numbers", 2},
    {"merge-file", KEY_MERGES, "FILE", 0, "merges.txt: the pairs that are joined, in order", 2},
    {"invalid-utf8", KEY_INVALID, "refuse|keep", 0,
     "what gpt2 does with bytes that are no UTF-8 (refuse); kept, they come back with decode", 2},
    {"documents", KEY_DOCUMENTS, "file|blank|line|json", 0,
     "what a document is: a file; what lies between blank lines; a line; the text in a line of "
     "JSON (json for .jsonl and .json, else file)",
     3},
    {"json-key", KEY_JSON_KEY, "KEY", 0, "the text is under this key (text)", 3},
    {"append-eod", KEY_APPEND_EOD, NULL, 0,
     "end each document with a token: 256 for byte, --eod-token for gpt2", 3},
    {"eod-token", KEY_EOD_TOKEN, "TOKEN", 0, "(<|endoftext|>)", 3},
    {"dtype", KEY_DTYPE, "TYPE", 0,
     "auto, uint8, int8, int16, int32, int64 or uint16 (auto: as in Megatron-LM uint16 for a "
     "vocabulary below 65500, else int32)",
     4},
    {"json", KEY_JSON, NULL, 0, "say what was written as JSON", 4},
    {"quiet", KEY_QUIET, NULL, 0, "no progress bar", 4},
    {0}};

static int choice(struct argp_state *state, const char *option, const char *arg,
                  const char *const *names, int n, const char *right)
{
    for (int i = 0; i < n; i++)
        if (strcmp(arg, names[i]) == 0)
            return i;
    argp_error(state, "--%s \"%s\": %s is right", option, arg, right);
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    static const char *const invalid[] = {"refuse", "keep"};
    struct encode *e = state->input;

    switch (key) {
    case 'o':
        e->prefix = arg;
        break;
    case KEY_TOKENIZER:
        e->files.name = arg;
        break;
    case KEY_VOCAB:
        e->files.vocab_file = arg;
        break;
    case KEY_MERGES:
        e->files.merge_file = arg;
        break;
    case KEY_DOCUMENTS:
        e->form = choice(state, "documents", arg, forms, 4, "file, blank, line or json");
        break;
    case KEY_JSON_KEY:
        e->key = arg;
        break;
    case KEY_APPEND_EOD:
        e->append_eod = true;
        break;
    case KEY_EOD_TOKEN:
        e->files.eod_token = arg;
        break;
    case KEY_DTYPE:
        e->dtype = arg;
        break;
    case KEY_INVALID:
        e->keep_invalid = choice(state, "invalid-utf8", arg, invalid, 2, "refuse or keep") == 1;
        break;
    case KEY_FORCE:
        e->force = true;
        break;
    case KEY_JSON:
        e->json = true;
        break;
    case KEY_QUIET:
        e->quiet = true;
        break;
    case ARGP_KEY_ARGS:
        e->paths = state->argv + state->next;
        e->npaths = state->argc - state->next;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* --- before the work -------------------------------------------------------------------------- */

static int choose_type(struct encode *e, enum holmes_token_type *type)
{
    if (strcmp(e->dtype, "auto") == 0) {
        *type = e->tokenizer.vocab < 65500 ? HOLMES_TOKEN_UINT16 : HOLMES_TOKEN_INT32;
        return 0;
    }
    if (holmes_token_type_parse(e->dtype, type) != 0) {
        snprintf(e->why, sizeof e->why,
                 "--dtype \"%s\": auto, uint8, int8, int16, int32, int64 or uint16 is right",
                 e->dtype);
        return -EINVAL;
    }
    if (e->tokenizer.vocab - 1 > holmes_token_max(*type)) {
        snprintf(e->why, sizeof e->why,
                 "--dtype %s holds tokens to %" PRId64 "; this vocabulary has %d: auto is right",
                 e->dtype, holmes_token_max(*type), e->tokenizer.vocab);
        return -EINVAL;
    }
    return 0;
}

static int check_outputs(struct encode *e)
{
    static const char *const ends[] = {".idx", ".bin", ".json"};
    char path[PATH_MAX];

    for (int i = 0; i < 3 && !e->force; i++) {
        snprintf(path, sizeof path, "%s%s", e->prefix, ends[i]);
        if (access(path, F_OK) == 0) {
            snprintf(e->why, sizeof e->why, "%.500s is there already: --force replaces it", path);
            return -EINVAL;
        }
    }
    return 0;
}

/* 0 when it is not known, as of a pipe. */
static uint64_t total_bytes(const struct encode *e)
{
    uint64_t sum = 0;
    struct stat st;

    for (int i = 0; i < e->npaths; i++) {
        if (strcmp(e->paths[i], "-") == 0 || stat(e->paths[i], &st) != 0 || !S_ISREG(st.st_mode))
            return 0;
        sum += (uint64_t)st.st_size;
    }
    return sum;
}

/* --- the work --------------------------------------------------------------------------------- */

static double rate(const struct encode *e, uint64_t bytes)
{
    const double seconds = (double)(holmes_now_ns() - e->started_ns) / 1e9;

    return seconds > 0 ? (double)bytes / 1e6 / seconds : 0;
}

/* Where the first part of about CHUNK bytes ends: in front of white space behind a letter or a
 * sign, which is the end of a word of GPT-2's pattern whatever follows. */
static size_t cut(const char *text, size_t len)
{
    size_t at = CHUNK;

    if (len <= CHUNK)
        return len;
    while (at < len &&
           !((text[at] == ' ' || text[at] == '\n') && text[at - 1] > ' ' && text[at - 1] < 0x7f))
        at++;
    return at;
}

/* In parts, so that the bar moves and a signal is seen. *bad as of holmes_tokenizer_encode. */
static int encode_text(struct encode *e, const struct holmes_documents *d, const char *text,
                       size_t len, size_t *bad)
{
    size_t at = 0, n;
    int rc = 0;

    for (; at < len && rc == 0; at += n) {
        const uint64_t done = e->file_bytes + d->bytes - (len - at);

        n = cut(text + at, len - at);
        rc = holmes_tokenizer_encode(&e->tokenizer, text + at, n, e->keep_invalid, &e->ids, bad);
        *bad += at;
        if (rc == 0 && holmes_data_signal)
            rc = -EINTR;
        if (e->show && done >= e->shown_bytes + CHUNK) {
            e->shown_bytes = done;
            holmes_progress_update(&e->progress, done, "%.1f MB/s", rate(e, done));
        }
    }
    return rc;
}

static int encode_document(struct encode *e, const struct holmes_documents *d, const char *text,
                           size_t len)
{
    size_t bad = 0;
    int rc;

    e->ids.count = 0;
    rc = encode_text(e, d, text, len, &bad);
    if (rc == -EILSEQ) {
        char place[64] = "";

        if (d->lines > 0)
            snprintf(place, sizeof place, " that ends at line %" PRIu64, d->lines);
        snprintf(
            e->why, sizeof e->why,
            "%s: byte %zu (0x%02x) of the document%s is no UTF-8: --invalid-utf8 keep takes it "
            "as it is",
            d->path, bad, (unsigned char)text[bad], place);
    }
    /* Megatron-LM ends no document that has nothing in it. */
    if (rc == 0 && e->append_eod && e->ids.count > 0)
        rc = holmes_ids_push(&e->ids, e->tokenizer.eod);
    if (rc == -ENOMEM || rc == -EIO)
        snprintf(e->why, sizeof e->why, "%s: %s", d->path, strerror(-rc));
    if (rc != 0)
        return rc;
    e->text_bytes += len;
    return holmes_index_add(e->writer, e->ids.at, e->ids.count, e->why, sizeof e->why);
}

static enum holmes_documents_form form_of(const struct encode *e, const char *path)
{
    const char *dot = strrchr(path, '.');

    if (e->form >= 0)
        return (enum holmes_documents_form)e->form;
    return dot && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".json") == 0) ? HOLMES_DOCUMENTS_JSON
                                                                            : HOLMES_DOCUMENTS_FILE;
}

static int encode_file(struct encode *e, const char *path)
{
    struct holmes_documents d = {0};
    const char *text;
    size_t len;
    int rc = holmes_documents_open(&d, path, form_of(e, path), e->key, e->why, sizeof e->why);

    while (rc == 0) {
        rc = holmes_documents_next(&d, &text, &len, e->why, sizeof e->why);
        if (rc >= 0 && holmes_data_signal)
            rc = -EINTR;
        if (rc <= 0)
            break;
        rc = encode_document(e, &d, text, len);
    }
    e->file_bytes += d.bytes;
    holmes_documents_close(&d);
    return rc;
}

static int encode_all(struct encode *e)
{
    const uint64_t total = total_bytes(e);
    int rc = 0;

    e->show = total > 0 && !e->quiet;

    e->started_ns = holmes_now_ns();
    holmes_progress_init(&e->progress, stderr, "encode", total, false);
    for (int i = 0; i < e->npaths && rc == 0; i++)
        rc = encode_file(e, e->paths[i]);
    if (e->shown_bytes > 0 && rc == 0)
        holmes_progress_update(&e->progress, total, "%.1f MB/s", rate(e, total));
    if (rc == 0)
        holmes_progress_finish(&e->progress);
    else
        holmes_progress_hide(&e->progress);
    if (rc == 0 && holmes_index_tokens(e->writer) == 0) {
        snprintf(e->why, sizeof e->why, "there is no text in %s%s", e->paths[0],
                 e->npaths > 1 ? " and the others" : "");
        rc = -EINVAL;
    }
    return rc;
}

static int report(const struct encode *e, const struct holmes_datanote *n,
                  enum holmes_token_type type, double mb_per_s)
{
    const double per_token = (double)n->text_bytes / (double)n->tokens;
    json_t *o;

    if (!e->json) {
        printf("%s: %" PRIu64 " documents, %" PRIu64 " tokens of type %s below %d, from %" PRIu64
               " bytes of text: %.2f bytes a token; %.1f MB/s\n",
               e->prefix, n->documents, n->tokens, holmes_token_type_name(type), n->vocab,
               n->text_bytes, per_token, mb_per_s);
        return fflush(stdout) == 0 ? 0 : -EIO;
    }
    o = json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:f}", "prefix", e->prefix, "tokenizer",
                  n->tokenizer, "dtype", holmes_token_type_name(type), "vocab", n->vocab, "eod",
                  (json_int_t)n->eod, "documents", (json_int_t)n->documents, "tokens",
                  (json_int_t)n->tokens, "text_bytes", (json_int_t)n->text_bytes, "mb_per_s",
                  mb_per_s);
    if (o && n->eod < 0)
        json_object_set_new(o, "eod", json_null());
    if (!o || json_dumpf(o, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF ||
        fflush(stdout) != 0) {
        json_decref(o);
        return -EIO;
    }
    json_decref(o);
    return 0;
}

static int run(struct encode *e)
{
    struct holmes_datanote note = {.eod = -1};
    enum holmes_token_type type = HOLMES_TOKEN_UINT16;
    double mb_per_s = 0;
    int rc =
        holmes_tokenizer_open(&e->tokenizer, &e->files, true, e->append_eod, e->why, sizeof e->why);

    if (rc == 0)
        rc = choose_type(e, &type);
    if (rc == 0)
        rc = check_outputs(e);
    if (rc == 0)
        rc = holmes_index_create(e->prefix, type, &e->writer, e->why, sizeof e->why);
    if (rc == 0)
        rc = encode_all(e);
    if (rc != 0) {
        holmes_index_abort(e->writer);
        return rc;
    }
    mb_per_s = rate(e, e->file_bytes);
    snprintf(note.tokenizer, sizeof note.tokenizer, "%s", e->tokenizer.name);
    note.vocab = e->tokenizer.vocab;
    note.eod = e->append_eod ? e->tokenizer.eod : -1;
    note.text_bytes = e->text_bytes;
    rc = holmes_index_finish(e->writer, &note, e->why, sizeof e->why);
    if (rc == 0 && report(e, &note, type, mb_per_s) != 0) {
        snprintf(e->why, sizeof e->why, "stdout: %s", strerror(EIO));
        rc = -EIO;
    }
    return rc;
}

int holmes_data_encode(int argc, char **argv)
{
    static const char doc[] =
        "Encodes text files, or stdin for -, as an indexed dataset of Megatron-LM and "
        "holmes-train: PREFIX.bin has the tokens, PREFIX.idx where documents begin, PREFIX.json "
        "which tokenizer made them, for holmes-train.\v"
        "The files appear when they are complete.";
    const struct argp argp = {options, parse_option, "FILE...", doc};
    struct encode e = {
        .key = "text", .files.eod_token = "<|endoftext|>", .dtype = "auto", .form = -1};
    char name[] = "holmes-data encode";
    int rc = -EINVAL;

    argv[0] = name;
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &e);
    if (!e.prefix)
        snprintf(e.why, sizeof e.why, "encode: --output-prefix PREFIX is missing");
    else if (e.npaths == 0)
        snprintf(e.why, sizeof e.why, "encode: name the text files to encode, or - for stdin");
    else
        rc = run(&e);
    holmes_tokenizer_close(&e.tokenizer);
    holmes_ids_fini(&e.ids);
    return rc == 0 ? 0 : holmes_data_fail(rc, e.why);
}
