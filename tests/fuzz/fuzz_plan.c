/* A plan document: what is read can be written and read again, drawn, and handed to everybody. */
#include <stdio.h>
#include <stdlib.h>

#include "emit/draw.h"
#include "emit/emit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct holmes_plan_doc *doc)
{
    const struct holmes_emit_options o = {0};
    char *text = NULL, why[512];
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    if (!out || holmes_plan_draw(doc, out) != 0)
        __builtin_trap();
    for (int i = 0; holmes_emit_forms[i]; i++) {
        for (const struct holmes_emit_part *p = holmes_emit_forms[i]->parts; p->name; p++) {
            why[0] = '\0';
            if (p->write(doc, &o, out, why, sizeof why) != 0 && !why[0])
                __builtin_trap();
        }
    }
    fclose(out);
    free(text);
}

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
    if (doc.plan->world <= 4096 && doc.plan->nstages <= 256) /* a million lines teach nothing */
        use(&doc);
    holmes_plan_doc_fini(&again);
    holmes_plan_doc_fini(&doc);
    free(text);
    return 0;
}
