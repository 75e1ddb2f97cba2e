/* A safetensors file: what is read covers the file exactly, and is found again by name. */
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_st *s = NULL;
    char why[512] = "";
    uint64_t end;

    if (holmes_st_parse("fuzz", data, size, size, &s, why, sizeof why) != 0) {
        if (s || strncmp(why, "fuzz: ", 6) != 0)
            __builtin_trap();
        return 0;
    }
    end = holmes_st_header_bytes(s);
    for (int i = 0; i < holmes_st_count(s); i++) {
        const struct holmes_st_tensor *t = holmes_st_tensor(s, i);
        uint64_t count = 1;

        for (int d = 0; d < t->ndim; d++)
            count *= t->shape[d];
        if (t->begin != end || count != t->count ||
            t->bytes != count * holmes_st_dtype_size(t->dtype))
            __builtin_trap();
        end += t->bytes;
        if (holmes_st_find(s, t->name) != t || holmes_st_shape_text(t, why, sizeof why) != why)
            __builtin_trap();
    }
    if (end != size)
        __builtin_trap();
    holmes_st_close(s);
    return 0;
}
