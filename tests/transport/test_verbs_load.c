/* Opening libibverbs: what it may change in the process (nothing), and what is said when it fails.
 * Every Criterion test is a process of its own, so each opens afresh. No device is needed. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "self.h"
#include "transport/driver.h"
#include "wire_pair.h"

static const struct wire_ops *const wire = &holmes_wire_verbs;

static void expect_refused(const char *sentence)
{
    char why[512] = "", again[512] = "";

    cr_assert_eq(wire->load(why, sizeof why), -ELIBACC);
    cr_assert(strstr(why, sentence), "\"%s\" lacks \"%s\"", why, sentence);
    cr_assert(strstr(why, "RDMA off"), "%s", why);
    cr_assert_null(strchr(why, '\n'));
    cr_assert_eq(wire->load(again, sizeof again), -ELIBACC);
    cr_assert_str_eq(why, again);
}

Test(verbs_load, missing_library_turns_rdma_off)
{
    char why[512];

    setenv("HOLMES_LIBIBVERBS", "libibverbs.so.99", 1);
    expect_refused("libibverbs.so.99 not found");
    wire->load(why, sizeof why);
    cr_assert_str_eq(why, "libibverbs.so.99 not found, RDMA off");
}

Test(verbs_load, other_library_is_refused)
{
    setenv("HOLMES_LIBIBVERBS", "libm.so.6", 1);
    expect_refused("ibv_fork_init");
}

Test(verbs_load, library_that_does_not_open_is_refused_with_the_reason)
{
    setenv("HOLMES_LIBIBVERBS", "/proc/self/status", 1);
    expect_refused("cannot be opened");
}

static void expect_loaded(void)
{
    char why[512] = "";
    int rc = wire->load(why, sizeof why);

    if (rc != 0 && strstr(why, "not found"))
        cr_skip_test("this host has no libibverbs");
    cr_assert_eq(rc, 0, "%s", why);
}

Test(verbs_load, changes_no_signal_disposition)
{
    struct holmes_nic nic = {.name = "none", .rdma = {.device = "none", .port = 1}};
    struct sigaction before[NSIG], now;
    struct wire_nic *wn;

    signal(SIGINT, SIG_IGN);
    for (int sig = 1; sig < NSIG; sig++)
        sigaction(sig, NULL, &before[sig]);
    expect_loaded();
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &wn), -ENODEV); /* all providers are loaded now */
    for (int sig = 1; sig < NSIG; sig++) {
        if (sigaction(sig, NULL, &now) == 0)
            cr_assert_eq(now.sa_handler, before[sig].sa_handler, "signal %d changed", sig);
    }
}

Test(verbs_load, nic_without_a_port_is_refused)
{
    struct holmes_nic nic = test_loopback_nic("127.0.0.1");
    struct wire_nic *wn;

    expect_loaded();
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &wn), -EINVAL);
}

Test(verbs_load, device_that_is_not_there_leaves_no_descriptor)
{
    struct holmes_nic nic = {.name = "none", .rdma = {.device = "none", .port = 1}};
    struct wire_nic *wn;
    int before;

    expect_loaded();
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &wn), -ENODEV);
    before = holmes_self_fds();
    cr_assert_eq(wire->nic_open(&nic, 0, 0, &wn), -ENODEV);
    cr_assert_eq(holmes_self_fds(), before);
}

static char idle_line[512];
static int idle_lines;

static void keep_idle_line(void *ctx, enum holmes_log_level level, enum holmes_log_subsys subsys,
                           const char *file, int line, const char *func, const char *msg)
{
    (void)ctx, (void)level, (void)subsys, (void)file, (void)line, (void)func;
    if (!strstr(msg, "without effect"))
        return;
    idle_lines++;
    snprintf(idle_line, sizeof idle_line, "%s", msg);
}

Test(verbs_load, one_line_names_the_variables_without_effect)
{
    setenv("NCCL_IB_USE_INLINE", "1", 1);
    setenv("NCCL_IB_DATA_DIRECT", "0", 1);
    holmes_log_set_sink(keep_idle_line, NULL, HOLMES_LOG_INFO);
    expect_loaded();
    expect_loaded();
    holmes_log_set_sink(NULL, NULL, HOLMES_LOG_WARN);
    cr_assert_eq(idle_lines, 1);
    cr_assert(strstr(idle_line, "NCCL_IB_USE_INLINE, NCCL_IB_DATA_DIRECT"), "%s", idle_line);
}
