/* holmes-data info: everything that a look at all tokens tells. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "datanote.h"
#include "indexed.h"
#include "progress.h"
#include "table.h"
#include "tokenizer.h"

#define COUNTED (1 << 20) /* tokens below it have a counter: no vocabulary is larger */
#define BLOCK   (1 << 20) /* tokens between two looks at the clock */

enum { KEY_VOCAB = 1000, KEY_TOP, KEY_JSON, KEY_QUIET };

struct entry {
    uint64_t count;
    int32_t token;
};

struct info {
    const char *prefix, *vocab_file;
    int top;
    bool json, quiet;

    struct holmes_indexed data;
    struct holmes_datanote note;
    bool noted;
    struct holmes_tokenizer tokenizer; /* name NULL: texts of tokens are not known */
    uint64_t *counts;                  /* [COUNTED] */
    uint64_t others;                   /* tokens that have no counter */
    int64_t least, most;               /* token */
    uint64_t shortest, longest, empty, ended;
    int64_t last; /* token that the first document with any ends with; -1: none yet */
    double entropy;
    struct entry *sorted;
    size_t distinct;
    char why[600];
};

static const struct argp_option options[] = {
    {"vocab-file", KEY_VOCAB, "FILE", 0, "vocab.json that gpt2 encoded with, to show the tokens",
     1},
    {"top", KEY_TOP, "N", 0, "show the N most frequent tokens (10)", 1},
    {"json", KEY_JSON, NULL, 0, "as JSON, for programs", 1},
    {"quiet", KEY_QUIET, NULL, 0, "no progress bar", 1},
    {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct info *i = state->input;
    char *end;

    switch (key) {
    case KEY_VOCAB:
        i->vocab_file = arg;
        break;
    case KEY_TOP:
        i->top = (int)strtol(arg, &end, 10);
        if (end == arg || *end || i->top < 0 || i->top > COUNTED)
            argp_error(state, "--top \"%s\": a whole number from 0 to %d is right", arg, COUNTED);
        break;
    case KEY_JSON:
        i->json = true;
        break;
    case KEY_QUIET:
        i->quiet = true;
        break;
    case ARGP_KEY_ARG:
        if (i->prefix)
            argp_error(state, "one PREFIX is right");
        i->prefix = arg;
        break;
    case ARGP_KEY_END:
        if (!i->prefix)
            argp_error(state, "PREFIX is missing");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* --- counting --------------------------------------------------------------------------------- */

static int open_all(struct info *i)
{
    char path[PATH_MAX], why[400];
    struct holmes_tokenizer_files files = {.vocab_file = i->vocab_file,
                                           .eod_token = "<|endoftext|>"};
    int rc = holmes_indexed_open(i->prefix, &i->data, i->why, sizeof i->why);

    if (rc != 0)
        return rc;
    snprintf(path, sizeof path, "%s.json", i->prefix);
    rc = holmes_datanote_read(path, &i->note, why, sizeof why);
    if (rc != 0 && rc != -ENOENT) {
        snprintf(i->why, sizeof i->why, "%s", why);
        return rc;
    }
    i->noted = rc == 0;
    if (!i->vocab_file && !(i->noted && strcmp(i->note.tokenizer, "byte") == 0))
        return 0;
    return holmes_tokenizer_open(&i->tokenizer, &files, false, !i->vocab_file && i->note.eod >= 0,
                                 i->why, sizeof i->why);
}

static void count_documents(struct info *i)
{
    uint64_t start = 0;

    i->shortest = UINT64_MAX;
    i->last = -1;
    for (uint64_t d = 0; d < i->data.documents; d++) {
        const uint64_t end = holmes_indexed_start(&i->data, d + 1), n = end - start;

        i->shortest = n < i->shortest ? n : i->shortest;
        i->longest = n > i->longest ? n : i->longest;
        i->empty += n == 0;
        if (n > 0) {
            const int64_t token = holmes_tokens_at(&i->data.tokens, end - 1);

            if (i->last < 0)
                i->last = token;
            i->ended += token == i->last;
        }
        start = end;
    }
}

static int count_tokens(struct info *i)
{
    struct holmes_progress progress;
    const uint64_t n = i->data.tokens.count;

    i->least = INT64_MAX;
    i->most = INT64_MIN;
    holmes_progress_init(&progress, stderr, "count", n, false);
    for (uint64_t t = 0; t < n; t++) {
        const int64_t token = holmes_tokens_at(&i->data.tokens, t);

        i->least = token < i->least ? token : i->least;
        i->most = token > i->most ? token : i->most;
        if (token >= 0 && token < COUNTED)
            i->counts[token]++;
        else
            i->others++;
        if (t % BLOCK == BLOCK - 1) {
            if (holmes_data_signal)
                return -EINTR;
            if (!i->quiet)
                holmes_progress_update(&progress, t + 1, "%" PRIu64 " tokens", t + 1);
        }
    }
    holmes_progress_finish(&progress);
    return 0;
}

static int by_count(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static int sort_tokens(struct info *i)
{
    const double n = (double)i->data.tokens.count;

    for (int32_t t = 0; t < COUNTED; t++)
        i->distinct += i->counts[t] > 0;
    i->sorted = calloc(i->distinct ? i->distinct : 1, sizeof *i->sorted);
    if (!i->sorted) {
        snprintf(i->why, sizeof i->why, "out of memory");
        return -ENOMEM;
    }
    i->distinct = 0;
    for (int32_t t = 0; t < COUNTED; t++) {
        const double share = (double)i->counts[t] / n;

        if (i->counts[t] == 0)
            continue;
        i->sorted[i->distinct++] = (struct entry){i->counts[t], t};
        i->entropy -= share * log(share);
    }
    qsort(i->sorted, i->distinct, sizeof *i->sorted, by_count);
    return 0;
}

/* --- telling ---------------------------------------------------------------------------------- */

/* Text of a token with quotes, all but ASCII letters escaped; "" when it is not known. */
static void token_text(struct info *i, int32_t token, char *out, size_t room)
{
    size_t len = 0, n = 0;
    const char *text = i->tokenizer.name ? holmes_tokenizer_text(&i->tokenizer, token, &len) : NULL;

    out[0] = '\0';
    if (!text)
        return;
    if (token == i->tokenizer.eod) {
        snprintf(out, room, "end of document");
        return;
    }
    n += (size_t)snprintf(out, room, "\"");
    for (size_t k = 0; k < len && n + 6 < room; k++) {
        const unsigned char c = (unsigned char)text[k];

        if (c == '\n')
            n += (size_t)snprintf(out + n, room - n, "\\n");
        else if (c < 0x20 || c == 0x7f || (c >= 0x80 && holmes_utf8_valid(text, len) < len))
            n += (size_t)snprintf(out + n, room - n, "\\x%02x", c);
        else
            out[n++] = (char)c;
    }
    snprintf(out + n, room - n, "\"");
}

static int print_top(struct info *i)
{
    static const char *const headings[] = {"token", "text", "count", "share"};
    struct holmes_table *t = holmes_table_of(headings, "rlrr");
    char text[80];
    int rc;

    if (!t)
        return -ENOMEM;
    for (size_t k = 0; k < i->distinct && k < (size_t)i->top; k++) {
        token_text(i, i->sorted[k].token, text, sizeof text);
        holmes_table_cell(t, "%d", i->sorted[k].token);
        holmes_table_cell(t, "%s", text);
        holmes_table_cell(t, "%" PRIu64, i->sorted[k].count);
        holmes_table_cell(t, "%.2f %%",
                          100 * (double)i->sorted[k].count / (double)i->data.tokens.count);
    }
    putchar('\n');
    rc = holmes_table_print(t, stdout);
    holmes_table_destroy(t);
    return rc;
}

static int print_text(struct info *i)
{
    const uint64_t tokens = i->data.tokens.count, documents = i->data.documents;
    const uint64_t full = documents - i->empty;

    printf("type            %s%s\n", holmes_token_type_name(i->data.tokens.type),
           i->data.modes ? ", with modes" : "");
    printf("tokens          %" PRIu64 ", %" PRIu64 " bytes\n", tokens,
           tokens * holmes_token_size(i->data.tokens.type));
    printf("documents       %" PRIu64 " in %" PRIu64 " sequences, %" PRIu64 " empty\n", documents,
           i->data.sequences, i->empty);
    printf("their lengths   %" PRIu64 " to %" PRIu64 ", mean %.1f\n", i->shortest, i->longest,
           (double)tokens / (double)documents);
    printf("their ends      %" PRIu64 " of %" PRIu64 " end with token %" PRId64 "%s\n", i->ended,
           full, i->last,
           i->noted && i->note.eod >= 0 && i->note.eod == i->last ? ", as noted" : "");
    printf("tokens lie in   %" PRId64 " to %" PRId64 ", %zu different ones", i->least, i->most,
           i->distinct);
    if (i->others > 0)
        printf(", and %" PRIu64 " that no vocabulary has", i->others);
    printf("\nentropy         %.4f nats a token\n", i->entropy);
    if (i->noted)
        printf("tokenizer       %s, vocabulary of %d, %" PRIu64
               " bytes of text: %.3f bytes a token\n",
               i->note.tokenizer, i->note.vocab, i->note.text_bytes,
               (double)i->note.text_bytes / (double)tokens);
    else
        printf("tokenizer       not noted: there is no %s.json\n", i->prefix);
    return i->top > 0 ? print_top(i) : 0;
}

static int print_json(struct info *i)
{
    json_t *top = json_array(), *o;
    int rc = 0;

    for (size_t k = 0; k < i->distinct && k < (size_t)i->top; k++)
        json_array_append_new(top, json_pack("{s:i, s:I}", "token", i->sorted[k].token, "count",
                                             (json_int_t)i->sorted[k].count));
    o = json_pack(
        "{s:s, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o}", "dtype",
        holmes_token_type_name(i->data.tokens.type), "tokens", (json_int_t)i->data.tokens.count,
        "documents", (json_int_t)i->data.documents, "sequences", (json_int_t)i->data.sequences,
        "modes", i->data.modes != NULL, "empty_documents", (json_int_t)i->empty, "shortest",
        (json_int_t)i->shortest, "longest", (json_int_t)i->longest, "last_token",
        (json_int_t)i->last, "documents_with_last_token", (json_int_t)i->ended, "least",
        (json_int_t)i->least, "most", (json_int_t)i->most, "distinct", (json_int_t)i->distinct,
        "uncounted", (json_int_t)i->others, "entropy_nats", i->entropy, "top", top);
    if (o && i->noted)
        json_object_set_new(o, "note",
                            json_pack("{s:s, s:i, s:I, s:I}", "tokenizer", i->note.tokenizer,
                                      "vocab", i->note.vocab, "eod", (json_int_t)i->note.eod,
                                      "text_bytes", (json_int_t)i->note.text_bytes));
    if (!o || json_dumpf(o, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF)
        rc = -EIO;
    json_decref(o);
    return rc;
}

static int run(struct info *i)
{
    int rc = open_all(i);

    if (rc != 0)
        return rc;
    i->counts = calloc(COUNTED, sizeof *i->counts);
    if (!i->counts) {
        snprintf(i->why, sizeof i->why, "out of memory");
        return -ENOMEM;
    }
    count_documents(i);
    rc = count_tokens(i);
    if (rc == 0)
        rc = sort_tokens(i);
    if (rc != 0)
        return rc;
    rc = i->json ? print_json(i) : print_text(i);
    if (rc != 0 || fflush(stdout) != 0) {
        snprintf(i->why, sizeof i->why, "stdout: %s", strerror(errno));
        return -EIO;
    }
    return 0;
}

int holmes_data_info(int argc, char **argv)
{
    static const char doc[] =
        "Says what is in PREFIX.bin and PREFIX.idx, whoever wrote them; reads all tokens.";
    const struct argp argp = {options, parse_option, "PREFIX", doc};
    struct info i = {.top = 10};
    char name[] = "holmes-data info";
    int rc;

    argv[0] = name;
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &i);
    rc = run(&i);
    holmes_tokenizer_close(&i.tokenizer);
    holmes_indexed_close(&i.data);
    free(i.counts);
    free(i.sorted);
    return rc == 0 ? 0 : holmes_data_fail(rc, i.why);
}
