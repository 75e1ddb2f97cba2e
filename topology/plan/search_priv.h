/* What the files of the search share. */
#ifndef HOLMES_SEARCH_PRIV_H
#define HOLMES_SEARCH_PRIV_H

#include "search.h"

#define HOLMES_SEARCH_PERMUTED_MOST 4 /* fabrics that straddle, of which all orders are tried */
#define HOLMES_SEARCH_ORDERED_MOST  8 /* fabrics of which all orders may be tried */
#define HOLMES_SEARCH_TURNED_MOST   3 /* fabrics of which both directions are tried */
#define HOLMES_SEARCH_BETTER        (1 - 1e-9)

/* Why nothing was found. */
enum holmes_search_miss { HOLMES_MISS_SLOTS, HOLMES_MISS_MEMORY };

struct holmes_search_run {
    const struct holmes_world *w;
    const struct holmes_plan_request *req;
    struct holmes_search_result *out;
    struct holmes_place_job job;
    struct holmes_place_stage *stages; /* of the placement at hand, [most_stages] */
    int most_stages;
    int64_t *divisors; /* of the batch, ascending */
    int ndivisors;
    int64_t work_each;  /* for one pair of tensor and pipeline */
    int64_t only_micro; /* 0: all */
    double least_s;     /* of what was weighed since it was set */
    int64_t used_from, used_below, most_used;
    struct holmes_search_block *spare; /* [fabrics] */

    struct holmes_pool *pools; /* of the tensor size at hand */
    int table_data;            /* data size of the tables; 0: none */
    struct holmes_place_stage **tables;
    int *capacity;                    /* [fabrics]: stages that fit */
    struct holmes_place_node *joined; /* scratch: all nodes, for crossing */

    struct holmes_search_block *blocks; /* scratch [fabrics] */
    int *allocation, *order;            /* scratch [fabrics] */
    double *cost, *close;               /* scratch [HOLMES_ORDER_MOST squared] */

    enum holmes_search_miss miss;
    char miss_why[512];
    double miss_ratio; /* HOLMES_MISS_MEMORY: of need to limit, the least */
};

/* refuse.c: what cannot be, and why nothing was found. -EINVAL with a sentence, or 0. */
int holmes_search_check(const struct holmes_search_run *s, char *why, size_t why_len);
void holmes_search_refuse(const struct holmes_search_run *s, char *why, size_t why_len);
/* The job's stages have too little memory; the nearest miss is kept. */
void holmes_search_miss_memory(struct holmes_search_run *s);
bool holmes_search_tensor_divides(const struct holmes_search_run *s, int tensor);
int holmes_search_micro_least(const struct holmes_search_run *s);

/* layers.c */
double holmes_search_usable_bytes(const struct holmes_place_stage *s);

/* arrange.c. The job has its sizes, the tables are filled for its data size, `allocation` says how
 * many stages each fabric has. All orders of the `n` fabrics in `used` (ascending), or good ones.
 */
int holmes_search_orders(struct holmes_search_run *s, const int *used, int n);
/* All orders from the one in `order` (ascending) on. */
int holmes_search_permute(struct holmes_search_run *s, int n);
/* All microbatch sizes for the stages at hand, which are those of `nblocks` blocks. */
int holmes_search_weigh(struct holmes_search_run *s, int nblocks, bool crosses);
/* Stages to be weighed for one placement, all microbatches. */
int64_t holmes_search_work(const struct holmes_search_run *s);
int64_t holmes_search_factorial(int n);

#endif
