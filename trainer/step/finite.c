/* Looks through flat arrays tensor by tensor, through a small buffer, since they may lie on a GPU.
 */
#include "finite.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHUNK ((size_t)1 << 16) /* elements */

/* The first of `n` values that is not finite; 0 when there is none. */
static float first_unfit(const struct holmes_kernels *k, const float *x, size_t n, float *buf)
{
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t count = n - at < CHUNK ? n - at : CHUNK;

        k->copy(buf, x + at, count * sizeof *buf);
        for (size_t i = 0; i < count; i++)
            if (!isfinite(buf[i]))
                return buf[i];
    }
    return 0;
}

static void look(struct holmes_stage *s, const float *flat, enum holmes_unfit_kind kind, float *buf,
                 struct holmes_unfit *out)
{
    for (int i = 0; i < holmes_stage_ntensors(s); i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(s, i);
        float found = first_unfit(holmes_stage_kernels(s), flat + t->offset, t->count, buf);

        if (found == 0)
            continue;
        if (out->kind == kind) {
            out->others++;
            continue;
        }
        out->kind = kind;
        out->tensor = i;
        out->nan = isnan(found);
        snprintf(out->name, sizeof out->name, "%s", t->name);
    }
}

int holmes_unfit_find(struct holmes_stage *s, int part, struct holmes_unfit *out)
{
    float *buf = malloc(CHUNK * sizeof *buf);

    if (!buf)
        return -ENOMEM;
    *out = (struct holmes_unfit){.part = part};
    holmes_stage_kernels(s)->sync();
    look(s, holmes_stage_params(s), HOLMES_UNFIT_WEIGHT, buf, out);
    if (out->kind == HOLMES_ALL_FINITE)
        look(s, holmes_stage_grads(s), HOLMES_UNFIT_GRADIENT, buf, out);
    free(buf);
    return 0;
}

int holmes_unfit_is_mine(struct holmes_links *l, const struct holmes_unfit *mine, bool *first,
                         enum holmes_unfit_kind *kind)
{
    struct holmes_comm *c = l->world->comm;
    float said[3] = {(float)mine->kind, (float)mine->part, (float)mine->tensor};
    float(*all)[3] = malloc((size_t)c->size * sizeof *all);
    struct holmes_op *op = NULL;
    int rc = all ? c->ops->all_gather(c, said, all, 3, HOLMES_FLOAT32, &op) : -ENOMEM, best = 0;

    if (rc == 0)
        rc = holmes_links_wait(l, l->world, &op);
    for (int r = 1; r < c->size && rc == 0; r++)
        if (all[r][0] > all[best][0] ||
            (all[r][0] == all[best][0] &&
             (all[r][1] < all[best][1] || (all[r][1] == all[best][1] && all[r][2] < all[best][2]))))
            best = r;
    if (rc == 0) {
        *first = best == c->rank;
        *kind = (enum holmes_unfit_kind)all[best][0];
        free(all);
    } /* else the operation may still own the memory */
    return rc;
}
