#include "fail_write.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t left = SIZE_MAX;
static int error, manifest_error;
static ino_t synced[64];
static int nsynced;

ssize_t __real_pwrite64(int fd, const void *data, size_t bytes, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t at);
ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);

void fail_write_after(size_t bytes, int err)
{
    left = bytes;
    error = err;
}

void fail_write_manifest(int err)
{
    manifest_error = err;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    struct stat st;

    pthread_mutex_lock(&lock);
    if (fstat(fd, &st) == 0 && nsynced < (int)(sizeof synced / sizeof *synced))
        synced[nsynced++] = st.st_ino;
    pthread_mutex_unlock(&lock);
    return __real_fsync(fd);
}

bool fail_write_synced(const char *path)
{
    struct stat st;
    bool found = false;

    if (stat(path, &st) != 0)
        return false;
    for (int i = 0; i < nsynced; i++)
        found |= synced[i] == st.st_ino;
    return found;
}

void fail_write_never(void)
{
    left = SIZE_MAX;
    error = manifest_error = 0;
}

/* What still fits is written, as a file system does. */
ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t at)
{
    size_t n;

    pthread_mutex_lock(&lock);
    n = error && bytes > left ? left : bytes;
    if (error)
        left -= n;
    pthread_mutex_unlock(&lock);
    if (n == 0 && bytes > 0) {
        errno = error;
        return -1;
    }
    return __real_pwrite64(fd, data, n, at);
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    if (manifest_error && bytes > 0 && *(const char *)data == '{') {
        errno = manifest_error;
        return -1;
    }
    return __real_write(fd, data, bytes);
}
