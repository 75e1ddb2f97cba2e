/* Translates libfabric's results. It returns negative values of which those below FI_ERRNO_OFFSET
 * are errno's own; the rest are its inventions and get the nearest errno. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "ofi.h"

int holmes_ofi_errno(ssize_t ret)
{
    if (ret >= 0)
        return 0;
    if (ret > -FI_ERRNO_OFFSET)
        return (int)ret;

    switch (-ret) {
    case FI_ETOOSMALL:
    case FI_ETRUNC:
        return -EMSGSIZE;
    case FI_EOPBADSTATE:
        return -ENOTCONN;
    case FI_EBADFLAGS:
        return -EINVAL;
    case FI_ENOEQ:
    case FI_ENOCQ:
    case FI_ENOAV:
    case FI_EDOMAIN:
        return -EBADF;
    case FI_ENOKEY:
        return -EKEYREJECTED;
    case FI_EOVERRUN:
        return -EOVERFLOW;
    default: /* FI_EOTHER, FI_ECRC and whatever a newer library adds */
        return -EIO;
    }
}

int holmes_ofi_open_errno(ssize_t ret)
{
    int rc = holmes_ofi_errno(ret), fd;

    if (rc == 0)
        return 0;
    fd = open("/", O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    close(fd);
    return rc;
}
