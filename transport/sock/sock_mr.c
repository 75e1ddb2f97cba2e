/* Registrations: a table of memory that peers may write into. A key is a capability: it must not be
 * guessed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sock_ops.h"

#define INDEX_BITS 24
#define INDEX_MAX  (1u << INDEX_BITS)

static int table_grow(struct wire_nic *wn)
{
    uint32_t n = wn->nmrs ? 2 * wn->nmrs : 64;
    struct sock_mr *more;

    if (n > INDEX_MAX)
        return -ENOSPC;
    more = realloc(wn->mrs, n * sizeof *more);
    if (!more)
        return -ENOMEM;
    memset(more + wn->nmrs, 0, (n - wn->nmrs) * sizeof *more);
    wn->mrs = more;
    wn->nmrs = n;
    return 0;
}

int holmes_sock_mr_reg(struct wire_nic *wn, void *addr, size_t len, struct wire_mr *out)
{
    uint64_t random;
    uint32_t i = 0;
    int rc = len > 0 ? tcp_secret_make(&random) : -EINVAL;

    if (rc != 0)
        return rc;
    pthread_rwlock_wrlock(&wn->mrs_lock);
    while (i < wn->nmrs && wn->mrs[i].key != 0)
        i++;
    if (i == wn->nmrs)
        rc = table_grow(wn);
    if (rc == 0) {
        /* Never 0: the upper bits are random and at least one is set. */
        wn->mrs[i] =
            (struct sock_mr){.key = (random | 1) << INDEX_BITS | i, .base = addr, .len = len};
        *out = (struct wire_mr){.key = wn->mrs[i].key};
    }
    pthread_rwlock_unlock(&wn->mrs_lock);
    return rc;
}

void holmes_sock_mr_dereg(struct wire_nic *wn, struct wire_mr *mr)
{
    uint32_t i = mr->key & (INDEX_MAX - 1);

    pthread_rwlock_wrlock(&wn->mrs_lock);
    if (i < wn->nmrs && wn->mrs[i].key == mr->key)
        wn->mrs[i] = (struct sock_mr){0};
    pthread_rwlock_unlock(&wn->mrs_lock);
}

uint8_t *holmes_sock_mr_find(struct wire_nic *wn, uint64_t key, uint64_t offset, uint64_t len)
{
    uint32_t i = key & (INDEX_MAX - 1);
    const struct sock_mr *mr = i < wn->nmrs ? &wn->mrs[i] : NULL;

    if (!mr || key == 0 || mr->key != key || offset > mr->len || len > mr->len - offset)
        return NULL;
    return mr->base + offset;
}
