/* Looks at this host once, for the variables of the environment, and logs what it found: one line
 * for every interface and every RDMA port. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env.h"
#include "log.h"
#include "topology.h"

/* The interfaces, kept for the RDMA ports that run over them. */
struct netifs {
    struct holmes_netif *ifs;
    int n;
};

static void warn_of_family(const char *family)
{
    if (family && *family && strcmp(family, "AF_INET") != 0 && strcmp(family, "AF_INET6") != 0)
        holmes_warn(TOPO, "NCCL_SOCKET_FAMILY=\"%s\" counts as unset: AF_INET or AF_INET6 is right",
                    family);
}

struct holmes_netif_request holmes_netif_request_env(void)
{
    return (struct holmes_netif_request){
        .ifname = holmes_env_string(HOLMES_ENV_NCCL_SOCKET_IFNAME),
        .family = holmes_env_string(HOLMES_ENV_NCCL_SOCKET_FAMILY),
        .comm_id = holmes_env_string(HOLMES_ENV_NCCL_COMM_ID),
    };
}

static int discover_ethernet(const char *sysfs_root, struct netifs *all, struct holmes_nic *nics,
                             int *nnics)
{
    const struct holmes_netif_request req = holmes_netif_request_env();
    struct holmes_netif_verdict *verdicts;
    char why[768];
    int rc = holmes_netif_collect(sysfs_root, &all->ifs, &all->n);

    warn_of_family(req.family);
    if (rc != 0) {
        holmes_warn(TOPO, "cannot list network interfaces: %s", holmes_strerror(rc));
        return rc;
    }
    verdicts = calloc((size_t)all->n + 1, sizeof *verdicts);
    rc = verdicts
             ? holmes_netif_choose(all->ifs, all->n, &req, verdicts, nics, nnics, why, sizeof why)
             : -ENOMEM;
    if (rc == -ENOMEM)
        snprintf(why, sizeof why, "no memory for %d network interfaces", all->n);
    if (rc != 0)
        holmes_warn(TOPO, "%s", why);
    for (int i = 0; rc == 0 && i < all->n; i++)
        holmes_info(TOPO, "nic %s %s: %s", all->ifs[i].name, verdicts[i].used ? "used" : "not used",
                    verdicts[i].reason);
    free(verdicts);
    return rc;
}

struct holmes_rdma_request holmes_rdma_request_env(void)
{
    return (struct holmes_rdma_request){
        .hca = holmes_env_string(HOLMES_ENV_NCCL_IB_HCA),
        .fabric = holmes_env_string(HOLMES_ENV_FABRIC),
        .gid_index = holmes_env_int(HOLMES_ENV_NCCL_IB_GID_INDEX),
        .roce_version = (int)holmes_env_int(HOLMES_ENV_NCCL_IB_ROCE_VERSION_NUM),
        .addr_family = holmes_env_string(HOLMES_ENV_NCCL_IB_ADDR_FAMILY),
        .addr_range = holmes_env_string(HOLMES_ENV_NCCL_IB_ADDR_RANGE),
        .flid_gid_index = holmes_env_int(HOLMES_ENV_NCCL_IB_ROUTABLE_FLID_GID_INDEX),
        .keep_vfs = holmes_env_int(HOLMES_ENV_NCCL_IB_MERGE_VFS) == 0,
    };
}

static void log_ports(const struct holmes_rdma_port_seen *ports, int n,
                      const struct holmes_rdma_verdict *verdicts)
{
    for (int i = 0; i < n; i++) {
        if (verdicts[i].link_local)
            holmes_warn(TOPO, "rdma %s port %u: %s", ports[i].device, ports[i].port,
                        verdicts[i].reason);
        else
            holmes_info(TOPO, "rdma %s port %u %s: %s", ports[i].device, ports[i].port,
                        verdicts[i].used ? "used" : "not used", verdicts[i].reason);
    }
}

/* What the user named and does not get is worth more than an INFO line. */
static void warn_of_nothing(const struct holmes_rdma_request *req, int nports, int nnics)
{
    if (nports == 0 && req->hca && *req->hca)
        holmes_warn(TOPO, "NCCL_IB_HCA=\"%s\": this host has no RDMA device", req->hca);
    else if (nports > 0 && nnics == 0 && req->hca && *req->hca && *req->hca != '^')
        holmes_warn(TOPO, "NCCL_IB_HCA=\"%s\": no port of it can be used", req->hca);
    if (nports == 0 && req->fabric && *req->fabric != '@' && strchr(req->fabric, '='))
        holmes_warn(TOPO, "HOLMES_FABRIC=\"%s\": this host has no RDMA device", req->fabric);
}

static int choose_rdma(const struct holmes_rdma_port_seen *ports, int nports,
                       const struct holmes_rdma_request *req, const struct netifs *all,
                       const struct holmes_nic *ethernet, int nethernet, struct holmes_nic *nics,
                       int *nnics)
{
    struct holmes_rdma_verdict *verdicts = calloc((size_t)nports + 1, sizeof *verdicts);
    char why[1024];
    int rc = -ENOMEM;

    snprintf(why, sizeof why, "no memory for %d RDMA ports", nports);
    if (verdicts)
        rc = holmes_rdma_choose(ports, nports, req, all->ifs, all->n, ethernet, nethernet, verdicts,
                                nics, nnics, why, sizeof why);
    if (why[0])
        holmes_warn(TOPO, "%s", why);
    if (rc == 0) {
        log_ports(ports, nports, verdicts);
        warn_of_nothing(req, nports, *nnics);
    }
    free(verdicts);
    return rc;
}

static int discover_rdma(const char *sysfs_root, const struct holmes_rdma_request *req,
                         const struct netifs *all, const struct holmes_nic *ethernet, int nethernet,
                         struct holmes_nic *nics, int *nnics)
{
    struct holmes_rdma_port_seen *ports = NULL;
    int nports = 0, rc;

    *nnics = 0;
    if (holmes_env_int(HOLMES_ENV_NCCL_IB_DISABLE) != 0) {
        holmes_info(TOPO, "NCCL_IB_DISABLE is set: no RDMA port is used");
        return 0;
    }
    rc = holmes_rdma_collect(sysfs_root, &ports, &nports);
    if (rc != 0)
        holmes_warn(TOPO, "cannot list RDMA devices, RDMA off: %s", holmes_strerror(rc));
    rc = choose_rdma(ports, nports, req, all, ethernet, nethernet, nics, nnics);
    free(ports);
    return rc;
}

int holmes_nics_discover(const char *sysfs_root,
                         int (*open_error)(void *arg, const char *device, int port), void *arg,
                         struct holmes_nics *out)
{
    struct holmes_nic ethernet[HOLMES_NETIFS_MAX];
    struct holmes_rdma_request req = holmes_rdma_request_env();
    struct netifs all = {NULL, 0};
    int nethernet = 0, nrdma = 0, rc;

    req.open_error = open_error;
    req.arg = arg;
    rc = discover_ethernet(sysfs_root, &all, ethernet, &nethernet);
    if (rc == 0)
        rc = discover_rdma(sysfs_root, &req, &all, ethernet, nethernet, out->nics, &nrdma);
    free(all.ifs);
    if (rc != 0)
        return rc;
    memcpy(&out->nics[nrdma], ethernet, (size_t)nethernet * sizeof *ethernet);
    out->n = nrdma + nethernet;
    out->nshown = nrdma > 0 ? nrdma : nethernet;
    return 0;
}
