/* A trace in Chrome's format: what is read is in order, and can be drawn as a whole and by step. */
#include <stdio.h>
#include <stdlib.h>

#include "timeline.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct holmes_timeline *t)
{
    for (size_t i = 0; i < t->nspans; i++) {
        const struct holmes_timeline_span *s = &t->spans[i];

        if (s->lane < 0 || (size_t)s->lane >= t->nlanes || !(s->start >= 0) || !(s->end <= t->end))
            __builtin_trap();
        if (i > 0 && s->lane < s[-1].lane)
            __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_timeline t;
    char why[512] = "", *text = NULL;
    double from, to;
    int step = 0;
    size_t len = 0;
    FILE *out;

    if (holmes_timeline_parse("trace.json", data, size, &t, why, sizeof why) != 0) {
        if (!why[0])
            __builtin_trap();
        return 0;
    }
    check(&t);
    out = open_memstream(&text, &len);
    if (!out)
        __builtin_trap();
    holmes_timeline_step(&t, &step, &from, &to);
    holmes_timeline_draw(&t, from, to, 1200, "step", out);
    holmes_timeline_draw(&t, 0, t.end, 1200, "all", out);
    fclose(out);
    free(text);
    holmes_timeline_fini(&t);
    return 0;
}
