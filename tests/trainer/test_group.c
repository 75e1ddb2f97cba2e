/* Placement: orders of ranks, places, layers. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "group.h"

static struct holmes_group *make(int stages, int replicas, const int *order, int layers)
{
    struct holmes_group *g = NULL;
    char why[200] = "";

    cr_assert_eq(holmes_group_create(stages, replicas, 1, order, layers, NULL, &g, why, sizeof why),
                 0, "%s", why);
    return g;
}

Test(group, place_and_rank_are_each_others_inverse)
{
    const int order[] = {5, 3, 1, 0, 2, 4};
    struct holmes_group *g = make(2, 3, order, 8);

    for (int p = 0; p < 2; p++) {
        for (int d = 0; d < 3; d++) {
            const struct holmes_place at = holmes_group_place(g, order[p * 3 + d]);

            cr_expect_eq(holmes_group_rank(g, p, d, 0), order[p * 3 + d]);
            cr_expect_eq(at.stage, p);
            cr_expect_eq(at.replica, d);
            cr_expect_eq(at.tensor, 0);
        }
    }
    holmes_group_destroy(g);
}

Test(group, planned_keeps_each_stage_inside_one_cluster)
{
    /* The order in which a scheduler may hand out hosts of two clusters. */
    const char *clusters[] = {"A", "B", "A", "B"};
    const char *hosts[] = {"a0", "b0", "a1", "b1"};
    const int expect[] = {0, 2, 1, 3};
    int order[4];
    struct holmes_group *g;

    cr_assert_eq(holmes_order_planned(clusters, hosts, 4, order), 0);
    cr_expect_arr_eq(order, expect, sizeof expect);
    g = make(2, 2, order, 4);
    cr_expect_eq(holmes_group_straddles(g, clusters), -1);
    holmes_group_destroy(g);
}

Test(group, planned_leaves_ranks_without_clusters_in_their_order)
{
    const char *clusters[] = {NULL, "", NULL, ""}, *hosts[] = {"h0", "h1", "h2", ""};
    const int expect[] = {0, 1, 2, 3};
    int order[4];

    cr_assert_eq(holmes_order_planned(clusters, hosts, 4, order), 0);
    cr_expect_arr_eq(order, expect, sizeof expect);
}

Test(group, planned_keeps_tensor_groups_inside_hosts)
{
    /* A scheduler that hands out two hosts of two clusters in turn. */
    const char *clusters[] = {"A", "B", "A", "B", "A", "B", "A", "B"};
    const char *hosts[] = {"a0", "b0", "a1", "b1", "a0", "b0", "a1", "b1"};
    const int expect[] = {0, 4, 2, 6, 1, 5, 3, 7};
    struct holmes_group *g = NULL;
    char why[300] = "";
    int order[8];

    cr_assert_eq(holmes_order_planned(clusters, hosts, 8, order), 0);
    cr_expect_arr_eq(order, expect, sizeof expect);
    cr_assert_eq(holmes_group_create(2, 2, 2, order, 2, NULL, &g, why, sizeof why), 0);
    cr_expect_eq(holmes_group_check_hosts(g, hosts, why, sizeof why), 0, "%s", why);
    cr_expect_eq(holmes_group_straddles(g, clusters), -1);
    cr_expect_eq(holmes_group_rank(g, 1, 0, 1), 5);
    cr_expect_eq(holmes_group_place(g, 5).tensor, 1);
    cr_expect_eq(holmes_group_place(g, 5).replica, 0);
    cr_expect_eq(holmes_group_place(g, 5).stage, 1);
    holmes_group_destroy(g);
}

Test(group, naive_keeps_tensor_groups_together)
{
    const int expect[] = {0, 1, 4, 5, 2, 3, 6, 7};
    int order[8];

    holmes_order_naive(2, 2, 2, order);
    cr_expect_arr_eq(order, expect, sizeof expect);
}

Test(group, refuses_a_tensor_group_on_two_hosts_by_name)
{
    const char *hosts[] = {"a0", "a0", "a0", "b0", "b0", "b0"};
    struct holmes_group *g = NULL;
    char why[400] = "";

    cr_assert_eq(holmes_group_create(3, 1, 2, NULL, 3, NULL, &g, why, sizeof why), 0);
    cr_expect_eq(holmes_group_check_hosts(g, hosts, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "stage 1, replica 0: rank 2 is on host \"a0\", rank 3 on "
                                   "\"b0\""),
                       "%s", why);
    holmes_group_destroy(g);
}

Test(group, naive_puts_replicas_across_clusters)
{
    const char *clusters[] = {"A", "A", "B", "B"};
    const int expect[] = {0, 2, 1, 3};
    int order[4];
    struct holmes_group *g;

    holmes_order_naive(2, 2, 1, order);
    cr_expect_arr_eq(order, expect, sizeof expect);
    g = make(2, 2, order, 4);
    cr_expect_eq(holmes_group_straddles(g, clusters), 0);
    holmes_group_destroy(g);
}

Test(group, layers_are_split_evenly_and_the_middle_has_the_rest)
{
    static const struct {
        int layers, stages, expect[4];
    } cases[] = {{30, 4, {7, 8, 8, 7}},
                 {8, 4, {2, 2, 2, 2}},
                 {3, 2, {2, 1}},
                 {7, 3, {2, 3, 2}},
                 {4, 1, {4}}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct holmes_group *g = make(cases[i].stages, 1, NULL, cases[i].layers);

        cr_expect_eq(g->first_layer[0], 0);
        for (int p = 0; p < cases[i].stages; p++)
            cr_expect_eq(g->first_layer[p + 1] - g->first_layer[p], cases[i].expect[p],
                         "%d layers, %d stages, stage %d", cases[i].layers, cases[i].stages, p);
        holmes_group_destroy(g);
    }
}

Test(group, takes_an_uneven_partition_as_it_is_given)
{
    const int layers[] = {5, 1, 2}, ends[] = {0, 8, 0}, hollow[] = {4, 0, 4};
    struct holmes_group *g = NULL;
    char why[200];

    cr_assert_eq(holmes_group_create(3, 1, 1, NULL, 8, layers, &g, why, sizeof why), 0);
    cr_expect_eq(g->first_layer[1], 5);
    cr_expect_eq(g->first_layer[2], 6);
    cr_expect_eq(g->first_layer[3], 8);
    holmes_group_destroy(g);
    g = NULL;
    cr_assert_eq(holmes_group_create(3, 1, 1, NULL, 8, ends, &g, why, sizeof why), 0);
    cr_expect_eq(g->first_layer[1], 0);
    cr_expect_eq(g->first_layer[2], 8);
    holmes_group_destroy(g);
    g = NULL;
    cr_expect_eq(holmes_group_create(3, 1, 1, NULL, 8, hollow, &g, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "stage 1 of 3 has no layers"), "%s", why);
    cr_expect_eq(holmes_group_create(3, 1, 1, NULL, 9, layers, &g, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "8 layers"), "%s", why);
}

Test(group, refuses_a_pipeline_deeper_than_the_model)
{
    struct holmes_group *g = NULL;
    char why[200];

    cr_expect_eq(holmes_group_create(4, 1, 1, NULL, 3, NULL, &g, why, sizeof why), -EINVAL);
    cr_expect_not_null(strstr(why, "4 stages"), "%s", why);
    cr_expect_null(g);
}

Test(group, refuses_orders_that_are_no_permutation)
{
    const char *bad[] = {"",         "0,1",     "0,1,2,2",  "0,1,2,4",
                         "0,1,2,3,", "0,1,2,x", "0,1,2,-1", "0,1,2,99999999999999999999"};
    int order[4];
    char why[200];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(holmes_order_parse(bad[i], 4, order, why, sizeof why), -EINVAL, "\"%s\"",
                     bad[i]);
        cr_expect_not_null(strstr(why, "--rank-order"), "%s", why);
    }
    cr_expect_eq(holmes_order_parse("3,1,0,2", 4, order, why, sizeof why), 0);
    cr_expect_eq(order[0], 3);
    cr_expect_eq(order[3], 2);
}
