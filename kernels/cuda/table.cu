/* The tables `cuda` and `cuda-bf16`. */
#include "ops.cuh"

#include "table.h"

template <typename T> static struct holmes_kernels table(const char *name)
{
    struct holmes_kernels k = {};

    k.name = name;
    k.dtype = dtype_of<T>();
    k.alloc = holmes_cuda_alloc;
    k.free = holmes_cuda_free;
    k.zero = holmes_cuda_zero;
    k.copy = holmes_cuda_copy;
    k.sync = holmes_cuda_sync;
    k.on_wait = holmes_cuda_on_wait;
    k.stream = holmes_cuda_stream;
    k.error = holmes_cuda_error;
    k.embedding_forward = embedding_forward<T>;
    k.embedding_backward = embedding_backward<T>;
    k.layernorm_forward = layernorm_forward<T>;
    k.layernorm_backward = layernorm_backward<T>;
    k.matmul_forward = matmul_forward<T>;
    k.matmul_gelu_forward = matmul_gelu_forward<T>;
    k.matmul_backward = matmul_backward<T>;
    k.attention_forward = attention_forward<T>;
    k.attention_scratch = attention_scratch;
    k.attention_backward = attention_backward<T>;
    k.gelu_forward = gelu_forward<T>;
    k.gelu_backward = gelu_backward<T>;
    k.residual_forward = residual_forward<T>;
    k.xent_stats = xent_stats<T>;
    k.xent_combine = xent_combine;
    k.xent_backward = xent_backward<T>;
    k.adamw = adamw<T>;
    k.convert = convert<T>;
    k.sum_squares = sum_squares;
    return k;
}

const struct holmes_kernels *holmes_cuda_table(const char *name)
{
    static const struct holmes_kernels tables[] = {table<float>("cuda"), table<bf16>("cuda-bf16")};

    for (const struct holmes_kernels &k : tables)
        if (strcmp(k.name, name) == 0)
            return &k;
    return NULL;
}
