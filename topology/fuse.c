/* Makes one device's description out of several: what NCCL calls a virtual device, for adapters
 * whose ports share a GPU's PCI link. Pure. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "topology.h"

static const char *layer_name(const struct holmes_nic *nic)
{
    return nic->rdma.link_layer == HOLMES_LINK_INFINIBAND ? "InfiniBand" : "RoCE";
}

static int check_member(const struct holmes_nic *const *members, int i, char *why, size_t why_len)
{
    const struct holmes_nic *nic = members[i];

    if ((nic->rdma.port == 0) != (members[0]->rdma.port == 0)) {
        snprintf(why, why_len, "one of %s and %s is an RDMA port: both are, or none",
                 members[0]->name, nic->name);
        return -EINVAL;
    }
    if (nic->rdma.port != 0 && nic->rdma.link_layer != members[0]->rdma.link_layer) {
        snprintf(why, why_len, "%s is %s and %s is %s: link layers are not mixed", members[0]->name,
                 layer_name(members[0]), nic->name, layer_name(nic));
        return -EINVAL;
    }
    for (int k = 0; k < i; k++) {
        if (strcmp(members[k]->name, nic->name) == 0) {
            snprintf(why, why_len, "%s is there twice", nic->name);
            return -EINVAL;
        }
    }
    return 0;
}

int holmes_nics_fuse(const struct holmes_nic *const *members, int n, struct holmes_nic *out,
                     char *why, size_t why_len)
{
    struct holmes_nic fused;
    uint64_t speed = 0;
    size_t used = 0;

    if (n < 2 || n > HOLMES_FUSE_MAX) {
        snprintf(why, why_len, "2 to %d devices are fused, not %d", HOLMES_FUSE_MAX, n);
        return -EINVAL;
    }
    fused = *members[0];
    for (int i = 0; i < n; i++) {
        if (check_member(members, i, why, why_len) != 0)
            return -EINVAL;
        if (used < sizeof fused.name)
            used += (size_t)snprintf(fused.name + used, sizeof fused.name - used, "%s%s",
                                     i > 0 ? "+" : "", members[i]->name);
        speed += members[i]->speed_mbps;
    }
    if (used >= sizeof fused.name) {
        snprintf(why, why_len, "the name of %d devices from %s on is longer than %d characters", n,
                 members[0]->name, HOLMES_NIC_NAME_MAX - 1);
        return -EINVAL;
    }
    fused.speed_mbps = speed < UINT32_MAX ? (uint32_t)speed : UINT32_MAX;
    *out = fused;
    return 0;
}
