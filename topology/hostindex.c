/* Where a host name is among many lists: an open hash table of (list, host), which makes the names
 * it compares from the ranges, so that it keeps none. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hostlist.h"
#include "siphash.h"

struct slot {
    uint32_t hash;
    int list; /* from 1; 0: free */
    int host;
};

struct holmes_hostindex {
    int nlists;
    struct {
        const struct holmes_hostlist *list;
        int tag;
    } * lists;           /* room for the next power of two */
    size_t nslots, used; /* nslots: a power of two */
    struct slot *slots;
};

static uint32_t name_hash(const char *name)
{
    static const uint8_t key[16] = "holmes-hostindex";

    return (uint32_t)holmes_siphash(key, name, strlen(name));
}

int holmes_hostindex_create(struct holmes_hostindex **out)
{
    struct holmes_hostindex *x = calloc(1, sizeof *x);

    if (!x)
        return -ENOMEM;
    *out = x;
    return 0;
}

void holmes_hostindex_destroy(struct holmes_hostindex *x)
{
    if (!x)
        return;
    free(x->lists);
    free(x->slots);
    free(x);
}

/* Makes room for `more` names: half of the slots stay free. */
static int index_room(struct holmes_hostindex *x, size_t more)
{
    size_t nslots = x->nslots > 0 ? x->nslots : 16;

    while (nslots / 2 < x->used + more)
        nslots *= 2;
    if (nslots == x->nslots)
        return 0;

    struct slot *slots = calloc(nslots, sizeof *slots);

    if (!slots)
        return -ENOMEM;
    for (size_t i = 0; i < x->nslots; i++) {
        size_t at = x->slots[i].hash & (nslots - 1);

        if (x->slots[i].list == 0)
            continue;
        while (slots[at].list > 0)
            at = (at + 1) & (nslots - 1);
        slots[at] = x->slots[i];
    }
    free(x->slots);
    x->slots = slots;
    x->nslots = nslots;
    return 0;
}

/* The slot of the name, or the free one where it belongs. */
static struct slot *index_slot(const struct holmes_hostindex *x, const char *name, uint32_t hash)
{
    char other[HOLMES_HOST_NAME_MAX];

    for (size_t at = hash & (x->nslots - 1);; at = (at + 1) & (x->nslots - 1)) {
        struct slot *s = &x->slots[at];

        if (s->list == 0)
            return s;
        if (s->hash == hash &&
            strcmp(name, holmes_hostlist_name(x->lists[s->list - 1].list, s->host, other,
                                              sizeof other)) == 0)
            return s;
    }
}

int holmes_hostindex_add(struct holmes_hostindex *x, const struct holmes_hostlist *l, int tag,
                         int *twice)
{
    char name[HOLMES_HOST_NAME_MAX];

    if (index_room(x, (size_t)l->nhosts) != 0)
        return -ENOMEM;
    if ((x->nlists & (x->nlists - 1)) == 0) {
        void *more =
            realloc(x->lists, (x->nlists > 0 ? 2 * (size_t)x->nlists : 1) * sizeof *x->lists);

        if (!more)
            return -ENOMEM;
        x->lists = more;
    }
    x->lists[x->nlists].list = l;
    x->lists[x->nlists].tag = tag;
    x->nlists++;
    for (int i = 0; i < l->nhosts; i++) {
        uint32_t hash = name_hash(holmes_hostlist_name(l, i, name, sizeof name));
        struct slot *s = index_slot(x, name, hash);

        if (s->list > 0) {
            *twice = i;
            return -EEXIST;
        }
        *s = (struct slot){hash, x->nlists, i};
        x->used++;
    }
    return 0;
}

int holmes_hostindex_find(const struct holmes_hostindex *x, const char *name, int *tag, int *host)
{
    const struct slot *s = x->nslots > 0 ? index_slot(x, name, name_hash(name)) : NULL;

    if (!s || s->list == 0)
        return -ENOENT;
    *tag = x->lists[s->list - 1].tag;
    *host = s->host;
    return 0;
}
