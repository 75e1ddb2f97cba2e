/* Reads a log record by record. The file may be anybody's: every field is looked at before use. */
#include "summary.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jsonlog.h"

#define SIDES_MAX 64

const char *const holmes_kind_names[] = {"dp", "pp", "tp", "embed", "world"};
const char *const holmes_kind_titles[] = {"data parallel", "pipeline", "tensor parallel",
                                          "tied embedding", "norm and loss"};

struct reader {
    struct holmes_summary *s;
    const struct holmes_sides *sides;
    const json_t *config, *held_out;
    const char *side_names[SIDES_MAX]; /* clusters, in the order they come */
    int *side_of;                      /* [ranks] or -1 */
    double between[SIDES_MAX][SIDES_MAX];
    int nsteps, ntraffic;
    char *why;
    size_t why_len;
};

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static double number_of(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static int refuse(struct reader *r, const char *what)
{
    snprintf(r->why, r->why_len, "%s: %s", r->s->path, what);
    return -EINVAL;
}

static bool in_list(const char *list, size_t len, const char *name)
{
    size_t n = strlen(name);

    for (const char *p = list, *end = list + len; p < end;) {
        size_t item = strcspn(p, ",:");

        if (item == n && strncmp(p, name, n) == 0)
            return true;
        p += item + 1;
    }
    return false;
}

static int side_by_cluster(struct reader *r, const char *cluster)
{
    int i = 0;

    if (!*cluster)
        return -1;
    while (i < r->s->nsides && strcmp(r->side_names[i], cluster) != 0)
        i++;
    if (i == SIDES_MAX)
        return -1;
    if (i == r->s->nsides)
        r->side_names[r->s->nsides++] = cluster;
    return i;
}

static int side(struct reader *r, const json_t *rank)
{
    const char *peers = r->sides->peers, *host = text_of(rank, "host");
    size_t first = peers ? strcspn(peers, ":") : 0;

    if (!peers)
        return side_by_cluster(r, text_of(rank, "cluster"));
    if (in_list(peers, first, host))
        return 0;
    return in_list(peers + first + 1, strlen(peers + first + 1), host) ? 1 : -1;
}

static int read_config(struct reader *r)
{
    const json_t *model = json_object_get(r->config, "model");
    const json_t *ranks = json_object_get(r->config, "ranks");
    struct holmes_summary *s = r->s;

    s->ranks = (int)json_array_size(ranks);
    if (!model || s->ranks == 0)
        return refuse(r, "its config record has no model or no ranks");
    snprintf(s->placement, sizeof s->placement, "%s", text_of(r->config, "placement"));
    s->parameters = (uint64_t)number_of(model, "parameters");
    s->by_token = strcmp(text_of(json_object_get(r->config, "data"), "unit"), "token") == 0;
    s->planned_steps = (int)number_of(r->config, "steps");
    s->tokens_per_step = (uint64_t)(number_of(r->config, "batch") * number_of(model, "seq_len"));
    s->nsides = r->sides->peers ? 2 : 0;
    r->side_of = calloc((size_t)s->ranks, sizeof *r->side_of);
    if (!r->side_of)
        return -ENOMEM;
    for (int i = 0; i < s->ranks; i++)
        r->side_of[i] = side(r, json_array_get(ranks, (size_t)i));
    return 0;
}

static int kind_of(const char *name)
{
    for (int k = 0; k < HOLMES_KIND_COUNT; k++)
        if (strcmp(holmes_kind_names[k], name) == 0)
            return k;
    return -1;
}

static int read_peer(struct reader *r, int rank, int kind, const json_t *peer)
{
    const json_t *number = json_object_get(peer, "rank");
    int to = json_is_integer(number) ? (int)json_integer_value(number) : -1;
    double bytes = number_of(peer, "bytes_sent") - number_of(peer, "eval_bytes_sent");
    int a, b;

    if (to < 0 || to >= r->s->ranks)
        return refuse(r, "a traffic record names a rank that the config record has not");
    a = r->side_of[rank];
    b = r->side_of[to];
    if (a >= 0 && b >= 0 && a != b) {
        r->s->crossing[kind] += bytes;
        r->between[a][b] += bytes;
    }
    return 0;
}

static int read_traffic(struct reader *r, const json_t *record)
{
    const json_t *number = json_object_get(record, "rank");
    int rank = json_is_integer(number) ? (int)json_integer_value(number) : -1, rc = 0;
    const json_t *link, *peer;
    size_t i, j;

    if (rank < 0 || rank >= r->s->ranks)
        return refuse(r, "a traffic record is of a rank that the config record has not");
    r->ntraffic++;
    json_array_foreach(json_object_get(record, "communicators"), i, link)
    {
        int kind = kind_of(text_of(link, "kind"));

        if (kind < 0)
            return refuse(r, "a communicator is of an unknown kind");
        json_array_foreach(json_object_get(link, "peers"), j, peer) if (rc == 0) rc =
            read_peer(r, rank, kind, peer);
    }
    return rc;
}

static int read_records(struct reader *r, const json_t *records)
{
    const json_t *record;
    size_t i;
    int rc = 0;

    json_array_foreach(records, i, record)
    {
        const char *name = text_of(record, "record");

        if (strcmp(name, "config") == 0)
            r->config = record;
        else if (strcmp(name, "held_out") == 0)
            r->held_out = record;
        else if (strcmp(name, "end") == 0)
            r->s->finished = true;
        r->s->steps += strcmp(name, "step") == 0;
    }
    if (!r->config)
        return refuse(r, "it has no config record: not a log of holmes-train");
    if (r->s->steps == 0)
        return refuse(r, "it has no step: there is nothing to compare");
    r->s->step = calloc((size_t)r->s->steps, sizeof *r->s->step);
    r->s->loss = calloc((size_t)r->s->steps, sizeof *r->s->loss);
    if (!r->s->step || !r->s->loss)
        return -ENOMEM;
    rc = read_config(r);
    json_array_foreach(records, i, record)
    {
        const char *name = text_of(record, "record");

        if (rc == 0 && strcmp(name, "traffic") == 0)
            rc = read_traffic(r, record);
        if (strcmp(name, "step") != 0)
            continue;
        r->s->step[r->nsteps] = number_of(record, "step");
        r->s->loss[r->nsteps] = number_of(record, "loss");
        if (r->nsteps++ > 0 || r->s->steps == 1)
            r->s->step_seconds += number_of(record, "step_seconds");
    }
    r->s->counted = rc == 0 && r->ntraffic == r->s->ranks;
    if (rc == 0 && r->s->finished && !r->s->counted)
        rc = refuse(r, "not every rank has a traffic record");
    return rc;
}

static void conclude(struct reader *r)
{
    struct holmes_summary *s = r->s;
    int last = s->steps < 10 ? s->steps : 10;

    s->step_seconds /= s->steps > 1 ? s->steps - 1 : 1;
    s->tokens_per_s = s->step_seconds > 0 ? (double)s->tokens_per_step / s->step_seconds : 0;
    for (int i = s->steps - last; i < s->steps; i++)
        s->final_loss += s->loss[i] / last;
    s->held_out = r->held_out ? number_of(r->held_out, "loss") : -1;
    s->unigram = r->held_out ? number_of(r->held_out, "unigram_nats") : -1;
    for (int k = 0; k < HOLMES_KIND_COUNT; k++)
        s->crossing[k] = s->counted ? s->crossing[k] / s->steps : -1;
    if (!s->counted)
        s->busiest = -1;
    for (int a = 0; a < s->nsides && s->counted; a++)
        for (int b = 0; b < s->nsides; b++)
            s->busiest = fmax(s->busiest, r->between[a][b] / s->steps);
}

int holmes_summary_read(const char *path, const struct holmes_sides *sides,
                        struct holmes_summary *out, char *why, size_t why_len)
{
    struct reader *r = calloc(1, sizeof *r);
    struct holmes_summary s = {.path = path};
    json_t *records = NULL;
    int rc;

    if (!r)
        return -ENOMEM;
    *r = (struct reader){.s = &s, .sides = sides, .why = why, .why_len = why_len};
    snprintf(why, why_len, "out of memory");
    rc = holmes_jsonlog_read(path, &records, &s.cut, why, why_len);
    if (rc == 0)
        rc = read_records(r, records);
    if (rc == 0)
        conclude(r);
    json_decref(records);
    free(r->side_of);
    free(r);
    if (rc != 0)
        holmes_summary_fini(&s);
    else
        *out = s;
    return rc;
}

void holmes_summary_fini(struct holmes_summary *s)
{
    free(s->step);
    free(s->loss);
    s->step = s->loss = NULL;
}
