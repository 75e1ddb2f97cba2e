/* Reads /proc/self and getrusage; see usage.h. */
#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "self.h"

static void read_memory(struct holmes_scale_usage *out)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    char line[128];
    long long kib;

    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Rss: %lld", &kib) == 1)
            out->rss = kib * 1024;
        else if (sscanf(line, "Pss: %lld", &kib) == 1)
            out->pss = kib * 1024;
    }
    if (f)
        fclose(f);
}

static int64_t ns_of(const struct timeval *t)
{
    return (int64_t)t->tv_sec * 1000000000 + (int64_t)t->tv_usec * 1000;
}

int64_t holmes_scale_cpu_ns(void)
{
    struct rusage r;

    return getrusage(RUSAGE_SELF, &r) == 0 ? ns_of(&r.ru_utime) + ns_of(&r.ru_stime) : 0;
}

void holmes_scale_usage_now(struct holmes_scale_usage *out)
{
    struct rusage r;

    memset(out, 0, sizeof *out);
    malloc_trim(0);
    out->fds = holmes_self_fds();
    out->threads = holmes_self_threads();
    read_memory(out);
    out->cpu_ns = holmes_scale_cpu_ns();
    if (getrusage(RUSAGE_SELF, &r) == 0)
        out->switches = r.ru_nvcsw + r.ru_nivcsw;
}

int64_t holmes_scale_nofile_raise(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 0;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur > INT64_MAX ? INT64_MAX : (int64_t)limit.rlim_cur;
}

int64_t holmes_scale_nofile_missing(void)
{
    int fd = open("/", O_PATH | O_CLOEXEC);
    struct rlimit limit;

    if (fd >= 0)
        close(fd);
    if (fd >= 0 || errno != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 0;
    return (int64_t)limit.rlim_cur;
}
