/* Opening libfabric: what it may change in the process (nothing), and what is said when it fails.
 * Every Criterion test is a process of its own, so each opens afresh. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ofi/ofi.h"
#include "wire_pair.h"

static const struct wire_ops *const wire = &holmes_wire_ofi;
extern char **environ;

struct dispositions {
    struct sigaction action[NSIG];
};

static void read_dispositions(struct dispositions *d)
{
    memset(d, 0, sizeof *d);
    for (int sig = 1; sig < NSIG; sig++)
        sigaction(sig, NULL, &d->action[sig]);
}

static void expect_dispositions(const struct dispositions *before, const char *when)
{
    struct dispositions now;

    read_dispositions(&now);
    for (int sig = 1; sig < NSIG; sig++) {
        /* libc marks what it has ever set; the kernel never looks at the mark of a default. */
        const int restorer = 0x04000000;

        cr_assert(now.action[sig].sa_handler == before->action[sig].sa_handler &&
                      (now.action[sig].sa_flags | restorer) ==
                          (before->action[sig].sa_flags | restorer),
                  "signal %d changed %s", sig, when);
    }
}

static volatile sig_atomic_t heard;

static void own_handler(int sig)
{
    heard = sig;
}

Test(wire_load, changes_no_signal_disposition)
{
    struct dispositions before;
    struct sigaction own = {.sa_handler = own_handler, .sa_flags = SA_RESTART};
    struct wire_pair p;

    sigaction(SIGTERM, &own, NULL);
    signal(SIGINT, SIG_IGN);
    read_dispositions(&before);
    pair_open(&p, wire, 1);
    expect_dispositions(&before, "by opening");
    pair_close(&p);
    expect_dispositions(&before, "by closing");
}

Test(wire_load, leaves_the_environment_as_it_was)
{
    char *before[1024], why[512];
    int n = 0;

    for (char **e = environ; *e; e++) {
        cr_assert_lt(n, 1023);
        before[n++] = strdup(*e);
    }
    before[n] = NULL;
    cr_assert_eq(wire->load(why, sizeof why), 0, "%s", why);
    n = 0;
    for (char **e = environ; *e; e++, n++)
        cr_assert(before[n] && strcmp(before[n], *e) == 0, "%s was not so before", *e);
    cr_assert_null(before[n], "%s is gone", before[n]);
    while (n > 0)
        free(before[--n]);
}

static void expect_load_refused(const char *word, const char *word2)
{
    char why[512] = "", again[512] = "";

    cr_assert_eq(wire->load(why, sizeof why), -ELIBACC);
    cr_assert(strstr(why, word), "\"%s\" lacks \"%s\"", why, word);
    cr_assert(strstr(why, word2), "\"%s\" lacks \"%s\"", why, word2);
    cr_assert_null(strchr(why, '\n'));
    cr_assert_eq(wire->load(again, sizeof again), -ELIBACC);
    cr_assert_str_eq(why, again);
}

Test(wire_load, missing_library_is_named_with_the_remedy)
{
    setenv("HOLMES_LIBFABRIC", "libnosuchfabric.so.7", 1);
    expect_load_refused("libnosuchfabric.so.7", "HOLMES_LIBFABRIC");
}

Test(wire_load, other_library_is_refused)
{
    setenv("HOLMES_LIBFABRIC", "libm.so.6", 1);
    expect_load_refused("libm.so.6", "fi_getinfo");
}

Test(wire_load, missing_provider_is_said)
{
    setenv("FI_PROVIDER", "sockets", 1);
    expect_load_refused("provider tcp", "FI_PROVIDER");
}

/* Constructors are soon done, providers are not. */
Test(wire_load, a_signal_while_providers_are_looked_for_is_the_processs_own)
{
    const struct sigaction own = {.sa_handler = own_handler};
    sigset_t set;

    setenv("HOLMES_LIBFABRIC", getenv("TEST_RUDE_FABRIC"), 1);
    sigaction(SIGTERM, &own, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    expect_load_refused("provider tcp", "99.0");
    cr_assert_eq(heard, SIGTERM);
}

Test(wire_load, library_errors_become_errno)
{
    cr_assert_eq(holmes_ofi_errno(0), 0);
    cr_assert_eq(holmes_ofi_errno(17), 0);
    cr_assert_eq(holmes_ofi_errno(-FI_EAGAIN), -EAGAIN);
    cr_assert_eq(holmes_ofi_errno(-FI_ECONNREFUSED), -ECONNREFUSED);
    cr_assert_eq(holmes_ofi_errno(-FI_ETRUNC), -EMSGSIZE);
    for (int e = FI_ERRNO_OFFSET; e < FI_ERRNO_OFFSET + 64; e++) {
        int rc = holmes_ofi_errno(-e);

        cr_assert(rc < 0 && rc > -FI_ERRNO_OFFSET && rc != -EAGAIN, "%d gives %d", e, rc);
    }
}
