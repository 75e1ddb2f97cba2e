/* NCCL_IB_HCA and NCCL_IB_ADDR_RANGE against a fixed host. */
#include <string.h>

#include "topology.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct holmes_rdma_port_seen ports[3] = {
        {.device = "mlx5_0", .port = 1, .state = 4, .link_layer = HOLMES_LINK_ETHERNET},
        {.device = "mlx5_1", .port = 1, .state = 4, .link_layer = HOLMES_LINK_INFINIBAND},
        {.device = "mlx5_1", .port = 2, .state = 4, .link_layer = HOLMES_LINK_INFINIBAND},
    };
    static const char alphabet[] = "^=,:mlx5_01289./";
    struct holmes_rdma_request req = HOLMES_RDMA_NOTHING_ASKED;
    struct holmes_rdma_verdict verdicts[3];
    struct holmes_nic nics[HOLMES_RDMA_PORTS_MAX];
    char text[4097], why[256];
    int n = 0, rc;

    for (int i = 0; i < 3; i++) {
        ports[i].ngids = 1;
        ports[i].gids[0] = (struct holmes_gid_seen){
            .bytes = {[10] = 0xff, 0xff, 10, 0, 0, 5},
            .type = i == 0 ? HOLMES_GID_ROCE_V2 : HOLMES_GID_INFINIBAND,
        };
    }
    if (size > sizeof text - 1)
        size = sizeof text - 1;
    for (size_t i = 0; i < size; i++) /* else few inputs would get beyond the first complaint */
        text[i] = data[0] & 1 ? (char)data[i] : alphabet[data[i] % (sizeof alphabet - 1)];
    text[size] = '\0';
    req.hca = text;
    if (size > 0 && data[0] & 2)
        req.addr_range = text;
    rc = holmes_rdma_choose(ports, 3, &req, NULL, 0, NULL, 0, verdicts, nics, &n, why, sizeof why);
    if ((rc == 0 && (n < 0 || n > 3)) || (rc != 0 && !why[0]))
        __builtin_trap();
    return 0;
}
