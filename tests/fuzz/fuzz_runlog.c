/* The log of a run, whole or cut anywhere: what is read can be drawn. */
#include <stdio.h>
#include <stdlib.h>

#include "page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"run"};
    struct holmes_runlog log;
    struct holmes_report report = {.runs = &log, .names = names, .nruns = 1};
    char why[512] = "", *text = NULL;
    size_t len = 0;
    FILE *out;
    json_t *json;

    if (holmes_runlog_parse("run.jsonl", data, size, &log, why, sizeof why) != 0) {
        if (!why[0])
            __builtin_trap();
        return 0;
    }
    out = open_memstream(&text, &len);
    json = holmes_page_json(&report);
    if (!out || !json || holmes_page_html(&report, out) != 0 ||
        holmes_page_table(&report, out) != 0)
        __builtin_trap();
    json_decref(json);
    fclose(out);
    free(text);
    holmes_runlog_fini(&log);
    return 0;
}
