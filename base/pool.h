/* Fixed-size object pool: a free list over one allocation, of which what was never used costs no
 * memory (pages.h). Not thread safe: the owner locks.
 * Objects keep their contents between put and get, so that stale identifiers can be told by a
 * generation number inside the object. */
#ifndef HOLMES_POOL_H
#define HOLMES_POOL_H

#include <stddef.h>

struct holmes_pool {
    void *objects;
    void **free;
    size_t size, count, nfree;
};

/* `count` zeroed objects of `size` bytes. 0 or -ENOMEM. */
int holmes_pool_init(struct holmes_pool *pool, size_t count, size_t size);
void holmes_pool_fini(struct holmes_pool *pool);
/* NULL when all are out. */
void *holmes_pool_get(struct holmes_pool *pool);
void holmes_pool_put(struct holmes_pool *pool, void *object);

#endif
