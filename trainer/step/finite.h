/* Weights and gradients that are no finite numbers: which is the first of the model, over all ranks
 * of the job. */
#ifndef HOLMES_FINITE_H
#define HOLMES_FINITE_H

#include "links.h"
#include "stage.h"

enum holmes_unfit_kind { HOLMES_ALL_FINITE, HOLMES_UNFIT_GRADIENT, HOLMES_UNFIT_WEIGHT };

struct holmes_unfit {
    enum holmes_unfit_kind kind;
    int part; /* of the model, in forward order: with virtual stages a rank has several */
    int tensor;
    char name[64]; /* of the tensor */
    bool nan;      /* else infinite */
    int others;    /* further such tensors of this part */
};

/* The first tensor of a stage in forward order with such a weight, else with such a gradient.
 * -ENOMEM when the kernels' memory cannot be looked into. */
int holmes_unfit_find(struct holmes_stage *s, int part, struct holmes_unfit *out);
/* Whether the first of the job is this rank's: a weight goes before every gradient, which it
 * spoils, then the earlier tensor, then the lower rank. *kind: of the first. Collective. */
int holmes_unfit_is_mine(struct holmes_links *l, const struct holmes_unfit *mine, bool *first,
                         enum holmes_unfit_kind *kind);

#endif
