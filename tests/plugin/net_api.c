/* Dispatches on the version. A member whose signature a range of versions shares stands at one
 * offset in all of them (asserted in nccl_net.h), so one case serves the range. */
#include "net_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define TABLE(api, v) ((const ncclNet_v##v##_t *)(api)->table)

const char *net_open(const char *path, int version, struct net_api *out)
{
    char symbol[32];

    memset(out, 0, sizeof *out);
    out->version = version;
    out->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!out->library)
        return dlerror();
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
    out->table = dlsym(out->library, symbol);
    return out->table ? NULL : "no such symbol";
}

void net_close(struct net_api *api)
{
    if (api->library)
        dlclose(api->library);
    memset(api, 0, sizeof *api);
}

const char *net_name(const struct net_api *api)
{
    return TABLE(api, 6)->name;
}

ncclResult_t net_init(const struct net_api *api, void **ctx, uint64_t comm_id,
                      ncclDebugLogger_t logger)
{
    ncclNetCommConfig_v11_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};

    if (api->version >= 11)
        return TABLE(api, 11)->init(ctx, comm_id, &config, logger, NULL);
    *ctx = NULL;
    return api->version == 10 ? TABLE(api, 10)->init(logger, NULL) : TABLE(api, 6)->init(logger);
}

ncclResult_t net_finalize(const struct net_api *api, void *ctx)
{
    return api->version >= 11 ? TABLE(api, 11)->finalize(ctx) : ncclSuccess;
}

ncclResult_t net_devices(const struct net_api *api, int *n)
{
    return TABLE(api, 6)->devices(n);
}

#define TAKE_V6(p, out)                                                                            \
    do {                                                                                           \
        (out)->name = (p).name;                                                                    \
        (out)->pci_path = (p).pciPath;                                                             \
        (out)->guid = (p).guid;                                                                    \
        (out)->ptr_support = (p).ptrSupport;                                                       \
        (out)->speed = (p).speed;                                                                  \
        (out)->port = (p).port;                                                                    \
        (out)->latency = (p).latency;                                                              \
        (out)->max_comms = (p).maxComms;                                                           \
        (out)->max_recvs = (p).maxRecvs;                                                           \
    } while (0)
#define TAKE_V7(p, out)                                                                            \
    do {                                                                                           \
        TAKE_V6(p, out);                                                                           \
        (out)->device_type = (int)(p).netDeviceType;                                               \
        (out)->device_version = (p).netDeviceVersion;                                              \
    } while (0)
#define TAKE_V8(p, out)                                                                            \
    do {                                                                                           \
        TAKE_V7(p, out);                                                                           \
        (out)->reg_is_global = (p).regIsGlobal;                                                    \
    } while (0)
#define TAKE_V9(p, out)                                                                            \
    do {                                                                                           \
        TAKE_V8(p, out);                                                                           \
        (out)->force_flush = (p).forceFlush;                                                       \
        (out)->vdevs = (p).vProps.ndevs;                                                           \
        (out)->vdev0 = (p).vProps.devs[0];                                                         \
        (out)->max_p2p_bytes = (p).maxP2pBytes;                                                    \
        (out)->max_coll_bytes = (p).maxCollBytes;                                                  \
    } while (0)
#define TAKE_V11(p, out)                                                                           \
    do {                                                                                           \
        TAKE_V9(p, out);                                                                           \
        (out)->max_multi_request = (p).maxMultiRequestSize;                                        \
    } while (0)
#define TAKE_V12(p, out)                                                                           \
    do {                                                                                           \
        TAKE_V11(p, out);                                                                          \
        (out)->rail = (p).railId;                                                                  \
        (out)->plane = (p).planeId;                                                                \
    } while (0)
#define PROPERTIES(v, take)                                                                        \
    do {                                                                                           \
        ncclNetProperties_v##v##_t p;                                                              \
        memset(&p, 0xa5, sizeof p);                                                                \
        rc = TABLE(api, v)->getProperties(dev, &p);                                                \
        if (rc == ncclSuccess)                                                                     \
            take(p, out);                                                                          \
    } while (0)

ncclResult_t net_properties(const struct net_api *api, int dev, struct net_props *out)
{
    ncclResult_t rc = ncclInternalError;

    *out = (struct net_props){
        .vdevs = 1,
        .vdev0 = dev,
        .max_p2p_bytes = (size_t)1 << 30,
        .max_coll_bytes = (size_t)1 << 29,
        .max_multi_request = 1,
        .rail = NCCL_NET_ID_UNDEF,
        .plane = NCCL_NET_ID_UNDEF,
    };
    switch (api->version) {
    case 6:
        PROPERTIES(6, TAKE_V6);
        break;
    case 7:
        PROPERTIES(7, TAKE_V7);
        break;
    case 8:
        PROPERTIES(8, TAKE_V8);
        break;
    case 9:
        PROPERTIES(9, TAKE_V9);
        break;
    case 10:
        PROPERTIES(10, TAKE_V9);
        break;
    case 11:
        PROPERTIES(11, TAKE_V11);
        break;
    case 12:
        PROPERTIES(12, TAKE_V12);
        break;
    }
    return rc;
}

ncclResult_t net_listen(const struct net_api *api, void *ctx, int dev, void *handle, void **out)
{
    return api->version >= 11 ? TABLE(api, 11)->listen(ctx, dev, handle, out)
                              : TABLE(api, 6)->listen(dev, handle, out);
}

ncclResult_t net_connect(const struct net_api *api, void *ctx, int dev, void *handle, void **out)
{
    ncclNetCommConfig_v10_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    ncclNetDeviceHandle_v7_t *dev_handle = NULL;

    if (api->version >= 11)
        return TABLE(api, 11)->connect(ctx, dev, handle, out, &dev_handle);
    if (api->version == 10)
        return TABLE(api, 10)->connect(dev, &config, handle, out, &dev_handle);
    if (api->version >= 7)
        return TABLE(api, 7)->connect(dev, handle, out, &dev_handle);
    return TABLE(api, 6)->connect(dev, handle, out);
}

ncclResult_t net_accept(const struct net_api *api, void *listen_comm, void **out)
{
    ncclNetDeviceHandle_v7_t *dev_handle = NULL;

    return api->version >= 7 ? TABLE(api, 7)->accept(listen_comm, out, &dev_handle)
                             : TABLE(api, 6)->accept(listen_comm, out);
}

ncclResult_t net_reg(const struct net_api *api, void *comm, void *data, size_t size, void **mh)
{
    return api->version >= 8 ? TABLE(api, 8)->regMr(comm, data, size, NCCL_PTR_HOST, mh)
                             : TABLE(api, 6)->regMr(comm, data, (int)size, NCCL_PTR_HOST, mh);
}

ncclResult_t net_dereg(const struct net_api *api, void *comm, void *mh)
{
    return TABLE(api, 6)->deregMr(comm, mh);
}

ncclResult_t net_isend(const struct net_api *api, void *comm, void *data, size_t size, int tag,
                       void *mh, void **request)
{
    if (api->version >= 10)
        return TABLE(api, 10)->isend(comm, data, size, tag, mh, NULL, request);
    if (api->version == 9)
        return TABLE(api, 9)->isend(comm, data, size, tag, mh, request);
    return TABLE(api, 6)->isend(comm, data, (int)size, tag, mh, request);
}

ncclResult_t net_irecv(const struct net_api *api, void *comm, void *data, size_t size, int tag,
                       void *mh, void **request)
{
    void *phandle = NULL;
    int small = (int)size;

    if (api->version >= 10)
        return TABLE(api, 10)->irecv(comm, 1, &data, &size, &tag, &mh, &phandle, request);
    if (api->version == 9)
        return TABLE(api, 9)->irecv(comm, 1, &data, &size, &tag, &mh, request);
    /* NCCL takes its hint back before versions that do not know it. */
    if (*request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION)
        *request = NULL;
    return TABLE(api, 6)->irecv(comm, 1, &data, &small, &tag, &mh, request);
}

ncclResult_t net_flush(const struct net_api *api, void *comm, void *data, int size, void *mh,
                       void **request)
{
    return TABLE(api, 6)->iflush(comm, 1, &data, &size, &mh, request);
}

ncclResult_t net_test(const struct net_api *api, void *request, int *done, int *sizes)
{
    return TABLE(api, 6)->test(request, done, sizes);
}

ncclResult_t net_close_send(const struct net_api *api, void *comm)
{
    return TABLE(api, 6)->closeSend(comm);
}

ncclResult_t net_close_recv(const struct net_api *api, void *comm)
{
    return TABLE(api, 6)->closeRecv(comm);
}

ncclResult_t net_close_listen(const struct net_api *api, void *comm)
{
    return TABLE(api, 6)->closeListen(comm);
}
