/* The order of fabrics against all orders. */
#include <criterion/criterion.h>
#include <math.h>

#include "topology/plan/order.h"

static unsigned next(unsigned *state)
{
    *state = *state * 1103515245u + 12345u;
    return *state >> 16 & 0x7fff;
}

static double sum(int n, const double *cost, const double *close, const int *order)
{
    double s = close ? close[order[n - 1] * n + order[0]] : 0;

    for (int i = 0; i + 1 < n; i++)
        s += cost[order[i] * n + order[i + 1]];
    return s;
}

Test(order, is_the_best_of_all_orders)
{
    unsigned state = 3;

    for (int round = 0; round < 60; round++) {
        int n = 1 + round % 8, found[8], all[8] = {0, 1, 2, 3, 4, 5, 6, 7}, first[8];
        double cost[64], close[64], best = INFINITY;
        const double *closing = round % 3 == 0 ? NULL : close;

        for (int i = 0; i < n * n; i++) {
            cost[i] = 1 + next(&state) % 5;
            close[i] = next(&state) % 9;
        }
        do {
            double s = sum(n, cost, closing, all);

            if (s < best) {
                best = s;
                memcpy(first, all, sizeof(first));
            }
        } while (holmes_order_next(all, n));
        cr_assert_eq(holmes_order_find(n, cost, closing, found), 0);
        cr_assert_float_eq(sum(n, cost, closing, found), best, 1e-9);
        cr_assert_arr_eq(found, first, (size_t)n * sizeof(int), "round %d: not the first", round);
    }
}

Test(order, walks_all_permutations_once)
{
    int order[5] = {0, 1, 2, 3, 4}, n = 1;

    while (holmes_order_next(order, 5))
        n++;
    cr_assert_eq(n, 120);
}
