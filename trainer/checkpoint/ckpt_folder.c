#include "ckpt_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "manifest.h"

#define LOCK_NAME    ".lock"
#define LOCK_WAIT_MS 10000 /* a run that was killed may be a moment in dying */

#define FAIL(rc, ...)                                                                              \
    do {                                                                                           \
        snprintf(why, why_len, __VA_ARGS__);                                                       \
        return rc;                                                                                 \
    } while (0)

/* --- names -------------------------------------------------------------------------------------
 */

/* "step-00000120" followed by `suffix`: its step, or 0. */
static int step_of(const char *name, const char *suffix)
{
    const char *digits = name + strlen("step-");
    char *end;
    long step;

    if (strncmp(name, "step-", strlen("step-")) != 0 || *digits < '0' || *digits > '9')
        return 0;
    errno = 0;
    step = strtol(digits, &end, 10);
    if (errno != 0 || end - digits < 8 || strcmp(end, suffix) != 0 || step > INT_MAX)
        return 0;
    return (int)step;
}

static bool is_leftover(const char *name)
{
    return step_of(name, ".partial") > 0 || step_of(name, ".deleted") > 0;
}

static bool has_manifest(const char *folder)
{
    char path[HOLMES_CKPT_PATH_MAX + 400];

    snprintf(path, sizeof path, "%s/%s", folder, HOLMES_MANIFEST_NAME);
    return access(path, F_OK) == 0;
}

static int by_step(const void *a, const void *b)
{
    const struct holmes_ckpt_entry *x = a, *y = b;

    return (x->step > y->step) - (x->step < y->step);
}

static int add_entry(struct holmes_ckpt_entry **list, int *count, const char *name, int step)
{
    struct holmes_ckpt_entry *more = realloc(*list, ((size_t)*count + 1) * sizeof *more);

    if (!more)
        return -ENOMEM;
    *list = more;
    more[*count].step = step;
    snprintf(more[*count].name, sizeof more->name, "%s", name);
    (*count)++;
    return 0;
}

/* A folder without a manifest is no checkpoint of ours, whatever it is called. */
static int scan(DIR *d, const char *dir, struct holmes_ckpt_entry **list, int *count)
{
    char path[HOLMES_CKPT_PATH_MAX + 300];
    struct dirent *e;
    int rc = 0;

    while (rc == 0 && (e = readdir(d))) {
        const int step = step_of(e->d_name, "");

        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (step > 0 && strlen(e->d_name) < sizeof(*list)->name && has_manifest(path))
            rc = add_entry(list, count, e->d_name, step);
    }
    return rc;
}

int holmes_ckpt_list(const char *dir, struct holmes_ckpt_entry **out, int *count, char *why,
                     size_t why_len)
{
    DIR *d = opendir(dir);
    struct holmes_ckpt_entry *list = NULL;
    int rc;

    *count = 0;
    *out = NULL;
    if (!d && errno == ENOENT)
        return 0;
    rc = d ? scan(d, dir, &list, count) : -errno;
    if (d)
        closedir(d);
    if (rc != 0) {
        free(list);
        FAIL(rc, "%s: %s", dir, strerror(-rc));
    }
    if (*count > 0)
        qsort(list, (size_t)*count, sizeof *list, by_step);
    *out = list;
    return 0;
}

static int newest(const char *dir, char *out, size_t len, char *why, size_t why_len)
{
    struct holmes_ckpt_entry *list;
    int count, rc = holmes_ckpt_list(dir, &list, &count, why, why_len);

    if (rc != 0)
        return rc;
    out[0] = '\0';
    if (count > 0)
        snprintf(out, len, "%s/%s", dir, list[count - 1].name);
    free(list);
    return 0;
}

int holmes_ckpt_locate(const char *which, const char *save, char *out, size_t len, char *why,
                       size_t why_len)
{
    const bool latest = strcmp(which, "latest") == 0;
    const char *dir = latest ? save : which;
    struct stat st;
    int rc;

    if (!latest && strlen(which) >= HOLMES_CKPT_PATH_MAX - 64)
        FAIL(-ENAMETOOLONG, "--resume %.60s...: the path is too long", which);
    if (!latest && stat(which, &st) != 0)
        FAIL(-errno, "--resume %s: %s", which, strerror(errno));
    if (!latest && !S_ISDIR(st.st_mode))
        FAIL(-ENOTDIR, "--resume %s: a folder is right, a checkpoint or one with checkpoints",
             which);
    if (!latest && is_leftover(strrchr(which, '/') ? strrchr(which, '/') + 1 : which))
        FAIL(-EINVAL, "--resume %s: it was never completed: no checkpoint", which);
    if (!latest && has_manifest(which)) {
        snprintf(out, len, "%s", which);
        return 0;
    }
    rc = newest(dir, out, len, why, why_len);
    if (rc == 0 && !latest && !out[0])
        FAIL(-ENOENT, "--resume %s: there is no checkpoint: no %s, no folder step-NNNNNNNN", which,
             HOLMES_MANIFEST_NAME);
    return rc;
}

/* --- removing ----------------------------------------------------------------------------------
 */

/* A checkpoint has files only. What else somebody put there stays, and the folder with it. */
static int remove_folder(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;

    if (!d)
        return -errno;
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    return rmdir(path) == 0 ? 0 : -errno;
}

static int remove_leftovers(const char *dir, char *why, size_t why_len)
{
    char path[HOLMES_CKPT_PATH_MAX + 300];
    DIR *d = opendir(dir);
    struct dirent *e;
    int rc = 0;

    if (!d)
        FAIL(-errno, "--save %s: %s", dir, strerror(errno));
    while (rc == 0 && (e = readdir(d))) {
        if (!is_leftover(e->d_name))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        rc = remove_folder(path);
        if (rc != 0 && step_of(e->d_name, ".deleted") > 0) { /* in nobody's way */
            holmes_warn(TRAIN, "--save %s: cannot remove %s: %s", dir, e->d_name, strerror(-rc));
            rc = 0;
        }
        if (rc != 0)
            snprintf(why, why_len, "--save %s: cannot remove %s, which a dead run left: %s", dir,
                     e->d_name, strerror(-rc));
    }
    closedir(d);
    return rc;
}

/* --- the folder of a run -----------------------------------------------------------------------
 */

static int take_lock(const char *dir, int *out, char *why, size_t why_len)
{
    const uint64_t deadline = holmes_deadline_ms(LOCK_WAIT_MS);
    const struct timespec pause = {.tv_nsec = 50000000};
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[HOLMES_CKPT_PATH_MAX + 32];
    int fd;

    snprintf(path, sizeof path, "%s/%s", dir, LOCK_NAME);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        FAIL(-errno, "--save %s: cannot write there: %s", dir, strerror(errno));
    while (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
            holmes_warn(TRAIN, "--save %s: no lock (%s): let no other run save there", dir,
                        strerror(errno));
            close(fd);
            fd = -1;
            break;
        }
        if (holmes_deadline_passed(deadline)) {
            close(fd);
            FAIL(-EBUSY, "--save %s: another run that is not over saves there", dir);
        }
        nanosleep(&pause, NULL);
    }
    *out = fd;
    return 0;
}

/* Whether a checkpoint of `dir` is the folder `path`. */
static bool same_folder(const char *dir, const char *name, const char *path)
{
    char own[HOLMES_CKPT_PATH_MAX + 64];
    struct stat a, b;

    snprintf(own, sizeof own, "%s/%s", dir, name);
    return stat(own, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static int check_history(const char *dir, const char *resumed, char *why, size_t why_len)
{
    struct holmes_ckpt_entry *list;
    int count, rc = holmes_ckpt_list(dir, &list, &count, why, why_len);
    const struct holmes_ckpt_entry *last = count > 0 ? &list[count - 1] : NULL;

    if (rc != 0 || !last)
        return rc;
    if (!resumed) {
        rc = -EEXIST;
        snprintf(why, why_len,
                 "--save %s has checkpoints already, %s the newest: --resume latest goes on from "
                 "it, another folder begins anew",
                 dir, last->name);
    } else if (!same_folder(dir, last->name, resumed)) {
        rc = -EEXIST;
        snprintf(why, why_len,
                 "--save %s has %s, which does not lead to %s that this run goes on from: name "
                 "another folder, or remove the later ones",
                 dir, last->name, resumed);
    }
    free(list);
    return rc;
}

/* A folder that was made is lost with all in it while its own name is not on the disk. Where that
 * cannot be read, nothing can be done. */
static void sync_parent(const char *dir)
{
    char copy[HOLMES_CKPT_PATH_MAX];
    int rc;

    snprintf(copy, sizeof copy, "%s", dir);
    rc = holmes_ckpt_sync_folder(dirname(copy));
    if (rc != 0)
        holmes_warn(TRAIN, "--save %s: its name may not outlive a power failure: %s", dir,
                    strerror(-rc));
}

int holmes_ckpt_claim(const char *dir, const char *resumed, int *lock_fd, char *why, size_t why_len)
{
    int rc;

    if (strlen(dir) >= HOLMES_CKPT_PATH_MAX - 64)
        FAIL(-ENAMETOOLONG, "--save %.60s...: the path is too long", dir);
    if (mkdir(dir, 0777) == 0)
        sync_parent(dir);
    else if (errno != EEXIST)
        FAIL(-errno, "--save %s: cannot make this folder: %s", dir, strerror(errno));
    rc = take_lock(dir, lock_fd, why, why_len);
    if (rc != 0)
        return rc;
    rc = check_history(dir, resumed, why, why_len);
    if (rc == 0)
        rc = remove_leftovers(dir, why, why_len);
    if (rc != 0 && *lock_fd >= 0)
        close(*lock_fd);
    return rc;
}

int holmes_ckpt_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;

    if (fd < 0)
        return -errno;
    if (fsync(fd) != 0 && errno != EINVAL) /* EINVAL: a file system that knows no such thing */
        rc = -errno;
    close(fd);
    return rc;
}

int holmes_ckpt_begin(const char *dir, int step, char *partial, size_t len, char *why,
                      size_t why_len)
{
    snprintf(partial, len, "%s/step-%08d.partial", dir, step);
    if (mkdir(partial, 0777) != 0)
        FAIL(-errno, "--save %s: cannot make %s: %s", dir, partial, strerror(errno));
    return 0;
}

int holmes_ckpt_commit(const char *dir, int step, const char *partial, char *why, size_t why_len)
{
    char path[HOLMES_CKPT_PATH_MAX + 64];
    int rc = holmes_ckpt_sync_folder(partial);

    snprintf(path, sizeof path, "%s/step-%08d", dir, step);
    if (rc == 0 && rename(partial, path) != 0)
        rc = -errno;
    if (rc == 0)
        rc = holmes_ckpt_sync_folder(dir);
    if (rc != 0)
        FAIL(rc, "--save %s: cannot complete %s: %s", dir, path, strerror(-rc));
    return 0;
}

int holmes_ckpt_prune(const char *dir, int keep, char *why, size_t why_len)
{
    struct holmes_ckpt_entry *list;
    int count, rc = holmes_ckpt_list(dir, &list, &count, why, why_len);

    for (int i = 0; rc == 0 && i < count - keep; i++) {
        char from[HOLMES_CKPT_PATH_MAX + 64], to[HOLMES_CKPT_PATH_MAX + 80];

        snprintf(from, sizeof from, "%s/%s", dir, list[i].name);
        snprintf(to, sizeof to, "%s.deleted", from);
        rc = rename(from, to) == 0 ? remove_folder(to) : -errno;
        if (rc != 0)
            snprintf(why, why_len, "--save %s: cannot remove %s: %s", dir, list[i].name,
                     strerror(-rc));
    }
    free(list);
    return rc;
}
