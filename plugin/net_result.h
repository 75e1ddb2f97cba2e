/* The one place where errno becomes ncclResult_t. */
#ifndef HOLMES_PLUGIN_NET_RESULT_H
#define HOLMES_PLUGIN_NET_RESULT_H

#include "nccl_net.h"

/* For calls of the data path and of connection set-up. -EAGAIN is no error: callers turn it into
 * success without a result before they come here. */
ncclResult_t holmes_net_result(int rc);

/* For init, where -EINVAL is a setting of the user's. */
ncclResult_t holmes_net_init_result(int rc);

#endif
