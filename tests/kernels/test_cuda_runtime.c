/* kernels/cuda/runtime.c over a CUDA runtime of this file, whose queue goes on by an entry each
 * time it is asked for an event, or stands still: how far the host runs ahead, and that none of its
 * waits is without end. */
#include <criterion/criterion.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"
#include "runtime.h"
#include "table.h"

static struct {
    unsigned long queued, done; /* entries of the queue */
    unsigned long most;         /* that were queued and not done */
    bool stands_still;
    cudaError_t last;
    char *base; /* of the only block of memory */
    size_t bytes;
} fake;

static cudaError_t queue(void)
{
    fake.queued++;
    if (fake.queued - fake.done > fake.most)
        fake.most = fake.queued - fake.done;
    return cudaSuccess;
}

/* ---- the runtime ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    memset(p, 0, sizeof *p);
    p->major = 9;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = NULL;
    return cudaSuccess;
}

/* The workspace, and then what tests ask for. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = fake.base = malloc(bytes);
    fake.bytes = bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    *p = malloc(bytes);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(unsigned long)); /* the entry that is last before it */
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)stream;
    *(unsigned long *)event = fake.queued;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (fake.done >= *(unsigned long *)event)
        return cudaSuccess;
    fake.done += !fake.stands_still;
    return fake.last = cudaErrorNotReady;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t last = fake.last;

    fake.last = cudaSuccess;
    return last;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNotReady ? "not ready" : "an error";
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    memset(p, value, bytes);
    return queue();
}

/* To the host it waits by itself, and where the queue stands still for ever. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)stream;
    if (kind == cudaMemcpyDefault)
        cr_assert_eq(fake.done, fake.queued, "a copy to the host would wait");
    memcpy(to, from, bytes);
    return queue();
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    const bool ours = (const char *)p >= fake.base && (const char *)p < fake.base + fake.bytes;

    memset(a, 0, sizeof *a);
    a->type = ours ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

/* ---- what runtime.c opens ---- */

int holmes_cuda_gemm_open(void *stream, char *why, size_t size)
{
    (void)stream, (void)why, (void)size;
    return 0;
}

const struct holmes_kernels *holmes_cuda_table(const char *name)
{
    return holmes_kernels_find(name);
}

holmes_cuda_open_fn holmes_kernels_cuda_open;

/* ---- tests ---- */

static void set_up(void)
{
    char why[200] = "";

    cr_assert_not_null(
        holmes_kernels_cuda_open("ref", sizeof(struct holmes_kernels), 0, why, sizeof why), "%s",
        why);
}

TestSuite(cuda_runtime, .init = set_up, .timeout = 60);

Test(cuda_runtime, the_host_runs_ahead_so_far_and_no_further)
{
    for (int i = 0; i < 5000; i++)
        if (holmes_cuda_may_queue())
            queue();
    cr_expect_eq(fake.queued, 5000);
    cr_expect_leq(fake.most, 256, "%lu", fake.most);
    cr_expect_geq(fake.most, 128, "%lu", fake.most);
    holmes_cuda_sync();
    cr_expect_eq(fake.done, fake.queued);
    cr_expect_eq(cudaGetLastError(), cudaSuccess, "a launch would be taken to have failed");
    cr_expect_null(holmes_cuda_error());
}

Test(cuda_runtime, copies_come_through)
{
    char *memory = holmes_cuda_alloc(3 << 20), *host = malloc(3 << 20), *back = malloc(3 << 20);

    for (int i = 0; i < 3 << 20; i++)
        host[i] = (char)(i * 7);
    holmes_cuda_copy(memory, host, 3 << 20);
    holmes_cuda_copy(back, memory, 3 << 20);
    cr_expect_eq(memcmp(host, back, 3 << 20), 0);
    cr_expect_null(holmes_cuda_error());
    holmes_cuda_free(memory);
    free(host);
    free(back);
}

static int asked;

static int fails_later(void *ctx)
{
    (void)ctx;
    return ++asked == 3;
}

/* The queue follows an operation that will not come. */
static char *stand_still(size_t bytes)
{
    char *memory = holmes_cuda_alloc(bytes);

    holmes_cuda_sync();
    holmes_cuda_on_wait(fails_later, NULL);
    fake.stands_still = true;
    return memory;
}

static void expect_given_up(void)
{
    const unsigned long queued = fake.queued;

    cr_expect_eq(asked, 3, "%d", asked);
    cr_assert_not_null(holmes_cuda_error());
    cr_expect_not_null(strstr(holmes_cuda_error(), "given up"), "%s", holmes_cuda_error());
    cr_expect_not(holmes_cuda_may_queue());
    holmes_cuda_zero(fake.base, 1);
    holmes_cuda_sync();
    cr_expect_eq(fake.queued, queued, "nothing is queued after an error");
    cr_expect_eq(asked, 3, "nor waited for");
}

Test(cuda_runtime, a_copy_to_the_host_gives_up)
{
    char *memory = stand_still(64), host = 7;

    holmes_cuda_zero(memory, 64);
    holmes_cuda_copy(&host, memory, 1);
    cr_expect_eq(host, 7);
    expect_given_up();
}

Test(cuda_runtime, a_copy_from_the_host_that_finds_no_slot_gives_up)
{
    char *memory = stand_still(64);
    const char host = 1;

    for (int i = 0; i < 8; i++)
        holmes_cuda_copy(memory, &host, 1);
    cr_expect_eq(asked, 0, "there are as many");
    holmes_cuda_copy(memory, &host, 1);
    expect_given_up();
}

Test(cuda_runtime, a_call_that_would_run_too_far_ahead_gives_up)
{
    char *memory = stand_still(64);

    for (int i = 0; i < 400 && !holmes_cuda_error(); i++)
        holmes_cuda_zero(memory, 64);
    cr_expect_leq(fake.queued - fake.done, 256);
    expect_given_up();
}
