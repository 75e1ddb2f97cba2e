/* Reads by doubling: what a pipe or /proc holds is not known before. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITER_MS 2000 /* for a pipe's other end to be opened */

int holmes_file_check(int fd)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    return S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || isatty(fd)
               ? 0
               : -ENOTSUP;
}

const char *holmes_file_strerror(int rc)
{
    if (rc == -ENOTSUP)
        return "it is a device: a file or a pipe is right";
    if (rc == -EPIPE)
        return "it is a pipe that nobody writes to";
    return strerror(-rc);
}

/* Of a pipe that was opened without waiting, its first byte into *c, or EOF where there is none
 * yet. -EPIPE: nobody writes. */
static int find_writer(int fd, int *c)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        unsigned char byte;
        ssize_t n = read(fd, &byte, 1);

        if (n == 1)
            *c = byte;
        if (n == 1 || (n < 0 && errno == EAGAIN))
            return 0;
        if (n < 0)
            return -errno;
        if (attempt == 0)
            poll(&p, 1, WRITER_MS);
    }
    return -EPIPE;
}

int holmes_file_open(const char *path, FILE **out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), c = EOF, flags;
    int rc = fd >= 0 ? holmes_file_check(fd) : -errno;
    struct stat st;
    FILE *f = NULL;

    if (rc == 0 && isatty(fd))
        rc = -ENOTSUP;
    if (rc == 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))
        rc = find_writer(fd, &c);
    if (rc == 0) {
        flags = fcntl(fd, F_GETFL);
        f = flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0 ? fdopen(fd, "rb") : NULL;
        rc = f ? 0 : -errno;
    }
    if (rc != 0) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    if (c != EOF)
        ungetc(c, f);
    *out = f;
    return 0;
}

int holmes_file_read(const char *path, size_t max, char **out, size_t *len)
{
    FILE *f = stdin;
    char *text = NULL;
    size_t n = 0, cap = 0;
    int rc = strcmp(path, "-") == 0 ? holmes_file_check(STDIN_FILENO) : holmes_file_open(path, &f);

    if (rc != 0)
        return rc;
    do {
        if (n + 1 >= cap) {
            char *more = realloc(text, cap = cap > 0 ? 2 * cap : 1 << 16);

            if (!more) {
                rc = -ENOMEM;
                break;
            }
            text = more;
        }
        errno = 0;

        size_t got = fread(text + n, 1, cap - n - 1, f);

        n += got;
        if (n > max)
            rc = -EFBIG;
        else if (got == 0 && ferror(f))
            rc = errno ? -errno : -EIO;
        else if (got == 0)
            break;
    } while (rc == 0);
    if (f != stdin)
        fclose(f);
    if (rc != 0) {
        free(text);
        return rc;
    }
    text[n] = '\0';
    *out = text;
    *len = n;
    return 0;
}
