#include "test_nics.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct holmes_nic test_loopback_nic(const char *ip)
{
    struct holmes_nic nic = {
        .name = "lo", .ifname = "lo", .speed_mbps = 10000, .numa_node = -1, .naddrs = 1};

    nic.addrs[0].in.sin_family = AF_INET;
    nic.addrs[0].prefix_len = 8;
    cr_assert_eq(inet_pton(AF_INET, ip, &nic.addrs[0].in.sin_addr), 1);
    return nic;
}

#ifdef HOLMES_HAVE_VERBS

/* First line of a file below the port's folder in sysfs. */
static bool port_read(const char *device, char *out, size_t len, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static bool port_read(const char *device, char *out, size_t len, const char *fmt, ...)
{
    char path[256];
    int n = snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/", device);
    va_list ap;
    FILE *f;
    bool ok;

    va_start(ap, fmt);
    vsnprintf(path + n, sizeof path - (size_t)n, fmt, ap);
    va_end(ap);
    f = fopen(path, "r");
    if (!f)
        return false;
    ok = fgets(out, (int)len, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = '\0';
    return ok;
}

static bool gid_is_mapped(const struct holmes_gid *g)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

    return memcmp(g->bytes, prefix, sizeof prefix) == 0;
}

static void gid_add(struct holmes_nic *nic, const struct holmes_gid *g)
{
    struct holmes_rdma *r = &nic->rdma;
    int at = r->ngids;

    if (gid_is_mapped(g)) { /* the best */
        struct holmes_addr *a = &nic->addrs[nic->naddrs++];

        a->in.sin_family = AF_INET;
        a->prefix_len = 24;
        memcpy(&a->in.sin_addr, g->bytes + 12, 4);
        at = 0;
    }
    memmove(&r->gids[at + 1], &r->gids[at], (size_t)(r->ngids - at) * sizeof *g);
    r->gids[at] = *g;
    r->ngids++;
}

static void gids_read(struct holmes_nic *nic)
{
    for (uint8_t i = 0; i < HOLMES_GIDS_MAX; i++) {
        struct holmes_gid g = {.index = i, .type = HOLMES_GID_ROCE_V2};
        struct in6_addr addr;
        char text[64], type[64];

        if (!port_read(nic->rdma.device, text, sizeof text, "gids/%d", i) ||
            !port_read(nic->rdma.device, type, sizeof type, "gid_attrs/types/%d", i) ||
            inet_pton(AF_INET6, text, &addr) != 1 || IN6_IS_ADDR_UNSPECIFIED(&addr))
            continue;
        if (strcmp(type, "RoCE v2") != 0)
            g.type = HOLMES_GID_ROCE_V1;
        memcpy(g.bytes, &addr, sizeof g.bytes);
        gid_add(nic, &g);
        port_read(nic->rdma.device, nic->ifname, sizeof nic->ifname, "gid_attrs/ndevs/%d", i);
    }
}

static struct holmes_nic rdma_nic(const char *device)
{
    struct holmes_nic nic = {.speed_mbps = 10000, .numa_node = -1};
    char text[64];

    nic.rdma.port = 1;
    nic.rdma.link_layer = HOLMES_LINK_ETHERNET;
    nic.rdma.mtu = 4096;
    snprintf(nic.name, sizeof nic.name, "%s", device);
    snprintf(nic.rdma.device, sizeof nic.rdma.device, "%s", device);
    cr_assert(port_read(device, text, sizeof text, "state"), "there is no RDMA device %s", device);
    cr_assert(strstr(text, "ACTIVE"), "port 1 of %s is %s", device, text);
    gids_read(&nic);
    cr_assert_gt(nic.rdma.ngids, 0, "port 1 of %s has no GID", device);
    return nic;
}

static void nics_on_verbs(struct test_nics *n, const char *devices)
{
    char from[HOLMES_RDMA_NAME_MAX], to[HOLMES_RDMA_NAME_MAX], more;

    cr_assert_eq(sscanf(devices, "%31[^,],%31[^,]%c", from, to, &more), 2,
                 "HOLMES_TEST_VERBS=\"%s\": DEVICE,DEVICE is right", devices);
    n->ops = &holmes_wire_verbs;
    /* NCCL's default waits 4 s before a lost packet goes out again: 67 ms for cables that lose. */
    setenv("NCCL_IB_TIMEOUT", "14", 0);
    n->from = rdma_nic(from);
    n->to = rdma_nic(to);
    n->notices_close = false;
}

#else

static void nics_on_verbs(struct test_nics *n, const char *devices)
{
    (void)n;
    cr_assert_fail("HOLMES_TEST_VERBS=\"%s\", but this build has no verbs wire", devices);
}

#endif

const struct wire_ops *test_tcp_wire(void)
{
#ifdef HOLMES_HAVE_OFI
    const char *tcp = getenv("HOLMES_TCP");

    if (tcp && strcmp(tcp, "libfabric") == 0)
        return &holmes_wire_ofi;
#endif
    return &holmes_wire_sock;
}

const struct test_nics *test_nics(void)
{
    static struct test_nics nics;
    const char *devices = getenv("HOLMES_TEST_VERBS");

    if (nics.ops)
        return &nics;
    if (devices && devices[0]) {
        nics_on_verbs(&nics, devices);
        return &nics;
    }
    nics.ops = test_tcp_wire();
    nics.from = nics.to = test_loopback_nic("127.0.0.1");
    nics.notices_close = true;
    return &nics;
}
