/* Host names from the command line, a hostfile or Slurm. */
#include "tool/hosts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hostfile.h"

static int read_file(const char *path, struct holmes_hostlist *out, char *why, size_t why_len)
{
    struct holmes_hostfile file;
    int rc = holmes_hostfile_read(path, &file, why, why_len);

    if (rc == 0) {
        free(file.slots);
        *out = file.hosts;
    }
    return rc;
}

int holmes_hosts_choose(const char *list, const char *file, struct holmes_hostlist *out,
                        bool *slurm, char *why, size_t why_len)
{
    const char *nodes = getenv("SLURM_JOB_NODELIST"), *from = "--hosts";
    char what[256];
    int rc;

    *slurm = false;
    if (list && file) {
        snprintf(why, why_len, "--hosts and --hostfile: give one of them");
        return -EINVAL;
    }
    if (file)
        return read_file(file, out, why, why_len);
    if (!list && nodes && *nodes) {
        list = nodes;
        from = "SLURM_JOB_NODELIST";
        *slurm = true;
    }
    if (!list) {
        snprintf(why, why_len,
                 "no hosts: give --hosts a[01-04],b7 or --hostfile FILE, or run it in a Slurm "
                 "allocation");
        return -EINVAL;
    }
    rc = holmes_hostlist_parse(list, out, what, sizeof what);
    if (rc != 0)
        snprintf(why, why_len, "%s \"%.200s\": %s", from, list, what);
    return rc;
}

const char *holmes_own_program(const char *named, char *buf, size_t len)
{
    ssize_t n = named ? 0 : readlink("/proc/self/exe", buf, len - 1);

    if (named)
        return named;
    if (n <= 0)
        return "holmes-topo";
    buf[n] = '\0';
    return buf;
}
