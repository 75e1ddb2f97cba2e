/* A handle from anywhere: checked, then its addresses decoded. */
#include <string.h>

#include "transport/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct proto_handle h = {.version = 0};
    struct holmes_addr addr;
    char why[256];

    memcpy(&h, data, size < sizeof h ? size : sizeof h);
    if (proto_handle_check(&h, why, sizeof why) == 0 && size < 16)
        __builtin_trap();  /* too little to be a handle */
    proto_handle_seal(&h); /* past the checksum, so that the fields are reached */
    if (proto_handle_check(&h, why, sizeof why) != 0)
        __builtin_trap();
    for (int i = 0; i < PROTO_ADDRS; i++)
        proto_addr_decode(&h.addrs[i], &addr);
    return 0;
}
