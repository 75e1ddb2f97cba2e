/* Values of sysfs attributes: the input is cut at 0 bytes, and its parts become what the files of a
 * small tree hold. */
#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz_host.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUNCTION "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
#define GPU      "sys/devices/pci0000:00/0000:00:02.0"
#define PORT     "sys/class/infiniband/mlx5_0/ports/1"
#define NET      "sys/class/net/eth0"

static const char *const attributes[] = {
    "ip-addr.json",
    PORT "/gids/0",
    PORT "/gids/1",
    PORT "/gid_attrs/types/0",
    PORT "/gid_attrs/ndevs/0",
    PORT "/link_layer",
    PORT "/state",
    PORT "/phys_state",
    PORT "/rate",
    PORT "/lid",
    "sys/class/infiniband/mlx5_0/node_type",
    "sys/class/infiniband/mlx5_0/sys_image_guid",
    NET "/flags",
    NET "/operstate",
    NET "/type",
    NET "/speed",
    NET "/uevent",
    FUNCTION "/class",
    FUNCTION "/vendor",
    FUNCTION "/numa_node",
    FUNCTION "/max_link_speed",
    FUNCTION "/max_link_width",
    GPU "/class",
    GPU "/vendor",
    GPU "/mem_info_vram_total",
    GPU "/product_name",
    "proc/driver/nvidia/gpus/0000:00:02.0/information",
    "proc/cpuinfo",
    "proc/meminfo",
    "sys/devices/system/node/node0/cpumap",
    "sys/devices/system/node/node0/meminfo",
    "etc/hostname",
};

enum { NATTRIBUTES = sizeof attributes / sizeof *attributes, SIZE_MAX_TRIED = 1024 };

static char root[64];

static void make_folders(char *path)
{
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(path, 0755);
    }
}

static void make_link(const char *from, const char *to)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", root, from);
    make_folders(path);
    if (symlink(to, path) != 0)
        abort();
}

static void remove_tree(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf %s", root);
    if (system(command) != 0)
        abort();
}

static void make_tree(void)
{
    snprintf(root, sizeof root, "%s/holmes-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(root))
        abort();
    atexit(remove_tree);
    make_link("sys/bus/pci/devices/0000:01:00.0",
              "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0");
    make_link("sys/bus/pci/devices/0000:00:02.0", "../../../devices/pci0000:00/0000:00:02.0");
    make_link("sys/class/infiniband/mlx5_0/device",
              "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0");
    make_link(NET "/device", "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0");
}

static void write_attribute(const char *attribute, const uint8_t *data, size_t size)
{
    char path[PATH_MAX];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", root, attribute);
    f = fopen(path, "we");
    if (!f) {
        make_folders(path);
        f = fopen(path, "we");
    }
    if (!f || fwrite(data, 1, size, f) != size)
        abort();
    fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct holmes_host_request req = {.rdma = HOLMES_RDMA_NOTHING_ASKED};
    struct holmes_host *h = NULL;
    char why[1024] = "";
    int rc;

    if (size > SIZE_MAX_TRIED)
        return 0;
    if (!root[0])
        make_tree();
    for (int i = 0; i < NATTRIBUTES; i++) {
        const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
        size_t n = end ? (size_t)(end - data) : size;

        write_attribute(attributes[i], data, n);
        if (end)
            n++;
        data += n;
        size -= n;
    }
    rc = holmes_host_discover(root, &req, &h, why, sizeof why);
    fuzz_host(rc, h, why);
    return 0;
}
