/* Parses HOLMES_FABRIC. Equal ids will be believed to share a fabric, so nothing is guessed here:
 * every entry is whole, and nothing is said twice. */
#include "fabric_ids.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define RIGHT "an id, device[:port]=id[,...], or @FILE, is right"

static int complain(char *why, size_t why_len, const char *text, const char *at, size_t len,
                    const char *what)
{
    snprintf(why, why_len, "HOLMES_FABRIC=\"%s\": %s (%.*s); " RIGHT, text, what, (int)len, at);
    return -EINVAL;
}

int fabric_word_copy(const char *s, size_t len, char out[HOLMES_RDMA_NAME_MAX])
{
    if (len == 0 || len >= HOLMES_RDMA_NAME_MAX)
        return -EINVAL;
    for (size_t i = 0; i < len; i++) {
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i]))
            return -EINVAL;
    }
    memcpy(out, s, len);
    out[len] = '\0';
    return 0;
}

int fabric_port_parse(const char *s, size_t len)
{
    int v = 0;

    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9' || v > 255)
            return -EINVAL;
        v = v * 10 + (s[i] - '0');
    }
    return v >= 1 && v <= 255 ? v : -EINVAL;
}

static const char *parse_entry(const char *entry, size_t len, struct fabric_entry *out)
{
    const char *eq = memchr(entry, '=', len), *colon;
    size_t name_len;

    if (!eq)
        return "no id is given";
    colon = memchr(entry, ':', (size_t)(eq - entry));
    name_len = (size_t)((colon ? colon : eq) - entry);
    out->port = colon ? fabric_port_parse(colon + 1, (size_t)(eq - colon - 1)) : 0;
    if (out->port < 0)
        return "a port is a number from 1 to 255";
    if (fabric_word_copy(entry, name_len, out->device) != 0)
        return "no device has such a name";
    if (fabric_word_copy(eq + 1, len - (size_t)(eq + 1 - entry), out->id) != 0)
        return "an id is 1 to 31 letters, digits or -_.";
    return NULL;
}

static bool is_said(const struct fabric_ids *ids, const struct fabric_entry *e)
{
    for (int i = 0; i < ids->n; i++) {
        if (ids->entries[i].port == e->port && strcmp(ids->entries[i].device, e->device) == 0)
            return true;
    }
    return false;
}

int fabric_ids_parse(const char *text, struct fabric_ids *out, char *why, size_t why_len)
{
    struct fabric_ids ids = {.n = 0};

    if (text && *text && !strpbrk(text, "=,")) {
        if (fabric_word_copy(text, strlen(text), ids.all) != 0)
            return complain(why, why_len, text, text, strlen(text),
                            "an id is 1 to 31 letters, digits or -_.");
        *out = ids;
        return 0;
    }
    for (const char *p = text; p && *p;) {
        size_t len = strcspn(p, ",");
        struct fabric_entry e = {.port = 0};
        const char *what = parse_entry(p, len, &e);

        if (!what && is_said(&ids, &e))
            what = "the port has an id already";
        if (!what && ids.n == FABRIC_IDS_MAX)
            what = "more than 32 entries";
        if (!what && p[len] == ',' && p[len + 1] == '\0')
            what = "nothing stands behind the last comma";
        if (what)
            return complain(why, why_len, text, p, len, what);
        ids.entries[ids.n++] = e;
        p += len;
        p += *p == ',';
    }
    *out = ids;
    return 0;
}

int fabric_ids_read(const char *text, const char *host, struct fabric_ids *out, char *why,
                    size_t why_len)
{
    if (text && text[0] == '@')
        return fabric_map_read(text + 1, host, out, why, why_len);
    return fabric_ids_parse(text, out, why, why_len);
}

const char *fabric_ids_find(const struct fabric_ids *ids, const char *device, int port)
{
    const char *found = ids->all;

    for (int i = 0; i < ids->n; i++) {
        const struct fabric_entry *e = &ids->entries[i];

        if (strcmp(e->device, device) != 0)
            continue;
        if (e->port == port)
            return e->id;
        if (e->port == 0)
            found = e->id;
    }
    return found;
}
