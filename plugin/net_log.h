/* NCCL's logger as the sink of Holmes' log lines. */
#ifndef HOLMES_PLUGIN_NET_LOG_H
#define HOLMES_PLUGIN_NET_LOG_H

#include "nccl_net.h"

/* From now on lines go to `logger`, which stays usable for the life of the process; NULL leaves
 * things as they are. May be called again. */
void holmes_net_log_to(ncclDebugLogger_t logger);

#endif
