/* Arithmetic of placement: orders of ranks, the place of a rank, the layers of a stage. */
#include "group.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void split_layers(int layers, int stages, int *first_layer)
{
    int base = layers / stages, extra = layers % stages;
    int from = (stages - extra) / 2;

    first_layer[0] = 0;
    for (int p = 0; p < stages; p++)
        first_layer[p + 1] = first_layer[p] + base + (p >= from && p < from + extra);
}

static int check_stage_layers(int layers, int stages, const int *stage_layers, char *why,
                              size_t why_len)
{
    int sum = 0;

    for (int p = 0; p < stages; p++) {
        sum += stage_layers[p];
        if (stage_layers[p] > 0 || p == 0 || p == stages - 1)
            continue;
        snprintf(why, why_len,
                 "stage %d of %d has no layers: only the first and the last, which hold embedding "
                 "and head, may do without",
                 p, stages);
        return -EINVAL;
    }
    if (sum == layers)
        return 0;
    snprintf(why, why_len, "the stages have %d layers in all, the model has %d: they must agree",
             sum, layers);
    return -EINVAL;
}

/* What the parts begin with, to be freed, or NULL with a sentence. */
static int *make_first_layers(int layers, int parts, const int *part_layers, char *why,
                              size_t why_len)
{
    int *first;

    if (!part_layers && layers < parts) {
        snprintf(why, why_len, "a pipeline of %d stages needs at least %d layers, the model has %d",
                 parts, parts, layers);
        return NULL;
    }
    if (part_layers && check_stage_layers(layers, parts, part_layers, why, why_len) != 0)
        return NULL;
    first = calloc((size_t)parts + 1, sizeof *first);
    if (!first)
        snprintf(why, why_len, "out of memory");
    else if (!part_layers)
        split_layers(layers, parts, first);
    for (int p = 0; first && part_layers && p < parts; p++)
        first[p + 1] = first[p] + part_layers[p];
    return first;
}

int holmes_group_create(int stages, int replicas, int tensors, const int *order, int layers,
                        const int *stage_layers, struct holmes_group **out, char *why,
                        size_t why_len)
{
    int *first = make_first_layers(layers, stages, stage_layers, why, why_len);
    struct holmes_group *g = first ? calloc(1, sizeof *g) : NULL;

    if (!first)
        return -EINVAL;
    if (!g)
        goto no_memory;
    *g = (struct holmes_group){.stages = stages,
                               .replicas = replicas,
                               .tensors = tensors,
                               .world = stages * replicas * tensors,
                               .chunks = 1};
    g->order = calloc((size_t)g->world, sizeof *g->order);
    if (!g->order)
        goto no_memory;
    for (int i = 0; i < g->world; i++)
        g->order[i] = order ? order[i] : i;
    g->first_layer = first;
    *out = g;
    return 0;

no_memory:
    free(first);
    holmes_group_destroy(g);
    snprintf(why, why_len, "out of memory");
    return -ENOMEM;
}

int holmes_group_set_chunks(struct holmes_group *g, int chunks, int layers, const int *part_layers,
                            char *why, size_t why_len)
{
    int *first = make_first_layers(layers, chunks * g->stages, part_layers, why, why_len);

    if (!first)
        return -EINVAL;
    free(g->first_layer);
    g->first_layer = first;
    g->chunks = chunks;
    return 0;
}

void holmes_group_destroy(struct holmes_group *g)
{
    if (!g)
        return;
    free(g->order);
    free(g->first_layer);
    free(g);
}

int holmes_group_rank(const struct holmes_group *g, int stage, int replica, int tensor)
{
    return g->order[(stage * g->replicas + replica) * g->tensors + tensor];
}

struct holmes_place holmes_group_place(const struct holmes_group *g, int rank)
{
    int i = 0;

    while (i < g->world - 1 && g->order[i] != rank)
        i++;
    return (struct holmes_place){.stage = i / g->tensors / g->replicas,
                                 .replica = i / g->tensors % g->replicas,
                                 .tensor = i % g->tensors};
}

static bool same_name(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

/* Groups the `n` ranks of `list` by name: those named first come first, equal ones keep their
 * order. */
static void sort_by_first(const char *const *names, int n, const int *list, int *sorted)
{
    int placed = 0;

    for (int lead = 0; lead < n; lead++) {
        bool seen = false;

        for (int i = 0; i < lead && !seen; i++)
            seen = same_name(names[list[i]], names[list[lead]]);
        for (int i = lead; i < n && !seen; i++)
            if (same_name(names[list[i]], names[list[lead]]))
                sorted[placed++] = list[i];
    }
}

int holmes_order_planned(const char *const *clusters, const char *const *hosts, int world,
                         int *order)
{
    int *by_host = calloc(2 * (size_t)world, sizeof *by_host), *ranks = by_host + world;

    if (!by_host)
        return -ENOMEM;
    for (int r = 0; r < world; r++)
        ranks[r] = r;
    sort_by_first(hosts, world, ranks, by_host);
    sort_by_first(clusters, world, by_host, order);
    free(by_host);
    return 0;
}

void holmes_order_naive(int stages, int replicas, int tensors, int *order)
{
    for (int p = 0; p < stages; p++)
        for (int d = 0; d < replicas; d++)
            for (int t = 0; t < tensors; t++)
                order[(p * replicas + d) * tensors + t] = (d * stages + p) * tensors + t;
}

int holmes_list_parse(const char *text, const char *what, int count, int min, int max, int *out,
                      char *why, size_t why_len)
{
    const char *p = text;

    for (int i = 0; i < count; i++) {
        char *end;
        long v;

        errno = 0;
        v = strtol(p, &end, 10);
        if (end == p || errno != 0 || v < min || v > max || *end != (i == count - 1 ? '\0' : ',')) {
            if (count == 1)
                snprintf(why, why_len, "%s \"%s\": one number from %d to %d is right", what, text,
                         min, max);
            else
                snprintf(why, why_len,
                         "%s \"%s\": %d numbers from %d to %d separated by commas are right", what,
                         text, count, min, max);
            return -EINVAL;
        }
        out[i] = (int)v;
        p = end + 1;
    }
    return 0;
}

int holmes_order_parse(const char *text, int world, int *order, char *why, size_t why_len)
{
    int rc = holmes_list_parse(text, "--rank-order", world, 0, world - 1, order, why, why_len);

    for (int i = 0; rc == 0 && i < world; i++) {
        for (int j = 0; j < i && rc == 0; j++) {
            if (order[i] != order[j])
                continue;
            snprintf(why, why_len,
                     "--rank-order \"%s\" names rank %d twice: each of 0 to %d once is "
                     "right",
                     text, order[i], world - 1);
            rc = -EINVAL;
        }
    }
    return rc;
}

int holmes_group_straddles(const struct holmes_group *g, const char *const *clusters)
{
    for (int p = 0; p < g->stages; p++) {
        const char *lead = clusters[holmes_group_rank(g, p, 0, 0)];

        for (int d = 1; d < g->replicas; d++)
            if (!same_name(lead, clusters[holmes_group_rank(g, p, d, 0)]))
                return p;
    }
    return -1;
}

int holmes_group_check_hosts(const struct holmes_group *g, const char *const *hosts, char *why,
                             size_t why_len)
{
    for (int i = 0; i < g->world; i++) {
        int lead = g->order[i - i % g->tensors], other = g->order[i];

        if (same_name(hosts[lead], hosts[other]))
            continue;
        snprintf(why, why_len,
                 "tensor group of stage %d, replica %d: rank %d is on host \"%s\", rank %d on "
                 "\"%s\"; the ranks of a tensor group must share a host: --tensor must divide the "
                 "ranks of every host, or --rank-order keep them together",
                 i / g->tensors / g->replicas, i / g->tensors % g->replicas, lead,
                 hosts[lead] ? hosts[lead] : "", other, hosts[other] ? hosts[other] : "");
        return -EINVAL;
    }
    return 0;
}
