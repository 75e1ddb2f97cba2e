/* Hands finished lines to NCCL, which adds host, process and rank, and filters by NCCL_DEBUG and
 * NCCL_DEBUG_SUBSYS. */
#include "net_log.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <strings.h>

#include "env.h"
#include "log.h"

static _Atomic(ncclDebugLogger_t) nccl_logger;

static void nccl_sink(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                      const char *file, int line, const char *func, const char *msg)
{
    static const ncclDebugLogLevel levels[] = {
        [HOLMES_LOG_WARN] = NCCL_LOG_WARN,
        [HOLMES_LOG_INFO] = NCCL_LOG_INFO,
        [HOLMES_LOG_TRACE] = NCCL_LOG_TRACE,
    };
    static const unsigned long flags[HOLMES_SUBSYS_COUNT] = {
        [HOLMES_SUBSYS_INIT] = NCCL_INIT | NCCL_NET,
        [HOLMES_SUBSYS_NET] = NCCL_NET,
        [HOLMES_SUBSYS_TOPO] = NCCL_INIT | NCCL_NET,
        [HOLMES_SUBSYS_TRAIN] = NCCL_NET,
    };
    ncclDebugLogger_t log = atomic_load(&nccl_logger);

    (void)ctx;
    /* A WARN is shown with file and line, an INFO with the function's name. */
    log(levels[level], flags[subsys], level == HOLMES_LOG_WARN ? file : func, line,
        "NET/Holmes : %s", msg);
}

void holmes_net_log_to(ncclDebugLogger_t logger)
{
    const char *debug = holmes_env_string(HOLMES_ENV_NCCL_DEBUG);
    bool trace = debug && strcasecmp(debug, "TRACE") == 0;

    if (!logger)
        return;
    atomic_store(&nccl_logger, logger);
    /* TRACE lines are one per message: not worth formatting for NCCL to drop. */
    holmes_log_set_sink(nccl_sink, NULL, trace ? HOLMES_LOG_TRACE : HOLMES_LOG_INFO);
}
