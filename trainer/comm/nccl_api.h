/* The calls of NCCL and of the CUDA driver that comm_nccl.c makes, in our own words: both libraries
 * are opened at run time, and neither's headers are needed to build. tests/trainer compares this
 * with nccl.h where there is one.
 *
 * CUDA's handles are pointers, its results ints with 0 for success.
 */
#ifndef HOLMES_NCCL_API_H
#define HOLMES_NCCL_API_H

#include <stddef.h>
#include <stdint.h>

enum { HOLMES_NCCL_SUCCESS = 0, HOLMES_NCCL_REMOTE_ERROR = 6, HOLMES_NCCL_IN_PROGRESS = 7 };
enum { HOLMES_NCCL_INT8 = 0, HOLMES_NCCL_FLOAT32 = 7, HOLMES_NCCL_BFLOAT16 = 9 };
enum { HOLMES_NCCL_SUM = 0 };

#define HOLMES_NCCL_ID_BYTES 128

struct holmes_nccl_id {
    char bytes[HOLMES_NCCL_ID_BYTES];
};

/* ncclConfig_t as NCCL 2.14 had it. Later ones, read up to 2.30, copy what its size says over their
 * defaults, and again take the default of what came after its version: the padding lies where 2.17
 * has a number. */
struct holmes_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
#define HOLMES_NCCL_CONFIG_MAGIC   0xcafebeefu
#define HOLMES_NCCL_CONFIG_VERSION 21400u

#define HOLMES_CUDA_NOT_READY       600
#define HOLMES_CUDA_STREAM_NONBLOCK 1u
#define HOLMES_CUDA_EVENT_NO_TIMING 2u
#define HOLMES_CUDA_POINTER_TYPE    2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define HOLMES_CUDA_MEMORY_DEVICE   2

struct holmes_nccl_api {
    int (*GetVersion)(int *version);
    const char *(*GetErrorString)(int result);
    int (*GetUniqueId)(struct holmes_nccl_id *id);
    int (*CommInitRankConfig)(void **comm, int size, struct holmes_nccl_id id, int rank,
                              struct holmes_nccl_config *config);
    int (*CommGetAsyncError)(void *comm, int *result);
    int (*CommFinalize)(void *comm);
    int (*CommDestroy)(void *comm);
    int (*CommAbort)(void *comm);
    int (*AllReduce)(const void *in, void *out, size_t count, int type, int op, void *comm,
                     void *stream);
    int (*ReduceScatter)(const void *in, void *out, size_t count, int type, int op, void *comm,
                         void *stream);
    int (*AllGather)(const void *in, void *out, size_t count, int type, void *comm, void *stream);
    int (*Broadcast)(const void *in, void *out, size_t count, int type, int root, void *comm,
                     void *stream);
    int (*Send)(const void *buf, size_t count, int type, int peer, void *comm, void *stream);
    int (*Recv)(void *buf, size_t count, int type, int peer, void *comm, void *stream);
};

struct holmes_cuda_driver {
    int (*init)(unsigned flags);
    int (*ctx_current)(void **ctx);
    int (*ctx_set)(void *ctx);
    int (*device_count)(int *n);
    int (*device)(int *device, int ordinal);
    int (*primary_ctx)(void **ctx, int device);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream, void *event, unsigned flags);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_destroy)(void *event);
    int (*elapsed)(float *ms, void *from, void *to); /* of events that have happened */
    int (*pointer)(void *value, int attribute, uint64_t p);
    int (*mem_alloc)(uint64_t *p, size_t bytes);
    int (*mem_free)(uint64_t p);
    int (*copy_in)(uint64_t to, const void *from, size_t bytes); /* both are done on return */
    int (*copy_out)(void *to, uint64_t from, size_t bytes);
    int (*error_name)(int result, const char **name);
};

/* Both stay open for the life of the process. 0, or -ELIBACC / -ENOSYS with a sentence in `why`. */
int holmes_nccl_api_open(const char *path, struct holmes_nccl_api *out, char *why, size_t size);
int holmes_cuda_driver_open(const char *path, struct holmes_cuda_driver *out, char *why,
                            size_t size);

#endif
