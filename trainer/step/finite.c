/* Looks through flat arrays tensor by tensor, through a small buffer, since they may lie on a GPU.
 */
#include "finite.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHUNK ((size_t)1 << 16) /* elements */

/* A flat array of the stage, in memory of its kernels. */
struct flat {
    const char *at;
    enum holmes_dtype type;
};

static float value(const void *x, enum holmes_dtype type, size_t i)
{
    return type == HOLMES_FLOAT32 ? ((const float *)x)[i]
                                  : holmes_bf16_value(((const uint16_t *)x)[i]);
}

/* The first of the tensor's values that is not finite; 0 when there is none. */
static float first_unfit(const struct holmes_kernels *k, struct flat flat,
                         const struct holmes_tensor *t, void *buf)
{
    const size_t size = holmes_dtype_size(flat.type);

    for (size_t at = 0; at < t->count; at += CHUNK) {
        size_t count = t->count - at < CHUNK ? t->count - at : CHUNK;

        k->copy(buf, flat.at + (t->offset + at) * size, count * size);
        for (size_t i = 0; i < count; i++)
            if (!isfinite(value(buf, flat.type, i)))
                return value(buf, flat.type, i);
    }
    return 0;
}

static void look(struct holmes_stage *s, struct flat flat, enum holmes_unfit_kind kind, void *buf,
                 struct holmes_unfit *out)
{
    for (int i = 0; i < holmes_stage_ntensors(s); i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(s, i);
        float found = first_unfit(holmes_stage_kernels(s), flat, t, buf);

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
    const struct holmes_kernels *k = holmes_stage_kernels(s);
    const struct flat weights = {holmes_stage_weights(s), k->dtype};
    const struct flat grads = {(const char *)holmes_stage_grads(s), HOLMES_FLOAT32};
    void *buf = malloc(CHUNK * sizeof(float));

    if (!buf)
        return -ENOMEM;
    *out = (struct holmes_unfit){.part = part};
    k->sync();
    look(s, weights, HOLMES_UNFIT_WEIGHT, buf, out);
    if (out->kind == HOLMES_ALL_FINITE)
        look(s, grads, HOLMES_UNFIT_GRADIENT, buf, out);
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
