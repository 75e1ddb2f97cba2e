/* Pipes are opened without waiting for their other end. Reads by doubling: what a pipe or /proc
 * holds is not known before. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OTHER_END_MS 2000 /* for a pipe's other end to be opened */
#define LOOK_MS      20   /* between looks for a reader */

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
    if (rc == -ENXIO)
        return "it is a pipe that nobody reads";
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
            poll(&p, 1, OTHER_END_MS);
    }
    return -EPIPE;
}

/* A stream on what was opened without waiting. Closes fd when it fails. */
static int make_stream(int fd, const char *mode, FILE **out)
{
    const int flags = fcntl(fd, F_GETFL);
    int rc;

    if (flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0)
        *out = fdopen(fd, mode);
    if (*out)
        return 0;
    rc = -errno;
    close(fd);
    return rc;
}

int holmes_file_create(const char *path, FILE **out)
{
    FILE *f = NULL;
    int fd = -1, rc;

    for (int waited = 0; fd < 0 && waited <= OTHER_END_MS; waited += LOOK_MS) {
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
        if (fd < 0 && errno != ENXIO)
            return -errno;
        if (fd < 0)
            poll(NULL, 0, LOOK_MS);
    }
    rc = fd >= 0 ? make_stream(fd, "w", &f) : -ENXIO;
    if (rc == 0)
        *out = f;
    return rc;
}

int holmes_file_open(const char *path, FILE **out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), c = EOF;
    int rc = fd >= 0 ? holmes_file_check(fd) : -errno;
    struct stat st;
    FILE *f = NULL;

    if (rc == 0 && isatty(fd))
        rc = -ENOTSUP;
    if (rc == 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))
        rc = find_writer(fd, &c);
    if (rc != 0) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    rc = make_stream(fd, "rb", &f);
    if (rc != 0)
        return rc;
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
