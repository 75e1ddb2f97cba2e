/* Finds a net plugin as NCCL does and bridges its ABI version to one set of calls. A signature that
 * differs between versions has one adapter per form, named for the version that introduced it; the
 * table of adapters of a version says which forms it has. */
#include "net_plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "nccl_net.h"

_Static_assert(HOLMES_PLUGIN_HANDLE_BYTES == NCCL_NET_HANDLE_MAXSIZE, "handle size");

/* Before v9 lengths are ints and NCCL itself stops at this. */
#define OLD_MAX_MESSAGE ((size_t)1 << 30)

/* Calls whose signature is one and the same in v8 to v12. */
struct stable_calls {
    ncclNetDevices_v6_fn *devices;
    ncclNetAccept_v7_fn *accept;
    ncclNetRegMr_v8_fn *reg;
    ncclNetDeregMr_v6_fn *dereg;
    ncclNetTest_v6_fn *test;
    ncclNetClose_v6_fn *close_send, *close_recv, *close_listen;
};

struct abi {
    int version;
    const char *symbol;
    bool (*bind)(struct holmes_plugin *p); /* false: a table with holes */
    ncclResult_t (*init)(struct holmes_plugin *p, uint64_t comm_id, void **ctx);
    ncclResult_t (*fini)(struct holmes_plugin *p, void *ctx); /* NULL: per library */
    ncclResult_t (*device)(struct holmes_plugin *p, int dev, struct holmes_plugin_device *out);
    ncclResult_t (*listen)(struct holmes_plugin *p, void *ctx, int dev, void *handle, void **comm);
    ncclResult_t (*connect)(struct holmes_plugin *p, void *ctx, int dev, void *handle, void **comm);
    ncclResult_t (*isend)(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                          void *mr, void **request);
    ncclResult_t (*irecv)(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                          void *mr, void **request);
};

struct holmes_plugin {
    void *library;
    char path[512];
    const struct abi *abi;
    union {
        const void *any;
        const ncclNet_v8_t *v8;
        const ncclNet_v9_t *v9;
        const ncclNet_v10_t *v10;
        const ncclNet_v11_t *v11;
        const ncclNet_v12_t *v12;
    } table;
    struct stable_calls call;
    pthread_mutex_t init_lock; /* init and fini never overlap, as under NCCL */
    bool initialised;
};

/* One errno per result, so that the result's name can be told from it. */
static const struct {
    ncclResult_t result;
    int error;
    const char *name;
} results[] = {
    {ncclUnhandledCudaError, -ENODEV, "ncclUnhandledCudaError"},
    {ncclSystemError, -EIO, "ncclSystemError"},
    {ncclInternalError, -EPROTO, "ncclInternalError"},
    {ncclInvalidArgument, -EINVAL, "ncclInvalidArgument"},
    {ncclInvalidUsage, -EMSGSIZE, "ncclInvalidUsage"},
    {ncclRemoteError, -ECONNRESET, "ncclRemoteError"},
};

static int result_errno(ncclResult_t r)
{
    if (r == ncclSuccess)
        return 0;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i].result == r)
            return results[i].error;
    }
    return -EPROTO; /* a plugin may return no other */
}

const char *holmes_plugin_result_name(int negative_errno)
{
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i].error == negative_errno)
            return results[i].name;
    }
    return NULL;
}

/* The logger given to the plugin. */
__attribute__((format(printf, 5, 6))) static void plugin_log(ncclDebugLogLevel level,
                                                             unsigned long flags, const char *file,
                                                             int line, const char *fmt, ...)
{
    enum holmes_log_level to = level <= NCCL_LOG_WARN    ? HOLMES_LOG_WARN
                               : level <= NCCL_LOG_INFO  ? HOLMES_LOG_INFO
                               : level == NCCL_LOG_ABORT ? HOLMES_LOG_WARN
                                                         : HOLMES_LOG_TRACE;
    char msg[900];
    va_list ap;

    (void)flags;
    if (to > holmes_log_level())
        return;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    holmes_log_write(to, HOLMES_SUBSYS_NET, file ? file : "plugin", line, "plugin", "%s", msg);
}

static ncclResult_t plugin_profile(void **event, int type, void *parent, int64_t id, void *data)
{
    (void)event, (void)type, (void)parent, (void)id, (void)data;
    return ncclSuccess;
}

/* ---- adapters, one per form of a signature ---- */

static ncclResult_t init_v6(struct holmes_plugin *p, uint64_t comm_id, void **ctx)
{
    (void)comm_id;
    *ctx = NULL;
    /* `init` is the second member in v8 and v9 alike; the layouts are asserted in nccl_net.h. */
    return p->initialised ? ncclSuccess : p->table.v8->init(plugin_log);
}

static ncclResult_t init_v10(struct holmes_plugin *p, uint64_t comm_id, void **ctx)
{
    (void)comm_id;
    *ctx = NULL;
    return p->initialised ? ncclSuccess : p->table.v10->init(plugin_log, plugin_profile);
}

static ncclResult_t init_v11(struct holmes_plugin *p, uint64_t comm_id, void **ctx)
{
    ncclNetCommConfig_v11_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};

    *ctx = NULL;
    return p->table.v11->init(ctx, comm_id, &config, plugin_log, plugin_profile);
}

static ncclResult_t fini_v11(struct holmes_plugin *p, void *ctx)
{
    return p->table.v11->finalize(ctx);
}

static void device_fill(struct holmes_plugin_device *out, const char *name, int speed,
                        size_t max_message)
{
    snprintf(out->name, sizeof out->name, "%s", name ? name : "");
    out->speed_mbps = speed;
    out->max_message = max_message;
}

/* Poisoned first, since a plugin has to write every field. */
#define DEVICE_ADAPTER(n, max)                                                                     \
    static ncclResult_t device_v##n(struct holmes_plugin *p, int dev,                              \
                                    struct holmes_plugin_device *out)                              \
    {                                                                                              \
        ncclNetProperties_v##n##_t props;                                                          \
        ncclResult_t r;                                                                            \
                                                                                                   \
        memset(&props, 0xff, sizeof props);                                                        \
        props.name = NULL;                                                                         \
        r = p->table.v##n->getProperties(dev, &props);                                             \
        if (r == ncclSuccess)                                                                      \
            device_fill(out, props.name, props.speed, (max));                                      \
        return r;                                                                                  \
    }
DEVICE_ADAPTER(8, OLD_MAX_MESSAGE)
DEVICE_ADAPTER(9, props.maxP2pBytes)
DEVICE_ADAPTER(11, props.maxP2pBytes)
DEVICE_ADAPTER(12, props.maxP2pBytes)

static ncclResult_t listen_v6(struct holmes_plugin *p, void *ctx, int dev, void *handle,
                              void **comm)
{
    (void)ctx;
    return p->table.v8->listen(dev, handle, comm);
}

static ncclResult_t listen_v11(struct holmes_plugin *p, void *ctx, int dev, void *handle,
                               void **comm)
{
    return p->table.v11->listen(ctx, dev, handle, comm);
}

static ncclResult_t connect_v7(struct holmes_plugin *p, void *ctx, int dev, void *handle,
                               void **comm)
{
    ncclNetDeviceHandle_v7_t *device = NULL;

    (void)ctx;
    return p->table.v8->connect(dev, handle, comm, &device);
}

static ncclResult_t connect_v10(struct holmes_plugin *p, void *ctx, int dev, void *handle,
                                void **comm)
{
    ncclNetCommConfig_v10_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    ncclNetDeviceHandle_v7_t *device = NULL;

    (void)ctx;
    return p->table.v10->connect(dev, &config, handle, comm, &device);
}

static ncclResult_t connect_v11(struct holmes_plugin *p, void *ctx, int dev, void *handle,
                                void **comm)
{
    ncclNetDeviceHandle_v7_t *device = NULL;

    return p->table.v11->connect(ctx, dev, handle, comm, &device);
}

static ncclResult_t isend_v6(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                             void *mr, void **request)
{
    return p->table.v8->isend(comm, data, (int)len, tag, mr, request);
}

static ncclResult_t isend_v9(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                             void *mr, void **request)
{
    return p->table.v9->isend(comm, data, len, tag, mr, request);
}

static ncclResult_t isend_v10(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                              void *mr, void **request)
{
    return p->table.v10->isend(comm, data, len, tag, mr, NULL, request);
}

static ncclResult_t irecv_v6(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                             void *mr, void **request)
{
    int size = (int)len;

    return p->table.v8->irecv(comm, 1, &data, &size, &tag, &mr, request);
}

static ncclResult_t irecv_v9(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                             void *mr, void **request)
{
    return p->table.v9->irecv(comm, 1, &data, &len, &tag, &mr, request);
}

static ncclResult_t irecv_v10(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                              void *mr, void **request)
{
    void *profile = NULL;

    return p->table.v10->irecv(comm, 1, &data, &len, &tag, &mr, &profile, request);
}

#define BIND_ADAPTER(n, more)                                                                      \
    static bool bind_v##n(struct holmes_plugin *p)                                                 \
    {                                                                                              \
        const ncclNet_v##n##_t *t = p->table.v##n;                                                 \
                                                                                                   \
        p->call = (struct stable_calls){t->devices, t->accept,    t->regMr,     t->deregMr,        \
                                        t->test,    t->closeSend, t->closeRecv, t->closeListen};   \
        return t->name && t->init && t->devices && t->getProperties && t->listen && t->connect &&  \
               t->accept && t->regMr && t->deregMr && t->isend && t->irecv && t->test &&           \
               t->closeSend && t->closeRecv && t->closeListen && (more);                           \
    }
BIND_ADAPTER(8, true)
BIND_ADAPTER(9, true)
BIND_ADAPTER(10, true)
BIND_ADAPTER(11, t->finalize)
BIND_ADAPTER(12, t->finalize)

/* Newest first. */
static const struct abi abis[] = {
    {12, "ncclNetPlugin_v12", bind_v12, init_v11, fini_v11, device_v12, listen_v11, connect_v11,
     isend_v10, irecv_v10},
    {11, "ncclNetPlugin_v11", bind_v11, init_v11, fini_v11, device_v11, listen_v11, connect_v11,
     isend_v10, irecv_v10},
    {10, "ncclNetPlugin_v10", bind_v10, init_v10, NULL, device_v9, listen_v6, connect_v10,
     isend_v10, irecv_v10},
    {9, "ncclNetPlugin_v9", bind_v9, init_v6, NULL, device_v9, listen_v6, connect_v7, isend_v9,
     irecv_v9},
    {8, "ncclNetPlugin_v8", bind_v8, init_v6, NULL, device_v8, listen_v6, connect_v7, isend_v6,
     irecv_v6},
};

/* ---- loading ---- */

static bool name_is_library(const char *name)
{
    size_t n = strlen(name);

    return n >= 6 && strncmp(name, "lib", 3) == 0 && strcmp(name + n - 3, ".so") == 0;
}

static void why_append(char *why, size_t why_len, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void why_append(char *why, size_t why_len, const char *fmt, ...)
{
    size_t used = strnlen(why, why_len);
    va_list ap;

    if (used >= why_len)
        return;
    va_start(ap, fmt);
    vsnprintf(why + used, why_len - used, fmt, ap);
    va_end(ap);
}

static int plugin_load(struct holmes_plugin *p, const char *name, char *why, size_t why_len)
{
    char longer[512];
    bool bare = !strchr(name, '/') && !name_is_library(name);

    p->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (p->library)
        return 0;
    why_append(why, why_len, "no net plugin '%s': %s", name, dlerror());
    if (!bare)
        return -ENOENT;
    snprintf(longer, sizeof longer, "libnccl-net-%s.so", name);
    p->library = dlopen(longer, RTLD_NOW | RTLD_LOCAL);
    if (p->library)
        return 0;
    why_append(why, why_len, "; %s", dlerror());
    return -ENOENT;
}

static int plugin_find_table(struct holmes_plugin *p, char *why, size_t why_len)
{
    for (size_t i = 0; i < sizeof abis / sizeof *abis; i++) {
        p->table.any = dlsym(p->library, abis[i].symbol);
        if (!p->table.any)
            continue;
        p->abi = &abis[i];
        if (p->abi->bind(p))
            return 0;
        why_append(why, why_len, "%s: %s lacks a function that every plugin must have", p->path,
                   p->abi->symbol);
        return -EINVAL;
    }
    why_append(why, why_len,
               "%s is no net plugin that can be used: it has none of ncclNetPlugin_v12 to _v8",
               p->path);
    return -ENOSYS;
}

static void plugin_note_path(struct holmes_plugin *p, const char *name)
{
    struct link_map *map = NULL;

    snprintf(p->path, sizeof p->path, "%s", name);
    if (dlinfo(p->library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name)
        snprintf(p->path, sizeof p->path, "%s", map->l_name);
}

int holmes_plugin_open(const char *name, struct holmes_plugin **out, char *why, size_t why_len)
{
    struct holmes_plugin *p;
    int rc;

    if (why_len)
        *why = '\0';
    if (!name || !*name || strlen(name) >= 255) {
        why_append(why, why_len, "a net plugin is named by 1 to 254 characters, got '%.40s'",
                   name ? name : "");
        return -EINVAL;
    }
    p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    pthread_mutex_init(&p->init_lock, NULL);
    rc = plugin_load(p, name, why, why_len);
    if (rc)
        goto fail;
    if (why_len)
        *why = '\0'; /* the first of the two names may have failed */
    plugin_note_path(p, name);
    rc = plugin_find_table(p, why, why_len);
    if (rc)
        goto fail;
    *out = p;
    return 0;
fail:
    holmes_plugin_close(p);
    return rc;
}

void holmes_plugin_close(struct holmes_plugin *p)
{
    if (!p)
        return;
    if (p->library)
        dlclose(p->library);
    pthread_mutex_destroy(&p->init_lock);
    free(p);
}

int holmes_plugin_abi(const struct holmes_plugin *p)
{
    return p->abi->version;
}

const char *holmes_plugin_name(const struct holmes_plugin *p)
{
    return *(const char *const *)p->table.any; /* the first member of every version */
}

const char *holmes_plugin_path(const struct holmes_plugin *p)
{
    return p->path;
}

/* ---- calls ---- */

int holmes_plugin_init(struct holmes_plugin *p, uint64_t comm_id, void **ctx)
{
    ncclResult_t r;

    pthread_mutex_lock(&p->init_lock);
    r = p->abi->init(p, comm_id, ctx);
    if (r == ncclSuccess)
        p->initialised = true;
    pthread_mutex_unlock(&p->init_lock);
    return result_errno(r);
}

static void warn_result(struct holmes_plugin *p, const char *call, ncclResult_t r)
{
    const char *name = holmes_plugin_result_name(result_errno(r));

    if (r != ncclSuccess)
        holmes_warn(NET, "plugin %s: %s returned %s (%d)", holmes_plugin_name(p), call,
                    name ? name : "an unknown result", (int)r);
}

void holmes_plugin_fini(struct holmes_plugin *p, void *ctx)
{
    if (!p->abi->fini)
        return;
    pthread_mutex_lock(&p->init_lock);
    warn_result(p, "finalize", p->abi->fini(p, ctx));
    pthread_mutex_unlock(&p->init_lock);
}

int holmes_plugin_devices(struct holmes_plugin *p, int *ndev)
{
    int n = 0;
    int rc = result_errno(p->call.devices(&n));

    if (rc == 0)
        *ndev = n;
    return rc;
}

int holmes_plugin_device(struct holmes_plugin *p, int dev, struct holmes_plugin_device *out)
{
    struct holmes_plugin_device d;
    int rc = result_errno(p->abi->device(p, dev, &d));

    if (rc)
        return rc;
    if (d.max_message == 0 || d.max_message > NCCL_MAX_NET_SIZE_BYTES)
        return -EPROTO; /* NCCL refuses it too */
    *out = d;
    return 0;
}

int holmes_plugin_find_device(struct holmes_plugin *p, const char *name, int *dev,
                              struct holmes_plugin_device *out, int *ndev, char *why,
                              size_t why_len)
{
    struct holmes_plugin_device found;
    char names[256] = "";
    int n = 0, rc = holmes_plugin_devices(p, &n);

    if (rc || n <= 0) {
        snprintf(why, why_len, "%s has no device (%s)", p->path,
                 rc ? holmes_strerror(rc) : "it found 0");
        return rc ? rc : -ENODEV;
    }
    for (int i = 0; i < n; i++) {
        rc = holmes_plugin_device(p, i, &found);
        if (rc) {
            snprintf(why, why_len, "%s does not describe its device %d: %s", p->path, i,
                     holmes_strerror(rc));
            return rc;
        }
        if (!name || strcmp(name, found.name) == 0) {
            *dev = i;
            *out = found;
            *ndev = n;
            return 0;
        }
        why_append(names, sizeof names, "%s%s", i ? ", " : "", found.name);
    }
    snprintf(why, why_len, "no device '%s' in %s; there is %s", name, p->path, names);
    return -ENODEV;
}

int holmes_plugin_listen(struct holmes_plugin *p, void *ctx, int dev, void *handle, void **comm)
{
    void *c = NULL;
    int rc;

    memset(handle, 0, HOLMES_PLUGIN_HANDLE_BYTES);
    rc = result_errno(p->abi->listen(p, ctx, dev, handle, &c));
    if (rc)
        return rc;
    if (!c)
        return -EPROTO;
    *comm = c;
    return 0;
}

int holmes_plugin_connect(struct holmes_plugin *p, void *ctx, int dev, void *handle, void **comm)
{
    void *c = NULL;
    int rc = result_errno(p->abi->connect(p, ctx, dev, handle, &c));

    if (rc)
        return rc;
    if (!c)
        return -EAGAIN;
    *comm = c;
    return 0;
}

int holmes_plugin_accept(struct holmes_plugin *p, void *listen_comm, void **comm)
{
    ncclNetDeviceHandle_v7_t *device = NULL;
    void *c = NULL;
    int rc = result_errno(p->call.accept(listen_comm, &c, &device));

    if (rc)
        return rc;
    if (!c)
        return -EAGAIN;
    *comm = c;
    return 0;
}

void holmes_plugin_close_listen(struct holmes_plugin *p, void *comm)
{
    warn_result(p, "closeListen", p->call.close_listen(comm));
}

void holmes_plugin_close_send(struct holmes_plugin *p, void *comm)
{
    warn_result(p, "closeSend", p->call.close_send(comm));
}

void holmes_plugin_close_recv(struct holmes_plugin *p, void *comm)
{
    warn_result(p, "closeRecv", p->call.close_recv(comm));
}

int holmes_plugin_reg(struct holmes_plugin *p, void *comm, void *data, size_t len, void **mr)
{
    void *h = NULL;
    int rc = result_errno(p->call.reg(comm, data, len, NCCL_PTR_HOST, &h));

    if (rc == 0)
        *mr = h;
    return rc;
}

void holmes_plugin_dereg(struct holmes_plugin *p, void *comm, void *mr)
{
    warn_result(p, "deregMr", p->call.dereg(comm, mr));
}

int holmes_plugin_isend(struct holmes_plugin *p, void *comm, const void *data, size_t len, int tag,
                        void *mr, void **request)
{
    void *r = NULL;
    int rc = result_errno(p->abi->isend(p, comm, (void *)data, len, tag, mr, &r));

    if (rc)
        return rc;
    if (!r)
        return -EAGAIN;
    *request = r;
    return 0;
}

int holmes_plugin_irecv(struct holmes_plugin *p, void *comm, void *data, size_t len, int tag,
                        void *mr, void **request)
{
    void *r = NULL;
    int rc = result_errno(p->abi->irecv(p, comm, data, len, tag, mr, &r));

    if (rc)
        return rc;
    if (!r)
        return -EAGAIN;
    *request = r;
    return 0;
}

int holmes_plugin_test(struct holmes_plugin *p, void *request, bool *done, size_t *len)
{
    int finished = 0, size = 0;
    int rc = result_errno(p->call.test(request, &finished, &size));

    if (rc)
        return rc;
    *done = finished != 0;
    if (*done)
        *len = (size_t)(unsigned int)size;
    return 0;
}
