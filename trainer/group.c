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

    for (int p = 0; p < stages; p++)
        sum += stage_layers[p];
    if (sum == layers)
        return 0;
    snprintf(why, why_len, "the stages have %d layers in all, the model has %d: they must agree",
             sum, layers);
    return -EINVAL;
}

int holmes_group_create(int stages, int replicas, const int *order, int layers,
                        const int *stage_layers, struct holmes_group **out, char *why,
                        size_t why_len)
{
    struct holmes_group *g;

    if (layers < stages) {
        snprintf(why, why_len, "a pipeline of %d stages needs at least %d layers, the model has %d",
                 stages, stages, layers);
        return -EINVAL;
    }
    if (stage_layers && check_stage_layers(layers, stages, stage_layers, why, why_len) != 0)
        return -EINVAL;
    g = calloc(1, sizeof *g);
    if (!g)
        goto no_memory;
    *g = (struct holmes_group){.stages = stages, .replicas = replicas, .world = stages * replicas};
    g->order = calloc((size_t)g->world, sizeof *g->order);
    g->first_layer = calloc((size_t)stages + 1, sizeof *g->first_layer);
    if (!g->order || !g->first_layer)
        goto no_memory;
    for (int i = 0; i < g->world; i++)
        g->order[i] = order ? order[i] : i;
    if (stage_layers)
        for (int p = 0; p < stages; p++)
            g->first_layer[p + 1] = g->first_layer[p] + stage_layers[p];
    else
        split_layers(layers, stages, g->first_layer);
    *out = g;
    return 0;

no_memory:
    holmes_group_destroy(g);
    snprintf(why, why_len, "out of memory");
    return -ENOMEM;
}

void holmes_group_destroy(struct holmes_group *g)
{
    if (!g)
        return;
    free(g->order);
    free(g->first_layer);
    free(g);
}

int holmes_group_rank(const struct holmes_group *g, int stage, int replica)
{
    return g->order[stage * g->replicas + replica];
}

void holmes_group_place(const struct holmes_group *g, int rank, int *stage, int *replica)
{
    for (int i = 0; i < g->world; i++) {
        if (g->order[i] == rank) {
            *stage = i / g->replicas;
            *replica = i % g->replicas;
        }
    }
}

static bool same_cluster(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

void holmes_order_planned(const char *const *clusters, int world, int *order)
{
    int placed = 0;

    for (int lead = 0; lead < world; lead++) {
        bool seen = false;

        for (int r = 0; r < lead && !seen; r++)
            seen = same_cluster(clusters[r], clusters[lead]);
        for (int r = lead; r < world && !seen; r++)
            if (same_cluster(clusters[r], clusters[lead]))
                order[placed++] = r;
    }
}

void holmes_order_naive(int stages, int replicas, int *order)
{
    for (int p = 0; p < stages; p++)
        for (int d = 0; d < replicas; d++)
            order[p * replicas + d] = d * stages + p;
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
        const char *lead = clusters[holmes_group_rank(g, p, 0)];

        for (int d = 1; d < g->replicas; d++)
            if (!same_cluster(lead, clusters[holmes_group_rank(g, p, d)]))
                return p;
    }
    return -1;
}
