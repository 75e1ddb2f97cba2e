/* Host lists: parse, print, grow, cut. A list holds ranges in the order of its hosts; a range knows
 * the index of its first host, so that the i-th name is a binary search away. */
#include "hostlist.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 18 /* of a number: below 2^63 */

static int fail(char *why, size_t why_len, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(char *why, size_t why_len, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, why_len, fmt, ap);
    va_end(ap);
    return -EINVAL;
}

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '_';
}

bool holmes_host_name_ok(const char *name, size_t len)
{
    if (len == 0 || len >= HOLMES_HOST_NAME_MAX || name[0] == '-')
        return false;
    for (size_t i = 0; i < len; i++)
        if (!name_char(name[i]))
            return false;
    return true;
}

/* --- ranges ---------------------------------------------------------------------------------- */

static int range_hosts(const struct holmes_host_range *r)
{
    return (int)(r->high - r->low + 1);
}

/* Writes the name of number `n` of the range; returns its length. HOLMES_HOST_NAME_MAX is enough
 * for the ranges of a list, which never make longer names. */
static size_t range_name(const struct holmes_host_range *r, uint64_t n, char *buf)
{
    size_t prefix = strlen(r->prefix), suffix = strlen(r->suffix);
    char digits[24];
    int at = sizeof digits;

    if (r->width > 0) {
        do
            digits[--at] = (char)('0' + n % 10);
        while ((n /= 10) > 0);
        while ((int)sizeof digits - at < r->width)
            digits[--at] = '0';
    }

    size_t number = sizeof digits - (size_t)at;

    memcpy(buf, r->prefix, prefix);
    memcpy(buf + prefix, digits + at, number);
    memcpy(buf + prefix + number, r->suffix, suffix + 1);
    return prefix + number + suffix;
}

/* Reads the digits in text[0, len) as a number and the least width that prints them again: a width
 * says something only where the number begins with a zero. */
static bool digits_read(const char *text, size_t len, uint64_t *n, int *width)
{
    if (len == 0 || len > DIGITS_MAX)
        return false;
    *n = 0;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        *n = *n * 10 + (uint64_t)(text[i] - '0');
    }
    *width = text[0] == '0' ? (int)len : 1;
    return true;
}

/* Whether the name is one of the range's, and which. */
static bool range_find(const struct holmes_host_range *r, const char *name, size_t len, uint64_t *n)
{
    size_t prefix = strlen(r->prefix), suffix = strlen(r->suffix);
    const char *digits = name + prefix;
    int width;

    if (len < prefix + suffix || memcmp(name, r->prefix, prefix) != 0 ||
        memcmp(name + len - suffix, r->suffix, suffix) != 0)
        return false;
    len -= prefix + suffix;
    if (r->width == 0) {
        *n = 0;
        return len == 0;
    }
    if (!digits_read(digits, len, n, &width) || *n < r->low || *n > r->high)
        return false;
    return (int)len == r->width || ((int)len > r->width && digits[0] != '0');
}

static bool range_same_names(const struct holmes_host_range *a, const struct holmes_host_range *b)
{
    return a->width > 0 && b->width > 0 && strcmp(a->prefix, b->prefix) == 0 &&
           strcmp(a->suffix, b->suffix) == 0;
}

/* Whether b's numbers go on where a's end, printed alike. */
static bool range_continues(const struct holmes_host_range *a, const struct holmes_host_range *b)
{
    if (!range_same_names(a, b) || b->low != a->high + 1)
        return false;
    if (a->width == b->width)
        return true;
    /* "09" and "10": the second has no leading zero, and so no width of its own. */
    char digits[24];

    return b->width == 1 && snprintf(digits, sizeof digits, "%" PRIu64, b->low) >= a->width;
}

/* A width says something only where it makes the first number begin with a zero. */
static int width_least(const struct holmes_host_range *r)
{
    char digits[24];

    if (r->width <= 1)
        return r->width;
    return snprintf(digits, sizeof digits, "%" PRIu64, r->low) >= r->width ? 1 : r->width;
}

static int list_room(struct holmes_hostlist *l)
{
    if ((l->nranges & (l->nranges - 1)) != 0)
        return 0;

    size_t cap = l->nranges > 0 ? 2 * (size_t)l->nranges : 1;
    void *more = realloc(l->ranges, cap * sizeof *l->ranges);

    if (!more)
        return -ENOMEM;
    l->ranges = more;
    return 0;
}

/* Adds a copy of the range at the end, joined to the last one where it continues that. */
static int list_add(struct holmes_hostlist *l, const struct holmes_host_range *r)
{
    struct holmes_host_range *last = l->nranges > 0 ? &l->ranges[l->nranges - 1] : NULL;

    if (r->high - r->low >= (uint64_t)(HOLMES_HOSTS_MAX - l->nhosts))
        return -EINVAL;
    if (last && range_continues(last, r)) {
        last->high = r->high;
        l->nhosts += range_hosts(r);
        return 0;
    }
    if (list_room(l) != 0)
        return -ENOMEM;

    struct holmes_host_range *new = &l->ranges[l->nranges];

    *new = *r;
    new->width = width_least(r);
    new->prefix = strdup(r->prefix);
    new->suffix = strdup(r->suffix);
    new->first = l->nhosts;
    if (!new->prefix || !new->suffix) {
        free(new->prefix);
        free(new->suffix);
        return -ENOMEM;
    }
    l->nranges++;
    l->nhosts += range_hosts(r);
    return 0;
}

void holmes_hostlist_fini(struct holmes_hostlist *l)
{
    for (int i = 0; i < l->nranges; i++) {
        free(l->ranges[i].prefix);
        free(l->ranges[i].suffix);
    }
    free(l->ranges);
    *l = (struct holmes_hostlist){0};
}

/* --- one name -------------------------------------------------------------------------------- */

/* Splits a name at one of its numbers: [*digits, *end) is its last run of digits that ends at or
 * before `until`. False where there is none. */
static bool last_number(const char *name, size_t until, size_t *digits, size_t *end)
{
    size_t e = until;

    while (e > 0 && !isdigit((unsigned char)name[e - 1]))
        e--;
    if (e == 0)
        return false;
    *end = e;
    while (e > 0 && isdigit((unsigned char)name[e - 1]))
        e--;
    *digits = e;
    return true;
}

/* Names that differ from the one before in a number that is not their last ("r1-ib0", "r2-ib0"):
 * turns the last range, which is one host, to that number. */
static void last_turn(struct holmes_hostlist *l, const char *name)
{
    struct holmes_host_range *r = &l->ranges[l->nranges - 1];
    char before[HOLMES_HOST_NAME_MAX];
    size_t len = range_name(r, r->low, before), a = 0, a_end;

    while (name[a] && name[a] == before[a])
        a++;
    while (a > 0 && isdigit((unsigned char)before[a - 1]))
        a--;
    for (a_end = a; isdigit((unsigned char)before[a_end]);)
        a_end++;

    uint64_t n;
    int width;

    if (!digits_read(before + a, a_end - a, &n, &width) ||
        (r->width > 0 && a == strlen(r->prefix) && n == r->low))
        return;

    char *prefix = strndup(before, a), *suffix = strndup(before + a_end, len - a_end);

    if (!prefix || !suffix) { /* the list is only less short than it could be */
        free(prefix);
        free(suffix);
        return;
    }
    free(r->prefix);
    free(r->suffix);
    *r = (struct holmes_host_range){prefix, suffix, n, n, width, r->first};
}

/* Whether the name is what follows the last range's last. */
static bool last_continues(const struct holmes_hostlist *l, const char *name, size_t len)
{
    struct holmes_host_range next = l->ranges[l->nranges - 1];
    uint64_t n;

    if (next.width == 0)
        return false;
    next.low = ++next.high;
    return range_find(&next, name, len, &n);
}

int holmes_hostlist_append(struct holmes_hostlist *l, const char *name)
{
    size_t len = strlen(name), digits = len, end = len;
    struct holmes_host_range r = {0};

    if (!holmes_host_name_ok(name, len) || l->nhosts >= HOLMES_HOSTS_MAX)
        return -EINVAL;
    if (l->nranges > 0) {
        struct holmes_host_range *last = &l->ranges[l->nranges - 1];

        if (!last_continues(l, name, len) && last->low == last->high)
            last_turn(l, name);
        if (last_continues(l, name, len)) {
            last->high++;
            l->nhosts++;
            return 0;
        }
    }

    char prefix[HOLMES_HOST_NAME_MAX], suffix[HOLMES_HOST_NAME_MAX] = "";

    memcpy(prefix, name, len + 1);
    if (last_number(name, len, &digits, &end) &&
        digits_read(name + digits, end - digits, &r.low, &r.width)) {
        prefix[digits] = '\0';
        memcpy(suffix, name + end, len - end + 1);
        r.high = r.low;
    }
    r.prefix = prefix;
    r.suffix = suffix;
    return list_add(l, &r);
}

/* --- text to list ---------------------------------------------------------------------------- */

struct reader {
    struct holmes_hostlist *list;
    char *why;
    size_t why_len;
};

/* One item of a bracket, "7" or "0001-0004", into r's numbers. */
static int item_read(const struct reader *rd, const char *item, size_t len,
                     struct holmes_host_range *r)
{
    const char *dash = memchr(item, '-', len);
    size_t low_len = dash ? (size_t)(dash - item) : len;
    int high_width;

    if (!digits_read(item, low_len, &r->low, &r->width))
        return fail(rd->why, rd->why_len,
                    "\"%.*s\" in brackets is no number or range such as 01-16 (at most %d digits)",
                    (int)len, item, DIGITS_MAX);
    r->high = r->low;
    if (!dash)
        return 0;
    if (!digits_read(dash + 1, len - low_len - 1, &r->high, &high_width))
        return fail(rd->why, rd->why_len,
                    "\"%.*s\" in brackets is no range such as 01-16 (at most %d digits)", (int)len,
                    item, DIGITS_MAX);
    if (r->high < r->low)
        return fail(rd->why, rd->why_len, "range \"%.*s\" runs backwards", (int)len, item);
    return 0;
}

static int fail_long(const struct reader *rd, const char *name)
{
    return fail(rd->why, rd->why_len, "a host name is longer than %d characters: \"%.40s...\"",
                HOLMES_HOST_NAME_MAX - 1, name);
}

static int added(const struct reader *rd, int rc, const char *name, size_t len)
{
    if (rc == -EINVAL)
        return fail(rd->why, rd->why_len, "more than %d hosts, at \"%.*s\"", HOLMES_HOSTS_MAX,
                    (int)len, name);
    return rc;
}

static int name_add(const struct reader *rd, const char *plain, const char *name, size_t len)
{
    return added(rd, holmes_hostlist_append(rd->list, plain), name, len);
}

static int range_add(const struct reader *rd, const struct holmes_host_range *r, const char *name,
                     size_t len)
{
    char digits[24];
    int number = snprintf(digits, sizeof digits, "%" PRIu64, r->high);
    size_t widest = (size_t)(number > r->width ? number : r->width);

    if (strlen(r->prefix) + widest + strlen(r->suffix) >= HOLMES_HOST_NAME_MAX)
        return fail_long(rd, name);
    return added(rd, list_add(rd->list, r), name, len);
}

/* Characters and brackets of one name, before anything is made of it. */
static int name_check(const struct reader *rd, const char *name, size_t len)
{
    bool inside = false;

    if (name[0] == '-')
        return fail(rd->why, rd->why_len, "host name \"%.*s\" begins with '-'", (int)len, name);
    for (size_t i = 0; i < len; i++) {
        char c = name[i];

        if (c == '[' && !inside)
            inside = true;
        else if (c == ']' && inside)
            inside = false;
        else if (!name_char(c) && !(inside && c == ','))
            return fail(rd->why, rd->why_len,
                        "'%c' in \"%.*s\" does not belong there: host names are letters, digits, "
                        "'.', '-', '_', with ranges as in a[01-16,20]",
                        isprint((unsigned char)c) ? c : '?', (int)len, name);
    }
    if (inside)
        return fail(rd->why, rd->why_len, "\"%.*s\" lacks its ']'", (int)len, name);
    return 0;
}

static int range_expand(const struct reader *rd, const struct holmes_host_range *r,
                        const char *name, size_t at, size_t len);

/* Reads [name + at, name + len) behind the `prefix_len` characters that stand in `prefix`. */
static int part_read(const struct reader *rd, const char *name, size_t at, size_t len, char *prefix,
                     size_t prefix_len)
{
    const char *end = name + len, *open = memchr(name + at, '[', len - at);
    size_t plain = (size_t)((open ? open : end) - name) - at;

    if (prefix_len + plain >= HOLMES_HOST_NAME_MAX)
        return fail_long(rd, name);
    memcpy(prefix + prefix_len, name + at, plain);
    prefix_len += plain;
    prefix[prefix_len] = '\0';
    if (!open)
        return name_add(rd, prefix, name, len);

    const char *close = memchr(open, ']', (size_t)(end - open)); /* name_check saw it */
    bool last = !memchr(close, '[', (size_t)(end - close));
    char suffix[HOLMES_HOST_NAME_MAX] = "";

    if (last && (size_t)(end - close) > sizeof suffix)
        return fail_long(rd, name);
    if (last)
        memcpy(suffix, close + 1, (size_t)(end - close - 1));
    for (const char *item = open + 1; item <= close;) {
        const char *comma = memchr(item, ',', (size_t)(close - item));
        size_t item_len = (size_t)((comma ? comma : close) - item);
        struct holmes_host_range r = {.prefix = prefix, .suffix = suffix};
        int rc = item_read(rd, item, item_len, &r);

        if (rc == 0 && last)
            rc = range_add(rd, &r, name, len);
        else if (rc == 0)
            rc = range_expand(rd, &r, name, (size_t)(close + 1 - name), len);
        if (rc != 0)
            return rc;
        item += item_len + 1;
    }
    return 0;
}

/* What stands behind a bracket that is not the name's last is read once for each of its numbers. */
static int range_expand(const struct reader *rd, const struct holmes_host_range *r,
                        const char *name, size_t at, size_t len)
{
    int rc = 0;

    for (uint64_t n = r->low; n <= r->high && rc == 0; n++) {
        char prefix[HOLMES_HOST_NAME_MAX + DIGITS_MAX];
        size_t so_far = range_name(r, n, prefix);

        if (so_far >= HOLMES_HOST_NAME_MAX)
            return fail_long(rd, name);
        rc = part_read(rd, name, at, len, prefix, so_far);
    }
    return rc;
}

static int text_read(const struct reader *rd, const char *text)
{
    for (;;) {
        while (isspace((unsigned char)*text))
            text++;

        size_t len = 0, name_len;
        int depth = 0;

        for (; text[len] && (depth > 0 || text[len] != ','); len++)
            depth += text[len] == '[' ? 1 : text[len] == ']' ? -1 : 0;
        for (name_len = len; name_len > 0 && isspace((unsigned char)text[name_len - 1]);)
            name_len--;
        if (name_len == 0)
            return fail(rd->why, rd->why_len, "%s",
                        rd->list->nhosts > 0 ? "a comma without a host name next to it"
                                             : "no host name");

        int rc = name_check(rd, text, name_len);
        char prefix[HOLMES_HOST_NAME_MAX];

        if (rc == 0)
            rc = part_read(rd, text, 0, name_len, prefix, 0);
        if (rc != 0 || !text[len])
            return rc;
        text += len + 1;
    }
}

/* The first name that comes twice is told. */
static int twice_check(const struct reader *rd)
{
    struct holmes_hostindex *seen;
    char name[HOLMES_HOST_NAME_MAX];
    int twice, rc;

    if (rd->list->nranges < 2) /* a range has no name twice */
        return 0;
    rc = holmes_hostindex_create(&seen);
    if (rc != 0)
        return rc;
    rc = holmes_hostindex_add(seen, rd->list, 0, &twice);
    if (rc == -EEXIST)
        rc = fail(rd->why, rd->why_len, "host %s comes twice",
                  holmes_hostlist_name(rd->list, twice, name, sizeof name));
    holmes_hostindex_destroy(seen);
    return rc;
}

int holmes_hostlist_parse(const char *text, struct holmes_hostlist *out, char *why, size_t why_len)
{
    struct holmes_hostlist list = {0};
    struct reader rd = {&list, why, why_len};
    int rc = text_read(&rd, text);

    if (rc == 0)
        rc = twice_check(&rd);
    if (rc == 0)
        *out = list;
    else
        holmes_hostlist_fini(&list);
    return rc;
}

/* --- list to text ---------------------------------------------------------------------------- */

char *holmes_hostlist_text(const struct holmes_hostlist *l)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    if (!out)
        return NULL;
    for (int i = 0; i < l->nranges;) {
        const struct holmes_host_range *r = &l->ranges[i];
        int last = i;

        while (last + 1 < l->nranges && range_same_names(r, &l->ranges[last + 1]))
            last++;

        bool bracket = r->width > 0 && (last > i || r->low < r->high);

        fprintf(out, "%s%s%s", i > 0 ? "," : "", r->prefix, bracket ? "[" : "");
        for (int k = i; k <= last && r->width > 0; k++) {
            const struct holmes_host_range *item = &l->ranges[k];

            fprintf(out, "%s%0*" PRIu64, k > i ? "," : "", item->width, item->low);
            if (item->high > item->low)
                fprintf(out, "-%0*" PRIu64, item->width, item->high);
        }
        fprintf(out, "%s%s", bracket ? "]" : "", r->suffix);
        i = last + 1;
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* --- the rest -------------------------------------------------------------------------------- */

const char *holmes_hostlist_name(const struct holmes_hostlist *l, int i, char *buf, size_t len)
{
    int low = 0, high = l->nranges - 1;
    char name[HOLMES_HOST_NAME_MAX];

    if (i < 0 || i >= l->nhosts) {
        snprintf(buf, len, "?");
        return buf;
    }
    while (low < high) {
        int mid = low + (high - low + 1) / 2;

        if (l->ranges[mid].first <= i)
            low = mid;
        else
            high = mid - 1;
    }

    const struct holmes_host_range *r = &l->ranges[low];

    range_name(r, r->low + (uint64_t)(i - r->first), name);
    snprintf(buf, len, "%s", name);
    return buf;
}

int holmes_hostlist_find(const struct holmes_hostlist *l, const char *name)
{
    size_t len = strlen(name);
    uint64_t n;

    for (int i = 0; i < l->nranges; i++)
        if (range_find(&l->ranges[i], name, len, &n))
            return l->ranges[i].first + (int)(n - l->ranges[i].low);
    return -1;
}

int holmes_hostlist_slice(const struct holmes_hostlist *l, int first, int n,
                          struct holmes_hostlist *out)
{
    struct holmes_hostlist list = {0};

    for (int i = 0; i < l->nranges; i++) {
        struct holmes_host_range r = l->ranges[i];
        int from = first > r.first ? first - r.first : 0;
        int to = range_hosts(&r); /* behind the last */

        if (first + n - r.first < to)
            to = first + n - r.first;
        if (from >= to)
            continue;
        r.high = r.low + (uint64_t)to - 1;
        r.low += (uint64_t)from;
        if (list_add(&list, &r) != 0) {
            holmes_hostlist_fini(&list);
            return -ENOMEM;
        }
    }
    *out = list;
    return 0;
}
