/* The few calls of the CUDA driver that staging needs, behind a table: opened at run time, so that
 * the library loads on machines without a GPU, and replaced by tests. Nothing here synchronises
 * with the device.
 *
 * Types are CUDA's in our words: handles are pointers, a result is an int and 0 is success.
 */
#ifndef HOLMES_CUDA_H
#define HOLMES_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_NOT_READY       600 /* of event_query */
#define CUDA_HOST_PORTABLE   1u  /* pinned for every context of the process */
#define CUDA_STREAM_NONBLOCK 1u  /* does not wait for the legacy default stream */
#define CUDA_EVENT_NO_TIMING 2u
#define CUDA_CAPTURE_RELAXED 2 /* no part in a graph capture of other threads */
#define CUDA_MEMORY_HOST     1
#define CUDA_MEMORY_DEVICE   2

/* CUDA_MEMCPY3D: `depth` slices of `height` rows of `width` bytes. */
struct cuda_copy_side {
    size_t x_bytes, y, z, lod;
    int memory_type;
    void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch;  /* bytes from row to row */
    size_t height; /* rows from slice to slice */
};
struct cuda_copy3d {
    struct cuda_copy_side src, dst;
    size_t width, height, depth;
};
_Static_assert(sizeof(struct cuda_copy_side) == 88 && sizeof(struct cuda_copy3d) == 200,
               "CUDA_MEMCPY3D of the 64-bit driver");

struct cuda_api {
    int (*ctx_current)(void **ctx);
    int (*ctx_push)(void *ctx);
    int (*ctx_pop)(void **ctx);
    int (*capture_mode)(int *mode); /* of the thread; exchanged */
    int (*host_alloc)(void **p, size_t len, unsigned flags);
    int (*host_free)(void *p);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_destroy)(void *event);
    int (*copy_to_device)(uint64_t dst, const void *src, size_t len, void *stream);
    int (*copy_to_host)(void *dst, uint64_t src, size_t len, void *stream);
    int (*copy_3d)(const struct cuda_copy3d *copy, void *stream);
    int (*error_name)(int result, const char **name);
};

/* The driver, opened at the first call; NULL when it cannot be, after one log line that says why.
 * Thread safe. */
const struct cuda_api *cuda_open(void);

/* "CUDA_ERROR_..." */
const char *cuda_error(const struct cuda_api *api, int result);

/* For tests: what cuda_open gives from now on; NULL restores. */
void holmes_cuda_override(const struct cuda_api *api);

#endif
