#include "tp.h"

static int follow(struct holmes_tp *t, int rc)
{
    return rc ? rc : holmes_links_follow(t->links, t->links->tp, &t->op);
}

static int all_reduce(void *ctx, void *buf, size_t count, enum holmes_dtype type)
{
    struct holmes_tp *t = ctx;
    struct holmes_comm *c = t->links->tp->comm;

    return follow(t, c->ops->all_reduce(c, buf, buf, count, type, &t->op));
}

static int all_gather(void *ctx, const float *in, float *out, size_t count)
{
    struct holmes_tp *t = ctx;
    struct holmes_comm *c = t->links->tp->comm;

    return follow(t, c->ops->all_gather(c, in, out, count, HOLMES_FLOAT32, &t->op));
}

const struct holmes_stage_group *holmes_tp_init(struct holmes_tp *t, struct holmes_links *links)
{
    *t = (struct holmes_tp){.links = links};
    if (!links->tp)
        return NULL;
    t->group = (struct holmes_stage_group){.rank = links->tp->comm->rank,
                                           .size = links->tp->comm->size,
                                           .all_reduce = all_reduce,
                                           .all_gather = all_gather,
                                           .ctx = t};
    return &t->group;
}
