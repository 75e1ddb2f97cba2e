/* The sizes and the places of the stages: every choice that the rules admit, weighed by the cost
 * model.
 *
 * Rules. A tensor group lies in a node, a stage's data groups in one fabric, the stages of a fabric
 * follow each other. Where data is left open it is the largest that fits and divides the batch: the
 * plan uses the GPUs it is given; of plans that use at least eight tenths of the most that any can
 * use, the fastest is taken. Where a fabric carries several stages or has slots to spare, its
 * nodes are sorted by speed, so that a stage is not held back by one slow node; else they keep the
 * order of the file. */
#ifndef HOLMES_SEARCH_H
#define HOLMES_SEARCH_H

#include "place.h"

#define HOLMES_SEARCH_STAGES_MOST 1024
#define HOLMES_SEARCH_USED_TENTHS 8

/* Slots of one fabric for one tensor size. */
struct holmes_pool {
    int n;
    struct holmes_place_node *nodes; /* fastest first; equals in order of the file */
    int64_t slots;
    bool unequal; /* speeds differ */
};

/* One pool per fabric. 0 or -ENOMEM. */
int holmes_pools_init(const struct holmes_world *w, int tensor, struct holmes_pool **out);
void holmes_pools_fini(struct holmes_pool *pools, int n);

#define HOLMES_SEARCH_PARTS_MOST 5

/* The stages of one fabric. They are taken from the pool, fastest first, and then either turned
 * around or put in another order part by part: a part is the stages between two places where a
 * stage's end is a node's end. */
struct holmes_search_block {
    int fabric, stages;
    bool slowest_first;
    int nparts; /* 0: not put in another order */
    unsigned char parts[HOLMES_SEARCH_PARTS_MOST];
};

struct holmes_search_result {
    int tensor, pipeline, data, micro_batch;
    bool crosses; /* data groups straddle: stages run through the blocks without regard */
    int nblocks;
    struct holmes_search_block *blocks; /* in order of the pipeline */
    double step_s;
    int considered;  /* placements whose cost was compared */
    double faster_s; /* step of a plan that uses too few GPUs to be taken; 0: none is faster */
    int64_t faster_gpus;
    int64_t room; /* data size that would fit, did the batch divide by it */
};

/* 0; -EINVAL when nothing fits, with a sentence in `why`; -ENOMEM. The caller frees blocks. */
int holmes_search(const struct holmes_world *w, const struct holmes_plan_request *req,
                  struct holmes_search_result *out, char *why, size_t why_len);

/* The nodes of a result in rank order, with the slots used. The caller frees *out. */
int holmes_search_nodes(const struct holmes_world *w, const struct holmes_search_result *r,
                        struct holmes_place_node **out, int *n);

/* The layer counts of nobody who thought: even, the first stages one more. */
void holmes_search_even(struct holmes_cost_job *job);

/* Divides the model's layers over the job's stages by TFLOPS and memory (place_cost came before),
 * and weighs the step. Where all stages have the same TFLOPS, and even layers are faster for what
 * does not follow them (traffic), these are taken. Errors as holmes_partition. */
int holmes_search_layers(struct holmes_cost_job *job, const struct holmes_place_stage *stages,
                         struct holmes_plan_cost *cost, int64_t *window);

#endif
