/* Hostfiles: every failure says why, every host of what is read has slots that can be meant. */
#include <stdint.h>
#include <string.h>

#include "hostfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_hostfile h;
    char why[300] = "";

    if (holmes_hostfile_parse("fuzz", (const char *)data, size, &h, why, sizeof why) != 0) {
        if (strncmp(why, "fuzz:", 5) != 0)
            __builtin_trap();
        return 0;
    }
    if (h.hosts.nhosts < 1)
        __builtin_trap();
    for (int i = 0; i < h.hosts.nhosts; i++)
        if (h.slots[i] < 0 || h.slots[i] > HOLMES_SLOTS_MAX)
            __builtin_trap();
    holmes_hostfile_fini(&h);
    return 0;
}
