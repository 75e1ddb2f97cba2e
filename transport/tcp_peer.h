/* What the wires over TCP have in common: what the two ends of a lane tell each other before there
 * is a stream between them, what its connecting end says first, and from where to where it dials.
 * Each wire has a magic of its own, so that one never takes the other for itself.
 *
 * Decoders take foreign bytes: they return 0 or -EPROTO, and check every byte.
 */
#ifndef HOLMES_TCP_PEER_H
#define HOLMES_TCP_PEER_H

#include <stdatomic.h>

#include "driver.h"

#define TCP_PEER_VERSION 1 /* 1: first */

/* Blob of an accepting lane: where its NIC listens and what to quote there. Big endian, 36 bytes:
 * magic 4, version 1, role 1, family 1 (4 or 6), streams 1, port 2, zero 2, secret 8, address 16. A
 * connecting lane's blob is the first 8 bytes, family 0. */
#define TCP_BLOB_HEAD 8
#define TCP_BLOB_LEN  36

/* What a connecting end says first. Big endian, 16 bytes: magic 4, version 1, zero 3, secret 8. */
#define TCP_REQUEST_LEN 16

struct tcp_blob {
    enum wire_role role;
    struct holmes_addr addr; /* accepting */
    uint64_t secret;
    uint8_t streams; /* of the lane; 0 of a wire whose lanes are streams. Any value is decoded */
};
size_t tcp_blob_encode(uint32_t magic, const struct tcp_blob *b, uint8_t out[TCP_BLOB_LEN]);
int tcp_blob_decode(uint32_t magic, const void *bytes, size_t len, struct tcp_blob *out);
void tcp_request_encode(uint32_t magic, uint64_t secret, uint8_t out[TCP_REQUEST_LEN]);
int tcp_request_decode(uint32_t magic, const void *bytes, size_t len, uint64_t *secret);

/* Leaves -EAGAIN of a lane's status for 0; an error stays. */
void tcp_status_up(atomic_int *status);
/* Leaves -EAGAIN or 0 of a lane's status for an error, once. False: it had one. */
bool tcp_status_fail(atomic_int *status, int error);

/* Random, never 0. 0 or -EIO. */
int tcp_secret_make(uint64_t *out);

bool tcp_addr_is_unspecified(const struct holmes_addr *a);
/* The port stays as it is; network byte order. */
in_port_t tcp_addr_port(const struct holmes_addr *a);
void tcp_addr_set_port(struct holmes_addr *a, in_port_t port);

/* A peer that does not know its own address is dialled where it was reached: `via`, of family
 * AF_UNSPEC when nobody told. */
void tcp_take_via(const struct holmes_addr *via, struct holmes_addr *to);
/* The NIC's own address that can reach `to`: same family; a link-local target gets our scope. NULL:
 * there is none. */
const struct holmes_addr *tcp_source_for(const struct holmes_nic *nic, struct holmes_addr *to);

#endif
