/* One try whether RDMA writes pass between two ports: a queue pair with short timers, a write of
 * two path MTUs and an immediate each way. The accepting end leads; the other end answers when it
 * was reached. Used by one connection's handshake, under its lock. */
#ifndef HOLMES_PROBE_H
#define HOLMES_PROBE_H

#include "proto.h"

struct device;
struct probe;

/* Makes the local half on a physical port and describes it in `frame`, of which `rail` and `round`
 * are filled in. */
int probe_open(struct device *dev, bool lead, struct proto_probe *frame, struct probe **out);
/* The peer's frame, checked. */
int probe_connect(struct probe *p, const struct proto_probe *peer);
/* 0: bytes and immediates passed both ways, as far as this end can know. -EAGAIN, or why not. */
int probe_progress(struct probe *p);
/* NULL is fine. */
void probe_close(struct probe *p);

#endif
