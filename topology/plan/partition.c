/* See partition.h. The time of a stage grows with each of its layers, so giving one layer after
 * another to the stage that is then done first makes the slowest stage as fast as it can be. Which
 * of the equally good partitions is taken is decided afterwards. */
#include "partition.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define SAME 1e-9 /* relative: times that differ by less are equal */

static double stage_s(const struct holmes_partition_stage *s, int layers)
{
    return s->extra_s + layers * s->layer_s;
}

/* Stages by the time that one more layer would give them: a binary heap, earliest on top; of equal
 * times the later stage, which holds fewer microbatches. */
struct heap {
    const struct holmes_partition_stage *stages;
    const int *layers;
    int *items;
    int n;
};

static bool heap_before(const struct heap *h, int a, int b)
{
    double ta = stage_s(&h->stages[a], h->layers[a] + 1);
    double tb = stage_s(&h->stages[b], h->layers[b] + 1);

    if (ta < tb * (1 - SAME))
        return true;
    if (tb < ta * (1 - SAME))
        return false;
    return a > b;
}

static void heap_sink(struct heap *h, int at)
{
    for (;;) {
        int child = 2 * at + 1, item = h->items[at];

        if (child >= h->n)
            return;
        if (child + 1 < h->n && heap_before(h, h->items[child + 1], h->items[child]))
            child++;
        if (!heap_before(h, h->items[child], item))
            return;
        h->items[at] = h->items[child];
        h->items[child] = item;
        at = child;
    }
}

static int fill(const struct holmes_partition_stage *stages, int n, int layers, int *out)
{
    struct heap h = {stages, out, malloc((size_t)n * sizeof(int)), 0};
    int left = layers - n;

    if (!h.items)
        return -ENOMEM;
    for (int i = 0; i < n; i++) {
        out[i] = 1;
        if (stages[i].most > 1)
            h.items[h.n++] = i;
    }
    for (int i = h.n / 2 - 1; i >= 0; i--)
        heap_sink(&h, i);
    for (; left > 0 && h.n > 0; left--) {
        int top = h.items[0];

        if (++out[top] == stages[top].most)
            h.items[0] = h.items[--h.n];
        heap_sink(&h, 0);
    }
    free(h.items);
    return left == 0 ? 0 : -ENOSPC;
}

/* Most layers that a stage holds in memory and finishes in time. */
static int stage_most(const struct holmes_partition_stage *s, double time_s, int layers)
{
    double most = (time_s * (1 + SAME) - s->extra_s) / s->layer_s;

    if (most > layers)
        most = layers;
    return most < s->most ? (int)most : s->most;
}

/* What is compared among first/middle/last, smaller first. */
struct rank {
    double squares; /* of the times: evenness */
    int64_t under_way;
    int ends;
};

static bool rank_before(const struct rank *a, const struct rank *b)
{
    if (a->squares < b->squares * (1 - SAME))
        return true;
    if (b->squares < a->squares * (1 - SAME))
        return false;
    if (a->under_way != b->under_way)
        return a->under_way < b->under_way;
    return a->ends < b->ends;
}

static double square(double x)
{
    return x * x;
}

/* The best partition with equal stages between the ends, none slower than `time_s`. */
static bool flagged(const struct holmes_partition_stage *stages, int n, int layers, double time_s,
                    int *out)
{
    int first_most = stage_most(&stages[0], time_s, layers);
    int last_most = stage_most(&stages[n - 1], time_s, layers);
    int middle_most = n > 2 ? layers : 0;
    struct rank best = {0};
    bool found = false;

    for (int i = 1; i < n - 1; i++) {
        int most = stage_most(&stages[i], time_s, layers);

        if (most < middle_most)
            middle_most = most;
    }
    for (int middle = n > 2 ? 1 : 0; middle <= middle_most; middle++) {
        int64_t ends = layers - (int64_t)middle * (n - 2);
        double between = 0;

        if (ends < 2 || ends > (int64_t)first_most + last_most)
            continue;
        for (int i = 1; i < n - 1; i++)
            between += square(stage_s(&stages[i], middle));
        for (int first = ends > last_most ? (int)ends - last_most : 1;
             first <= first_most && first < ends; first++) {
            int last = (int)ends - first;
            struct rank r = {between + square(stage_s(&stages[0], first)) +
                                 square(stage_s(&stages[n - 1], last)),
                             (int64_t)first * n + last +
                                 (int64_t)middle * ((int64_t)n * (n - 1) / 2 - 1),
                             first + last};

            if (found && !rank_before(&r, &best))
                continue;
            found = true;
            best = r;
            out[0] = first;
            for (int i = 1; i < n - 1; i++)
                out[i] = middle;
            out[n - 1] = last;
        }
    }
    return found;
}

int holmes_partition(const struct holmes_partition_stage *stages, int n, int layers, int *out)
{
    double slowest = 0;
    int rc;

    if (layers < n)
        return -EINVAL;
    for (int i = 0; i < n; i++)
        if (stages[i].most < 1)
            return -ENOSPC;
    rc = fill(stages, n, layers, out);
    if (rc != 0 || n < 2)
        return rc;
    for (int i = 0; i < n; i++)
        if (stage_s(&stages[i], out[i]) > slowest)
            slowest = stage_s(&stages[i], out[i]);
    flagged(stages, n, layers, slowest, out);
    return 0;
}
