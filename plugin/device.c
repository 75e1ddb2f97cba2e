/* Brings a NIC into the form that NCCL's topology search expects. */
#include "device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "siphash.h"

#define SPEED_UNKNOWN_MBPS 10000 /* what NCCL assumes */

/* NCCL may look at a name for as long as the library is loaded, so texts are kept once each. */
static const char *keep_text(const char *text)
{
    static struct kept {
        struct kept *next;
        char text[];
    } * all;
    size_t len = strlen(text) + 1;
    struct kept *k;

    for (k = all; k; k = k->next) {
        if (strcmp(k->text, text) == 0)
            return k->text;
    }
    k = malloc(sizeof *k + len);
    if (!k)
        return NULL;
    memcpy(k->text, text, len);
    k->next = all;
    all = k;
    return k->text;
}

static uint64_t place_guid(const struct holmes_nic *nic)
{
    static const uint8_t no_key[16];
    const char *place = nic->pci_path[0] ? nic->pci_path : nic->name;

    return holmes_siphash(no_key, place, strlen(place));
}

static uint64_t guid_of(const struct holmes_nic *nic)
{
    return nic->rdma.port != 0 && nic->rdma.guid != 0 ? nic->rdma.guid : place_guid(nic);
}

/* Its own number, or the next that no earlier device of the adapter has: recent adapters have a
 * device for each port, and every one of those calls it port 1. */
static int port_of(const struct holmes_nic *nic, uint64_t guid,
                   const struct holmes_plugin_device *others, int n)
{
    int port = nic->rdma.port;

    for (int i = 0; port > 0 && i < n; i++) {
        if (others[i].guid == guid && others[i].port == port) {
            port++;
            i = -1;
        }
    }
    return port;
}

int holmes_plugin_describe(const struct holmes_nic *nic, int memory,
                           const struct holmes_plugin_device *others, int n,
                           struct holmes_plugin_device *out)
{
    *out = (struct holmes_plugin_device){.nmembers = 1, .members = {n}};
    out->name = keep_text(nic->name);
    out->pci_path = nic->pci_path[0] ? keep_text(nic->pci_path) : NULL;
    out->guid = guid_of(nic);
    out->port = port_of(nic, out->guid, others, n);
    out->memory = memory;
    out->speed_mbps = nic->speed_mbps > 0 && nic->speed_mbps <= INT32_MAX ? (int)nic->speed_mbps
                                                                          : SPEED_UNKNOWN_MBPS;
    return out->name && (out->pci_path || !nic->pci_path[0]) ? 0 : -ENOMEM;
}
