/* The plugin in Holmes types and errno: what a process and a communicator own.
 *
 * One transport serves the process. It is made by the first init and goes with the last finalize;
 * callers that have no finalize (ABI before v11) hold it until the process exits. A forked child
 * starts with nothing and touches nothing of its parent's.
 *
 * Data calls have no detour: net_abi.c gives them to transport.h directly.
 */
#ifndef HOLMES_PLUGIN_NET_H
#define HOLMES_PLUGIN_NET_H

#include <stdint.h>

#include "device.h"
#include "transport.h"

/* One communicator: owns what its aborted set-up leaves behind. */
struct holmes_plugin_comm;

/* Checks the environment, finds the NICs and opens the transport when nobody has. -EINVAL: a bad
 * setting; others as holmes_transport_create; each after one log line. `*out` is NULL after an
 * error. Calls may not overlap with finalize of the same communicator. */
int holmes_plugin_init(uint64_t comm_id, int traffic_class, struct holmes_plugin_comm **out);

/* The same for callers that cannot finalize; harmless when repeated. Their owner is NULL. */
int holmes_plugin_init_once(void);

/* NULL is fine. */
void holmes_plugin_finalize(struct holmes_plugin_comm *comm);

/* Any thread, at any time after an init. -ENODEV before one; -EINVAL for no such device. */
int holmes_plugin_devices(int *ndev);
int holmes_plugin_device(int dev, struct holmes_plugin_device *out);

/* Makes one device of several, behind all others. -EINVAL and others when they stay apart, after a
 * line that says why. */
int holmes_plugin_fuse(const int *members, int n, int *dev);

/* As the calls of transport.h they are named for. `comm` may be NULL. */
int holmes_plugin_listen(struct holmes_plugin_comm *comm, int dev, void *handle,
                         struct holmes_listen **out);
int holmes_plugin_connect(struct holmes_plugin_comm *comm, int dev, void *handle,
                          struct holmes_conn **out);
int holmes_plugin_accept(struct holmes_listen *l, struct holmes_conn **out);
void holmes_plugin_close(struct holmes_conn *c);
void holmes_plugin_close_listen(struct holmes_listen *l);

#endif
