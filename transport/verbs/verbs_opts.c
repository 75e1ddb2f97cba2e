/* NCCL's variables for its own InfiniBand transport, as they apply to this wire. */
#include <stdio.h>
#include <string.h>

#include "env.h"
#include "verbs.h"

#define AR_THRESHOLD 8192

void holmes_verbs_options_read(struct verbs_options *out)
{
    int64_t threshold = holmes_env_int(HOLMES_ENV_NCCL_IB_AR_THRESHOLD);

    *out = (struct verbs_options){
        .timeout = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_TIMEOUT),
        .retry_cnt = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_RETRY_CNT),
        .pkey_index = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_PKEY),
        .sl = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_SL),
        .tc = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_TC),
        .fifo_tc = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_FIFO_TC),
        .relaxed_ordering = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_PCI_RELAXED_ORDERING),
        .adaptive_routing = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_ADAPTIVE_ROUTING),
        .ar_threshold = threshold < 0 ? AR_THRESHOLD : (size_t)threshold,
        .async_errors = holmes_env_int(HOLMES_ENV_NCCL_IB_RETURN_ASYNC_EVENTS) != 0,
        .retry_all = holmes_env_int(HOLMES_ENV_NCCL_IB_MQP_RETRY_ALL) != 0,
        .retry_max = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_MQP_RETRY_CNT),
        .retry_sleep_ms = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_MQP_RETRY_SLEEP_MSEC),
    };
}

/* Control is always inline; the rest are choices that this wire does not have. */
static const enum holmes_env_id idle[] = {
    HOLMES_ENV_NCCL_IB_USE_INLINE,
    HOLMES_ENV_NCCL_IB_ECE_ENABLE,
    HOLMES_ENV_NCCL_IB_DATA_DIRECT,
    HOLMES_ENV_NCCL_IB_WARN_RAIL_LOCAL,
    HOLMES_ENV_NCCL_IB_OOO_RQ,
    HOLMES_ENV_NCCL_IB_SUBNET_AWARE_ROUTING,
    HOLMES_ENV_NCCL_IB_SUBNET_PREFIX_LEN,
    HOLMES_ENV_NCCL_IB_DEVICE_PCI_ORDER,
    HOLMES_ENV_NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS,
    HOLMES_ENV_NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME,
};

int holmes_verbs_options_idle(char *names, size_t len)
{
    size_t used = 0;
    int n = 0;

    names[0] = '\0';
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        if (!holmes_env_is_set(idle[i]))
            continue;
        if (used < len)
            used += (size_t)snprintf(names + used, len - used, "%s%s", n > 0 ? ", " : "",
                                     holmes_env_vars[idle[i]].name);
        n++;
    }
    return n;
}

uint8_t holmes_verbs_sl(const struct verbs_options *o, int communicator)
{
    int sl = o->sl >= 0 ? o->sl : communicator;

    return sl > 0 ? (uint8_t)(sl & 0xf) : 0; /* four bits */
}

uint8_t holmes_verbs_tc(const struct verbs_options *o, enum wire_role role, int communicator)
{
    int tc = o->tc >= 0 ? o->tc : communicator;

    /* The accepting end receives: what it sends are clear-to-sends. */
    if (role == WIRE_ACCEPT && o->fifo_tc >= 0)
        tc = o->fifo_tc;
    return tc > 0 ? (uint8_t)tc : 0;
}
