/* Files put in place by rename. */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

static int cannot(const char *path, char *why, size_t why_len)
{
    int rc = errno ? -errno : -EIO;

    snprintf(why, why_len, "cannot write %s: %s", path, holmes_file_strerror(rc));
    return rc;
}

int topo_output_open(const char *path, mode_t mode, struct topo_output *out, char *why,
                     size_t why_len)
{
    struct topo_output o = {0};
    struct stat st;
    mode_t mask;
    int fd, rc;

    if (strcmp(path, "-") == 0) {
        *out = (struct topo_output){.file = stdout};
        return 0;
    }
    o.path = strdup(path);
    if (!o.path)
        return errno = ENOMEM, cannot(path, why, why_len);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        rc = holmes_file_create(path, &o.file);
        errno = -rc;
    } else if (asprintf(&o.temporary, "%s.XXXXXX", path) < 0) {
        o.temporary = NULL;
    } else if ((fd = mkostemp(o.temporary, O_CLOEXEC)) >= 0) {
        mask = umask(0);
        umask(mask);
        fchmod(fd, mode & ~mask);
        o.file = fdopen(fd, "w");
        if (!o.file) {
            unlink(o.temporary);
            close(fd);
        }
    }
    if (o.file) {
        *out = o;
        return 0;
    }
    rc = cannot(path, why, why_len);
    free(o.path);
    free(o.temporary);
    return rc;
}

int topo_output_close(struct topo_output *out, int rc, char *why, size_t why_len)
{
    const char *path = out->path ? out->path : "the standard output";

    errno = 0;
    if (rc == 0 && (fflush(out->file) != 0 || ferror(out->file)))
        rc = cannot(path, why, why_len);
    if (out->path && fclose(out->file) != 0 && rc == 0)
        rc = cannot(path, why, why_len);
    if (out->temporary && rc == 0 && rename(out->temporary, out->path) != 0)
        rc = cannot(path, why, why_len);
    if (out->temporary && rc != 0)
        unlink(out->temporary);
    free(out->temporary);
    free(out->path);
    *out = (struct topo_output){0};
    return rc;
}
