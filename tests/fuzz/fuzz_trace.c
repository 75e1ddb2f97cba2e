/* A rank's packed events as rank 0 takes them from the rendezvous: what is written is JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Twice the same, so that clocks are compared. */
    struct holmes_trace_part parts[2] = {
        {.rank = 0, .process = "rank 0 \"\\\n", .data = data, .len = size},
        {.rank = 1, .process = "rank 1", .data = data, .len = size}};
    uint64_t events, dropped;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    json_t *doc;
    int rc;

    if (!f)
        __builtin_trap();
    rc = holmes_trace_write(f, parts, 2, &events, &dropped);
    fclose(f);
    if (rc == 0) {
        doc = json_loads(text, 0, NULL);
        if (!doc)
            __builtin_trap();
        json_decref(doc);
    } else if (len > 0) {
        __builtin_trap();
    }
    free(text);
    return 0;
}
