/* Reference-counted registration cache of one NIC. NCCL registers the same buffer once per
 * connection; the wire registers it once for each of its rails. GPU memory on a NIC without RDMA is
 * noted only. Thread safe. */
#ifndef HOLMES_MR_H
#define HOLMES_MR_H

#include <pthread.h>

#include "driver.h"
#include "stage.h"
#include "transport.h"

enum mr_kind {
    MR_HOST,
    MR_CUDA,   /* GPU memory by its address */
    MR_DMABUF, /* GPU memory by a dma-buf */
};

/* What a caller wants registered. */
struct mr_range {
    enum mr_kind kind;
    void *addr;
    size_t len;
    uint64_t offset; /* MR_DMABUF: of `addr` in the dma-buf */
    int fd;          /* MR_DMABUF: needed during the call only */
};

struct holmes_mr {
    uintptr_t addr;
    size_t len;
    enum mr_kind kind;
    unsigned refs;
    bool staged;              /* the wire does not know it: stage.h carries its bytes */
    enum stage_layout layout; /* of what NCCL receives into a buffer of this length */
    struct wire_mr wire[HOLMES_MAX_RAILS]; /* one for each port of a fused NIC */
};

struct mr_rail {
    const struct wire_ops *ops; /* NULL: this port could not be opened */
    struct wire_nic *wn;
};

struct mr_cache {
    pthread_mutex_t lock;
    void *tree; /* tsearch(3), by exact (addr, len, kind) */
    int nrails;
    struct mr_rail rails[HOLMES_MAX_RAILS];
};

/* The rails are filled in by the caller, before the first registration. */
void mr_cache_init(struct mr_cache *m);
/* Releases what callers forgot. */
void mr_cache_fini(struct mr_cache *m);

int mr_cache_get(struct mr_cache *m, const struct mr_range *range, struct holmes_mr **out);
void mr_cache_put(struct mr_cache *m, struct holmes_mr *mr);

static inline bool mr_covers(const struct holmes_mr *mr, const void *buf, size_t len)
{
    uintptr_t at = (uintptr_t)buf;

    return at >= mr->addr && len <= mr->len && at - mr->addr <= mr->len - len;
}

/* What the peer quotes to reach `buf` inside `mr` on one of its rails. */
static inline uint64_t mr_remote_addr(const struct holmes_mr *mr, int rail, const void *buf)
{
    return mr->wire[rail].base + ((uintptr_t)buf - mr->addr);
}

#endif
