/* The way from a proven socket to raised lanes: offer, choice of the wire, probes, verdict.
 *
 *     connecting end                                   accepting end
 *     dialing     HELLO/WELCOME with listener.c
 *                 AUTH: proof, offer                ->  (created here)
 *     verdict                                           choose      by choose.c, and
 *                                         [<- PROBE]                a probe where that is unknown
 *                 [PROBE ->]                                        (up to two rounds a rail)
 *                                          <- VERDICT   info        final for both
 *                 INFO ->
 *     lanes       raise lanes                           lanes       raise lanes
 *                 UP ->                           <-    UP
 *     peer-up                                           peer-up
 *     ready                                             ready
 *
 * Afterwards the socket stays: its end of file is the peer's death, its keepalive the heartbeat.
 */
#ifndef HOLMES_HANDSHAKE_H
#define HOLMES_HANDSHAKE_H

#include "conn.h"

/* `offer`: of the peer, NULL on the connecting end. -ENOMEM. */
int handshake_create(struct holmes_conn *c, const struct proto_offer *offer);
void handshake_destroy(struct holmes_conn *c);

/* One step; 0 when the state advanced, -EAGAIN, or the error on which the connection must fail.
 * Lock held. */
int handshake_step(struct holmes_conn *c);

/* What a peer's abort frame in the socket means here. */
int handshake_abort_error(const struct holmes_conn *c, char *why, size_t why_len);

#endif
