#include "runs.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static int append(struct holmes_runs *r, const struct holmes_run *run)
{
    if (r->n == r->cap) {
        const int cap = r->cap ? 2 * r->cap : 4;
        struct holmes_run *at = realloc(r->at, (size_t)cap * sizeof *at);

        if (!at)
            return -ENOMEM;
        r->at = at;
        r->cap = cap;
    }
    assert(r->at);
    r->at[r->n++] = *run;
    r->total += run->length * run->count;
    return 0;
}

int holmes_runs_add(struct holmes_runs *r, uint64_t start, uint64_t length)
{
    struct holmes_run *last = r->n > 0 ? &r->at[r->n - 1] : NULL;
    const struct holmes_run run = {.start = start, .length = length, .count = 1};

    if (length == 0)
        return 0;
    if (last && last->count == 1 && last->start + last->length == start) {
        last->length += length;
    } else if (last && last->count == 1 && last->length == length && start > last->start + length) {
        last->stride = start - last->start;
        last->count = 2;
    } else if (last && last->count > 1 && last->length == length &&
               start == last->start + last->count * last->stride) {
        last->count++;
    } else {
        return append(r, &run);
    }
    r->total += length;
    return 0;
}

void holmes_runs_fini(struct holmes_runs *r)
{
    free(r->at);
    *r = (struct holmes_runs){0};
}

int holmes_runs_find(const struct holmes_runs *r, uint64_t whole, uint64_t *local, uint64_t *length)
{
    uint64_t before = 0;

    for (int i = 0; i < r->n; i++) {
        const struct holmes_run *run = &r->at[i];
        const uint64_t from = whole - run->start;
        const uint64_t nth = run->count > 1 ? from / run->stride : 0;
        const uint64_t in = run->count > 1 ? from % run->stride : from;

        if (whole >= run->start && nth < run->count && in < run->length) {
            *local = before + nth * run->length + in;
            *length = run->length - in;
            return 0;
        }
        before += run->length * run->count;
    }
    return -ENOENT;
}

char *holmes_runs_text(const struct holmes_runs *r)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    if (!f)
        return NULL;
    for (int i = 0; i < r->n; i++) {
        const struct holmes_run *run = &r->at[i];

        fprintf(f, "%s%" PRIu64 "+%" PRIu64, i ? "," : "", run->start, run->length);
        if (run->count > 1)
            fprintf(f, "*%" PRIu64 "/%" PRIu64, run->count, run->stride);
    }
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

/* Digits alone: strtoull would take blanks and signs. */
static bool take_number(const char **p, uint64_t *out)
{
    char *end;

    if (**p < '0' || **p > '9')
        return false;
    errno = 0;
    *out = strtoull(*p, &end, 10);
    *p = end;
    return errno == 0;
}

static bool take_mark(const char **p, char mark)
{
    if (**p != mark)
        return false;
    (*p)++;
    return true;
}

static bool take_run(const char **p, uint64_t limit, struct holmes_run *out)
{
    struct holmes_run run = {.count = 1};
    uint64_t rest;

    if (!take_number(p, &run.start) || !take_mark(p, '+') || !take_number(p, &run.length))
        return false;
    if (take_mark(p, '*') && (!take_number(p, &run.count) || !take_mark(p, '/') ||
                              !take_number(p, &run.stride) || run.count < 2))
        return false;
    if (run.length == 0 || run.start > limit || run.length > limit - run.start)
        return false;
    rest = limit - run.start - run.length;
    if (run.count > 1 && (run.stride < run.length || (run.count - 1) > rest / run.stride))
        return false;
    *out = run;
    return true;
}

int holmes_runs_parse(const char *text, uint64_t limit, struct holmes_runs *out)
{
    struct holmes_runs r = {0};
    struct holmes_run run;
    int rc = 0;

    do {
        if (!take_run(&text, limit, &run) || run.length * run.count > limit - r.total)
            rc = -EINVAL; /* no piece has more elements than the tensor */
        else
            rc = append(&r, &run);
    } while (rc == 0 && take_mark(&text, ','));
    if (rc == 0 && *text)
        rc = -EINVAL;
    if (rc != 0)
        holmes_runs_fini(&r);
    else
        *out = r;
    return rc;
}
