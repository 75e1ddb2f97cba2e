/* PCI functions and GPUs of a sysfs tree. The kernel nests the folders of functions as the bus
 * does, so a function's path has the bridges above it; nothing else of a recorded tree need be
 * there. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../sysfs.h"
#include "pci.h"
#include "tree.h"

#define DEVICES "bus/pci/devices"

static bool read_hex(const char *dir, const char *attr, uint32_t max, uint32_t *out)
{
    int64_t v;

    if (sysfs_read_int(dir, attr, &v) != 0 || v < 0 || v > max)
        return false;
    *out = (uint32_t)v;
    return true;
}

static uint16_t read_id(const char *dir, const char *attr)
{
    uint32_t v = 0;

    return read_hex(dir, attr, UINT16_MAX, &v) ? (uint16_t)v : 0;
}

/* "16.0 GT/s PCIe" */
static double read_speed(const char *dir)
{
    char text[64], *end;
    double v;

    if (sysfs_read(dir, "max_link_speed", text, sizeof text) != 0)
        return 0;
    v = strtod(text, &end);
    return end != text && strncmp(end, " GT/s", 5) == 0 && v > 0 && v < 1000 ? v : 0;
}

static void read_function(const char *dir, struct holmes_host_pci *p)
{
    int64_t v;

    read_hex(dir, "class", 0xffffff, &p->class);
    p->vendor = read_id(dir, "vendor");
    p->device = read_id(dir, "device");
    p->subsystem_vendor = read_id(dir, "subsystem_vendor");
    p->subsystem_device = read_id(dir, "subsystem_device");
    if (sysfs_read_int(dir, "numa_node", &v) == 0 && v >= 0 && v <= INT_MAX)
        p->numa_node = (int)v;
    p->link_gts = read_speed(dir);
    if (sysfs_read_int(dir, "max_link_width", &v) == 0 && v > 0 && v <= 64)
        p->link_width = (int)v;
}

/* Adds the functions along `path`, a resolved path inside the tree, from the host bridge down. */
static int add_chain(const struct tree *t, struct holmes_host *h, const char *path)
{
    char part[PATH_MAX], address[HOLMES_PCI_MAX];
    int parent = -1, root = -1;

    for (const char *p = path + strlen(t->real); *p == '/'; p += 1 + strcspn(p + 1, "/")) {
        size_t end = (size_t)(p - path) + 1 + strcspn(p + 1, "/");
        unsigned domain, bus;
        int found;

        if (end >= sizeof part)
            return -ENAMETOOLONG;
        memcpy(part, path, end);
        part[end] = '\0';
        pci_address_of_path(part, address);
        if (!address[0]) { /* "pci0000:80", a host bridge */
            if (parent < 0 && sscanf(p, "/pci%6x:%2x", &domain, &bus) == 2)
                root = (int)(domain << 8 | bus);
            continue;
        }
        found = host_find_pci(h, address);
        if (found < 0) {
            struct holmes_host_pci *f = host_add_pci(h, address);

            if (!f)
                return -ENOMEM;
            f->parent = parent;
            f->root = root;
            read_function(part, f);
            found = h->npcis - 1;
        }
        parent = found;
    }
    return 0;
}

static bool is_inside(const struct tree *t, const char *path)
{
    size_t n = strlen(t->real);

    return strncmp(path, t->real, n) == 0 && path[n] == '/';
}

int tree_add_function(const struct tree *t, struct holmes_host *h, const char *path)
{
    return is_inside(t, path) ? add_chain(t, h, path) : 0;
}

static const char *driver_of(const char *dir, char *buf, size_t len)
{
    char path[PATH_MAX];
    const char *slash;
    ssize_t n;

    if ((size_t)snprintf(path, sizeof path, "%s/driver", dir) >= sizeof path)
        return NULL;
    n = readlink(path, buf, len - 1);
    if (n <= 0)
        return NULL;
    buf[n] = '\0';
    slash = strrchr(buf, '/');
    return slash ? slash + 1 : buf;
}

/* "Model: \t\t NVIDIA H100 80GB HBM3" of NVIDIA's driver. */
static void read_nvidia(const struct tree *t, struct holmes_host_gpu *g)
{
    char path[PATH_MAX], text[2048], *model;
    size_t len;

    snprintf(path, sizeof path, "proc/driver/nvidia/gpus/%s/information", g->address);
    if (!t->base[0] || sysfs_read(t->base, path, text, sizeof text) != 0)
        return;
    model = strstr(text, "Model:");
    if (!model)
        return;
    model += sizeof "Model:" - 1;
    model += strspn(model, " \t");
    len = strcspn(model, "\n");
    snprintf(g->name, sizeof g->name, "%.*s",
             (int)(len < sizeof g->name ? len : sizeof g->name - 1), model);
}

static void read_amd(const char *dir, struct holmes_host_gpu *g)
{
    int64_t bytes;

    if (sysfs_read(dir, "product_name", g->name, sizeof g->name) != 0)
        g->name[0] = '\0';
    if (sysfs_read_int(dir, "mem_info_vram_total", &bytes) == 0 && bytes > 0 &&
        bytes >> 30 < GPU_MEMORY_MAX)
        g->memory_gib = (double)bytes / (1 << 30);
}

static int add_gpu(const struct tree *t, struct holmes_host *h, const char *dir,
                   const char *address)
{
    struct holmes_host_gpu *g;
    int rc = add_chain(t, h, dir);

    if (rc != 0)
        return rc;
    g = host_add_gpu(h);
    if (!g)
        return -ENOMEM;
    snprintf(g->address, sizeof g->address, "%s", address);
    g->pci = host_find_pci(h, address);
    g->vendor = h->pcis[g->pci].vendor;
    g->device = h->pcis[g->pci].device;
    g->numa_node = h->pcis[g->pci].numa_node;
    snprintf(g->vendor_name, sizeof g->vendor_name, "%s", pci_vendor_name(g->vendor));
    if (g->vendor == 0x10de)
        read_nvidia(t, g);
    else
        read_amd(dir, g);
    gpu_memory_of_name(g);
    return 0;
}

static int add_device(const struct tree *t, struct holmes_host *h, const char *name)
{
    char path[PATH_MAX], dir[PATH_MAX], address[HOLMES_PCI_MAX], driver_buf[PATH_MAX];
    struct holmes_host_pci f = {.class = 0};
    enum pci_gpu kind;

    if (!pci_address(name, address))
        return host_skip(h, name, "no PCI address");
    if ((size_t)snprintf(path, sizeof path, "%s/" DEVICES "/%s", t->sys, name) >= sizeof path ||
        !realpath(path, dir) || !is_inside(t, dir))
        return host_skip(h, address, "its folder was not recorded");
    if (!read_hex(dir, "class", 0xffffff, &f.class))
        return host_skip(h, address, "its class cannot be read");
    if (pci_is_nic(f.class))
        return add_chain(t, h, dir);
    f.vendor = read_id(dir, "vendor");
    kind = pci_gpu(f.class, f.vendor, driver_of(dir, driver_buf, sizeof driver_buf));
    return kind == PCI_GPU ? add_gpu(t, h, dir, address) : gpu_skip(h, address, kind, f.vendor);
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

int tree_read_pci(const struct tree *t, struct holmes_host *h)
{
    struct dirent **names;
    char path[PATH_MAX];
    int n, rc = 0;

    if (!t->sys[0])
        return 0;
    if ((size_t)snprintf(path, sizeof path, "%s/" DEVICES, t->sys) >= sizeof path)
        return -ENAMETOOLONG;
    n = scandir(path, &names, is_visible, alphasort);
    if (n < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? host_note(h, "no " DEVICES ": GPUs and PCI functions are not told")
                   : -errno;
    for (int i = 0; i < n; i++) {
        if (rc == 0)
            rc = add_device(t, h, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return rc;
}
