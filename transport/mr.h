/* Reference-counted registration cache of one NIC. NCCL registers the same buffer once per
 * connection; the wire registers it once. Thread safe. */
#ifndef HOLMES_MR_H
#define HOLMES_MR_H

#include <pthread.h>

#include "driver.h"
#include "transport.h"

struct holmes_mr {
    uintptr_t addr;
    size_t len;
    unsigned refs;
    struct wire_mr wire;
};

struct mr_cache {
    pthread_mutex_t lock;
    void *tree; /* tsearch(3), by exact (addr, len) */
    const struct wire_ops *ops;
    struct wire_nic *wn;
};

void mr_cache_init(struct mr_cache *m, const struct wire_ops *ops, struct wire_nic *wn);
/* Releases what callers forgot. */
void mr_cache_fini(struct mr_cache *m);

int mr_cache_get(struct mr_cache *m, void *addr, size_t len, struct holmes_mr **out);
void mr_cache_put(struct mr_cache *m, struct holmes_mr *mr);

static inline bool mr_covers(const struct holmes_mr *mr, const void *buf, size_t len)
{
    uintptr_t at = (uintptr_t)buf;

    return at >= mr->addr && len <= mr->len && at - mr->addr <= mr->len - len;
}

/* What the peer quotes to reach `buf` inside `mr`. */
static inline uint64_t mr_remote_addr(const struct holmes_mr *mr, const void *buf)
{
    return mr->wire.base + ((uintptr_t)buf - mr->addr);
}

#endif
