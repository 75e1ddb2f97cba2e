/* NCCL's external network plugin interface, ABI versions 6 to 12: what NCCL expects behind the
 * symbols ncclNetPlugin_v6 to ncclNetPlugin_v12, each the address of one table of functions.
 *
 * Written from the interface's names, numbers and layout (docs/architecture.md); it needs no header
 * of NCCL or CUDA. It defines ncclResult_t, so no file may include this and nccl.h.
 *
 * A signature is declared once, as a function type named for the first version that has it; a table
 * of a later version refers to the same type. The layout is fixed by the assertions at the end:
 * LP64 Linux, natural alignment, four-byte enums.
 */
#ifndef HOLMES_NCCL_NET_H
#define HOLMES_NCCL_NET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_NET_HANDLE_MAXSIZE 128 /* bytes of the opaque connect handle */

/* Bits of ptrSupport; regMr gets exactly one of the first two. */
#define NCCL_PTR_HOST   0x1
#define NCCL_PTR_CUDA   0x2
#define NCCL_PTR_DMABUF 0x4

#define NCCL_NET_MAX_REQUESTS         32
#define NCCL_MAX_NET_SIZE_BYTES       ((size_t)1 << 40) /* largest maxP2pBytes, maxCollBytes taken */
#define NCCL_NET_MAX_DEVS_PER_NIC_V9  4
#define NCCL_NET_MAX_DEVS_PER_NIC_V12 8
#define NCCL_NET_TRAFFIC_CLASS_UNDEF  (-1)
#define NCCL_NET_ATTR_UNDEF           (-1)
#define NCCL_NET_ID_UNDEF             (-1)

/* What NCCL may have left in *request of irecv: "arrival is told by flags in the data". */
#define NCCL_NET_OPTIONAL_RECV_COMPLETION 0x1

#define NCCL_NET_DEVICE_INVALID_VERSION 0x0 /* goes with NCCL_NET_DEVICE_HOST */
#define NCCL_NET_DEVICE_UNPACK_VERSION  0x7

/* The results a plugin may return; NCCL has more for itself. */
typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum {
    NCCL_LOG_NONE = 0,
    NCCL_LOG_VERSION = 1,
    NCCL_LOG_WARN = 2,
    NCCL_LOG_INFO = 3,
    NCCL_LOG_ABORT = 4,
    NCCL_LOG_TRACE = 5,
} ncclDebugLogLevel;

/* Subsystem flags of a log line. */
#define NCCL_INIT  0x1ul
#define NCCL_NET   0x10ul
#define NCCL_GRAPH 0x20ul
#define NCCL_ENV   0x80ul

/* NCCL adds prefix and newline. WARN shows file and line; for INFO `file` is the function's name.
 * Callable from any thread from init on, for as long as the process lives. */
typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char *file,
                                  int line, const char *fmt, ...);
typedef ncclResult_t (*ncclProfilerCallback_t)(void **eHandle, int type, void *pHandle,
                                               int64_t pluginId, void *extData);

typedef enum {
    NCCL_NET_DEVICE_HOST = 0,
    NCCL_NET_DEVICE_UNPACK = 1,
    NCCL_NET_DEVICE_GIN_PROXY = 2,
    NCCL_NET_DEVICE_GIN_GDAKI = 3,
} ncclNetDeviceType;

typedef struct {
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    void *handle;
    size_t size;
    int needsProxyProgress;
} ncclNetDeviceHandle_v7_t;

/* The physical devices behind a device: {1, {itself}} for a physical one. */
typedef struct {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V9];
} ncclNetVDeviceProps_v9_t;
typedef ncclNetVDeviceProps_v9_t ncclNetVDeviceProps_v10_t;
typedef ncclNetVDeviceProps_v9_t ncclNetVDeviceProps_v11_t;

typedef struct {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V12];
} ncclNetVDeviceProps_v12_t;

typedef struct {
    int trafficClass; /* NCCL_NET_TRAFFIC_CLASS_UNDEF when the user gave none */
} ncclNetCommConfig_v10_t;
typedef ncclNetCommConfig_v10_t ncclNetCommConfig_v11_t;
typedef ncclNetCommConfig_v10_t ncclNetCommConfig_v12_t;

typedef struct {
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
} ncclNetCommAttr_v11_t;
typedef ncclNetCommAttr_v11_t ncclNetCommAttr_v12_t;

/* Hints about the transfers to come; op, algo and proto are masks of 1 << value. */
typedef struct {
    ncclNetCommAttr_v11_t sendCommAttr;
    ncclNetCommAttr_v11_t recvCommAttr;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
} ncclNetAttr_v11_t;
typedef ncclNetAttr_v11_t ncclNetAttr_v12_t;

/* Device properties. The struct arrives uninitialised: every field must be written. name and
 * pciPath must outlive the library's use; name is unique; pciPath may be NULL. */
typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid; /* devices with equal guid and port share one bandwidth */
    int ptrSupport;
    int speed; /* Mbit/s */
    int port;
    float latency; /* microseconds; 0: NCCL's default */
    int maxComms;
    int maxRecvs; /* buffers in one irecv */
} ncclNetProperties_v6_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
} ncclNetProperties_v7_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal; /* needs a registration cache, and sends cut to the receive's size */
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
} ncclNetProperties_v8_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v9_t vProps;
    size_t maxP2pBytes; /* 0 is refused */
    size_t maxCollBytes;
} ncclNetProperties_v9_t;
typedef ncclNetProperties_v9_t ncclNetProperties_v10_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v11_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
} ncclNetProperties_v11_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v12_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId;
    int16_t planeId;
} ncclNetProperties_v12_t;

/* Signatures. connect, accept, isend, irecv and iflush are polled: success with NULL in the output
 * means "not yet" (iflush: nothing to wait for). */
typedef ncclResult_t ncclNetInit_v6_fn(ncclDebugLogger_t log);
typedef ncclResult_t ncclNetInit_v10_fn(ncclDebugLogger_t log, ncclProfilerCallback_t prof);
typedef ncclResult_t ncclNetInit_v11_fn(void **ctx, uint64_t commId,
                                        ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
                                        ncclProfilerCallback_t prof);
typedef ncclResult_t ncclNetDevices_v6_fn(int *ndev);
typedef ncclResult_t ncclNetGetProperties_v6_fn(int dev, ncclNetProperties_v6_t *props);
typedef ncclResult_t ncclNetGetProperties_v7_fn(int dev, ncclNetProperties_v7_t *props);
typedef ncclResult_t ncclNetGetProperties_v8_fn(int dev, ncclNetProperties_v8_t *props);
typedef ncclResult_t ncclNetGetProperties_v9_fn(int dev, ncclNetProperties_v9_t *props);
typedef ncclResult_t ncclNetGetProperties_v11_fn(int dev, ncclNetProperties_v11_t *props);
typedef ncclResult_t ncclNetGetProperties_v12_fn(int dev, ncclNetProperties_v12_t *props);
typedef ncclResult_t ncclNetListen_v6_fn(int dev, void *handle, void **listenComm);
typedef ncclResult_t ncclNetListen_v11_fn(void *ctx, int dev, void *handle, void **listenComm);
typedef ncclResult_t ncclNetConnect_v6_fn(int dev, void *handle, void **sendComm);
typedef ncclResult_t ncclNetConnect_v7_fn(int dev, void *handle, void **sendComm,
                                          ncclNetDeviceHandle_v7_t **sendDevComm);
typedef ncclResult_t ncclNetConnect_v10_fn(int dev, ncclNetCommConfig_v10_t *config, void *handle,
                                           void **sendComm, ncclNetDeviceHandle_v7_t **sendDevComm);
typedef ncclResult_t ncclNetConnect_v11_fn(void *ctx, int dev, void *handle, void **sendComm,
                                           ncclNetDeviceHandle_v7_t **sendDevComm);
typedef ncclResult_t ncclNetAccept_v6_fn(void *listenComm, void **recvComm);
typedef ncclResult_t ncclNetAccept_v7_fn(void *listenComm, void **recvComm,
                                         ncclNetDeviceHandle_v7_t **recvDevComm);
typedef ncclResult_t ncclNetRegMr_v6_fn(void *comm, void *data, int size, int type, void **mhandle);
typedef ncclResult_t ncclNetRegMr_v8_fn(void *comm, void *data, size_t size, int type,
                                        void **mhandle);
typedef ncclResult_t ncclNetRegMrDmaBuf_v6_fn(void *comm, void *data, size_t size, int type,
                                              uint64_t offset, int fd, void **mhandle);
typedef ncclResult_t ncclNetDeregMr_v6_fn(void *comm, void *mhandle);
typedef ncclResult_t ncclNetIsend_v6_fn(void *sendComm, void *data, int size, int tag,
                                        void *mhandle, void **request);
typedef ncclResult_t ncclNetIsend_v9_fn(void *sendComm, void *data, size_t size, int tag,
                                        void *mhandle, void **request);
typedef ncclResult_t ncclNetIsend_v10_fn(void *sendComm, void *data, size_t size, int tag,
                                         void *mhandle, void *phandle, void **request);
typedef ncclResult_t ncclNetIrecv_v6_fn(void *recvComm, int n, void **data, int *sizes, int *tags,
                                        void **mhandles, void **request);
typedef ncclResult_t ncclNetIrecv_v9_fn(void *recvComm, int n, void **data, size_t *sizes,
                                        int *tags, void **mhandles, void **request);
typedef ncclResult_t ncclNetIrecv_v10_fn(void *recvComm, int n, void **data, size_t *sizes,
                                         int *tags, void **mhandles, void **phandles,
                                         void **request);
typedef ncclResult_t ncclNetIflush_v6_fn(void *recvComm, int n, void **data, int *sizes,
                                         void **mhandles, void **request);
typedef ncclResult_t ncclNetTest_v6_fn(void *request, int *done, int *sizes);
typedef ncclResult_t ncclNetClose_v6_fn(void *comm);
typedef ncclResult_t ncclNetGetDeviceMr_v7_fn(void *comm, void *mhandle, void **dptr_mhandle);
typedef ncclResult_t ncclNetIrecvConsumed_v7_fn(void *recvComm, int n, void *request);
typedef ncclResult_t ncclNetMakeVDevice_v9_fn(int *d, ncclNetVDeviceProps_v9_t *props);
typedef ncclResult_t ncclNetMakeVDevice_v12_fn(int *d, ncclNetVDeviceProps_v12_t *props);
typedef ncclResult_t ncclNetFinalize_v11_fn(void *ctx);
typedef ncclResult_t ncclNetSetNetAttr_v11_fn(void *ctx, ncclNetAttr_v11_t *attr);

/* The tables. regMrDmaBuf, getDeviceMr, irecvConsumed, makeVDevice and setNetAttr may be NULL. */
typedef struct {
    const char *name;
    ncclNetInit_v6_fn *init;
    ncclNetDevices_v6_fn *devices;
    ncclNetGetProperties_v6_fn *getProperties;
    ncclNetListen_v6_fn *listen;
    ncclNetConnect_v6_fn *connect;
    ncclNetAccept_v6_fn *accept;
    ncclNetRegMr_v6_fn *regMr;
    ncclNetRegMrDmaBuf_v6_fn *regMrDmaBuf;
    ncclNetDeregMr_v6_fn *deregMr;
    ncclNetIsend_v6_fn *isend;
    ncclNetIrecv_v6_fn *irecv;
    ncclNetIflush_v6_fn *iflush;
    ncclNetTest_v6_fn *test;
    ncclNetClose_v6_fn *closeSend;
    ncclNetClose_v6_fn *closeRecv;
    ncclNetClose_v6_fn *closeListen;
} ncclNet_v6_t;

typedef struct {
    const char *name;
    ncclNetInit_v6_fn *init;
    ncclNetDevices_v6_fn *devices;
    ncclNetGetProperties_v7_fn *getProperties;
    ncclNetListen_v6_fn *listen;
    ncclNetConnect_v7_fn *connect;
    ncclNetAccept_v7_fn *accept;
    ncclNetRegMr_v6_fn *regMr;
    ncclNetRegMrDmaBuf_v6_fn *regMrDmaBuf;
    ncclNetDeregMr_v6_fn *deregMr;
    ncclNetIsend_v6_fn *isend;
    ncclNetIrecv_v6_fn *irecv;
    ncclNetIflush_v6_fn *iflush;
    ncclNetTest_v6_fn *test;
    ncclNetClose_v6_fn *closeSend;
    ncclNetClose_v6_fn *closeRecv;
    ncclNetClose_v6_fn *closeListen;
    ncclNetGetDeviceMr_v7_fn *getDeviceMr;
    ncclNetIrecvConsumed_v7_fn *irecvConsumed;
} ncclNet_v7_t;

typedef struct {
    const char *name;
    ncclNetInit_v6_fn *init;
    ncclNetDevices_v6_fn *devices;
    ncclNetGetProperties_v8_fn *getProperties;
    ncclNetListen_v6_fn *listen;
    ncclNetConnect_v7_fn *connect;
    ncclNetAccept_v7_fn *accept;
    ncclNetRegMr_v8_fn *regMr;
    ncclNetRegMrDmaBuf_v6_fn *regMrDmaBuf;
    ncclNetDeregMr_v6_fn *deregMr;
    ncclNetIsend_v6_fn *isend;
    ncclNetIrecv_v6_fn *irecv;
    ncclNetIflush_v6_fn *iflush;
    ncclNetTest_v6_fn *test;
    ncclNetClose_v6_fn *closeSend;
    ncclNetClose_v6_fn *closeRecv;
    ncclNetClose_v6_fn *closeListen;
    ncclNetGetDeviceMr_v7_fn *getDeviceMr;
    ncclNetIrecvConsumed_v7_fn *irecvConsumed;
} ncclNet_v8_t;

typedef struct {
    const char *name;
    ncclNetInit_v6_fn *init;
    ncclNetDevices_v6_fn *devices;
    ncclNetGetProperties_v9_fn *getProperties;
    ncclNetListen_v6_fn *listen;
    ncclNetConnect_v7_fn *connect;
    ncclNetAccept_v7_fn *accept;
    ncclNetRegMr_v8_fn *regMr;
    ncclNetRegMrDmaBuf_v6_fn *regMrDmaBuf;
    ncclNetDeregMr_v6_fn *deregMr;
    ncclNetIsend_v9_fn *isend;
    ncclNetIrecv_v9_fn *irecv;
    ncclNetIflush_v6_fn *iflush;
    ncclNetTest_v6_fn *test;
    ncclNetClose_v6_fn *closeSend;
    ncclNetClose_v6_fn *closeRecv;
    ncclNetClose_v6_fn *closeListen;
    ncclNetGetDeviceMr_v7_fn *getDeviceMr;
    ncclNetIrecvConsumed_v7_fn *irecvConsumed;
    ncclNetMakeVDevice_v9_fn *makeVDevice;
} ncclNet_v9_t;

typedef struct {
    const char *name;
    ncclNetInit_v10_fn *init;
    ncclNetDevices_v6_fn *devices;
    ncclNetGetProperties_v9_fn *getProperties;
    ncclNetListen_v6_fn *listen;
    ncclNetConnect_v10_fn *connect;
    ncclNetAccept_v7_fn *accept;
    ncclNetRegMr_v8_fn *regMr;
    ncclNetRegMrDmaBuf_v6_fn *regMrDmaBuf;
    ncclNetDeregMr_v6_fn *deregMr;
    ncclNetIsend_v10_fn *isend;
    ncclNetIrecv_v10_fn *irecv;
    ncclNetIflush_v6_fn *iflush;
    ncclNetTest_v6_fn *test;
    ncclNetClose_v6_fn *closeSend;
    ncclNetClose_v6_fn *closeRecv;
    ncclNetClose_v6_fn *closeListen;
    ncclNetGetDeviceMr_v7_fn *getDeviceMr;
    ncclNetIrecvConsumed_v7_fn *irecvConsumed;
    ncclNetMakeVDevice_v9_fn *makeVDevice;
} ncclNet_v10_t;

typedef struct {
    const char *name;
    ncclNetInit_v11_fn *init;
    ncclNetDevices_v6_fn *devices;
    ncclNetGetProperties_v11_fn *getProperties;
    ncclNetListen_v11_fn *listen;
    ncclNetConnect_v11_fn *connect;
    ncclNetAccept_v7_fn *accept;
    ncclNetRegMr_v8_fn *regMr;
    ncclNetRegMrDmaBuf_v6_fn *regMrDmaBuf;
    ncclNetDeregMr_v6_fn *deregMr;
    ncclNetIsend_v10_fn *isend;
    ncclNetIrecv_v10_fn *irecv;
    ncclNetIflush_v6_fn *iflush;
    ncclNetTest_v6_fn *test;
    ncclNetClose_v6_fn *closeSend;
    ncclNetClose_v6_fn *closeRecv;
    ncclNetClose_v6_fn *closeListen;
    ncclNetGetDeviceMr_v7_fn *getDeviceMr;
    ncclNetIrecvConsumed_v7_fn *irecvConsumed;
    ncclNetMakeVDevice_v9_fn *makeVDevice;
    ncclNetFinalize_v11_fn *finalize; /* also for a ctx of NULL */
    ncclNetSetNetAttr_v11_fn *setNetAttr;
} ncclNet_v11_t;

typedef struct {
    const char *name;
    ncclNetInit_v11_fn *init;
    ncclNetDevices_v6_fn *devices;
    ncclNetGetProperties_v12_fn *getProperties;
    ncclNetListen_v11_fn *listen;
    ncclNetConnect_v11_fn *connect;
    ncclNetAccept_v7_fn *accept;
    ncclNetRegMr_v8_fn *regMr;
    ncclNetRegMrDmaBuf_v6_fn *regMrDmaBuf;
    ncclNetDeregMr_v6_fn *deregMr;
    ncclNetIsend_v10_fn *isend;
    ncclNetIrecv_v10_fn *irecv;
    ncclNetIflush_v6_fn *iflush;
    ncclNetTest_v6_fn *test;
    ncclNetClose_v6_fn *closeSend;
    ncclNetClose_v6_fn *closeRecv;
    ncclNetClose_v6_fn *closeListen;
    ncclNetGetDeviceMr_v7_fn *getDeviceMr;
    ncclNetIrecvConsumed_v7_fn *irecvConsumed;
    ncclNetMakeVDevice_v12_fn *makeVDevice;
    ncclNetFinalize_v11_fn *finalize;
    ncclNetSetNetAttr_v11_fn *setNetAttr;
} ncclNet_v12_t;

/* The layout NCCL was compiled with. */
#ifdef __cplusplus
#define NCCL_NET_ASSERT(cond) static_assert(cond, #cond)
#else
#define NCCL_NET_ASSERT(cond) _Static_assert(cond, #cond)
#endif
#define NCCL_NET_SIZE(type, size)         NCCL_NET_ASSERT(sizeof(type) == (size))
#define NCCL_NET_OFFSET(type, field, off) NCCL_NET_ASSERT(offsetof(type, field) == (off))
/* Fields that every version of the properties has, as far as they differ. */
#define NCCL_NET_PROPS(v, speed_, maxRecvs_, size)                                                 \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, name, 0);                                          \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, pciPath, 8);                                       \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, guid, 16);                                         \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, ptrSupport, 24);                                   \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, speed, speed_);                                    \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, port, (speed_) + 4);                               \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, latency, (speed_) + 8);                            \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, maxComms, (speed_) + 12);                          \
    NCCL_NET_OFFSET(ncclNetProperties_v##v##_t, maxRecvs, maxRecvs_);                              \
    NCCL_NET_SIZE(ncclNetProperties_v##v##_t, size)
/* Members that every version of the table has. */
#define NCCL_NET_TABLE(v, size)                                                                    \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, name, 0);                                                    \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, init, 8);                                                    \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, devices, 16);                                                \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, getProperties, 24);                                          \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, listen, 32);                                                 \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, connect, 40);                                                \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, accept, 48);                                                 \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, regMr, 56);                                                  \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, regMrDmaBuf, 64);                                            \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, deregMr, 72);                                                \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, isend, 80);                                                  \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, irecv, 88);                                                  \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, iflush, 96);                                                 \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, test, 104);                                                  \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, closeSend, 112);                                             \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, closeRecv, 120);                                             \
    NCCL_NET_OFFSET(ncclNet_v##v##_t, closeListen, 128);                                           \
    NCCL_NET_SIZE(ncclNet_v##v##_t, size)

NCCL_NET_SIZE(ncclResult_t, 4);
NCCL_NET_SIZE(ncclNetDeviceType, 4);
NCCL_NET_SIZE(ncclDebugLogLevel, 4);
NCCL_NET_SIZE(ncclNetDeviceHandle_v7_t, 32);
NCCL_NET_OFFSET(ncclNetDeviceHandle_v7_t, netDeviceVersion, 4);
NCCL_NET_OFFSET(ncclNetDeviceHandle_v7_t, handle, 8);
NCCL_NET_OFFSET(ncclNetDeviceHandle_v7_t, size, 16);
NCCL_NET_OFFSET(ncclNetDeviceHandle_v7_t, needsProxyProgress, 24);
NCCL_NET_SIZE(ncclNetVDeviceProps_v11_t, 20);
NCCL_NET_SIZE(ncclNetVDeviceProps_v12_t, 36);
NCCL_NET_OFFSET(ncclNetVDeviceProps_v12_t, devs, 4);
NCCL_NET_SIZE(ncclNetCommConfig_v11_t, 4);
NCCL_NET_SIZE(ncclNetCommAttr_v11_t, 16);
NCCL_NET_SIZE(ncclNetAttr_v11_t, 44);
NCCL_NET_OFFSET(ncclNetAttr_v11_t, recvCommAttr, 16);
NCCL_NET_OFFSET(ncclNetAttr_v11_t, op, 32);
NCCL_NET_OFFSET(ncclNetAttr_v11_t, proto, 40);

NCCL_NET_PROPS(6, 28, 44, 48);
NCCL_NET_PROPS(7, 28, 44, 56);
NCCL_NET_OFFSET(ncclNetProperties_v7_t, netDeviceType, 48);
NCCL_NET_OFFSET(ncclNetProperties_v7_t, netDeviceVersion, 52);
NCCL_NET_PROPS(8, 32, 48, 64);
NCCL_NET_OFFSET(ncclNetProperties_v8_t, regIsGlobal, 28);
NCCL_NET_OFFSET(ncclNetProperties_v8_t, netDeviceType, 52);
NCCL_NET_PROPS(9, 36, 52, 104);
NCCL_NET_OFFSET(ncclNetProperties_v9_t, regIsGlobal, 28);
NCCL_NET_OFFSET(ncclNetProperties_v9_t, forceFlush, 32);
NCCL_NET_OFFSET(ncclNetProperties_v9_t, netDeviceType, 56);
NCCL_NET_OFFSET(ncclNetProperties_v9_t, vProps, 64);
NCCL_NET_OFFSET(ncclNetProperties_v9_t, maxP2pBytes, 88);
NCCL_NET_OFFSET(ncclNetProperties_v9_t, maxCollBytes, 96);
NCCL_NET_PROPS(10, 36, 52, 104);
NCCL_NET_PROPS(11, 36, 52, 112);
NCCL_NET_OFFSET(ncclNetProperties_v11_t, netDeviceType, 56);
NCCL_NET_OFFSET(ncclNetProperties_v11_t, vProps, 64);
NCCL_NET_OFFSET(ncclNetProperties_v11_t, maxP2pBytes, 88);
NCCL_NET_OFFSET(ncclNetProperties_v11_t, maxMultiRequestSize, 104);
NCCL_NET_PROPS(12, 36, 52, 128);
NCCL_NET_OFFSET(ncclNetProperties_v12_t, netDeviceType, 56);
NCCL_NET_OFFSET(ncclNetProperties_v12_t, vProps, 64);
NCCL_NET_OFFSET(ncclNetProperties_v12_t, maxP2pBytes, 104);
NCCL_NET_OFFSET(ncclNetProperties_v12_t, maxCollBytes, 112);
NCCL_NET_OFFSET(ncclNetProperties_v12_t, maxMultiRequestSize, 120);
NCCL_NET_OFFSET(ncclNetProperties_v12_t, railId, 124);
NCCL_NET_OFFSET(ncclNetProperties_v12_t, planeId, 126);

NCCL_NET_TABLE(6, 136);
NCCL_NET_TABLE(7, 152);
NCCL_NET_OFFSET(ncclNet_v7_t, getDeviceMr, 136);
NCCL_NET_OFFSET(ncclNet_v7_t, irecvConsumed, 144);
NCCL_NET_TABLE(8, 152);
NCCL_NET_TABLE(9, 160);
NCCL_NET_OFFSET(ncclNet_v9_t, makeVDevice, 152);
NCCL_NET_TABLE(10, 160);
NCCL_NET_TABLE(11, 176);
NCCL_NET_OFFSET(ncclNet_v11_t, finalize, 160);
NCCL_NET_OFFSET(ncclNet_v11_t, setNetAttr, 168);
NCCL_NET_TABLE(12, 176);
NCCL_NET_OFFSET(ncclNet_v12_t, finalize, 160);
NCCL_NET_OFFSET(ncclNet_v12_t, setNetAttr, 168);

#undef NCCL_NET_TABLE
#undef NCCL_NET_PROPS
#undef NCCL_NET_OFFSET
#undef NCCL_NET_SIZE
#undef NCCL_NET_ASSERT

#ifdef __cplusplus
}
#endif

#endif
