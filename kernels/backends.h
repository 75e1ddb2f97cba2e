/* The tables that select.c chooses from, and the memory calls that tables on the host share. */
#ifndef HOLMES_BACKENDS_H
#define HOLMES_BACKENDS_H

#include "kernels.h"

extern const struct holmes_kernels holmes_kernels_ref;
extern const struct holmes_kernels holmes_kernels_cpu;

void holmes_kernels_cpu_set_threads(int threads);

void *holmes_host_alloc(size_t bytes);
void holmes_host_zero(void *p, size_t bytes);
void holmes_host_copy(void *to, const void *from, size_t bytes);
void holmes_host_convert(void *real, const float *w, size_t n); /* float32; real may be w */
void holmes_host_sync(void);
void holmes_host_on_wait(int (*look)(void *ctx), void *ctx);
void *holmes_host_stream(void);
const char *holmes_host_error(void);

#endif
