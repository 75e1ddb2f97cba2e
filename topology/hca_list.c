/* Parses NCCL_IB_HCA. NCCL drops what it does not understand; here that is refused, because a job
 * that silently uses other adapters costs days. */
#include "hca_list.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct parser {
    const char *text; /* all of it, for complaints */
    char *why;
    size_t why_len;
};

static int complain(const struct parser *p, const char *entry, size_t len, const char *what)
{
    snprintf(p->why, p->why_len, "NCCL_IB_HCA=\"%s\": %s (%.*s)", p->text, what, (int)len, entry);
    return -EINVAL;
}

/* Decimal digits and nothing else, up to `max`. */
static int parse_number(const char *s, size_t len, int max)
{
    int v = 0;

    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -EINVAL;
        v = v * 10 + (s[i] - '0');
        if (v > max)
            return -EINVAL;
    }
    return len > 0 ? v : -EINVAL;
}

/* ":port[:rail[:plane]]"; each may be empty. */
static int parse_tail(const struct parser *p, const char *entry, size_t entry_len, const char *tail,
                      struct hca_list *l, struct hca_entry *out)
{
    const char *end = entry + entry_len;

    for (int field = 0; tail < end; field++) {
        size_t len;
        int v;

        tail++; /* the colon */
        len = strcspn(tail, ":,");
        if (field == 3)
            return complain(p, entry, entry_len, "device:port:rail:plane is all there can be");
        v = parse_number(tail, len, field == 0 ? 255 : 32767);
        if (len > 0 && field == 0 && v < 1)
            return complain(p, entry, entry_len, "a port is a number from 1 to 255");
        if (len > 0 && v < 0)
            return complain(p, entry, entry_len, "a rail and a plane are numbers");
        if (len > 0 && field == 0)
            out->port = v;
        l->rails |= len > 0 && field > 0;
        tail += len;
    }
    return 0;
}

static int parse_entry(const struct parser *p, const char *entry, size_t len, struct hca_list *l)
{
    struct hca_entry e = {.port = 0};
    size_t name_len = strcspn(entry, ":,");
    int rc;

    if (len == 0)
        return 0;
    if (*entry == '^' || *entry == '=')
        return complain(p, entry, len,
                        "the modifiers ^ and = stand once, in front of the whole list");
    if (name_len == 0)
        return complain(p, entry, len, "a device stands in front of the port");
    for (size_t i = 0; i < name_len; i++) {
        if (!isgraph((unsigned char)entry[i]))
            return complain(p, entry, len, "no device has such a character in its name");
    }
    if (l->n == HCA_LIST_MAX)
        return complain(p, entry, len, "more than 32 entries");
    if (name_len >= sizeof e.device)
        return complain(p, entry, len, "no device has such a long name");
    memcpy(e.device, entry, name_len);
    rc = parse_tail(p, entry, len, entry + name_len, l, &e);
    if (rc == 0)
        l->entries[l->n++] = e;
    return rc;
}

int hca_list_parse(const char *text, struct hca_list *out, char *why, size_t why_len)
{
    const struct parser parser = {text, why, why_len};
    struct hca_list l = {0};
    const char *p = text;

    if (!text) {
        *out = l;
        return 0;
    }
    if (*p == '^') {
        l.exclude = true;
        p++;
    }
    if (*p == '=') {
        l.exact = true;
        p++;
    }
    while (*p) {
        size_t len = strcspn(p, ",");
        int rc = parse_entry(&parser, p, len, &l);

        if (rc != 0)
            return rc;
        p += len;
        p += *p == ',';
    }
    if (l.n == 0 && *text) {
        snprintf(why, why_len, "NCCL_IB_HCA=\"%s\" names no device", text);
        return -EINVAL;
    }
    *out = l;
    return 0;
}

bool hca_list_fits(const struct hca_list *l, const char *device, int port)
{
    for (int i = 0; i < l->n; i++) {
        const struct hca_entry *e = &l->entries[i];

        if ((l->exact ? strcmp(e->device, device)
                      : strncmp(e->device, device, strlen(e->device))) == 0 &&
            (e->port == 0 || e->port == port))
            return true;
    }
    return false;
}
