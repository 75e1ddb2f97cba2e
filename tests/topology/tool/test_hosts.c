#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "topology/tool/hosts.h"

static void names(const struct holmes_hostlist *l, const char *want)
{
    char *text = holmes_hostlist_text(l);

    cr_assert_str_eq(text, want);
    free(text);
}

Test(hosts, come_from_the_list_the_file_or_slurm_in_this_order)
{
    char path[] = "/tmp/hosts.XXXXXX", why[256];
    int fd = mkstemp(path);
    struct holmes_hostlist l;
    bool slurm;

    cr_assert_eq(write(fd, "b1 slots=8 # x\n\nb2\n", 19), 19);
    close(fd);
    setenv("SLURM_JOB_NODELIST", "c[1-2],d", 1);
    cr_assert_eq(holmes_hosts_choose("a[01-03]", NULL, &l, &slurm, why, sizeof why), 0, "%s", why);
    names(&l, "a[01-03]");
    cr_assert(!slurm);
    holmes_hostlist_fini(&l);
    cr_assert_eq(holmes_hosts_choose(NULL, path, &l, &slurm, why, sizeof why), 0, "%s", why);
    names(&l, "b[1-2]");
    cr_assert(!slurm);
    holmes_hostlist_fini(&l);
    cr_assert_eq(holmes_hosts_choose(NULL, NULL, &l, &slurm, why, sizeof why), 0, "%s", why);
    names(&l, "c[1-2],d");
    cr_assert(slurm);
    holmes_hostlist_fini(&l);
    unlink(path);
}

Test(hosts, what_cannot_be_meant_is_refused_with_where_it_stands)
{
    struct holmes_hostlist l;
    char why[256];
    bool slurm;

    unsetenv("SLURM_JOB_NODELIST");
    cr_assert_eq(holmes_hosts_choose(NULL, NULL, &l, &slurm, why, sizeof why), -EINVAL);
    cr_assert(strstr(why, "give --hosts"), "%s", why);
    cr_assert_eq(holmes_hosts_choose("a[1-", NULL, &l, &slurm, why, sizeof why), -EINVAL);
    cr_assert(strstr(why, "--hosts \"a[1-\""), "%s", why);
    cr_assert_eq(holmes_hosts_choose("a", "b", &l, &slurm, why, sizeof why), -EINVAL);
    cr_assert_eq(holmes_hosts_choose(NULL, "/no/such/file", &l, &slurm, why, sizeof why), -ENOENT);
    cr_assert(strstr(why, "/no/such/file"), "%s", why);
    setenv("SLURM_JOB_NODELIST", "c[1-", 1);
    cr_assert_eq(holmes_hosts_choose(NULL, NULL, &l, &slurm, why, sizeof why), -EINVAL);
    cr_assert(strstr(why, "SLURM_JOB_NODELIST \"c[1-\""), "%s", why);
}
