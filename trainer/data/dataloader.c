/* Shuffles documents and samples and cuts sequences. The order of an epoch is a pure function of
 * seed and epoch; what is kept of it is where every 64th document begins. */
#include "dataloader.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "datanote.h"
#include "indexed.h"
#include "random.h"

#define ORDER_STRIDE  64
#define UNIGRAM_MAX   (UINT64_C(1) << 26) /* tokens counted of a part */
#define UNIGRAM_BLOCK (UINT64_C(1) << 16)
#define PREFIX_MAX    (PATH_MAX - sizeof ".json")

struct part {
    uint64_t document, documents; /* none in a text file that is one document in both parts */
    uint64_t first, tokens;
};

/* The training part in the order of one epoch. */
struct epoch {
    bool known;
    uint64_t number;
    uint64_t key;
    uint64_t *starts; /* where document 0, 64, 128... of the order begins */
};

struct holmes_dataloader {
    struct holmes_data_attr attr;
    struct holmes_filemap text; /* one of the two */
    struct holmes_indexed indexed;
    bool is_text;
    struct holmes_tokens tokens;
    struct part train, heldout;
    uint64_t samples;       /* in an epoch */
    struct epoch epochs[2]; /* a step may lie in two */
    int32_t *row;           /* (T + 1) */
    double unigram;         /* negative: not counted yet */
    char *path;             /* for sentences */
    char error[400];
};

/* --- files ------------------------------------------------------------------------------------ */

static bool is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The prefix, or "" when `path` is to be read as text. */
static int find_prefix(const char *path, char prefix[PATH_MAX], char *why, size_t why_len)
{
    char name[PATH_MAX];
    const size_t len = strlen(path);
    bool bin, idx;

    prefix[0] = '\0';
    if (len >= PREFIX_MAX) {
        snprintf(why, why_len, "a path of %zu characters is too long", len);
        return -ENAMETOOLONG;
    }
    snprintf(prefix, PATH_MAX, "%s", path);
    if (len > 4 && (strcmp(path + len - 4, ".bin") == 0 || strcmp(path + len - 4, ".idx") == 0))
        prefix[len - 4] = '\0';
    snprintf(name, sizeof name, "%.*s.bin", (int)PREFIX_MAX, prefix);
    bin = is_file(name);
    snprintf(name, sizeof name, "%.*s.idx", (int)PREFIX_MAX, prefix);
    idx = is_file(name);
    if (bin && idx && (strlen(prefix) < len || !is_file(path)))
        return 0;
    if (access(path, F_OK) == 0) {
        prefix[0] = '\0';
        return 0;
    }
    if (bin || idx)
        snprintf(why, why_len, "there is %s%s, but no %s%s", prefix, bin ? ".bin" : ".idx", prefix,
                 bin ? ".idx" : ".bin");
    else
        snprintf(why, why_len, "no such file, and no %s.bin with %s.idx either", prefix, prefix);
    return -ENOENT;
}

static int read_note(const char *prefix, struct holmes_datanote *note, char *why, size_t why_len)
{
    char name[PATH_MAX];

    snprintf(name, sizeof name, "%.*s.json", (int)PREFIX_MAX, prefix);
    return holmes_datanote_read(name, note, why, why_len);
}

int holmes_data_vocab(const char *path, int *vocab, char *why, size_t why_len)
{
    struct holmes_datanote note;
    char prefix[PATH_MAX];
    int rc = find_prefix(path, prefix, why, why_len);

    if (rc != 0)
        return rc == -ENOENT ? -EINVAL : rc;
    if (!prefix[0]) {
        *vocab = HOLMES_BYTE_VOCAB;
        return 0;
    }
    rc = read_note(prefix, &note, why, why_len);
    if (rc == 0)
        *vocab = note.vocab;
    return rc;
}

/* A note that is there must be of these tokens. */
static int check_note(const char *prefix, const struct holmes_indexed *x, char *why, size_t why_len)
{
    struct holmes_datanote note;
    const int rc = read_note(prefix, &note, why, why_len);

    if (rc == -ENOENT)
        return 0;
    if (rc == 0 && (note.documents != x->documents || note.tokens != x->tokens.count)) {
        snprintf(why, why_len,
                 "%s.json is of %" PRIu64 " documents with %" PRIu64
                 " tokens, but %s.idx lists %" PRIu64 " with %" PRIu64 ": they are not of one make",
                 prefix, note.documents, note.tokens, prefix, x->documents, x->tokens.count);
        return -EINVAL;
    }
    return rc;
}

static int open_files(struct holmes_dataloader *d, const char *path, char *why, size_t why_len)
{
    char prefix[PATH_MAX];
    int rc = find_prefix(path, prefix, why, why_len);

    if (rc != 0)
        return rc;
    d->is_text = !prefix[0];
    if (d->is_text) {
        rc = holmes_filemap_open(path, &d->text, why, why_len);
        d->tokens = (struct holmes_tokens){d->text.bytes, d->text.size, HOLMES_TOKEN_UINT8};
    } else {
        rc = holmes_indexed_open(prefix, &d->indexed, why, why_len);
        d->tokens = d->indexed.tokens;
        if (rc == 0)
            rc = check_note(prefix, &d->indexed, why, why_len);
    }
    d->path = strdup(d->is_text ? path : prefix);
    if (rc == 0 && !d->path) {
        snprintf(why, why_len, "no memory");
        rc = -ENOMEM;
    }
    return rc;
}

/* --- parts ------------------------------------------------------------------------------------ */

static struct part part_of(const struct holmes_dataloader *d, uint64_t from, uint64_t to)
{
    struct part p = {.document = from, .documents = to - from, .first = from, .tokens = to - from};

    if (d->is_text) {
        p.document = 0;
        p.documents = 1;
    } else {
        p.first = holmes_indexed_start(&d->indexed, from);
        p.tokens = holmes_indexed_start(&d->indexed, to) - p.first;
    }
    return p;
}

static int refuse_part(const struct holmes_dataloader *d, const struct part *p, const char *what,
                       char *why, size_t why_len)
{
    char documents[64] = "";

    if (!d->is_text)
        snprintf(documents, sizeof documents, " in %" PRIu64 " of %" PRIu64 " documents",
                 p->documents, d->indexed.documents);
    snprintf(why, why_len,
             "%s has %" PRIu64 " %ss, %" PRIu64 " of them %s%s; a sequence of %d needs %d", d->path,
             d->tokens.count, holmes_dataloader_unit(d), p->tokens, what, documents,
             d->attr.seq_len, d->attr.seq_len + 1);
    return -EINVAL;
}

/* A sequence needs seq_len tokens and the target of the last one. */
static int cut_parts(struct holmes_dataloader *d, char *why, size_t why_len)
{
    const double *split = d->attr.split, sum = split[0] + split[1] + split[2];
    const uint64_t n = d->is_text ? d->tokens.count : d->indexed.documents;
    const uint64_t need = (uint64_t)d->attr.seq_len + 1;
    uint64_t train, end;

    train = (uint64_t)rint((double)n * (split[0] / sum));
    end = (uint64_t)rint((double)n * ((split[0] + split[1]) / sum));
    train = train < n ? train : n; /* n may be more than a double holds exactly */
    end = end < train ? train : end < n ? end : n;
    d->train = part_of(d, 0, train);
    d->heldout = part_of(d, train, end);
    if (d->train.tokens < need)
        return refuse_part(d, &d->train, "to train on", why, why_len);
    if (split[1] > 0 && d->heldout.tokens < need)
        return refuse_part(d, &d->heldout, "held out", why, why_len);
    d->samples = (d->train.tokens - 1) / (uint64_t)d->attr.seq_len;
    return 0;
}

static int check_attr(const struct holmes_data_attr *a, char *why, size_t why_len)
{
    double sum = 0;

    if (a->seq_len < 1 || a->batch < 1 || a->vocab < 1) {
        snprintf(why, why_len,
                 "the sequence length is %d, the batch %d, the vocabulary %d; each must be 1 or "
                 "more",
                 a->seq_len, a->batch, a->vocab);
        return -EINVAL;
    }
    for (int i = 0; i < 3; i++) {
        if (!(a->split[i] >= 0 && a->split[i] < 1e9)) {
            snprintf(why, why_len, "share %d of the split is %g; it must lie in [0, 1e9)", i,
                     a->split[i]);
            return -EINVAL;
        }
        sum += a->split[i];
    }
    if (!(a->split[0] > 0 && sum > 0)) {
        snprintf(why, why_len, "the share to train on is %g; it must be more than 0", a->split[0]);
        return -EINVAL;
    }
    return 0;
}

int holmes_dataloader_open(const struct holmes_data_attr *attr, struct holmes_dataloader **out,
                           char *why, size_t why_len)
{
    struct holmes_dataloader *d = NULL;
    int rc = check_attr(attr, why, why_len);

    if (rc != 0)
        return rc;
    d = calloc(1, sizeof *d);
    if (d)
        d->row = calloc((size_t)attr->seq_len + 1, sizeof *d->row);
    if (!d || !d->row) {
        snprintf(why, why_len, "no memory");
        rc = -ENOMEM;
        goto fail;
    }
    d->attr = *attr;
    d->attr.path = NULL;
    d->unigram = -1;
    rc = open_files(d, attr->path, why, why_len);
    if (rc == 0)
        rc = cut_parts(d, why, why_len);
    if (rc != 0)
        goto fail;
    *out = d;
    return 0;

fail:
    holmes_dataloader_close(d);
    return rc;
}

void holmes_dataloader_close(struct holmes_dataloader *d)
{
    if (!d)
        return;
    holmes_filemap_close(&d->text);
    holmes_indexed_close(&d->indexed);
    free(d->epochs[0].starts);
    free(d->epochs[1].starts);
    free(d->row);
    free(d->path);
    free(d);
}

/* --- reading ---------------------------------------------------------------------------------- */

static int refuse_token(struct holmes_dataloader *d, uint64_t at)
{
    const int64_t value = holmes_tokens_at(&d->tokens, at);

    if (d->is_text) {
        snprintf(d->error, sizeof d->error,
                 "%s: byte %" PRIu64 " is %" PRId64 "; with --vocab %d 0 to %d are right", d->path,
                 at, value, d->attr.vocab, d->attr.vocab - 1);
    } else {
        const uint64_t document = holmes_indexed_document(&d->indexed, at);

        snprintf(d->error, sizeof d->error,
                 "%s.bin: token %" PRIu64 " of document %" PRIu64 " is %" PRId64
                 "; with --vocab %d 0 to %d are right",
                 d->path, at - holmes_indexed_start(&d->indexed, document), document, value,
                 d->attr.vocab, d->attr.vocab - 1);
    }
    return -ERANGE;
}

static int read_run(struct holmes_dataloader *d, uint64_t first, size_t n, int32_t *out)
{
    uint64_t bad = 0;
    const int rc = holmes_tokens_read(&d->tokens, first, n, d->attr.vocab, out, &bad);

    return rc == -ERANGE ? refuse_token(d, bad) : rc;
}

static void split_row(const struct holmes_dataloader *d, int32_t *tokens, int32_t *targets)
{
    const size_t bytes = (size_t)d->attr.seq_len * sizeof *tokens;

    memcpy(tokens, d->row, bytes);
    memcpy(targets, d->row + 1, bytes);
}

/* --- epochs ----------------------------------------------------------------------------------- */

enum { STREAM_DOCUMENTS, STREAM_SAMPLES };

static uint64_t key_of(const struct holmes_dataloader *d, uint64_t stream, uint64_t epoch)
{
    const uint64_t label[] = {stream, epoch};

    return holmes_random_key(d->attr.seed, label, sizeof label);
}

/* First token and length of document k of the epoch's order. */
static uint64_t document_at(const struct holmes_dataloader *d, const struct epoch *e, uint64_t k,
                            uint64_t *length)
{
    const uint64_t at = d->train.document + holmes_random_permute(e->key, k, d->train.documents);
    const uint64_t first = holmes_indexed_start(&d->indexed, at);

    *length = holmes_indexed_start(&d->indexed, at + 1) - first;
    return first;
}

static int find_epoch(struct holmes_dataloader *d, uint64_t number, const struct epoch **out)
{
    struct epoch *e = &d->epochs[number % 2];
    const uint64_t n = d->train.documents;
    uint64_t sum = 0, length;

    *out = e;
    if (e->known && e->number == number)
        return 0;
    e->known = false;
    e->key = key_of(d, STREAM_DOCUMENTS, number);
    if (n > 1 && !e->starts) {
        e->starts = malloc((n / ORDER_STRIDE + 1) * sizeof *e->starts);
        if (!e->starts)
            return -ENOMEM;
    }
    for (uint64_t k = 0; n > 1 && k < n; k++) {
        if (k % ORDER_STRIDE == 0)
            e->starts[k / ORDER_STRIDE] = sum;
        document_at(d, e, k, &length);
        sum += length;
    }
    e->number = number;
    e->known = true;
    return 0;
}

/* A single document is read round, from a place that the epoch chooses. */
static int read_round(struct holmes_dataloader *d, const struct epoch *e, uint64_t place,
                      size_t need)
{
    const struct part *p = &d->train;
    const uint64_t from = (holmes_random_below(e->key, 0, p->tokens) + place) % p->tokens;
    const size_t till_end = p->tokens - from < need ? (size_t)(p->tokens - from) : need;
    int rc = read_run(d, p->first + from, till_end, d->row);

    if (rc == 0)
        rc = read_run(d, p->first, need - till_end, d->row + till_end);
    return rc;
}

static int read_documents(struct holmes_dataloader *d, const struct epoch *e, uint64_t place,
                          size_t need)
{
    uint64_t low = 0, high = (d->train.documents - 1) / ORDER_STRIDE + 1, k, length, first;
    size_t done = 0;

    while (high - low > 1) { /* the last known start that is not behind `place` */
        const uint64_t middle = low + (high - low) / 2;

        if (e->starts[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    place -= e->starts[low];
    for (k = low * ORDER_STRIDE; done < need && k < d->train.documents; k++) {
        first = document_at(d, e, k, &length);
        if (place < length) {
            const size_t left = need - done;
            const size_t n = length - place < left ? (size_t)(length - place) : left;
            const int rc = read_run(d, first + place, n, d->row + done);

            if (rc != 0)
                return rc;
            done += n;
            place = 0;
        } else {
            place -= length;
        }
    }
    return done == need ? 0 : -EINVAL;
}

int holmes_dataloader_train(struct holmes_dataloader *d, uint64_t step, int sequence, int n,
                            int32_t *tokens, int32_t *targets)
{
    const size_t T = (size_t)d->attr.seq_len;
    const struct epoch *e;

    for (int i = 0; i < n; i++) {
        const uint64_t all = (step - 1) * (uint64_t)d->attr.batch + (uint64_t)(sequence + i);
        const uint64_t number = all / d->samples, key = key_of(d, STREAM_SAMPLES, number);
        const uint64_t place = T * holmes_random_permute(key, all % d->samples, d->samples);
        int rc = find_epoch(d, number, &e);

        if (rc == 0 && d->train.documents > 1)
            rc = read_documents(d, e, place, T + 1);
        else if (rc == 0)
            rc = read_round(d, e, place, T + 1);
        if (rc != 0)
            return rc;
        split_row(d, tokens + (size_t)i * T, targets + (size_t)i * T);
    }
    return 0;
}

/* --- the part held out ------------------------------------------------------------------------ */

int holmes_dataloader_heldout_count(const struct holmes_dataloader *d)
{
    const uint64_t n = d->heldout.tokens;
    const uint64_t count = n > 0 ? (n - 1) / (uint64_t)d->attr.seq_len : 0;

    return count < INT32_MAX ? (int)count : INT32_MAX;
}

int holmes_dataloader_heldout(struct holmes_dataloader *d, int first, int n, int32_t *tokens,
                              int32_t *targets)
{
    const size_t T = (size_t)d->attr.seq_len;

    for (int i = 0; i < n; i++) {
        const int rc = read_run(d, d->heldout.first + (uint64_t)(first + i) * T, T + 1, d->row);

        if (rc != 0)
            return rc;
        split_row(d, tokens + (size_t)i * T, targets + (size_t)i * T);
    }
    return 0;
}

/* Calls `visit` for tokens of a part: all, or blocks at even distances. */
static int visit_part(struct holmes_dataloader *d, const struct part *p, uint64_t *counted,
                      void (*visit)(void *ctx, int32_t token), void *ctx)
{
    const uint64_t blocks = (p->tokens + UNIGRAM_BLOCK - 1) / UNIGRAM_BLOCK;
    const uint64_t wanted = UNIGRAM_MAX / UNIGRAM_BLOCK;
    const uint64_t n = blocks < wanted ? blocks : wanted;

    *counted = 0;
    for (uint64_t b = 0; b < n; b++) {
        const uint64_t from = UNIGRAM_BLOCK * (b * blocks / n);
        const uint64_t to = p->tokens - from < UNIGRAM_BLOCK ? p->tokens : from + UNIGRAM_BLOCK;

        for (uint64_t i = from; i < to; i++) {
            const int64_t token = holmes_tokens_at(&d->tokens, p->first + i);

            if (token < 0 || token >= d->attr.vocab)
                return refuse_token(d, p->first + i);
            visit(ctx, (int32_t)token);
        }
        *counted += to - from;
    }
    return 0;
}

static void visit_count(void *ctx, int32_t token)
{
    ((uint64_t *)ctx)[token]++;
}

int holmes_dataloader_unigram_nats(struct holmes_dataloader *d, double *nats)
{
    const size_t V = (size_t)d->attr.vocab;
    uint64_t *seen, trained = 0, heldout = 0;
    double sum = 0;
    int rc;

    *nats = d->heldout.tokens > 0 ? d->unigram : (double)NAN;
    if (d->unigram >= 0 || d->heldout.tokens == 0)
        return 0;
    seen = calloc(2 * V, sizeof *seen);
    if (!seen)
        return -ENOMEM;
    rc = visit_part(d, &d->train, &trained, visit_count, seen);
    if (rc == 0)
        rc = visit_part(d, &d->heldout, &heldout, visit_count, seen + V);
    if (rc == 0) {
        for (size_t v = 0; v < V; v++)
            if (seen[V + v] > 0)
                sum -= (double)seen[V + v] *
                       log(((double)seen[v] + 1) / ((double)trained + (double)V));
        *nats = d->unigram = sum / (double)heldout;
    }
    free(seen);
    return rc;
}

/* --- facts ------------------------------------------------------------------------------------ */

const char *holmes_dataloader_error(const struct holmes_dataloader *d)
{
    return d->error;
}

const char *holmes_dataloader_unit(const struct holmes_dataloader *d)
{
    return d->is_text ? "byte" : "token";
}

uint64_t holmes_dataloader_tokens(const struct holmes_dataloader *d)
{
    return d->tokens.count;
}

uint64_t holmes_dataloader_documents(const struct holmes_dataloader *d)
{
    return d->is_text ? 1 : d->indexed.documents;
}

uint64_t holmes_dataloader_epoch(const struct holmes_dataloader *d)
{
    return d->samples;
}
