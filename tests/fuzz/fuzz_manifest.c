/* A checkpoint's manifest: what is read can be written and is read again as the same; the checksum
 * is not in the way, since no mutation would ever hit it. */
#include <stdlib.h>
#include <string.h>

#include "manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_again(const struct holmes_manifest *m)
{
    struct holmes_manifest again;
    char why[512] = "", *text, *second;
    size_t len, len2;

    text = holmes_manifest_text(m, &len);
    if (!text || holmes_manifest_parse("fuzz", text, len, &again, why, sizeof why) != 0)
        __builtin_trap();
    second = holmes_manifest_text(&again, &len2);
    if (!second || len != len2 || memcmp(text, second, len) != 0)
        __builtin_trap();
    for (int i = 0; i < m->ntensors; i++)
        if (holmes_manifest_find(m, m->tensors[i].name) != &m->tensors[i])
            __builtin_trap();
    holmes_manifest_fini(&again);
    free(text);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_manifest m;
    char why[512] = "";
    json_t *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);

    if (holmes_manifest_parse("fuzz", (const char *)data, size, &m, why, sizeof why) == 0)
        holmes_manifest_fini(&m);
    else if (strncmp(why, "fuzz: ", 6) != 0)
        __builtin_trap();
    why[0] = '\0';
    if (root && holmes_manifest_unpack("fuzz", root, &m, why, sizeof why) == 0) {
        write_again(&m);
        holmes_manifest_fini(&m);
    } else if (root && strncmp(why, "fuzz: ", 6) != 0) {
        __builtin_trap();
    }
    json_decref(root);
    return 0;
}
