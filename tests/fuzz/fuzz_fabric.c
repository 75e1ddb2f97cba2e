/* HOLMES_FABRIC: whatever is taken has ids that could have been written. */
#include <string.h>

#include "topology/fabric_ids.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char alphabet[] = "=,:mlx5_01a-";
    struct fabric_ids ids;
    char text[4097], why[256] = "";

    if (size > sizeof text - 1)
        size = sizeof text - 1;
    for (size_t i = 0; i < size; i++) /* else few inputs would get beyond the first complaint */
        text[i] = data[0] & 1 ? (char)data[i] : alphabet[data[i] % (sizeof alphabet - 1)];
    text[size] = '\0';
    if (fabric_ids_parse(text, &ids, why, sizeof why) != 0) {
        if (!strstr(why, "HOLMES_FABRIC="))
            __builtin_trap();
        return 0;
    }
    if (ids.n < 0 || ids.n > FABRIC_IDS_MAX || (ids.n > 0 && ids.all[0]))
        __builtin_trap();
    for (int i = 0; i < ids.n; i++) {
        const struct fabric_entry *e = &ids.entries[i];
        int port = e->port != 0 ? e->port : 1;

        if (e->port < 0 || e->port > 255 || !e->id[0] || !e->device[0] ||
            !fabric_ids_find(&ids, e->device, port)[0])
            __builtin_trap();
    }
    return 0;
}
