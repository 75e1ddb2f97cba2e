/* One connection of the rendezvous server: bytes in and out, before anybody gives them a meaning.
 */
#ifndef HOLMES_RDV_PEER_H
#define HOLMES_RDV_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "list.h"
#include "rdv_wire.h"

enum holmes_rdv_peer_state {
    HOLMES_RDV_PEER_NEW,        /* HELLO is due */
    HOLMES_RDV_PEER_CHALLENGED, /* PROVE is due */
    HOLMES_RDV_PEER_MEMBER,
};

struct holmes_rdv_peer {
    struct holmes_list node;
    int fd;
    enum holmes_rdv_peer_state state;
    bool doomed; /* closed once its output is written */
    int error;   /* negative errno that its connection ended with; 0: its process closed it */
    char from[64];
    uint64_t deadline_ns; /* strangers */
    uint8_t client_nonce[HOLMES_RDV_NONCE], server_nonce[HOLMES_RDV_NONCE];
    int rank;
    uint8_t *in, *out;
    size_t in_len, in_cap, out_len, out_cap, out_at;
};

/* Appends a frame of two parts to its output. A peer that does not read is given up. */
void holmes_rdv_peer_say(struct holmes_rdv_peer *p, enum holmes_rdv_type type, uint32_t id,
                         const void *a, size_t a_len, const void *b, size_t b_len);
void holmes_rdv_peer_reply(struct holmes_rdv_peer *p, uint32_t id, int status, const void *data,
                           size_t len);
/* Tells a stranger why, and dooms it. */
void holmes_rdv_peer_refuse(struct holmes_rdv_peer *p, int status, const char *text);
/* Room for `cap` bytes of input; false: no memory. */
bool holmes_rdv_peer_reserve(struct holmes_rdv_peer *p, size_t cap);
/* Both false: the connection is over, `error` says how. Read: one gulp into the room there is;
 * *more: there may be more. */
bool holmes_rdv_peer_flush(struct holmes_rdv_peer *p);
bool holmes_rdv_peer_read(struct holmes_rdv_peer *p, bool *more);
/* Frees it, closes its socket. */
void holmes_rdv_peer_free(struct holmes_rdv_peer *p);

/* A host that has gone without a word is noticed within HOLMES_RDV_GONE_MS, whether something is on
 * its way to it or not. Of client and server alike. */
enum { HOLMES_RDV_GONE_MS = 5000 };
void holmes_rdv_keep_alive(int fd);

#endif
