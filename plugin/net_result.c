/* Maps errors to what users of NCCL act on: a failed peer, a failed host, a mistake in a job's
 * settings, or a bug. */
#include "net_result.h"

#include <errno.h>

ncclResult_t holmes_net_result(int rc)
{
    switch (-rc) {
    case 0:
    case EAGAIN:
        return ncclSuccess;
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EREMOTEIO:
    case ETIMEDOUT:
        return ncclRemoteError;
    case ENOMEM:
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOSPC:
    case ENODEV:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case EACCES:
    case EPERM:
    case ELIBACC:
        return ncclSystemError;
    case EADDRINUSE:      /* HOLMES_PORT_RANGE is exhausted: nothing else binds a given port */
    case EMSGSIZE:        /* send larger than its receive */
    case EPROTO:          /* the handle is another plugin's: ranks chose different nets */
    case EPROTONOSUPPORT: /* another release; HOLMES_WIRE or HOLMES_TCP contradicts */
        return ncclInvalidUsage;
    default:
        return ncclInternalError;
    }
}

ncclResult_t holmes_net_init_result(int rc)
{
    if (rc == -EINVAL)
        return ncclInvalidUsage;
    return holmes_net_result(rc);
}
