/* NCCL topology XML. */
#include "fuzz_host.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct holmes_host *h = NULL;
    char why[1024] = "";
    int rc = holmes_host_parse_nccl("f", data, size, &h, why, sizeof why);

    fuzz_host(rc, h, why);
    return 0;
}
