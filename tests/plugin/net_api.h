/* A loaded net plugin seen through one ABI version, in the newest version's terms: what NCCL's own
 * shims do, so that every test can run over all seven tables. */
#ifndef NET_API_H
#define NET_API_H

#include <stdbool.h>

#include "nccl_net.h"

struct net_api {
    int version; /* 6 to 12 */
    const void *table;
    void *library;
};

/* The properties that some version has; those that this one lacks as NCCL's shims fill them. */
struct net_props {
    const char *name, *pci_path;
    uint64_t guid;
    int ptr_support, reg_is_global, force_flush, speed, port, max_comms, max_recvs;
    int device_type, device_version, vdevs, vdev0, max_multi_request;
    float latency;
    size_t max_p2p_bytes, max_coll_bytes;
    int rail, plane;
};

/* Opens as NCCL does: all symbols now, none for others. Returns NULL or what is wrong. */
const char *net_open(const char *path, int version, struct net_api *out);
void net_close(struct net_api *api);

const char *net_name(const struct net_api *api);
ncclResult_t net_init(const struct net_api *api, void **ctx, uint64_t comm_id,
                      ncclDebugLogger_t logger);
ncclResult_t net_finalize(const struct net_api *api, void *ctx); /* success where there is none */
ncclResult_t net_devices(const struct net_api *api, int *n);
/* The struct is full of rubbish when the plugin gets it. */
ncclResult_t net_properties(const struct net_api *api, int dev, struct net_props *out);
ncclResult_t net_listen(const struct net_api *api, void *ctx, int dev, void *handle, void **out);
ncclResult_t net_connect(const struct net_api *api, void *ctx, int dev, void *handle, void **out);
ncclResult_t net_accept(const struct net_api *api, void *listen_comm, void **out);
ncclResult_t net_reg(const struct net_api *api, void *comm, void *data, size_t size, void **mh);
ncclResult_t net_dereg(const struct net_api *api, void *comm, void *mh);
ncclResult_t net_isend(const struct net_api *api, void *comm, void *data, size_t size, int tag,
                       void *mh, void **request);
ncclResult_t net_irecv(const struct net_api *api, void *comm, void *data, size_t size, int tag,
                       void *mh, void **request);
ncclResult_t net_flush(const struct net_api *api, void *comm, void *data, int size, void *mh,
                       void **request);
ncclResult_t net_test(const struct net_api *api, void *request, int *done, int *sizes);
ncclResult_t net_close_send(const struct net_api *api, void *comm);
ncclResult_t net_close_recv(const struct net_api *api, void *comm);
ncclResult_t net_close_listen(const struct net_api *api, void *comm);

#endif
