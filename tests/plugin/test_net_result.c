#include <criterion/criterion.h>
#include <errno.h>

#include "plugin/net_result.h"

static void expect(ncclResult_t want, const int *errors)
{
    for (; *errors; errors++)
        cr_expect_eq(holmes_net_result(-*errors), want, "errno %d gave %d", *errors,
                     holmes_net_result(-*errors));
}

Test(net_result, a_failed_peer_is_remote)
{
    expect(ncclRemoteError, (const int[]){ECONNRESET, ECONNREFUSED, ECONNABORTED, EPIPE, ENOTCONN,
                                          EHOSTUNREACH, EHOSTDOWN, ETIMEDOUT, ENETUNREACH, 0});
}

Test(net_result, a_failed_host_is_a_system_error)
{
    expect(ncclSystemError, (const int[]){ENOMEM, EIO, EMFILE, ENFILE, ENODEV, ELIBACC, 0});
}

Test(net_result, a_mistake_of_the_job_is_invalid_usage)
{
    expect(ncclInvalidUsage, (const int[]){EMSGSIZE, EPROTO, EPROTONOSUPPORT, EADDRINUSE, 0});
    cr_expect_eq(holmes_net_init_result(-EINVAL), ncclInvalidUsage);
    cr_expect_eq(holmes_net_init_result(-EADDRINUSE), ncclInvalidUsage);
    cr_expect_eq(holmes_net_init_result(-ELIBACC), ncclSystemError);
}

Test(net_result, what_remains_is_internal)
{
    expect(ncclInternalError, (const int[]){EINVAL, ECANCELED, EDOM, 0});
}

Test(net_result, not_yet_is_no_error)
{
    cr_expect_eq(holmes_net_result(0), ncclSuccess);
    cr_expect_eq(holmes_net_result(-EAGAIN), ncclSuccess);
    cr_expect_eq(holmes_net_init_result(0), ncclSuccess);
}
