/* This machine as hwloc sees it. Only this one: of a recorded tree that lacks the processors, hwloc
 * would fill in this machine's. */
#include "live.h"

#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pci.h"

static void address_of(const struct hwloc_pcidev_attr_s *a, char out[HOLMES_PCI_MAX])
{
    snprintf(out, HOLMES_PCI_MAX, "%04x:%02x:%02x.%01x", (unsigned)a->domain, a->bus, a->dev,
             a->func);
}

/* The node that is near all processors of the object; -1 where several are. */
static int numa_of(hwloc_topology_t topology, hwloc_obj_t obj)
{
    hwloc_obj_t at = hwloc_get_non_io_ancestor_obj(topology, obj);

    return at && at->nodeset && hwloc_bitmap_weight(at->nodeset) == 1
               ? hwloc_bitmap_first(at->nodeset)
               : -1;
}

static hwloc_obj_t host_bridge_of(hwloc_obj_t obj)
{
    hwloc_obj_t bridge = NULL;

    for (; obj; obj = obj->parent)
        if (obj->type == HWLOC_OBJ_BRIDGE &&
            obj->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
            bridge = obj;
    return bridge;
}

/* The host bridges and NUMA nodes of the functions, by their index in the host's list. */
struct places {
    int *root, *numa;
    int found;
};

static void find_place(hwloc_topology_t topology, hwloc_obj_t obj, const struct holmes_host *h,
                       struct places *p)
{
    bool bridge = obj->type == HWLOC_OBJ_BRIDGE;
    char address[HOLMES_PCI_MAX];
    hwloc_obj_t root = host_bridge_of(obj);
    int i;

    if (!root || (bridge && obj->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_PCI))
        return;
    address_of(bridge ? &obj->attr->bridge.upstream.pci : &obj->attr->pcidev, address);
    i = host_find_pci(h, address);
    if (i < 0)
        return;
    p->root[i] = (int)root->logical_index;
    p->numa[i] = numa_of(topology, obj);
    p->found++;
}

/* All or none: numbers of host bridges are hwloc's or sysfs's, and never both. */
static void place_functions(hwloc_topology_t topology, struct holmes_host *h)
{
    struct places p = {.root = calloc((size_t)h->npcis + 1, sizeof *p.root),
                       .numa = calloc((size_t)h->npcis + 1, sizeof *p.numa)};
    hwloc_obj_t obj = NULL;

    while (p.root && p.numa && (obj = hwloc_get_next_pcidev(topology, obj)))
        find_place(topology, obj, h, &p);
    while (p.root && p.numa && (obj = hwloc_get_next_bridge(topology, obj)))
        find_place(topology, obj, h, &p);
    for (int i = 0; p.found == h->npcis && i < h->npcis; i++) {
        h->pcis[i].root = p.root[i];
        if (h->pcis[i].numa_node < 0)
            h->pcis[i].numa_node = p.numa[i];
    }
    free(p.root);
    free(p.numa);
}

/* NVML's, ROCm's and others' objects below a GPU's function. */
static void describe_gpu(hwloc_obj_t os, struct holmes_host *h)
{
    char address[HOLMES_PCI_MAX];
    const char *model;

    if (!os->parent || os->parent->type != HWLOC_OBJ_PCI_DEVICE)
        return;
    address_of(&os->parent->attr->pcidev, address);
    model = hwloc_obj_get_info_by_name(os, "GPUModel");
    for (int i = 0; model && i < h->ngpus; i++)
        if (strcmp(h->gpus[i].address, address) == 0 && !h->gpus[i].name[0]) {
            snprintf(h->gpus[i].name, sizeof h->gpus[i].name, "%s", model);
            gpu_memory_of_name(&h->gpus[i]);
        }
}

static void adopt(hwloc_topology_t topology, struct holmes_host *h)
{
    hwloc_obj_t obj = NULL, root = hwloc_get_root_obj(topology);
    int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);

    place_functions(topology, h);
    while ((obj = hwloc_get_next_osdev(topology, obj)))
        describe_gpu(obj, h);
    for (int i = 0; i < h->ngpus; i++)
        if (h->gpus[i].pci >= 0)
            h->gpus[i].numa_node = h->pcis[h->gpus[i].pci].numa_node;
    if (cores > 0)
        h->cores = cores;
    if ((double)root->total_memory / (1 << 30) > h->memory_gib)
        h->memory_gib = (double)root->total_memory / (1 << 30);
}

/* sysfs has what libpciaccess would tell, without its leaks; a driver's context, an X server and an
 * OpenCL platform are more than a look at the machine should start. */
static void leave_out(hwloc_topology_t topology)
{
    static const char *const components[] = {"pci", "cuda", "opencl", "gl"};

    for (size_t i = 0; i < sizeof components / sizeof *components; i++)
        hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                      components[i]);
}

int host_live_place(struct holmes_host *h)
{
    hwloc_topology_t topology;

    if (hwloc_topology_init(&topology) != 0)
        return errno == ENOMEM ? -ENOMEM : 0;
    leave_out(topology);
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (hwloc_topology_load(topology) == 0 && hwloc_topology_is_thissystem(topology))
        adopt(topology, h);
    hwloc_topology_destroy(topology);
    return 0;
}
