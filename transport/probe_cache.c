#include "probe_cache.h"

#include <string.h>

static struct probe_entry *find(struct probe_cache *p, const struct probe_key *key)
{
    for (int i = 0; i < PROBE_CACHE_MAX; i++) {
        struct probe_entry *e = &p->entries[i];

        if (e->answer != PROBE_ASK && memcmp(&e->key, key, sizeof *key) == 0)
            return e;
    }
    return NULL;
}

/* A free entry, else an old one; never one that somebody waits for unless all are. */
static struct probe_entry *make_room(struct probe_cache *p)
{
    struct probe_entry *e = NULL;

    for (int i = 0; i < PROBE_CACHE_MAX; i++) {
        if (p->entries[i].answer == PROBE_ASK)
            return &p->entries[i];
    }
    for (int i = 0; i < PROBE_CACHE_MAX; i++) {
        e = &p->entries[p->next++ % PROBE_CACHE_MAX];
        if (e->answer != PROBE_WAIT)
            break;
    }
    return e;
}

enum probe_answer probe_cache_look(struct probe_cache *p, const struct probe_key *key,
                                   const void *owner, uint64_t now_ns, uint16_t *mtu)
{
    struct probe_entry *e = find(p, key);

    if (e && e->answer != PROBE_YES && now_ns >= e->expires_ns)
        e->answer = PROBE_ASK;
    if (e && e->answer != PROBE_ASK && !(e->answer == PROBE_WAIT && e->owner == owner)) {
        *mtu = e->mtu;
        return e->answer;
    }
    if (!e)
        e = make_room(p);
    *e = (struct probe_entry){
        .key = *key, .answer = PROBE_WAIT, .owner = owner, .expires_ns = now_ns + p->patience_ns};
    return PROBE_ASK;
}

void probe_cache_tell(struct probe_cache *p, const struct probe_key *key, bool yes, uint16_t mtu,
                      uint64_t now_ns)
{
    struct probe_entry *e = find(p, key);

    if (!e)
        e = make_room(p);
    *e = (struct probe_entry){.key = *key,
                              .answer = yes ? PROBE_YES : PROBE_NO,
                              .mtu = mtu,
                              .expires_ns = now_ns + PROBE_NO_NS};
}

void probe_cache_leave(struct probe_cache *p, const void *owner)
{
    for (int i = 0; i < PROBE_CACHE_MAX; i++) {
        if (p->entries[i].answer == PROBE_WAIT && p->entries[i].owner == owner)
            p->entries[i].answer = PROBE_ASK;
    }
}

void probe_cache_forget(struct probe_cache *p, uint64_t own_guid, uint8_t own_port)
{
    for (int i = 0; i < PROBE_CACHE_MAX; i++) {
        struct probe_entry *e = &p->entries[i];

        if (e->answer == PROBE_YES && e->key.own_guid == own_guid && e->key.own_port == own_port)
            e->answer = PROBE_ASK;
    }
}
