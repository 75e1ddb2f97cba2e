/* The pairs of `holmes-topo check --json` as probes. */
#include "cluster/check_probes.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

#define FILE_SIZE_MAX (1u << 30)
#define NO_PATH       "no RDMA path" /* how the transport says that a probe failed */

struct reader {
    const char *name;
    char *why;
    size_t why_len;
    struct holmes_cluster *c;
    struct holmes_hostindex *hosts;
};

static int fail(const struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int fail(const struct reader *r, const char *fmt, ...)
{
    int n = snprintf(r->why, r->why_len, "%s: ", r->name);
    va_list ap;

    va_start(ap, fmt);
    if (n >= 0 && (size_t)n < r->why_len)
        vsnprintf(r->why + n, r->why_len - (size_t)n, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static bool known(const struct reader *r, const char *host)
{
    int tag, at;

    return holmes_hostindex_find(r->hosts, host, &tag, &at) == 0;
}

/* 1: *out is a probe; 0: the pair says nothing. */
static int pair_read(const struct reader *r, size_t i, json_t *pair,
                     struct holmes_cluster_probe *out)
{
    const char *texts[5];
    static const char *const keys[] = {"a", "b", "state", "wire", "reason"};
    bool verbs, tried;

    for (int k = 0; k < 5; k++) {
        texts[k] = json_string_value(json_object_get(pair, keys[k]));
        if (!texts[k] && k < 3)
            return fail(r, "pairs[%zu].%s: a text is missing", i, keys[k]);
        if (k == 2 && strcmp(texts[k], "ok") != 0)
            return 0; /* not measured: wire and reason are not there */
        if (!texts[k])
            return fail(r, "pairs[%zu].%s: a text is missing", i, keys[k]);
    }
    verbs = strcmp(texts[3], "verbs") == 0;
    tried = strncmp(texts[4], NO_PATH, strlen(NO_PATH)) == 0;
    if ((!verbs && !tried) || !known(r, texts[0]) || !known(r, texts[1]))
        return 0;
    *out = (struct holmes_cluster_probe){strdup(texts[0]), strdup(texts[1]), verbs};
    if (out->from && out->to)
        return 1;
    free(out->from);
    free(out->to);
    return -ENOMEM;
}

static int pairs_read(const struct reader *r, json_t *pairs, int *added)
{
    size_t n = json_array_size(pairs);
    struct holmes_cluster_probe *more =
        realloc(r->c->probes, ((size_t)r->c->nprobes + n + 1) * sizeof *more);

    if (!more)
        return -ENOMEM;
    r->c->probes = more;
    for (size_t i = 0; i < n; i++) {
        int rc = pair_read(r, i, json_array_get(pairs, i), &r->c->probes[r->c->nprobes]);

        if (rc < 0)
            return rc;
        r->c->nprobes += rc;
        *added += rc;
    }
    return 0;
}

static int hosts_index(struct reader *r)
{
    int rc = holmes_hostindex_create(&r->hosts), twice;

    for (int i = 0; rc == 0 && i < r->c->ngroups; i++)
        rc = holmes_hostindex_add(r->hosts, &r->c->groups[i].hosts, i, &twice);
    return rc;
}

int holmes_check_probes_parse(const char *name, const void *data, size_t len,
                              struct holmes_cluster *c, int *added, char *why, size_t why_len)
{
    struct reader r = {.name = name, .why = why, .why_len = why_len, .c = c};
    json_error_t error;
    json_t *top = json_loadb(data, len, JSON_REJECT_DUPLICATES, &error), *pairs;
    int rc;

    *added = 0;
    if (!top) {
        snprintf(why, why_len, "%s:%d: not readable as JSON: %s", name, error.line, error.text);
        return -EINVAL;
    }
    pairs = json_object_get(top, "pairs");
    if (json_integer_value(json_object_get(top, "version")) != 1 || !json_is_array(pairs))
        rc =
            fail(&r, "not what `holmes-topo check --json` writes: \"version\": 1 and \"pairs\" are "
                     "missing");
    else
        rc = hosts_index(&r);
    if (rc == 0)
        rc = pairs_read(&r, pairs, added);
    holmes_hostindex_destroy(r.hosts);
    json_decref(top);
    return rc;
}

int holmes_check_probes_read(const char *path, struct holmes_cluster *c, int *added, char *why,
                             size_t why_len)
{
    char *text;
    size_t len;
    int rc = holmes_file_read(path, FILE_SIZE_MAX, &text, &len);

    if (rc != 0) {
        snprintf(why, why_len, "%s: %s", path, holmes_file_strerror(rc));
        return rc == -ENOMEM ? rc : -EINVAL;
    }
    rc = holmes_check_probes_parse(path, text, len, c, added, why, why_len);
    free(text);
    return rc;
}
