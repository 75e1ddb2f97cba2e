/* Finds a table by name, and holds the memory calls of the tables that run on the host. Another
 * table (cuda) is one more entry of `backends`. */
#include "backends.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Fastest first. */
static const struct holmes_kernels *const backends[] = {&holmes_kernels_cpu, &holmes_kernels_ref};

static int kernel_threads = 1;

const struct holmes_kernels *holmes_kernels_find(const char *name)
{
    /* OpenBLAS would start with a thread per core. */
    holmes_kernels_cpu_set_threads(kernel_threads);
    if (!name)
        return backends[0];
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

const char *holmes_kernels_names(void)
{
    return "cpu, ref";
}

void holmes_kernels_set_threads(int threads)
{
    kernel_threads = threads < 1 ? 1 : threads;
    holmes_kernels_cpu_set_threads(kernel_threads);
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

void *holmes_host_stream(void)
{
    return NULL;
}
