/* Translates what libibverbs reports. Some calls return a positive errno, some NULL or -1 with
 * errno set; completions have a status of their own. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "verbs.h"

int holmes_verbs_status_errno(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS:
        return 0;
    case IBV_WC_RETRY_EXC_ERR:     /* no answer: the peer or the way to it is gone */
    case IBV_WC_RNR_RETRY_EXC_ERR: /* it answers, but takes nothing */
    case IBV_WC_WR_FLUSH_ERR: /* the queue pair ended: by its peer's fault, if nothing said more */
    case IBV_WC_LOC_ACCESS_ERR: /* the peer reached for memory that is not its to write */
    case IBV_WC_REM_ABORT_ERR:
        return -ECONNRESET;
    case IBV_WC_REM_INV_REQ_ERR: /* it refuses what we sent */
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
        return -ECONNABORTED;
    case IBV_WC_RESP_TIMEOUT_ERR:
        return -ETIMEDOUT;
    default: /* this end's device or memory */
        return -EIO;
    }
}

int holmes_verbs_errno(int fallback)
{
    return errno > 0 ? -errno : -fallback;
}

int holmes_verbs_open_errno(int fallback)
{
    int rc = holmes_verbs_errno(fallback), fd;

    fd = open("/", O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    close(fd);
    return rc;
}
