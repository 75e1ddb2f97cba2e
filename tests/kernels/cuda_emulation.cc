/* Runs a block's threads as fibers, and has a host's memory and three loops in place of the CUDA
 * runtime and cuBLAS. */
#include "cuda_emulation.h"

#include "cuda_emulated.h"
#include "gemm.h"
#include "runtime.h"
#include "table.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#define THREADS_MAX 1024
#define STACK_BYTES (192 << 10)
#define LANES       32
#define SLOT_BYTES  64

dim3 gridDim, blockDim, blockIdx, threadIdx;

/* Waits until all of its members have come. */
struct barrier {
    unsigned members, come, passed;
};

struct thread {
    ucontext_t context;
    unsigned char *stack;
    void *fake_stack; /* the address sanitizer's */
    jmp_buf jump;
    bool started, ended;
};

static struct {
    struct thread threads[THREADS_MAX], *running;
    unsigned order[THREADS_MAX];
    ucontext_t scheduler;
    jmp_buf scheduler_jump;
    void *scheduler_fake_stack;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    struct barrier block, warps[THREADS_MAX / LANES];
    alignas(16) unsigned char slots[THREADS_MAX][SLOT_BYTES];
    unsigned char *shared;
    const std::function<void(void)> *kernel;
    int wanted;
    uint64_t shuffle;
    bool moved; /* something happened in this round over the threads */
} gpu;

static void die(const char *why)
{
    fprintf(stderr, "emulated GPU: block (%u,%u), thread %u: %s\n", blockIdx.x, blockIdx.y,
            threadIdx.x, why);
    abort();
}

/* ---- fibers ---- */

#if defined __SANITIZE_ADDRESS__

static void enter(struct thread *t)
{
    gpu.running = t;
    threadIdx = dim3((unsigned)(t - gpu.threads));
    __sanitizer_start_switch_fiber(&gpu.scheduler_fake_stack, t->stack, STACK_BYTES);
    swapcontext(&gpu.scheduler, &t->context);
    __sanitizer_finish_switch_fiber(gpu.scheduler_fake_stack, NULL, NULL);
}

static void leave(bool for_good)
{
    struct thread *t = gpu.running;

    __sanitizer_start_switch_fiber(for_good ? NULL : &t->fake_stack, gpu.scheduler_stack,
                                   gpu.scheduler_stack_bytes);
    swapcontext(&t->context, &gpu.scheduler);
    __sanitizer_finish_switch_fiber(t->fake_stack, &gpu.scheduler_stack,
                                    &gpu.scheduler_stack_bytes);
}

static void entered(void)
{
    __sanitizer_finish_switch_fiber(NULL, &gpu.scheduler_stack, &gpu.scheduler_stack_bytes);
}

#else

/* swapcontext asks the kernel for the signal mask each time, which would be most of the time. */
static void enter(struct thread *t)
{
    gpu.running = t;
    threadIdx = dim3((unsigned)(t - gpu.threads));
    if (_setjmp(gpu.scheduler_jump) != 0)
        return;
    if (t->started)
        _longjmp(t->jump, 1);
    t->started = true;
    setcontext(&t->context);
}

static void leave(bool for_good)
{
    (void)for_good;
    if (_setjmp(gpu.running->jump) == 0)
        _longjmp(gpu.scheduler_jump, 1);
}

static void entered(void)
{
}

#endif

static void fiber_main(void)
{
    entered();
    (*gpu.kernel)();
    gpu.running->ended = gpu.moved = true;
    leave(true);
}

static void thread_start(struct thread *t)
{
    if (!t->stack)
        t->stack = (unsigned char *)malloc(STACK_BYTES);
    t->started = t->ended = false;
    t->fake_stack = NULL;
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = STACK_BYTES;
    t->context.uc_link = NULL;
    makecontext(&t->context, fiber_main, 0);
}

static void barrier_wait(struct barrier *b)
{
    const unsigned at = b->passed;

    gpu.moved = true;
    if (++b->come == b->members) {
        b->come = 0;
        b->passed++;
        return;
    }
    while (b->passed == at)
        leave(false);
}

void __syncthreads(void)
{
    barrier_wait(&gpu.block);
}

void __syncwarp(void)
{
    barrier_wait(&gpu.warps[threadIdx.x / LANES]);
}

/* ---- within a warp ---- */

void emulated_exchange(void *all, const void *mine, size_t bytes)
{
    const unsigned first = threadIdx.x / LANES * LANES;

    if (bytes > SLOT_BYTES)
        die("too much to exchange");
    memcpy(gpu.slots[threadIdx.x], mine, bytes);
    __syncwarp();
    for (unsigned i = 0; i < LANES; i++)
        memcpy((unsigned char *)all + i * bytes, gpu.slots[first + i], bytes);
    __syncwarp();
}

unsigned __ballot_sync(unsigned lanes, int predicate)
{
    const unsigned char mine = predicate != 0;
    unsigned char all[LANES];
    unsigned bits = 0;

    (void)lanes;
    emulated_exchange(all, &mine, 1);
    for (unsigned i = 0; i < LANES; i++)
        bits |= (unsigned)all[i] << i;
    return bits;
}

static float half_of(uint32_t pair, int i)
{
    return __bfloat162float((__nv_bfloat16){(uint16_t)(pair >> 16 * i)});
}

void emulated_mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    uint32_t all[LANES][6];
    float A[16][16], B[16][8];
    const int g = (int)threadIdx.x % LANES / 4, t = (int)threadIdx.x % 4;

    emulated_exchange(all, mine, sizeof mine);
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < 8; i++)
            A[lane / 4 + (i / 2 % 2) * 8][lane % 4 * 2 + i % 2 + (i / 4) * 8] =
                half_of(all[lane][i / 2], i % 2);
        for (int i = 0; i < 4; i++)
            B[lane % 4 * 2 + i % 2 + (i / 2) * 8][lane / 4] = half_of(all[lane][4 + i / 2], i % 2);
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++)
            c[i] += A[g + (i / 2) * 8][k] * B[k][2 * t + i % 2];
}

/* ---- launches ---- */

void emulated_order(int order)
{
    gpu.wanted = order;
    gpu.shuffle = 1;
}

static void make_order(unsigned *order, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        order[i] = gpu.wanted == EMULATED_ORDER_BACKWARD ? n - 1 - i : i;
    for (unsigned i = n - 1; i > 0 && gpu.wanted == EMULATED_ORDER_SHUFFLED; i--) {
        gpu.shuffle = gpu.shuffle * 6364136223846793005u + 1442695040888963407u;
        const unsigned j = (unsigned)((gpu.shuffle >> 33) % (i + 1)), held = order[i];

        order[i] = order[j];
        order[j] = held;
    }
}

static void run_block(size_t shared_bytes)
{
    const unsigned n = blockDim.x;
    unsigned left = n;

    memset(gpu.shared, 0xff, shared_bytes); /* NaN in both types */
    gpu.block = (struct barrier){n, 0, 0};
    for (unsigned i = 0; i < n / LANES; i++)
        gpu.warps[i] = (struct barrier){LANES, 0, 0};
    for (unsigned i = 0; i < n; i++)
        thread_start(&gpu.threads[i]);
    make_order(gpu.order, n);
    while (left > 0) {
        gpu.moved = false;
        for (unsigned i = 0; i < n; i++) {
            struct thread *t = &gpu.threads[gpu.order[i]];

            if (t->ended)
                continue;
            enter(t);
            left -= t->ended;
        }
        if (!gpu.moved)
            die("waits at a barrier that others never reach");
    }
}

void emulated_launch(dim3 grid, dim3 block, size_t shared_bytes,
                     const std::function<void(void)> &kernel)
{
    const unsigned blocks = grid.x * grid.y;
    unsigned *order = (unsigned *)malloc(blocks * sizeof *order);

    if (block.x == 0 || block.x % LANES != 0 || block.x > THREADS_MAX || blocks == 0 ||
        grid.y > 65535)
        die("no such launch is possible");
    gridDim = grid;
    blockDim = block;
    gpu.kernel = &kernel;
    /* Its own size, so that a sanitizer sees what lies beyond it. */
    gpu.shared = (unsigned char *)aligned_alloc(16, (shared_bytes + 16) / 16 * 16);
    make_order(order, blocks);
    for (unsigned i = 0; i < blocks; i++) {
        blockIdx = dim3(order[i] % grid.x, order[i] / grid.x);
        run_block(shared_bytes);
    }
    free(gpu.shared);
    free(order);
}

unsigned char *emulated_shared(void)
{
    return gpu.shared;
}

/* ---- runtime.h ---- */

static char first_error[160];

void *holmes_cuda_stream(void)
{
    return NULL;
}

void *holmes_cuda_workspace(void)
{
    static void *workspace = malloc(HOLMES_CUDA_WORKSPACE_BYTES);

    memset(workspace, 0xff, 256 << 10); /* nothing of the call before is used */
    return workspace;
}

void holmes_cuda_fail(const char *what, const char *why)
{
    if (!first_error[0])
        snprintf(first_error, sizeof first_error, "%s: %s", what, why);
}

const char *holmes_cuda_error(void)
{
    return first_error[0] ? first_error : NULL;
}

const struct holmes_kernels *emulated_table(const char *name)
{
    return holmes_cuda_table(name);
}

void emulated_forget_error(void)
{
    first_error[0] = '\0';
}

void *holmes_cuda_alloc(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);

    return p ? memset(p, 0, bytes) : NULL;
}

void holmes_cuda_free(void *p)
{
    free(p);
}

void holmes_cuda_zero(void *p, size_t bytes)
{
    memset(p, 0, bytes);
}

void holmes_cuda_copy(void *to, const void *from, size_t bytes)
{
    memmove(to, from, bytes);
}

void holmes_cuda_sync(void)
{
}

void holmes_cuda_on_wait(int (*look)(void *ctx), void *ctx)
{
    (void)look, (void)ctx;
}

/* ---- gemm.h ---- */

static float at(const void *x, size_t i, enum holmes_dtype type)
{
    return type == HOLMES_FLOAT32 ? ((const float *)x)[i]
                                  : __bfloat162float(((const __nv_bfloat16 *)x)[i]);
}

static void put(void *x, size_t i, double value, enum holmes_dtype type)
{
    if (type == HOLMES_FLOAT32)
        ((float *)x)[i] = (float)value;
    else
        ((__nv_bfloat16 *)x)[i] = __float2bfloat16_rn((float)value);
}

/* Nothing fused: what a library may leave to matmul.cu is all left to it. */
enum holmes_gemm_fused holmes_cuda_gemm_forward(void *out, void *pre, const void *in,
                                                const void *weight, const void *, int N, int C,
                                                int OC, enum holmes_dtype type)
{
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) {
            double sum = 0;

            for (int c = 0; c < C; c++)
                sum +=
                    (double)at(in, (size_t)n * C + c, type) * at(weight, (size_t)o * C + c, type);
            put(pre ? pre : out, (size_t)n * OC + o, sum, type);
        }
    }
    return HOLMES_GEMM_PLAIN;
}

void holmes_cuda_gemm_backward_input(void *din, const void *dout, const void *weight, int N, int C,
                                     int OC, enum holmes_dtype type)
{
    for (int n = 0; n < N; n++) {
        for (int c = 0; c < C; c++) {
            double sum = 0;

            for (int o = 0; o < OC; o++)
                sum += (double)at(dout, (size_t)n * OC + o, type) *
                       at(weight, (size_t)o * C + c, type);
            put(din, (size_t)n * C + c, sum, type);
        }
    }
}

void holmes_cuda_gemm_backward_weight(float *dweight, const void *dout, const void *in, int N,
                                      int C, int OC, enum holmes_dtype type)
{
    for (int o = 0; o < OC; o++) {
        for (int c = 0; c < C; c++) {
            double sum = 0;

            for (int n = 0; n < N; n++)
                sum += (double)at(dout, (size_t)n * OC + o, type) * at(in, (size_t)n * C + c, type);
            dweight[(size_t)o * C + c] += (float)sum;
        }
    }
}
