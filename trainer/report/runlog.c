/* Reads a log line by line. Each record goes to the function of its kind; every field is looked at
 * before use, and a number that is none becomes NaN, which charts leave out. */
#include "runlog.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "model.h"

#define RUNLOG_FILE_MAX ((size_t)1 << 30)
#define RUNLOG_SANE     1e18 /* no figure of a run is as large */

struct reader {
    struct holmes_runlog *l;
    const char *name;
    int line;
    bool configured;
    size_t step_cap, eval_cap;
    char *why;
    size_t why_len;
};

static int refuse(struct reader *r, const char *what)
{
    snprintf(r->why, r->why_len, "%s: line %d: %s", r->name, r->line, what);
    return -EINVAL;
}

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    double n = json_is_number(v) ? json_number_value(v) : NAN;

    return isfinite(n) && fabs(n) <= RUNLOG_SANE ? n : NAN;
}

/* A number of something, 0 where it is not told. */
static double amount(const json_t *o, const char *key)
{
    double n = number(o, key);

    return n > 0 ? n : 0;
}

static int whole(const json_t *o, const char *key)
{
    double n = amount(o, key);

    return n <= 1 << 30 ? (int)n : 0;
}

static void text(const json_t *o, const char *key, char *out, size_t len)
{
    const char *s = json_string_value(json_object_get(o, key));

    snprintf(out, len, "%s", s ? s : "");
}

/* --- config ------------------------------------------------------------------------------------
 */

static double flops_per_token(const struct holmes_runlog *l)
{
    const struct holmes_model m = {
        .layers = l->layers, .channels = l->channels, .seq_len = l->seq_len, .vocab = l->vocab};

    return l->layers > 0 && l->channels > 0 && l->seq_len > 0 ? holmes_model_flops_per_token(&m)
                                                              : 0;
}

static int read_ranks(struct reader *r, const json_t *ranks)
{
    struct holmes_runlog *l = r->l;
    size_t n = json_array_size(ranks);

    if (n == 0 || n > HOLMES_RUNLOG_RANKS)
        return refuse(r, "its config record has no ranks, or more than 65536");
    l->ranks = calloc(n, sizeof *l->ranks);
    if (!l->ranks)
        return -ENOMEM;
    l->nranks = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(ranks, i);
        struct holmes_runlog_rank *rank = &l->ranks[i];

        rank->stage = whole(o, "stage");
        rank->replica = whole(o, "replica");
        rank->predicted_bytes = rank->measured_bytes = NAN;
        text(o, "host", rank->host, sizeof rank->host);
        text(o, "cluster", rank->cluster, sizeof rank->cluster);
    }
    return 0;
}

static int read_config(struct reader *r, const json_t *o)
{
    struct holmes_runlog *l = r->l;
    const json_t *model = json_object_get(o, "model");

    if (r->configured)
        return refuse(r, "a second config record: one log has one run");
    r->configured = true;
    l->layers = whole(model, "layers");
    l->channels = whole(model, "channels");
    l->heads = whole(model, "heads");
    l->seq_len = whole(model, "seq_len");
    l->vocab = whole(model, "vocab");
    l->parameters = amount(model, "parameters");
    l->batch = whole(o, "batch");
    l->microbatch = whole(o, "microbatch");
    l->pipeline = whole(o, "pipeline");
    l->data_parallel = whole(o, "data_parallel");
    l->tensor_parallel = whole(o, "tensor");
    l->planned_steps = amount(o, "steps");
    text(o, "placement", l->placement, sizeof l->placement);
    l->flops_per_token = flops_per_token(l);
    return read_ranks(r, json_object_get(o, "ranks"));
}

/* --- steps and evaluations ----------------------------------------------------------------------
 */

/* Room for one more in each of `n` columns that grow together. */
static int grow(double **columns[], int n, size_t used, size_t *cap)
{
    size_t more = *cap > 0 ? *cap * 2 : 256;

    if (used < *cap)
        return 0;
    for (int i = 0; i < n; i++) {
        double *p = realloc(*columns[i], more * sizeof **columns[i]);

        if (!p)
            return -ENOMEM;
        *columns[i] = p;
    }
    *cap = more;
    return 0;
}

static int read_step(struct reader *r, const json_t *o)
{
    struct holmes_runlog_steps *s = &r->l->steps;
    double **columns[] = {&s->step, &s->loss, &s->grad_norm, &s->lr, &s->seconds, &s->tokens_per_s};
    static const char *const keys[] = {"step", "loss",         "grad_norm",
                                       "lr",   "step_seconds", "tokens_per_s"};
    const int n = sizeof keys / sizeof *keys;

    if (isnan(number(o, "step")))
        return refuse(r, "a step record without the number of its step");
    if (grow(columns, n, s->n, &r->step_cap) != 0)
        return -ENOMEM;
    for (int i = 0; i < n; i++)
        (*columns[i])[s->n] = number(o, keys[i]);
    s->n++;
    return 0;
}

static int read_held_out(struct reader *r, const json_t *o)
{
    struct holmes_runlog_evals *e = &r->l->evals;
    double **columns[] = {&e->step, &e->loss};

    if (isnan(number(o, "step")))
        return refuse(r, "a held_out record without the number of its step");
    if (grow(columns, 2, e->n, &r->eval_cap) != 0)
        return -ENOMEM;
    e->step[e->n] = number(o, "step");
    e->loss[e->n++] = number(o, "loss");
    r->l->unigram_nats = number(o, "unigram_nats");
    return 0;
}

/* --- traffic ------------------------------------------------------------------------------------
 */

/* Index of `name` in a list that grows; -1: it is full. */
static int index_of(char list[][16], int *n, int max, const char *name)
{
    int i = 0;

    while (i < *n && strncmp(list[i], name, 15) != 0)
        i++;
    if (i == max)
        return -1;
    if (i == *n)
        snprintf(list[(*n)++], 16, "%s", name);
    return i;
}

static void add_bytes(struct holmes_runlog *l, int kind, const char *wire, double bytes)
{
    int w = index_of(l->wires, &l->nwires, HOLMES_RUNLOG_WIRES, wire);

    if (w >= 0)
        l->bytes[kind][w] += bytes;
}

static int read_communicator(struct reader *r, struct holmes_runlog_rank *rank, const json_t *o)
{
    const char *kind_name = json_string_value(json_object_get(o, "kind"));
    struct holmes_runlog *l = r->l;
    const json_t *item;
    double told = 0, sent = 0;
    size_t i;
    int kind;

    if (!kind_name || !*kind_name)
        return refuse(r, "a communicator without a kind");
    kind = index_of(l->kinds, &l->nkinds, HOLMES_RUNLOG_KINDS, kind_name);
    if (kind < 0)
        return refuse(r, "more kinds of communicators than there can be");
    rank->wait_seconds[kind] += amount(o, "wait_seconds");
    json_array_foreach(json_object_get(o, "peers"), i, item) sent += amount(item, "bytes_sent");
    json_array_foreach(json_object_get(o, "wires"), i, item)
    {
        const char *wire = json_string_value(json_object_get(item, "wire"));
        double bytes = amount(item, "bytes_sent");

        if (!wire || !*wire)
            return refuse(r, "a wire without a name");
        add_bytes(l, kind, wire, bytes);
        told += bytes;
    }
    if (told == 0 && sent > 0)
        add_bytes(l, kind, "untold", sent);
    return 0;
}

static int read_traffic(struct reader *r, const json_t *o)
{
    const json_t *index = json_object_get(o, "rank"), *item;
    const json_t *memory = json_object_get(o, "memory");
    struct holmes_runlog_rank *rank;
    json_int_t at = json_is_integer(index) ? json_integer_value(index) : -1;
    size_t i;
    int rc = 0;

    if (!r->configured || at < 0 || at >= r->l->nranks)
        return refuse(r, "a traffic record of a rank that the config record has not");
    rank = &r->l->ranks[at];
    if (rank->told)
        return refuse(r, "a second traffic record of one rank");
    rank->told = true;
    rank->net_cpu_seconds = amount(o, "net_cpu_seconds");
    rank->predicted_bytes = number(memory, "predicted_bytes");
    rank->measured_bytes = number(memory, "measured_bytes");
    json_array_foreach(json_object_get(o, "communicators"), i, item) if (rc == 0) rc =
        read_communicator(r, rank, item);
    return rc;
}

/* --- the file -----------------------------------------------------------------------------------
 */

static int read_record(struct reader *r, const json_t *o)
{
    static const struct {
        const char *name;
        int (*read)(struct reader *r, const json_t *o);
    } kinds[] = {{"config", read_config},
                 {"step", read_step},
                 {"held_out", read_held_out},
                 {"traffic", read_traffic}};
    const char *name = json_string_value(json_object_get(o, "record"));

    if (!name)
        return refuse(r, "an object that is no record: not a log of holmes-train");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(name, kinds[i].name) == 0)
            return kinds[i].read(r, o);
    r->l->finished |= strcmp(name, "end") == 0;
    return 0;
}

/* `whole_line`: its newline is there. Without, it may be what a killed run left. */
static int read_line(struct reader *r, const char *line, size_t len, bool whole_line)
{
    json_t *o = json_loadb(line, len, 0, NULL);
    int rc;

    r->line++;
    if (!o && !whole_line) {
        r->l->cut = true;
        return 0;
    }
    rc = json_is_object(o) ? read_record(r, o)
                           : refuse(r, "no JSON object: not a log of holmes-train");
    json_decref(o);
    return rc;
}

static void name_of(const char *path, char *out, size_t len)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');

    snprintf(out, len, "%.*s", dot && dot > name ? (int)(dot - name) : (int)strlen(name), name);
}

int holmes_runlog_parse(const char *name, const void *data, size_t len, struct holmes_runlog *out,
                        char *why, size_t why_len)
{
    struct holmes_runlog l = {.unigram_nats = NAN};
    struct reader r = {.l = &l, .name = name, .why = why, .why_len = why_len};
    const char *at = data, *end = at + len;
    int rc = 0;

    snprintf(why, why_len, "%s: out of memory", name);
    name_of(name, l.name, sizeof l.name);
    while (rc == 0 && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));

        rc = read_line(&r, at, (size_t)((newline ? newline : end) - at), newline != NULL);
        at = newline ? newline + 1 : end;
    }
    if (rc == 0 && !r.configured) {
        snprintf(why, why_len, "%s: %s: not a log of holmes-train", name,
                 len == 0 ? "is empty" : "has no config record");
        rc = -EINVAL;
    }
    if (rc != 0)
        holmes_runlog_fini(&l);
    else
        *out = l;
    return rc;
}

int holmes_runlog_read(const char *path, struct holmes_runlog *out, char *why, size_t why_len)
{
    char *data = NULL;
    size_t len = 0;
    int rc = holmes_file_read(path, RUNLOG_FILE_MAX, &data, &len);

    if (rc != 0) {
        snprintf(why, why_len, "%s: %s", path, holmes_file_strerror(rc));
        return rc;
    }
    rc = holmes_runlog_parse(path, data, len, out, why, why_len);
    free(data);
    return rc;
}

void holmes_runlog_fini(struct holmes_runlog *l)
{
    struct holmes_runlog_steps *s = &l->steps;
    double *columns[] = {s->step,    s->loss,         s->grad_norm,  s->lr,
                         s->seconds, s->tokens_per_s, l->evals.step, l->evals.loss};

    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        free(columns[i]);
    free(l->ranks);
    *l = (struct holmes_runlog){0};
}

/* --- figures ------------------------------------------------------------------------------------
 */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double holmes_runlog_median(const struct holmes_runlog *l, const double *values)
{
    size_t first = l->steps.n > 1, n = 0;
    double *sorted = l->steps.n > 0 ? calloc(l->steps.n, sizeof *sorted) : NULL, median = NAN;

    for (size_t i = first; sorted && i < l->steps.n; i++)
        if (isfinite(values[i]))
            sorted[n++] = values[i];
    if (n > 0) {
        qsort(sorted, n, sizeof *sorted, ascending);
        median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    }
    free(sorted);
    return median;
}

double holmes_runlog_final_loss(const struct holmes_runlog *l)
{
    size_t n = l->steps.n, last = n < 10 ? n : 10;
    double sum = 0;

    for (size_t i = n - last; i < n; i++)
        sum += l->steps.loss[i];
    return last > 0 ? sum / (double)last : NAN;
}

const char *holmes_runlog_kind_title(const char *kind)
{
    static const char *const titles[][2] = {{"dp", "data parallel"},
                                            {"pp", "pipeline"},
                                            {"tp", "tensor parallel"},
                                            {"embed", "tied embedding"},
                                            {"world", "norm and loss"}};

    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        if (strcmp(titles[i][0], kind) == 0)
            return titles[i][1];
    return kind;
}
