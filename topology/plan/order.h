/* The order of fabrics along the pipeline. Pure. */
#ifndef HOLMES_ORDER_H
#define HOLMES_ORDER_H

#define HOLMES_ORDER_MOST 12

/* The path through all `n` places (1 to HOLMES_ORDER_MOST) with the least sum of cost[from * n +
 * to], plus close[last * n + first] where `close` is not NULL (the tied embedding goes from the
 * last stage to the first). Of equal ones the first in order of the indices. Exact: Held and Karp
 * 1962, over sets of places. 0 or -ENOMEM. */
int holmes_order_find(int n, const double *cost, const double *close, int *order);

/* The next permutation in order of the indices; 0 after the last. */
int holmes_order_next(int *order, int n);

#endif
