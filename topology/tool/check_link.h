/* Two connections of the real transport between this process and a peer, one each way, and what is
 * measured over them. Every call ends by its deadline (base/clock.h); while it runs it drives the
 * transport and gives the processor to others when there is nothing to do. */
#ifndef HOLMES_TOPO_CHECK_LINK_H
#define HOLMES_TOPO_CHECK_LINK_H

#include <stdint.h>

#include "transport.h"

struct holmes_check_link;

/* Listens on NIC `nic` and writes the handle for the peer. Errors as holmes_listen, -ENOMEM. */
int holmes_check_link_create(struct holmes_transport *t, int nic, void *handle,
                             struct holmes_check_link **out);
/* Connects to the peer's handle and accepts its connection; both sides do this. Receives for what
 * the peer may send are out afterwards. -ETIMEDOUT, or what the transport says. */
int holmes_check_link_connect(struct holmes_check_link *l, const void *handle,
                              uint64_t deadline_ns);
/* Of the sending connection. */
void holmes_check_link_stats(const struct holmes_check_link *l, struct holmes_conn_stats *out);

/* Small messages to the peer, which pongs each back; as many as go until `until_ns`, at least 1 and
 * at most 200. *rtt_ns is their median. -EBADMSG when other bytes come back. */
int holmes_check_link_ping(struct holmes_check_link *l, uint64_t until_ns, uint64_t deadline_ns,
                           uint64_t *rtt_ns);
int holmes_check_link_pong(struct holmes_check_link *l, uint64_t deadline_ns);

/* Messages to the peer as fast as they go, for `run_ns`; their size grows until one takes about 20
 * ms, so that a slow link does not have seconds of them under way; the peer answers each. *gbps is
 * reckoned over what the peer had received after the first quarter, or from the start where that
 * says too little. -EBADMSG when it answers with anything but an empty message. */
int holmes_check_link_send(struct holmes_check_link *l, uint64_t run_ns, uint64_t deadline_ns,
                           double *gbps);
int holmes_check_link_recv(struct holmes_check_link *l, uint64_t deadline_ns);

/* NULL is fine. */
void holmes_check_link_destroy(struct holmes_check_link *l);

#endif
