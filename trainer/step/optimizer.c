/* AdamW on a range of a stage's flat arrays. The range is cut once into runs of tensors that agree
 * on weight decay; a step is one kernel call per run. */
#include "optimizer.h"

#include "log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct run {
    size_t offset, count; /* in the stage's arrays */
    bool decay;
};

struct holmes_optimizer {
    struct holmes_stage *stage;
    struct holmes_adamw hp;
    size_t first, count;
    /* Of elements first, first+1, ...: masters, first and second moments. */
    float *w, *m, *v;
    struct run *runs;
    int nruns;
};

static bool hp_fit(const struct holmes_adamw *hp)
{
    return hp->beta1 >= 0 && hp->beta1 < 1 && hp->beta2 >= 0 && hp->beta2 < 1 && hp->eps > 0 &&
           hp->weight_decay >= 0 && isfinite(hp->eps) && isfinite(hp->weight_decay);
}

static int check_create(struct holmes_stage *s, const struct holmes_adamw *hp, size_t first,
                        size_t count)
{
    const size_t n = holmes_stage_nparams(s);

    if (first > n || count > n - first) {
        holmes_warn(TRAIN, "optimizer: elements %zu and %zu on are no range of the stage's %zu",
                    first, count, n);
        return -EINVAL;
    }
    if (!hp_fit(hp)) {
        holmes_warn(TRAIN,
                    "optimizer: beta1 %g and beta2 %g must lie in [0, 1), eps %g above 0, "
                    "weight decay %g not below 0",
                    hp->beta1, hp->beta2, hp->eps, hp->weight_decay);
        return -EINVAL;
    }
    return 0;
}

/* Else the weights of the stage are the masters. */
static bool has_masters(const struct holmes_optimizer *o)
{
    return holmes_stage_kernels(o->stage)->dtype != HOLMES_FLOAT32;
}

/* Tensors lie one after the other, so a run ends only where the flag changes. */
static void find_runs(struct holmes_optimizer *o)
{
    const size_t end = o->first + o->count;

    for (int i = 0; i < holmes_stage_ntensors(o->stage); i++) {
        const struct holmes_tensor *t = holmes_stage_tensor(o->stage, i);
        const size_t a = t->offset > o->first ? t->offset : o->first;
        const size_t b = t->offset + t->count < end ? t->offset + t->count : end;

        if (a >= b)
            continue;
        if (o->nruns > 0 && o->runs[o->nruns - 1].decay == t->decay)
            o->runs[o->nruns - 1].count += b - a;
        else
            o->runs[o->nruns++] = (struct run){a, b - a, t->decay};
    }
}

static int take_memory(struct holmes_optimizer *o)
{
    const struct holmes_kernels *k = holmes_stage_kernels(o->stage);
    const size_t bytes = o->count * sizeof(float);

    o->w = has_masters(o) ? k->alloc(bytes) : (float *)holmes_stage_weights(o->stage) + o->first;
    o->m = k->alloc(bytes);
    o->v = k->alloc(bytes);
    o->runs = calloc((size_t)holmes_stage_ntensors(o->stage) + 1, sizeof *o->runs);
    return o->w && o->m && o->v && o->runs ? 0 : -ENOMEM;
}

int holmes_optimizer_create(struct holmes_stage *s, const struct holmes_adamw *hp, size_t first,
                            size_t count, struct holmes_optimizer **out)
{
    struct holmes_optimizer *o;
    int rc = check_create(s, hp, first, count);

    if (rc != 0)
        return rc;
    o = calloc(1, sizeof *o);
    if (!o)
        return -ENOMEM;
    o->stage = s;
    o->hp = *hp;
    o->first = first;
    o->count = count;
    rc = take_memory(o);
    if (rc != 0) {
        holmes_warn(TRAIN, "optimizer: no memory for the moments%s of %zu parameters",
                    has_masters(o) ? " and masters" : "", count);
        holmes_optimizer_destroy(o);
        return rc;
    }
    find_runs(o);
    *out = o;
    return 0;
}

void holmes_optimizer_step(struct holmes_optimizer *o, float lr, float grad_scale, int t)
{
    const struct holmes_kernels *k = holmes_stage_kernels(o->stage);
    char *rounded = has_masters(o) ? holmes_stage_weights(o->stage) : NULL;
    const size_t real = holmes_dtype_size(k->dtype);
    const float *grads = holmes_stage_grads(o->stage);
    struct holmes_adamw_step step = {
        .lr = lr,
        .beta1 = o->hp.beta1,
        .beta2 = o->hp.beta2,
        .eps = o->hp.eps,
        .grad_scale = grad_scale,
        .correction1 = (float)(1 - pow(o->hp.beta1, t)),
        .correction2 = (float)(1 - pow(o->hp.beta2, t)),
    };

    for (int i = 0; i < o->nruns; i++) {
        const struct run *r = &o->runs[i];
        const size_t at = r->offset - o->first;

        step.weight_decay = r->decay ? o->hp.weight_decay : 0;
        k->adamw(o->w + at, rounded ? rounded + r->offset * real : NULL, o->m + at, o->v + at,
                 grads + r->offset, r->count, &step);
    }
}

void holmes_optimizer_set_masters(struct holmes_optimizer *o, size_t offset, size_t count,
                                  const float *values)
{
    const size_t a = offset > o->first ? offset : o->first;
    const size_t b = offset + count < o->first + o->count ? offset + count : o->first + o->count;

    if (has_masters(o) && a < b)
        holmes_stage_kernels(o->stage)->copy(o->w + (a - o->first), values + (a - offset),
                                             (b - a) * sizeof *values);
}

float *holmes_optimizer_masters(struct holmes_optimizer *o)
{
    return o->w;
}

float *holmes_optimizer_first_moments(struct holmes_optimizer *o)
{
    return o->m;
}

float *holmes_optimizer_second_moments(struct holmes_optimizer *o)
{
    return o->v;
}

void holmes_optimizer_destroy(struct holmes_optimizer *o)
{
    if (!o)
        return;
    holmes_stage_kernels(o->stage)->free(o->v);
    holmes_stage_kernels(o->stage)->free(o->m);
    if (has_masters(o))
        holmes_stage_kernels(o->stage)->free(o->w);
    free(o->runs);
    free(o);
}
