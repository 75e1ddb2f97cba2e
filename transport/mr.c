#include "mr.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "log.h"

static int by_range(const void *va, const void *vb)
{
    const struct holmes_mr *a = va, *b = vb;

    if (a->addr != b->addr)
        return a->addr < b->addr ? -1 : 1;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return (a->kind > b->kind) - (a->kind < b->kind);
}

void mr_cache_init(struct mr_cache *m)
{
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
}

static void rails_dereg(struct mr_cache *m, struct holmes_mr *mr, int nrails)
{
    if (mr->staged)
        return;
    for (int i = 0; i < nrails; i++) {
        if (m->rails[i].ops)
            m->rails[i].ops->mr_dereg(m->rails[i].wn, &mr->wire[i]);
    }
}

static int rail_reg(const struct mr_rail *rail, const struct mr_range *r, struct wire_mr *out)
{
    if (!rail->ops)
        return 0;
    switch (r->kind) {
    case MR_HOST:
    case MR_CUDA:
        return rail->ops->mr_reg(rail->wn, r->addr, r->len, out);
    case MR_DMABUF:
        if (!rail->ops->mr_reg_dmabuf)
            return -EOPNOTSUPP;
        return rail->ops->mr_reg_dmabuf(rail->wn, r->addr, r->len, r->offset, r->fd, out);
    }
    return -EINVAL;
}

static bool has_rdma(const struct mr_cache *m)
{
    for (int i = 0; i < m->nrails; i++) {
        if (m->rails[i].ops && m->rails[i].ops->rdma)
            return true;
    }
    return false;
}

/* NCCL registers one buffer per protocol, and its length tells which. A plain buffer that happens
 * to have the same length costs some speed, no more. */
static enum stage_layout layout_of(size_t len)
{
    if (len == (size_t)holmes_env_int(HOLMES_ENV_NCCL_LL_BUFFSIZE))
        return STAGE_LL;
    if (len == (size_t)holmes_env_int(HOLMES_ENV_NCCL_LL128_BUFFSIZE))
        return STAGE_LL128;
    return STAGE_PLAIN;
}

void mr_cache_fini(struct mr_cache *m)
{
    while (m->tree) {
        struct holmes_mr *mr = *(struct holmes_mr **)m->tree;

        tdelete(mr, &m->tree, by_range);
        rails_dereg(m, mr, m->nrails);
        free(mr);
    }
    pthread_mutex_destroy(&m->lock);
}

/* Called with the lock held. */
static int cache_add(struct mr_cache *m, const struct mr_range *r, struct holmes_mr **out)
{
    static const char *const kinds[] = {
        [MR_HOST] = "host", [MR_CUDA] = "GPU", [MR_DMABUF] = "dma-buf"};
    struct holmes_mr *mr = calloc(1, sizeof *mr);
    int rc = 0, done = 0;

    if (!mr)
        return -ENOMEM;
    mr->addr = (uintptr_t)r->addr;
    mr->len = r->len;
    mr->kind = r->kind;
    mr->staged = r->kind != MR_HOST && !has_rdma(m);
    mr->layout = layout_of(r->len);
    for (done = 0; rc == 0 && !mr->staged && done < m->nrails; done += rc == 0)
        rc = rail_reg(&m->rails[done], r, &mr->wire[done]);
    if (rc != 0)
        holmes_warn(NET, "cannot register %zu bytes of %s memory at %p: %s", r->len, kinds[r->kind],
                    r->addr, holmes_strerror(rc));
    else if (!tsearch(mr, &m->tree, by_range))
        rc = -ENOMEM;
    if (rc != 0) {
        rails_dereg(m, mr, done);
        free(mr);
        return rc;
    }
    *out = mr;
    return 0;
}

int mr_cache_get(struct mr_cache *m, const struct mr_range *range, struct holmes_mr **out)
{
    struct holmes_mr key = {.addr = (uintptr_t)range->addr, .len = range->len, .kind = range->kind};
    struct holmes_mr *mr = NULL, **found;
    int rc = 0;

    if (range->len == 0)
        return -EINVAL;
    pthread_mutex_lock(&m->lock);
    found = tfind(&key, &m->tree, by_range);
    if (found)
        mr = *found;
    else
        rc = cache_add(m, range, &mr);
    if (rc == 0) {
        mr->refs++;
        *out = mr;
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

void mr_cache_put(struct mr_cache *m, struct holmes_mr *mr)
{
    pthread_mutex_lock(&m->lock);
    if (--mr->refs == 0) {
        tdelete(mr, &m->tree, by_range);
        rails_dereg(m, mr, m->nrails);
        free(mr);
    }
    pthread_mutex_unlock(&m->lock);
}
