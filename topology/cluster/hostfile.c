/* Hostfiles of Open MPI, MPICH, DeepSpeed and plain lists. */
#include "hostfile.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/conf_line.h"
#include "cluster/text.h"
#include "file.h"
#include "near_name.h"

#define FILE_SIZE_MAX (64u << 20)

/* Hosts of one item, with the line they stand in: what a second coming is told with. */
struct item {
    struct holmes_hostlist hosts;
    int line;
};

struct reader {
    struct conf_lines lines;
    struct holmes_hostfile file;
    size_t slots_cap;
    struct holmes_hostindex *seen;
    int nitems;
    struct item *items; /* room for the next power of two */
};

static int slots_read(const struct reader *r, const char *field, const char *text, int *slots)
{
    if (holmes_text_whole(text, 1, HOLMES_SLOTS_MAX, slots) == 0)
        return 0;
    return conf_lines_fail(&r->lines, "%s: \"%.40s\" is no whole number from 1 to %d", field, text,
                           HOLMES_SLOTS_MAX);
}

/* The index points at the lists of the items: growing moves the structs, so it is made anew. */
static int items_room(struct reader *r)
{
    struct item *more;
    int twice;

    if ((r->nitems & (r->nitems - 1)) != 0)
        return 0;
    more = realloc(r->items, (r->nitems > 0 ? 2 * (size_t)r->nitems : 1) * sizeof *more);
    if (!more)
        return -ENOMEM;
    r->items = more;
    holmes_hostindex_destroy(r->seen);
    r->seen = NULL;
    if (holmes_hostindex_create(&r->seen) != 0)
        return -ENOMEM;
    for (int i = 0; i < r->nitems; i++)
        if (holmes_hostindex_add(r->seen, &r->items[i].hosts, r->items[i].line, &twice) != 0)
            return -ENOMEM;
    return 0;
}

static int hosts_add(struct reader *r, const struct item *item, int slots)
{
    struct holmes_hostfile *f = &r->file;
    char name[HOLMES_HOST_NAME_MAX];
    int twice, line, host, rc = holmes_hostindex_add(r->seen, &item->hosts, item->line, &twice);

    if (rc == -EEXIST) {
        holmes_hostlist_name(&item->hosts, twice, name, sizeof name);
        holmes_hostindex_find(r->seen, name, &line, &host);
        return conf_lines_fail(&r->lines,
                               "host %s comes twice, first in line %d: write it once, with slots=N",
                               name, line);
    }
    if (rc != 0)
        return rc;

    size_t need = (size_t)f->hosts.nhosts + (size_t)item->hosts.nhosts;

    if (need > r->slots_cap) {
        int *more = realloc(f->slots, (r->slots_cap = 2 * need) * sizeof *more);

        if (!more)
            return -ENOMEM;
        f->slots = more;
    }
    for (int i = 0; i < item->hosts.nhosts; i++) {
        int at = f->hosts.nhosts;

        rc = holmes_hostlist_append(&f->hosts,
                                    holmes_hostlist_name(&item->hosts, i, name, sizeof name));
        if (rc == -EINVAL)
            return conf_lines_fail(&r->lines, "more than %d hosts", HOLMES_HOSTS_MAX);
        if (rc != 0)
            return rc;
        f->slots[at] = slots;
    }
    return 0;
}

/* "host", "host:8" or "host[1-4]:8" in text[0, len). `slots` is what the line says, 0: nothing. */
static int item_read(struct reader *r, char *text, int slots)
{
    char *colon = strchr(text, ':'), say[300];
    struct item *item;
    int rc;

    if (colon) {
        *colon = '\0';
        if (slots > 0)
            return conf_lines_fail(&r->lines,
                                   "%s: slots are told twice, by ':' and by slots=", text);
        rc = slots_read(r, "slots", colon + 1, &slots);
        if (rc != 0)
            return rc;
    }
    rc = items_room(r);
    if (rc != 0)
        return rc;
    item = &r->items[r->nitems];
    item->line = r->lines.line;
    rc = holmes_hostlist_parse(text, &item->hosts, say, sizeof say);
    if (rc == -EINVAL)
        return conf_lines_fail(&r->lines, "host: %s", say);
    if (rc != 0)
        return rc;
    r->nitems++;
    return hosts_add(r, item, slots);
}

/* The words behind the hosts: "slots=8 max-slots=8". Cuts `words` up. */
static int words_read(const struct reader *r, char *words, int *slots)
{
    static const char *const known[] = {"slots", "max-slots", "max_slots", NULL};
    char *save = NULL;
    int max = 0;

    for (char *w = strtok_r(words, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        char *value = strchr(w, '=');
        int rc;

        if (!value)
            return conf_lines_fail(&r->lines,
                                   "\"%.40s\" is not understood: a host, then slots=NUMBER", w);
        *value++ = '\0';
        if (strcmp(w, "slots") == 0) {
            if (*slots > 0)
                return conf_lines_fail(&r->lines, "slots: told twice");
            rc = slots_read(r, "slots", value, slots);
        } else if (strcmp(w, "max-slots") == 0 || strcmp(w, "max_slots") == 0) {
            rc = slots_read(r, w, value, &max);
        } else {
            const char *near = holmes_near_name(w, known);

            return conf_lines_fail(&r->lines, "there is no \"%.40s\" here; %s \"%s=\"%s", w,
                                   near ? "did you mean" : "a line is a host and",
                                   near ? near : "slots", near ? "?" : "");
        }
        if (rc != 0)
            return rc;
    }
    if (max > 0 && *slots > max)
        return conf_lines_fail(&r->lines, "max-slots: %d is less than slots=%d", max, *slots);
    return 0;
}

/* Where the hosts of a line end: blanks count only where no comma is next to them. */
static size_t hosts_end(const char *text)
{
    size_t at = 0;

    for (;;) {
        size_t word = at + strcspn(text + at, " \t\r"), next = word + strspn(text + word, " \t\r");

        if (!text[next] || (text[word - 1] != ',' && text[next] != ','))
            return word;
        at = next;
    }
}

static int line_read(struct reader *r)
{
    char *text = r->lines.text;
    size_t end = hosts_end(text);
    int slots = 0, rc = 0;

    if (text[end]) {
        text[end] = '\0';
        rc = words_read(r, text + end + 1, &slots);
    }
    while (rc == 0) {
        size_t len = 0, inside = 0;

        for (; text[len] && (inside > 0 || text[len] != ','); len++)
            inside = text[len] == '[' ? 1 : text[len] == ']' ? 0 : inside;

        bool last = text[len] == '\0';

        text[len] = '\0';
        while (isspace((unsigned char)*text)) {
            text++;
            len--;
        }
        for (size_t n = len; n > 0 && isspace((unsigned char)text[n - 1]); n--)
            text[n - 1] = '\0';
        if (!*text)
            return conf_lines_fail(&r->lines, "host: a comma without a host next to it");
        rc = item_read(r, text, slots);
        if (last)
            break;
        text += len + 1;
    }
    return rc;
}

int holmes_hostfile_parse(const char *name, const char *data, size_t len,
                          struct holmes_hostfile *out, char *why, size_t why_len)
{
    struct reader r = {.nitems = 0};
    int rc;

    conf_lines_init(&r.lines, name, data, len, false, why, why_len);
    while ((rc = conf_lines_next(&r.lines)) == 1) {
        rc = line_read(&r);
        if (rc != 0)
            break;
    }
    if (rc == 0 && r.file.hosts.nhosts == 0) {
        snprintf(why, why_len, "%s: no host in the file", name);
        rc = -EINVAL;
    }
    if (rc == -ENOMEM)
        snprintf(why, why_len, "%s: not enough memory", name);
    if (rc == 0)
        *out = r.file;
    else
        holmes_hostfile_fini(&r.file);
    holmes_hostindex_destroy(r.seen);
    for (int i = 0; i < r.nitems; i++)
        holmes_hostlist_fini(&r.items[i].hosts);
    free(r.items);
    conf_lines_fini(&r.lines);
    return rc;
}

int holmes_hostfile_read(const char *path, struct holmes_hostfile *out, char *why, size_t why_len)
{
    char *text;
    size_t len;
    int rc = holmes_file_read(path, FILE_SIZE_MAX, &text, &len);

    if (rc != 0) {
        snprintf(why, why_len, "%s: %s", path, holmes_file_strerror(rc));
        return rc;
    }
    rc = holmes_hostfile_parse(strcmp(path, "-") == 0 ? "standard input" : path, text, len, out,
                               why, why_len);
    free(text);
    return rc;
}

void holmes_hostfile_fini(struct holmes_hostfile *h)
{
    holmes_hostlist_fini(&h->hosts);
    free(h->slots);
    h->slots = NULL;
}
