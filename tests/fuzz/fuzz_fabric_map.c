/* The file of HOLMES_FABRIC: whatever is taken has ids that could have been written, and one for
 * every port that it names. */
#include <string.h>

#include "topology/fabric_ids.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char alphabet[] = "a1[-],# \nmlx_:.1\n";
    struct fabric_ids ids;
    char text[4097], why[512] = "";
    bool named;

    if (size > sizeof text - 1)
        size = sizeof text - 1;
    for (size_t i = 0; i < size; i++) /* else few inputs would get beyond the first complaint */
        text[i] = data[0] % 3 ? (char)data[i] : alphabet[data[i] % (sizeof alphabet - 1)];
    if (fabric_map_parse("f", text, size, "a1", &ids, &named, why, sizeof why) != 0) {
        if (!strstr(why, "HOLMES_FABRIC=\"@f\": line "))
            __builtin_trap();
        return 0;
    }
    if (ids.n < 0 || ids.n > FABRIC_IDS_MAX || (!named && (ids.n > 0 || ids.all[0])))
        __builtin_trap();
    for (int i = 0; i < ids.n; i++) {
        const struct fabric_entry *e = &ids.entries[i];

        if (e->port < 0 || e->port > 255 || !e->id[0] || !e->device[0] || e->line < 1 ||
            !fabric_ids_find(&ids, e->device, e->port)[0])
            __builtin_trap();
    }
    return 0;
}
