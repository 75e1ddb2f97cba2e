/* Keys in a small chained hash table; waiters in one list, since there are few at a time. */
#include "rdv_store.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "list.h"
#include "siphash.h"

enum { BUCKETS = 256 };
#define STORE_BYTES_MAX ((size_t)64 << 20)

struct value {
    struct holmes_list node;
    char *key;
    size_t len;
    unsigned char data[];
};

struct wait {
    struct holmes_list node;
    struct holmes_rdv_waiter who;
    bool barrier;
    char *name; /* key or barrier */
    unsigned int timeout_ms;
    uint64_t deadline_ns;
};

struct holmes_rdv_store {
    const struct holmes_rdv_store_ops *ops;
    void *ctx;
    int nranks;
    size_t bytes;
    struct holmes_list buckets[BUCKETS];
    struct holmes_list waits;
    bool *arrived; /* scratch, by rank */
};

int holmes_rdv_store_create(int nranks, const struct holmes_rdv_store_ops *ops, void *ctx,
                            struct holmes_rdv_store **out)
{
    struct holmes_rdv_store *s = calloc(1, sizeof *s);

    if (!s)
        return -ENOMEM;
    s->arrived = calloc((size_t)nranks, sizeof *s->arrived);
    if (!s->arrived) {
        free(s);
        return -ENOMEM;
    }
    s->ops = ops;
    s->ctx = ctx;
    s->nranks = nranks;
    for (int i = 0; i < BUCKETS; i++)
        holmes_list_init(&s->buckets[i]);
    holmes_list_init(&s->waits);
    *out = s;
    return 0;
}

static void wait_free(struct wait *w)
{
    holmes_list_remove(&w->node);
    free(w->name);
    free(w);
}

void holmes_rdv_store_destroy(struct holmes_rdv_store *s)
{
    if (!s)
        return;
    for (int i = 0; i < BUCKETS; i++) {
        holmes_list_each(v, tmp, &s->buckets[i], struct value, node)
        {
            free(v->key);
            free(v);
        }
    }
    holmes_list_each(w, tmp, &s->waits, struct wait, node) wait_free(w);
    free(s->arrived);
    free(s);
}

static struct holmes_list *bucket_of(struct holmes_rdv_store *s, const char *key)
{
    static const uint8_t seed[16] = "rendezvous table";

    return &s->buckets[holmes_siphash(seed, key, strlen(key)) % BUCKETS];
}

static struct value *value_find(struct holmes_rdv_store *s, const char *key)
{
    holmes_list_each(v, tmp, bucket_of(s, key), struct value, node)
    {
        if (strcmp(v->key, key) == 0)
            return v;
    }
    return NULL;
}

int holmes_rdv_store_put(struct holmes_rdv_store *s, const char *key, const void *data, size_t len)
{
    struct value *v;

    if (value_find(s, key))
        return -EEXIST;
    if (s->bytes + len + strlen(key) > STORE_BYTES_MAX)
        return -ENOSPC;
    v = malloc(sizeof *v + len);
    if (!v)
        return -ENOMEM;
    v->key = strdup(key);
    if (!v->key) {
        free(v);
        return -ENOMEM;
    }
    v->len = len;
    if (len)
        memcpy(v->data, data, len);
    s->bytes += len + strlen(key);
    holmes_list_append(bucket_of(s, key), &v->node);
    holmes_list_each(w, tmp, &s->waits, struct wait, node)
    {
        if (w->barrier || strcmp(w->name, key) != 0)
            continue;
        s->ops->answer(s->ctx, w->who, 0, v->data, v->len);
        wait_free(w);
    }
    return 0;
}

static int wait_add(struct holmes_rdv_store *s, struct holmes_rdv_waiter who, bool barrier,
                    const char *name, unsigned int timeout_ms)
{
    struct wait *w = calloc(1, sizeof *w);

    if (!w)
        return -ENOMEM;
    w->name = strdup(name);
    if (!w->name) {
        free(w);
        return -ENOMEM;
    }
    w->who = who;
    w->barrier = barrier;
    w->timeout_ms = timeout_ms;
    w->deadline_ns = holmes_deadline_ms(timeout_ms);
    holmes_list_append(&s->waits, &w->node);
    return 0;
}

int holmes_rdv_store_get(struct holmes_rdv_store *s, struct holmes_rdv_waiter w, const char *key,
                         unsigned int timeout_ms)
{
    struct value *v = value_find(s, key);

    if (v)
        s->ops->answer(s->ctx, w, 0, v->data, v->len);
    else if (timeout_ms == 0)
        s->ops->answer(s->ctx, w, -ETIMEDOUT, NULL, 0);
    else
        return wait_add(s, w, false, key, timeout_ms);
    return 0;
}

/* Marks the ranks that wait in the barrier and counts them. */
static int barrier_arrived(struct holmes_rdv_store *s, const char *name)
{
    int n = 0;

    memset(s->arrived, 0, (size_t)s->nranks * sizeof *s->arrived);
    /* NOLINTNEXTLINE: the analyzer does not see nodes leave the list */
    holmes_list_each(w, tmp, &s->waits, struct wait, node)
    {
        if (!w->barrier || strcmp(w->name, name) != 0 || s->arrived[w->who.rank])
            continue;
        s->arrived[w->who.rank] = true;
        n++;
    }
    return n;
}

int holmes_rdv_store_barrier(struct holmes_rdv_store *s, struct holmes_rdv_waiter who,
                             const char *name, unsigned int timeout_ms)
{
    int rc = wait_add(s, who, true, name, timeout_ms);

    if (rc || barrier_arrived(s, name) < s->nranks)
        return rc;
    holmes_list_each(w, tmp, &s->waits, struct wait, node)
    {
        if (!w->barrier || strcmp(w->name, name) != 0)
            continue;
        s->ops->answer(s->ctx, w->who, 0, NULL, 0);
        wait_free(w);
    }
    return 0;
}

void holmes_rdv_store_drop(struct holmes_rdv_store *s, int rank)
{
    holmes_list_each(w, tmp, &s->waits, struct wait, node)
    {
        if (w->who.rank == rank)
            wait_free(w);
    }
}

int holmes_rdv_store_expire(struct holmes_rdv_store *s)
{
    uint64_t now = holmes_now_ns(), next = UINT64_MAX;

    holmes_list_each(w, tmp, &s->waits, struct wait, node)
    {
        if (w->deadline_ns > now) {
            next = w->deadline_ns < next ? w->deadline_ns : next;
            continue;
        }
        if (w->barrier)
            barrier_arrived(s, w->name);
        s->ops->expired(s->ctx, w->who, w->name, w->barrier ? s->arrived : NULL, w->timeout_ms);
        wait_free(w);
    }
    if (next == UINT64_MAX)
        return -1;
    next = (next - now) / 1000000u + 1;
    return next > INT_MAX ? INT_MAX : (int)next;
}
