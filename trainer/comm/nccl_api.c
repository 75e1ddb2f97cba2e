/* Opens NCCL and the CUDA driver and looks up what nccl_api.h lists. */
#include "nccl_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

struct symbol {
    const char *name;
    size_t at; /* of the function pointer in the table */
};

static int load(const char *path, const char *what, const struct symbol *symbols, size_t n,
                void *table, char *why, size_t size)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        snprintf(why, size, "%s is not here: %s", what, dlerror());
        return -ELIBACC;
    }
    for (size_t i = 0; i < n; i++) {
        void *f = dlsym(library, symbols[i].name);

        if (!f) {
            snprintf(why, size, "%s (%s) has no %s: it is too old", what, path, symbols[i].name);
            return -ENOSYS;
        }
        *(void **)((char *)table + symbols[i].at) = f;
    }
    return 0;
}

#define NCCL(name)                                                                                 \
    {                                                                                              \
        "nccl" #name, offsetof(struct holmes_nccl_api, name)                                       \
    }
#define CUDA(slot, name)                                                                           \
    {                                                                                              \
        name, offsetof(struct holmes_cuda_driver, slot)                                            \
    }

int holmes_nccl_api_open(const char *path, struct holmes_nccl_api *out, char *why, size_t size)
{
    static const struct symbol symbols[] = {NCCL(GetVersion),
                                            NCCL(GetErrorString),
                                            NCCL(GetUniqueId),
                                            NCCL(CommInitRankConfig),
                                            NCCL(CommGetAsyncError),
                                            NCCL(CommFinalize),
                                            NCCL(CommDestroy),
                                            NCCL(CommAbort),
                                            NCCL(AllReduce),
                                            NCCL(ReduceScatter),
                                            NCCL(AllGather),
                                            NCCL(Broadcast),
                                            NCCL(Send),
                                            NCCL(Recv)};

    return load(path, "NCCL", symbols, sizeof symbols / sizeof symbols[0], out, why, size);
}

int holmes_cuda_driver_open(const char *path, struct holmes_cuda_driver *out, char *why,
                            size_t size)
{
    static const struct symbol symbols[] = {CUDA(init, "cuInit"),
                                            CUDA(ctx_current, "cuCtxGetCurrent"),
                                            CUDA(ctx_set, "cuCtxSetCurrent"),
                                            CUDA(device_count, "cuDeviceGetCount"),
                                            CUDA(device, "cuDeviceGet"),
                                            CUDA(primary_ctx, "cuDevicePrimaryCtxRetain"),
                                            CUDA(stream_create, "cuStreamCreate"),
                                            CUDA(stream_destroy, "cuStreamDestroy_v2"),
                                            CUDA(stream_wait, "cuStreamWaitEvent"),
                                            CUDA(event_create, "cuEventCreate"),
                                            CUDA(event_record, "cuEventRecord"),
                                            CUDA(event_query, "cuEventQuery"),
                                            CUDA(event_destroy, "cuEventDestroy_v2"),
                                            CUDA(elapsed, "cuEventElapsedTime"),
                                            CUDA(pointer, "cuPointerGetAttribute"),
                                            CUDA(mem_alloc, "cuMemAlloc_v2"),
                                            CUDA(mem_free, "cuMemFree_v2"),
                                            CUDA(copy_in, "cuMemcpyHtoD_v2"),
                                            CUDA(copy_out, "cuMemcpyDtoH_v2"),
                                            CUDA(error_name, "cuGetErrorName")};

    return load(path, "the CUDA driver", symbols, sizeof symbols / sizeof symbols[0], out, why,
                size);
}
