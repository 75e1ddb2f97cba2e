/* See order.h. */
#include "order.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define SAME 1e-12 /* relative */

/* rest[set * n + at]: least cost from `at` through all places outside `set`, which holds `at`. */
static void rest_fill(int n, const double *cost, const double *close, int first, double *rest)
{
    int full = (1 << n) - 1;

    for (int set = full; set > 0; set--)
        for (int at = 0; at < n; at++) {
            double *best = &rest[set * n + at];

            if (!(set & 1 << at))
                continue;
            *best = set == full ? (close ? close[at * n + first] : 0) : INFINITY;
            for (int to = 0; to < n; to++)
                if (!(set & 1 << to))
                    *best = fmin(*best, cost[at * n + to] + rest[(set | 1 << to) * n + to]);
        }
}

static bool less(double a, double b)
{
    return a < b - SAME * fabs(b);
}

static void walk(int n, const double *cost, const double *rest, int first, int *order)
{
    int set = 1 << first, at = first;

    order[0] = first;
    for (int i = 1; i < n; i++) {
        double best = INFINITY;
        int next = -1;

        for (int to = 0; to < n; to++) {
            double c;

            if (set & 1 << to)
                continue;
            c = cost[at * n + to] + rest[(set | 1 << to) * n + to];
            if (next < 0 || less(c, best)) {
                best = c;
                next = to;
            }
        }
        order[i] = at = next;
        set |= 1 << next;
    }
}

int holmes_order_find(int n, const double *cost, const double *close, int *order)
{
    double *rest = malloc(((size_t)n << n) * sizeof(*rest)), best = INFINITY;

    if (!rest)
        return -ENOMEM;
    for (int first = 0; first < n; first++) {
        double c;

        if (close || first == 0)
            rest_fill(n, cost, close, first, rest);
        c = rest[(1 << first) * n + first];
        if (first == 0 || less(c, best)) {
            best = c;
            walk(n, cost, rest, first, order);
        }
    }
    free(rest);
    return 0;
}

static void swap(int *a, int *b)
{
    int t = *a;

    *a = *b;
    *b = t;
}

int holmes_order_next(int *order, int n)
{
    int i = n - 2, j = n - 1;

    while (i >= 0 && order[i] > order[i + 1])
        i--;
    if (i < 0)
        return 0;
    while (order[j] < order[i])
        j--;
    swap(&order[i], &order[j]);
    for (int a = i + 1, b = n - 1; a < b; a++, b--)
        swap(&order[a], &order[b]);
    return 1;
}
