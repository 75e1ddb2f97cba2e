/* Reads /proc/self. */
#include "self.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXITING 0x4u /* PF_EXITING, proc(5): set before the thread that joins is woken */

int holmes_self_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = -1; /* the folder's own */

    if (!d)
        return -errno;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The ninth field of its stat; the second is a name, which may hold anything. */
static bool exiting(int tasks, const char *tid)
{
    char path[64], line[512];
    unsigned flags = EXITING;
    const char *rest;
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "%.32s/stat", tid);
    fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ESRCH;
    n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0)
        return true;
    line[n] = '\0';
    rest = strrchr(line, ')');
    return rest && sscanf(rest, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && (flags & EXITING);
}

int holmes_self_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;

    if (!d)
        return -errno;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.' && !exiting(dirfd(d), e->d_name);
    closedir(d);
    return n;
}
