/* What each reader of a host must hold for any input: it is refused with a reason, or what it gave
 * can be written in both forms and read back. */
#ifndef FUZZ_HOST_H
#define FUZZ_HOST_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

static inline char *fuzz_written(const struct holmes_host *h,
                                 int (*write)(const struct holmes_host *, FILE *), size_t *len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, len);
    int rc = write(h, f);

    fclose(f);
    if (rc != 0 && rc != -ENODATA)
        __builtin_trap();
    return text;
}

static inline void fuzz_read_back(const struct holmes_host *h)
{
    struct holmes_host *back = NULL;
    size_t len = 0, again_len = 0;
    char why[1024] = "", *text = fuzz_written(h, holmes_host_json, &len), *again;

    if (holmes_host_parse_json("json", text, len, &back, why, sizeof why) != 0)
        __builtin_trap();
    again = fuzz_written(back, holmes_host_json, &again_len);
    if (len != again_len || memcmp(text, again, len) != 0)
        __builtin_trap();
    holmes_host_destroy(back);
    free(again);
    free(text);
    text = fuzz_written(h, holmes_host_nccl_xml, &len);
    back = NULL;
    if (len > 0 && holmes_host_parse_nccl("xml", text, len, &back, why, sizeof why) != 0)
        __builtin_trap();
    holmes_host_destroy(back);
    free(text);
}

static inline void fuzz_host(int rc, struct holmes_host *h, const char *why)
{
    if ((rc == 0) != (h != NULL) || (rc != 0 && !why[0]))
        __builtin_trap();
    if (h)
        fuzz_read_back(h);
    holmes_host_destroy(h);
}

#endif
