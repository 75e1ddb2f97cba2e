/* The arithmetic of pattern.h, applied to a rank's output. */
#include "check.h"

#include "pattern.h"

static uint64_t check_gathered(const struct holmes_rank_work *w)
{
    const struct holmes_rank_attr *a = w->attr;
    size_t block = w->shape.count * holmes_dtype_size(a->type);
    uint64_t wrong = 0;

    for (int i = 0; i < a->nranks; i++)
        wrong += holmes_pattern_check((const char *)w->out + (size_t)i * block, 0, w->shape.count,
                                      a->type, i, w->salt);
    return wrong;
}

uint64_t holmes_check_collective(const struct holmes_rank_work *w)
{
    const struct holmes_rank_attr *a = w->attr;
    size_t first = 0;

    if (a->collective == HOLMES_ALL_GATHER)
        return check_gathered(w);
    if (a->collective == HOLMES_REDUCE_SCATTER)
        first = (size_t)a->rank * w->shape.count;
    return holmes_pattern_check_sum(w->out, first, w->shape.count, a->type, a->nranks, w->salt);
}

uint64_t holmes_check_messages(const struct holmes_rank_work *w, size_t n)
{
    const struct holmes_rank_attr *a = w->attr;
    uint64_t wrong = 0;

    for (size_t i = 0; i < n; i++)
        wrong +=
            holmes_pattern_check((const char *)w->out + i * w->shape.size_bytes, 0, w->shape.count,
                                 a->type, holmes_rank_partner(a->rank), w->salt);
    return wrong;
}
