/* One GPU for the process: its queue (a stream that waits for no other but where it follows an
 * operation of a communicator), the workspace, memory, and the first error. Copies from the host go
 * through pinned slots, so that a call which hands over tokens does not wait for the kernels queued
 * before it. The host waits in one way, which ends when the queue stands still for a peer that is
 * dead; so no call of CUDA's may wait by itself. */
#include "runtime.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "gemm.h"
#include "table.h"

#define SLOTS      8
#define SLOT_BYTES ((size_t)256 << 10)
/* Calls that may be queued, in two halves; a call is one to three entries of the driver's queue,
 * which holds 1024 and then makes its callers wait. */
#define AHEAD   256u
#define LOOK_NS 2000000u

struct slot {
    void *memory; /* pinned */
    cudaEvent_t copied;
    bool used;
};

static struct {
    bool open;
    int device;
    cudaStream_t stream;
    void *workspace;
    struct slot slots[SLOTS];
    unsigned next_slot;
    cudaEvent_t end, half; /* of the queue; behind the last AHEAD / 2 calls that are complete */
    unsigned queued;       /* calls */
    int (*look)(void *ctx);
    void *look_ctx;
    char error[200];
} gpu;

void *holmes_cuda_stream(void)
{
    return gpu.stream;
}

void *holmes_cuda_workspace(void)
{
    return gpu.workspace;
}

void holmes_cuda_fail(const char *what, const char *why)
{
    if (!gpu.error[0])
        snprintf(gpu.error, sizeof gpu.error, "%s: %s", what, why);
}

void holmes_cuda_check(const char *what, int error)
{
    if (error != cudaSuccess)
        holmes_cuda_fail(what, cudaGetErrorString((cudaError_t)error));
}

const char *holmes_cuda_error(void)
{
    return gpu.error[0] ? gpu.error : NULL;
}

/* ---- waiting ---- */

void holmes_cuda_on_wait(int (*look)(void *ctx), void *ctx)
{
    gpu.look = look;
    gpu.look_ctx = ctx;
}

/* Until the GPU has come to the event. */
static void wait_for(const char *what, cudaEvent_t event)
{
    uint64_t looked = holmes_now_ns();
    cudaError_t rc;

    while (!gpu.error[0] && (rc = cudaEventQuery(event)) != cudaSuccess) {
        if (rc != cudaErrorNotReady) {
            holmes_cuda_check(what, rc);
            return;
        }
        cudaGetLastError(); /* else the next launch is taken to have failed */
        if (holmes_now_ns() - looked < LOOK_NS)
            continue;
        if (gpu.look && gpu.look(gpu.look_ctx) != 0)
            holmes_cuda_fail(what, "given up, as an operation between ranks failed");
        looked = holmes_now_ns();
    }
}

void holmes_cuda_sync(void)
{
    holmes_cuda_check("the queue", cudaEventRecord(gpu.end, gpu.stream));
    wait_for("the queue", gpu.end);
}

bool holmes_cuda_may_queue(void)
{
    if (++gpu.queued % (AHEAD / 2) == 0) {
        wait_for("the queue", gpu.half);
        holmes_cuda_check("the queue", cudaEventRecord(gpu.half, gpu.stream));
    }
    return !gpu.error[0];
}

/* ---- memory ---- */

void *holmes_cuda_alloc(size_t bytes)
{
    void *p;

    if (cudaMalloc(&p, bytes > 0 ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* no memory is no error of the queue: the caller is told */
        return NULL;
    }
    holmes_cuda_zero(p, bytes);
    return p;
}

void holmes_cuda_free(void *p)
{
    if (p)
        holmes_cuda_check("free", cudaFree(p));
}

void holmes_cuda_zero(void *p, size_t bytes)
{
    if (bytes > 0 && holmes_cuda_may_queue())
        holmes_cuda_check("zero", cudaMemsetAsync(p, 0, bytes, gpu.stream));
}

static bool on_gpu(const void *p)
{
    struct cudaPointerAttributes a;

    if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged;
}

static void copy_from_host(char *to, const char *from, size_t bytes)
{
    while (bytes > 0 && holmes_cuda_may_queue()) {
        struct slot *s = &gpu.slots[gpu.next_slot++ % SLOTS];
        const size_t n = bytes < SLOT_BYTES ? bytes : SLOT_BYTES;

        if (s->used)
            wait_for("copy to the GPU", s->copied);
        if (gpu.error[0])
            return;
        memcpy(s->memory, from, n);
        holmes_cuda_check("copy to the GPU",
                          cudaMemcpyAsync(to, s->memory, n, cudaMemcpyHostToDevice, gpu.stream));
        holmes_cuda_check("copy to the GPU", cudaEventRecord(s->copied, gpu.stream));
        s->used = true;
        to += n;
        from += n;
        bytes -= n;
    }
}

void holmes_cuda_copy(void *to, const void *from, size_t bytes)
{
    const bool to_gpu = on_gpu(to), from_gpu = on_gpu(from);

    if (bytes == 0 || to == from)
        return;
    if (to_gpu && !from_gpu) {
        copy_from_host(to, from, bytes);
        return;
    }
    if (!to_gpu && !from_gpu) {
        memcpy(to, from, bytes);
        return;
    }
    if (!to_gpu)
        holmes_cuda_sync(); /* a copy to the host waits by itself for what is queued before it */
    if (!holmes_cuda_may_queue())
        return;
    holmes_cuda_check("copy", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu.stream));
    if (!to_gpu)
        holmes_cuda_sync();
}

/* ---- life ---- */

static int say(char *why, size_t size, const char *what, cudaError_t error)
{
    cudaGetLastError();
    snprintf(why, size, "%s: %s", what, cudaGetErrorString(error));
    return -1;
}

static int take_device(int local_rank, char *why, size_t size)
{
    struct cudaDeviceProp p;
    int count = 0;
    cudaError_t rc = cudaGetDeviceCount(&count);

    if (rc != cudaSuccess || count == 0)
        return say(why, size, "needs an NVIDIA GPU and its driver, which this machine lacks",
                   rc != cudaSuccess ? rc : cudaErrorNoDevice);
    gpu.device = (local_rank < 0 ? 0 : local_rank) % count;
    rc = cudaSetDevice(gpu.device);
    if (rc == cudaSuccess)
        rc = cudaGetDeviceProperties(&p, gpu.device);
    if (rc != cudaSuccess)
        return say(why, size, "cannot use the GPU", rc);
    if (p.major < 8) {
        snprintf(why, size,
                 "needs a GPU of compute capability 8.0 or later (A100 and after); %s has %d.%d",
                 p.name, p.major, p.minor);
        return -1;
    }
    return 0;
}

static int make_queue(char *why, size_t size)
{
    cudaError_t rc = cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking);

    if (rc == cudaSuccess)
        rc = cudaMalloc(&gpu.workspace, HOLMES_CUDA_WORKSPACE_BYTES);
    if (rc == cudaSuccess)
        rc = cudaEventCreateWithFlags(&gpu.end, cudaEventDisableTiming);
    if (rc == cudaSuccess)
        rc = cudaEventCreateWithFlags(&gpu.half, cudaEventDisableTiming);
    for (int i = 0; i < SLOTS && rc == cudaSuccess; i++) {
        rc = cudaHostAlloc(&gpu.slots[i].memory, SLOT_BYTES, cudaHostAllocDefault);
        if (rc == cudaSuccess)
            rc = cudaEventCreateWithFlags(&gpu.slots[i].copied, cudaEventDisableTiming);
    }
    return rc == cudaSuccess ? 0 : say(why, size, "cannot set up the GPU", rc);
}

__attribute__((visibility("default"))) holmes_cuda_open_fn holmes_kernels_cuda_open;

/* What a failed attempt has taken stays with the process, which then ends. */
const struct holmes_kernels *holmes_kernels_cuda_open(const char *name, size_t table_bytes,
                                                      int local_rank, char *why, size_t size)
{
    const struct holmes_kernels *k = holmes_cuda_table(name);

    if (table_bytes != sizeof *k) {
        snprintf(why, size, "is in a " HOLMES_CUDA_LIBRARY " of another build than this program");
        return NULL;
    }
    if (!k) {
        snprintf(why, size, "is not in " HOLMES_CUDA_LIBRARY);
        return NULL;
    }
    if (gpu.open)
        return k;
    if (take_device(local_rank, why, size) != 0 || make_queue(why, size) != 0 ||
        holmes_cuda_gemm_open(gpu.stream, why, size) != 0)
        return NULL;
    gpu.open = true;
    return k;
}
