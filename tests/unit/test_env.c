#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"

Test(env, empty_environment_is_right)
{
    char why[256];

    cr_assert_eq(holmes_env_check(why, sizeof why), 0, "%s", why);
    cr_assert_eq(holmes_env_int(HOLMES_ENV_PEER_TIMEOUT), 15);
    cr_assert_null(holmes_env_string(HOLMES_ENV_STATS));
}

static void expect_refused(const char *name, const char *value, const char *needle)
{
    char why[256] = "";

    setenv(name, value, 1);
    cr_assert_eq(holmes_env_check(why, sizeof why), -EINVAL, "%s=%s was taken", name, value);
    cr_assert(strstr(why, name), "\"%s\" does not name %s", why, name);
    cr_assert(strstr(why, needle), "\"%s\" lacks \"%s\"", why, needle);
    unsetenv(name);
}

Test(env, refuses_naming_variable_value_and_remedy)
{
    expect_refused("HOLMES_LANES", "9", "0 to 8");
    expect_refused("HOLMES_LANES", "two", "\"two\"");
    expect_refused("HOLMES_LANES", "", "integer");
    expect_refused("HOLMES_LOG", "loud", "warn|info|trace");
    expect_refused("HOLMES_LOG", "inf", "warn|info|trace");
    expect_refused("HOLMES_LANE", "1", "docs/environment.md");
}

Test(env, what_the_test_suite_is_told_is_not_for_us)
{
    char why[256];

    setenv("HOLMES_TEST_VERBS", "rxe0,rxe1", 1);
    cr_assert_eq(holmes_env_check(why, sizeof why), 0, "%s", why);
}

Test(env, port_range_is_low_high_in_order)
{
    uint16_t low, high;

    cr_assert_eq(holmes_env_range(HOLMES_ENV_PORT_RANGE, &low, &high), -ENOENT);
    setenv("HOLMES_PORT_RANGE", "40000-40003", 1);
    cr_assert_eq(holmes_env_range(HOLMES_ENV_PORT_RANGE, &low, &high), 0);
    cr_assert(low == 40000 && high == 40003);
    for (const char *const *bad = (const char *const[]){"40003-40000", "0-70000", "x", "1-", "-5",
                                                        "1-2-3", " 1-2", "1 -2", "", NULL};
         *bad; bad++)
        expect_refused("HOLMES_PORT_RANGE", *bad, "low-high");
}

Test(env, nccl_integers_follow_nccl_rule)
{
    setenv("NCCL_IB_DISABLE", "0x1", 1);
    cr_assert_eq(holmes_env_int(HOLMES_ENV_NCCL_IB_DISABLE), 1);
    setenv("NCCL_IB_DISABLE", "yes", 1);
    cr_assert_eq(holmes_env_int(HOLMES_ENV_NCCL_IB_DISABLE), 0);
}
