/* Reads the job's secret where --secret-file names one, and says how to make one. */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "env.h"

#define SECRET_MAX 1024

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return -EINVAL;                                                                            \
    } while (0)

static int check_file(const char *path, const struct stat *st, char *why, size_t why_len)
{
    if (!S_ISREG(st->st_mode))
        REFUSE("--secret-file %s: a regular file is right", path);
    if (st->st_mode & 077)
        REFUSE("--secret-file %s: others may read or change it (mode %04o): chmod 600 it", path,
               (unsigned int)st->st_mode & 07777u);
    if (st->st_uid != geteuid() && st->st_uid != 0)
        REFUSE("--secret-file %s: it belongs to another user (uid %u)", path,
               (unsigned int)st->st_uid);
    return 0;
}

/* The first line of the file. */
static int read_secret(const char *path, char secret[SECRET_MAX + 2], char *why, size_t why_len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc;
    struct stat st;
    ssize_t n = -1;

    if (fd < 0)
        REFUSE("--secret-file %s: %s", path, strerror(errno));
    rc = fstat(fd, &st) == 0 ? check_file(path, &st, why, why_len) : -EINVAL;
    if (rc == 0)
        n = read(fd, secret, SECRET_MAX + 1);
    close(fd);
    if (rc != 0)
        return rc;
    while (n > 0 && (secret[n - 1] == '\n' || secret[n - 1] == '\r'))
        n--;
    if (n <= 0)
        REFUSE("--secret-file %s: it is empty; openssl rand -hex 16 makes a secret", path);
    if (n > SECRET_MAX || memchr(secret, '\0', (size_t)n) || memchr(secret, '\n', (size_t)n))
        REFUSE("--secret-file %s: one line of at most %d characters is right", path, SECRET_MAX);
    secret[n] = '\0';
    return 0;
}

int holmes_secret_load(const struct holmes_config *c, char *why, size_t why_len)
{
    const char *given = holmes_env_string(HOLMES_ENV_JOB_SECRET);
    char secret[SECRET_MAX + 2];
    int rc;

    if (!c->secret_file)
        return 0;
    rc = read_secret(c->secret_file, secret, why, why_len);
    if (rc != 0)
        return rc;
    if (given && strcmp(given, secret) != 0)
        REFUSE("--secret-file %s and HOLMES_JOB_SECRET hold different secrets: leave out one",
               c->secret_file);
    if (setenv(holmes_env_vars[HOLMES_ENV_JOB_SECRET].name, secret, 1) != 0)
        return -errno;
    return 0;
}

const char *holmes_secret(const struct holmes_config *c, char *why, size_t why_len)
{
    const char *secret = holmes_env_string(HOLMES_ENV_JOB_SECRET);
    bool mpirun = c->launcher && strcmp(c->launcher, "mpirun") == 0;

    if (secret && secret[0])
        return secret;
    snprintf(why, why_len,
             "HOLMES_JOB_SECRET is %s: the ranks of a job share one secret, known to nobody else; "
             "export HOLMES_JOB_SECRET=$(openssl rand -hex 16) %s%s%s, or --secret-file FILE",
             secret ? "empty" : "not set", c->launcher ? "before " : "for all of them",
             c->launcher ? c->launcher : "", mpirun ? " -x HOLMES_JOB_SECRET" : "");
    return NULL;
}
