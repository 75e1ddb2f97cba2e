/* A sysfs tree in a folder of its own, written file by file. */
#ifndef SYSFS_TREE_H
#define SYSFS_TREE_H

#include <criterion/criterion.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sysfs_tree {
    char root[64];
};

static inline void tree_init(struct sysfs_tree *t)
{
    snprintf(t->root, sizeof t->root, "/tmp/holmes-sysfs-XXXXXX");
    cr_assert_not_null(mkdtemp(t->root));
}

static inline void tree_fini(struct sysfs_tree *t)
{
    char command[128];

    snprintf(command, sizeof command, "rm -r %s", t->root);
    cr_assert_eq(system(command), 0);
}

/* The path below the root, with its folders made. */
static inline const char *tree_path(const struct sysfs_tree *t, const char *path, char *full,
                                    size_t len)
{
    cr_assert_lt((size_t)snprintf(full, len, "%s/%s", t->root, path), len);
    for (char *p = full + strlen(t->root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(full, 0755);
    }
    return full;
}

/* The attribute at the formatted path gets the text and a newline. */
__attribute__((format(printf, 3, 4))) static inline void
tree_write(const struct sysfs_tree *t, const char *text, const char *path_format, ...)
{
    char path[PATH_MAX / 2], full[PATH_MAX];
    va_list ap;
    FILE *f;

    va_start(ap, path_format);
    vsnprintf(path, sizeof path, path_format, ap);
    va_end(ap);
    f = fopen(tree_path(t, path, full, sizeof full), "w");
    cr_assert_not_null(f, "%s", full);
    fprintf(f, "%s\n", text);
    fclose(f);
}

static inline void tree_link(const struct sysfs_tree *t, const char *target, const char *path)
{
    char full[PATH_MAX];

    cr_assert_eq(symlink(target, tree_path(t, path, full, sizeof full)), 0, "%s", path);
}

struct tree_rdma_port {
    const char *device, *state, *phys_state, *link_layer, *rate;
};

static inline void tree_port(const struct sysfs_tree *t, const struct tree_rdma_port *p, int port)
{
    const char *format = "class/infiniband/%s/ports/%d/%s";

    tree_write(t, p->state, format, p->device, port, "state");
    tree_write(t, p->phys_state, format, p->device, port, "phys_state");
    tree_write(t, p->link_layer, format, p->device, port, "link_layer");
    tree_write(t, p->rate, format, p->device, port, "rate");
}

/* An entry of port 1. A NULL type or interface: no such attribute. */
static inline void tree_gid(const struct sysfs_tree *t, const char *device, int index,
                            const char *gid, const char *type, const char *ndev)
{
    tree_write(t, gid, "class/infiniband/%s/ports/1/gids/%d", device, index);
    if (type)
        tree_write(t, type, "class/infiniband/%s/ports/1/gid_attrs/types/%d", device, index);
    if (ndev)
        tree_write(t, ndev, "class/infiniband/%s/ports/1/gid_attrs/ndevs/%d", device, index);
}

#endif
