/* What probes of RDMA paths have found, for the process. "Yes" stays; "no" is asked again after a
 * minute. The owner locks. */
#ifndef HOLMES_PROBE_CACHE_H
#define HOLMES_PROBE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#define PROBE_CACHE_MAX 256
#define PROBE_NO_NS     60000000000ull

/* Both ends of a path. */
struct probe_key {
    uint8_t own_gid[16], peer_gid[16];
    uint64_t own_guid, peer_guid;
    uint16_t own_lid, peer_lid;
    uint8_t own_port, peer_port;
    uint8_t pad[2];
};

enum probe_answer {
    PROBE_ASK,  /* nobody knows: the caller probes and tells */
    PROBE_WAIT, /* somebody is probing */
    PROBE_YES,
    PROBE_NO,
};

struct probe_entry {
    struct probe_key key;
    enum probe_answer answer; /* PROBE_ASK: free */
    const void *owner;        /* of PROBE_WAIT */
    uint16_t mtu;             /* of PROBE_YES */
    uint64_t expires_ns;      /* of PROBE_NO, and of PROBE_WAIT: somebody else takes over */
};

struct probe_cache {
    uint64_t patience_ns; /* who probes has this long: its caller may never come back */
    struct probe_entry entries[PROBE_CACHE_MAX];
    unsigned next; /* to be replaced when all are taken */
};

/* PROBE_ASK makes `owner` the one whom others wait for. */
enum probe_answer probe_cache_look(struct probe_cache *p, const struct probe_key *key,
                                   const void *owner, uint64_t now_ns, uint16_t *mtu);
void probe_cache_tell(struct probe_cache *p, const struct probe_key *key, bool yes, uint16_t mtu,
                      uint64_t now_ns);
/* A port may not be what it was: what was found from it is to be asked again. */
void probe_cache_forget(struct probe_cache *p, uint64_t own_guid, uint8_t own_port);
/* The owner goes without having told. */
void probe_cache_leave(struct probe_cache *p, const void *owner);

#endif
