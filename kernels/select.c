/* Finds a table by name, and holds the memory calls of the tables that run on the host. Tables for
 * GPUs are in a library that is opened when one is asked for: the program itself starts on machines
 * that have neither CUDA nor a driver. */
#include "backends.h"
#include "cuda/table.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Fastest first. */
static const struct holmes_kernels *const backends[] = {&holmes_kernels_cpu, &holmes_kernels_ref};

static pthread_once_t threads_once = PTHREAD_ONCE_INIT;

/* OpenBLAS would start with a thread per core. */
static void start_with_one_thread(void)
{
    holmes_kernels_cpu_set_threads(1);
}

const struct holmes_kernels *holmes_kernels_find(const char *name)
{
    pthread_once(&threads_once, start_with_one_thread);
    if (!name)
        return backends[0];
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

/* Of the tables for GPUs, what is known without one. */
static const struct holmes_kernels gpu_sizes[] = {
    {.name = "cuda",
     .dtype = HOLMES_FLOAT32,
     .free = free,
     .attention_scratch = holmes_cuda_attention_scratch},
    {.name = "cuda-bf16",
     .dtype = HOLMES_BFLOAT16,
     .free = free,
     .attention_scratch = holmes_cuda_attention_scratch},
};

const struct holmes_kernels *holmes_kernels_sizes(const char *name)
{
    for (size_t i = 0; name && i < sizeof gpu_sizes / sizeof gpu_sizes[0]; i++)
        if (strcmp(gpu_sizes[i].name, name) == 0)
            return &gpu_sizes[i];
    return holmes_kernels_find(name);
}

static bool needs_gpu(const char *name)
{
    return strcmp(name, "cuda") == 0 || strcmp(name, "cuda-bf16") == 0;
}

bool holmes_kernels_known(const char *name)
{
    return needs_gpu(name) || holmes_kernels_find(name);
}

/* Where it lies in a build folder, beside the program's; installed; or where the loader looks. */
static void *open_library(char *why, size_t size)
{
    const char *places[] = {"/../kernels/cuda/", "/../../kernels/cuda/", NULL};
    char program[PATH_MAX], path[PATH_MAX + 64];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    void *library;

    for (int i = 0; n > 0 && places[i]; i++) {
        program[n] = '\0';
        snprintf(path, sizeof path, "%s%s" HOLMES_CUDA_LIBRARY, dirname(program), places[i]);
        if (access(path, F_OK) != 0)
            continue;
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            snprintf(why, size, "cannot be opened: %s", dlerror());
        return library;
    }
    library = dlopen(HOLMES_LIBDIR "/" HOLMES_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen(HOLMES_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        snprintf(why, size,
                 "needs " HOLMES_CUDA_LIBRARY ", which a build with CUDA (-Dcuda=enabled) makes: "
                 "%s",
                 dlerror());
    return library;
}

const struct holmes_kernels *holmes_kernels_open(const char *name, int local_rank, char *why,
                                                 size_t why_size)
{
    const struct holmes_kernels *k = NULL;
    char reason[600] = "";
    void *library;

    if (!name || !needs_gpu(name)) {
        k = holmes_kernels_find(name);
        if (!k)
            snprintf(why, why_size, "\"%s\": %s are right", name, holmes_kernels_names());
        return k;
    }
    library = open_library(reason, sizeof reason);
    if (library) {
        holmes_cuda_open_fn *open_tables = (holmes_cuda_open_fn *)dlsym(library, HOLMES_CUDA_OPEN);

        if (open_tables)
            k = open_tables(name, sizeof *k, local_rank, reason, sizeof reason);
        else
            snprintf(reason, sizeof reason, "is no library of Holmes: it has no " HOLMES_CUDA_OPEN);
    }
    if (!k)
        snprintf(why, why_size, "\"%s\" %s", name, reason);
    return k;
}

const char *holmes_kernels_names(void)
{
    return "cpu, ref, cuda, cuda-bf16";
}

void holmes_kernels_set_threads(int threads)
{
    pthread_once(&threads_once, start_with_one_thread);
    holmes_kernels_cpu_set_threads(threads < 1 ? 1 : threads);
}

/* Large pages: a product reads its operands across rows, a page each, and the core remembers where
 * few thousands of small ones are. */
#define HUGE_PAGE ((size_t)2 << 20)

void *holmes_host_alloc(size_t bytes)
{
    const size_t align = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
    void *p;

    if (bytes > SIZE_MAX - align || posix_memalign(&p, align, bytes > 0 ? bytes : align) != 0)
        return NULL;
    if (align == HUGE_PAGE)
        madvise(p, bytes, MADV_HUGEPAGE); /* without them it is only slower */
    memset(p, 0, bytes);
    return p;
}

void holmes_host_zero(void *p, size_t bytes)
{
    memset(p, 0, bytes);
}

void holmes_host_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void holmes_host_convert(void *real, const float *w, size_t n)
{
    if (real != w && n > 0)
        memcpy(real, w, n * sizeof *w);
}

/* Calls of these tables are done when they return. */
void holmes_host_sync(void)
{
}

void holmes_host_on_wait(int (*look)(void *ctx), void *ctx)
{
    (void)look, (void)ctx;
}

void *holmes_host_stream(void)
{
    return NULL;
}

const char *holmes_host_error(void)
{
    return NULL;
}
