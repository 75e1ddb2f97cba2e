/* Opening and mapping of a file that may be anything. */
#include "filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int holmes_filemap_open(const char *path, struct holmes_filemap *m, char *why, size_t why_len)
{
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st = {0};
    void *map = MAP_FAILED;
    int rc = 0;

    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = -errno;
        snprintf(why, why_len, "cannot open %s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = -EINVAL;
        snprintf(why, why_len, "%s is no regular file", path);
    } else if (st.st_size == 0) {
        rc = -EINVAL;
        snprintf(why, why_len, "%s is empty", path);
    } else {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            rc = -errno;
            snprintf(why, why_len, "cannot map %s: %s", path, strerror(errno));
        }
    }
    if (fd >= 0)
        close(fd);
    if (rc != 0)
        return rc;
    m->bytes = map;
    m->size = (size_t)st.st_size;
    return 0;
}

void holmes_filemap_close(struct holmes_filemap *m)
{
    if (m->bytes)
        munmap((void *)(uintptr_t)m->bytes, m->size);
    *m = (struct holmes_filemap){0};
}
