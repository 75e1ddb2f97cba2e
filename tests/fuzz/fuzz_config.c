/* Files of --config: every failure names the line, and what is read can be printed and is then read
 * as the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config_spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *printed(const struct holmes_config *c)
{
    char *text = NULL, why[300];
    size_t len;
    FILE *out = open_memstream(&text, &len);

    if (!out)
        abort();
    /* All that comes from YAML is UTF-8, so it goes back into it. */
    if (holmes_config_print(c, out, why, sizeof why) != 0 || fclose(out) != 0)
        __builtin_trap();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_config c, again;
    char why[400] = "";
    char *first, *second;

    holmes_config_init(&c);
    if (holmes_config_file_apply("fuzz", (const char *)data, size, false, &c, why, sizeof why) !=
        0) {
        if (strncmp(why, "fuzz:", 5) != 0)
            __builtin_trap();
        holmes_config_fini(&c);
        return 0;
    }
    holmes_config_derive(&c);
    first = printed(&c);
    holmes_config_init(&again);
    if (holmes_config_file_apply("again", first, strlen(first), false, &again, why, sizeof why) !=
        0)
        __builtin_trap();
    holmes_config_derive(&again);
    second = printed(&again);
    if (strcmp(first, second) != 0)
        __builtin_trap();
    free(first);
    free(second);
    holmes_config_fini(&c);
    holmes_config_fini(&again);
    return 0;
}
