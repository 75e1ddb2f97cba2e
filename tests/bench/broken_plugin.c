/* A net plugin that stands before the real one (BENCH_INNER) and misbehaves as BENCH_BREAK says:
 *   die-init, hang-init, refuse-init    in init
 *   die-later, hang-later               at the 40th receive of the process
 *   corrupt                             flips a bit of every received message
 *   leak                                opens a descriptor at every receive
 *   short                               takes messages of 4096 bytes at most
 *   other-thread                        dies when a receive is not posted by the main thread
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_net.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT extern ncclNet_v9_t ncclNetPlugin_v9;
EXPORT ncclNet_v9_t ncclNetPlugin_v9;

static ncclNet_v9_t inner;
static struct {
    void *request;
    unsigned char *data;
} receives[4096];
static int nreceives;

static int breaks(const char *how)
{
    const char *wanted = getenv("BENCH_BREAK");

    return wanted && strcmp(wanted, how) == 0;
}

static ncclResult_t init(ncclDebugLogger_t log)
{
    if (breaks("die-init"))
        raise(SIGKILL);
    while (breaks("hang-init"))
        pause();
    return breaks("refuse-init") ? ncclSystemError : inner.init(log);
}

static ncclResult_t properties(int dev, ncclNetProperties_v9_t *props)
{
    ncclResult_t rc = inner.getProperties(dev, props);

    if (rc == ncclSuccess && breaks("short"))
        props->maxP2pBytes = 4096;
    return rc;
}

static ncclResult_t irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                          void **request)
{
    ncclResult_t rc = inner.irecv(comm, n, data, sizes, tags, mhandles, request);

    if (rc != ncclSuccess || !*request)
        return rc;
    nreceives++;
    if (breaks("leak"))
        open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (breaks("other-thread") && gettid() != getpid())
        raise(SIGKILL);
    if (nreceives == 40 && breaks("die-later"))
        raise(SIGKILL);
    while (nreceives == 40 && breaks("hang-later"))
        pause();
    for (size_t i = 0; i < sizeof receives / sizeof receives[0]; i++) {
        if (!receives[i].request) {
            receives[i].request = *request;
            receives[i].data = sizes[0] ? data[0] : NULL;
            break;
        }
    }
    return rc;
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
    ncclResult_t rc = inner.test(request, done, sizes);

    for (size_t i = 0; i < sizeof receives / sizeof receives[0] && *done; i++) {
        if (receives[i].request != request)
            continue;
        if (receives[i].data && breaks("corrupt"))
            receives[i].data[0] ^= 1;
        receives[i].request = NULL;
    }
    return rc;
}

static __attribute__((constructor)) void load(void)
{
    const char *path = getenv("BENCH_INNER");
    void *lib = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const ncclNet_v9_t *table = lib ? dlsym(lib, "ncclNetPlugin_v9") : NULL;

    if (!table) {
        fprintf(stderr, "broken plugin: BENCH_INNER: %s\n", path ? dlerror() : "unset");
        return;
    }
    inner = *table;
    ncclNetPlugin_v9 = inner;
    ncclNetPlugin_v9.init = init;
    ncclNetPlugin_v9.getProperties = properties;
    ncclNetPlugin_v9.irecv = irecv;
    ncclNetPlugin_v9.test = test;
}
