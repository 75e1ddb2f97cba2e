/* The server's memory: values set once, and who waits for a value or in a barrier. No sockets; one
 * thread. A waiter is named by the server's client number and the request's id. */
#ifndef HOLMES_RDV_STORE_H
#define HOLMES_RDV_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct holmes_rdv_store;

/* Called with each answer. status: 0 with a value (or nothing, for a barrier), or -ETIMEDOUT. */
struct holmes_rdv_waiter {
    int rank;
    uint32_t id;
};
struct holmes_rdv_store_ops {
    void (*answer)(void *ctx, struct holmes_rdv_waiter w, int status, const void *data, size_t len);
    /* Text for a waiter whose time is over: `arrived` has a flag per rank, NULL for a key. */
    void (*expired)(void *ctx, struct holmes_rdv_waiter w, const char *name, const bool *arrived,
                    unsigned int timeout_ms);
};

int holmes_rdv_store_create(int nranks, const struct holmes_rdv_store_ops *ops, void *ctx,
                            struct holmes_rdv_store **out);
void holmes_rdv_store_destroy(struct holmes_rdv_store *s);

/* Copies. Wakes who waits for it. -EEXIST, -ENOMEM, -ENOSPC when all values exceed 64 MiB. */
int holmes_rdv_store_put(struct holmes_rdv_store *s, const char *key, const void *data, size_t len);
/* Answers at once or later; -ENOMEM when it cannot wait. */
int holmes_rdv_store_get(struct holmes_rdv_store *s, struct holmes_rdv_waiter w, const char *key,
                         unsigned int timeout_ms);
int holmes_rdv_store_barrier(struct holmes_rdv_store *s, struct holmes_rdv_waiter w,
                             const char *name, unsigned int timeout_ms);
/* Forgets what a rank waits for, without an answer. */
void holmes_rdv_store_drop(struct holmes_rdv_store *s, int rank);
/* Expires waiters; the time until the next would expire, or -1. */
int holmes_rdv_store_expire(struct holmes_rdv_store *s);

#endif
