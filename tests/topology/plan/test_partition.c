/* Layers over stages: Megatron's cases, and every partition of small models. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "topology/plan/partition.h"

#define STAGES_MOST 8

static const char *text_of(const int *layers, int n)
{
    static char text[128];
    size_t used = 0;

    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d", i ? "," : "", layers[i]);
    return text;
}

struct row {
    int layers, stages;
    double speed[STAGES_MOST]; /* 0: 1 */
    double first, last;        /* embedding and head, in layers */
    int most[STAGES_MOST];     /* 0: all */
    int rc;
    const char *expect;
};

static const struct row rows[] = {
    /* Case C15. */
    {30, 4, {0}, 0, 0, {0}, 0, "7,8,8,7"},
    {5, 4, {0}, 0, 0, {0}, 0, "1,1,1,2"},
    {24, 2, {2, 1}, 0, 0, {0}, 0, "16,8"},
    {3, 4, {0}, 0, 0, {0}, -EINVAL, NULL},
    {30, 1, {0}, 0, 0, {0}, 0, "30"},
    /* Embedding and head as one layer each, as Megatron-LM's --account-for-*-in-pipeline-split. */
    {30, 4, {0}, 1, 1, {0}, 0, "7,8,8,7"},
    /* A head of 1.25 layers (hidden 3072, vocabulary 51200). */
    {30, 4, {0}, 0, 1.25, {0}, 0, "8,8,8,6"},
    {8, 4, {0}, 0, 0, {0}, 0, "2,2,2,2"},
    {12, 3, {3, 2, 1}, 0, 0, {0}, 0, "6,4,2"},
    {32, 4, {2, 2, 1, 1}, 0, 0, {0}, 0, "11,11,5,5"},
    /* Memory takes layers away from the fast stage. */
    {24, 2, {2, 1}, 0, 0, {14, 0}, 0, "14,10"},
    {24, 2, {2, 1}, 0, 0, {14, 9}, -ENOSPC, NULL},
    {24, 3, {0}, 0, 0, {24, 0, 24}, 0, "8,8,8"},
};

Test(partition, gives_the_layers_that_megatron_takes)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *r = &rows[i];
        struct holmes_partition_stage stages[STAGES_MOST];
        int out[STAGES_MOST], rc;

        for (int k = 0; k < r->stages; k++) {
            double s = 1 / (r->speed[k] > 0 ? r->speed[k] : 1);

            stages[k] = (struct holmes_partition_stage){s, 0, r->most[k] ? r->most[k] : r->layers};
            stages[k].extra_s += k == 0 ? r->first * s : 0;
            stages[k].extra_s += k == r->stages - 1 ? r->last * s : 0;
        }
        rc = holmes_partition(stages, r->stages, r->layers, out);
        cr_expect_eq(rc, r->rc, "row %zu: %d", i, rc);
        if (rc == 0 && r->expect)
            cr_expect_str_eq(text_of(out, r->stages), r->expect, "row %zu: %s, not %s", i,
                             text_of(out, r->stages), r->expect);
    }
}

/* The least time of the slowest stage over all partitions; INFINITY: none. */
static double least(const struct holmes_partition_stage *s, int n, int layers)
{
    double best = INFINITY;

    if (n == 1)
        return layers >= 1 && layers <= s->most ? s->extra_s + layers * s->layer_s : INFINITY;
    for (int mine = 1; mine <= layers - (n - 1) && mine <= s->most; mine++)
        best = fmin(best, fmax(s->extra_s + mine * s->layer_s, least(s + 1, n - 1, layers - mine)));
    return best;
}

static unsigned next(unsigned *state)
{
    *state = *state * 1103515245u + 12345u;
    return *state >> 16 & 0x7fff;
}

Test(partition, has_the_fastest_slowest_stage_of_all_partitions)
{
    unsigned state = 7;
    int solved = 0, refused = 0;

    for (int round = 0; round < 3000; round++) {
        struct holmes_partition_stage s[6];
        int n = 1 + (int)(next(&state) % 6), layers = (int)(next(&state) % 15), out[6], sum = 0;
        double best, slowest = 0;
        int rc;

        for (int i = 0; i < n; i++)
            s[i] = (struct holmes_partition_stage){
                .layer_s = 1.0 / (1 + next(&state) % 4),
                .extra_s = next(&state) % 3 == 0 ? next(&state) % 8 / 4.0 : 0,
                .most = next(&state) % 4 == 0 ? (int)(next(&state) % 6) : 100,
            };
        best = layers >= n ? least(s, n, layers) : INFINITY;
        rc = holmes_partition(s, n, layers, out);
        if (isinf(best)) {
            cr_assert_eq(rc, layers < n ? -EINVAL : -ENOSPC);
            refused++;
            continue;
        }
        cr_assert_eq(rc, 0);
        for (int i = 0; i < n; i++) {
            sum += out[i];
            cr_assert(out[i] >= 1 && out[i] <= s[i].most);
            slowest = fmax(slowest, s[i].extra_s + out[i] * s[i].layer_s);
        }
        cr_assert_eq(sum, layers);
        cr_assert_float_eq(slowest, best, 1e-9, "round %d: %g, best %g", round, slowest, best);
        solved++;
    }
    cr_assert(solved > 500 && refused > 200, "%d solved, %d refused", solved, refused);
}
