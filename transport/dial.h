/* Finds an address of the peer that answers, and proves both ends to each other.
 *
 *     dialing end                               accepting end (listener.c)
 *     HELLO listen id, nonce        ------>
 *                                   <------     WELCOME nonce, proof of the token
 *     AUTH proof, struct proto_info ------>     (sent by conn.c once its lanes exist)
 *
 * Addresses are dialled 250 ms apart, best first; the first whose host proves that it knows the
 * token wins. A host that merely has the address (rail networks reuse them) fails the proof.
 */
#ifndef HOLMES_DIAL_H
#define HOLMES_DIAL_H

#include "oob.h"

struct device;
struct dialer;

struct dial_result {
    struct oob oob;
    struct device *dev; /* local NIC whose address was bound */
    uint64_t mac;       /* for AUTH */
};

/* `dev`: the NIC that NCCL asked for, preferred as source. */
int dialer_create(struct device *dev, const struct proto_handle *handle, struct dialer **out);
/* 0 with a result whose socket the caller owns, -EAGAIN, or the reason of the best address when all
 * failed for good (it has been logged). Called with the lock of the connection. */
int dialer_progress(struct dialer *d, struct dial_result *out);
void dialer_destroy(struct dialer *d);

#endif
