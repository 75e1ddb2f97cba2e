/* The tables NCCL looks up, and one adapter per signature, named for the ABI version that brought
 * it. The newest does the work; older ones bring their arguments into its form. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include "clock.h"
#include "env.h"
#include "log.h"
#include "nccl_net.h"
#include "net.h"
#include "net_log.h"
#include "net_result.h"

_Static_assert(HOLMES_HANDLE_SIZE == NCCL_NET_HANDLE_MAXSIZE, "the handle is NCCL's");
_Static_assert(HOLMES_MAX_REQUESTS == NCCL_NET_MAX_REQUESTS, "as many requests as NCCL may post");
_Static_assert(HOLMES_MEMORY_HOST == NCCL_PTR_HOST && HOLMES_MEMORY_CUDA == NCCL_PTR_CUDA &&
                   HOLMES_MEMORY_DMABUF == NCCL_PTR_DMABUF,
               "device.h has NCCL's values");

#define MAX_COMMS 65536
#define FLUSH_MS  10000 /* more than any wire owes a read of a few bytes */

#define EXPORT __attribute__((visibility("default")))

/* The tables are constant and point here; HOLMES_NET_NAME is known before NCCL reads it. What does
 * not fit is refused by init. */
static char net_name[64] = "Holmes";

__attribute__((constructor)) static void take_net_name(void)
{
    snprintf(net_name, sizeof net_name, "%s", holmes_env_string(HOLMES_ENV_NET_NAME));
}

static ncclResult_t init_v11(void **ctx, uint64_t comm_id, ncclNetCommConfig_v11_t *config,
                             ncclDebugLogger_t log, ncclProfilerCallback_t prof)
{
    struct holmes_plugin_comm *comm;
    int rc;

    (void)prof;
    *ctx = NULL; /* NCCL 2.28 finalizes it after a failure too */
    holmes_net_log_to(log);
    rc = holmes_plugin_init(comm_id, config ? config->trafficClass : NCCL_NET_TRAFFIC_CLASS_UNDEF,
                            &comm);
    if (rc == 0)
        *ctx = comm;
    return holmes_net_init_result(rc);
}

static ncclResult_t init_v10(ncclDebugLogger_t log, ncclProfilerCallback_t prof)
{
    (void)prof;
    holmes_net_log_to(log);
    return holmes_net_init_result(holmes_plugin_init_once());
}

static ncclResult_t init_v6(ncclDebugLogger_t log)
{
    return init_v10(log, NULL);
}

static ncclResult_t finalize_v11(void *ctx)
{
    holmes_plugin_finalize(ctx);
    return ncclSuccess;
}

static ncclResult_t devices_v6(int *ndev)
{
    return holmes_net_result(holmes_plugin_devices(ndev));
}

/* Properties only grow: each macro adds what its version brought. Memory of NCCL arrives
 * uninitialised, so nothing may be left out. */
#define PROPS_SINCE_V6(p, d)                                                                       \
    do {                                                                                           \
        (p)->name = (char *)(uintptr_t)(d)->name;                                                  \
        (p)->pciPath = (char *)(uintptr_t)(d)->pci_path;                                           \
        (p)->guid = (d)->guid;                                                                     \
        (p)->ptrSupport = (d)->memory;                                                             \
        (p)->speed = (d)->speed_mbps;                                                              \
        (p)->port = (d)->port;                                                                     \
        (p)->latency = 0;                                                                          \
        (p)->maxComms = MAX_COMMS;                                                                 \
        (p)->maxRecvs = 1;                                                                         \
    } while (0)
#define PROPS_SINCE_V7(p, d)                                                                       \
    do {                                                                                           \
        PROPS_SINCE_V6(p, d);                                                                      \
        (p)->netDeviceType = NCCL_NET_DEVICE_HOST;                                                 \
        (p)->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;                                   \
    } while (0)
/* Not global: a send larger than its receive is refused, not cut. */
#define PROPS_SINCE_V8(p, d)                                                                       \
    do {                                                                                           \
        PROPS_SINCE_V7(p, d);                                                                      \
        (p)->regIsGlobal = 0;                                                                      \
    } while (0)
#define PROPS_SINCE_V9(p, d)                                                                       \
    do {                                                                                           \
        PROPS_SINCE_V8(p, d);                                                                      \
        (p)->forceFlush = 0;                                                                       \
        (p)->vProps.ndevs = (d)->nmembers;                                                         \
        for (int i_ = 0; i_ < (int)(sizeof(p)->vProps.devs / sizeof *(p)->vProps.devs); i_++)      \
            (p)->vProps.devs[i_] = i_ < (d)->nmembers ? (d)->members[i_] : 0;                      \
        (p)->maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES;                                                \
        (p)->maxCollBytes = NCCL_MAX_NET_SIZE_BYTES;                                               \
    } while (0)
#define PROPS_SINCE_V11(p, d)                                                                      \
    do {                                                                                           \
        PROPS_SINCE_V9(p, d);                                                                      \
        (p)->maxMultiRequestSize = 1;                                                              \
    } while (0)
#define PROPS_SINCE_V12(p, d)                                                                      \
    do {                                                                                           \
        PROPS_SINCE_V11(p, d);                                                                     \
        (p)->railId = NCCL_NET_ID_UNDEF;                                                           \
        (p)->planeId = NCCL_NET_ID_UNDEF;                                                          \
    } while (0)

#define GET_PROPERTIES(v)                                                                          \
    static ncclResult_t get_properties_v##v(int dev, ncclNetProperties_v##v##_t *props)            \
    {                                                                                              \
        struct holmes_plugin_device d;                                                             \
        int rc = holmes_plugin_device(dev, &d);                                                    \
                                                                                                   \
        if (rc == 0)                                                                               \
            PROPS_SINCE_V##v(props, &d);                                                           \
        return holmes_net_result(rc);                                                              \
    }
GET_PROPERTIES(6)
GET_PROPERTIES(7)
GET_PROPERTIES(8)
GET_PROPERTIES(9)
GET_PROPERTIES(11)
GET_PROPERTIES(12)

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **out)
{
    struct holmes_listen *l = NULL;
    int rc = holmes_plugin_listen(ctx, dev, handle, &l);

    *out = rc == 0 ? l : NULL;
    return holmes_net_result(rc);
}

static ncclResult_t listen_v6(int dev, void *handle, void **out)
{
    return listen_v11(NULL, dev, handle, out);
}

/* After an error *out is NULL: NCCL would close it twice. */
static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **out,
                                ncclNetDeviceHandle_v7_t **dev_handle)
{
    struct holmes_conn *c = NULL;
    int rc = holmes_plugin_connect(ctx, dev, handle, &c);

    (void)dev_handle;
    *out = rc == 0 ? c : NULL;
    return holmes_net_result(rc);
}

static ncclResult_t connect_v10(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **out,
                                ncclNetDeviceHandle_v7_t **dev_handle)
{
    (void)config;
    return connect_v11(NULL, dev, handle, out, dev_handle);
}

static ncclResult_t connect_v7(int dev, void *handle, void **out,
                               ncclNetDeviceHandle_v7_t **dev_handle)
{
    return connect_v11(NULL, dev, handle, out, dev_handle);
}

static ncclResult_t connect_v6(int dev, void *handle, void **out)
{
    return connect_v11(NULL, dev, handle, out, NULL);
}

static ncclResult_t accept_v7(void *listen_comm, void **out, ncclNetDeviceHandle_v7_t **dev_handle)
{
    struct holmes_conn *c = NULL;
    int rc = listen_comm ? holmes_plugin_accept(listen_comm, &c) : -EINVAL;

    (void)dev_handle;
    *out = rc == 0 ? c : NULL;
    return holmes_net_result(rc);
}

static ncclResult_t accept_v6(void *listen_comm, void **out)
{
    return accept_v7(listen_comm, out, NULL);
}

static ncclResult_t reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
    struct holmes_mr *mr = NULL;
    int rc;

    *mhandle = NULL;
    if (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA) {
        holmes_warn(NET, "registration of pointer type %d: host (1) and CUDA (2) are right", type);
        return ncclInternalError;
    }
    if (!comm)
        rc = -EINVAL;
    else
        rc = type == NCCL_PTR_HOST ? holmes_mr_reg(comm, data, size, &mr)
                                   : holmes_mr_reg_cuda(comm, data, size, &mr);
    if (rc == 0)
        *mhandle = mr;
    return holmes_net_result(rc);
}

/* `type` is NCCL_PTR_CUDA; `data` the GPU address of the bytes at `offset`. */
static ncclResult_t reg_mr_dmabuf_v6(void *comm, void *data, size_t size, int type, uint64_t offset,
                                     int fd, void **mhandle)
{
    struct holmes_mr *mr = NULL;
    int rc = comm ? holmes_mr_reg_dmabuf(comm, data, size, offset, fd, &mr) : -EINVAL;

    (void)type;
    *mhandle = rc == 0 ? mr : NULL;
    return holmes_net_result(rc);
}

static ncclResult_t reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle)
{
    *mhandle = NULL;
    if (size < 0)
        return ncclInvalidArgument;
    return reg_mr_v8(comm, data, (size_t)size, type, mhandle);
}

static ncclResult_t dereg_mr_v6(void *comm, void *mhandle)
{
    if (!comm || !mhandle) /* clean-up after a set-up that failed half-way */
        return ncclSuccess;
    return holmes_net_result(holmes_mr_dereg(comm, mhandle));
}

static ncclResult_t isend_v10(void *comm, void *data, size_t size, int tag, void *mhandle,
                              void *phandle, void **request)
{
    struct holmes_request *r = NULL;
    int rc = comm ? holmes_isend(comm, data, size, tag, mhandle, &r) : -EINVAL;

    (void)phandle;
    *request = rc == 0 ? r : NULL;
    return holmes_net_result(rc);
}

static ncclResult_t isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle,
                             void **request)
{
    return isend_v10(comm, data, size, tag, mhandle, NULL, request);
}

/* v6 to v8 carried lengths as int. */
static ncclResult_t isend_v6(void *comm, void *data, int size, int tag, void *mhandle,
                             void **request)
{
    *request = NULL;
    if (size < 0)
        return ncclInvalidArgument;
    return isend_v10(comm, data, (size_t)size, tag, mhandle, NULL, request);
}

/* *request may come in as NCCL_NET_OPTIONAL_RECV_COMPLETION: the GPU polls for flags. That is no
 * reason to complete early: a line that the GPU has consumed says nothing about the rest of its
 * message, which a failed lane may owe. */
static ncclResult_t irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags,
                              void **mhandles, void **phandles, void **request)
{
    bool polled = *request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
    struct holmes_request *r = NULL;
    int rc = -EINVAL;

    (void)phandles;
    if (comm && n == 1) /* maxRecvs */
        rc = (polled ? holmes_irecv_polled : holmes_irecv)(comm, n, data, sizes, tags,
                                                           (struct holmes_mr *const *)mhandles, &r);
    *request = rc == 0 ? r : NULL;
    return holmes_net_result(rc);
}

static ncclResult_t irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags,
                             void **mhandles, void **request)
{
    return irecv_v10(comm, n, data, sizes, tags, mhandles, NULL, request);
}

static ncclResult_t irecv_v6(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                             void **request)
{
    size_t size;

    *request = NULL;
    if (n != 1 || sizes[0] < 0)
        return ncclInvalidArgument;
    size = (size_t)sizes[0];
    return irecv_v10(comm, n, data, &size, tags, mhandles, NULL, request);
}

/* Only GPU memory needs one. */
static ncclResult_t iflush_v6(void *comm, int n, void **data, int *sizes, void **mhandles,
                              void **request)
{
    size_t lens[HOLMES_MAX_GROUP];
    struct holmes_request *r = NULL;
    uint64_t deadline;
    int rc;

    *request = NULL;
    if (!comm || n < 1 || n > HOLMES_MAX_GROUP)
        return ncclInvalidArgument;
    for (int i = 0; i < n; i++) {
        if (sizes[i] < 0)
            return ncclInvalidArgument;
        lens[i] = (size_t)sizes[i];
    }
    deadline = holmes_deadline_ms(FLUSH_MS);
    do /* a NULL request would mean that nothing is to be waited for */
        rc = holmes_iflush(comm, n, data, lens, (struct holmes_mr *const *)mhandles, &r);
    while (rc == -EAGAIN && !holmes_deadline_passed(deadline));
    if (rc == -EAGAIN) {
        holmes_warn(NET, "no room for a flush within %d ms", FLUSH_MS);
        rc = -EIO;
    }
    if (rc == 0)
        *request = r;
    return holmes_net_result(rc);
}

static ncclResult_t make_vdevice_v9(int *dev, ncclNetVDeviceProps_v9_t *props)
{
    return holmes_net_result(holmes_plugin_fuse(props->devs, props->ndevs, dev));
}

static ncclResult_t make_vdevice_v12(int *dev, ncclNetVDeviceProps_v12_t *props)
{
    return holmes_net_result(holmes_plugin_fuse(props->devs, props->ndevs, dev));
}

static ncclResult_t test_v6(void *request, int *done, int *sizes)
{
    size_t lens[HOLMES_MAX_GROUP];
    bool is_done = false;
    int rc = request ? holmes_test(request, &is_done, lens) : -EINVAL;

    *done = rc == 0 && is_done;
    if (*done && sizes) /* one: maxRecvs. NCCL keeps sizes in int, and messages within it */
        sizes[0] = lens[0] <= INT_MAX ? (int)lens[0] : INT_MAX;
    return holmes_net_result(rc);
}

static ncclResult_t close_conn_v6(void *comm)
{
    holmes_plugin_close(comm);
    return ncclSuccess;
}

static ncclResult_t close_listen_v6(void *comm)
{
    holmes_plugin_close_listen(comm);
    return ncclSuccess;
}

/* What no version changed. */
#define COMMON_MEMBERS                                                                             \
    .name = net_name, .devices = devices_v6, .regMrDmaBuf = reg_mr_dmabuf_v6,                      \
    .deregMr = dereg_mr_v6, .iflush = iflush_v6, .test = test_v6, .closeSend = close_conn_v6,      \
    .closeRecv = close_conn_v6, .closeListen = close_listen_v6

extern const ncclNet_v6_t ncclNetPlugin_v6;
extern const ncclNet_v7_t ncclNetPlugin_v7;
extern const ncclNet_v8_t ncclNetPlugin_v8;
extern const ncclNet_v9_t ncclNetPlugin_v9;
extern const ncclNet_v10_t ncclNetPlugin_v10;
extern const ncclNet_v11_t ncclNetPlugin_v11;
extern const ncclNet_v12_t ncclNetPlugin_v12;

EXPORT const ncclNet_v6_t ncclNetPlugin_v6 = {
    COMMON_MEMBERS,        .init = init_v6,
    .listen = listen_v6,   .getProperties = get_properties_v6,
    .connect = connect_v6, .accept = accept_v6,
    .regMr = reg_mr_v6,    .isend = isend_v6,
    .irecv = irecv_v6,
};

EXPORT const ncclNet_v7_t ncclNetPlugin_v7 = {
    COMMON_MEMBERS,        .init = init_v6,
    .listen = listen_v6,   .getProperties = get_properties_v7,
    .connect = connect_v7, .accept = accept_v7,
    .regMr = reg_mr_v6,    .isend = isend_v6,
    .irecv = irecv_v6,
};

EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
    COMMON_MEMBERS,        .init = init_v6,
    .listen = listen_v6,   .getProperties = get_properties_v8,
    .connect = connect_v7, .accept = accept_v7,
    .regMr = reg_mr_v8,    .isend = isend_v6,
    .irecv = irecv_v6,
};

EXPORT const ncclNet_v9_t ncclNetPlugin_v9 = {
    COMMON_MEMBERS,        .init = init_v6,
    .listen = listen_v6,   .getProperties = get_properties_v9,
    .connect = connect_v7, .accept = accept_v7,
    .regMr = reg_mr_v8,    .isend = isend_v9,
    .irecv = irecv_v9,     .makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v10_t ncclNetPlugin_v10 = {
    COMMON_MEMBERS,         .init = init_v10,
    .listen = listen_v6,    .getProperties = get_properties_v9,
    .connect = connect_v10, .accept = accept_v7,
    .regMr = reg_mr_v8,     .isend = isend_v10,
    .irecv = irecv_v10,     .makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v11_t ncclNetPlugin_v11 = {
    COMMON_MEMBERS,
    .init = init_v11,
    .listen = listen_v11,
    .getProperties = get_properties_v11,
    .connect = connect_v11,
    .accept = accept_v7,
    .regMr = reg_mr_v8,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .finalize = finalize_v11,
    .makeVDevice = make_vdevice_v9,
};

EXPORT const ncclNet_v12_t ncclNetPlugin_v12 = {
    COMMON_MEMBERS,
    .init = init_v11,
    .listen = listen_v11,
    .getProperties = get_properties_v12,
    .connect = connect_v11,
    .accept = accept_v7,
    .regMr = reg_mr_v8,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .finalize = finalize_v11,
    .makeVDevice = make_vdevice_v12,
};
