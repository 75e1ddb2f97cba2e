/* Small readers for sysfs. Attributes are short; whatever does not fit its buffer is no value that
 * the callers look for. */
#include "sysfs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int full_path(const char *root, const char *path, char *buf, size_t len)
{
    int n;

    if (!root)
        return -ENOENT;
    n = snprintf(buf, len, "%s/%s", root, path);
    return n < 0 || (size_t)n >= len ? -ENAMETOOLONG : 0;
}

int sysfs_read(const char *root, const char *path, char *buf, size_t len)
{
    char full[PATH_MAX];
    int rc = full_path(root, path, full, sizeof full), fd;
    ssize_t n;

    if (rc != 0)
        return rc;
    fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a recorded tree may hold anything */
    if (fd < 0)
        return -errno;
    n = read(fd, buf, len - 1);
    rc = n < 0 ? -errno : 0;
    close(fd);
    if (rc != 0)
        return rc;
    while (n > 0 && buf[n - 1] == '\n')
        n--;
    buf[n] = '\0';
    return 0;
}

int sysfs_read_int(const char *root, const char *path, int64_t *out)
{
    char text[64], *end;
    int rc = sysfs_read(root, path, text, sizeof text);
    long long v;

    if (rc != 0)
        return rc;
    errno = 0;
    v = strtoll(text, &end, 0);
    if (end == text || *end != '\0' || errno != 0)
        return -EINVAL;
    *out = v;
    return 0;
}

bool sysfs_exists(const char *root, const char *path)
{
    char full[PATH_MAX];

    return full_path(root, path, full, sizeof full) == 0 && access(full, F_OK) == 0;
}

/* dddd:bb:dd.f in hexadecimal; the domain may be longer than four digits. */
static bool is_pci_function(const char *s, size_t len)
{
    static const char tail[] = "xx:xx.x"; /* behind "domain:" */
    const char *colon = memchr(s, ':', len);

    if (!colon || colon - s < 4 || len - (size_t)(colon + 1 - s) != sizeof tail - 1)
        return false;
    for (const char *p = s; p < colon; p++) {
        if (!isxdigit((unsigned char)*p))
            return false;
    }
    for (size_t i = 0; i < sizeof tail - 1; i++) {
        char c = colon[1 + i];

        if (tail[i] == 'x' ? !isxdigit((unsigned char)c) : c != tail[i])
            return false;
    }
    return true;
}

int sysfs_pci_path(const char *root, const char *path, char *buf, size_t len)
{
    char full[PATH_MAX], real[PATH_MAX];
    size_t end = 0;
    int rc = full_path(root, path, full, sizeof full);

    if (rc != 0)
        return rc;
    if (!realpath(full, real))
        return -errno;
    for (const char *p = strchr(real, '/'); p; p = strchr(p + 1, '/')) {
        size_t n = strcspn(p + 1, "/");

        if (is_pci_function(p + 1, n))
            end = (size_t)(p + 1 - real) + n;
    }
    if (end == 0)
        return -ENOENT;
    if (end >= len)
        return -ENAMETOOLONG;
    memcpy(buf, real, end);
    buf[end] = '\0';
    return 0;
}
