#include "mr.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>

#include "log.h"

static int by_range(const void *va, const void *vb)
{
    const struct holmes_mr *a = va, *b = vb;

    if (a->addr != b->addr)
        return a->addr < b->addr ? -1 : 1;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return 0;
}

void mr_cache_init(struct mr_cache *m, const struct wire_ops *ops, struct wire_nic *wn)
{
    pthread_mutex_init(&m->lock, NULL);
    m->tree = NULL;
    m->ops = ops;
    m->wn = wn;
}

void mr_cache_fini(struct mr_cache *m)
{
    while (m->tree) {
        struct holmes_mr *mr = *(struct holmes_mr **)m->tree;

        tdelete(mr, &m->tree, by_range);
        m->ops->mr_dereg(m->wn, &mr->wire);
        free(mr);
    }
    pthread_mutex_destroy(&m->lock);
}

/* Called with the lock held. */
static int cache_add(struct mr_cache *m, void *addr, size_t len, struct holmes_mr **out)
{
    struct holmes_mr *mr = calloc(1, sizeof *mr);
    int rc;

    if (!mr)
        return -ENOMEM;
    mr->addr = (uintptr_t)addr;
    mr->len = len;
    rc = m->ops->mr_reg(m->wn, addr, len, &mr->wire);
    if (rc != 0) {
        holmes_warn(NET, "cannot register %zu bytes at %p: %s", len, addr, holmes_strerror(rc));
        free(mr);
        return rc;
    }
    if (!tsearch(mr, &m->tree, by_range)) {
        m->ops->mr_dereg(m->wn, &mr->wire);
        free(mr);
        return -ENOMEM;
    }
    *out = mr;
    return 0;
}

int mr_cache_get(struct mr_cache *m, void *addr, size_t len, struct holmes_mr **out)
{
    struct holmes_mr key = {.addr = (uintptr_t)addr, .len = len}, *mr = NULL, **found;
    int rc = 0;

    if (len == 0)
        return -EINVAL;
    pthread_mutex_lock(&m->lock);
    found = tfind(&key, &m->tree, by_range);
    if (found)
        mr = *found;
    else
        rc = cache_add(m, addr, len, &mr);
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
        m->ops->mr_dereg(m->wn, &mr->wire);
        free(mr);
    }
    pthread_mutex_unlock(&m->lock);
}
