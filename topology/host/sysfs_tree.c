/* Finds out what a folder is: a machine's root, its sysfs, or what class/infiniband holds. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "tree.h"

static bool has_folder(const char *root, const char *name)
{
    char path[PATH_MAX];
    struct stat st;

    return (size_t)snprintf(path, sizeof path, "%s/%s", root, name) < sizeof path &&
           stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* class/infiniband by itself: folders of devices, each with its ports. */
static bool is_class(const char *root)
{
    bool found = false;
    struct dirent *e;
    DIR *dir = opendir(root);

    if (!dir)
        return false;
    while (!found && (e = readdir(dir))) {
        char ports[NAME_MAX + 8];

        if (e->d_name[0] == '.')
            continue;
        snprintf(ports, sizeof ports, "%s/ports", e->d_name);
        found = has_folder(root, ports);
    }
    closedir(dir);
    return found;
}

static void set(char dst[PATH_MAX], const char *a, const char *b)
{
    /* Both came from realpath or fit beside it; what does not fit reads as not there. */
    if ((size_t)snprintf(dst, PATH_MAX, "%s%s", a, b) >= PATH_MAX)
        dst[0] = '\0';
}

int tree_find(const char *root, struct tree *out, char *why, size_t why_len)
{
    char real[PATH_MAX], base[PATH_MAX];
    size_t len;

    memset(out, 0, sizeof *out);
    if (!realpath(root, real)) {
        int rc = -errno;

        snprintf(why, why_len, "%s: %s", root, holmes_strerror(rc));
        return rc;
    }
    out->live = strcmp(real, "/") == 0 || strcmp(real, "/sys") == 0;
    len = strlen(real);
    if (out->live) {
        set(out->base, "/", "");
        set(out->sys, "/sys", "");
    } else if (has_folder(real, "sys")) {
        set(out->base, real, "");
        set(out->sys, real, "/sys");
    } else if (has_folder(real, "class") || has_folder(real, "bus/pci") ||
               has_folder(real, "devices")) {
        set(out->sys, real, "");
        if (len > 4 && strcmp(real + len - 4, "/sys") == 0) {
            snprintf(base, sizeof base, "%.*s", (int)(len - 4), real);
            set(out->base, base, "");
        }
    } else if (is_class(real)) {
        set(out->class, real, "");
        return 0;
    } else {
        snprintf(why, why_len,
                 "%s holds no recorded machine: give the folder that has the machine's sys/ in it, "
                 "or its sysfs, or a copy of its class/infiniband",
                 root);
        return -EINVAL;
    }
    if (out->live && !realpath(out->sys, out->real)) {
        set(out->real, out->sys, ""); /* not mounted: interfaces are still there */
    } else if (!realpath(out->sys, out->real)) {
        int rc = -errno;

        snprintf(why, why_len, "%s: %s", out->sys, holmes_strerror(rc));
        return rc;
    }
    return 0;
}

void tree_path_to_sys(const struct tree *t, char *path, size_t len)
{
    size_t n = strlen(t->real);
    char rest[PATH_MAX];

    if (!path[0])
        return;
    if (n == 0 || strncmp(path, t->real, n) != 0 || path[n] != '/') {
        path[0] = '\0';
        return;
    }
    snprintf(rest, sizeof rest, "%s", path + n);
    memset(path, 0, len);
    if ((size_t)snprintf(path, len, "/sys%s", rest) >= len)
        path[0] = '\0';
}

bool tree_has(const struct tree *t, const char *class, const char *name)
{
    char path[PATH_MAX], real[PATH_MAX];
    size_t n = strlen(t->real);

    return t->live ||
           ((size_t)snprintf(path, sizeof path, "%s/%s/%s/.", t->sys, class, name) < sizeof path &&
            realpath(path, real) && strncmp(real, t->real, n) == 0 && real[n] == '/');
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.' && e->d_type != DT_REG;
}

int tree_skip_unread(const struct tree *t, struct holmes_host *h, const char *class)
{
    struct dirent **names;
    char path[PATH_MAX];
    int n, rc = 0;

    if (t->live || !t->sys[0] ||
        (size_t)snprintf(path, sizeof path, "%s/%s", t->sys, class) >= sizeof path)
        return 0;
    n = scandir(path, &names, is_visible, versionsort);
    for (int i = 0; i < n; i++) {
        if (rc == 0 && !tree_has(t, class, names[i]->d_name))
            rc = host_skip(h, names[i]->d_name,
                           has_folder(path, names[i]->d_name) ? "leads out of the recorded tree"
                                                              : "recorded as a name only");
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return rc;
}
