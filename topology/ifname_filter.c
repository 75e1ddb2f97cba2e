/* Parses NCCL_SOCKET_IFNAME. NCCL drops what it does not understand; a value that means nothing is
 * refused here, because a job that silently runs over another interface costs days. */
#include "ifname_filter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int filter_add(struct ifname_filter *f, const char *name, size_t len, const char *text,
                      char *why, size_t why_len)
{
    const char *colon = memchr(name, ':', len);

    if (colon) /* a port, which means nothing for an interface */
        len = (size_t)(colon - name);
    if (len == 0)
        return 0;
    if (*name == '^' || *name == '=') {
        snprintf(why, why_len,
                 "NCCL_SOCKET_IFNAME=\"%s\": the modifiers ^ and = stand once, in front of the "
                 "whole list (%.*s)",
                 text, (int)len, name);
        return -EINVAL;
    }
    if (f->n == IFNAME_FILTER_MAX) {
        snprintf(why, why_len, "NCCL_SOCKET_IFNAME=\"%s\": more than %d names", text,
                 IFNAME_FILTER_MAX);
        return -EINVAL;
    }
    if (len >= sizeof f->names[0])
        len = sizeof f->names[0] - 1; /* longer than any interface's name: fits none */
    memcpy(f->names[f->n], name, len);
    f->names[f->n++][len] = '\0';
    return 0;
}

int ifname_filter_parse(const char *text, struct ifname_filter *out, char *why, size_t why_len)
{
    struct ifname_filter f = {0};
    const char *p = text;

    if (!text || !*text) {
        *out = f;
        return 0;
    }
    if (*p == '^') {
        f.exclude = true;
        p++;
    }
    if (*p == '=') {
        f.exact = true;
        p++;
    }
    while (*p) {
        size_t len = strcspn(p, ",");
        int rc = filter_add(&f, p, len, text, why, why_len);

        if (rc != 0)
            return rc;
        p += len;
        p += *p == ',';
    }
    if (f.n == 0) {
        snprintf(why, why_len, "NCCL_SOCKET_IFNAME=\"%s\" names no interface", text);
        return -EINVAL;
    }
    *out = f;
    return 0;
}

int ifname_filter_match(const struct ifname_filter *f, const char *ifname)
{
    for (int i = 0; i < f->n; i++) {
        size_t len = strlen(f->names[i]);

        if (f->exact ? strcmp(f->names[i], ifname) == 0 : strncmp(f->names[i], ifname, len) == 0)
            return i;
    }
    return -1;
}
