#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "topology/tool/schedule.h"

/* No node twice in a round; returns how often each pair comes in count[a * n + b], a < b. */
static int *check_rounds(const struct holmes_schedule *s, int n)
{
    int *count = calloc((size_t)n * (size_t)n + 1, sizeof *count);

    cr_assert_eq(s->first[0], 0);
    cr_assert_eq(s->first[s->nrounds], s->npairs);
    for (int r = 0; r < s->nrounds; r++) {
        char *busy = calloc((size_t)n + 1, 1);

        cr_assert_gt(s->first[r + 1], s->first[r], "round %d is empty", r);
        for (int i = s->first[r]; i < s->first[r + 1]; i++) {
            int a = s->pairs[i].a, b = s->pairs[i].b;

            cr_assert(a >= 0 && a < n && b >= 0 && b < n && a != b, "%d-%d of %d", a, b, n);
            cr_assert(!busy[a] && !busy[b], "%d nodes, round %d: %d or %d comes twice", n, r, a, b);
            busy[a] = busy[b] = 1;
            count[a < b ? a * n + b : b * n + a]++;
        }
        free(busy);
    }
    return count;
}

Test(schedule, tournament_has_every_pair_once_in_the_fewest_rounds)
{
    for (int n = 0; n <= HOLMES_SCHEDULE_ALL_MAX + 1; n++) {
        struct holmes_schedule s;
        int *count;

        cr_assert_eq(holmes_schedule_all(n, &s), 0);
        cr_assert_eq(s.npairs, n * (n - 1) / 2);
        cr_assert_eq(s.nrounds, n < 2 ? 0 : n % 2 ? n : n - 1);
        count = check_rounds(&s, n);
        for (int a = 0; a < n; a++)
            for (int b = a + 1; b < n; b++)
                cr_assert_eq(count[a * n + b], 1, "%d nodes: %d-%d comes %d times", n, a, b,
                             count[a * n + b]);
        free(count);
        holmes_schedule_fini(&s);
    }
}

static unsigned next(unsigned *state)
{
    return *state = *state * 1103515245u + 12345u;
}

Test(schedule, given_pairs_come_once_each_in_few_rounds)
{
    unsigned state = 1;

    for (int trial = 0; trial < 300; trial++) {
        int n = 2 + (int)(next(&state) >> 16) % 90, npairs = (int)(next(&state) >> 16) % 400;
        struct holmes_pair *pairs = calloc((size_t)npairs + 1, sizeof *pairs);
        int *want = calloc((size_t)n * (size_t)n, sizeof *want), *count;
        int *degree = calloc((size_t)n, sizeof *degree), most = 0;
        struct holmes_schedule s;

        for (int i = 0; i < npairs; i++) {
            int a = (int)(next(&state) >> 16) % n, b = (int)(next(&state) >> 16) % (n - 1);

            b += b >= a;
            pairs[i] = (struct holmes_pair){a, b};
            if (!want[a < b ? a * n + b : b * n + a]++) {
                degree[a]++;
                degree[b]++;
            }
        }
        for (int i = 0; i < n; i++)
            most = degree[i] > most ? degree[i] : most;
        cr_assert_eq(holmes_schedule_pairs(n, pairs, npairs, &s), 0);
        count = check_rounds(&s, n);
        for (int i = 0; i < n * n; i++)
            cr_assert_eq(count[i], want[i] > 0);
        cr_assert(s.nrounds <= 2 * most, "%d rounds for degree %d", s.nrounds, most);
        free(pairs);
        free(want);
        free(count);
        free(degree);
        holmes_schedule_fini(&s);
    }
}

Test(schedule, a_pair_that_is_none_is_refused)
{
    static const struct holmes_pair bad[] = {{0, 0}, {-1, 0}, {0, 3}, {3, 1}};
    struct holmes_schedule s;

    for (int i = 0; i < 4; i++)
        cr_assert_eq(holmes_schedule_pairs(3, &bad[i], 1, &s), -EINVAL);
}

static bool has(const struct holmes_pair *pairs, int n, int a, int b)
{
    for (int i = 0; i < n; i++)
        if ((pairs[i].a == a && pairs[i].b == b) || (pairs[i].a == b && pairs[i].b == a))
            return true;
    return false;
}

/* Twelve nodes of 8 GPUs; tensor 4: two slots a node; two stages of 12 replicas; two fabrics. */
Test(schedule, sample_has_what_talks_in_a_step_and_every_fabric_pair)
{
    struct holmes_plan_node nodes[12];
    struct holmes_plan plan = {
        .tensor = 4, .pipeline = 2, .data = 12, .nnodes = 12, .nodes = nodes};
    struct holmes_fabrics fabrics = {.n = 3, .group_fabric = (int[]){0, 1, 2}};
    struct holmes_plan_doc doc = {.plan = &plan, .fabrics = &fabrics};
    struct holmes_pair *pairs;
    int n;

    for (int i = 0; i < 12; i++)
        nodes[i] = (struct holmes_plan_node){.group = i < 6    ? 0
                                                      : i < 11 ? 1
                                                               : 2,
                                             .host = i,
                                             .gpus = 8,
                                             .first_rank = 8 * (int64_t)i};
    cr_assert_eq(holmes_schedule_sample(&doc, &pairs, &n), 0);
    for (int i = 0; i < 6; i++) {
        cr_assert(has(pairs, n, i, i + 6), "pipeline %d-%d", i, i + 6);
        cr_assert(has(pairs, n, i, (i + 1) % 6), "ring %d-%d", i, (i + 1) % 6);
        cr_assert(has(pairs, n, 6 + i, 6 + (i + 1) % 6), "ring of the second stage");
    }
    cr_assert(has(pairs, n, 0, 6) && has(pairs, n, 0, 11) && has(pairs, n, 6, 11), "fabric pairs");
    cr_assert(!has(pairs, n, 0, 2) && !has(pairs, n, 0, 7), "more than was asked for");
    free(pairs);
}

/* 5,000 nodes and 40,000 ranks: the sample grows with the nodes, not with their square. */
Test(schedule, sample_of_a_large_plan_takes_few_rounds, .timeout = 30)
{
    enum { N = 5000 };
    struct holmes_plan_node *nodes = calloc(N, sizeof *nodes);
    struct holmes_plan plan = {
        .tensor = 8, .pipeline = 10, .data = 500, .nnodes = N, .nodes = nodes};
    struct holmes_fabrics fabrics = {.n = 1, .group_fabric = (int[]){0}};
    struct holmes_plan_doc doc = {.plan = &plan, .fabrics = &fabrics};
    struct holmes_schedule s;
    struct holmes_pair *pairs;
    int n;

    for (int i = 0; i < N; i++)
        nodes[i] = (struct holmes_plan_node){.gpus = 8, .first_rank = 8 * (int64_t)i};
    cr_assert_eq(holmes_schedule_sample(&doc, &pairs, &n), 0);
    cr_assert_eq(n, 4500 + 5000);
    cr_assert_eq(holmes_schedule_pairs(N, pairs, n, &s), 0);
    cr_assert_eq(s.npairs, n);
    cr_assert_leq(s.nrounds, 8);
    free(check_rounds(&s, N));
    holmes_schedule_fini(&s);
    free(pairs);
    free(nodes);
}

Test(schedule, ring_reaches_every_host)
{
    for (int n = 2; n < 200; n += 7) {
        struct holmes_pair *pairs;
        int npairs;

        cr_assert_eq(holmes_schedule_ring(n, &pairs, &npairs), 0);
        for (int i = 0; i < n; i++)
            cr_assert(has(pairs, npairs, i, (i + 1) % n));
        cr_assert_leq(npairs, 2 * n);
        free(pairs);
    }
}
