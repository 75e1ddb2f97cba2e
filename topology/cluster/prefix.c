/* InfiniBand subnet prefixes: the upper half of a GID. */
#include "cluster/prefix.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* 16 hexadecimal digits, as ibstat and opensm print a prefix. */
static bool hex_read(const char *text, uint8_t bytes[8])
{
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        text += 2;
    if (strlen(text) != 16)
        return false;
    for (int i = 0; i < 8; i++) {
        unsigned byte;

        if (!isxdigit((unsigned char)text[2 * i]) || !isxdigit((unsigned char)text[2 * i + 1]) ||
            sscanf(text + 2 * i, "%2x", &byte) != 1)
            return false;
        bytes[i] = (uint8_t)byte;
    }
    return true;
}

int holmes_prefix_read(const char *text, char out[HOLMES_PREFIX_MAX])
{
    uint8_t bytes[16] = {0};
    char gid[64];
    int colons = 0;

    for (const char *c = text; *c; c++)
        colons += *c == ':';
    if (colons == 0) {
        if (!hex_read(text, bytes))
            return -EINVAL;
    } else {
        if (strlen(text) > 40)
            return -EINVAL;
        /* Four groups are the upper half; a text with "::" is a whole GID whose lower half is 0. */
        snprintf(gid, sizeof gid, "%s%s", text, !strstr(text, "::") && colons == 3 ? "::" : "");
        if (inet_pton(AF_INET6, gid, bytes) != 1)
            return -EINVAL;
        for (int i = 8; i < 16; i++)
            if (bytes[i] != 0)
                return -EINVAL;
    }
    snprintf(out, HOLMES_PREFIX_MAX, "%x:%x:%x:%x", bytes[0] << 8 | bytes[1],
             bytes[2] << 8 | bytes[3], bytes[4] << 8 | bytes[5], bytes[6] << 8 | bytes[7]);
    return 0;
}

bool holmes_prefix_is_default(const char *prefix)
{
    return strcmp(prefix, "fe80:0:0:0") == 0;
}
