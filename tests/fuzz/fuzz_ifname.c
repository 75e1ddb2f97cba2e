/* The user's interface list against a fixed host. */
#include <net/if.h>
#include <string.h>

#include "topology.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_netif ifs[3] = {
        {.name = "eth0", .flags = IFF_UP | IFF_RUNNING, .arp_type = 1, .naddrs = 1},
        {.name = "eth0.7",
         .flags = IFF_UP | IFF_RUNNING,
         .arp_type = 1,
         .naddrs = 1,
         .kind = HOLMES_NETIF_VLAN},
        {.name = "lo", .flags = IFF_UP | IFF_RUNNING, .kind = HOLMES_NETIF_LOOPBACK, .naddrs = 1},
    };
    struct holmes_netif_verdict verdicts[3];
    struct holmes_nic nics[HOLMES_NETIFS_MAX];
    char text[4097], why[256];
    struct holmes_netif_request req = {.ifname = text};
    int n = 0;

    for (int i = 0; i < 3; i++) {
        ifs[i].addrs[0].in.sin_family = AF_INET;
        ifs[i].addrs[0].in.sin_addr.s_addr = htonl(0x0a000001u + (unsigned)i * 256);
        ifs[i].addrs[0].prefix_len = 24;
    }
    if (size > sizeof text - 1)
        size = sizeof text - 1;
    memcpy(text, data, size);
    text[size] = '\0';
    if (size > 0 && data[0] & 1)
        req.comm_id = text;
    if (holmes_netif_choose(ifs, 3, &req, verdicts, nics, &n, why, sizeof why) == 0 &&
        (n < 1 || n > 3))
        __builtin_trap();
    return 0;
}
