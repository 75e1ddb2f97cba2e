/* Opens libcuda, the part of CUDA that comes with the kernel driver. Its symbols carry the version
 * of their signature; those named here have been in every driver since CUDA 10.1. */
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "env.h"
#include "log.h"

static const struct {
    const char *name;
    size_t slot;
} symbols[] = {
    {"cuCtxGetCurrent", offsetof(struct cuda_api, ctx_current)},
    {"cuCtxPushCurrent_v2", offsetof(struct cuda_api, ctx_push)},
    {"cuCtxPopCurrent_v2", offsetof(struct cuda_api, ctx_pop)},
    {"cuThreadExchangeStreamCaptureMode", offsetof(struct cuda_api, capture_mode)},
    {"cuMemHostAlloc", offsetof(struct cuda_api, host_alloc)},
    {"cuMemFreeHost", offsetof(struct cuda_api, host_free)},
    {"cuStreamCreate", offsetof(struct cuda_api, stream_create)},
    {"cuStreamDestroy_v2", offsetof(struct cuda_api, stream_destroy)},
    {"cuEventCreate", offsetof(struct cuda_api, event_create)},
    {"cuEventRecord", offsetof(struct cuda_api, event_record)},
    {"cuEventQuery", offsetof(struct cuda_api, event_query)},
    {"cuEventDestroy_v2", offsetof(struct cuda_api, event_destroy)},
    {"cuMemcpyHtoDAsync_v2", offsetof(struct cuda_api, copy_to_device)},
    {"cuMemcpyDtoHAsync_v2", offsetof(struct cuda_api, copy_to_host)},
    {"cuMemcpy3DAsync_v2", offsetof(struct cuda_api, copy_3d)},
    {"cuGetErrorName", offsetof(struct cuda_api, error_name)},
};

static struct cuda_api driver;
static bool driver_found;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct cuda_api *_Atomic replacement;

static void driver_open(void)
{
    const char *path = holmes_env_string(HOLMES_ENV_LIBCUDA);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!handle) {
        const char *error = dlerror();

        holmes_warn(NET,
                    "%s not found (%s): GPU memory cannot go over tcp; install NVIDIA's driver, or "
                    "name its library with HOLMES_LIBCUDA",
                    path, error ? error : "no reason given");
        return;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *fn = dlsym(handle, symbols[i].name);

        if (!fn) {
            holmes_warn(NET, "%s has no %s: GPU memory cannot go over tcp", path, symbols[i].name);
            return; /* never closed: a driver leaves exit hooks behind */
        }
        memcpy((char *)&driver + symbols[i].slot, &fn, sizeof fn);
    }
    driver_found = true;
}

const struct cuda_api *cuda_open(void)
{
    const struct cuda_api *other = atomic_load(&replacement);

    if (other)
        return other;
    pthread_once(&once, driver_open);
    return driver_found ? &driver : NULL;
}

const char *cuda_error(const struct cuda_api *api, int result)
{
    const char *name = NULL;

    return api->error_name(result, &name) == 0 && name ? name : "an unknown CUDA error";
}

void holmes_cuda_override(const struct cuda_api *api)
{
    atomic_store(&replacement, api);
}
