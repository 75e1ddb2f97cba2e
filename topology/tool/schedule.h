/* Who is measured with whom, and when: rounds of pairs in which no node comes twice, so that nobody
 * shares his NIC with a second measurement. Pure and deterministic. Nodes are numbers from 0. */
#ifndef HOLMES_TOPO_SCHEDULE_H
#define HOLMES_TOPO_SCHEDULE_H

#include "plan.h"

#define HOLMES_SCHEDULE_ALL_MAX 64 /* nodes of which every pair is measured */

struct holmes_pair {
    int a, b; /* a != b */
};

struct holmes_schedule {
    int nrounds, npairs;
    int *first; /* round r has the pairs first[r] to first[r + 1] - 1 */
    struct holmes_pair *pairs;
};

/* All pairs of `n` nodes: a tournament by the circle method, in n - 1 rounds, or n where n is odd.
 * Fewer than two nodes have no round. 0 or -ENOMEM. */
int holmes_schedule_all(int n, struct holmes_schedule *out);

/* These pairs of `n` nodes, each once whichever way round and however often it is in the list, each
 * in the first round that is free of both its nodes. -EINVAL for a pair that is none. */
int holmes_schedule_pairs(int n, const struct holmes_pair *pairs, int npairs,
                          struct holmes_schedule *out);

/* The pairs of a plan's nodes that talk in a step: the neighbours of every replica's pipeline and
 * of every stage's data ring; and one pair of each two fabrics. The sample that is measured where
 * all pairs are too many. Nodes are indices of plan->nodes. May hold a pair twice. The caller frees
 * *out. 0 or -ENOMEM. */
int holmes_schedule_sample(const struct holmes_plan_doc *doc, struct holmes_pair **out,
                           int *npairs);

/* The same for hosts without a plan: each with the next, and with the one half the list away. */
int holmes_schedule_ring(int n, struct holmes_pair **out, int *npairs);

void holmes_schedule_fini(struct holmes_schedule *s);

#endif
