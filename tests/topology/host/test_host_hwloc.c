/* hwloc's own reading of a tree, against ours: the distances must be the same. */
#include <hwloc.h>

#include "../../unit/sysfs_tree.h"
#include "recorded.h"

/* Two processors, one on each NUMA node, without which hwloc takes this machine's. */
static void write_processors(const char *root)
{
    static const int cpus[] = {0, 121};
    struct sysfs_tree t;

    cr_assert_lt((size_t)snprintf(t.root, sizeof t.root, "%s", root), sizeof t.root);
    tree_write(&t, "0,121", "sys/devices/system/cpu/online");
    tree_write(&t, "0,121", "sys/devices/system/cpu/possible");
    for (int i = 0; i < 2; i++) {
        char map[64];

        snprintf(map, sizeof map, "%08x,00000000,00000000,%08x", i == 1 ? 1u << 25 : 0, i == 0);
        tree_write(&t, "0", "sys/devices/system/cpu/cpu%d/topology/core_id", cpus[i]);
        tree_write(&t, i == 0 ? "0" : "1",
                   "sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpus[i]);
        tree_write(&t, i == 0 ? "0" : "121",
                   "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpus[i]);
        tree_write(&t, map, "sys/devices/system/cpu/cpu%d/topology/thread_siblings", cpus[i]);
        tree_write(&t, map, "sys/devices/system/cpu/cpu%d/topology/core_siblings", cpus[i]);
    }
}

static hwloc_obj_t find(hwloc_topology_t topology, const char *address)
{
    hwloc_obj_t obj = hwloc_get_pcidev_by_busidstring(topology, address);

    cr_assert_not_null(obj, "hwloc has no %s", address);
    return obj;
}

/* hwloc's own function for this takes no I/O objects. */
static hwloc_obj_t common_ancestor(hwloc_obj_t a, hwloc_obj_t b)
{
    for (; a; a = a->parent)
        for (hwloc_obj_t up = b; up; up = up->parent)
            if (up == a)
                return a;
    return NULL;
}

static int bridges_up_to(hwloc_obj_t obj, hwloc_obj_t top)
{
    int n = 0;

    for (obj = obj->parent; obj != top; obj = obj->parent)
        n++;
    return n;
}

/* From hwloc's tree alone: the lowest object above both decides. */
static enum holmes_path by_hwloc(hwloc_topology_t topology, hwloc_obj_t a, hwloc_obj_t b)
{
    hwloc_obj_t top = common_ancestor(a, b);

    if (top->type == HWLOC_OBJ_BRIDGE && top->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
        return HOLMES_PATH_PHB;
    if (top->type == HWLOC_OBJ_BRIDGE)
        return bridges_up_to(a, top) <= 1 && bridges_up_to(b, top) <= 1 ? HOLMES_PATH_PIX
                                                                        : HOLMES_PATH_PXB;
    return hwloc_bitmap_isequal(hwloc_get_non_io_ancestor_obj(topology, a)->nodeset,
                                hwloc_get_non_io_ancestor_obj(topology, b)->nodeset)
               ? HOLMES_PATH_NODE
               : HOLMES_PATH_SYS;
}

static hwloc_topology_t load(const char *root)
{
    hwloc_topology_t topology;

    setenv("HWLOC_FSROOT", root, 1);
    setenv("HWLOC_COMPONENTS", "linux,stop", 1);
    cr_assert_eq(hwloc_topology_init(&topology), 0);
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
    cr_assert_eq(hwloc_topology_load(topology), 0);
    return topology;
}

Test(host_hwloc, measures_the_same_distances)
{
    static const char *const tables[] = {"ib-h100", "roce-h100"};

    for (int i = 0; i < 2; i++) {
        struct recorded r = recorded_build(tables[i], 1);
        struct holmes_host *h;
        hwloc_topology_t topology;
        int seen[HOLMES_PATH_SYS + 1] = {0};

        write_processors(r.root);
        h = discover_ok(r.root);
        topology = load(r.root);
        cr_assert_eq(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE), 2);
        for (int g = 0; g < h->ngpus; g++)
            for (int n = 0; n < h->nnics; n++) {
                enum holmes_path path = h->distance[g * h->nnics + n];

                seen[path]++;
                cr_expect_eq(path,
                             by_hwloc(topology, find(topology, h->gpus[g].address),
                                      find(topology, h->nics[n].address)),
                             "%s to %s: %s", h->gpus[g].address, h->nics[n].address,
                             holmes_path_name(path));
            }
        cr_expect_eq(seen[HOLMES_PATH_PIX], 8);
        cr_expect_gt(seen[HOLMES_PATH_NODE], 0);
        cr_expect_gt(seen[HOLMES_PATH_SYS], 0);
        cr_expect_eq(h->cores, 2, "cpu121 stands behind a gap");
        hwloc_topology_destroy(topology);
        holmes_host_destroy(h);
        recorded_remove(&r);
    }
}
