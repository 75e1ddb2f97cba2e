/* A plan document: what is read can be written and read again. */
#include <stdio.h>
#include <stdlib.h>

#include "plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_plan_doc doc, again;
    char why[512] = "", *text = NULL;
    size_t len = 0;
    FILE *out;

    if (holmes_plan_parse("plan.json", data, size, &doc, why, sizeof why) != 0) {
        if (!why[0])
            __builtin_trap();
        return 0;
    }
    out = open_memstream(&text, &len);
    if (!out || holmes_plan_write(&doc, out) != 0 || fclose(out) != 0)
        __builtin_trap();
    if (holmes_plan_parse("again", text, len, &again, why, sizeof why) != 0)
        __builtin_trap();
    holmes_plan_doc_fini(&again);
    holmes_plan_doc_fini(&doc);
    free(text);
    return 0;
}
