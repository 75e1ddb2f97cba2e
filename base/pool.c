#include "pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "pages.h"

int holmes_pool_init(struct holmes_pool *pool, size_t count, size_t size)
{
    pool->objects = holmes_pages_get(count * size);
    pool->free = malloc(count * sizeof *pool->free);
    pool->size = size;
    pool->count = pool->nfree = count;
    if (!pool->objects || !pool->free) {
        holmes_pool_fini(pool);
        return -ENOMEM;
    }
    for (size_t i = 0; i < count; i++)
        pool->free[count - 1 - i] = (char *)pool->objects + i * size;
    return 0;
}

void holmes_pool_fini(struct holmes_pool *pool)
{
    holmes_pages_put(pool->objects, pool->count * pool->size);
    free(pool->free);
    pool->objects = NULL;
    pool->free = NULL;
    pool->nfree = pool->count = 0;
}

void *holmes_pool_get(struct holmes_pool *pool)
{
    return pool->nfree > 0 ? pool->free[--pool->nfree] : NULL;
}

void holmes_pool_put(struct holmes_pool *pool, void *object)
{
    assert(pool->nfree < pool->count);
    pool->free[pool->nfree++] = object;
}
